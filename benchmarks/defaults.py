"""Measure the defaults: use of the instruction without a constraint set, and time to start.

Use: the share of executed multiply-accumulates that is useful, over ResNet-18's convolutions
weighted by how often the network has them, under the first preset alone, by default, and under the
largest set. Start: wall clock of entire commands, one process each, with kernels in a worker and in
the command's own process (``CPEMBED_IN_PROCESS``), by turns; the files of the package are warm.

    python -m benchmarks.defaults [--rounds N]

Writes ``defaults.json`` and ``defaults.md`` beside this file.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.documents import write_document
from cpembed.driver.named import hardware_spec, workload
from cpembed.driver.solve import solve
from cpembed.runtime.measurement.environment import provenance, provenance_lines
from cpembed.runtime.worker import IN_PROCESS_VARIABLE
from cpembed.workloads.suites import suite

FOLDER = Path(__file__).resolve().parent
USER_TARGETS = FOLDER.parent / "tests" / "targets"
TARGETS = (
    "vta_8x8x8",
    "amx_int8",
    *(str(USER_TARGETS / f"{name}.toml") for name in ("systolic", "dot_array")),
)
SETS = ("in_place_padded", None, "complete")
"""Constraint sets; None is the default."""
COMMANDS = (
    "run conv2d n=1 c=64 h=28 w=28 k=64 r=3 s=3 pad=1 --target avx512_vnni",
    "run deepbench:11 --target vta_1x16x16",
)


def utilisation(target: str, constraints: str | None) -> float:
    """Return useful over executed MACs, over the network."""
    spec = hardware_spec(target)
    useful = executed = 0.0
    for layer in suite("resnet18"):
        computation = workload(f"resnet18:{layer.index}", target=spec)
        solved = solve(computation, spec, constraints=constraints, top=1)
        useful += layer.count * computation.macs
        executed += layer.count * computation.macs / solved.embeddings[0].overheads.utilisation
    return useful / executed


def seconds(command: str, *, in_process: bool) -> float:
    """Return the wall time of a command."""
    environment = {k: text for k, text in os.environ.items() if k != IN_PROCESS_VARIABLE}
    if in_process:
        environment[IN_PROCESS_VARIABLE] = "1"
    call = [sys.executable, "-m", "cpembed", *command.split(), "--json", "--seed", "1"]
    start_times = time.perf_counter()
    process = subprocess.run(call, env=environment, capture_output=True, check=False)
    if process.returncode not in (0, 5):
        raise RuntimeError(process.stderr.decode())
    return time.perf_counter() - start_times


def start_times(command: str, rounds: int) -> dict[str, Any]:
    """Return medians of a command's times, by turns; the first round is not counted."""
    times_by_place: dict[bool, list[float]] = {True: [], False: []}
    for number in range(rounds + 1):
        for in_process, times in times_by_place.items():
            elapsed = seconds(command, in_process=in_process)
            if number:
                times.append(elapsed)
    own_process, worker = (statistics.median(times_by_place[key]) for key in (True, False))
    return {"command": command, "rounds": rounds, "own_process_s": own_process, "worker_s": worker}


def markdown(document: dict[str, Any]) -> str:
    """Return the tables."""
    uses = [
        f"| {row['target']} | " + " | ".join(f"{row[str(name)]:.1%}" for name in SETS) + " |"
        for row in document["use"]
    ]
    starts = [
        f"| `{row['command']}` | {row['own_process_s']:.2f} | {row['worker_s']:.2f} | "
        f"{row['worker_s'] - row['own_process_s']:+.2f} |"
        for row in document["start"]
    ]
    return "\n".join(
        [
            "# Defaults",
            "",
            "Written by `defaults.py`. Use of the instruction over ResNet-18, layers weighted by",
            "their MACs:",
            "",
            "| target | in_place_padded | default | complete |",
            "| --- | --- | --- | --- |",
            *uses,
            "",
            "`systolic` and `dot_array` are specifications of the tests, such as a user writes.",
            "",
            "Wall clock of a whole command, medians:",
            "",
            "| command | in its own process, s | in a worker, s | difference |",
            "| --- | --- | --- | --- |",
            *starts,
            "",
            *provenance_lines(document, "commands by turns"),
            "",
        ]
    )


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    rounds = parser.parse_args().rounds
    document: dict[str, Any] = {
        **provenance(),
        "use": [
            {"target": Path(target).stem, **{str(name): utilisation(target, name) for name in SETS}}
            for target in TARGETS
        ],
        "start": [start_times(command, rounds) for command in COMMANDS],
    }
    text = markdown(document)
    write_document(FOLDER / "defaults.json", document)
    (FOLDER / "defaults.md").write_text(text, encoding="utf-8")
    print(text, end="")


if __name__ == "__main__":
    main()
