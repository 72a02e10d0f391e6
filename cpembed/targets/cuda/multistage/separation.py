"""Separation of a factor's addresses into what its rows and what the depth contribute.

A thread copies the same rows in every step of a kernel's loop, and all of its vectors have the same
place along the depth. Where each term of an address and of a coordinate moves with rows or with the
depth alone, the parts of rows are computed once before the loop, and the part of the depth once a
step (the iterators of CUTLASS's implicit GEMM, derived from the indices).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import numpy as np

from cpembed.ir.index import IndexExpr, IndexTerm
from cpembed.targets.cuda.lower import GlobalOperand, TiledProduct
from cpembed.transform.program import Loop

MASK_BITS = 30
"""Maximum number of bits of a row's mask; one more is set in every mask, and the sign is free."""


@dataclass(frozen=True)
class Check:
    """A dimension in which the sum of two parts may lie outside of ``0 <= sum < size``."""

    rows: IndexExpr
    depth: IndexExpr
    size: int


@dataclass(frozen=True, kw_only=True)
class Window:
    """Bits of a row's mask for a checked dimension that rows and the depth move in.

    The depth's part takes the values ``low + step * number`` for ``0 <= number < count``; the bit
    ``bit + number`` of a row's mask is set where the sum with the row's part is outside.
    """

    check: Check
    bit: int
    low: int
    step: int
    count: int


