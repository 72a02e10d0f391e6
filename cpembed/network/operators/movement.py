"""Kernels that only move elements: copies, layout conversions, padding, gathering.

Where elements that are neighbours in the result are none in the input, blocks are transposed in
vector registers (:mod:`cpembed.codegen.transposition`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cpembed.codegen.plan import KernelPlan
from cpembed.codegen.transposition import Blocks, write_transposition
from cpembed.codegen.values import (
    flat_storage,
    literal,
    typed_array,
)
from cpembed.graph.kinds import (
    Bitcast,
    Concat,
    Expand,
    Gather,
    Pad,
    Reshape,
    Resize,
    Slice,
    Transpose,
)
from cpembed.graph.kinds.base import Array, Kind, axis_of
from cpembed.ir.index import IndexExpr, IndexTerm, row_major_strides
from cpembed.network.layout import Layout
from cpembed.network.operators.emission import Kernel, Operands
from cpembed.network.operators.nest import (
    Loop,
    Nest,
    PlacedTensor,
    Tensors,
    View,
    axes,
    axis_name,
    broadcast_index,
    broadcast_nest,
    constant,
    div_mod,
    nest_over,
)

COPIES = (Concat, Expand, Gather, Pad, Reshape, Resize, Slice, Transpose)
"""Kinds whose kernels read about as many bytes as they write."""


def _write_copy(kernel: Kernel, nest: Nest, source: str, dtype: str) -> None:
    """Copy the nest's second operand from ``source`` to ``out0``."""
    blocks = transposed_blocks(nest, dtype)
    if blocks is not None:
        _transpose(kernel, nest, *blocks, source, dtype)
        return
    with kernel.points(nest):
        kernel.script.line(f"out0[{nest.places[0]}] = {source}[{nest.places[1]}]")


def transposed_blocks(nest: Nest, dtype: str) -> tuple[Blocks, Loop, Loop] | None:
    """Return the blocks that a copy transposes, with their loops over columns and rows, if any."""
    sides = _sides(nest)
    if sides is None:
        return None
    columns, rows = sides
    # A copy depends on the size of its elements only, so integers stand for all types.
    size = f"int{8 * np.dtype(dtype).itemsize}"
    blocks = Blocks.largest(rows.extent, columns.extent, size)
    return None if blocks is None else (blocks, columns, rows)


def _sides(nest: Nest) -> tuple[Loop, Loop] | None:
    """Return the loops along which input and result are contiguous, if these are different."""
    if not all(nest.is_affine(loop.name) for loop in nest.loops):
        return None
    contiguous: list[Loop] = []
    for operand in (1, 0):
        loops = [loop for loop in nest.loops if nest.step(operand, loop.name) == 1]
        if len(loops) != 1:
            return None
        contiguous += loops
    return (contiguous[0], contiguous[1]) if contiguous[0] != contiguous[1] else None


def _transpose(
    kernel: Kernel, nest: Nest, blocks: Blocks, columns: Loop, rows: Loop, source: str, dtype: str
) -> None:
    # Input is contiguous along columns, the result along rows; other loops stay around blocks.
    outer = [loop for loop in nest.loops if loop not in (columns, rows)]

    def element(place: IndexExpr, row: str, column: str) -> str:
        text = {rows.name: row, columns.name: column}
        return str(place.rename(lambda name: text.get(name, name)))

    target, origin = nest.places
    with kernel.rows(outer):
        write_transposition(
            kernel.script,
            blocks,
            dtype,
            (0, rows.extent),
            (0, columns.extent),
            (source, lambda row, column: element(origin, row, column)),
            ("out0", lambda row, column: element(target, row, column)),
        )


@dataclass(frozen=True)
class CopiedPart:
    """Region of the output: copied from the input ``source``, or filled if that is None."""

    nest: Nest
    source: int | None
    value: float | int = 0


def move_plan(kind: Kind, operands: Operands) -> KernelPlan:
    """Return the kernel of a kind whose elements come from positions known at compile time."""
    (output,) = operands.outputs
    return _plan(kind.label, copied_parts(kind, operands.inputs, output), operands)


def bitcast_plan(kind: Bitcast, operands: Operands) -> KernelPlan:
    """Return the kernel that takes the bits of elements for those of another type."""
    (source,), (output,) = operands.inputs, operands.outputs
    nest = broadcast_nest([output, source])
    kernel = Kernel(operands, operands.chunks())
    dtype = output.storage_dtype
    with kernel.body(), kernel.points(nest):
        element = f"in0[{nest.places[1]}]"
        if source.storage_dtype != dtype:
            element = f'T.reinterpret({element}, dtype="{dtype}")'
        kernel.script.line(f"out0[{nest.places[0]}] = {element}")
    return kernel.plan("bitcast")


