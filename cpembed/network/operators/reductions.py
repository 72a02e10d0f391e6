"""Kernels of reductions: sums, means, extrema and products over axes of a tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from cpembed.codegen.plan import KernelPlan
from cpembed.graph.kinds import Reduce
from cpembed.graph.kinds.base import axis_of
from cpembed.network.operators.emission import Kernel, chunks_for
from cpembed.network.operators.intrinsics import maximum, minimum, nearest
from cpembed.network.operators.lanes import SERIAL, VECTORIZED, Join, Reduction, accumulators
from cpembed.network.operators.nest import View, axes, axis_name, axis_of_loop, constant, nest_over
from cpembed.network.operators.placed import Placed, loaded, stored
from cpembed.network.operators.values import Value, converted, literal


def join_of(what: str, dtype: str, lanes: int = 1) -> Join:
    """How two partial results of a reduction become one; of vectors with so many ``lanes``."""
    if what == "max":
        return lambda a, b: maximum(a, b, dtype, lanes)
    if what == "min":
        return lambda a, b: minimum(a, b, dtype, lanes)
    sign = "*" if what == "prod" else "+"
    return lambda a, b: f"({a} {sign} {b})"


def reduce_plan(
    kind: Reduce, inputs: Sequence[Placed], outputs: Sequence[Placed], threads: int
) -> KernelPlan:
    """Integers are summed exactly, floats in float32 (of float64 in that)."""
    (source,), (output,) = inputs, outputs
    rank = len(source.shape)
    gone = {axis_of(axis, rank) for axis in kind.axes}
    given = axes(rank)
    index = [
        constant(0) if axis in gone else e
        for axis, e in enumerate(given)
        if kind.keeps or axis not in gone
    ]
    views = [View(output.layout, tuple(index)), View(source.layout, given)]
    nest = nest_over(source.shape, views, ordered_by=1, apart=tuple(gone))
    names = {axis_name(axis) for axis in gone}
    reduction = Reduction.of(nest, lambda loop: axis_of_loop(loop.name) in names)
    count = math.prod(source.shape[axis] for axis in gone)
    dtype = accumulator_dtype(kind.what, source.dtype, count)
    join = join_of(kind.what, dtype)
    kernel = Kernel(inputs, outputs, chunks_for(inputs, outputs, threads, 2.0))
    with kernel.written(), reduction.rows(kernel):
        start = literal(neutral(kind.what, dtype), dtype)
        name = accumulators(kernel, reduction.size, dtype, start)

        def add(lane: str, places: Sequence[str]) -> None:
            element = loaded(f"in0[{places[1]}]", source.dtype, dtype)
            joined = join(f"{name}[{lane}]", element)
            kernel.script.line(f"{name}[{lane}] = {joined}")

        reduction.sweep(kernel, add)
        total = reduction.combined(kernel, name, dtype, join)

        def store(lane: str, places: Sequence[str]) -> None:
            value = _result(kernel, kind.what, Value(total(lane), dtype), count, output.dtype)
            kernel.script.line(f"out0[{places[0]}] = {value}")

        converts = output.stored != dtype and (source.dtype == "bool" or dtype.startswith("float"))
        reduction.once(kernel, store, SERIAL if converts else VECTORIZED)
    return kernel.plan(kind.label)


def _result(kernel: Kernel, what: str, total: Value, count: int, dtype: str) -> str:
    if what == "mean":
        if total.is_float:
            total = Value(f"{total.text} / {literal(count, total.dtype)}", total.dtype)
        else:
            mean = f'T.cast({total.text}, "float64") / {literal(count, "float64")}'
            total = Value(mean, "float64")
            if dtype != "bool":
                kind = "int64" if np.dtype(dtype).itemsize == 8 else "int32"
                whole = f'T.cast({nearest(total.text, "float64")}, "{kind}")'
                return whole if kind == dtype else f'T.cast({whole}, "{dtype}")'
    if dtype == "bool" or total.dtype != stored(dtype):
        return converted(kernel.let, total, dtype)
    return total.text


def accumulator_dtype(what: str, dtype: str, count: int) -> str:
    """The type in which ``count`` elements are put together."""
    if dtype in ("bfloat16", "float16", "float32", "float64"):
        return "float64" if dtype == "float64" else "float32"
    if what in ("max", "min"):
        return stored(dtype)
    size = 8 * np.dtype(dtype).itemsize
    if what == "mean":
        # Exact, whatever the elements are.
        return "int32" if size < 32 and count < 2 ** (31 - size) else "int64"
    # Sums and products are stored without what exceeds the type.
    if dtype == "bool":
        return "int32" if what == "sum" else "uint8"
    return "int64" if size == 64 else "int32"


def neutral(what: str, dtype: str) -> float | int:
    """What changes no result."""
    if what in ("sum", "mean"):
        return 0
    if what == "prod":
        return 1
    if dtype.startswith("float"):
        return -math.inf if what == "max" else math.inf
    limits = np.iinfo(dtype)
    return int(limits.min if what == "max" else limits.max)
