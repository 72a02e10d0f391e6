"""Winograd's method: a convolution as transforms of tiles around a batched product of matrices.

Every dimension of the image under a window of several taps is cut into tiles of m outputs, and
``F(m, 3)`` (:mod:`cpembed.transform.methods.cook_toom`) is nested over them (Lavin and Gray, CVPR
2016, 4.1): ``F(2x2, 3x3)`` takes 16 multiplications for 4 outputs instead of 36. Filters of more
than 3 taps are cut into pieces of 3 (the last one filled with zeros), whose products add up: the
index c of the product is over pieces and channels. Partial tiles at the border are computed in
full.

Integers pass through the transforms without a loss if they fit. Transforms make values larger: a
tile of ``F(2x2, 3x3)`` of int8 reaches 512, its filters, times 4 so that they are integers, 1152.
Every value of V, of U and of each sum of M, and what the output's transform makes of them before
results are divided by the scale, has to lie in its element type. Then no sum wraps, the division
leaves no remainder, and results are the convolution's own.

>>> import numpy as np
>>> from fractions import Fraction
>>> from cpembed.ir.reference import reference
>>> from cpembed.workloads.convolutions import conv2d
>>> layer = conv2d(n=1, c=2, h=7, w=6, k=3, r=3, s=3, pad=1, layout="NHWC", dtype="float64")
>>> method = winograd(layer, 4)
>>> str(method.product), method.product.extents
('M[e, x, k] += (V[e, x, c] * U[e, c, k])', {'e': 36, 'x': 4, 'k': 3, 'c': 2})
>>> I = np.arange(84).reshape(1, 7, 6, 2) % 11 + Fraction(1, 3)
>>> W = np.arange(54).reshape(3, 3, 3, 2) % 7 - Fraction(1, 7)
>>> M = method.computed({"I": I, "W": W}, lambda v, u: v @ u)
>>> O = reference(layer, {"I": I.astype(float), "W": W.astype(float)})
>>> bool(abs(M.astype(float) - O).max() < 1e-9), M.dtype
(True, dtype('O'))
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import reduce
from typing import Any

import numpy as np

from cpembed.errors import WorkloadError
from cpembed.ir.computation import Computation
from cpembed.ir.dtypes import dtype_info
from cpembed.transform.methods.convolution import (
    Array,
    Convolution,
    Orders,
    Rewritten,
    Window,
    as_convolution,
    product,
    with_zeros,
)
from cpembed.transform.methods.cook_toom import (
    INTEGER_POINTS,
    POINTS,
    CookToom,
    Matrix,
    Step,
    cook_toom,
    straight_line,
)

# Longer filters in one piece need more points, with which rounding errors grow fast.
_TAPS = 3
"""Maximum number of taps of a piece of a filter."""

_FACTOR_TYPES, _SUM_TYPES = ("int8", "int16", "int32"), ("int32", "int64")
"""Element types of V and U, and of M, the narrowest first."""


@dataclass(frozen=True)
class Tiling:
    """Tiles of a window: ``count`` of ``form.outputs`` outputs each, under pieces of the filter.

    There are ``pieces`` of ``form.taps`` taps. A window of one tap has tiles of one output,
    untransformed.
    """

    window: Window
    form: CookToom
    pieces: int
    count: int

    @classmethod
    def cut(cls, window: Window, outputs: int, points: tuple[Fraction, ...]) -> Tiling:
        """Return a window's tiles of a number of outputs, with matrices from these points."""
        taps = min(window.taps, _TAPS)
        m = outputs if window.taps > 1 else 1
        form = cook_toom(m, taps, points)
        return cls(window, form, pieces=-(-window.taps // taps), count=-(-window.outputs // m))

    def first(self, tile: int, piece: int) -> int:
        """Return the index in the image of a tile's first input, which may be padding."""
        window = self.window
        return window.first + window.stride * self.form.outputs * tile + self.form.taps * piece


@dataclass(frozen=True)
class Winograd(Rewritten):
    """Convolution by Winograd's method.

    The product's axes are e over the transforms' places, the last window fastest; g over groups
    (left out if there is one); x over samples and tiles; c over pieces of the filter and channels;
    k over filters. With integer matrices, results are ``scale`` times too large, exactly.
    """

    convolution: Convolution
    tilings: tuple[Tiling, ...]
    product: Computation
    orders: Orders
    scale: int = 1

    @property
    def name(self) -> str:
        tiled = [t.form.outputs for t in self.tilings if t.window.taps > 1]
        return f"winograd_{'x'.join(map(str, tiled))}"

    @property
    def places(self) -> int:
        """Number of elements of a transformed tile: the extent of e."""
        return math.prod(t.form.multiplications for t in self.tilings)

    @property
    def tiles(self) -> int:
        """Number of tiles of all samples: the extent of x."""
        conv = self.convolution
        return math.prod(t.count for t in self.tilings) * conv.size(conv.samples)

    @property
    def is_exact(self) -> bool:
        """True if results equal those of the convolution to the last bit: integers."""
        return dtype_info(self.product.operand("M").dtype).is_integer

    def image_part(self, image: Array) -> Array:
        conv, v = self.convolution, self._converted(self.convolution.image_array(image), "V")
        # Dimensions 0 to 2 are g, n and c. Each window cut so far has become three.
        for n, tiling in enumerate(self.tilings):
            v = _cut(v, 3 + 3 * n, tiling)
            v = _applied(tiling.form.input, v, 5 + 3 * n)
        # The axes are g, n, c, then piece, tile, place of each window.
        windows = len(self.tilings)
        pieces, tiles, places = ([3 + 3 * n + kind for n in range(windows)] for kind in range(3))
        moved = v.transpose(*places, 0, 1, *tiles, *pieces, 2)
        shape = self.places, conv.size(conv.groups), self.tiles, -1
        return self._shaped(self.orders.image(moved.reshape(shape)), "V")

    def weights_part(self, weights: Array) -> Array:
        conv = self.convolution
        u = self._converted(conv.weights_array(weights), "U")
        for n, tiling in enumerate(self.tilings):
            axis, taps = 3 + 2 * n, tiling.form.taps
            u = with_zeros(u, axis, 0, tiling.pieces * taps)
            u = u.reshape(*u.shape[:axis], tiling.pieces, taps, *u.shape[axis + 1 :])
            u = _applied(tiling.form.filter, u, axis + 1)
        # The axes are g, k, c, then piece, place of each window.
        windows = len(self.tilings)
        pieces, places = ([3 + 2 * n + kind for n in range(windows)] for kind in range(2))
        moved = u.transpose(*places, 0, 1, *pieces, 2)
        shape = self.places, conv.size(conv.groups), conv.size(conv.filters), -1
        return self._shaped(self.orders.weights(moved.reshape(shape)), "U")

    def output_part(self, result: Array) -> Array:
        conv = self.convolution
        groups, k = conv.size(conv.groups), conv.size(conv.filters)
        pairs = (self.tiles, k) if self.orders.last else (k, self.tiles)
        moved = self.orders.result(result.reshape(self.places, groups, *pairs))
        places = [t.form.multiplications for t in self.tilings]
        counts, windows = [t.count for t in self.tilings], len(self.tilings)
        moved = moved.reshape(*places, groups, -1, *counts, k)
        # The new axes are g, n, k, then tile, place of each window.
        order = [windows, windows + 1, windows * 2 + 2]
        order += [axis for n in range(windows) for axis in (windows + 2 + n, n)]
        moved = moved.transpose(order)
        for n, tiling in enumerate(self.tilings):
            moved = _applied(tiling.form.output, moved, 4 + n)
            # Tile and place become one dimension of outputs; a partial last tile is cut off.
            shape = moved.shape
            moved = moved.reshape(*shape[: 3 + n], -1, *shape[5 + n :])
            moved = moved[(slice(None),) * (3 + n) + (slice(tiling.window.outputs),)]
        if self.scale > 1:
            # Exact: every integer result is a multiple of the scale.
            moved = moved // self.scale if self.is_exact else moved / self.scale
        output = conv.output_array(moved)
        return output if output.dtype == object else output.astype(conv.output.dtype)

    def blocked(self, tiles: int) -> Computation:
        """Return the product over a number of the tiles."""
        return _product(self.convolution, self.tilings, self.orders, _types(self.product), tiles)

    def _converted(self, array: Array, operand: str) -> Array:
        """Return an array in the arithmetic in which an operand of the product is computed.

        Rationals, and floats of more digits, stay what they are.
        """
        if array.dtype == object:
            return array
        # int64 for every integer type, since sums on the way may exceed the operand's.
        dtype = np.dtype(np.int64 if self.is_exact else self.product.operand(operand).dtype)
        return array.astype(np.promote_types(dtype, array.dtype))

    def _shaped(self, array: Array, operand: str) -> Array:
        declared = self.product.operand(operand)
        array = array.reshape(declared.shape)
        return array if array.dtype == object else array.astype(declared.dtype)


def winograd(
    workload: Computation,
    outputs: int,
    *,
    channels_last: bool | None = None,
    types: tuple[str, str, str] | None = None,
) -> Winograd:
    """Return Winograd's method.

    Parameters
    ----------
    workload : Computation
        Convolution.
    outputs : int
        Outputs of a tile along every window of several taps.
    channels_last : bool, optional
        Order of the product's operands; by default that of the image.
    types : tuple of three str, optional
        Element types of V, U and M. By default those of the workload for floats, and the narrowest
        that hold every value exactly for integers.

    Raises
    ------
    WorkloadError
        The workload is no convolution, its windows have strides or dilations, nothing is summed
        over channels, floats have less than 32 bits, or integers do not fit the types.
    """
    conv = as_convolution(workload)
    _require_fitting(conv)
    orders = Orders(conv.channels_last if channels_last is None else channels_last)
    exact, scale = dtype_info(conv.output.dtype).is_integer, 1
    # Small integer points keep the ranges of integers small, the others the errors of floats.
    points = INTEGER_POINTS if exact else POINTS
    tilings = tuple(Tiling.cut(window, outputs, points) for window in conv.windows)
    if exact:
        tilings, scale = _integers(tilings)
        types = _integer_types(conv, ranges(conv, tilings), types)
    types = types or (conv.image.dtype, conv.weights.dtype, conv.output.dtype)
    computation = _product(conv, tilings, orders, types, None)
    return Winograd(conv, tilings, computation, orders, scale=scale)


def _require_fitting(conv: Convolution) -> None:
    name = conv.workload.name
    several = [window for window in conv.windows if window.taps > 1]
    if not several:
        raise WorkloadError(f"{name}: Winograd's method is for filters of several taps; all are 1")
    for window in several:
        if not window.is_dense:
            raise WorkloadError(
                f"{name}: Winograd's method needs stride 1 and dilation 1, axis {window.output} "
                f"has stride {window.stride} and dilation {window.dilation}: use another method"
            )
    if not conv.channels or not conv.filters:
        raise WorkloadError(
            f"{name}: Winograd's method needs channels to sum over and several filters of them; "
            "this convolution is one of single channels: use another method"
        )
    for operand in (conv.image, conv.weights, conv.output):
        info = dtype_info(operand.dtype)
        if not info.is_integer and info.bits < 32:
            raise WorkloadError(
                f"{name}: Winograd's transforms round too coarsely in {operand.dtype}: use float32"
            )


def _integers(tilings: Sequence[Tiling]) -> tuple[tuple[Tiling, ...], int]:
    """Return the tilings with integer matrices, and the factor of their results."""
    scaled = [t.form.scaled() for t in tilings]
    changed = (replace(t, form=form) for t, (form, _) in zip(tilings, scaled, strict=True))
    return tuple(changed), math.prod(factor for _, factor in scaled)


@dataclass(frozen=True)
class Ranges:
    """Bounds of absolute values.

    Attributes
    ----------
    image, weights, products : int
        Largest values of V, of U and of the sums M.
    results : int
        Bound of all values on the way from M to the results, these before they are divided by the
        scale.
    """

    image: int
    weights: int
    products: int
    results: int


def ranges(conv: Convolution, tilings: Sequence[Tiling]) -> Ranges:
    """Return bounds of the absolute values that the parts of a method can have."""
    # Nested transforms are the Kronecker product of their matrices. A row's largest value is
    # reached where every input is at that end of its range which the sign of its factor asks for.
    sums = conv.size(conv.channels) * math.prod(t.pieces for t in tilings)
    image = _transformed(conv.image.dtype, [t.form.input for t in tilings])
    weights = _transformed(conv.weights.dtype, [t.form.filter for t in tilings])
    products = [int(v * u * sums) for v, u in zip(image, weights, strict=True)]
    pixel, weight = (
        max(map(abs, dtype_info(operand.dtype).integer_range))
        for operand in (conv.image, conv.weights)
    )
    results = pixel * weight * sums * _largest_combination([t.form for t in tilings])
    return Ranges(max(image), max(weights), max(products), results)


def _largest_combination(forms: Sequence[CookToom]) -> int:
    """Return the most products of a pixel and a weight that a value of a transform can add up.

    Values are M, and what the nested transforms of the output make of it, one window after the
    other. Each is a sum of products with coefficients, whose magnitudes are added up: far fewer
    than by the magnitudes of M alone, since results are sums of a few products.
    """
    # Coefficients of nested transforms are products of those of each window.
    before, during, after = zip(*map(_combinations, forms), strict=True)
    return max(
        math.prod(after[:n]) * during[n] * math.prod(before[n + 1 :]) for n in range(len(forms))
    )


def _combinations(form: CookToom) -> tuple[int, int, int]:
    """Return the largest sums of magnitudes: before, during and after the output's transform."""

    def size(coefficients: Array) -> int:
        return math.ceil(np.abs(coefficients).sum())

    values = [
        np.multiply.outer(np.array(pixels, object), np.array(taps, object))
        for pixels, taps in zip(form.input, form.filter, strict=True)
    ]
    during = [size(value) for value in values]

    def summed(step: Step, earlier: list[Array]) -> Array:
        terms = [factor * earlier[number] for factor, number in step.terms]
        total = reduce(np.add, terms)
        during.extend(size(value) for value in (*terms, total))
        return total

    results = straight_line(form.output).computed(values, summed)
    after = max(size(value) for value in results if value is not None)
    return max(during[: len(values)]), max(during), after


def _transformed(dtype: str, matrices: Sequence[Matrix]) -> list[int]:
    """Return the largest absolute value in each place of a transform of integers of a type."""
    low, high = dtype_info(dtype).integer_range
    rows = reduce(np.kron, (_as_array(matrix, object) for matrix in matrices))
    above, below = np.where(rows > 0, rows, 0), np.where(rows < 0, rows, 0)
    most, least = (above * high + below * low).sum(1), (above * low + below * high).sum(1)
    return [int(max(a, -b)) for a, b in zip(most, least, strict=True)]


def _integer_types(
    conv: Convolution, ranges: Ranges, types: tuple[str, str, str] | None
) -> tuple[str, str, str]:
    """Return the narrowest exact types of V, U and M, or the requested ones if these are exact."""
    largest = {"V": ranges.image, "U": ranges.weights, "M": max(ranges.products, ranges.results)}
    if types is None:
        # A product has factors of one type.
        factor = _narrowest(_FACTOR_TYPES, max(largest["V"], largest["U"]))
        types = factor, factor, _narrowest(_SUM_TYPES, largest["M"])
    for (name, value), dtype in zip(largest.items(), types, strict=True):
        if not dtype_info(dtype).is_integer or value > dtype_info(dtype).integer_range[1]:
            raise WorkloadError(
                f"{conv.workload.name}: Winograd's method would not be exact: {name} reaches "
                f"{value}, which {dtype} does not hold: use another method or smaller tiles"
            )
    return types


def _narrowest(types: Sequence[str], value: int) -> str:
    return next((t for t in types if value <= dtype_info(t).integer_range[1]), types[-1])


def _types(computation: Computation) -> tuple[str, str, str]:
    image, weights, result = (computation.operand(name).dtype for name in "VUM")
    return image, weights, result


def _product(
    conv: Convolution,
    tilings: Sequence[Tiling],
    orders: Orders,
    types: tuple[str, str, str],
    tiles: int | None,
) -> Computation:
    groups = conv.size(conv.groups)
    leading = "e,g," if groups > 1 else "e,"
    extents = {
        "e": math.prod(t.form.multiplications for t in tilings),
        "g": groups,
        "x": tiles or conv.size(conv.samples) * math.prod(t.count for t in tilings),
        "k": conv.size(conv.filters),
        "c": conv.size(conv.channels) * math.prod(t.pieces for t in tilings),
    }
    name = f"{conv.workload.name}_winograd"
    types_by_name = dict(zip("VUM", types, strict=True))
    return product(orders.statement(leading, leading), extents, name, types_by_name)


def _as_array(matrix: Matrix, dtype: Any) -> Array:
    """Return a matrix of rationals as an array of a type; ``object`` keeps the rationals."""
    if np.issubdtype(np.dtype(dtype), np.integer):
        return np.array([[int(x) for x in row] for row in matrix], dtype)
    return np.array(matrix, object).astype(dtype)


def _applied(matrix: Matrix, array: Array, axis: int) -> Array:
    """Return a matrix times the vectors along an axis, in the array's arithmetic."""
    rows = _as_array(matrix, array.dtype)
    return np.moveaxis(np.tensordot(rows, array, (1, axis)), 0, axis)


def _cut(image: Array, axis: int, tiling: Tiling) -> Array:
    """Split an axis of the image in three: piece of the filter, tile, place in the tile."""
    form, window = tiling.form, tiling.window
    step = window.stride * form.outputs
    last = tiling.first(tiling.count - 1, tiling.pieces - 1) + form.multiplications
    padded = with_zeros(image, axis, -window.first, last - window.first)
    # Neighbouring tiles share elements, which are repeated here.
    pieces = np.arange(tiling.pieces)[:, None, None] * form.taps
    places = np.arange(tiling.count)[:, None] * step + np.arange(form.multiplications)
    return np.take(padded, pieces + places, axis)
