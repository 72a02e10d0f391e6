"""Images sampled at places between their pixels, and products with constant matrices along an axis.

A sample is a sum of gathered neighbours, weighted by their distances: sampling by a grid, regions
of interest and deformable convolutions differ in where the places come from.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from cpembed.errors import WorkloadError
from cpembed.frontends.composites import Composites
from cpembed.frontends.expressions import X, Y, Z, add, clip, div, function, mul, sub, where
from cpembed.frontends.products import Window
from cpembed.graph.kinds import Gather, Input, Reduce, Scalar
from cpembed.graph.kinds.base import Array
from cpembed.ir.scalars import apply

CUBIC = -0.75
"""Coefficient of the cubic by which PyTorch and ONNX sample."""


@dataclass(frozen=True)
class Neighbour:
    """Neighbours of all samples along one axis, on one side.

    Attributes
    ----------
    index : str
        Tensor of int64: indices within the axis.
    weight : str
        Tensor of float32; empty if it is 1.
    inside : str
        Tensor of bool: whether the neighbour counts; empty if every one does.
    """

    index: str
    weight: str = ""
    inside: str = ""


def neighbours(
    call: Composites, places: str, size: int, mode: str, padding: str, aligned: bool
) -> list[Neighbour]:
    """Return the neighbours of samples along an axis of an image.

    Parameters
    ----------
    call : Composites
    places : str
        Coordinates in pixels, float32.
    size : int
        Size of the axis.
    mode : str
        ``nearest``, ``linear`` or ``cubic``.
    padding : str
        ``zeros``, ``border`` or ``reflection``.
    aligned : bool
        True if the image ends at the middle of its last pixels, not at their edge.
    """
    if mode != "cubic":
        places = call.elementwise(_padded(X, size, padding, aligned), places)
    if mode == "nearest":
        return [_neighbour(call, call.elementwise(apply("round", X), places), size)]
    low = call.elementwise(apply("floor", X), places)
    rest = call.elementwise(sub(X, Y), places, low)
    if mode == "linear":
        weights = [sub(1.0, X), X]
    else:
        weights = [_cubic(add(X, 1.0)), _cubic(X), _cubic(sub(1.0, X)), _cubic(sub(2.0, X))]
    sides: list[Neighbour] = []
    for number, weight in enumerate(weights, 0 if mode == "linear" else -1):
        index = call.elementwise(add(X, float(number)), low) if number else low
        if mode == "cubic":
            # Each neighbour of a cubic is padded by itself.
            index = call.elementwise(_padded(X, size, padding, aligned), index)
        weighted = call.elementwise(weight, rest)
        neighbour = _neighbour(call, index, size)
        sides.append(Neighbour(neighbour.index, weighted, neighbour.inside))
    return sides


def _neighbour(call: Composites, index: str, size: int) -> Neighbour:
    last = float(size - 1)
    inside = apply("and", apply("less_equal", 0.0, X), apply("less_equal", X, last))
    return Neighbour(
        # A NaN becomes 0.
        call.elementwise(clip(X, 0.0, last), index, dtype="int64"),
        inside=call.elementwise(inside, index, dtype="bool"),
    )


def _padded(x: Scalar, size: int, padding: str, aligned: bool) -> Scalar:
    """Return a coordinate moved into the image."""
    if padding == "zeros":
        return x
    last = float(size - 1)
    if padding == "reflection":
        # Reflected at the middle of the last pixels, or at their edge, again and again.
        low, high = (0.0, last) if aligned else (-0.5, last + 0.5)
        span = high - low
        if span <= 0:
            return mul(x, 0.0)
        distance = apply("abs", sub(x, low))
        rest = apply("rem", distance, span)
        turns = apply("floor", div(distance, span))
        is_even = apply("equal", apply("rem", turns, 2.0), 0.0)
        x = where(is_even, add(rest, low), sub(high, rest))
    return clip(x, 0.0, last)


def _cubic(x: Scalar) -> Scalar:
    """Return the weight of a neighbour at a distance (Keys 1981)."""
    a = CUBIC
    near = add(mul(mul(sub(mul(x, a + 2), a + 3), x), x), 1.0)
    far = sub(mul(add(mul(sub(mul(x, a), 5 * a), x), 8 * a), x), 4 * a)
    return where(apply("less_equal", x, 1.0), near, far)


def sampled(
    call: Composites,
    image: str,
    first_row: str,
    axes: Sequence[Sequence[Neighbour]],
    operation: str = "add",
) -> str:
    """Emit the weighted neighbours of all samples, summed.

    Parameters
    ----------
    call : Composites
    image : str
        Tensor [n, c, …].
    first_row : str
        Number of the image that each sample is taken from (int64).
    axes : sequence of sequence of Neighbour
        Neighbours along each axis of the image. All tensors of a neighbour, and ``first_row``,
        broadcast to the shape of the samples.
    operation : str
        ``add``, or ``max`` for the largest weighted neighbour.

    Returns
    -------
    str
        Tensor [samples, c].
    """
    n, c, *sizes = call.shape(image)
    dtype = call.dtype(image)
    rows = call.moved(image, 1, -1)
    rows = call.reshaped(rows, (n * math.prod(sizes), c))
    tensors: list[str] = []
    terms: list[Scalar] = []

    def named(tensor: str) -> Scalar:
        tensors.append(call.reshaped(tensor, (*call.shape(tensor), 1)))
        return Input(len(tensors) - 1)

    for corner in itertools.product(*axes):
        number = first_row
        for neighbour, size in zip(corner, sizes, strict=True):
            number = call.elementwise(add(mul(X, size), Y), number, neighbour.index)
        tensors.append(call.emit(Gather(0), rows, number))
        term: Scalar = Input(len(tensors) - 1)
        weights = [neighbour.weight for neighbour in corner if neighbour.weight]
        if weights:
            weight = weights[0]
            for further in weights[1:]:
                weight = call.elementwise(mul(X, Y), weight, further)
            term = mul(term, named(weight))
        # Left out, not multiplied by 0: the pixel in its place may be infinite.
        insides = [neighbour.inside for neighbour in corner if neighbour.inside]
        if insides:
            inside = insides[0]
            for further in insides[1:]:
                inside = call.elementwise(apply("and", X, Y), inside, further, dtype="bool")
            term = where(named(inside), term, 0.0)
        terms.append(term)
    return call.elementwise(reduce(function(operation), terms), *tensors, dtype=dtype)


_MODES = {"bilinear": "linear", "bicubic": "cubic"}


def grid_sampled(
    call: Composites, image: str, grid: str, mode: str, padding: str, aligned: bool
) -> str:
    """Emit the samples of images at the points of a grid, whose coordinates run from -1 to 1.

    Parameters
    ----------
    call : Composites
    image, grid : str
        Tensors [n, c, sizes] and [n, points, axes], the last axis of the image first.
    mode, padding : str
        ``nearest``, ``linear``, ``bilinear``, ``cubic`` or ``bicubic``; ``zeros``, ``border`` or
        ``reflection``.
    aligned : bool
        True if -1 and 1 are the middle of the last pixels, not their edge.
    """
    n, c, *sizes = call.shape(image)
    *points, rank = call.shape(grid)
    if rank != len(sizes) or points[0] != n:
        raise WorkloadError(f"images {[n, c, *sizes]} at the points of a grid {[*points, rank]}")
    mode = _MODES.get(mode, mode)
    samples = (n, math.prod(points[1:]))
    axes: list[list[Neighbour]] = []
    for k, size in enumerate(sizes):
        column = call.part(grid, len(points), rank - 1 - k, rank - k)
        column = call.cast(call.reshaped(column, samples), "float32")
        scaled = (
            mul(add(X, 1.0), (size - 1) / 2)
            if aligned
            else div(sub(mul(add(X, 1.0), float(size)), 1.0), 2.0)
        )
        places = call.elementwise(scaled, column)
        axes.append(neighbours(call, places, size, mode, padding, aligned))
    first = call.tensor(np.arange(n).reshape(n, 1))
    result = sampled(call, image, first, axes)
    return call.reshaped(call.transposed(result, (0, 2, 1)), (n, c, *points[1:]))


@dataclass(frozen=True)
class Regions:
    """Division of regions of interest into cells and samples.

    Attributes
    ----------
    sizes : tuple of int
        Rows and columns of the result.
    samples : int
        Samples along each axis of a cell.
    scale : float
        Pixels of the image for each unit of the regions' coordinates.
    aligned : bool
        True if coordinates are those of edges, half a pixel before the middle.
    operation : str
        ``mean`` or ``max`` of a cell's samples.
    """

    sizes: tuple[int, int]
    samples: int
    scale: float
    aligned: bool
    operation: str = "mean"


def region_aligned(call: Composites, image: str, boxes: str, batch: str, regions: Regions) -> str:
    """Emit the means or maxima of cells of regions of interest (He et al. 2017, "Mask R-CNN").

    Parameters
    ----------
    call : Composites
    image, boxes, batch : str
        Tensors [n, c, rows, columns], [r, 4] with x1, y1, x2 and y2, and [r] of image numbers.
    regions : Regions
    """
    _, c, *sizes = call.shape(image)
    count = call.shape(boxes)[0]
    boxes = call.cast(boxes, "float32")
    axes: list[list[Neighbour]] = []
    shift = 0.5 if regions.aligned else 0.0
    for k, (size, cells) in enumerate(zip(sizes, regions.sizes, strict=True)):
        low, high = (call.part(boxes, 1, 1 - k + end, 2 - k + end) for end in (0, 2))
        start = sub(mul(X, regions.scale), shift)
        length = sub(sub(mul(Y, regions.scale), shift), start)
        length = length if regions.aligned else apply("max", length, 1.0)
        # The middle of each sample, as a share of the region.
        steps = (np.arange(cells * regions.samples) + 0.5) / (cells * regions.samples)
        shares = call.tensor(steps.astype(np.float32)[None])
        places = call.elementwise(add(start, mul(length, Z)), low, high, shares)
        axes.append(_of_region(call, places, size, k))
    first = call.reshaped(call.cast(batch, "int64"), (count, 1, 1))
    # With maxima the format compares the weighted neighbours, not their sums.
    result = sampled(call, image, first, axes, "add" if regions.operation == "mean" else "max")
    rows, columns = regions.sizes
    cut = (count, rows, regions.samples, columns, regions.samples, c)
    cells = call.emit(Reduce(regions.operation, (2, 4), False), call.reshaped(result, cut))
    return call.transposed(cells, (0, 3, 1, 2))


def _of_region(call: Composites, places: str, size: int, axis: int) -> list[Neighbour]:
    """Return the neighbours of samples of regions: those beyond a pixel's width count as 0."""
    inside = apply("and", apply("less_equal", -1.0, X), apply("less_equal", X, float(size)))
    shape = (call.shape(places)[0], -1, 1) if axis == 0 else (call.shape(places)[0], 1, -1)
    shape = tuple(call.shape(places)[1] if extent < 0 else extent for extent in shape)
    flag = call.reshaped(call.elementwise(inside, places, dtype="bool"), shape)
    moved = call.elementwise(clip(X, 0.0, float(size - 1)), places)
    low = call.elementwise(apply("floor", X), moved)
    rest = call.reshaped(call.elementwise(sub(X, Y), moved, low), shape)
    sides: list[Neighbour] = []
    for number, weight in enumerate((sub(1.0, X), X)):
        index = call.elementwise(clip(add(X, float(number)), 0.0, float(size - 1)), low,
                                 dtype="int64")  # fmt: skip
        sides.append(Neighbour(call.reshaped(index, shape), call.elementwise(weight, rest), flag))
    return sides


