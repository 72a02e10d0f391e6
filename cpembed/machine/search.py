"""The tiling of a nest that takes the fewest cycles on a machine.

Levels are chosen from main memory inwards, since what an outer level moves does not depend on the
inner ones. Of each, tile sizes are those that cut the enclosing tile into so many equal parts, and
all of them are compared where they are few, else a grid. The best few go on to the next level.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from cpembed.errors import TransformError
from cpembed.hw.levels import Hierarchy
from cpembed.machine.nest import Floats, TileNest
from cpembed.machine.times import cycles
from cpembed.machine.traffic import (
    Tilings,
    boundaries,
    cut,
    filled_bytes,
    joined,
    operands_in,
    whole,
)

ROWS = 1024
"""Tilings of a level that are compared for each order of the loops."""

_KEPT = 8
"""Tilings that go on to the next level, where more would be too many for it."""


@dataclass(frozen=True)
class Found:
    """The best tiling (one row); ``exact``: all others were compared too."""

    tilings: Tilings
    exact: bool


def best_tiling(nest: TileNest, machine: Hierarchy, rows: int = ROWS) -> Found:
    """The tiling of the fewest cycles, of several the one that moves the fewest bytes.

    Raises :class:`TransformError` where a memory does not hold what one execution takes.
    """
    tilings, exact = whole(nest), True
    most = math.prod(len(_cuts(loop.extent)) for loop in nest.loops)
    for level in reversed(range(len(machine.levels) - 1)):
        sizes = _Sizes(nest, machine, level)
        outer, inner, every = sizes.within(tilings, max(1, rows // tilings.rows))
        kept = max(_KEPT, rows // most) if level else 1
        tried: list[Tilings] = []
        for boundary in enumerate(boundaries(nest, machine.sharing(level))):
            one = cut(outer, inner, boundary, level, nest, machine)
            best = _ordered(one, nest, machine)[:kept]
            every = every and (not level or len(best) == one.rows)
            tried.append(one.taken(best))
        found = joined(tried)
        best = _ordered(found, nest, machine)
        best = best[_first_of_equals(found, best)]
        exact = exact and every and (not level or len(best) <= kept)
        tilings = found.taken(best[:kept])
    return Found(tilings, exact)


def _ordered(tilings: Tilings, nest: TileNest, machine: Hierarchy) -> np.ndarray:
    """Rows, the best first."""
    moved = np.zeros(tilings.rows)
    for traffic in tilings.traffic.values():
        moved = moved + traffic.read_bytes + traffic.write_bytes
    # Times that differ by rounding are equal.
    time = np.round(cycles(tilings, nest, machine), 6)
    return np.lexsort((moved, time))


def _first_of_equals(tilings: Tilings, rows: np.ndarray) -> list[int]:
    """Places, in ``rows``, of tilings that differ from all before them in what is to come."""
    columns = [*tilings.sizes.values(), tilings.share]
    columns += [n for p in tilings.passes.values() for n in (p.staying, p.every)]
    table = np.stack([np.broadcast_to(column, (tilings.rows,)) for column in columns])[:, rows]
    _, first = np.unique(np.round(table, 6), axis=1, return_index=True)
    return sorted(first.tolist())


class _Sizes:
    """The tile sizes of a level."""

    def __init__(self, nest: TileNest, machine: Hierarchy, level: int) -> None:
        self.nest = nest
        self.memories = [
            (memory, operands_in(memory, nest, machine)) for memory in machine.levels[level]
        ]
        self._fitting: dict[tuple[str, int], list[int]] = {}
        self._check()

    def within(self, outer: Tilings, limit: int) -> tuple[Tilings, dict[str, Floats], bool]:
        """Rows of ``outer``, repeated, with the tile sizes in each; about ``limit`` of one at most,
        and whether these are all that fit."""
        every, repeated = True, list[int]()
        rows: list[tuple[int, ...]] = []
        names = [loop.name for loop in self.nest.loops]
        for row in range(outer.rows):
            options = [self._options(name, int(outer.sizes[name][row])) for name in names]
            thinned = _thinned(options, limit)
            every = every and thinned == options
            grid = list(itertools.product(*thinned))
            rows += grid
            repeated += [row] * len(grid)
        table = np.array(rows, np.float64).reshape(len(rows), len(names))
        sizes = {name: table[:, n] for n, name in enumerate(names)}
        fits = np.broadcast_to(self._fits(sizes), (len(rows),))
        taken = np.flatnonzero(fits)
        inside = {name: values[taken] for name, values in sizes.items()}
        return outer.taken(np.array(repeated)[taken]), inside, every

    def _options(self, name: str, extent: int) -> list[int]:
        """Sizes of one loop's tile that fit where those of the others are 1."""
        known = self._fitting.get((name, extent))
        if known is None:
            options = _cuts(extent)
            ones = {loop.name: np.ones(1) for loop in self.nest.loops}
            fits = self._fits({**ones, name: np.array(options, np.float64)})
            fits = np.broadcast_to(fits, (len(options),))
            known = [option for option, fit in zip(options, fits, strict=True) if fit]
            self._fitting[name, extent] = known
        return known

    def _fits(self, sizes: Mapping[str, Floats]) -> np.ndarray:
        found = np.ones(1, bool)
        for memory, operands in self.memories:
            found = found & (filled_bytes(memory, operands, self.nest, sizes) <= memory.room)
        return found

    def _check(self) -> None:
        ones = {loop.name: np.ones(1) for loop in self.nest.loops}
        for memory, operands in self.memories:
            needed = filled_bytes(memory, operands, self.nest, ones)[0]
            if needed > memory.room:
                raise TransformError(
                    f"one execution takes {needed:,.0f} bytes of {memory.name}, which has room for "
                    f"{memory.room:,.0f}"
                )


def _cuts(extent: int) -> list[int]:
    """Sizes of the parts that an extent is cut into, so many of them or one more: ascending.

    >>> _cuts(7)
    [1, 2, 3, 4, 7]
    """
    found, size = [extent], extent
    while size > 1:
        count = -(-extent // (size - 1))
        size = -(-extent // count)
        found.append(size)
    return found[::-1]


def _thinned(options: list[list[int]], limit: int) -> list[list[int]]:
    """Fewer options of each loop, at most ``limit`` combinations: divisors before others, then a
    geometric series with the smallest and the largest."""
    found = list(options)
    for place in sorted(range(len(found)), key=lambda n: -len(found[n])):
        if math.prod(map(len, found)) <= limit:
            return found
        divisors = [size for size in found[place] if found[place][-1] % size == 0]
        if len(divisors) > 3:
            found[place] = divisors
    while math.prod(map(len, found)) > limit:
        place = max(range(len(found)), key=lambda n: len(found[n]))
        if len(found[place]) <= 1:
            break
        found[place] = _without_one(found[place])
    return found


def _without_one(sizes: list[int]) -> list[int]:
    """Without the size whose neighbours are closest to each other; of two, without the larger."""
    if len(sizes) == 2:
        return sizes[:1]
    gaps = [sizes[n + 1] / sizes[n - 1] for n in range(1, len(sizes) - 1)]
    drop = 1 + gaps.index(min(gaps))
    return sizes[:drop] + sizes[drop + 1 :]
