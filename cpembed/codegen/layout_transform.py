"""Layout transforms: how an operand is packed and unpacked, as a plan.

Their text is written by :mod:`~cpembed.codegen.packing`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property

from cpembed.codegen.im2col_packing import Im2colPacking
from cpembed.codegen.transposition import Blocks
from cpembed.ir.index import IndexExpr, IndexTerm
from cpembed.transform.index_algebra import simplify
from cpembed.transform.program import PackedOperand

_INNER_ELEMENTS = 64
"""Elements of a row at least: what is copied between two decodings of a row number."""
_COPIED_ELEMENTS = 2**14
"""Elements of a row at most where a row is a copy of several runs: finding out where a row is, and
whether it is inside, takes as long as copying a few lines."""
_ROW_ELEMENTS = 2**15
"""Elements of a row at most where a row is to hold a transposition: what stays in a near cache."""
UNROLLED = 8
"""An innermost loop of so few steps is unrolled, so that the loop around it is vectorised."""

ORIGINAL, PACKED = "Original", "Packed"
"""Names of the buffers in the text."""


class Direction(Enum):
    PACK = "pack"
    UNPACK = "unpack"


@dataclass(frozen=True)
class LayoutTransform:
    """An operand with identifiers for its packed dimensions.

    The first ``rows`` dimensions are walked as one row number; ``order`` are the others in loop
    order, outermost first.
    """

    operand: PackedOperand
    names: tuple[str, ...]
    source: tuple[IndexExpr, ...]
    rows: int
    order: tuple[str, ...]
    base: IndexExpr = field(default_factory=IndexExpr)
    """Where the packed operand begins in its buffer."""
    packed: str = PACKED
    windows: Im2colPacking | None = None
    """The order of the elements of a row, where they are digits of one number."""

    @property
    def row_count(self) -> int:
        return math.prod(self.operand.shape[: self.rows])

    @property
    def extents(self) -> dict[str, int]:
        return dict(zip(self.names, self.operand.shape, strict=True))

    @cached_property
    def packed_index(self) -> IndexExpr:
        """Into the flat packed buffer."""
        pairs = zip(self.names, self.operand.strides, strict=True)
        return IndexExpr.of([IndexTerm(name, stride) for name, stride in pairs]) + self.base

    @property
    def packed_element(self) -> str:
        return f"{self.packed}[{self.packed_index}]"

    @cached_property
    def original_index(self) -> IndexExpr:
        """Into the flat original. Digits that are neighbours there, of one packed dimension, are
        one term: what is copied is then seen to be contiguous."""
        total = IndexExpr()
        step = 1
        for index, size in reversed(
            list(zip(self.source, self.operand.original_shape, strict=True))
        ):
            total = (
                IndexExpr.of([t.times(step) for t in index.terms], index.constant * step) + total
            )
            step *= size
        return simplify(total, self.extents)

    @property
    def original_element(self) -> str:
        return f"{ORIGINAL}[{self.original_index}]"

    def bounds(self) -> tuple[list[str], dict[str, tuple[int, int]], list[str]]:
        """What keeps a transform inside the original shape: conditions on the row, ranges of single
        loops, and conditions on an element for what neither expresses."""
        extents = self.extents
        of_row: list[str] = []
        ranges: dict[str, tuple[int, int]] = {}
        of_element: list[str] = []
        for index, size in zip(self.source, self.operand.original_shape, strict=True):
            low, high = index.bounds(extents)
            if low >= 0 and high < size:
                continue
            name, divisor = self._leading_digit(index)
            if name in self.order and name not in ranges:
                first = max(0, -index.constant) * divisor
                end = min(extents[name], (size - index.constant) * divisor)
                ranges[name] = (first, max(first, end))
                continue
            conditions = (
                of_row if set(index.iterators) <= set(self.names[: self.rows]) else (of_element)
            )
            conditions += [f"{index} >= 0"] if low < 0 else []
            conditions += [f"{index} < {size}"] if high >= size else []
        return of_row, ranges, of_element

    @property
    def copies(self) -> bool:
        """Whether neighbours stay neighbours."""
        moving = [name for name, extent in self.extents.items() if extent > 1]
        last = moving[-1] if moving else self.names[-1]
        along = [t for t in self.original_index.terms if last in t.iterators]
        return [(t.is_affine, t.coefficient) for t in along] == [(True, 1)]

    def sides(self) -> tuple[str, str] | None:
        """The loops along which the packed layout and the original are contiguous, of a transform
        that is a transposition: other loops, and every element at a place that needs no
        division."""
        if len(self.order) < 2:
            return None
        packed, original = self.names[-1], self.order[-1]
        affine = all(term.is_affine for term in self.original_index.terms)
        one = self.original_index.coefficient(original) == 1
        if packed not in self.order or packed == original or not (affine and one):
            return None
        return packed, original

    @staticmethod
    def _leading_digit(index: IndexExpr) -> tuple[str | None, int]:
        """The iterator and divisor of ``iterator // divisor + constant``."""
        if len(index.terms) == 1:
            (term,) = index.terms
            if term.inner is None and term.coefficient == 1 and term.modulus is None:
                return term.iterator, term.divisor
        return None, 1


