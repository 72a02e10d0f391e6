"""What a user gets who names no constraint set: use of the instruction, and time to start.

Use: the share of executed multiply-accumulates that is useful, over ResNet-18's convolutions
weighted by how often the network has them, under the narrow set alone, by default, and under the
widest one. Start: wall clock of whole commands, one process each, with kernels in a worker and in
the command's own process (``CPEMBED_IN_PROCESS``), by turns; the files of the package are warm.

    python benchmarks/defaults.py [--rounds N]

Writes ``defaults.json`` and ``defaults.md`` beside this file.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from cpembed.driver.named import hardware_spec, workload
from cpembed.driver.solve import solve
from cpembed.runtime.measurement.environment import provenance, provenance_lines
from cpembed.runtime.worker import IN_PROCESS_VARIABLE
from cpembed.workloads.suites import suite

FOLDER = Path(__file__).resolve().parent
OWN = FOLDER.parent / "tests" / "targets"
TARGETS = (
    "vta_8x8x8",
    "amx_int8",
    *(str(OWN / f"{name}.toml") for name in ("systolic", "dot_array")),
)
SETS = ("in_place_padded", None, "complete")
"""None: the default."""
COMMANDS = (
    "run conv2d n=1 c=64 h=28 w=28 k=64 r=3 s=3 pad=1 --target avx512_vnni",
    "run deepbench:11 --target vta_1x16x16",
)


def used(target: str, constraints: str | None) -> float:
    """Useful over executed MACs, over the network."""
    spec = hardware_spec(target)
    useful = executed = 0.0
    for layer in suite("resnet18"):
        given = workload(f"resnet18:{layer.index}", target=spec)
        found = solve(given, spec, constraints=constraints, top=1)
        useful += layer.count * given.macs
        executed += layer.count * given.macs / found.embeddings[0].overheads.utilisation
    return useful / executed


def seconds(command: str, *, in_process: bool) -> float:
    environment = {k: text for k, text in os.environ.items() if k != IN_PROCESS_VARIABLE}
    if in_process:
        environment[IN_PROCESS_VARIABLE] = "1"
    call = [sys.executable, "-m", "cpembed", *command.split(), "--json", "--seed", "1"]
    started = time.perf_counter()
    done = subprocess.run(call, env=environment, capture_output=True, check=False)
    if done.returncode not in (0, 5):
        raise RuntimeError(done.stderr.decode())
    return time.perf_counter() - started


def started(command: str, rounds: int) -> dict[str, Any]:
    """Medians, by turns; the first round is not counted."""
    taken: dict[bool, list[float]] = {True: [], False: []}
    for number in range(rounds + 1):
        for in_process, times in taken.items():
            elapsed = seconds(command, in_process=in_process)
            if number:
                times.append(elapsed)
    own, worker = (statistics.median(taken[key]) for key in (True, False))
    return {"command": command, "rounds": rounds, "own_process_s": own, "worker_s": worker}


def markdown(document: dict[str, Any]) -> str:
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
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    rounds = parser.parse_args().rounds
    document: dict[str, Any] = {
        **provenance(),
        "use": [
            {"target": Path(target).stem, **{str(name): used(target, name) for name in SETS}}
            for target in TARGETS
        ],
        "start": [started(command, rounds) for command in COMMANDS],
    }
    text = markdown(document)
    (FOLDER / "defaults.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    (FOLDER / "defaults.md").write_text(text, encoding="utf-8")
    print(text, end="")


if __name__ == "__main__":
    main()
