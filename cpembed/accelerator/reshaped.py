"""Tensors that programs of one chain have in several shapes, with elements in the same order.

A reshape moves nothing: its input and its result are one tensor. Claims and statements of a longer
program name its elements in one shape, the *coarse* one, of which the dimensions of every other one
are parts; there, every index is a sum of multiples. Rows on chip that suit several shapes are found
in the *fine* one, whose dimensions are parts of those of all others.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from cpembed.accelerator.layouts import LayoutDigit, RowLayout
from cpembed.ir.index import IndexExpr

Shape = tuple[int, ...]


def _inner_sizes(shape: Sequence[int]) -> list[int]:
    """Return the number of elements inside of each dimension, and of all, innermost first."""
    sizes = [1]
    for size in reversed(shape):
        sizes.append(sizes[-1] * size)
    return sizes


def coarse_shape(shapes: Sequence[Shape]) -> Shape:
    """Return the shape with the most dimensions each of which consists of whole ones of others.

    Parameters
    ----------
    shapes : sequence of tuple of int
        Shapes with equally many elements.

    Examples
    --------
    >>> coarse_shape([(4, 32, 8), (128, 8)]), coarse_shape([(6, 4), (3, 8)])
    ((128, 8), (24,))
    """
    if len(set(shapes)) == 1:
        return shapes[0]
    common = set(_inner_sizes(shapes[0])).intersection(*(_inner_sizes(s) for s in shapes[1:]))
    sizes = sorted(common)
    pairs = itertools.pairwise(sizes)
    return tuple(after // before for before, after in pairs)[::-1] or (1,)


def fine_shape(shapes: Sequence[Shape]) -> Shape | None:
    """Return the shape with the fewest dimensions of which those of all others consist.

    Parameters
    ----------
    shapes : sequence of tuple of int
        Shapes with equally many elements.

    Returns
    -------
    tuple of int or None
        None if there is none, or if there is one element only.

    Examples
    --------
    >>> fine_shape([(4, 32, 8), (128, 8)]), fine_shape([(32, 128), (32, 4, 32)])
    ((4, 32, 8), (32, 4, 32))
    """
    sizes = sorted({n for shape in shapes for n in _inner_sizes(shape)})
    pairs = list(itertools.pairwise(sizes))
    if not pairs or any(after % before for before, after in pairs):
        return None
    return tuple(after // before for before, after in pairs)[::-1]


def index_in(index: Sequence[IndexExpr], shape: Shape, coarse: Shape) -> tuple[IndexExpr, ...]:
    """Return the index in a coarse shape of the element at an index of one of its parts.

    Parameters
    ----------
    index : sequence of IndexExpr
        Index along each dimension of ``shape``.
    shape, coarse : tuple of int
    """
    inner = _inner_sizes(shape)[-2::-1]
    ends = _inner_sizes(coarse)
    result: list[IndexExpr] = []
    for low, high in itertools.pairwise(ends):
        total = IndexExpr()
        for position, size, extent in zip(index, inner, shape, strict=True):
            # Dimensions of size 1 have index 0.
            if low <= size < high and extent > 1:
                total += position.times(size // low)
        result.append(total)
    # Dimensions of size 1 of the coarse shape have no elements inside that others do not have.
    return tuple(reversed(result))


@dataclass(frozen=True)
class FineDimension:
    """Dimension of a fine shape as a digit of a user's: ``(index // divisor) % modulus``."""

    dimension: int
    divisor: int
    modulus: int | None


def fine_dimensions(shape: Shape, fine: Shape) -> list[FineDimension]:
    """Return the digit of a shape that each dimension of the fine shape is."""
    inner = _inner_sizes(shape)[-2::-1]
    digits: list[FineDimension] = []
    for size, extent in zip(_inner_sizes(fine)[-2::-1], fine, strict=True):
        dimension = max(
            d for d, (low, n) in enumerate(zip(inner, shape, strict=True)) if low <= size < low * n
        )
        divisor = size // inner[dimension]
        is_outermost = divisor * extent == shape[dimension]
        digits.append(FineDimension(dimension, divisor, None if is_outermost else extent))
    return digits


def layout_in(layout: RowLayout, shape: Shape, fine: Shape) -> RowLayout | None:
    """Return a layout of the fine shape in the dimensions of another one; None if it has none.

    Parameters
    ----------
    layout : RowLayout
        Layout of a tensor of shape ``fine``.
    shape, fine : tuple of int
    """
    dimensions = fine_dimensions(shape, fine)
    converted: list[tuple[LayoutDigit, ...]] = []
    for digits in (layout.rows, layout.lanes):
        part: list[LayoutDigit] = []
        for digit in digits:
            in_shape = _composed(digit, dimensions[digit.dimension], fine[digit.dimension])
            if in_shape is None:
                return None
            part.append(in_shape)
        converted.append(_joined(part))
    rows, lanes = converted
    return RowLayout(layout.memory, rows, lanes, layout.count, layout.base)


def _composed(digit: LayoutDigit, part: FineDimension, extent: int) -> LayoutDigit | None:
    """Return a digit of a digit of extent ``extent``; None if it is none."""
    modulus = digit.modulus
    if part.modulus is not None:
        if modulus is None:
            if extent % digit.divisor:
                return None
            modulus = extent // digit.divisor
        elif extent % (digit.divisor * modulus):
            return None
    return LayoutDigit(part.dimension, digit.stride, part.divisor * digit.divisor, modulus)


def _joined(digits: Sequence[LayoutDigit]) -> tuple[LayoutDigit, ...]:
    """Return digits of which those that continue each other are one."""
    joined: list[LayoutDigit] = []
    for digit in sorted(digits, key=lambda d: (d.dimension, d.divisor)):
        last = joined[-1] if joined else None
        if (
            last is not None
            and last.modulus is not None
            and last.dimension == digit.dimension
            and last.divisor * last.modulus == digit.divisor
            and last.stride * last.modulus == digit.stride
        ):
            modulus = None if digit.modulus is None else last.modulus * digit.modulus
            joined[-1] = LayoutDigit(digit.dimension, last.stride, last.divisor, modulus)
        else:
            joined.append(digit)
    return tuple(joined)
