"""Kernels that read elements at places that no affine index says: of other elements' values, or
from a table for each index of an axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cpembed.codegen.plan import KernelPlan
from cpembed.graph.kinds import Gather, Pad, Resize
from cpembed.graph.kinds.base import Array, axis_of
from cpembed.ir.index import IndexExpr
from cpembed.network.layout import Layout
from cpembed.network.operators.emission import Kernel, chunks_for
from cpembed.network.operators.intrinsics import rounded_product
from cpembed.network.operators.nest import View, axes, constant, nest_over
from cpembed.network.operators.placed import Placed, loaded
from cpembed.network.operators.values import Value, converted, literal


def gather_plan(
    kind: Gather, inputs: Sequence[Placed], outputs: Sequence[Placed], threads: int
) -> KernelPlan:
    """An index beyond the axis reads its last or first element: nothing outside is touched."""
    (data, indices), (output,) = inputs, outputs
    rank = len(output.shape)
    axis = axis_of(kind.axis, len(data.shape))
    count = len(indices.shape)
    given = axes(rank)
    of_indices = given[axis : axis + count]
    of_data = (*given[:axis], constant(0), *given[axis + count :])
    views = [
        View(output.layout, given),
        View(data.layout, of_data),
        View(indices.layout, of_indices),
    ]
    nest = nest_over(output.shape, views)
    kernel = Kernel(inputs, outputs, chunks_for([indices, output], [output], threads))
    size = data.shape[axis]
    with kernel.written(), kernel.points(nest):
        index = f'T.cast(in1[{nest.places[2]}], "int32")'
        index = f"T.max(0, T.min({size - 1}, {index} + T.Select({index} < 0, {size}, 0)))"
        index = kernel.let(index)
        place = f"{nest.places[1]} + {_moved(data.layout, axis, index)}"
        kernel.script.line(f"out0[{nest.places[0]}] = in0[{place}]")
    return kernel.plan("gather")


def _moved(layout: Layout, axis: int, index: str) -> str:
    """How far an element lies behind that of index 0."""
    step = layout.strides()[axis]
    if axis != 1 or layout.block == 1:
        return f"{index} * {step}"
    physical = layout.physical_shape
    block = math.prod(physical[layout.order.index(1) + 1 :])
    return f"{index} // {layout.block} * {block} + {index} % {layout.block}"


def offsets(layout: Layout, axis: int, indices: Array) -> Array:
    """How far elements lie behind that of index 0, for indices of one axis (int32)."""
    if axis != 1 or layout.block == 1:
        return (indices * layout.strides()[axis]).astype(np.int32)
    physical = layout.physical_shape
    block = math.prod(physical[layout.order.index(1) + 1 :])
    return (indices // layout.block * block + indices % layout.block).astype(np.int32)


def pad_plan(
    kind: Pad, inputs: Sequence[Placed], outputs: Sequence[Placed], threads: int
) -> KernelPlan:
    """Margins that repeat or reflect the input."""
    (source,) = inputs
    mode = "edge" if kind.mode == "edge" else "reflect"
    tables: dict[int, Array] = {}
    for axis, (size, before, after) in enumerate(
        zip(source.shape, kind.before, kind.after, strict=True)
    ):
        if before or after:
            tables[axis] = np.pad(np.arange(size), (before, after), mode=mode)
    return _tabulated("pad", tables, inputs, outputs, threads)


def resize_plan(
    kind: Resize, inputs: Sequence[Placed], outputs: Sequence[Placed], threads: int
) -> KernelPlan:
    """The nearest element is copied; linear interpolation is computed in float64 for integers, as
    its definition is, else in float32."""
    (source,), (output,) = inputs, outputs
    first = len(source.shape) - len(kind.sizes)
    changed = [
        (axis, source.shape[axis], result)
        for axis, result in enumerate(kind.sizes, first)
        if source.shape[axis] != result
    ]
    if kind.mode == "nearest":
        tables = {axis: kind.indices(size, result) for axis, size, result in changed}
        return _tabulated("resize", tables, inputs, outputs, threads)
    lines = [_Line.of(kind, *one) for one in changed]
    given = axes(len(output.shape))
    mapped = {line.axis for line in lines}
    nest = nest_over(
        output.shape,
        [View(output.layout, given), View(source.layout, _without(given, mapped))],
        points=sorted(mapped),
    )
    wide = "float32" if source.dtype in ("float32", "float16", "bfloat16") else "float64"
    kernel = Kernel(inputs, outputs, chunks_for([output], outputs, threads, 8.0))
    with kernel.written(), kernel.points(nest):
        points = [str(point) for point in nest.points]

        def value(number: int, place: str) -> str:
            """Interpolated along the lines up to a number, as the definition nests them."""
            if number < 0:
                return kernel.let(loaded(f"in0[{place}]", source.dtype, wide))
            line, at = lines[number], points[number]
            low, high = (
                value(
                    number - 1,
                    f"{place} + {kernel.constant(offsets(source.layout, line.axis, of), at)}",
                )
                for of in (line.low, line.high)
            )
            weight = kernel.let(kernel.constant(line.weight.astype(wide), at))
            first = rounded_product(f"{low} * ({literal(1, wide)} - {weight})", wide)
            second = rounded_product(f"{high} * {weight}", wide)
            return kernel.let(f"{first} + {second}")

        text = value(len(lines) - 1, str(nest.places[1]))
        kernel.script.line(f"out0[{nest.places[0]}] = {_cut(kernel, text, wide, output.dtype)}")
    return kernel.plan("resize")


def _cut(kernel: Kernel, text: str, wide: str, dtype: str) -> str:
    """As numpy converts: floats to integers towards zero."""
    if dtype.startswith(("int", "uint")):
        whole = f'T.cast({text}, "{"int64" if np.dtype(dtype).itemsize == 8 else "int32"}")'
        return f'T.cast({whole}, "{dtype}")'
    return converted(kernel.let, Value(text, wide), dtype)


@dataclass(frozen=True)
class _Line:
    """Linear interpolation along an axis: the indices on both sides of each result, and the weight
    of the second."""

    axis: int
    low: Array
    high: Array
    weight: Array

    @classmethod
    def of(cls, kind: Resize, axis: int, size: int, result: int) -> _Line:
        places = np.clip(kind.places(size, result), 0, size - 1)
        low = np.floor(places).astype(np.int64)
        return cls(axis, low, np.minimum(low + 1, size - 1), places - low)


def _tabulated(
    label: str,
    tables: dict[int, Array],
    inputs: Sequence[Placed],
    outputs: Sequence[Placed],
    threads: int,
) -> KernelPlan:
    """Copies in which the index of some axes of the input is in a table."""
    (source,), (output,) = inputs, outputs
    given = axes(len(output.shape))
    views = [View(output.layout, given), View(source.layout, _without(given, set(tables)))]
    nest = nest_over(output.shape, views, points=sorted(tables))
    kernel = Kernel(inputs, outputs, chunks_for([output], outputs, threads))
    with kernel.written(), kernel.points(nest):
        place = str(nest.places[1])
        for axis, point in zip(sorted(tables), nest.points, strict=True):
            moved = offsets(source.layout, axis, tables[axis])
            place += f" + {kernel.constant(moved, str(point))}"
        kernel.script.line(f"out0[{nest.places[0]}] = in0[{place}]")
    return kernel.plan(label)


def _without(given: Sequence[IndexExpr], mapped: set[int]) -> tuple[IndexExpr, ...]:
    """The index in which the mapped axes are at 0."""
    return tuple(constant(0) if axis in mapped else e for axis, e in enumerate(given))
