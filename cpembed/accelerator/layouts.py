"""Layouts of tensors: rows and lanes of a memory, or elements of main memory.

A :class:`RowLayout` says which row and lane holds an element. :func:`fit_strides` decides whether
an instruction can address a box of elements that lie in such a layout, and with which strides.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.accelerator.program import MainTensor
from cpembed.hw.instruction import TileDimension
from cpembed.hw.isa import OperandPlace, StrideSource
from cpembed.ir.index import IndexExpr, IndexTerm

Array = NDArray[Any]


@dataclass(frozen=True)
class LayoutDigit:
    """``stride * ((index // divisor) % modulus)`` of the index along one dimension."""

    dimension: int
    stride: int
    divisor: int = 1
    modulus: int | None = None


@dataclass(frozen=True)
class RowLayout:
    """Row and lane that hold each element of a box of a tensor.

    Attributes
    ----------
    memory : str
        Name of the memory.
    rows, lanes : tuple of LayoutDigit
        The row is ``base`` plus the sum of the digits in ``rows``; the lane that of ``lanes``.
        Indices count from the first element of the box.
    count : int
        Number of rows that the box occupies.
    base : int
        First row.
    """

    memory: str
    rows: tuple[LayoutDigit, ...]
    lanes: tuple[LayoutDigit, ...]
    count: int
    base: int = 0

    def row(self, index: Sequence[IndexExpr], extents: Mapping[str, int]) -> IndexExpr:
        """Return the row of the element at an index, over iterators with these extents."""
        return _weighted(self.rows, index, extents) + self.base

    def lane(self, index: Sequence[IndexExpr], extents: Mapping[str, int]) -> IndexExpr:
        """Return the lane of the element at an index, over iterators with these extents."""
        return _weighted(self.lanes, index, extents)

    def moved(self, base: int) -> RowLayout:
        """Return the same layout from another first row."""
        return replace(self, base=base)


def digit(
    index: IndexExpr, divisor: int, modulus: int | None, extents: Mapping[str, int]
) -> IndexExpr:
    """Return ``(index // divisor) % modulus``, without the operations that change nothing.

    Parameters
    ----------
    index : IndexExpr
        Nonnegative index.
    divisor : int
    modulus : int, optional
        None for no remainder.
    extents : mapping of str to int
        Extent of each iterator of the index.

    Examples
    --------
    >>> i = IndexExpr.sum([IndexTerm("g", 16), IndexTerm("i")])
    >>> str(digit(i, 16, None, {"g": 4, "i": 16})), str(digit(i, 1, 16, {"g": 4, "i": 16}))
    ('g', 'i')
    """
    if divisor > 1:
        multiples, rest = _split(index, divisor)
        low, high = rest.bounds(extents)
        if low >= 0 and high < divisor:
            index = IndexExpr.sum(
                [t.times(1, t.coefficient // divisor - t.coefficient) for t in multiples.terms],
                multiples.constant // divisor,
            )
        else:
            index = IndexExpr.sum([IndexTerm.digit(index, divisor=divisor)])
    if modulus is not None:
        _, rest = _split(index, modulus)
        low, high = rest.bounds(extents)
        if low >= 0 and high < modulus:
            return rest
        low, high = index.bounds(extents)
        if low < 0 or high >= modulus:
            index = IndexExpr.sum([IndexTerm.digit(rest, modulus=modulus)])
    return index


def _split(index: IndexExpr, divisor: int) -> tuple[IndexExpr, IndexExpr]:
    """Split an expression into multiples of a number and the remaining terms."""
    multiples = [t for t in index.terms if t.coefficient % divisor == 0]
    rest = [t for t in index.terms if t.coefficient % divisor]
    constant = index.constant % divisor
    return (
        IndexExpr.sum(multiples, index.constant - constant),
        IndexExpr.sum(rest, constant),
    )


def _weighted(
    digits: Sequence[LayoutDigit], index: Sequence[IndexExpr], extents: Mapping[str, int]
) -> IndexExpr:
    total = IndexExpr()
    for d in digits:
        total += digit(index[d.dimension], d.divisor, d.modulus, extents).times(d.stride)
    return total


def main_element(
    tensor: MainTensor, index: Sequence[IndexExpr], extents: Mapping[str, int]
) -> IndexExpr:
    """Return the place of an element in the buffer of a tensor in main memory.

    Parameters
    ----------
    tensor : MainTensor
    index : sequence of IndexExpr
        Index along each dimension.
    extents : mapping of str to int
        Extent of each iterator of the index.
    """
    padded = [e + before for e, before in zip(index, tensor.before, strict=True)]
    return _weighted(main_digits(tensor), padded, extents)


def main_digits(tensor: MainTensor) -> tuple[LayoutDigit, ...]:
    """Return the digits of a tensor's elements in main memory, its margins before them included."""
    digits: list[LayoutDigit] = []
    visited = set[int]()
    for dimension, stride in zip(tensor.order, tensor.strides, strict=True):
        block = tensor.blocks.get(dimension)
        if block is None:
            digits.append(LayoutDigit(dimension, stride))
        elif dimension in visited:
            digits.append(LayoutDigit(dimension, stride, 1, block))
        else:
            digits.append(LayoutDigit(dimension, stride, block))
        visited.add(dimension)
    return tuple(digits)


@dataclass(frozen=True)
class StrideFit:
    """Strides with which an operand reaches a box; those of registers apart.

    ``registers`` has the register of each stride that a register holds, and its value; a value of
    None says that any will do.
    """

    arguments: Mapping[str, int]
    registers: tuple[tuple[str, int | None], ...]


def fit_strides(
    place: OperandPlace,
    index: Mapping[str, Array],
    sizes: Mapping[str, int],
    target: Array,
    lanes: Array | None,
    shrinking: frozenset[str] = frozenset(),
) -> StrideFit | None:
    """Return the strides with which an operand reaches given rows and lanes; None if it cannot.

    Parameters
    ----------
    place : OperandPlace
    index : mapping of str to ndarray
        Index along each dimension of the operand, at every point of the instruction.
    sizes : mapping of str to int
        Size of each dimension.
    target : ndarray
        Row (in main memory: element), relative to the first, at every point.
    lanes : ndarray, optional
        Lane at every point, relative to the first; None in main memory.
    shrinking : frozenset of str
        Dimensions that are smaller in some executions, by which dense strides become smaller too.
    """
    if lanes is not None and not np.array_equal(_lanes(place, index, sizes), lanes):
        return None
    if lanes is None:
        digits = [(name, index[name], sizes[name]) for name in place.dimensions]
    else:
        digits = [(str(d), _value(d, index), d.size(sizes[d.axis])) for d in place.rows]
    arguments: dict[str, int] = {}
    registers: list[tuple[str, int | None]] = []
    reached = np.zeros_like(target)
    for position, (key, value, size) in enumerate(digits):
        source = place.strides.get(key, _default(position, digits, lanes is None))
        remaining = [v for k, v, _ in digits if k != key]
        needed = _needed(value, remaining, target)
        if isinstance(source, int):
            stride = source
        elif source == StrideSource.DENSE:
            stride = math.prod(size for _, _, size in digits[position + 1 :])
            inside = {name.split("/")[0].split("%")[0] for name, _, _ in digits[position + 1 :]}
            if size > 1 and not shrinking.isdisjoint(inside):
                return None
        else:
            stride = needed or 0
            if source == StrideSource.ANY:
                arguments[key] = stride
            else:
                registers.append((source, needed))
        reached = reached + stride * value
    return StrideFit(arguments, tuple(registers)) if np.array_equal(reached, target) else None


def _default(position: int, digits: Sequence[object], in_main: bool) -> int | str:
    if position == len(digits) - 1:
        return 1
    return StrideSource.ANY if in_main else StrideSource.DENSE


def _value(d: TileDimension, index: Mapping[str, Array]) -> Array:
    value = index[d.axis] // d.divisor
    return value if d.modulus is None else value % d.modulus


def _lanes(place: OperandPlace, index: Mapping[str, Array], sizes: Mapping[str, int]) -> Array:
    total: Any = np.zeros_like(next(iter(index.values()))) if index else np.zeros(())
    for d in place.lanes:
        total = total * d.size(sizes[d.axis]) + _value(d, index)
    return total


def _needed(value: Array, remaining: Sequence[Array], target: Array) -> int | None:
    """Return the target's value where one digit is 1 and the others are 0."""
    first = value == 1
    for digit_value in remaining:
        first &= digit_value == 0
    at = np.flatnonzero(first)
    return int(target.reshape(-1)[at[0]]) if at.size else None


def row_layouts(
    memory: str, sizes: Sequence[int], lanes: Sequence[tuple[int, int]], steps: Mapping[int, int]
) -> Sequence[RowLayout]:
    """List the layouts of a box, all dense, in every order of its row digits.

    Parameters
    ----------
    memory : str
        Name of the memory.
    sizes : sequence of int
        Size of the box along each dimension.
    lanes : sequence of (int, int)
        Dimensions in the lanes of a row with their blocks, outermost first.
    steps : mapping of int to int
        Distance of elements in neighbouring rows, of dimensions where it is not 1.
    """
    lane_digits: list[LayoutDigit] = []
    stride = 1
    for dimension, block in reversed(lanes):
        lane_digits.append(LayoutDigit(dimension, stride, 1, block))
        stride *= block
    blocks = dict(lanes)
    parts: list[tuple[int, int, int | None, int]] = []
    for dimension, size in enumerate(sizes):
        if dimension in blocks:
            parts.append((dimension, blocks[dimension], None, -(-size // blocks[dimension])))
        elif steps.get(dimension, 1) > 1:
            step = steps[dimension]
            parts.append((dimension, 1, step, step))
            parts.append((dimension, step, None, -(-size // step)))
        else:
            parts.append((dimension, 1, None, size))
    used = [p for p in parts if p[3] > 1]
    # Blocks of lanes outermost: neighbours along other dimensions lie in neighbouring rows.
    used.sort(key=lambda p: (p[0] not in blocks, p[2] is None))
    layouts: list[RowLayout] = []
    for order in itertools.permutations(used):
        stride, rows = 1, list[LayoutDigit]()
        for dimension, divisor, modulus, count in reversed(order):
            rows.append(LayoutDigit(dimension, stride, divisor, modulus))
            stride *= count
        layouts.append(RowLayout(memory, tuple(rows), tuple(lane_digits), stride))
    return layouts
