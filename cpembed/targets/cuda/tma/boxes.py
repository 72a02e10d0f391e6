"""Dimensions of tensor maps: boxes of digits, and images that rows walk through.

Coordinates are numbers, over all rows or over all of the depth of a factor; what a copy can do with
them is read off.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cpembed.errors import LoweringError
from cpembed.ir.index import IndexExpr, IndexTerm
from cpembed.targets.cuda.tma.factors import FactorAccess, Numbers, flattened
from cpembed.targets.cuda.tma.tensor_maps import (
    MAX_BOX,
    MAX_ELEMENT_STRIDE,
    MAX_RANK,
    Im2colBox,
    TensorMap,
    TiledBox,
)


def chunk_steps(parts: Numbers, length: int, valid: int) -> Numbers:
    """Return the steps from the first element of a chunk to each of its elements.

    Parameters
    ----------
    parts
        Coordinates, by dimension and element.
    length
        Number of elements of a chunk.
    valid
        Number of elements that count; those after them can be anything.

    Raises
    ------
    LoweringError
        If the steps differ from chunk to chunk.
    """
    dimensions, count = parts.shape
    chunks = parts.reshape(dimensions, count // length, length)
    steps = chunks - chunks[:, :, :1]
    if valid >= length:
        expected = steps[:, :1]
        same = (steps == expected).all(axis=0).reshape(-1)
        if not same[:valid].all():
            raise LoweringError(f"{length} elements in a row are not the same box everywhere")
        return np.ascontiguousarray(steps[:, 0])
    # Elements that do not count decide how the only chunk goes on.
    if count != length:
        raise LoweringError(f"{valid} elements in a row are fewer than a box of {length}")
    return np.ascontiguousarray(steps[:, 0])


def chunk_digits(steps: Numbers) -> list[tuple[int, Numbers]]:
    """Return extents, innermost first, and steps in each dimension, of a chunk's digits.

    Raises :class:`LoweringError` if the coordinates are not linear in any digits.
    """
    digits: list[tuple[int, Numbers]] = []
    rest = steps
    while rest.shape[1] > 1:
        step = rest[:, 1]
        count = rest.shape[1]
        expected: Numbers = step[:, None] * np.arange(count, dtype=np.int64)
        bent = np.nonzero((rest != expected).any(axis=0))[0]
        run = int(bent[0]) if bent.size else count
        extent = next(n for n in range(run, 0, -1) if count % n == 0)
        groups = rest.reshape(rest.shape[0], -1, extent)
        if (
            extent == 1
            or not (groups - groups[:, :, :1] == groups[:, :1] - groups[:, :1, :1]).all()
        ):
            raise LoweringError(f"{steps.shape[1]} elements in a row are no box")
        digits.append((extent, step))
        rest = groups[:, :, 0]
    return digits


@dataclass(kw_only=True)
class MapDimension:
    """A dimension of a tensor map while it is put together."""

    size: int
    stride: int
    """Elements between neighbours."""
    coordinate: IndexExpr
    extent: int = 1
    """Number of elements of the box."""
    step: int = 1
    place: int | None = None
    """Dimension of the operand; None if it is a part of one, or several."""
    is_checked: bool = False
    """True if coordinates of the program are outside."""

    @property
    def is_part(self) -> bool:
        """True if the dimension is a digit of one of the operand's, or of several."""
        return self.place is None and self.extent > 1

    @property
    def is_needed(self) -> bool:
        return self.is_checked or self.coordinate != IndexExpr()


def map_dimensions(access: FactorAccess) -> list[MapDimension]:
    """Return the operand's dimensions, outermost first, at the first element of a tile."""
    operand = access.operand
    layout = operand.layout
    return [
        MapDimension(
            size=size,
            stride=stride,
            coordinate=access.at_tile(index),
            place=place,
            is_checked=place in operand.checked,
        )
        for place, (size, stride, index) in enumerate(
            zip(layout.shape, layout.strides, layout.access, strict=True)
        )
    ]


def box_dimensions(
    access: FactorAccess, row: int, digits: Sequence[tuple[int, Numbers]]
) -> list[MapDimension]:
    """Return the dimensions of a tiled map: a contiguous row, digits, and all that is left.

    Parameters
    ----------
    access
        Factor whose elements are copied.
    row
        Number of contiguous elements.
    digits
        Extents and steps of the digits of :func:`chunk_digits`.

    Raises
    ------
    LoweringError
        If a digit cannot be a dimension.
    """
    *outer, innermost = map_dimensions(access)
    innermost.extent = row
    moved = [_digit_dimension(outer, extent, step) for extent, step in digits]
    rest = [
        dimension
        for dimension in reversed(outer)
        if dimension.is_needed and not any(dimension is digit for digit in moved)
    ]
    if 1 + len(moved) + len(rest) > MAX_RANK:
        rest = _joined(rest)
    return [innermost, *moved, *rest]


