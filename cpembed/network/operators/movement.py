"""Kernels that only move elements: reshapes, transpositions, parts put together, other layouts.

Where neighbours of the result are no neighbours of the input, blocks are transposed in vector
registers (:mod:`cpembed.codegen.transposition`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cpembed.codegen.plan import KernelPlan
from cpembed.codegen.transposition import Blocks, write_transposition
from cpembed.graph.kinds import Concat, Expand, Gather, Pad, Reshape, Resize, Slice, Transpose
from cpembed.graph.kinds.base import Array, Kind, axis_of
from cpembed.ir.index import IndexExpr, IndexTerm
from cpembed.network.layout import Layout
from cpembed.network.operators.elementwise import broadcast_index
from cpembed.network.operators.emission import Kernel, chunks_for
from cpembed.network.operators.nest import (
    Loop,
    Nest,
    Placed,
    View,
    axes,
    axis_name,
    constant,
    digit,
    nest_over,
    row_major_strides,
)
from cpembed.network.operators.values import (
    Value,
    converted,
    literal,
    loaded,
    memory_of,
    numbers,
    rounded_product,
)


def write_copy(kernel: Kernel, nest: Nest, source: str, dtype: str) -> None:
    """Copy what the second place of a nest says, from ``source`` to ``out0``."""
    sides = _sides(nest)
    if sides is not None:
        columns, rows = sides
        # Only the size counts, and there are fewer names of types to know.
        size = f"int{8 * np.dtype(dtype).itemsize}"
        blocks = Blocks.largest(rows.extent, columns.extent, size)
        if blocks is not None:
            _transpose(kernel, nest, blocks, columns, rows, source, dtype)
            return
    with kernel.points(nest):
        kernel.script.line(f"out0[{nest.places[0]}] = {source}[{nest.places[1]}]")


def _sides(nest: Nest) -> tuple[Loop, Loop] | None:
    """The loops along which the input and the result are contiguous; None where one is missing or
    both are one."""
    if not all(nest.is_affine(loop.name) for loop in nest.loops):
        return None
    found: list[Loop] = []
    for operand in (1, 0):
        loops = [loop for loop in nest.loops if nest.step(operand, loop.name) == 1]
        if len(loops) != 1:
            return None
        found += loops
    return (found[0], found[1]) if found[0] != found[1] else None


def _transpose(
    kernel: Kernel, nest: Nest, blocks: Blocks, columns: Loop, rows: Loop, source: str, dtype: str
) -> None:
    outer = [loop for loop in nest.loops if loop not in (columns, rows)]

    def element(place: IndexExpr, row: str, column: str) -> str:
        text = {rows.name: row, columns.name: column}
        return str(place.rename(lambda name: text.get(name, name)))

    target, given = nest.places
    with kernel.rows(outer):
        write_transposition(
            kernel.script,
            blocks,
            dtype,
            (0, rows.extent),
            (0, columns.extent),
            (source, lambda row, column: element(given, row, column)),
            ("out0", lambda row, column: element(target, row, column)),
        )


@dataclass(frozen=True)
class Part:
    """Elements of the output that come from one input, or are one value (``source`` None)."""

    nest: Nest
    source: int | None
    value: float | int = 0


def move_plan(
    kind: Kind, inputs: Sequence[Placed], outputs: Sequence[Placed], threads: int
) -> KernelPlan:
    """Of a kind that moves elements between places that are known beforehand."""
    (output,) = outputs
    return _plan(kind.label, _parts(kind, inputs, output), inputs, output, threads)


def conversion_plan(source: Placed, target: Placed, threads: int) -> KernelPlan:
    """A tensor in another layout."""
    given = axes(len(target.shape))
    nest = nest_over(target.shape, [View(target.layout, given), View(source.layout, given)])
    return _plan("conversion", [Part(nest, 0)], [source], target, threads)


def _plan(
    label: str, parts: Sequence[Part], inputs: Sequence[Placed], output: Placed, threads: int
) -> KernelPlan:
    kernel = Kernel(inputs, [output], chunks_for([output], [output], threads))
    with kernel.written():
        for part in parts:
            if part.source is not None:
                write_copy(kernel, part.nest, f"in{part.source}", output.stored)
                continue
            value = literal(memory_of(numbers([part.value], output.dtype))[0].item(), output.stored)
            with kernel.points(part.nest):
                kernel.script.line(f"out0[{part.nest.places[0]}] = {value}")
    return kernel.plan(label)


def _parts(kind: Kind, inputs: Sequence[Placed], output: Placed) -> list[Part]:
    source, rank = inputs[0], len(output.shape)
    if isinstance(kind, Reshape):
        return [Part(_reshaped(source, output), 0)]
    if isinstance(kind, Concat):
        return _concatenated(kind, inputs, output)
    if isinstance(kind, Pad):
        return _padded(kind, source, output)
    given = axes(rank)
    if isinstance(kind, Transpose):
        index = [IndexExpr()] * rank
        for axis, of_source in enumerate(kind.order):
            index[of_source] = given[axis]
    elif isinstance(kind, Slice):
        steps = zip(given, kind.starts, kind.steps, strict=True)
        index = [e.times(step) + start for e, start, step in steps]
    else:
        assert isinstance(kind, Expand)
        index = broadcast_index(source.shape, rank)
    views = [View(output.layout, given), View(source.layout, tuple(index))]
    return [Part(nest_over(output.shape, views), 0)]


def _reshaped(source: Placed, output: Placed) -> Nest:
    """Along the factors that both shapes consist of; else by the row-major number of an element,
    which is its place where one of both is row-major."""
    flat = Layout.plain((source.type.elements,))
    both = source.is_row_major, output.is_row_major
    if all(both):
        return nest_over(flat.shape, [View(flat, axes(1)), View(flat, axes(1))])
    factors = common_factors(source.shape, output.shape)
    if factors is not None:
        views = [View(tensor.layout, grouped(tensor.shape, factors)) for tensor in (output, source)]
        return nest_over(factors, views)
    if both[1] and not both[0]:
        number = _number(source.shape)
        views = [View(flat, (number,)), View(source.layout, axes(len(source.shape)))]
        return nest_over(source.shape, views)
    number = _number(output.shape)
    given = View(output.layout, axes(len(output.shape)))
    if both[0]:
        return nest_over(output.shape, [given, View(flat, (number,))])
    index = tuple(
        digit(number, step, size)
        for step, size in zip(row_major_strides(source.shape), source.shape, strict=True)
    )
    return nest_over(output.shape, [given, View(source.layout, index)])


def _number(shape: Sequence[int]) -> IndexExpr:
    """An element's number in row-major order."""
    steps = row_major_strides(tuple(shape))
    return IndexExpr.of([IndexTerm(axis_name(k), step) for k, step in enumerate(steps)])


