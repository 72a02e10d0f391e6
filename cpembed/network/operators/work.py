"""Work of generated kernels: vectors that are computed, and elements that are moved one by one.

It follows the loops that a kernel is written with, so it depends on layouts as the kernel does.
Times of the work on a machine are :mod:`cpembed.network.operator_costs`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np

from cpembed.codegen.transposition import Blocks
from cpembed.graph import kinds
from cpembed.graph.kinds import Kind
from cpembed.graph.kinds.base import axis_of
from cpembed.ir.dtypes import is_integer
from cpembed.network.operators.emission import vector_size
from cpembed.network.operators.movement import copied_parts, gathered_nest, transposed_blocks
from cpembed.network.operators.nest import (
    Loop,
    Nest,
    PlacedTensor,
    Tensors,
    View,
    axes,
    broadcast_nest,
    nest_over,
)
from cpembed.network.operators.operation_counts import (
    DIVISION,
    WIDTH,
    expression_operations,
    function_operations,
)
from cpembed.network.operators.pooling import pool_nest
from cpembed.network.operators.reductions import reduction_to, row_reduction

_VECTOR_BYTES = 4 * WIDTH
# Operations in the time of a reciprocal root that everything after it waits for.
_RECIPROCAL_ROOT = 120.0
# Operations in the time that halving a vector of accumulators waits for results.
_HALVINGS = 25.0
# Operations of a tap, and of what follows the taps, for a result that has no neighbours.
_SINGLE_TAP, _SINGLE_RESULT = 0.3, 3.0
# Operations of widening an element to 32 bits, and of narrowing one.
_WIDENED, _NARROWED = 2.0, 6.0
SHORTENED = 9.0
"""Operations of rounding a vector to bfloat16."""


@dataclass(frozen=True)
class Work:
    """Work of one kernel on one thread.

    Attributes
    ----------
    operations : float
        Operations on vectors of :data:`WIDTH` elements, or on an element that has no neighbours.
    scattered, computed : float
        Elements that are moved one by one, and those whose place is computed by divisions.
    rows : float
        Number of times that an innermost loop begins.
    """

    operations: float = 0.0
    scattered: float = 0.0
    computed: float = 0.0
    rows: float = 0.0

    def __add__(self, work: Work) -> Work:
        return Work(*(a + b for a, b in zip(astuple(self), astuple(work), strict=True)))


def work_of(kind: Kind, inputs: Tensors, outputs: Tensors) -> Work | None:
    """Return the work of an operator, or None for a kind without a description here.

    Parameters
    ----------
    kind : Kind
    inputs, outputs : sequence of PlacedTensor
    """
    describe = _DESCRIPTIONS.get(type(kind))
    return None if describe is None else describe(kind, inputs, outputs)


def conversion_work(source: PlacedTensor, target: PlacedTensor) -> Work:
    """Return the work of a copy into another layout."""
    return _copy(broadcast_nest([target, source]), target)


@dataclass(frozen=True)
class _Loop:
    """Innermost loop of a kernel, as LLVM may vectorize it.

    Attributes
    ----------
    rows, length : int
        Number of executions of the loop, and its extent.
    gathered : int
        Number of operands whose neighbours along the loop lie apart.
    is_affine : bool
        True if every place is affine in the loop.
    """

    rows: int
    length: int
    gathered: int = 0
    is_affine: bool = True

    @classmethod
    def innermost(cls, nest: Nest) -> _Loop:
        """Return the innermost loop of a nest."""
        if not nest.loops:
            return cls(1, 1)
        *outer, inner = nest.loops
        rows = math.prod(loop.extent for loop in outer)
        if not nest.is_affine(inner.name):
            return cls(rows, inner.extent, is_affine=False)
        steps = [abs(nest.step(k, inner.name)) for k in range(len(nest.places))]
        return cls(rows, inner.extent, sum(step > 1 for step in steps))

    def executed(self, operations: float, steps: int | None = None) -> Work:
        """Return the work of operations at each point, in vectors where the loop allows.

        ``steps`` is the number of vectors and single elements of a row, by default as LLVM makes
        them.
        """
        if not self.is_affine:
            return Work(
                operations=operations * self.rows * self.length,
                computed=self.rows * self.length,
                rows=self.rows,
            )
        steps = vector_steps(self.length) if steps is None else steps
        points = self.rows * self.length
        return Work(
            operations=operations * self.rows * steps,
            scattered=points * self.gathered,
            rows=self.rows,
        )


def vector_steps(length: int) -> int:
    """Return the number of vectors and single elements into which a loop is divided.

    >>> vector_steps(64), vector_steps(19), vector_steps(3)
    (8, 5, 3)
    """
    return length // WIDTH + length % WIDTH


def _loads(tensors: Tensors) -> float:
    """Return the operations per vector of loading tensors as floats."""
    return sum(0.5 + (_WIDENED if _size(t) < 4 else 0.0) for t in tensors)


def _stores(output: PlacedTensor, computes_floats: bool = True) -> float:
    """Return the operations per vector of storing floats as the elements of a tensor."""
    if output.dtype == "bfloat16":
        return 1.0 + SHORTENED
    rounded = computes_floats and not output.dtype.startswith("float")
    return 1.0 + (_NARROWED if rounded else 0.0) + (_WIDENED if _size(output) < 4 else 0.0)


def _size(tensor: PlacedTensor) -> int:
    return np.dtype(tensor.storage_dtype).itemsize


def _elementwise(kind: kinds.Elementwise, inputs: Tensors, outputs: Tensors) -> Work:
    (output,) = outputs
    floats = kind.computes_in([x.dtype for x in inputs]).startswith("float")
    operations = _loads(inputs) + expression_operations(kind.expression) + _stores(output, floats)
    return _Loop.innermost(broadcast_nest([output, *inputs])).executed(operations)


def _quantized(kind: kinds.Quantize, inputs: Tensors, outputs: Tensors) -> Work:
    (output,) = outputs
    operations = _loads(inputs) + DIVISION + 5.0 + _stores(output)
    return _Loop.innermost(broadcast_nest([output, inputs[0]])).executed(operations)


def _dequantized(kind: kinds.Dequantize, inputs: Tensors, outputs: Tensors) -> Work:
    (output,) = outputs
    operations = _loads(inputs[:1]) + 2.0 + _stores(output)
    return _Loop.innermost(broadcast_nest([output, inputs[0]])).executed(operations)


def _dynamically_quantized(kind: kinds.DynamicQuantize, inputs: Tensors, outputs: Tensors) -> Work:
    loop = _Loop.innermost(broadcast_nest([outputs[0], *inputs]))
    extremes = loop.executed(_loads(inputs) + 1.0)
    return (
        extremes + extremes + loop.executed(_loads(inputs) + DIVISION + 5.0 + _stores(outputs[0]))
    )


def _looked_up(kind: kinds.Table, inputs: Tensors, outputs: Tensors) -> Work:
    loop = _Loop.innermost(broadcast_nest([outputs[0], *inputs]))
    if kind.is_shift:
        return loop.executed(0.5)
    # No vector instruction looks up 256 entries.
    return Work(operations=3.0 * loop.rows * loop.length, rows=loop.rows) + loop.executed(0.0)


def _moved(kind: Kind, inputs: Tensors, outputs: Tensors) -> Work:
    (output,) = outputs
    total = Work()
    for part in copied_parts(kind, inputs, output):
        total = total + _copy(part.nest, output)
    return total


def _copy(nest: Nest, output: PlacedTensor) -> Work:
    """Return the work of a copy: runs of neighbours, blocks in registers, or single elements."""
    loop, size = _Loop.innermost(nest), _size(output)
    points = loop.rows * loop.length
    if len(nest.places) > 1:
        transposition = transposed_blocks(nest, output.storage_dtype)
        if transposition is not None:
            return _transposed(points, size, *transposition)
    if not loop.is_affine:
        return Work(computed=points, rows=loop.rows)
    if loop.gathered:
        return Work(scattered=points, rows=loop.rows)
    # What is left of a row is moved by shorter vectors.
    per_vector = _VECTOR_BYTES // size
    steps = loop.length // per_vector + (loop.length % per_vector).bit_count()
    return Work(operations=1.5 * loop.rows * steps, rows=loop.rows)


def _transposed(points: int, size: int, blocks: Blocks, columns: Loop, rows: Loop) -> Work:
    """Return the work of transposing blocks in registers, of which the last ones overlap."""
    count = points // (columns.extent * rows.extent)
    count *= -(-columns.extent // blocks.columns) * -(-rows.extent // blocks.rows)
    registers = blocks.rows * -(-blocks.columns * size // _VECTOR_BYTES)
    steps = math.log2(blocks.rows) + 2
    # Measured on an AVX2 processor: what does not fit 16 registers is stored and loaded again.
    return Work(operations=count * registers * steps * (2.0 if registers <= 16 else 4.0))


def _gathered(kind: kinds.Gather, inputs: Tensors, outputs: Tensors) -> Work:
    nest = gathered_nest(kind, inputs, outputs[0])
    loop = _Loop.innermost(nest)
    # If the indices change along the innermost loop, every element has a place of its own.
    if nest.loops and nest.step(2, nest.loops[-1].name):
        return Work(computed=loop.rows * loop.length, rows=loop.rows)
    return _copy(Nest(nest.loops, nest.places[:2]), outputs[0]) + Work(rows=loop.rows)


def _tabulated(sizes: Mapping[int, int], output: PlacedTensor) -> Work:
    """Return the work of a copy whose places along some axes are looked up."""
    nest = nest_over(output.shape, [View(output.layout, axes(len(output.shape)))], list(sizes))
    loop = _Loop.innermost(nest)
    names = {f"a{axis}" for axis in sizes}
    if nest.loops and nest.loops[-1].name in names:
        # The table is part of the code, so that LLVM makes shuffles of short rows.
        return Work(scattered=0.3 * loop.rows * loop.length, rows=loop.rows)
    return _copy(nest, output) + Work(rows=loop.rows)


def _resized(kind: kinds.Resize, inputs: Tensors, outputs: Tensors) -> Work:
    (source, *_), (output,) = inputs, outputs
    first = len(source.shape) - len(kind.sizes)
    changed = {
        axis: size for axis, size in enumerate(kind.sizes, first) if source.shape[axis] != size
    }
    if kind.mode == "nearest" or not changed:
        return _tabulated(changed, output)
    corners = 2 ** len(changed)
    operations = corners * (_loads([source]) + 1.0) + _stores(output)
    nest = broadcast_nest([output])
    lane = nest.loops[-1].name if nest.loops else ""
    # Channels are neighbours in both tensors, or every element has weights of its own.
    channels_last = source.layout.order[-1] == 1 and output.layout.order[-1] == 1
    points = output.type.elements / (2 if channels_last and lane == "a1" else 1)
    return Work(operations=operations * points, rows=_Loop.innermost(nest).rows)


def _padded(kind: kinds.Pad, inputs: Tensors, outputs: Tensors) -> Work:
    if kind.mode == "constant":
        return _moved(kind, inputs, outputs)
    sizes = enumerate(zip(inputs[0].shape, kind.before, kind.after, strict=True))
    changed = {axis: size for axis, (size, before, after) in sizes if before or after}
    return _tabulated(changed, outputs[0])


def _pooled(kind: kinds.Pool, inputs: Tensors, outputs: Tensors) -> Work:
    (source,), (output,) = inputs, outputs
    nest, taps = pool_nest(kind, source, output), math.prod(kind.window)
    loop = _Loop.innermost(nest)
    per_tap, is_mean = _per_element(kind.operation, source), kind.operation == "mean"
    # Means of integers are multiplied by a reciprocal.
    finish = _stores(output, is_mean) + DIVISION * (is_mean and not is_integer(source.dtype))
    lane = nest.loops[-1].name if nest.loops else ""
    crosses = any(lane in point.iterators for point in nest.points)
    step = abs(nest.step(1, lane)) if lane else 1
    # Results at borders that lanes cross are computed one by one.
    is_bordered = crosses and any(kind.before) and step <= 2
    border = (2 if loop.length > 3 else loop.length) if is_bordered else 0
    vectors = steps = rest = loop.length - border
    if rest and step <= 2:
        per_tap += 2.0 * (step == 2)
        steps, vectors = -(-rest // vector_size(rest)), _overlapping_vectors(rest)
    operations = vectors * (taps * per_tap + finish)
    operations += border * (taps * _SINGLE_TAP + _SINGLE_RESULT)
    # Each window is a nest of short loops over its taps; along the lanes they are unrolled.
    begun = taps // kind.window[-1] if crosses else taps
    windows = steps + border
    return Work(loop.rows * (operations + 2.0 * windows * begun), rows=loop.rows * windows)


def _reduced(kind: kinds.Reduce, inputs: Tensors, outputs: Tensors) -> Work:
    reduction = reduction_to(kind, inputs[0], outputs[0])
    loads = 8.0 + _loads(inputs) if kind.is_index else _per_element(kind.operation, inputs[0])
    return _accumulated(_Loop.innermost(reduction.nest), loads, reduction.is_along)


def _per_element(operation: str, source: PlacedTensor) -> float:
    """Return the operations per vector of loading elements and reducing them."""
    if source.dtype not in ("int8", "uint8"):
        return 1.0 + _loads([source])
    # Bytes are compared as such, and added after widening while they are loaded.
    return 0.4 if operation in ("max", "min") else 2.0


def _accumulated(loop: _Loop, operations: float, is_along: bool) -> Work:
    """Return the work of a pass that reduces rows, or that adds rows to accumulators."""
    steps = _binary_steps(loop.length) if is_along else _overlapping_vectors(loop.length)
    work = Work(operations=operations * loop.rows * steps, rows=loop.rows)
    # The halves of a vector of accumulators wait for each other.
    halving = 2.0 * min(64, loop.length) / WIDTH + _HALVINGS
    return work + Work(operations=loop.rows * halving if is_along else 0.0)


def _overlapping_vectors(length: int) -> int:
    """Return the number of operations on a row in vectors of one size, of which the last overlaps.

    >>> _overlapping_vectors(54), _overlapping_vectors(3)
    (8, 2)
    """
    size = vector_size(length)
    return -(-length // size) * max(1, size // WIDTH)


def _binary_steps(length: int) -> int:
    """Return the number of operations on a row that is divided into powers of two."""
    return length // WIDTH + (length % WIDTH).bit_count()


def _softmax(kind: kinds.Softmax, inputs: Tensors, outputs: Tensors) -> Work:
    (source,), (output,) = inputs, outputs
    reduction = row_reduction([output, source], [axis_of(kind.axis, len(source.shape))])
    loop, is_along = _Loop.innermost(reduction.nest), reduction.is_along
    load, power = _loads(inputs), function_operations("exp") * 0.7
    passes = 1 if output.dtype == "float32" and not kind.log else 2
    work = _accumulated(loop, 1.0 + load, is_along)
    work = work + _accumulated(loop, 2.0 + load + power + 1.0, is_along)
    last = load + 1.0 + _stores(output) + (power if passes == 2 and not kind.log else 0.0)
    return work + Work(last * loop.rows * _binary_steps(loop.length), rows=loop.rows)


def _normalized(kind: kinds.LayerNorm, inputs: Tensors, outputs: Tensors) -> Work:
    source, (output,) = inputs[0], outputs
    rank = len(source.shape)
    reduction = row_reduction([output, source], range(axis_of(kind.axis, rank), rank))
    loop, is_along = _Loop.innermost(reduction.nest), reduction.is_along
    load = _loads(inputs[:1])
    work = _accumulated(loop, 2.0 + load, is_along)
    if kind.centres:
        work = work + _accumulated(loop, 1.0 + load, is_along)
    operations = _loads(inputs) + 3.0 + _stores(output)
    # The reciprocal root of a row is needed before any of its results.
    per_row = _RECIPROCAL_ROOT if is_along else 0.0
    steps = _binary_steps(loop.length)
    return work + Work((operations * steps + per_row) * loop.rows, rows=loop.rows)


_Description = Callable[[Any, Tensors, Tensors], Work]

_DESCRIPTIONS: Mapping[type[Kind], _Description] = {
    kinds.Elementwise: _elementwise,
    kinds.Quantize: _quantized,
    kinds.Dequantize: _dequantized,
    kinds.DynamicQuantize: _dynamically_quantized,
    kinds.Table: _looked_up,
    kinds.Reshape: _moved,
    kinds.Transpose: _moved,
    kinds.Concat: _moved,
    kinds.Slice: _moved,
    kinds.Expand: _moved,
    kinds.Pad: _padded,
    kinds.Gather: _gathered,
    kinds.Resize: _resized,
    kinds.Pool: _pooled,
    kinds.Reduce: _reduced,
    kinds.Softmax: _softmax,
    kinds.LayerNorm: _normalized,
}
