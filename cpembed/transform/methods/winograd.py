"""Winograd's method: a convolution as transforms of tiles around a batched product of matrices.

Every dimension of the image under a window of several taps is cut into tiles of m outputs, and
``F(m, 3)`` (:mod:`cpembed.transform.methods.cook_toom`) is nested over them (Lavin and Gray, CVPR
2016, 4.1): ``F(2x2, 3x3)`` takes 16 multiplications for 4 outputs instead of 36. Filters of more
than 3 taps are cut into pieces of 3 (the last one filled with zeros), whose products add up: the
index c of the product is over pieces and channels. Tiles at the border that are not whole are
computed whole.

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
>>> found = method.computed({"I": I, "W": W}, lambda v, u: v @ u)
>>> O = reference(layer, {"I": I.astype(float), "W": W.astype(float)})
>>> bool(abs(found.astype(float) - O).max() < 1e-9), found.dtype
(True, dtype('O'))
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
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
    Window,
    as_convolution,
    with_zeros,
)
from cpembed.transform.methods.cook_toom import INTEGER_POINTS, POINTS, CookToom, Matrix, cook_toom
from cpembed.transform.methods.exactness import Ranges, integer_types
from cpembed.transform.methods.rewritten import Orders, Rewritten, product

_TAPS = 3
"""Of a piece of a filter at most."""


@dataclass(frozen=True)
class Tiling:
    """A window's tiles: ``count`` of ``form.outputs`` outputs each, under ``pieces`` pieces of the
    filter of ``form.taps`` taps. A window of one tap has tiles of one output, untransformed."""

    window: Window
    form: CookToom
    pieces: int
    count: int

    @classmethod
    def of(cls, window: Window, outputs: int, points: tuple[Fraction, ...]) -> Tiling:
        taps = min(window.taps, _TAPS)
        m = outputs if window.taps > 1 else 1
        return cls(
            window, cook_toom(m, taps, points), -(-window.taps // taps), -(-window.outputs // m)
        )

    def first(self, tile: int, piece: int) -> int:
        """The image's element that a tile's first input is, below 0 or beyond the image where it is
        padding."""
        window = self.window
        return window.first + window.stride * self.form.outputs * tile + self.form.taps * piece


@dataclass(frozen=True)
class Winograd(Rewritten):
    """A convolution by Winograd's method.

    The product's axes: e over the transforms' places, the last window fastest; g over groups (left
    out where there is one); x over samples and tiles, c over pieces of the filter and channels, k
    over filters. ``scale``: with integer matrices (``integers``) the results are so many times too
    large, exactly.
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
        """Elements of a transformed tile: the extent of e."""
        return math.prod(t.form.multiplications for t in self.tilings)

    @property
    def tiles(self) -> int:
        """Tiles of all samples: the extent of x."""
        return math.prod(t.count for t in self.tilings) * self.convolution.size(
            self.convolution.samples
        )

    @property
    def is_exact(self) -> bool:
        """Whether results are those of the convolution to the last bit: integers."""
        return dtype_info(self.product.operand("M").dtype).is_integer

    def image_part(self, image: Array) -> Array:
        conv, found = self.convolution, self._of_product(self.convolution.image_array(image), "V")
        for n, tiling in enumerate(self.tilings):
            found = _cut(found, 3 + 3 * n, tiling)
            found = _applied(tiling.form.input, found, 5 + 3 * n)
        # [g, n, c, then piece, tile, place of each window]
        several = len(self.tilings)
        pieces, tiles, places = ([3 + 3 * n + kind for n in range(several)] for kind in range(3))
        moved = found.transpose(*places, 0, 1, *tiles, *pieces, 2)
        shape = self.places, conv.size(conv.groups), self.tiles, -1
        return self._shaped(self.orders.image(moved.reshape(shape)), "V")

    def weights_part(self, weights: Array) -> Array:
        conv = self.convolution
        found = self._of_product(conv.weights_array(weights), "U")
        for n, tiling in enumerate(self.tilings):
            axis, taps = 3 + 2 * n, tiling.form.taps
            found = with_zeros(found, axis, 0, tiling.pieces * taps)
            shape = found.shape
            found = found.reshape(*shape[:axis], tiling.pieces, taps, *shape[axis + 1 :])
            found = _applied(tiling.form.filter, found, axis + 1)
        several = len(self.tilings)
        pieces, places = ([3 + 2 * n + kind for n in range(several)] for kind in range(2))
        moved = found.transpose(*places, 0, 1, *pieces, 2)
        shape = self.places, conv.size(conv.groups), conv.size(conv.filters), -1
        return self._shaped(self.orders.weights(moved.reshape(shape)), "U")

    def output_part(self, found: Array) -> Array:
        conv = self.convolution
        groups, k = conv.size(conv.groups), conv.size(conv.filters)
        pairs = (self.tiles, k) if self.orders.last else (k, self.tiles)
        moved = self.orders.result(found.reshape(self.places, groups, *pairs))
        places = [t.form.multiplications for t in self.tilings]
        counts, several = [t.count for t in self.tilings], len(self.tilings)
        moved = moved.reshape(*places, groups, -1, *counts, k)
        # To [g, n, k, then tile, place of each window].
        order = [several, several + 1, several * 2 + 2]
        order += [axis for n in range(several) for axis in (several + 2 + n, n)]
        moved = moved.transpose(order)
        for n, tiling in enumerate(self.tilings):
            moved = _applied(tiling.form.output, moved, 4 + n)
            shape = moved.shape
            moved = moved.reshape(*shape[: 3 + n], -1, *shape[5 + n :])
            moved = moved[(slice(None),) * (3 + n) + (slice(tiling.window.outputs),)]
        if self.scale > 1:
            moved = moved // self.scale if self.is_exact else moved / self.scale
        whole = conv.output_array(moved)
        return whole if whole.dtype == object else whole.astype(conv.output.dtype)

    def blocked(self, tiles: int) -> Computation:
        """The product over so many of the tiles."""
        return _product(self.convolution, self.tilings, self.orders, _types(self.product), tiles)

    def _of_product(self, array: Array, operand: str) -> Array:
        """An array in which an operand of the product is computed; rationals, and floats of more
        digits, stay what they are."""
        if array.dtype == object:
            return array
        own = np.dtype(np.int64 if self.is_exact else self.product.operand(operand).dtype)
        return array.astype(np.promote_types(own, array.dtype))

    def _shaped(self, array: Array, operand: str) -> Array:
        given = self.product.operand(operand)
        found = array.reshape(given.shape)
        return found if found.dtype == object else found.astype(given.dtype)