def conversion_plan(source: PlacedTensor, target: PlacedTensor, threads: int) -> KernelPlan:
    """Return the kernel that copies a tensor into another layout.

    Parameters
    ----------
    source, target : PlacedTensor
        The same tensor in two layouts.
    threads : int
        Maximum number of threads.
    """
    nest = broadcast_nest([target, source])
    return _plan("conversion", [CopiedPart(nest, 0)], Operands([source], [target], threads))


def _plan(label: str, parts: Sequence[CopiedPart], operands: Operands) -> KernelPlan:
    (output,) = operands.outputs
    # As many bytes are read as are written, however large the inputs are.
    kernel = Kernel(operands, operands.chunks(tensors=[output, output]))
    with kernel.body():
        for part in parts:
            if part.source is not None:
                _write_copy(kernel, part.nest, f"in{part.source}", output.storage_dtype)
                continue
            stored = flat_storage(typed_array([part.value], output.dtype))[0].item()
            value = literal(stored, output.storage_dtype)
            with kernel.points(part.nest):
                kernel.script.line(f"out0[{part.nest.places[0]}] = {value}")
    return kernel.plan(label)


def copied_parts(kind: Kind, inputs: Tensors, output: PlacedTensor) -> list[CopiedPart]:
    """Return the regions of a result that are copied or filled.

    Parameters
    ----------
    kind : Kind
        Kind whose elements come from positions known at compile time.
    inputs, output : sequence of PlacedTensor, PlacedTensor
    """
    source, rank = inputs[0], len(output.shape)
    if isinstance(kind, Reshape):
        return [CopiedPart(_reshaped(source, output), 0)]
    if isinstance(kind, Concat):
        return _concatenated(kind, inputs, output)
    if isinstance(kind, Pad):
        return _padded(kind, source, output)
    indices = axes(rank)
    if isinstance(kind, Transpose):
        index = [IndexExpr()] * rank
        for axis, source_axis in enumerate(kind.order):
            index[source_axis] = indices[axis]
    elif isinstance(kind, Slice):
        steps = zip(indices, kind.starts, kind.steps, strict=True)
        index = [e.times(step) + start for e, start, step in steps]
    else:
        assert isinstance(kind, Expand)
        index = broadcast_index(source.shape, rank)
    views = [View(output.layout, indices), View(source.layout, tuple(index))]
    return [CopiedPart(nest_over(output.shape, views), 0)]


def _reshaped(source: PlacedTensor, output: PlacedTensor) -> Nest:
    """Return loops over the common factors of both shapes, or over row-major numbers of elements.

    A row-major tensor is indexed by the number itself, any other one by digits of the number.
    """
    # A reshape keeps the row-major order of elements.
    flat = Layout.plain((source.type.elements,))
    row_major = source.is_row_major, output.is_row_major
    if all(row_major):
        return nest_over(flat.shape, [View(flat, axes(1)), View(flat, axes(1))])
    factors = _common_factors(source.shape, output.shape)
    if factors is not None:
        views = [
            View(tensor.layout, _grouped(tensor.shape, factors)) for tensor in (output, source)
        ]
        return nest_over(factors, views)
    # Loops follow the axes of a tensor that is not row-major, so that its index stays affine.
    if row_major[1] and not row_major[0]:
        number = _number(source.shape)
        views = [View(flat, (number,)), View(source.layout, axes(len(source.shape)))]
        return nest_over(source.shape, views)
    number = _number(output.shape)
    view = View(output.layout, axes(len(output.shape)))
    if row_major[0]:
        return nest_over(output.shape, [view, View(flat, (number,))])
    index = tuple(
        div_mod(number, step, size)
        for step, size in zip(row_major_strides(source.shape), source.shape, strict=True)
    )
    return nest_over(output.shape, [view, View(source.layout, index)])


def _number(shape: Sequence[int]) -> IndexExpr:
    """Return an element's number in row-major order."""
    steps = row_major_strides(shape)
    return IndexExpr.sum([IndexTerm(axis_name(k), step) for k, step in enumerate(steps)])


