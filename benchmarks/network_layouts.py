"""Measure the gain of choosing layouts over an entire network.

    python -m benchmarks.network_layouts MODELS --target avx512_vnni [--only resnet18_int8]

Of every ``MODELS/*_int8.onnx`` three libraries: layouts chosen over the network (``assigned``), all
channels last, and the fastest of each operator by itself. The three run in one process and take
turns, every other round backwards; the ratio of a round is another's time over that of
``assigned``, above 1 if choosing over the network is faster, and the median of rounds is reported.
A call is counted from arrays of numpy to arrays of numpy. Writes ``network_layouts.json`` and
``network_layouts.md`` into ``--output``, after every network.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import get_args

from benchmarks.documents import Document, Row
from benchmarks.interleaved import turns
from benchmarks.network_comparison import (
    Comparison,
    comparison_parser,
    heading,
    median_us,
)
from cpembed.frontends import load_model
from cpembed.network.build import CompiledNetwork, compile_network
from cpembed.network.inputs import random_inputs
from cpembed.network.plan import Planning, Policy

POLICIES: tuple[Policy, ...] = get_args(Policy)


def main() -> None:
    """Run the command."""
    options = comparison_parser(__doc__ or "", "avx512_vnni").parse_args()

    def row(path: Path) -> Row:
        return compared(path, options.target, options.measure, options.rounds, options.round_ms)

    Comparison("network_layouts", row, line, markdown).run(options, "*_int8.onnx")


def compared(path: Path, target: str, measures: bool, rounds: int, round_ms: float) -> Row:
    """Measure a network under the three policies.

    Parameters
    ----------
    path : Path
        File of the network.
    target : str
        Name of the target.
    measures : bool
        True to choose by measured kernels.
    rounds : int
        Number of rounds.
    round_ms : float
        Milliseconds of a round for each policy.
    """
    graph = load_model(path)
    with tempfile.TemporaryDirectory() as folder:
        networks: dict[str, CompiledNetwork] = {}
        for policy in POLICIES:
            place = Path(folder) / policy
            planning = Planning(policy=policy, measures=measures)
            networks[policy] = compile_network(graph, target, place, planning, name=policy)
        running = {policy: network.open() for policy, network in networks.items()}
        inputs = random_inputs(graph, 0)
        arguments = {policy: network.in_order(inputs) for policy, network in running.items()}
        times = turns(running, arguments, rounds, round_ms)
        for network in running.values():
            network.close()
    base = times["assigned"]
    ratios = {
        policy: statistics.median(a / b for a, b in zip(seconds, base, strict=True))
        for policy, seconds in times.items()
    }
    plans = {policy: network.plan for policy, network in networks.items()}
    return {
        "network": path.stem,
        "us": median_us(times),
        "ratio": ratios,
        "predicted_us": {policy: plan.assignment.cost for policy, plan in plans.items()},
        "conversions": {policy: len(plan.conversions) for policy, plan in plans.items()},
    }


def line(row: Row) -> str:
    """Return a row as a line."""
    ratio = row["ratio"]
    return (
        f"{row['network']:28} {row['us']['assigned']:9.0f} us  channels last x"
        f"{ratio['channels_last']:.3f}  own best x{ratio['alone']:.3f}"
    )


def markdown(document: Document) -> str:
    """Return the page."""
    rows = document["rows"]
    better = sum(
        row["ratio"]["channels_last"] > 1 and row["ratio"]["alone"] > 1 for row in rows
    )  # fmt: skip
    lines = heading("Layouts chosen over a network, measured", document)
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