@dataclass(frozen=True, kw_only=True)
class Separation:
    """A factor's address as ``rows + depth``, and the conditions under which it is valid."""

    rows: IndexExpr
    depth: IndexExpr
    row_checks: tuple[Check, ...]
    """Dimensions that the depth does not move in."""
    depth_checks: tuple[Check, ...]
    """Dimensions that rows do not move in."""
    windows: tuple[Window, ...]

    def row_distance(self, product: TiledProduct, number: int, step: int) -> int | None:
        """Return the distance in memory of rows if it is the same for all of them.

        Parameters
        ----------
        product
            Product of the factor.
        number
            0 for the first factor, 1 for the second.
        step
            Number of rows from one to the next.
        """
        instruction, axis = product.instruction, product.axes[number]
        loops = (product.rows, product.columns)[number]
        extent = (instruction.m, instruction.n)[number]
        moving = {axis, *(loop.name for loop in loops)}
        if any(not term.is_affine and moving & set(term.iterators) for term in self.rows.terms):
            return None
        weights = [self.rows.coefficient(loop.name) for loop in loops]
        for outer, inner, loop in zip(weights, weights[1:], loops[1:], strict=False):
            if outer != inner * loop.extent:
                return None
        tile = weights[-1] if weights else 0
        if step % extent == 0:
            return tile * (step // extent)
        row = self.rows.coefficient(axis)
        # Rows of one instruction tile follow those of the tile before.
        return row * step if row * extent == tile else None


def separation_of(product: TiledProduct, number: int, layout: int) -> Separation | None:
    """Return the separation of a factor of a product in one of its layouts.

    Parameters
    ----------
    product
        Product whose kernels are generated.
    number
        0 for the first factor, 1 for the second.
    layout
        Number of its layout.
    """
    # Cached by hand in the product, of which very many schedules are estimated.
    cache: dict[tuple[int, int], Separation | None] = product.__dict__.setdefault(
        "_separations", {}
    )
    if (number, layout) not in cache:
        operand = (product.first, product.second)[number][layout]
        names = {product.axes[2], *(loop.name for loop in product.depth)}
        cache[number, layout] = separate(operand, names, product.program.extents)
    return cache[number, layout]


def separate(
    operand: GlobalOperand, depth: AbstractSet[str], extents: Mapping[str, int]
) -> Separation | None:
    """Separate a factor's address and its checks.

    Parameters
    ----------
    operand
        Factor in global memory.
    depth
        Iterators of the depth: loops and the instruction's axis.
    extents
        Extent of each iterator.

    Returns
    -------
    Separation or None
        None if a term moves with rows and the depth together, or the masks would need more than
        :data:`MASK_BITS` bits.
    """
    fixed = {name: IndexExpr() for name, extent in extents.items() if extent == 1}
    address = _split(operand.address.substitute(fixed), depth)
    if address is None:
        return None
    row_checks, depth_checks, windows = list[Check](), list[Check](), list[Window]()
    bits = 0
    for place in operand.checked:
        parts = _split(operand.layout.access[place].substitute(fixed), depth)
        if parts is None:
            return None
        check = Check(*parts, operand.layout.shape[place])
        if not check.depth.terms:
            row_checks.append(check)
        elif not check.rows.terms:
            depth_checks.append(check)
        else:
            window, limit = _window(check, bits, extents)
            windows.append(window)
            depth_checks += limit
            bits += window.count
    if bits > MASK_BITS:
        return None
    return Separation(
        rows=address[0],
        depth=address[1],
        row_checks=tuple(row_checks),
        depth_checks=tuple(depth_checks),
        windows=tuple(windows),
    )


def _window(check: Check, bit: int, extents: Mapping[str, int]) -> tuple[Window, list[Check]]:
    """Return the bits of a dimension, and a check of the depth's part if not all of it has bits.

    Parts of the depth with which every row is outside, such as those of padding, need none.
    """
    least_row, largest_row = check.rows.bounds(extents)
    names = check.depth.iterators
    points = np.indices([extents[name] for name in names], np.int32, sparse=True)
    values = np.unique(check.depth.evaluate(dict(zip(names, points, strict=True))))
    useful = values[(values >= -largest_row) & (values < check.size - least_row)]
    # Without a useful value no row is ever inside, whatever the bit says.
    first, *later = map(int, useful) if len(useful) else (0,)
    step = math.gcd(*(value - first for value in later)) or 1
    count = (later[-1] - first) // step + 1 if later else 1
    limit: list[Check] = []
    if len(useful) < len(values):
        start = IndexExpr.sum([], -first)
        limit.append(Check(start, check.depth, (count - 1) * step + 1))
    return Window(check=check, bit=bit, low=first, step=step, count=count), limit


def _split(index: IndexExpr, depth: AbstractSet[str]) -> tuple[IndexExpr, IndexExpr] | None:
    """Return the parts of rows, with the constant, and of the depth; None if a term has both."""
    rows, deep = list[IndexTerm](), list[IndexTerm]()
    for term in index.terms:
        names = set(term.iterators)
        if names & depth:
            if not names <= depth:
                return None
            deep.append(term)
        else:
            rows.append(term)
    return IndexExpr.sum(rows, index.constant), IndexExpr.sum(deep)


@dataclass(frozen=True)
class DepthWalk:
    """Loops of the depth as the digits of a number that grows by ``increment`` every step.

    ``loops`` are outermost first; levels count from the innermost, whose digit carries into the
    next when it reaches its extent. The outermost digit is not limited.
    """

    loops: tuple[Loop, ...]
    increment: int

    @property
    def extents(self) -> tuple[int, ...]:
        """Extents by level."""
        return tuple(loop.extent for loop in reversed(self.loops))

    @property
    def names(self) -> tuple[str, ...]:
        """Names by level."""
        return tuple(loop.name for loop in reversed(self.loops))

    @property
    def increments(self) -> tuple[int, ...]:
        """Numbers that a step adds to the digit of each level, before carries."""
        digits, rest = list[int](), self.increment
        for level, extent in enumerate(self.extents):
            outermost = level == len(self.loops) - 1
            digits.append(rest if outermost else rest % extent)
            rest //= extent
        return tuple(digits)

    @property
    def still(self) -> int:
        """Number of levels, from the innermost, whose digits never change."""
        increments = self.increments
        return next((level for level, added in enumerate(increments) if added), len(increments))

    def movement(self, index: IndexExpr) -> tuple[int, tuple[int, ...]] | None:
        """Return how an index over the depth grows in a step.

        Returns
        -------
        tuple of int and of tuple of int, or None
            What each step adds, and what the carry out of each level adds (all levels but the
            outermost); None if a digit of a loop is part of the index.
        """
        if any(
            not term.is_affine and set(term.iterators) & set(self.names) for term in index.terms
        ):
            return None
        weights = [index.coefficient(name) for name in self.names]
        added = sum(w * n for w, n in zip(weights, self.increments, strict=True))
        carried = (
            outer - extent * inner if level >= self.still else 0
            for level, (inner, outer, extent) in enumerate(
                zip(weights, weights[1:], self.extents, strict=False)
            )
        )
        return added, tuple(carried)

    def levels_of(self, indices: Sequence[IndexExpr]) -> int:
        """Return the number of levels, from the innermost, whose digits decide the indices."""
        used = {name for index in indices for name in index.iterators}
        return max((level + 1 for level, name in enumerate(self.names) if name in used), default=0)


@dataclass(frozen=True)
class Positions:
    """Positions of a factor's elements along one dimension of its product.

    A position counts the rows, the columns or the depth of the product from its beginning:
    instruction tiles by the digits of ``loops``, and elements of a tile by ``axis``.
    """

    axis: str
    extent: int
    loops: tuple[Loop, ...]

    @property
    def names(self) -> set[str]:
        """Iterators of the digits of a position."""
        return {self.axis, *(loop.name for loop in self.loops)}

    def slope(self, index: IndexExpr) -> int | None:
        """Return what an index grows by from each position to the next; None if it varies."""
        if any(not term.is_affine and self.names & set(term.iterators) for term in index.terms):
            return None
        slope, place = index.coefficient(self.axis), self.extent
        for loop in reversed(self.loops):
            if loop.extent > 1 and index.coefficient(loop.name) != slope * place:
                return None
            place *= loop.extent
        return slope


def linear_limits(
    operand: GlobalOperand, directions: Sequence[Positions]
) -> tuple[tuple[int, int | None], ...] | None:
    """Return how a factor's address and its checks follow from positions.

    Parameters
    ----------
    operand : GlobalOperand
    directions : sequence of Positions
        The dimensions of the product that the factor has.

    Returns
    -------
    tuple of tuple of int and of int or None, or None
        For each dimension, the distance of addresses from one position to the next, and the number
        of positions that are inside of the factor, where it is checked. None if the address, or a
        coordinate that is checked, is not linear in them.
    """
    slopes = [direction.slope(operand.address) for direction in directions]
    limits: list[int | None] = [None] * len(directions)
    for place in operand.checked:
        index, size = operand.layout.access[place], operand.layout.shape[place]
        steps = [direction.slope(index) for direction in directions]
        moving = [number for number, step in enumerate(steps) if step]
        if None in steps or len(moving) != 1:
            return None
        step, number = steps[moving[0]], moving[0]
        assert step is not None
        if step < 0 or index.constant < 0 or not set(index.iterators) <= directions[number].names:
            return None
        limit = max(0, -((index.constant - size) // step))
        earlier = limits[number]
        limits[number] = limit if earlier is None else min(limit, earlier)
    if None in slopes:
        return None
    return tuple((slope or 0, limit) for slope, limit in zip(slopes, limits, strict=True))
