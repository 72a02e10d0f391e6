"""Operators at indices that are computed in every call: scattering, reversal, windows' maxima.

Elements are addressed by their numbers in row-major order, or in rows of the axes that no index
names, so that one kind of the graph serves all of them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from cpembed.errors import WorkloadError
from cpembed.frontends.emitter import Emitter, numbers_beside
from cpembed.frontends.expressions import X, Y, Z, add, differ, less, mul, sub, where
from cpembed.frontends.products import Window
from cpembed.graph.kinds import Input, Pad, Reduce, Scatter, Slice, Sort
from cpembed.graph.kinds.base import Array
from cpembed.ir.dtypes import is_integer
from cpembed.ir.index import row_major_strides
from cpembed.ir.scalars import apply


def sorted_along(
    call: Emitter, x: str, axis: int, count: int, *, descending: bool
) -> tuple[str, str]:
    """Emit the first elements of each line in order, and their indices.

    Parameters
    ----------
    call : Emitter
    x : str
        The tensor.
    axis, count : int
        Axis of the lines, and number of elements of the result.
    descending : bool
        True for the largest elements first.
    """
    values, indices = call.emit_all(Sort(axis, count, descending), x)
    return values, indices


def scattered_rows(
    call: Emitter, data: str, indices: str, rows: str, operation: str = "set"
) -> str:
    """Emit a scattering of rows, which half-precision floats do in float32.

    Parameters
    ----------
    call : Emitter
    data, indices, rows : str
        Tensors [n, …], [m] and [m, …].
    operation : str
        An operation of :class:`Scatter`.
    """
    if not call.type_of(rows).elements:
        return data
    indices = call.cast(indices, "int64")
    dtype = call.dtype(data)
    if operation != "set" and dtype in ("float16", "bfloat16"):
        data, rows = call.cast(data, "float32"), call.cast(rows, "float32")
    return call.cast(call.emit(Scatter(operation), data, indices, rows), dtype)


def scattered_elements(
    call: Emitter, data: str, index: str, updates: str, axis: int, operation: str = "set"
) -> str:
    """Emit a scattering along one axis: the inverse of ``numpy.take_along_axis``.

    Parameters
    ----------
    call : Emitter
    data, index, updates : str
        Tensors of one rank; the latter two have one shape.
    axis : int
        Axis that the indices count along.
    operation : str
        An operation of :class:`Scatter`.

    Raises
    ------
    WorkloadError
        For shapes that do not fit, and constant indices beyond the axis.
    """
    shape, index_shape = call.shape(data), call.shape(index)
    fits = len(index_shape) == len(shape) and all(
        a <= b for k, (a, b) in enumerate(zip(index_shape, shape, strict=True)) if k != axis
    )
    if not fits or call.shape(updates) != index_shape:
        raise WorkloadError(
            f"{list(call.shape(updates))} at indices {list(index_shape)} of a tensor {list(shape)}"
        )
    call.check_indices(index, shape[axis])
    if not math.prod(index_shape):
        return data
    index = call.from_front(index, shape[axis])
    number = add(mul(X, row_major_strides(shape)[axis]), Y)
    rest = call.tensor(numbers_beside(axis, index_shape, shape))
    places = call.reshaped(call.elementwise(number, index, rest), (math.prod(index_shape),))
    flat = call.reshaped(data, (math.prod(shape),))
    rows = call.reshaped(updates, (math.prod(index_shape),))
    return call.reshaped(scattered_rows(call, flat, places, rows, operation), shape)


def scattered_at(
    call: Emitter, data: str, columns: Sequence[str], updates: str, operation: str = "set"
) -> str:
    """Emit a scattering at indices of the first axes.

    Parameters
    ----------
    call : Emitter
    data : str
        Tensor whose first axes are indexed.
    columns : sequence of str
        Indices of each of these axes, in one shape.
    updates : str
        Tensor of the shape of the indices, followed by the axes that none of them counts along.
    operation : str
        An operation of :class:`Scatter`.
    """
    shape, depth = call.shape(data), len(columns)
    number = row_number(call, columns, shape[:depth])
    count, tail = math.prod(call.shape(number)), shape[depth:]
    rows = call.reshaped(updates, (count, *tail))
    flat = call.reshaped(data, (math.prod(shape[:depth]), *tail))
    places = call.reshaped(number, (count,))
    return call.reshaped(scattered_rows(call, flat, places, rows, operation), shape)


def row_number(call: Emitter, columns: Sequence[str], sizes: Sequence[int]) -> str:
    """Emit the row-major numbers of indices of several axes.

    Parameters
    ----------
    call : Emitter
    columns : sequence of str
        Indices of each axis, in one shape.
    sizes : sequence of int
        Sizes of the axes.

    Raises
    ------
    WorkloadError
        For constant indices beyond their axis.
    """
    total = ""
    for column, size, step in zip(columns, sizes, row_major_strides(sizes), strict=True):
        call.check_indices(column, size)
        index = call.from_front(column, size)
        if total:
            total = call.elementwise(add(X, mul(Y, step)), total, index)
        else:
            total = call.elementwise(mul(X, step), index)
    return total


def reversed_prefixes(call: Emitter, x: str, lengths: str, axis: int, batch_axis: int) -> str:
    """Reverse the first elements of each line, as many as ``lengths`` has for its batch.

    Parameters
    ----------
    call : Emitter
    x, lengths : str
        The tensor, and the number of reversed elements for each index of the batch axis.
    axis, batch_axis : int
        Axis of the lines, and axis that the lengths belong to.
    """
    shape = call.shape(x)
    steps = call.tensor(np.arange(shape[axis]).reshape(_along(axis, shape)))
    lengths = call.reshaped(call.cast(lengths, "int64"), _along(batch_axis, shape))
    index = where(less(X, Y), sub(sub(Y, 1), X), X)
    # Lengths and steps broadcast to the two axes; the others are expanded.
    places = call.expanded(call.elementwise(index, steps, lengths), shape)
    return call.gathered_elements(x, places, axis)


def _along(axis: int, shape: Sequence[int]) -> list[int]:
    return [size if k == axis else 1 for k, size in enumerate(shape)]


def maxima_with_places(call: Emitter, x: str, window: Window, numbers: Array) -> tuple[str, str]:
    """Emit the maxima of windows over the last axes, and the numbers of the pixels that they are.

    The first of equal pixels counts; a NaN is the maximum of its window.

    Parameters
    ----------
    call : Emitter
    x : str
        The tensor.
    window : Window
        Window with the padding of the image.
    numbers : ndarray of int64
        Number of each pixel of the image.
    """
    axes, shape = len(window.taps), call.shape(x)
    lead = [0] * (len(shape) - axes)
    before, after = (*lead, *window.before), (*lead, *window.after)
    dtype = call.dtype(x)
    least = int(np.iinfo(dtype).min) if is_integer(dtype) else -math.inf
    padded = call.emit(Pad(before, after, least), x) if any((*before, *after)) else x
    widths = list(zip(window.before, window.after, strict=True))
    places = np.pad(numbers, widths, constant_values=-1)
    (result,) = window.pool("max").types([call.type_of(x)])
    best, best_place = "", ""
    for taps in itertools.product(*map(range, window.taps)):
        starts = [t * d for t, d in zip(taps, window.dilations, strict=True)]
        steps = [*(1 for _ in lead), *window.strides]
        counts = [*shape[: len(lead)], *result.shape[len(lead) :]]
        firsts = [*lead, *starts]
        stops = [f + (n - 1) * s + 1 for f, n, s in zip(firsts, counts, steps, strict=True)]
        value = call.emit(Slice(tuple(firsts), tuple(stops), tuple(steps)), padded)
        cut = tuple(slice(*part) for part in zip(firsts, stops, steps, strict=True))[len(lead) :]
        place = call.tensor(np.ascontiguousarray(places[cut]))
        if not best:
            best, best_place = value, call.expanded(place, result.shape)
            continue
        # Padding, whose number is -1, is never a maximum; any pixel comes before it.
        larger = less(X, Y)
        if not is_integer(dtype):
            larger = apply("or", larger, apply("and", differ(Y, Y), differ(X, Y)))
            larger = apply("and", larger, apply("not", differ(X, X)))
        first = apply("or", less(Input(2), 0), larger)
        inside = apply("and", first, apply("less_equal", 0, Input(3)))
        is_better = call.elementwise(inside, best, value, best_place, place, dtype="bool")
        best = call.elementwise(where(X, Y, Z), is_better, value, best, dtype=dtype)
        best_place = call.elementwise(where(X, Y, Z), is_better, place, best_place, dtype="int64")
    return best, best_place


def unpooled(call: Emitter, x: str, places: str, sizes: Sequence[int]) -> str:
    """Store each element of an image's channel at a number of a larger channel, zeros elsewhere.

    Parameters
    ----------
    call : Emitter
    x, places : str
        Tensors [n, c, …] of elements and of their numbers in a channel.
    sizes : sequence of int
        Sizes of the larger image.
    """
    n, c, *image = call.shape(x)
    count, pixels = math.prod(image), math.prod(sizes)
    zeros = call.tensor(np.zeros((n * c, pixels), np.float32))
    zeros = call.cast(zeros, call.dtype(x))
    index, rows = (call.reshaped(t, (n * c, count)) for t in (places, x))
    result = scattered_elements(call, zeros, index, rows, 1)
    return call.reshaped(result, (n, c, *sizes))


def overlapped(call: Emitter, columns: str, sizes: Sequence[int], window: Window) -> str:
    """Sum the columns of windows into the image that they were taken from.

    Parameters
    ----------
    call : Emitter
    columns : str
        Tensor [n, c * taps, windows].
    sizes : sequence of int
        Sizes of the image.
    window : Window
        The window.
    """
    n, rows, windows = call.shape(columns)
    taps, counts = math.prod(window.taps), window.counts(sizes)
    channels = rows // taps
    places = np.zeros((*window.taps, *counts), np.int64)
    inside = np.ones(places.shape, np.bool_)
    rank = len(sizes)
    for k, (size, step) in enumerate(zip(sizes, row_major_strides(sizes), strict=True)):
        tap = np.arange(window.taps[k]).reshape(_along(k, window.taps) + [1] * rank)
        at = np.arange(counts[k]).reshape([1] * rank + _along(k, counts))
        place = at * window.strides[k] + tap * window.dilations[k] - window.before[k]
        places, inside = places + place * step, inside & (place >= 0) & (place < size)
    pixels = math.prod(sizes)
    # What falls on the padding is left out, as rows beyond the image.
    index = np.where(inside, places, pixels).reshape(-1)
    x = call.reshaped(columns, (n, channels, taps * windows))
    x = call.reshaped(call.transposed(x, (2, 0, 1)), (taps * windows, n * channels))
    zeros = call.tensor(np.zeros((1, 1), np.float32))
    zeros = call.cast(call.expanded(zeros, (pixels, n * channels)), call.dtype(x))
    total = scattered_rows(call, zeros, call.tensor(index), x, "add")
    total = call.transposed(call.reshaped(total, (pixels, n, channels)), (1, 2, 0))
    return call.reshaped(total, (n, channels, *sizes))


def one_hot_rows(call: Emitter, x: str, axis: int) -> str:
    """Emit 1 at the first maximum of each line and 0 elsewhere.

    Parameters
    ----------
    call : Emitter
    x : str
        The tensor.
    axis : int
        Axis of the lines.
    """
    index = call.emit(Reduce("argmax", (axis,), True), x)
    steps = call.tensor(np.arange(call.shape(x)[axis]).reshape(_along(axis, call.shape(x))))
    is_first = call.elementwise(apply("equal", X, Y), index, steps, dtype="bool")
    return call.cast(is_first, call.dtype(x))
