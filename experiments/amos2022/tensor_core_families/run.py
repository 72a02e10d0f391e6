"""Families that the shipped constraint sets find of AMOS's 15 operators on Tensor Cores.

    python -m experiments.amos2022.tensor_core_families.run

Writes ``results.md`` and ``results.json`` into ``--output``, by default beside this file; README.md
says what is counted and what is expected. The exit code is 1 if a count is not as expected.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cpembed.driver.named import workload
from cpembed.driver.solve import solve
from cpembed.hw.instruction import HardwareSpec
from cpembed.hw.loader import load_hardware_spec
from cpembed.ir.computation import Computation
from cpembed.runtime.measurement.environment import provenance, provenance_lines
from cpembed.workloads.suites import suite
from experiments.common import geometric_mean, load_document, results_parser, write_results

FOLDER = Path(__file__).resolve().parent

TARGETS = ("mma_f16", "mma_s8", "wmma_f16", "wmma_f16_32x8x16", "wmma_f16_8x32x16")
"""A specification for each shape; the others differ by element types alone."""

SETS = ("in_place_padded", "relaxed", "fused", "flattened", "complete")

UNRESTRICTED = ("relaxed", "flattened", "complete")
"""Sets that leave no family out; ``complete`` has those with commuted operands as well."""

DISPLAYED = ("in_place_padded", "fused", "complete")
"""Sets whose use of the instruction is on the page."""

SECONDS = 60.0
"""Time limit of a search; none takes more than a few."""

AMOS = load_document(FOLDER.parent / "table6")
"""The paper's counts by operator, and layers that do not embed."""


def layers() -> dict[str, list[int]]:
    """Return the numbers in the suite ``amos`` of each operator's layers that embed at all."""
    numbers: dict[str, list[int]] = {}
    left_out = {label for row in AMOS["table_6"] for label in row["without_family"]}
    for number, layer in enumerate(suite("amos")):
        if layer.label not in left_out:
            numbers.setdefault(layer.application, []).append(number)
    return numbers


def counted(number: int, spec: HardwareSpec, constraints: str) -> tuple[int, float]:
    """Return the families of a layer, and the best embedding's share of the instruction."""
    computation = workload(f"amos:{number}", target=spec)
    solved = solve(computation, spec, constraints=constraints, top=1, timeout=SECONDS)
    if not solved.complete:
        raise RuntimeError(f"{computation.name} under {constraints}: the search did not end")
    return solved.families, solved.utilisation or 0.0


def measure(
    operators: Mapping[str, Sequence[int]], targets: Sequence[str] = TARGETS
) -> list[dict[str, Any]]:
    """Return a row for each operator, target and set.

    A row has the least and the largest number of families of its layers, the geometric mean of the
    shares that are used if something embeds, and the number of those layers.
    """
    rows: list[dict[str, Any]] = []
    for operator, numbers in operators.items():
        for target in targets:
            spec = load_hardware_spec(target)
            for constraints in SETS:
                each = [counted(number, spec, constraints) for number in numbers]
                shares = [share for families, share in each if families]
                mean = geometric_mean(shares) if shares else 0.0
                rows.append(
                    {
                        "operator": operator,
                        "target": target,
                        "constraints": constraints,
                        "families": [min(each)[0], max(each)[0]],
                        "used": round(mean, 4),
                        "embedded": len(shares),
                        "layers": len(each),
                    }
                )
        print(operator, file=sys.stderr)
    return rows


def expected(operator: str, target: str, constraints: str) -> tuple[int, int]:
    """Return the least and the largest number of families that an unrestricted set can find.

    An instruction axis of extent 8 has room for three digits of two steps, so not more than three
    axes feed it; fused into one, four do where their extents allow.
    """
    spec = load_hardware_spec(target)
    computation = workload(f"amos:{layers()[operator][0]}", target=spec)
    axes = spec.instruction.computation.axes
    signatures = [signature(computation, axis.name) for axis in computation.axes]
    counts = [signatures.count(signature(spec.instruction.computation, axis.name)) for axis in axes]
    orders = [counts]
    if constraints == "complete":
        first, second, *rest = counts
        orders.append([second, first, *rest])
    least = most = 0
    for order in orders:
        extents = [axis.extent for axis in axes]
        least += math.prod(map(subsets, order, extents))
        most += math.prod(2**count - 1 for count in order)
    return least, least if constraints == "relaxed" else most


