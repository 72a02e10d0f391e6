"""Kernels that find where along an axis the largest or the least element is, the first of several.

A NaN is larger and smaller than all others, as numpy finds it.
"""

from __future__ import annotations

from collections.abc import Sequence

from cpembed.codegen.plan import KernelPlan
from cpembed.graph.kinds import Reduce
from cpembed.graph.kinds.base import axis_of
from cpembed.network.layout import Layout
from cpembed.network.operators.emission import Kernel, chunks_for
from cpembed.network.operators.lanes import LANES, Reduction, accumulators
from cpembed.network.operators.nest import View, axes, axis_name, axis_of_loop, constant, nest_over
from cpembed.network.operators.placed import Placed, loaded
from cpembed.network.operators.reductions import accumulator_dtype, join_of, neutral
from cpembed.network.operators.values import Value, is_nan, literal


def extremum_plan(
    kind: Reduce, inputs: Sequence[Placed], outputs: Sequence[Placed], threads: int
) -> KernelPlan:
    """Along contiguous elements one after the other; else a vector of results at a time."""
    (source,), (output,) = inputs, outputs
    rank = len(source.shape)
    gone = axis_of(kind.axes[0], rank)
    given = axes(rank)
    index = [
        constant(0) if a == gone else e for a, e in enumerate(given) if kind.keeps or a != gone
    ]
    views = [View(output.layout, tuple(index)), View(source.layout, given)]
    # An element's index along the axis is its place in a vector of the axis's size.
    views.append(View(Layout.plain((source.shape[gone],)), (given[gone],)))
    nest = nest_over(source.shape, views, ordered_by=1, apart=[gone])
    reduction = Reduction.of(nest, lambda loop: axis_of_loop(loop.name) == axis_name(gone))
    reduction = reduction.by(1 if reduction.is_along else LANES)
    what = kind.what.removeprefix("arg")
    dtype = accumulator_dtype(what, source.dtype, source.shape[gone])
    better = ">" if what == "max" else "<"
    kernel = Kernel(inputs, outputs, chunks_for(inputs, outputs, threads, 8.0))
    script = kernel.script
    with kernel.written(), reduction.rows(kernel):
        start = literal(neutral(what, dtype), dtype)
        best = accumulators(kernel, reduction.size, dtype, start)
        found = accumulators(kernel, reduction.size, "int32", "T.int32(0)")

        def take(lane: str, places: Sequence[str]) -> None:
            element = loaded(f"in0[{places[1]}]", source.dtype, dtype)
            taken = f"{element} {better} {best}[{lane}]"
            if dtype.startswith("float"):
                first = f"not {is_nan(Value(f'{best}[{lane}]', dtype))}"
                taken = f"({taken} or {is_nan(Value(element, dtype))}) and {first}"
            script.line(f"{found}[{lane}] = T.Select({taken}, {places[2]}, {found}[{lane}])")
            joined = join_of(what, dtype)(f"{best}[{lane}]", element)
            script.line(f"{best}[{lane}] = {joined}")

        def store(lane: str, places: Sequence[str]) -> None:
            script.line(f'out0[{places[0]}] = T.cast({found}[{lane}], "int64")')

        reduction.sweep(kernel, take)
        reduction.once(kernel, store)
    return kernel.plan(kind.label)
