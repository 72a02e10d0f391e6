"""Fast exact results to check generated programs against, and random inputs for them.

A sum of products ``O[..] += A[..] * B[..]`` is a batched matrix product of strided views: an affine
access is a view of its (zero-padded) operand with one stride per axis, overlapping for a stencil.
Tiles of the views are copied into dense matrices (im2col of just that tile) and multiplied by BLAS
in float64, which is exact for integers while sums stay below 2^53. Any other statement is evaluated
on tiles of such views (:mod:`cpembed.ir.arithmetic`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from cpembed.ir.arithmetic import (
    UFUNCS,
    computing_dtype,
    evaluate,
    stored,
    sums_floats,
)
from cpembed.ir.computation import Computation, Operand
from cpembed.ir.dtypes import as_stored, dtype_info, holds, is_integer, numpy_dtype
from cpembed.ir.expression import Access, Cast, Expression, Operation
from cpembed.ir.index import flat_index, row_major_strides
from cpembed.ir.interpreter import Array, check_inputs, interpret, start_value

# 32 MiB of float64.
_TILE_ELEMENTS = 1 << 22
"""Maximum number of elements of the three matrices of a tile, in total."""
_TILE_POINTS = 1 << 20
"""Maximum number of points of a tile whose values are evaluated."""
_EXACT_FLOAT64 = 1 << 53
"""Bound below which all sums of integers are exact in float64."""


def random_inputs(computation: Computation, seed: int) -> dict[str, Array]:
    """Draw random arrays for every input, by tensor.

    Integers are uniform over the full range of their dtype, floats uniform in [-1, 1] and rounded
    to their dtype.
    """
    generator = np.random.default_rng(seed)
    arrays: dict[str, Array] = {}
    for operand in computation.inputs:
        if operand.tensor in arrays:
            continue
        arrays[operand.tensor] = random_array(operand.dtype, operand.shape, generator)
    return arrays


def random_array(dtype: str, shape: Sequence[int], generator: np.random.Generator) -> Array:
    """Draw a random array: integers of the full range of a type, floats uniform in [-1, 1].

    Parameters
    ----------
    dtype : str
        Element type.
    shape : sequence of int
    generator : numpy.random.Generator
    """
    stored_dtype = numpy_dtype(dtype)
    if is_integer(dtype):
        low, high = dtype_info(dtype).integer_range
        return generator.integers(low, high, tuple(shape), dtype=stored_dtype, endpoint=True)
    return generator.uniform(-1, 1, tuple(shape)).astype(stored_dtype)


@np.errstate(all="ignore")
def reference(computation: Computation, inputs: Mapping[str, Array]) -> Array:
    """Compute the output of a computation, as :func:`~cpembed.ir.interpreter.interpret` defines it.

    Sums of products over affine accesses run as matrix products, other statements over affine
    accesses on views; anything else is interpreted. Integer results are exact (wrapping in the
    output's dtype); sums of floats are computed in float64 and rounded once.

    Raises :class:`WorkloadError` if an input is missing or has another shape or dtype.
    """
    arrays = check_inputs(computation, inputs)
    if not _has_views(computation):
        return interpret(computation, arrays)
    factors = _factors(computation)
    if factors is None:
        return _evaluated(computation, arrays)
    left, right = factors
    integer = is_integer(computation.output.dtype)
    # Wrapping at each step or once at the end gives the same integer.
    dtype = numpy_dtype(computation.output.dtype if integer else "float64")
    result = np.zeros(computation.output.shape, dtype)
    product = _Product.plan(
        computation,
        _view(computation, left, arrays[left.operand]),
        _view(computation, right, arrays[right.operand]) if right else _ones(computation),
        _view(computation, computation.statement.store, result),
    )
    reduced = math.prod(
        extent for axis, extent in computation.extents.items() if axis in product.contracted
    )
    bound = reduced * _magnitude(arrays[left.operand])
    bound *= _magnitude(arrays[right.operand]) if right else 1
    # numpy multiplies matrices of integers without BLAS, far more slowly.
    matrix_type = np.int64 if integer and bound >= _EXACT_FLOAT64 else np.float64
    for tile in product.tiles(computation.extents):
        product.accumulate(tile, np.dtype(matrix_type), integer)
    return result.astype(numpy_dtype(computation.output.dtype))


@dataclass(frozen=True)
class _View:
    """An operand with one dimension per axis of the computation, named by ``axes``."""

    axes: tuple[str, ...]
    array: Array

    def tile(self, axes: Sequence[str], tile: Mapping[str, slice]) -> Array:
        """Cut out a tile, with its dimensions in the order of ``axes``.

        The view has to be constant along all axes that are not listed.
        """
        remaining = [axis for axis in self.axes if axis in axes]
        slices = (tile[axis] if axis in axes else 0 for axis in self.axes)
        part = self.array[(*slices, ...)]  # the ellipsis keeps a view of no dimensions a view
        return part.transpose([remaining.index(axis) for axis in axes])

    def contiguity(self, axis: str) -> tuple[int, int]:
        """Sort key of an axis: the smaller, the better it is as the innermost axis of a copy."""
        position = self.axes.index(axis)
        stride = abs(self.array.strides[position])
        return (stride or 1 << 62, -self.array.shape[position])


@dataclass(frozen=True)
class _Product:
    """A batched matrix product ``output[batch, rows, columns] += left * right``.

    ``batch`` are the spatial axes that both factors have, ``columns`` those that only the right
    factor has, ``rows`` all other spatial axes; ``contracted`` are the reduction axes.
    """

    batch: tuple[str, ...]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    contracted: tuple[str, ...]
    left: _View
    right: _View
    output: _View

    @staticmethod
    def plan(computation: Computation, left: _View, right: _View, output: _View) -> _Product:
        """Sort the axes of a computation into the four groups."""

        def reads(view: _View, axis: str) -> bool:
            return view.array.strides[view.axes.index(axis)] != 0

        stored = computation.statement.store.iterators
        spatial = [axis for axis in computation.extents if axis in stored]
        columns = [a for a in spatial if reads(right, a) and not reads(left, a)]
        batch = [a for a in spatial if reads(right, a) and reads(left, a)]
        rows = [a for a in spatial if a not in columns and a not in batch]
        contracted = [axis for axis in computation.extents if axis not in stored]
        # Reversed, the most contiguous axis of the left factor is the innermost of the copy: long
        # runs are copied, not single elements.
        contracted.sort(key=left.contiguity, reverse=True)
        rows.sort(key=left.contiguity, reverse=True)
        columns.sort(key=right.contiguity, reverse=True)
        return _Product(
            batch=tuple(batch),
            rows=tuple(rows),
            columns=tuple(columns),
            contracted=tuple(contracted),
            left=left,
            right=right,
            output=output,
        )

    def tiles(self, extents: Mapping[str, int]) -> list[dict[str, slice]]:
        """Cut the axes into tiles, each small enough to be copied."""
        size = dict(extents)
        while self._elements(size) > _TILE_ELEMENTS:
            # Halving a reduction axis costs another pass over the output, so it is the last resort.
            halved = {axis: {**size, axis: -(-size[axis] // 2)} for axis in size if size[axis] > 1}
            axis = min(halved, key=lambda a: (self._elements(halved[a]), a in self.contracted))
            size = halved[axis]
        return _tiles(extents, size)

    def accumulate(self, tile: Mapping[str, slice], dtype: np.dtype[Any], integer: bool) -> None:
        """Add the products of one tile to the output."""
        left = _matrix(self.left, self.batch, self.rows, self.contracted, tile, dtype)
        right = _matrix(self.right, self.batch, self.columns, self.contracted, tile, dtype)
        product = left @ right.swapaxes(-1, -2)
        target = self.output.tile((*self.batch, *self.rows, *self.columns), tile)
        product = product.reshape(target.shape)
        if integer:
            # By way of int64, since converting a float beyond the output's range is undefined.
            product = product.astype(np.int64).astype(target.dtype)
        np.add(target, product, out=target)

    def _elements(self, size: Mapping[str, int]) -> int:
        batch, rows, columns, contracted = (
            math.prod(size[axis] for axis in group)
            for group in (self.batch, self.rows, self.columns, self.contracted)
        )
        return batch * (rows * contracted + columns * contracted + rows * columns)


def _tiles(extents: Mapping[str, int], size: Mapping[str, int]) -> list[dict[str, slice]]:
    """Return all tiles of a size, the last one of each axis perhaps smaller."""

    def slices(extent: int, step: int) -> list[slice]:
        return [slice(at, min(at + step, extent)) for at in range(0, extent, step)]

    ranges = [slices(extent, size[axis]) for axis, extent in extents.items()]
    return [dict(zip(extents, tile, strict=True)) for tile in itertools.product(*ranges)]


def _matrix(
    view: _View,
    batch: Sequence[str],
    free: Sequence[str],
    contracted: Sequence[str],
    tile: Mapping[str, slice],
    dtype: np.dtype[Any],
) -> Array:
    """Copy a tile of a factor to a dense array [batch, free, contracted]."""

    def size(axes: Sequence[str]) -> int:
        return math.prod(tile[axis].stop - tile[axis].start for axis in axes)

    shape = (size(batch), size(free), size(contracted))
    # The group of the most contiguous axis is copied innermost: BLAS takes a transposed matrix too.
    innermost = min((*free, *contracted), key=view.contiguity, default=None)
    if innermost in free:
        transposed = view.tile((*batch, *contracted, *free), tile).astype(dtype, order="C")
        return transposed.reshape(shape[0], shape[2], shape[1]).swapaxes(1, 2)
    return view.tile((*batch, *free, *contracted), tile).astype(dtype, order="C").reshape(shape)


def _view(computation: Computation, access: Access, array: Array) -> _View:
    """View an operand through an access: axis ``i`` moves by the access's stride in ``i``."""
    before_after: list[tuple[int, int]] = []
    for index, size in zip(access.index, array.shape, strict=True):
        low, high = index.bounds(computation.extents)
        before_after.append((max(0, -low), max(0, high - size + 1)))
    padded = np.pad(array, before_after) if any(map(any, before_after)) else array
    # The strides below are those of a flat array in row-major order.
    padded = np.asarray(padded, order="C")
    origin = sum(
        (index.constant + before) * stride
        for index, (before, _), stride in zip(
            access.index, before_after, padded.strides, strict=True
        )
    )
    axes = tuple(computation.extents)
    flat_access = flat_index(access.index, padded.strides)
    strides = tuple(map(flat_access.coefficient, axes))
    flat = padded.reshape(-1)
    shape = tuple(computation.extents.values())
    # numpy makes no strided views of some types of ml_dtypes, but of their bits.
    bits = as_stored(flat[origin // padded.itemsize :])
    return _View(axes, as_strided(bits, shape, strides).view(padded.dtype))


def _ones(computation: Computation) -> _View:
    """Return the missing second factor of a plain sum."""
    shape = tuple(computation.extents.values())
    return _View(
        tuple(computation.extents), as_strided(np.ones(1, np.int8), shape, (0,) * len(shape))
    )


def _factors(computation: Computation) -> tuple[Access, Access | None] | None:
    """Return the one or two reads whose products are summed; None for anything else."""
    factors: list[Access] = []
    pending: list[Expression] = [computation.statement.value]
    while pending:
        node = pending.pop(0)
        match node:
            case Operation("mul", args):
                pending = [*args, *pending]
            case Cast(dtype, Access() as read) if holds(
                dtype, computation.operand(read.operand).dtype
            ):
                factors.append(read)
            # Sums wrap around anyway; rounded floats and saturated integers are other values.
            case Cast(dtype, Operation() as arg, saturate=False) if is_integer(dtype) and holds(
                dtype, computation.output.dtype
            ):
                pending = [arg, *pending]
            case Access():
                factors.append(node)
            case _:
                return None
    if computation.statement.reduction != "add" or len(factors) not in (1, 2):
        return None
    return factors[0], factors[1] if len(factors) == 2 else None


def _has_views(computation: Computation) -> bool:
    """True if every operand of the only statement is a strided view."""
    statement = computation.statement
    accesses = (*statement.reads, statement.store)
    affine = all(index.is_affine for access in accesses for index in access.index)
    return affine and _is_injective(computation, computation.output)


def _evaluated(computation: Computation, arrays: Mapping[str, Array]) -> Array:
    """Compute a statement on tiles of views of its operands."""
    statement, output = computation.statement, computation.output
    values = np.zeros(output.shape, computing_dtype(output.dtype))
    written = np.zeros(output.shape, np.bool_)
    target = _view(computation, statement.store, values).array
    views = {read: _view(computation, read, arrays[read.operand]).array for read in statement.reads}
    extents = computation.extents
    reduced = tuple(
        number for number, axis in enumerate(extents) if axis not in statement.store.iterators
    )
    if statement.reduction is not None:
        target[...] = start_value(statement.reduction, values.dtype)
    _view(computation, statement.store, written).array[...] = True
    size = dict(extents)
    while math.prod(size.values()) > _TILE_POINTS:
        # The longest axis: long tiles in all directions broadcast well.
        longest = max(size, key=size.__getitem__)
        size[longest] = -(-size[longest] // 2)
    for tile in _tiles(extents, size):

        def read(access: Access, tile: Mapping[str, slice] = tile) -> Array:
            # One point of each axis that does not move the access: the others are broadcast.
            moves = views[access].strides
            cuts = zip(tile.values(), moves, strict=True)
            return views[access][tuple(cut if move else slice(1) for cut, move in cuts)]

        is_wide = sums_floats(statement, output.dtype)
        results = evaluate(statement.value, read, wide=is_wide).astype(values.dtype)
        shape = tuple(cut.stop - cut.start for cut in tile.values())
        results = np.broadcast_to(results, shape)
        place = tuple(
            slice(1) if number in reduced else cut for number, cut in enumerate(tile.values())
        )
        if statement.reduction is None:
            target[place] = results
        else:
            combine = UFUNCS[statement.reduction]
            partial = combine.reduce(results, axis=reduced, keepdims=True) if reduced else results
            target[place] = combine(target[place], partial)
    return np.where(written, stored(values, output.dtype), np.zeros((), numpy_dtype(output.dtype)))


def _is_injective(computation: Computation, output: Operand) -> bool:
    """True if points that differ in an axis of the store provably write different elements."""
    # It suffices that, sorted by stride, every axis steps over all that the previous ones reach.
    # Stores outside the output are dropped, which views of it cannot do.
    if output.zero_outside:
        return False
    store = computation.statement.store
    flat = flat_index(store.index, row_major_strides(output.shape))
    strides = {axis: flat.coefficient(axis) for axis in store.iterators}
    reach = 0
    for axis in sorted(strides, key=lambda a: abs(strides[a])):
        if computation.extents[axis] == 1:
            continue
        if abs(strides[axis]) <= reach:
            return False
        reach += abs(strides[axis]) * (computation.extents[axis] - 1)
    return True


def _magnitude(array: Array) -> int:
    """Largest absolute value of an integer array; 0 for floats, whose sums are never exact."""
    if array.dtype.kind not in "iu" or not array.size:
        return 0
    return max(abs(int(array.min())), abs(int(array.max())))
