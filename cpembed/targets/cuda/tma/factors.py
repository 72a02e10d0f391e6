"""A factor of a product in global memory: its layouts, and the coordinates of all of its elements.

Coordinates are numbers here, not expressions: what TMA can load is decided by looking at all rows
and at all of the depth (:mod:`cpembed.targets.cuda.tma.views`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from cpembed.errors import LoweringError
from cpembed.ir.dtypes import size_bytes
from cpembed.ir.index import IndexExpr, IndexTerm
from cpembed.targets.cuda.lower import (
    GlobalOperand,
    TiledProduct,
    global_operand,
    in_original,
    loop_digits,
    original_access,
)
from cpembed.transform.index_algebra import simplify
from cpembed.transform.program import Loop, PackedDimension, PackedOperand

Numbers = NDArray[np.int64]

PACKED_ROW_BYTES = 128
"""Bytes of the depth that are contiguous in a packed factor, the longest row of an image."""


def flattened(loops: Sequence[Loop]) -> IndexExpr:
    """Return the number of a point of loops, outermost first."""
    terms: list[IndexTerm] = []
    inner = 1
    for loop in reversed(loops):
        terms.append(IndexTerm(loop.name, inner))
        inner *= loop.extent
    return IndexExpr.sum(reversed(terms))


def index_digits(number: IndexExpr, loops: Sequence[Loop]) -> dict[str, IndexExpr]:
    """Return the values of loops at a number that counts their points, as :func:`loop_digits`."""
    return loop_digits(number, loops, _index_digit)


def _index_digit(number: IndexExpr, divisor: int, modulus: int | None) -> IndexExpr:
    return IndexExpr((IndexTerm.digit(number, divisor=divisor, modulus=modulus),))


def digit_values(numbers: Numbers, loops: Sequence[Loop]) -> dict[str, Numbers]:
    """Return the values of loops at numbers that count their points, as :func:`loop_digits`."""
    return loop_digits(numbers, loops, _numeric_digit)


def _numeric_digit(numbers: Numbers, divisor: int, modulus: int | None) -> Numbers:
    digit = numbers // divisor
    return digit if modulus is None else digit % modulus


@dataclass(frozen=True)
class FactorAccess:
    """A factor with a layout: how the coordinates of its elements follow from rows and depth.

    The coordinate in each dimension is a constant, plus a part that follows from the number of the
    element's row, plus a part that follows from its number along the depth, plus one of the batch.
    """

    product: TiledProduct
    number: int
    """0 for the first factor, 1 for the second."""
    operand: GlobalOperand
    zero_padded: bool = False
    """True if memory holds zeros beyond the depth."""

    def __post_init__(self) -> None:
        groups = [self.names(group) for group in ("batch", "rows", "depth")]
        for index in self.operand.layout.access:
            for term in index.terms:
                if sum(not group.isdisjoint(term.iterators) for group in groups) > 1:
                    raise LoweringError(f"{term.text()} mixes rows, depth or batch")

    def names(self, group: str) -> frozenset[str]:
        """Return the iterators of the batch, of rows or of the depth."""
        product = self.product
        loops = {"batch": product.batch, "rows": self.row_loops, "depth": self.depth_loops}[group]
        axes = {"batch": (), "rows": (self.row_axis,), "depth": (self.depth_axis,)}[group]
        return frozenset((*(loop.name for loop in loops), *axes))

    @property
    def row_loops(self) -> tuple[Loop, ...]:
        return self.product.columns if self.number else self.product.rows

    @property
    def row_axis(self) -> str:
        """Instruction axis of rows; of columns for the second factor."""
        return self.product.axes[self.number]

    @property
    def tile_rows(self) -> int:
        """Number of rows of an instruction tile."""
        instruction = self.product.instruction
        return instruction.n if self.number else instruction.m

    @property
    def depth_loops(self) -> tuple[Loop, ...]:
        return self.product.depth

    @property
    def depth_axis(self) -> str:
        return self.product.axes[2]

    @property
    def tile_depth(self) -> int:
        """Number of elements of an instruction tile along the depth."""
        return self.product.instruction.k

    @property
    def tile_counts(self) -> tuple[int, int]:
        """Number of instruction tiles along rows and depth."""
        _, rows, columns, depth = self.product.tiles
        return columns if self.number else rows, depth

    @property
    def elements_deep(self) -> int:
        """Number of elements along the depth."""
        return self.tile_counts[1] * self.tile_depth

    @property
    def element_bytes(self) -> int:
        return size_bytes(self.operand.layout.dtype)

    @cached_property
    def constants(self) -> tuple[int, ...]:
        """Coordinates of the first element."""
        zeros = dict.fromkeys(self.product.program.extents, 0)
        return tuple(int(index.evaluate(zeros)) for index in self.operand.layout.access)

    def row_parts(self, tiles: int) -> Numbers:
        """Return the part of each coordinate that follows from rows: dimensions by rows.

        The rows are those of whole groups of ``tiles`` instruction tiles.
        """
        count = -(-self.tile_counts[0] // tiles) * tiles
        return self._parts(self.row_loops, self.row_axis, self.tile_rows, count)

    def depth_parts(self, tiles: int, beyond: int = 0) -> Numbers:
        """Return the part of each coordinate that follows from the depth, as :meth:`row_parts`.

        ``beyond`` is a number of instruction tiles beyond the depth.
        """
        count = -(-(self.tile_counts[1] + beyond) // tiles) * tiles
        return self._parts(self.depth_loops, self.depth_axis, self.tile_depth, count)

    def _parts(self, loops: Sequence[Loop], axis: str, extent: int, tiles: int) -> Numbers:
        elements = np.arange(tiles * extent, dtype=np.int64)
        values: dict[str, int | Numbers] = {
            **dict.fromkeys(self.product.program.extents, 0),
            **digit_values(elements // extent, loops),
            axis: elements % extent,
        }
        parts = [
            np.broadcast_to(index.evaluate(values) - constant, elements.shape)
            for index, constant in zip(self.operand.layout.access, self.constants, strict=True)
        ]
        return np.array(parts, np.int64).reshape(len(parts), elements.size)

    def at_tile(self, index: IndexExpr) -> IndexExpr:
        """Return an index at the first element of an instruction tile, over the product's loops."""
        product = self.product
        loops = {loop.name for loop in (*product.batch, *self.row_loops, *self.depth_loops)}
        zeros = {name: IndexExpr() for name in product.program.extents if name not in loops}
        moved = index.substitute(zeros)
        # A digit of nothing is a number.
        constant = sum(term.evaluate({}) for term in moved.terms if not term.iterators)
        terms = [term for term in moved.terms if term.iterators]
        return simplify(IndexExpr.sum(terms, moved.constant + constant), product.program.extents)

    @cached_property
    def stored_rows(self) -> int:
        """Number of rows whose results are stored, if they come first; else the number of rows."""
        output, rows = self.product.output, self.names("rows")
        parts = FactorAccess(self.product, self.number, output).row_parts(1)
        inside = np.ones(parts.shape[1], np.bool_)
        for index, part, size in zip(output.layout.access, parts, output.layout.shape, strict=True):
            # Only where nothing else moves a coordinate is it outside whatever the column is.
            if rows.issuperset(index.iterators):
                coordinate = part + index.constant
                inside &= (coordinate >= 0) & (coordinate < size)
        count = int(np.count_nonzero(inside))
        return count if inside[:count].all() else inside.size