def subsets(count: int, extent: int) -> int:
    """Return the number of sets of axes that can each have a digit of two steps in an extent."""
    return sum(math.comb(count, size) for size in range(1, extent.bit_length()))


def signature(computation: Computation, axis: str) -> tuple[bool, ...]:
    """Return for each operand if an axis indexes it."""
    accesses = (*computation.reads, *computation.stores)
    return tuple(any(axis in i.iterators for i in access.index) for access in accesses)


def problems(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a message for each unrestricted set with fewer or more families than there are."""
    messages: list[str] = []
    for row in rows:
        if row["constraints"] not in UNRESTRICTED:
            continue
        low, high = expected(row["operator"], row["target"], row["constraints"])
        least, most = row["families"]
        if not low <= least <= most <= high:
            where = f"{row['operator']} on {row['target']} under {row['constraints']}"
            messages.append(f"{where}: {least} to {most} families, expected {low} to {high}")
    return messages


def markdown(document: Mapping[str, Any]) -> str:
    """Return the results as tables."""
    rows: list[dict[str, Any]] = document["rows"]
    row_of = {(r["operator"], r["target"], r["constraints"]): r for r in rows}
    operators = list(dict.fromkeys(r["operator"] for r in rows))
    targets = list(dict.fromkeys(r["target"] for r in rows))
    paper = {row["operator"]: row for row in AMOS["table_6"]}
    lines = [
        "# Families of embeddings on Tensor Cores",
        "",
        "Written by `run.py`; README.md says what the columns are.",
        "",
        "## Families",
        "",
        f"| operator | layers | AMOS, table 6 | {' | '.join(SETS)} |",
        "| --- |" + " --- |" * (2 + len(SETS)),
    ]
    for operator in operators:
        cells = [
            _span([row_of[operator, target, name]["families"] for target in targets])
            for name in SETS
        ]
        row = paper[operator]
        count = row_of[operator, targets[0], SETS[0]]["layers"]
        title = f"{operator} {row['meaning']}"
        lines.append(f"| {title} | {count} | {row['paper']} | {' | '.join(cells)} |")
    for name in DISPLAYED:
        lines += [
            "",
            f"## How much of the instruction the best embedding uses, `{name}`",
            "",
            f"| operator | {' | '.join(_shape(target) for target in targets)} |",
            "| --- |" + " --- |" * len(targets),
        ]
        for operator in operators:
            cells = [_share(row_of[operator, target, name]) for target in targets]
            lines.append(f"| {operator} {paper[operator]['meaning']} | {' | '.join(cells)} |")
    lines += ["", *provenance_lines(document, f"{document['seconds']:.0f} s")]
    return "\n".join(lines) + "\n"


def _span(ranges: Sequence[Sequence[int]]) -> str:
    low, high = min(r[0] for r in ranges), max(r[1] for r in ranges)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _shape(target: str) -> str:
    x, y, z = load_hardware_spec(target).instruction.extents.values()
    return f"`{target}` {x} x {y} x {z}"


def _share(row: Mapping[str, Any]) -> str:
    if not row["embedded"]:
        return "none"
    share = f"{row['used']:.1%}"
    return share if row["embedded"] == row["layers"] else f"{share} ({row['embedded']} layers)"


def main() -> int:
    """Run the command; return its exit code."""
    folder: Path = results_parser(__doc__, FOLDER).parse_args().output
    started = time.perf_counter()
    rows = measure(layers())
    document: dict[str, Any] = {
        "rows": rows,
        "seconds": round(time.perf_counter() - started, 1),
        **provenance(),
    }
    write_results(folder, document, markdown(document))
    print(markdown(document), end="")
    messages = problems(rows)
    print("\n".join(messages), file=sys.stderr)
    return 1 if messages else 0


if __name__ == "__main__":
    sys.exit(main())
