"""The tiling of a nest that takes the fewest cycles on a machine.

Levels are chosen from main memory inwards, since what an outer level moves does not depend on the
inner ones. Of each, tile sizes are those that cut the enclosing tile into so many equal parts, and
all of them are compared where they are few, else a grid. The best few go on to the next level.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from cpembed.errors import TransformError
from cpembed.hw.levels import Hierarchy
from cpembed.machine.nest import Floats, TileNest
from cpembed.machine.times import cycles
from cpembed.machine.traffic import (
    Integers,
    LevelTiles,
    Tilings,
    boundaries,
    cut,
    filled_bytes,
    joined,
    operands_in,
    whole,
)

ROWS = 2048
"""Tilings of a level that are compared for each order of the loops."""

_KEPT = 8
"""Tilings that go on to the next level, where more would be too many for it."""


_EQUALS = 4
"""Of so many times as many tilings, those that differ in what is to come are kept."""


@dataclass(frozen=True)
class Found:
    """The best tilings, one a row; ``exact``: all others were compared too."""

    tilings: Tilings
    exact: bool


def best_tilings(nest: TileNest, machine: Hierarchy, rows: int = ROWS, count: int = 1) -> Found:
    """The ``count`` tilings of the fewest cycles, the best first; of equal ones, in turn, those
    that move the fewest bytes.

    Raises :class:`TransformError` where a memory does not hold what one execution takes.
    """
    tilings, exact = whole(nest), True
    most = math.prod(len(_cuts(loop.extent)) for loop in nest.loops)
    for level in reversed(range(len(machine.levels) - 1)):
        sizes = _Sizes(nest, machine, level)
        outer, chosen, every = sizes.within(tilings, max(1, rows // tilings.rows))
        inner = LevelTiles.of(level, chosen, nest, machine)
        tried = [
            cut(outer, inner, boundary, nest, machine)
            for boundary in enumerate(boundaries(nest, machine.sharing(level)))
        ]
        kept = max(_KEPT, rows // most) if level else count
        tilings, whole_level = _best(tried, kept, nest, machine)
        exact = exact and every and (not level or whole_level)
    return Found(tilings, exact)


def _best(
    tried: list[Tilings], kept: int, nest: TileNest, machine: Hierarchy
) -> tuple[Tilings, bool]:
    """The best rows of all, and whether none is missing that may turn out better."""
    ranked = [_measures(tilings, nest, machine) for tilings in tried]
    measures = np.concatenate(ranked, axis=1)
    number: Integers = np.repeat(np.arange(len(tried)), [found.shape[1] for found in ranked])
    each: list[Integers] = [np.arange(found.shape[1]) for found in ranked]
    row = np.concatenate(each)
    # Rows that are equal in what is to come are neighbours: more are taken, then one of each.
    some = _in_turn(measures, range(len(row)))[: kept * _EQUALS]
    rows: list[Integers] = [row[some[number[some] == n]] for n in range(len(tried))]
    found = joined([part.taken(own) for part, own in zip(tried, rows, strict=True) if len(own)])
    distinct = _distinct(found)
    order = _in_turn(_measures(found, nest, machine), distinct)
    every = len(some) == len(row) and len(distinct) <= kept
    return found.taken(order[:kept]), every


def _measures(tilings: Tilings, nest: TileNest, machine: Hierarchy) -> Floats:
    """Cycles, bytes moved and, negative, iterations in a tile; times that differ by rounding are
    equal."""
    moved = np.zeros(tilings.rows)
    for traffic in tilings.traffic.values():
        moved = moved + traffic.read_bytes + traffic.write_bytes
    time = np.round(cycles(tilings, nest, machine), 6)
    return np.stack([time, moved, -math.prod(tilings.sizes.values(), start=np.ones(tilings.rows))])


def _in_turn(measures: Floats, rows: Sequence[int]) -> Integers:
    """Rows of the least time first; of those, in turn, the fewest bytes moved and the largest
    tile, which leaves the most to share and to keep farther in."""
    own = np.asarray(rows, np.intp)
    time, moved, size = measures[:, own]
    orders = np.lexsort((size, moved, time)), np.lexsort((moved, size, time))
    mixed = np.stack(orders, axis=1).ravel()
    _, first = np.unique(mixed, return_index=True)
    return own[mixed[np.sort(first)]]


def _distinct(tilings: Tilings) -> list[int]:
    """Rows of tilings that differ from all before them in what is to come."""
    columns = [*tilings.sizes.values(), tilings.share]
    columns += [n for p in tilings.passes.values() for n in (p.staying, p.every)]
    table = np.stack([np.broadcast_to(column, (tilings.rows,)) for column in columns])
    _, first = np.unique(np.round(table, 6), axis=1, return_index=True)
    return sorted(first.tolist())


class _Sizes:
    """The tile sizes of a level."""

    def __init__(self, nest: TileNest, machine: Hierarchy, level: int) -> None:
        self.nest = nest
        self.memories = [
            (memory, operands_in(memory, nest, machine)) for memory in machine.levels[level]
        ]
        self._check()
        self._largest = self._largest_sizes()

    def within(self, outer: Tilings, limit: int) -> tuple[Tilings, dict[str, Floats], bool]:
        """Rows of ``outer``, repeated, with the tile sizes in each; about ``limit`` of one at most,
        and whether these are all that fit."""
        every, grids = True, list[np.ndarray]()
        names = [loop.name for loop in self.nest.loops]
        for row in range(outer.rows):
            options = [
                [size for size in _cuts(int(outer.sizes[name][row])) if size <= self._largest[name]]
                for name in names
            ]
            thinned = _thinned(options, limit)
            every = every and thinned == options
            # The first column is the row of the enclosing tile.
            grid = np.meshgrid([row], *thinned, indexing="ij")
            grids.append(np.stack([axis.ravel() for axis in grid]))
        table = np.concatenate(grids, axis=1)
        sizes = {name: table[n].astype(np.float64) for n, name in enumerate(names, 1)}
        taken = np.flatnonzero(np.broadcast_to(self._fits(sizes), (table.shape[1],)))
        inside = {name: values[taken] for name, values in sizes.items()}
        return outer.taken(table[0][taken]), inside, every

    def _largest_sizes(self) -> dict[str, float]:
        """By loop, the largest tile that fits where those of the others are 1."""
        loops = self.nest.loops
        sizes = [np.arange(1.0, loop.extent + 1) for loop in loops]
        parts = np.cumsum([0, *map(len, sizes)])
        every = {loop.name: np.ones(parts[-1]) for loop in loops}
        for n, loop in enumerate(loops):
            every[loop.name][parts[n] : parts[n + 1]] = sizes[n]
        fits = np.broadcast_to(self._fits(every), (parts[-1],))
        return {
            loop.name: float(sizes[n][fits[parts[n] : parts[n + 1]]].max())
            for n, loop in enumerate(loops)
        }

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


@cache
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
