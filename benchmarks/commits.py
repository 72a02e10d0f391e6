"""Compare two commits of cpembed: times of kernels, simulated cycles, time of commands.

    git worktree add ../before COMMIT
    python -m benchmarks.commits ../before . --rounds 2

Each side runs in processes of its own, interleaved; of a layer the best median of all rounds
counts. Ratios are before over after, above 1 if the second checkout is faster; those of commands
are after over before.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.documents import write_document
from cpembed.runtime.measurement.environment import machine, versions

OUTPUT = Path(__file__).with_suffix(".json")

KERNELS = ("unit16 avx512_vnni", "resnet50 avx512_vnni")
"""Suites and targets whose kernels are timed, on one thread."""
CYCLES = ("deepbench vta_1x16x16",)
"""Suites and targets whose cycles are compared: they are the same at every run."""
COMMANDS = (
    "solve conv2d n=1 c=64 h=56 w=56 k=64 r=3 s=3 pad=1 --target avx512_vnni",
    "solve gemm m=64 n=64 k=64 --target vta_1x16x16",
    "solve conv2d n=1 c=64 h=56 w=56 k=64 r=3 s=3 pad=1 --target amx_int8 --all",
    "explain conv2d n=1 c=3 h=32 w=32 k=64 r=7 s=7 stride=2 pad=3 --target amx_int8",
)
COMMAND_ROUNDS = 11


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--kernels", nargs="*", default=KERNELS)
    parser.add_argument("--cycles", nargs="*", default=CYCLES)
    parser.add_argument("--output", type=Path, default=OUTPUT)
    options = parser.parse_args()
    sides = {"before": options.before.resolve(), "after": options.after.resolve()}
    document = {
        "commits": {name: commit(folder) for name, folder in sides.items()},
        "machine": machine(),
        "versions": versions(),
        "rounds": options.rounds,
        "kernels": {suite: kernels(suite, sides, options.rounds) for suite in options.kernels},
        "cycles": {suite: cycles(suite, sides) for suite in options.cycles},
        "commands": {command: commands(command, sides) for command in COMMANDS},
    }
    write_document(options.output, document)
    print(json.dumps({k: v for k, v in document.items() if k != "versions"}, indent=1))


def commit(folder: Path) -> str:
    """Return the short name of a checkout's commit."""
    process = subprocess.run(
        ["git", "-C", str(folder), "rev-parse", "--short", "HEAD"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return process.stdout.strip()


def run_command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command of a checkout."""
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run(
        [sys.executable, "-m", "cpembed", *arguments],
        cwd=folder, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


def rows(folder: Path, suite_and_target: str, *more: str) -> dict[int, dict[str, Any]]:
    """Return the runs of a suite's layers, by index.

    Parameters
    ----------
    folder : Path
        Checkout.
    suite_and_target : str
        Names of both, with a blank between them.
    *more : str
        Further arguments of ``bench``.
    """
    suite, target = suite_and_target.split()
    with tempfile.TemporaryDirectory() as results:
        process = run_command(
            folder, "bench", suite, "--target", target, "--untuned", "--json",
            "--results", results, *more,
        )  # fmt: skip
    if not process.stdout:
        raise SystemExit(f"{folder}: {suite_and_target}: {process.stderr.strip().splitlines()[-1]}")
    bench_rows = json.loads(process.stdout)["rows"]
    return {row["index"]: row["run"] for row in bench_rows if row["run"] is not None}


def kernels(suite_and_target: str, sides: dict[str, Path], rounds: int) -> dict[str, Any]:
    """Return ratios of the calls' medians, packing included, and of the contraction's.

    Parameters
    ----------
    suite_and_target : str
        Names of both, with a blank between them.
    sides : dict of str to Path
        Checkouts.
    rounds : int
        Number of runs of each.
    """
    best: dict[str, dict[int, tuple[float, float]]] = {name: {} for name in sides}
    for number in range(rounds):
        for name in sorted(sides, reverse=bool(number % 2)):
            for index, run in rows(sides[name], suite_and_target, "--threads", "1").items():
                took = run["whole_us"]["median"], run["latency_us"]["median"]
                old = best[name].get(index, took)
                best[name][index] = min(took[0], old[0]), min(took[1], old[1])
    shared = sorted(set(best["before"]) & set(best["after"]))
    ratios = {
        part: {i: best["before"][i][n] / best["after"][i][n] for i in shared}
        for n, part in enumerate(("whole", "contraction"))
    }
    return {
        "layers": len(shared),
        **{
            part: {
                "geometric_mean": math.exp(statistics.fmean(map(math.log, each.values()))),
                "worst": min(each.values()),
                "best": max(each.values()),
            }
            for part, each in ratios.items()
        },
    }


def cycles(suite_and_target: str, sides: dict[str, Path]) -> dict[str, Any]:
    """Return the layers that take fewer or more simulated cycles."""
    counted = {
        name: {i: run["simulated_cycles"] for i, run in rows(folder, suite_and_target).items()}
        for name, folder in sides.items()
    }
    before, after = counted["before"], counted["after"]
    return {
        "layers": len(before),
        "fewer": sum(after[i] < before[i] for i in before),
        "more": [i for i in before if after.get(i, math.inf) > before[i]],
        "total_before": sum(before.values()),
        "total_after": sum(after.values()),
    }


def commands(command: str, sides: dict[str, Path]) -> dict[str, float]:
    """Return the wall time of a command, after over before, of medians and of the fastest."""
    took: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(COMMAND_ROUNDS):
        for name in sorted(sides, reverse=bool(number % 2)):
            started = time.perf_counter()
            run_command(sides[name], *command.split())
            took[name].append(time.perf_counter() - started)
    median = {name: statistics.median(times) for name, times in took.items()}
    return {
        "seconds_before": median["before"],
        "seconds_after": median["after"],
        "ratio_of_medians": median["after"] / median["before"],
        "ratio_of_fastest": min(took["after"]) / min(took["before"]),
    }


if __name__ == "__main__":
    main()
