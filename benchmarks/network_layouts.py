"""What choosing layouts over a whole network is worth, measured.

    python benchmarks/network_layouts.py MODELS --target avx512_vnni [--only resnet18_int8]

Of every ``MODELS/*_int8.onnx`` three libraries: layouts chosen together (``assigned``), all
channels last, and the fastest of each operator by itself. The three run in one process and take
turns, every other round backwards; the ratio of a round is another's time over that of
``assigned``, above 1 where choosing together is faster, and the median of rounds is reported. A
call is counted from arrays of numpy to arrays of numpy. Writes ``network_layouts.json`` and
``network_layouts.md`` into ``--output``, after every network.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from cpembed.files import write_whole
from cpembed.frontends import load_model
from cpembed.network.build import CompiledNetwork, RunningNetwork, compile_network
from cpembed.network.inputs import random_inputs
from cpembed.network.plan import Planning, Policy
from cpembed.runtime.measurement.environment import provenance, provenance_lines

FOLDER = Path(__file__).resolve().parent
POLICIES: tuple[Policy, ...] = get_args(Policy)
Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("models", type=Path)
    parser.add_argument("--target", default="avx512_vnni")
    parser.add_argument("--measure", action="store_true", help="choose by measured kernels")
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--round-ms", type=float, default=40.0)
    parser.add_argument("--output", type=Path, default=FOLDER)
    asked = parser.parse_args()
    paths = sorted(asked.models.glob("*_int8.onnx"))
    rows: list[Row] = []
    for path in paths:
        if asked.only and path.stem not in asked.only:
            continue
        rows.append(compared(path, asked.target, asked.measure, asked.rounds, asked.round_ms))
        costs = "measured" if asked.measure else "estimated"
        document = {"target": asked.target, "costs": costs, "rounds": asked.rounds, "rows": rows}
        document |= provenance()
        write_whole(asked.output / "network_layouts.json", json.dumps(document, indent=1) + "\n")
        write_whole(asked.output / "network_layouts.md", markdown(document))
        print(line(rows[-1]))


def compared(path: Path, target: str, measures: bool, rounds: int, round_ms: float) -> Row:
    """A network under the three policies."""
    graph = load_model(path)
    with tempfile.TemporaryDirectory() as folder:
        made: dict[str, CompiledNetwork] = {}
        for policy in POLICIES:
            place = Path(folder) / policy
            how = Planning(policy=policy, measures=measures)
            made[policy] = compile_network(graph, target, place, how, name=policy)
        running = {policy: one.open() for policy, one in made.items()}
        inputs = random_inputs(graph, 0)
        given = {policy: one.in_order(inputs) for policy, one in running.items()}
        times = _turns(running, given, rounds, round_ms)
        for one in running.values():
            one.close()
    base = times["assigned"]
    ratios = {
        policy: statistics.median(a / b for a, b in zip(found, base, strict=True))
        for policy, found in times.items()
    }
    plans = {policy: one.plan for policy, one in made.items()}
    return {
        "network": path.stem,
        "us": {policy: 1e6 * statistics.median(found) for policy, found in times.items()},
        "ratio": ratios,
        "predicted_us": {policy: plan.assignment.cost for policy, plan in plans.items()},
        "conversions": {policy: len(plan.conversions) for policy, plan in plans.items()},
    }


def _turns(
    running: dict[str, RunningNetwork], given: dict[str, Any], rounds: int, round_ms: float
) -> dict[str, list[float]]:
    """Seconds of a call under each policy, in each round."""
    calls: dict[str, int] = {}
    for policy, one in running.items():
        one.library.run(*given[policy])
        started = time.perf_counter()
        one.library.run(*given[policy])
        taken = time.perf_counter() - started
        calls[policy] = max(1, int(round_ms / 1e3 / taken))
    times: dict[str, list[float]] = {policy: [] for policy in running}
    for number in range(rounds):
        order: Sequence[str] = list(running) if number % 2 else list(reversed(running))
        for policy in order:
            started = time.perf_counter()
            for _ in range(calls[policy]):
                running[policy].library.run(*given[policy])
            times[policy].append((time.perf_counter() - started) / calls[policy])
    return times


def line(row: Row) -> str:
    ratio = row["ratio"]
    return (
        f"{row['network']:28} {row['us']['assigned']:9.0f} us  channels last x"
        f"{ratio['channels_last']:.3f}  own best x{ratio['alone']:.3f}"
    )


def markdown(document: dict[str, Any]) -> str:
    run = (
        f"{document['rounds']} rounds, target {document['target']}, "
        f"kernels {document['costs']} for the choice"
    )
    rows = document["rows"]
    better = sum(
        row["ratio"]["channels_last"] > 1 and row["ratio"]["alone"] > 1 for row in rows
    )  # fmt: skip
    lines = ["# Layouts chosen over a network, measured", ""]
    lines += provenance_lines(document, run)
    lines += [
        "",
        "Above 1, choosing together is faster.",
        "",
        "| network | us | channels last | each operator's own best | conversions |",
        "| --- | ---: | ---: | ---: | --- |",
    ]
    for row in rows:
        counts = " / ".join(str(row["conversions"][policy]) for policy in POLICIES)
        lines.append(
            f"| {row['network']} | {row['us']['assigned']:.0f} | "
            f"{row['ratio']['channels_last']:.3f} | {row['ratio']['alone']:.3f} | {counts} |"
        )
    lines += ["", f"Faster than both on {better} of {len(rows)}.", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
