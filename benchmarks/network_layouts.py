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

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any, get_args

from benchmarks.documents import write_document
from benchmarks.interleaved import turns
from cpembed.files import write_whole
from cpembed.frontends import load_model
from cpembed.network.build import CompiledNetwork, compile_network
from cpembed.network.inputs import random_inputs
from cpembed.network.plan import Planning, Policy
from cpembed.runtime.measurement.environment import provenance, provenance_lines

FOLDER = Path(__file__).resolve().parent
POLICIES: tuple[Policy, ...] = get_args(Policy)
Row = dict[str, Any]


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("models", type=Path)
    parser.add_argument("--target", default="avx512_vnni")
    parser.add_argument("--measure", action="store_true", help="choose by measured kernels")
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--round-ms", type=float, default=40.0)
    parser.add_argument("--output", type=Path, default=FOLDER)
    options = parser.parse_args()
    paths = sorted(options.models.glob("*_int8.onnx"))
    rows: list[Row] = []
    for path in paths:
        if options.only and path.stem not in options.only:
            continue
        rows.append(
            compared(path, options.target, options.measure, options.rounds, options.round_ms)
        )
        costs = "measured" if options.measure else "estimated"
        document = {
            "target": options.target,
            "costs": costs,
            "rounds": options.rounds,
            "rows": rows,
        }
        document |= provenance()
        write_document(options.output / "network_layouts.json", document)
        write_whole(options.output / "network_layouts.md", markdown(document))
        print(line(rows[-1]))


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
        "us": {policy: 1e6 * statistics.median(seconds) for policy, seconds in times.items()},
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


def markdown(document: dict[str, Any]) -> str:
    """Return the page."""
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