def common_factors(first: Sequence[int], second: Sequence[int]) -> tuple[int, ...] | None:
    """The coarsest shape of which both are groups of neighbouring axes; None where there is none.

    >>> common_factors((12, 64), (3, 4, 64)), common_factors((4, 6), (6, 4))
    ((3, 4, 64), None)
    """
    steps = {step for shape in (first, second) for step in row_major_strides(tuple(shape))}
    ordered = sorted({*steps, math.prod(first), 1})
    sizes: list[int] = []
    for low, high in itertools.pairwise(ordered):
        if high % low:
            return None
        sizes.append(high // low)
    return tuple(reversed(sizes))


def grouped(shape: Sequence[int], factors: Sequence[int]) -> tuple[IndexExpr, ...]:
    """The indices of axes that are groups of factors."""
    inside = row_major_strides(tuple(factors))
    found: list[IndexExpr] = []
    for step, size in zip(row_major_strides(tuple(shape)), shape, strict=True):
        terms = [
            IndexTerm(axis_name(k), low // step)
            for k, (low, factor) in enumerate(zip(inside, factors, strict=True))
            if factor > 1 and low % step == 0 and low < step * size
        ]
        found.append(IndexExpr.of(terms))
    return tuple(found)


def _concatenated(kind: Concat, inputs: Sequence[Placed], output: Placed) -> list[Part]:
    rank = len(output.shape)
    axis, first = axis_of(kind.axis, rank), 0
    given, parts = axes(rank), list[Part]()
    for number, source in enumerate(inputs):
        moved = tuple(e + first if k == axis else e for k, e in enumerate(given))
        views = [View(output.layout, moved), View(source.layout, given)]
        parts.append(Part(nest_over(source.shape, views), number))
        first += source.shape[axis]
    return parts


def _padded(kind: Pad, source: Placed, output: Placed) -> list[Part]:
    """The input, and around it the margins of one axis after the other: inside the axes before it
    and along all of those after it."""
    rank, sizes = len(output.shape), source.shape
    given = axes(rank)
    inside = tuple(e + before for e, before in zip(given, kind.before, strict=True))
    views = [View(output.layout, inside), View(source.layout, given)]
    parts = [Part(nest_over(sizes, views), 0)]
    for axis in range(rank):
        before, size = kind.before[axis], sizes[axis]
        for first, width in ((0, before), (before + size, kind.after[axis])):
            shape = (*sizes[:axis], width, *output.shape[axis + 1 :])
            if not math.prod(shape):
                continue
            moved = (*inside[:axis], given[axis] + first, *given[axis + 1 :])
            parts.append(Part(nest_over(shape, [View(output.layout, moved)]), None, kind.value))
    return parts


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
