"""Kernels that look places up along some axes: resizing, and padding with elements of the input."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cpembed.codegen.plan import KernelPlan
from cpembed.codegen.values import Value, converted, literal, load_as, rounded_product
from cpembed.graph.kinds import Pad, Resize
from cpembed.graph.kinds.base import Array
from cpembed.ir.index import IndexExpr
from cpembed.network.operators.emission import Kernel, Operands
from cpembed.network.operators.movement import distances, move_plan
from cpembed.network.operators.nest import View, axes, constant, nest_over


def pad_plan(kind: Pad, operands: Operands) -> KernelPlan:
    """Return the kernel of a padding with constants, or that repeats or reflects the input."""
    if kind.mode == "constant":
        return move_plan(kind, operands)
    (source,) = operands.inputs
    mode = "edge" if kind.mode == "edge" else "reflect"
    tables: dict[int, Array] = {}
    for axis, (size, before, after) in enumerate(
        zip(source.shape, kind.before, kind.after, strict=True)
    ):
        if before or after:
            tables[axis] = np.pad(np.arange(size), (before, after), mode=mode)
    return _tabulated("pad", tables, operands)


def resize_plan(kind: Resize, operands: Operands) -> KernelPlan:
    """Return the kernel of a resize: a copy of the nearest element, or linear interpolation.

    Interpolation is computed in float32, and for integers in float64, as its definition is.
    """
    (source,), (output,) = operands.inputs, operands.outputs
    first = len(source.shape) - len(kind.sizes)
    changed = [
        (axis, source.shape[axis], result)
        for axis, result in enumerate(kind.sizes, first)
        if source.shape[axis] != result
    ]
    if kind.mode == "nearest":
        tables = {axis: kind.indices(size, result) for axis, size, result in changed}
        return _tabulated("resize", tables, operands)
    # Axes whose size stays would be interpolated with weight 0.
    lines = {axis: kind.neighbours(size, result) for axis, size, result in changed}
    indices = axes(len(output.shape))
    nest = nest_over(
        output.shape,
        [View(output.layout, indices), View(source.layout, _at_zero(indices, set(lines)))],
        points=[*lines],
    )
    wide = "float32" if source.dtype in ("float32", "float16", "bfloat16") else "float64"
    kernel = Kernel(operands, operands.chunks(8.0, [output, output]))
    with kernel.body(), kernel.points(nest):
        points = [str(point) for point in nest.points]

        def value(number: int, place: str) -> str:
            """Return the value interpolated along the first ``number + 1`` axes."""
            # Nested in the order of the definition, whose roundings it repeats.
            if number < 0:
                return kernel.bind(load_as(f"in0[{place}]", source.dtype, wide))
            axis, at = [*lines][number], points[number]
            *sides, distance = lines[axis]
            low, high = (
                value(number - 1, f"{place} + {kernel.constant(steps, at)}")
                for steps in (distances(source.layout, axis, indices) for indices in sides)
            )
            weight = kernel.bind(kernel.constant(distance.astype(wide), at))
            first = rounded_product(f"{low} * ({literal(1, wide)} - {weight})", wide)
            second = rounded_product(f"{high} * {weight}", wide)
            return kernel.bind(f"{first} + {second}")

        text = value(len(lines) - 1, str(nest.places[1]))
        kernel.script.line(f"out0[{nest.places[0]}] = {_cut(kernel, text, wide, output.dtype)}")
    return kernel.plan("resize")


def _cut(kernel: Kernel, text: str, wide: str, dtype: str) -> str:
    """Convert as numpy does, which truncates floats to integers towards zero."""
    if dtype.startswith(("int", "uint")):
        truncated = f'T.cast({text}, "{"int64" if np.dtype(dtype).itemsize == 8 else "int32"}")'
        return f'T.cast({truncated}, "{dtype}")'
    return converted(kernel.bind, Value(text, wide), dtype)


def _tabulated(label: str, tables: dict[int, Array], operands: Operands) -> KernelPlan:
    """Return a copy in which some axes of the input are indexed by a table."""
    (source,), (output,) = operands.inputs, operands.outputs
    indices = axes(len(output.shape))
    views = [View(output.layout, indices), View(source.layout, _at_zero(indices, set(tables)))]
    nest = nest_over(output.shape, views, points=sorted(tables))
    kernel = Kernel(operands, operands.chunks(tensors=[output, output]))
    with kernel.body(), kernel.points(nest):
        place = str(nest.places[1])
        for axis, point in zip(sorted(tables), nest.points, strict=True):
            steps = distances(source.layout, axis, tables[axis])
            place += f" + {kernel.constant(steps, str(point))}"
        kernel.script.line(f"out0[{nest.places[0]}] = in0[{place}]")
    return kernel.plan(label)


def _at_zero(index: Sequence[IndexExpr], mapped: set[int]) -> tuple[IndexExpr, ...]:
    """Return an index with the mapped axes at 0."""
    return tuple(constant(0) if axis in mapped else e for axis, e in enumerate(index))
