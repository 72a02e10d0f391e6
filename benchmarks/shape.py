"""Measure the seconds of ``cpembed shape``, start-up included.

    python -m benchmarks.shape

Runs each command in a process of its own on one core, several times, and writes ``shape.json`` and
``shape.md`` into ``--output``, by default beside this file: the median wall time, the time of the
processor, and whether the answer was proven.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.documents import write_document
from cpembed.runtime.measurement.environment import provenance, provenance_lines

FOLDER = Path(__file__).resolve().parent
COMMANDS = (
    ("deepbench", "--macs", "1024"),
    ("deepbench", "--macs", "1024", "--shapes", "2"),
    ("deepbench", "--macs", "1024", "--shapes", "3"),
    ("deepbench", "--macs", "1024", "--shapes", "2", "--constraints", "complete"),
    ("deepbench", "--macs", "4096", "--shapes", "2"),
    ("resnet50", "--macs", "256", "--packing", "64"),
)


def measure(arguments: tuple[str, ...], rounds: int) -> dict[str, Any]:
    """Return one command's times and answer."""
    walls: list[float] = []
    cpus: list[float] = []
    document: dict[str, Any] = {}
    for _ in range(rounds):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        started = time.perf_counter()
        command = [sys.executable, "-m", "cpembed", "shape", *arguments, "--json"]
        process = subprocess.run(command, capture_output=True, text=True, check=True)
        walls.append(time.perf_counter() - started)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpus.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        document = json.loads(process.stdout)
    return {
        "command": " ".join(("cpembed", "shape", *arguments)),
        "wall_s": statistics.median(walls),
        "cpu_s": statistics.median(cpus),
        "rounds": rounds,
        "shapes": [item["shape"] for item in document["best"]],
        "executions": document["executions"],
        "proven": document["proven"],
    }


def markdown(document: dict[str, Any]) -> str:
    """Return the table."""
    lines = [
        "# Seconds of `cpembed shape`",
        "",
        "Measured by `shape.py`: the median of processes on one core, start-up included.",
        "",
        "| command | wall s | processor s | proven |",
        "| --- | ---: | ---: | --- |",
        *(
            f"| `{row['command']}` | {row['wall_s']:.2f} | {row['cpu_s']:.2f} | "
            f"{'yes' if row['proven'] else 'no'} |"
            for row in document["rows"]
        ),
        "",
        *provenance_lines(document, "one core"),
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--output", type=Path, default=FOLDER, help="folder of the results")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    rows: list[dict[str, Any]] = []
    for arguments in COMMANDS:
        rows.append(measure(arguments, options.rounds))
        print(json.dumps(rows[-1]), file=sys.stderr)
    document: dict[str, Any] = {"rows": rows, **provenance()}
    write_document(options.output / "shape.json", document)
    (options.output / "shape.md").write_text(markdown(document), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