def _digit_dimension(outer: Sequence[MapDimension], extent: int, step: Numbers) -> MapDimension:
    """Return the dimension of a digit: the operand's own, or one more that begins at zero."""
    moved = [int(place) for place in np.nonzero(step)[0]]
    if not moved:
        raise LoweringError("rows of an image repeat")
    if moved[-1] >= len(outer):
        raise LoweringError("rows of an image are not in a dimension of their own")
    dimension, distance = outer[moved[0]], int(step[moved[0]])
    fits = 1 <= distance <= MAX_ELEMENT_STRIDE and extent * distance <= MAX_BOX
    if len(moved) == 1 and fits and dimension.extent == 1:
        dimension.extent, dimension.step = extent, distance
        return dimension
    if any(outer[place].is_checked for place in moved):
        raise LoweringError("rows of an image move as no box does, where elements are outside")
    for place in moved:
        # Sums of the two dimensions' coordinates stay inside of the operand.
        outer[place].size -= (extent - 1) * abs(int(step[place]))
        if outer[place].size < 1:
            raise LoweringError("rows of an image are not all inside")
    stride = sum(int(step[place]) * outer[place].stride for place in moved)
    return MapDimension(size=extent, stride=stride, coordinate=IndexExpr(), extent=extent)


def _joined(dimensions: Sequence[MapDimension]) -> list[MapDimension]:
    """Join the dimensions in which a copy does not move and nothing is outside to a single one."""
    checked = [dimension for dimension in dimensions if dimension.is_checked]
    free = [dimension for dimension in dimensions if not dimension.is_checked]
    if not free:
        return checked
    stride = math.gcd(*(dimension.stride for dimension in free))
    total = IndexExpr()
    for dimension in free:
        total = total + dimension.coordinate.times(dimension.stride // stride)
    size = 1 + sum((d.size - 1) * (d.stride // stride) for d in free)
    return [*checked, MapDimension(size=size, stride=stride, coordinate=total)]


def tiled_map(access: FactorAccess, dimensions: Sequence[MapDimension]) -> TensorMap:
    """Return the map of a box; raises :class:`LoweringError` if the driver does not encode it."""
    size = access.element_bytes
    return TensorMap(
        dtype=access.operand.layout.dtype,
        global_dims=tuple(dimension.size for dimension in dimensions),
        global_strides=tuple(dimension.stride * size for dimension in dimensions[1:]),
        element_strides=tuple(dimension.step for dimension in dimensions),
        box=TiledBox(tuple(dimension.extent * dimension.step for dimension in dimensions)),
        swizzle=dimensions[0].extent * size,
    )


@dataclass(frozen=True)
class WalkDigit:
    """A dimension that rows walk through.

    ``period`` rows have the same coordinate, then it moves by ``step``; after ``count`` steps it
    begins again.
    """

    place: int
    step: int
    period: int
    count: int


def walk_digits(parts: Numbers, stored: int) -> list[WalkDigit]:
    """Return the dimensions that rows walk through with carries, innermost first.

    Raises :class:`LoweringError` if they move otherwise. Only rows below ``stored`` count.
    """
    parts = parts[:, :stored]
    moved = [int(place) for place in np.nonzero((parts != parts[:, :1]).any(axis=1))[0]]
    periods = {place: int(np.argmax(parts[place] != parts[place][0])) for place in moved}
    order = sorted(moved, key=lambda place: periods[place])
    if not order or periods[order[0]] != 1:
        raise LoweringError("rows of an image repeat")
    number: Numbers = np.arange(parts.shape[1], dtype=np.int64)
    walk = list[WalkDigit]()
    for place, outer in itertools.zip_longest(order, order[1:]):
        period = periods[place]
        # The outermost dimension takes as many steps as there are rows.
        end = stored if outer is None else periods[outer]
        count = -(-end // period)
        step = int(parts[place][period] - parts[place][0])
        if outer is not None and end % period:
            raise LoweringError("rows of an image do not carry from dimension to dimension")
        if not np.array_equal(parts[place] - parts[place][0], number // period % count * step):
            raise LoweringError("rows of an image do not walk evenly")
        walk.append(WalkDigit(place, step, period, count))
    return walk


@dataclass(frozen=True)
class Image:
    """Im2col mode: channels along the depth, rows that walk through an image, then images."""

    access: FactorAccess
    row: int
    """Number of channels of a pixel that are copied."""
    digits: Sequence[WalkDigit]

    def dimensions(self) -> list[MapDimension]:
        """Return the dimensions of the map: channels, those of an image, images.

        Raises :class:`LoweringError` if they are none of an image.
        """
        *outer, channels = map_dimensions(self.access)
        if any(digit.place == len(outer) for digit in self.digits):
            raise LoweringError("rows of an image move within a pixel")
        still = self._still(outer, channels)
        walk = list(self.digits)
        if still:
            images = still[0]
        elif walk[-1].step == 1 and len(walk) > 1:
            # Images have neither steps nor corners: the outermost dimension can be theirs.
            digit = walk.pop()
            images = outer[digit.place]
            images.coordinate = self._position(digit) + self._rest(digit.place)
        else:
            images = MapDimension(size=1, stride=channels.size, coordinate=IndexExpr())
        if len(still) > 1 or len(walk) > MAX_RANK - 2:
            raise LoweringError(f"{len(self.digits)} and {len(still)} dimensions are no image")
        for digit in walk:
            dimension = outer[digit.place]
            dimension.step = digit.step
            dimension.coordinate = self._position(digit) + self._corner(digit.place)
        return [channels, *(outer[digit.place] for digit in walk), images]

    def tensor_map(
        self, dimensions: Sequence[MapDimension], pixels: int
    ) -> tuple[TensorMap, tuple[IndexExpr, ...]]:
        """Return the map of dimensions, and the offsets of a filter, which begin at zero."""
        lower, upper, offsets = list[int](), list[int](), list[IndexExpr]()
        batch = {loop.name for loop in self.access.product.batch}
        walk = self.digits[: len(dimensions) - 2]
        parts = self.access.depth_parts(1)
        for digit in walk:
            corner, rest = self._corner(digit.place), self._rest(digit.place)
            if not batch.isdisjoint(rest.iterators):
                raise LoweringError("a batch moves the pixels of an image")
            size = self.access.operand.layout.shape[digit.place]
            lower.append(corner)
            upper.append(corner + (digit.count - 1) * digit.step - (size - 1))
            offsets.append(rest + -corner)
        size = self.access.element_bytes
        tensor_map = TensorMap(
            dtype=self.access.operand.layout.dtype,
            global_dims=tuple(dimension.size for dimension in dimensions),
            global_strides=tuple(dimension.stride * size for dimension in dimensions[1:]),
            element_strides=tuple(dimension.step for dimension in dimensions),
            box=Im2colBox(lower=tuple(lower), upper=tuple(upper), channels=self.row, pixels=pixels),
            swizzle=self.row * size,
        )
        limit = tensor_map.max_offset
        if any(int(np.ptp(parts[digit.place])) > limit for digit in walk):
            raise LoweringError(f"offsets of a filter are at most {limit}")
        return tensor_map, tuple(offsets)

    def _still(self, outer: Sequence[MapDimension], channels: MapDimension) -> list[MapDimension]:
        """Return the dimensions that rows do not move, joined where they can be."""
        moved = {digit.place for digit in self.digits}
        still = [d for place, d in enumerate(outer) if place not in moved and d.is_needed]
        # Groups of channels that are next to each other are one dimension.
        while still and not channels.is_checked and still[-1].stride == channels.size:
            group = still.pop()
            channels.coordinate = group.coordinate.times(group.stride) + channels.coordinate
            channels.size *= group.size
            channels.place, channels.is_checked = None, group.is_checked
        return _joined(still) if len(still) > 1 else still

    def _position(self, digit: WalkDigit) -> IndexExpr:
        """Return the part of a coordinate that follows from the first row of an image."""
        rows = flattened(self.access.row_loops).times(self.access.tile_rows)
        modulus = None if digit is self.digits[-1] else digit.count
        if modulus is None and digit.period == 1:
            return rows.times(digit.step)
        return IndexExpr(
            (IndexTerm.digit(rows, coefficient=digit.step, divisor=digit.period, modulus=modulus),)
        )

    def _rest(self, place: int) -> IndexExpr:
        """Return the part of a coordinate that does not follow from rows."""
        names = {loop.name for loop in self.access.row_loops} | {self.access.row_axis}
        index = self.access.operand.layout.access[place]
        terms = tuple(term for term in index.terms if names.isdisjoint(term.iterators))
        zeros = dict.fromkeys(self.access.product.program.extents, 0)
        start = int(IndexExpr(terms).evaluate(zeros))
        return self.access.at_tile(IndexExpr(terms, self.access.constants[place] - start))

    def _corner(self, place: int) -> int:
        """Return the smallest coordinate of the first row."""
        return self.access.constants[place] + int(self.access.depth_parts(1)[place].min())
