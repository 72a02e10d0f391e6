"""Scaled-down configurations of listing 1, executed by all methods and compared with numpy.

    python -m experiments.swatop2019.execution.run [--jobs 2]

60 configurations. Results are emulated: 64 workers in the place of the cores. Some minutes; it
resumes.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from cpembed.errors import LoweringError
from cpembed.ir.computation import Computation
from cpembed.ir.reference import random_inputs
from cpembed.targets.scratchpad.executor import Counters, program
from cpembed.targets.scratchpad.methods import ScratchpadMethodProgram, method_plan
from experiments.common import Experiment, Row, markdown_table
from experiments.swatop2019 import paper
from experiments.swatop2019.counted_time import counted_us
from experiments.swatop2019.figures5_8.run import METHODS, layouts
from experiments.swatop2019.layers import Convolution, listing_1
from experiments.swatop2019.planning import best, machine

EACH = 20
"""Number of configurations of a batch."""

BATCHES: Mapping[int, int] = {1: 1, 32: 8, 128: 32}
ROWS: Mapping[int, int] = {16: 4, 32: 5, 64: 7, 128: 10, 256: 13}
CHANNELS = 8
"""Batches and rows as they are scaled; channels and filters are divided."""

TOLERANCE = 1e-4
"""Maximum error as a share of the largest output.

float32 is summed in another order, and Winograd's transforms round.
"""

SEEDS = (1, 2)
"""Orders in which cores run and transfers end."""


@cache
def layers() -> dict[str, Convolution]:
    """Return the scaled layers by key, evenly over the configurations of each batch."""
    scaled_layers: dict[str, Convolution] = {}
    for batch in paper.BATCHES:
        configurations = listing_1((batch,))
        numbers = (n * len(configurations) // EACH for n in range(EACH))
        for layer in (configurations[number] for number in numbers):
            scaled_layers[layer.key] = Convolution(
                "scaled",
                layer.key,
                BATCHES[batch],
                layer.channels // CHANNELS,
                layer.filters // CHANNELS,
                ROWS[layer.rows],
                pad=0,
            )
    return scaled_layers


def compute(key: str) -> Row:
    """Execute a layer by all methods."""
    layer = layers()[key]
    results: dict[str, Any] = {"implicit": _implicit(layer)}
    for name in METHODS:
        results[name] = _rewritten(layer, name)
    return {"scaled": layer.key, "macs": layer.macs, "methods": results}


def _implicit(layer: Convolution) -> Row:
    names = layouts(layer.batch)
    planned = best([layer.computation(name) for name in names])
    workload = planned.product.program.unfused
    inputs, expected = inputs_and_output(workload)
    built = program(planned.plan)
    errors = [_error(built.run(inputs, seed), expected) for seed in SEEDS]
    assert built.counters is not None
    return {
        "layout": names[planned.option],
        "plan": planned.text,
        "error": max(errors),
        "estimated_us": round(planned.us, 3),
        "counted_us": round(counted_us(planned.plan, built.counters), 3),
        "counters": {"product": _counts(built.counters)},
    }


def _rewritten(layer: Convolution, name: str) -> Row:
    """Execute a method in the first layout that has generated parts."""
    for layout in ("NHWC", "NCHW"):
        workload = layer.computation(layout)
        try:
            plan = method_plan(METHODS[name](workload), machine())
            product = best([plan.product])
        except LoweringError:
            continue
        inputs, expected = inputs_and_output(workload)
        built = ScratchpadMethodProgram(plan, program(product.plan), machine())
        errors = [_error(built.run(inputs, seed), expected) for seed in SEEDS]
        return {
            "layout": layout,
            "plan": product.text,
            "error": max(errors),
            "estimated_us": round(plan.parts_us + product.us, 3),
            "counters": {part: _counts(counted) for part, counted in built.counters.items()},
        }
    raise LoweringError(f"{layer.key}: no layout has parts of {name}")


def inputs_and_output(workload: Computation) -> tuple[dict[str, Any], Any]:
    """Return inputs, and the output in float64 by numpy."""
    inputs = {name: np.asarray(v, np.float32) for name, v in random_inputs(workload, 1).items()}
    return inputs, convolved(workload, inputs)


def convolved(workload: Computation, inputs: Mapping[str, Any]) -> Any:
    """Return the output by numpy: filters moved over a padded image.

    Dimensions are recognised by the axes' names.
    """
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


def _error(output: Any, expected: Any) -> float:
    """Return the largest error as a share of the largest output."""
    return float(np.abs(output - expected).max() / np.abs(expected).max())


def _counts(counters: Counters) -> Row:
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
    """Return the table."""
    lines: list[list[Any]] = []
    for name in ("implicit", *METHODS):
        results = [row["methods"][name] for row in rows]
        right = sum(each["error"] < TOLERANCE for each in results)
        worst = max(each["error"] for each in results)
        counted = [part for each in results for part in each["counters"].values()]
        moved = sum(part["bytes"] for part in counted) / 1e6
        calls = sum(part["calls"] for part in counted)
        peak = max(part["peak"] for part in counted)
        lines.append(
            [
                name,
                len(results),
                right,
                f"{worst:.1e}",
                f"{calls:,}",
                f"{moved:,.0f} MB",
                f"{peak:,}",
            ]
        )
    results = [row["methods"]["implicit"] for row in rows]
    ratios = sorted(each["counted_us"] / each["estimated_us"] for each in results)
    head = ["method", "executed", "as numpy has it", "largest error", "gemm calls", "moved"]
    return [
        "Numbers are **emulated**, in two orders of cores and transfers each; errors are of the",
        f"largest output, compared with float64; right is below {TOLERANCE:.0e}.",
        "",
        *markdown_table([*head, "most bytes used of a core's 65,536"], lines),
        "",
        "Time from what was counted, by that of the model (implicit):",
        f"{ratios[0]:.3f} to {ratios[-1]:.3f}, median {ratios[len(ratios) // 2]:.3f}.",
    ]


EXPERIMENT = Experiment(
    folder=Path(__file__).resolve().parent,
    description="Listing 1, scaled down, executed",
    keys=tuple(layers()),
    compute=compute,
    markdown=markdown,
    trials=None,
    quick=tuple(layers())[0:26:25],
    one_origin=True,
)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