def _common_factors(first: Sequence[int], second: Sequence[int]) -> tuple[int, ...] | None:
    """Return the coarsest shape whose groups of adjacent axes give both shapes, if there is one.

    >>> _common_factors((12, 64), (3, 4, 64)), _common_factors((4, 6), (6, 4))
    ((3, 4, 64), None)
    """
    steps = {step for shape in (first, second) for step in row_major_strides(shape)}
    ordered = sorted({*steps, math.prod(first), 1})
    sizes: list[int] = []
    for low, high in itertools.pairwise(ordered):
        if high % low:
            return None
        sizes.append(high // low)
    return tuple(reversed(sizes))


def _grouped(shape: Sequence[int], factors: Sequence[int]) -> tuple[IndexExpr, ...]:
    """Return the indices of axes that are groups of adjacent factors."""
    inside = row_major_strides(factors)
    result: list[IndexExpr] = []
    for step, size in zip(row_major_strides(shape), shape, strict=True):
        terms = [
            IndexTerm(axis_name(k), low // step)
            for k, (low, factor) in enumerate(zip(inside, factors, strict=True))
            if factor > 1 and low % step == 0 and low < step * size
        ]
        result.append(IndexExpr.sum(terms))
    return tuple(result)


def _concatenated(kind: Concat, inputs: Tensors, output: PlacedTensor) -> list[CopiedPart]:
    rank = len(output.shape)
    axis, first = axis_of(kind.axis, rank), 0
    indices, parts = axes(rank), list[CopiedPart]()
    for number, source in enumerate(inputs):
        index = tuple(e + first if k == axis else e for k, e in enumerate(indices))
        views = [View(output.layout, index), View(source.layout, indices)]
        parts.append(CopiedPart(nest_over(source.shape, views), number))
        first += source.shape[axis]
    return parts


def _padded(kind: Pad, source: PlacedTensor, output: PlacedTensor) -> list[CopiedPart]:
    """Return the input's region and the margins of one axis after the other.

    A margin lies inside the axes before its own, and spans all of those after it.
    """
    rank, sizes = len(output.shape), source.shape
    indices = axes(rank)
    inside = tuple(e + before for e, before in zip(indices, kind.before, strict=True))
    views = [View(output.layout, inside), View(source.layout, indices)]
    parts = [CopiedPart(nest_over(sizes, views), 0)]
    for axis in range(rank):
        before, size = kind.before[axis], sizes[axis]
        for first, width in ((0, before), (before + size, kind.after[axis])):
            # Inside the axes before, so that no element of a corner is written twice.
            shape = (*sizes[:axis], width, *output.shape[axis + 1 :])
            if not math.prod(shape):
                continue
            index = (*inside[:axis], indices[axis] + first, *indices[axis + 1 :])
            parts.append(
                CopiedPart(nest_over(shape, [View(output.layout, index)]), None, kind.value)
            )
    return parts


def gathered_nest(kind: Gather, inputs: Tensors, output: PlacedTensor) -> Nest:
    """Return loops over a result, with the places of index 0 of the data, and of the indices.

    Parameters
    ----------
    kind : Gather
    inputs, output : sequence of PlacedTensor, PlacedTensor
        Data and indices, and the result.
    """
    data, indices = inputs
    rank = len(output.shape)
    axis = axis_of(kind.axis, len(data.shape))
    count = len(indices.shape)
    indices_of_output = axes(rank)
    index_of_indices = indices_of_output[axis : axis + count]
    index_of_data = (*indices_of_output[:axis], constant(0), *indices_of_output[axis + count :])
    views = [
        View(output.layout, indices_of_output),
        View(data.layout, index_of_data),
        View(indices.layout, index_of_indices),
    ]
    return nest_over(output.shape, views)


def gather_plan(kind: Gather, operands: Operands) -> KernelPlan:
    """Return the kernel of a gather; indices out of range read the last or first element."""
    (data, indices), (output,) = operands.inputs, operands.outputs
    axis = axis_of(kind.axis, len(data.shape))
    nest = gathered_nest(kind, operands.inputs, output)
    kernel = Kernel(operands, operands.chunks(tensors=[indices, output, output]))
    size = data.shape[axis]
    with kernel.body(), kernel.points(nest):
        # Negative indices count from the end. A kernel cannot raise an error, so indices out of
        # range are clamped rather than read from elsewhere.
        index = f'T.cast(in1[{nest.places[2]}], "int32")'
        index = f"T.max(0, T.min({size - 1}, {index} + T.Select({index} < 0, {size}, 0)))"
        index = kernel.bind(index)
        # The nest has the data at index 0 along the axis; the distance is added per element.
        place = f"{nest.places[1]} + {distance(data.layout, axis, index)}"
        kernel.script.line(f"out0[{nest.places[0]}] = in0[{place}]")
    return kernel.plan("gather")


def distance(layout: Layout, axis: int, index: str) -> str:
    """Return the text of an element's distance in memory from index 0 along an axis.

    Parameters
    ----------
    layout : Layout
    axis : int
    index : str
        Text of the element's index along the axis.
    """
    if axis != 1 or layout.block == 1:
        return f"{index} * {layout.strides()[axis]}"
    return f"{index} // {layout.block} * {_block_step(layout)} + {index} % {layout.block}"


def distances(layout: Layout, axis: int, indices: Array) -> Array:
    """Return the distances (int32) in memory from index 0 along an axis, for several indices.

    Parameters
    ----------
    layout : Layout
    axis : int
    indices : ndarray of int
    """
    if axis != 1 or layout.block == 1:
        return (indices * layout.strides()[axis]).astype(np.int32)
    blocks, inside = np.divmod(indices, layout.block)
    return (blocks * _block_step(layout) + inside).astype(np.int32)


def _block_step(layout: Layout) -> int:
    """Return the distance in memory between blocks of channels."""
    return math.prod(layout.physical_shape[layout.order.index(1) + 1 :])
