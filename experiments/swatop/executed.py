"""60 of listing 1's configurations, scaled down, executed by all methods and compared with numpy.

    python -m experiments.swatop.executed [--jobs 2]

Results are emulated: 64 workers in the place of the cores. Some minutes; it resumes.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from cpembed.errors import LoweringError
from cpembed.ir.computation import Computation
from cpembed.ir.reference import random_inputs
from cpembed.targets.scratchpad.executor import Counters, program
from cpembed.targets.scratchpad.methods import ScratchpadMethodProgram, method_plan
from experiments.swatop import paper
from experiments.swatop.convolutions import METHODS, layouts
from experiments.swatop.counted import counted_us
from experiments.swatop.layers import Convolution, listing_1
from experiments.swatop.planning import best, machine
from experiments.swatop.rows import Part, Row, table

EACH = 20
"""Configurations of a batch."""

BATCHES: Mapping[int, int] = {1: 1, 32: 8, 128: 32}
ROWS: Mapping[int, int] = {16: 4, 32: 5, 64: 7, 128: 10, 256: 13}
CHANNELS = 8
"""Batches and rows as they are scaled; channels and filters are divided."""

TOLERANCE = 1e-4
"""Of the largest output: float32 of another order of sums, and Winograd's transforms."""

SEEDS = (1, 2)
"""Orders in which cores run and transfers end."""


@cache
def layers() -> dict[str, Convolution]:
    """By key, evenly over the configurations of each batch."""
    found: dict[str, Convolution] = {}
    for batch in paper.BATCHES:
        own = listing_1((batch,))
        for layer in (own[n * len(own) // EACH] for n in range(EACH)):
            found[layer.key] = Convolution(
                "scaled",
                layer.key,
                BATCHES[batch],
                layer.channels // CHANNELS,
                layer.filters // CHANNELS,
                ROWS[layer.rows],
                pad=0,
            )
    return found


def compute(key: str) -> Row:
    layer = layers()[key]
    found: dict[str, Any] = {"implicit": _implicit(layer)}
    for name in METHODS:
        found[name] = _rewritten(layer, name)
    return {"scaled": layer.key, "macs": layer.macs, "methods": found}


def _implicit(layer: Convolution) -> Row:
    names = layouts(layer.batch)
    planned = best([layer.computation(name) for name in names])
    workload = planned.product.program.unfused
    inputs, expected = given(workload)
    built = program(planned.plan)
    errors = [_error(built.run(inputs, seed), expected) for seed in SEEDS]
    assert built.counters is not None
    return {
        "layout": names[planned.option],
        "plan": planned.words,
        "error": max(errors),
        "estimated_us": round(planned.us, 3),
        "counted_us": round(counted_us(planned.plan, built.counters), 3),
        "counters": {"product": _kept(built.counters)},
    }


def _rewritten(layer: Convolution, name: str) -> Row:
    """In the first layout that has generated parts."""
    for layout in ("NHWC", "NCHW"):
        workload = layer.computation(layout)
        try:
            plan = method_plan(METHODS[name](workload), machine())
            product = best([plan.product])
        except LoweringError:
            continue
        inputs, expected = given(workload)
        built = ScratchpadMethodProgram(plan, program(product.plan), machine())
        errors = [_error(built.run(inputs, seed), expected) for seed in SEEDS]
        return {
            "layout": layout,
            "plan": product.words,
            "error": max(errors),
            "estimated_us": round(plan.parts_us + product.us, 3),
            "counters": {part: _kept(counted) for part, counted in built.counters.items()},
        }
    raise LoweringError(f"{layer.key}: no layout has parts of {name}")


def given(workload: Computation) -> tuple[dict[str, Any], Any]:
    """Inputs, and the output in float64 by numpy."""
    inputs = {name: np.asarray(v, np.float32) for name, v in random_inputs(workload, 1).items()}
    return inputs, convolved(workload, inputs)


def convolved(workload: Computation, inputs: Mapping[str, Any]) -> Any:
    """By numpy: filters moved over a padded image; dimensions are found by the axes' names."""
    image, weights = (np.asarray(inputs[name], np.float64) for name in "IW")
    access, kernel = workload.access("I").index, workload.access("W").index
    sizes = workload.extents
    order = [index.iterators[0] for index in access]
    padded = np.pad(image, [(-min(0, i.constant), -min(0, i.constant)) for i in access])
    taps = [str(index.single_iterator) for index in kernel]
    out = np.zeros([sizes[str(i.single_iterator)] for i in workload.access("O").index])
    target = "".join(str(i.single_iterator) for i in workload.access("O").index)
    for r in range(sizes["r"]):
        for s in range(sizes["s"]):
            cut = padded
            for number, name in enumerate(order):
                if name in "pq":
                    index, first = access[number], r if name == "p" else s
                    step = index.coefficient(name)
                    end = first + step * (sizes[name] - 1) + 1
                    cut = cut.take(range(first, end, step), number)
            tap = weights.take(r, taps.index("r")).take(s, [t for t in taps if t != "r"].index("s"))
            left = "".join(order)
            right = "".join(t for t in taps if t not in "rs")
            out += np.einsum(f"{left},{right}->{target}", cut, tap, optimize=True)
    return out


def _error(found: Any, expected: Any) -> float:
    """The largest, of the largest output."""
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def _kept(counters: Counters) -> Row:
    return {
        "bytes": counters.bytes,
        "transactions": counters.transactions,
        "transfers": sum(moved.transfers for moved in counters.moved.values()),
        "calls": sum(counters.gemms.values()),
        "zeroed_bytes": counters.zeroed_bytes,
        "peak": max(counters.peaks),
    }


# ------------------------------------------------------------------------------------------ tables


def markdown(rows: Sequence[Row]) -> list[str]:
    lines: list[list[Any]] = []
    for name in ("implicit", *METHODS):
        own = [row["methods"][name] for row in rows]
        right = sum(each["error"] < TOLERANCE for each in own)
        worst = max(each["error"] for each in own)
        counted = [part for each in own for part in each["counters"].values()]
        moved = sum(part["bytes"] for part in counted) / 1e6
        calls = sum(part["calls"] for part in counted)
        peak = max(part["peak"] for part in counted)
        lines.append(
            [name, len(own), right, f"{worst:.1e}", f"{calls:,}", f"{moved:,.0f} MB", f"{peak:,}"]
        )
    own = [row["methods"]["implicit"] for row in rows]
    ratios = sorted(each["counted_us"] / each["estimated_us"] for each in own)
    head = ["method", "executed", "as numpy has it", "largest error", "gemm calls", "moved"]
    return [
        "Numbers are **emulated**, in two orders of cores and transfers each; errors are of the",
        f"largest output, compared with float64; right is below {TOLERANCE:.0e}.",
        "",
        *table([*head, "most bytes used of a core's 65,536"], lines),
        "",
        "Time from what was counted, by that of the model (implicit):",
        f"{ratios[0]:.3f} to {ratios[-1]:.3f}, median {ratios[len(ratios) // 2]:.3f}.",
    ]


def part() -> Part:
    keys = tuple(layers())
    title = "Listing 1, scaled down, executed"
    return Part("executed", title, keys, (keys[0], keys[25]), compute, markdown)


if __name__ == "__main__":
    sys.exit(part().main())
