"""Loops over tiles of axes, and the boxes of tensors that one iteration of them touches."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cpembed.accelerator.program import Size
from cpembed.ir.index import IndexExpr, IndexTerm


@dataclass(frozen=True)
class TileLoop:
    """A loop over the tiles of one axis.

    ``step`` is the size of a tile, and ``span`` that of the range that it splits, of which the last
    tile may be smaller.
    """

    name: str
    axis: str
    step: int
    span: int

    @property
    def extent(self) -> int:
        """Number of tiles."""
        return -(-self.span // self.step)


def loop_extents(loops: Sequence[TileLoop]) -> dict[str, int]:
    """Return the number of iterations of each loop."""
    return {loop.name: loop.extent for loop in loops}


def position(loops: Sequence[TileLoop], axis: str) -> IndexExpr:
    """Return the first value of an axis in an iteration of loops."""
    return IndexExpr.sum([IndexTerm(loop.name, loop.step) for loop in loops if loop.axis == axis])


def tile_size(loops: Sequence[TileLoop], axis: str, extent: int) -> int:
    """Return the largest number of values of an axis in an iteration of loops.

    Parameters
    ----------
    loops : sequence of TileLoop
    axis : str
        Name of the axis.
    extent : int
        Number of its values without loops.
    """
    return min([extent, *(loop.step for loop in loops if loop.axis == axis)])


def sizes(loops: Sequence[TileLoop], axis: str, extent: int) -> Size:
    """Return the number of values of an axis in an iteration: the least of the expressions.

    It may be below 1, where an inner loop has more iterations than the last tile of an outer one
    needs.

    Parameters
    ----------
    loops : sequence of TileLoop
    axis : str
        Name of the axis.
    extent : int
        Number of its values without loops.
    """
    axis_loops = [loop for loop in loops if loop.axis == axis]
    largest = tile_size(loops, axis, extent)
    bounds = [IndexExpr((), largest)]
    for number, loop in enumerate(axis_loops):
        # A range may end ahead of the tiles that loops split it into.
        span = loop.span if number else min(loop.span, extent)
        rest = position(axis_loops[number:], axis).times(-1) + span
        if rest.bounds(loop_extents(axis_loops))[0] < largest:
            bounds.append(rest)
    return tuple(bounds)


def guards(bounds: Size, loops: Mapping[str, int]) -> tuple[IndexExpr, ...]:
    """Return expressions that are all nonnegative where a size is at least 1."""
    return tuple(b + -1 for b in bounds if b.terms and b.bounds(loops)[0] < 1)


@dataclass(frozen=True)
class Box:
    """A box of a tensor: along each dimension its first index and its size."""

    starts: tuple[IndexExpr, ...]
    sizes: tuple[Size, ...]
    largest: tuple[int, ...]


def box_of(
    index: Sequence[IndexExpr], loops: Sequence[TileLoop], extents: Mapping[str, int]
) -> Box:
    """Return the box that an access touches in an iteration of loops.

    Parameters
    ----------
    index : sequence of IndexExpr
        Affine index along each dimension, over the axes, with nonnegative coefficients.
    loops : sequence of TileLoop
        The loops around it.
    extents : mapping of str to int
        Extent of each axis.
    """
    starts: list[IndexExpr] = []
    all_sizes: list[Size] = []
    largest: list[int] = []
    for expression in index:
        positions = {a: position(loops, a) for a in expression.iterators}
        starts.append(expression.substitute(positions))
        choices: list[list[IndexExpr]] = []
        for term in expression.terms:
            bounds = sizes(loops, term.iterator, extents[term.iterator])
            choices.append([(b + -1).times(term.coefficient) for b in bounds])
        combined = [sum(c, IndexExpr((), 1)) for c in itertools.product(*choices)]
        all_sizes.append(tuple(combined))
        largest.append(combined[0].constant)
    return Box(tuple(starts), tuple(all_sizes), tuple(largest))