def accesses(product: TiledProduct, number: int) -> tuple[FactorAccess, ...]:
    """Return a factor with each of its layouts: as it is, those of the product, and packed.

    The packed one is that of :func:`packed_image`.
    """
    factors = (product.first, product.second)[number]
    original = in_original(_role(product, number), range(len(factors[0].layout.original_shape)))
    packed = packed_image(product, number)
    max_length = max(factor.length for factor in factors)
    in_place, image = (
        global_operand(layout, product.program, product.axes[2], max_length)
        for layout in (original, packed)
    )
    rest = [factor for factor in factors if factor != in_place]
    return (
        *(FactorAccess(product, number, operand) for operand in (in_place, *rest)),
        FactorAccess(product, number, image, zero_padded=True),
    )


def _role(product: TiledProduct, number: int) -> PackedOperand:
    operand = product.program.instruction.computation.operands[number]
    return product.program.role(operand.name)


def packed_image(product: TiledProduct, number: int) -> PackedOperand:
    """Return the layout of a factor of which each image is one box, whatever the schedule is.

    Rows of 128 bytes along the depth are stored one after the other for all rows, then those of the
    next 128 bytes. Rows and bytes beyond the factor are zeros.
    """
    operand = _role(product, number)
    access = FactorAccess(product, number, (product.first, product.second)[number][0])
    (tiles, deep), batch = access.tile_counts, product.tiles[0]
    length = PACKED_ROW_BYTES // size_bytes(operand.dtype)
    extents = (batch, -(-deep * access.tile_depth // length), tiles * access.tile_rows, length)
    names = tuple(f"d{place}" for place in range(4))
    row = IndexExpr.iterator(names[2])
    element = IndexExpr.sum([IndexTerm(names[1], length), IndexTerm(names[3])])
    tile_rows, tile_depth = access.tile_rows, access.tile_depth
    values = {
        **dict.fromkeys(product.program.extents, IndexExpr()),
        **index_digits(IndexExpr.iterator(names[0]), product.batch),
        **index_digits(IndexExpr((IndexTerm(names[2], divisor=tile_rows),)), access.row_loops),
        **index_digits(IndexExpr((IndexTerm.digit(element, divisor=tile_depth),)), product.depth),
        access.row_axis: IndexExpr((IndexTerm.digit(row, modulus=tile_rows),)),
        product.axes[2]: IndexExpr((IndexTerm.digit(element, modulus=tile_depth),)),
    }
    sizes = dict(zip(names, extents, strict=True))
    source = [index.substitute(values) for index in original_access(operand)]
    total = deep * tile_depth
    if total % length:
        # Beyond the depth a coordinate is outside: what is packed there is zero.
        beyond = IndexExpr((IndexTerm.digit(element, divisor=total),))
        low, _ = source[0].bounds(sizes)
        source[0] = source[0] + beyond.times(operand.original_shape[0] - low)
    rows = flattened(access.row_loops).times(tile_rows) + IndexExpr.iterator(access.row_axis)
    depth = flattened(product.depth).times(tile_depth) + IndexExpr.iterator(product.axes[2])
    return replace(
        operand,
        dimensions=tuple(PackedDimension(name, size) for name, size in sizes.items()),
        source=tuple(simplify(index, sizes) for index in source),
        access=(
            flattened(product.batch),
            IndexExpr((IndexTerm.digit(depth, divisor=length),)),
            rows,
            IndexExpr((IndexTerm.digit(depth, modulus=length),)),
        ),
    )