def winograd(
    workload: Computation,
    outputs: int,
    *,
    channels_last: bool | None = None,
    types: tuple[str, str, str] | None = None,
) -> Winograd:
    """Winograd's method with tiles of ``outputs`` outputs along every window of several taps.

    ``channels_last``, by default as in the image, is the order of the product's operands;
    ``types`` the element types of the product's V, U and M: by default the workload's for floats,
    for integers the narrowest that hold every value exactly.

    Raises :class:`WorkloadError`, in one line: for what is no convolution, where windows have
    strides or dilations, where nothing is summed over channels, for types of less than 32 bits of
    floats, and where integers do not fit the product's types.
    """
    conv = as_convolution(workload)
    _require_fitting(conv)
    orders = Orders(conv.channels_last if channels_last is None else channels_last)
    exact, scale = dtype_info(conv.output.dtype).is_integer, 1
    points = INTEGER_POINTS if exact else POINTS
    tilings = tuple(Tiling.of(window, outputs, points) for window in conv.windows)
    if exact:
        tilings, scale = _integers(tilings)
        types = integer_types(conv, ranges(conv, tilings), types)
    chosen = types or (conv.image.dtype, conv.weights.dtype, conv.output.dtype)
    computation = _product(conv, tilings, orders, chosen, None)
    return Winograd(conv, tilings, computation, orders, scale)


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
    """The tilings with integer matrices, and what results are multiplied by."""
    scaled = [t.form.scaled() for t in tilings]
    changed = tuple(
        Tiling(t.window, form, t.pieces, t.count)
        for t, (form, _) in zip(tilings, scaled, strict=True)
    )
    return changed, math.prod(factor for _, factor in scaled)


def ranges(conv: Convolution, tilings: Sequence[Tiling]) -> Ranges:
    """The largest absolute values that V, U, M and the scaled results can have."""
    sums = conv.size(conv.channels) * math.prod(t.pieces for t in tilings)
    image = _transformed(conv.image.dtype, [t.form.input for t in tilings])
    weights = _transformed(conv.weights.dtype, [t.form.filter for t in tilings])
    products = [int(v * u * sums) for v, u in zip(image, weights, strict=True)]
    rows = reduce(np.kron, (np.abs(as_array(t.form.output, object)) for t in tilings))
    results = rows @ np.array(products, object)
    return Ranges(max(image), max(weights), max(products), int(max(results)))


def _transformed(dtype: str, matrices: Sequence[Matrix]) -> list[int]:
    """The largest absolute value in each place of a transform of integers of a type."""
    low, high = dtype_info(dtype).integer_range
    rows = reduce(np.kron, (as_array(matrix, object) for matrix in matrices))
    above, below = np.where(rows > 0, rows, 0), np.where(rows < 0, rows, 0)
    most, least = (above * high + below * low).sum(1), (above * low + below * high).sum(1)
    return [int(max(a, -b)) for a, b in zip(most, least, strict=True)]


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


def as_array(matrix: Matrix, dtype: Any) -> Array:
    """A matrix of rationals: as it is (``object``), or of a type."""
    found = np.array(matrix, object)
    if np.issubdtype(np.dtype(dtype), np.integer):
        return np.array([[int(x) for x in row] for row in matrix], dtype)
    return found if dtype is object or np.dtype(dtype) == object else found.astype(dtype)


def _applied(matrix: Matrix, array: Array, axis: int) -> Array:
    """A matrix times the vectors along an axis, in the array's arithmetic."""
    rows = as_array(matrix, array.dtype)
    return np.moveaxis(np.tensordot(rows, array, (1, axis)), 0, axis)


def _cut(image: Array, axis: int, tiling: Tiling) -> Array:
    """An axis of the image as three: piece of the filter, tile, place in the tile's inputs."""
    form, window = tiling.form, tiling.window
    step = window.stride * form.outputs
    last = tiling.first(tiling.count - 1, tiling.pieces - 1) + form.multiplications
    whole = with_zeros(image, axis, -window.first, last - window.first)
    pieces = np.arange(tiling.pieces)[:, None, None] * form.taps
    places = np.arange(tiling.count)[:, None] * step + np.arange(form.multiplications)
    return np.take(whole, pieces + places, axis)
