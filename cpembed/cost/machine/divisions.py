"""Division of the tiles of a level among its units."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from cpembed.cost.machine.nest import ExecutionNest, Floats
from cpembed.ir.computation import AxisKind

_SHARED = 2
"""Number of the longest parallel loops that units share in turn if not all divisions are
compared."""

_DEALT = 16
"""Maximum number of divisions of the parallel loops among units of which all are compared."""

Parts = Mapping[str, int]
"""Maximum number of blocks into which the tiles of each loop are dealt to units; earlier loops get
theirs first."""


def dealings(nest: ExecutionNest, units: int) -> list[Parts]:
    """Return divisions of the parallel loops' tiles among units, all of them if they are few.

    Units may be left idle.
    """
    every = _all_dealings(nest, units)
    return _some_dealings(_parallel(nest), units) if every is None else every


def balanced(nest: ExecutionNest, sizes: Mapping[str, float], units: int) -> list[Parts]:
    """Return divisions of a tile's parallel loops among units: all, or those of least busy units.

    Parameters
    ----------
    nest : ExecutionNest
        Nest to tile.
    sizes : mapping of str to float
        Sizes of the tile that is divided.
    units : int
        Number of units.
    """
    every = _all_dealings(nest, units)
    if every is not None:
        return every
    names = sorted(_parallel(nest), key=lambda name: -sizes[name])
    first, second = (*(int(sizes[name]) for name in names), 1)[:2]
    busy: dict[tuple[int, int], int] = {}
    for count in range(1, units + 1):
        parts = min(count, first)
        rest = min(units // parts, second)
        busy[parts, rest] = math.ceil(first / parts) * math.ceil(second / rest)
    # Of equally busy units, squares of tiles move the least.
    least = sorted(busy, key=lambda pair: (busy[pair], abs(pair[0] - pair[1])))[:_DEALT]
    return [dict(zip(names, (*pair, *[units] * len(names)), strict=False)) for pair in least]


def _parallel(nest: ExecutionNest) -> list[str]:
    """Return the parallel loops, the longest first.

    Reductions are not shared: units would have to add up partial sums.
    """
    parallel = (loop for loop in nest.loops if loop.kind is AxisKind.SPATIAL)
    return [loop.name for loop in sorted(parallel, key=lambda loop: -loop.extent)]


def _all_dealings(nest: ExecutionNest, units: int) -> list[Parts] | None:
    """Return all divisions of the parallel loops' tiles, or None if they are many."""
    names, extents = _parallel(nest), {loop.name: loop.extent for loop in nest.loops}
    if units == 1 or not names:
        return [{}]
    products = _products([extents[name] for name in names], units)
    every = list(itertools.islice(products, _DEALT + 1))
    if len(every) > _DEALT:
        return None
    return [dict(zip(names, parts, strict=True)) for parts in every]


def _products(most: Sequence[int], units: int) -> Iterator[tuple[int, ...]]:
    """Yield all tuples of positive numbers up to these, whose product is at most ``units``."""
    if not most:
        yield ()
        return
    for first in range(1, min(most[0], units) + 1):
        for rest in _products(most[1:], units // first):
            yield first, *rest


def _some_dealings(names: Sequence[str], units: int) -> list[Parts]:
    """Return divisions that give each of the longest loops all units or fewer, the rest the others.

    The first one uses a single unit.
    """
    divisions: list[Parts] = [dict.fromkeys(names, 1)]
    for first in names[:_SHARED]:
        for limit in dict.fromkeys((units, units // 2, math.isqrt(units))):
            rest = dict.fromkeys((name for name in names if name != first), units)
            divisions.append({first: limit, **rest})
    return divisions


def dealt(
    outer: Mapping[str, Floats], inner: Mapping[str, Floats], parts: Parts, units: int
) -> dict[str, Floats]:
    """Return the number of blocks into which each loop is dealt, in the order of ``parts``.

    A loop gets no more than it has tiles; the loops after it divide the units that are left.

    Parameters
    ----------
    outer, inner : mapping of str to array
        Sizes of the enclosing tiles and of those that are dealt out.
    parts : mapping of str to int
        Maximum number of blocks of each loop.
    units : int
        Number of units below one of the next level.
    """
    blocks = dict[str, Floats]()
    units_left = np.ones(1) * units
    for name, most in parts.items():
        tiles = np.ceil(outer[name] / inner[name])
        blocks[name] = np.minimum(np.minimum(units_left, most), tiles)
        units_left = np.floor(units_left / blocks[name])
    return blocks
