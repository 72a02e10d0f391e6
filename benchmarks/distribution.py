"""Measure the wall time of a suite's searches in one process and in several, interleaved.

Each run is the command as a person calls it, ``cpembed bench SUITE --target T --no-run``, in a
process of its own with an empty store: start-up, imports, the table, and the end of the workers are
part of it. The two take turns, and so does which is first. The rows of both are the same but for
times and dates, or the script fails.

    python -m benchmarks.distribution [--repeats N] [--workers N] [--suite S] [--target T]

Writes ``distribution.json`` after every pair and ``distribution.md`` into ``--output``, by default
beside this file. For figures, on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.documents import write_document
from cpembed.runtime.measurement.environment import provenance, provenance_lines

FOLDER = Path(__file__).resolve().parent
DIFFERS = ("seconds", "date")
"""Fields of rows that differ from run to run."""

Run = dict[str, float]


def timed(command: list[str]) -> tuple[Run, Any]:
    """Return a command's seconds, by wall clock and of all processes, and its document."""
    with tempfile.TemporaryDirectory() as folder:
        before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        process = subprocess.run([*command, "--results", folder], capture_output=True, check=True)
        wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall_s": round(wall, 3), "cpu_s": round(spent, 3)}, json.loads(process.stdout)


def without_times(value: Any) -> Any:
    """Return a document without the fields that differ from run to run."""
    if isinstance(value, dict):
        return {key: without_times(item) for key, item in value.items() if key not in DIFFERS}
    return [without_times(item) for item in value] if isinstance(value, list) else value


def pair(options: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Make one run of each kind; which is first alternates."""
    single = [
        sys.executable, "-m", "cpembed", "bench", options["suite"], "--target", options["target"],
        "--no-run", "--json",
    ]  # fmt: skip
    commands = {"one": single, "several": [*single, "--workers", str(options["workers"])]}
    load = round(os.getloadavg()[0], 1)
    runs = {name: timed(commands[name]) for name in sorted(commands, reverse=bool(number % 2))}
    rows = [without_times(document["rows"]) for _, document in runs.values()]
    if rows[0] != rows[1]:
        raise SystemExit("rows differ in more than times")
    return {"load": load, **{name: run for name, (run, _) in runs.items()}}


def summary(pairs: list[dict[str, Any]]) -> dict[str, float]:
    """Return medians, and that of the ratios of each pair."""
    walls = {name: [pair[name]["wall_s"] for pair in pairs] for name in ("one", "several")}
    ratios = [single / several for single, several in zip(*walls.values(), strict=True)]
    return {
        "one_s": round(statistics.median(walls["one"]), 2),
        "several_s": round(statistics.median(walls["several"]), 2),
        "ratio": round(statistics.median(ratios), 2),
        "least_ratio": round(min(ratios), 2),
        "largest_ratio": round(max(ratios), 2),
    }


def markdown(document: Mapping[str, Any]) -> str:
    """Return the page."""
    options, pairs, medians = document["options"], document["pairs"], document["summary"]
    spent = {
        name: statistics.median(pair[name]["cpu_s"] for pair in pairs)
        for name in ("one", "several")
    }
    loads = [pair["load"] for pair in pairs]
    workers = options["workers"]
    spread = f"{medians['least_ratio']:.2f} to {medians['largest_ratio']:.2f}"
    lines = [
        "# One process and several",
        "",
        "Written by `distribution.py`: from the start of the command to its end, without a store;",
        f"`cpembed bench {options['suite']} --target {options['target']} --no-run`.",
        "Medians, measured.",
        "",
        "| | wall clock, s | processor time, s |",
        "| --- | --- | --- |",
        f"| one process | {medians['one_s']:.2f} | {spent['one']:.2f} |",
        f"| `--workers {workers}` | {medians['several_s']:.2f} | {spent['several']:.2f} |",
        "",
        f"Ratio {medians['ratio']:.2f} in the median of {len(pairs)} pairs, {spread}.",
        "",
    ]
    run = f"load average before a pair {min(loads)} to {max(loads)}"
    return "\n".join([*lines, *provenance_lines(document, run)]) + "\n"


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--suite", default="deepbench")
    parser.add_argument("--target", default="vta_1x16x16")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--output", type=Path, default=FOLDER, help="folder of the results")
    arguments = parser.parse_args()
    options = {name: getattr(arguments, name) for name in ("suite", "target", "workers")}
    pair(options, 0)  # The files of libraries are in memory then.
    document: dict[str, Any] = {**provenance(), "options": options, "pairs": []}
    for number in range(arguments.repeats):
        document["pairs"].append(pair(options, number))
        document["summary"] = summary(document["pairs"])
        write_document(arguments.output / "distribution.json", document)
    text = markdown(document)
    (arguments.output / "distribution.md").write_text(text, encoding="utf-8")
    print(text, end="")


if __name__ == "__main__":
    main()