def deformed_columns(
    call: Composites,
    image: str,
    offsets: str,
    mask: str | None,
    window: Window,
    groups: int,
) -> str:
    """Emit the elements that the taps of a deformable convolution read (Dai et al. 2017).

    Parameters
    ----------
    call : Composites
    image, offsets : str
        Tensors [n, c, rows, columns] and [n, groups * taps * 2, height, width], rows first.
    mask : str or None
        Factors [n, groups * taps, height, width].
    window : Window
        Window of both image axes.
    groups : int
        Groups of channels with offsets of their own.

    Returns
    -------
    str
        Tensor [n, c, taps, height * width].
    """
    n, c, *sizes = call.shape(image)
    *_, height, width = call.shape(offsets)
    count, points = math.prod(window.taps), height * width
    grouped = call.reshaped(image, (n * groups, c // groups, *sizes))
    offsets = call.reshaped(offsets, (n * groups, count, 2, height, width))
    axes: list[list[Neighbour]] = []
    for k, size in enumerate(sizes):
        tap = np.indices(window.taps)[k].reshape(count, 1, 1) * window.dilations[k]
        at = np.indices((height, width))[k][None] * window.strides[k] - window.before[k]
        column = call.reshaped(call.part(offsets, 2, k, k + 1), (n * groups, count, height, width))
        base = call.tensor((tap + at).astype(np.float32))
        places = call.elementwise(add(X, Y), call.cast(column, "float32"), base)
        places = call.reshaped(places, (n * groups, count * points))
        axes.append(neighbours(call, places, size, "linear", "zeros", True))
    first = call.tensor(np.arange(n * groups).reshape(n * groups, 1))
    result = sampled(call, grouped, first, axes)
    if mask is not None:
        factors = call.reshaped(mask, (n * groups, count * points, 1))
        result = call.elementwise(mul(X, Y), result, factors)
    result = call.transposed(result, (0, 2, 1))
    return call.reshaped(result, (n, c, count, points))


# -- products with constant matrices --------------------------------------------------------------


def along_axis(call: Composites, x: str, axis: int, matrix: Array) -> str:
    """Emit the product of each line along an axis with a constant matrix [results, size].

    Parameters
    ----------
    call : Composites
    x : str
        The tensor.
    axis : int
        Axis of the lines.
    matrix : ndarray
    """
    columns = call.tensor(np.ascontiguousarray(matrix.T).astype(call.dtype(x)))
    return call.moved(call.matmul(call.moved(x, axis, -1), columns), -1, axis)


LARGEST_FACTOR = 128
"""Maximum size of a Fourier transform that is one product, whose matrix is part of the network."""


def fourier(call: Composites, x: str, *, inverse: bool = False) -> str:
    """Emit the Fourier transform of complex lines along the last axis but one.

    A size is divided into factors (Cooley and Tukey 1965), so that matrices stay small; each of
    them is a product with a constant matrix.

    Parameters
    ----------
    call : Composites
    x : str
        Tensor [lines, n, 2] of real and imaginary parts.
    inverse : bool
        True for the inverse transform, which divides by n.
    """
    lines, n, _ = call.shape(x)
    result = _fourier(call, x, 1 if inverse else -1)
    result = call.reshaped(result, (lines, n, 2))
    return call.elementwise(div(X, float(n)), result) if inverse else result


def _fourier(call: Composites, x: str, sign: int) -> str:
    lines, n, _ = call.shape(x)
    divisors = [d for d in range(2, LARGEST_FACTOR + 1) if n % d == 0 and d < n]
    if n <= LARGEST_FACTOR or not divisors:
        if n > 4096:
            raise WorkloadError(f"a Fourier transform of {n}, whose factors exceed 4,096")
        return _transform(call, x, sign)
    # Element b * i + j, of the transform along i with the factor of j, then along j.
    a = max(divisors)
    b = n // a
    x = call.transposed(call.reshaped(x, (lines, a, b, 2)), (0, 2, 1, 3))
    x = _transform(call, call.reshaped(x, (lines * b, a, 2)), sign)
    angles = sign * 2 * np.pi / n * np.outer(np.arange(b), np.arange(a))
    x = _rotated(call, call.reshaped(x, (lines, b, a, 2)), angles)
    x = call.reshaped(call.transposed(x, (0, 2, 1, 3)), (lines * a, b, 2))
    x = call.reshaped(_fourier(call, x, sign), (lines, a, b, 2))
    return call.reshaped(call.transposed(x, (0, 2, 1, 3)), (lines, n, 2))


def _transform(call: Composites, x: str, sign: int) -> str:
    lines, n, _ = call.shape(x)
    # Exact multiples of the full angle first: of large products the sine would lose digits.
    angles = sign * 2 * np.pi / n * (np.outer(np.arange(n), np.arange(n)) % n)
    matrix = np.zeros((n, 2, n, 2))
    matrix[:, 0, :, 0] = matrix[:, 1, :, 1] = np.cos(angles)
    matrix[:, 0, :, 1], matrix[:, 1, :, 0] = np.sin(angles), -np.sin(angles)
    flat = call.reshaped(x, (lines, 2 * n))
    columns = call.tensor(matrix.reshape(2 * n, 2 * n).astype(call.dtype(x)))
    return call.reshaped(call.matmul(flat, columns), (lines, n, 2))


def _rotated(call: Composites, x: str, angles: Array) -> str:
    """Multiply complex numbers by those of magnitude 1 at some angles."""
    last = len(call.shape(x)) - 1
    real, imaginary = (call.part(x, last, k, k + 1) for k in range(2))
    cosine, sine = (
        call.tensor(part(angles)[None, ..., None].astype(call.dtype(x)))
        for part in (np.cos, np.sin)
    )
    ends = [
        call.elementwise(operation(mul(X, Z), mul(Y, Input(3))), real, imaginary, *factors)
        for operation, factors in ((sub, (cosine, sine)), (add, (sine, cosine)))
    ]
    return call.joined(ends, last)


def conjugated(call: Composites, x: str, n: int) -> str:
    """Complete the transform of real lines from its first half.

    Parameters
    ----------
    call : Composites
    x : str
        Tensor [lines, n // 2 + 1, 2].
    n : int
        Size of the transform.
    """
    rest = np.arange(n // 2 + 1, n)
    if not rest.size:
        return x
    mirrored = call.emit(Gather(1), x, call.tensor(n - rest))
    signs = call.tensor(np.asarray([1, -1], call.dtype(x)))
    mirrored = call.elementwise(mul(X, Y), mirrored, signs)
    return call.joined([x, mirrored], 1)