def blocks_of(transform: LayoutTransform, direction: Direction) -> Blocks | None:
    """Of a transposition in vector registers; None where there is none, or a small one."""
    sides = transform.sides()
    _, ranges, of_element = transform.bounds()
    if sides is None or of_element:
        return None
    packed, original = (range_of(transform, ranges, name) for name in sides)
    rows, columns = (packed, original) if direction is Direction.PACK else (original, packed)
    return Blocks.of(rows[1] - rows[0], columns[1] - columns[0], transform.operand.dtype)


def range_of(
    transform: LayoutTransform, ranges: Mapping[str, tuple[int, int]], name: str
) -> tuple[int, int]:
    return ranges.get(name, (0, transform.extents[name]))


def plan_transform(operand: PackedOperand) -> LayoutTransform:
    """A row ends where it holds enough elements, and takes in the dimension that walks the
    original's last one where that is not far: then a transposition stays within a row."""
    names = tuple(f"d{number}" for number in range(len(operand.dimensions)))
    renamed = {d.name: name for d, name in zip(operand.dimensions, names, strict=True)}
    extents = dict(zip(names, operand.shape, strict=True))
    source = tuple(
        simplify(index.rename(lambda name: renamed[name]), extents) for index in operand.source
    )
    windows = Im2colPacking.of(extents, source, operand.original_shape)
    if windows is not None and windows.walked[0] != names[0]:
        first = names.index(windows.walked[0])
        return LayoutTransform(operand, names, source, first, names[first:], windows=windows)
    rows = len(names)
    while rows > 1 and math.prod(operand.shape[rows:]) < _INNER_ELEMENTS:
        rows -= 1
    rows = min(rows, len(names) - 1)
    while rows > 1 and math.prod(operand.shape[rows - 1 :]) <= _COPIED_ELEMENTS:
        longer = LayoutTransform(operand, names, source, rows - 1, names[rows - 1 :])
        if not longer.copies or longer.bounds()[2]:
            break
        rows -= 1
    order = list(names[rows:])
    last = source[-1].terms if source else ()
    steps = [t.iterator for t in last if t.is_affine and t.coefficient == 1]
    near = steps[0] if len(steps) == 1 else None
    if near in names[:-1]:
        place = min(rows, names.index(near))
        if math.prod(operand.shape[place:]) <= _ROW_ELEMENTS and place > 0:
            rows = place
            inner = operand.shape[-1] if operand.shape[-1] <= UNROLLED else 0
            order = [name for name in names[rows:] if name != near]
            order.insert(len(order) - 1 if inner else len(order), near)
    return LayoutTransform(operand, names, source, rows, tuple(order))
