"""The tiling of a nest that takes the fewest cycles on a machine.

Levels are chosen from main memory inwards, since what an outer level moves does not depend on the
inner ones. Of each, all tile sizes are compared where they are few; else those that cut the
enclosing tile into so many equal parts, or a grid of them. The best few go on to the next level.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from cpembed.cost.machine.nest import Floats, TileNest
from cpembed.cost.machine.passes import Integers
from cpembed.cost.machine.times import cycles
from cpembed.cost.machine.traffic import (
    LevelTiles,
    Tilings,
    cut,
    dealings,
    filled_bytes,
    joined,
    operands_in,
    orders,
    whole,
)
from cpembed.errors import TransformError
from cpembed.hw.machine import Hierarchy

ROWS = 4096
"""Tilings of a level that are compared for each order of the loops."""

_KEPT = 8
"""Tilings that go on to the next level, where more would be too many for it."""


_ALIKE = 1.05
"""By so many times times differ that are told apart before the innermost tiles are known."""

_ORDERS = 64
"""By so many times there may be more tilings before those that are the same are left out."""

_EQUALS = 4
"""Of so many times as many tilings, those that differ in what is to come are kept."""


@dataclass(frozen=True)
class Found:
    """The best tilings, one a row; ``exact``: no other tiling takes fewer cycles than the first,
    whatever the sizes of its tiles, their orders and the parts that units get."""

    tilings: Tilings
    exact: bool


def best_tilings(nest: TileNest, machine: Hierarchy, rows: int = ROWS, count: int = 1) -> Found:
    """The ``count`` tilings of the fewest cycles, the best first; of equal ones, in turn, those
    that move the fewest bytes.

    Raises :class:`TransformError` where a memory does not hold what one execution takes.
    """
    # No tiling that was dropped takes fewer cycles.
    dropped, exact, tilings = math.inf, True, whole(nest)
    for level in reversed(range(len(machine.levels) - 1)):
        tried, every, guessed = _cut(tilings, level, nest, machine, rows)
        kept = _kept(nest, machine, level, rows, _KEPT) if level else count
        tilings, least = _best(tried, kept, nest, [machine], rough=level > 0)
        if level:
            # Where a memory is filled past the level, what is known of it is a guess, no bound.
            dropped = min(dropped, -math.inf if guessed and least < math.inf else least)
        exact = exact and every
    return Found(tilings, exact and float(cycles(tilings.taken([0]), nest, machine)[0]) <= dropped)


def tilings_for(
    nest: TileNest, machines: Sequence[Hierarchy], rows: int = ROWS, kept: int = _KEPT
) -> Tilings:
    """Tilings for machines that differ in bandwidths and latencies alone: all innermost ones in the
    best outer ones for each of these. ``kept``: outer tilings that are kept of a level, where they
    are not few enough to keep all.

    Raises :class:`TransformError` where a memory does not hold what one execution takes.
    """
    tilings, tried, machine = whole(nest), list[Tilings](), machines[0]
    for level in reversed(range(len(machine.levels) - 1)):
        tried, _, _ = _cut(tilings, level, nest, machine, rows)
        if level:
            kept_here = _kept(nest, machine, level, rows, kept)
            tilings, _ = _best(tried, kept_here, nest, machines, rough=True)
    return joined(tried)


def _cut(
    tilings: Tilings, level: int, nest: TileNest, machine: Hierarchy, rows: int
) -> tuple[list[Tilings], bool, bool]:
    """Tilings with one more level, whether these are all that matter, and whether some of their
    traffic is a guess until more levels are cut."""
    ordered, all_orders = orders(nest)
    outer, inside, every = _Sizes(nest, machine, level).within(
        tilings, max(1, rows // tilings.rows)
    )
    inner = LevelTiles.of(level, inside, nest, machine)
    parts, all_parts = dealings(nest, machine.fan_out(level))
    tried = [found for one in parts for found in cut(outer, inner, one, ordered, nest, machine)]
    return tried, all_orders and every and all_parts, bool(inner.comes_again)


def _kept(nest: TileNest, machine: Hierarchy, level: int, rows: int, least: int) -> int:
    """Tilings of a level that go on to the next one: as many as allow all tiles there in each."""
    return max(least, rows // math.prod(_Sizes(nest, machine, level - 1).largest))


def _best(
    tried: list[Tilings],
    kept: int,
    nest: TileNest,
    machines: Sequence[Hierarchy],
    *,
    rough: bool,
) -> tuple[Tilings, float]:
    """The best rows of all for each machine, and the fewest cycles of those that are left out.
    ``rough``: times that differ by little are equal, as what is farther in is not known yet."""
    if rough and sum(one.rows for one in tried) <= kept * _ORDERS:
        found = joined(tried)
        same = _first_of_each([found.share, *_choices(found)])
        if len(same) <= kept:
            return found.taken(same), math.inf
    number: Integers = np.repeat(np.arange(len(tried)), [one.rows for one in tried])
    row: Integers = np.concatenate([np.arange(one.rows) for one in tried])
    every = np.arange(len(row))
    measures = [
        np.concatenate([_measures(one, nest, machine) for one in tried], axis=1)
        for machine in machines
    ]
    # Rows that are equal in what is to come are neighbours: more are taken, then one of each.
    some = _mixed([_in_turn(m, every, rough=rough) for m in measures])[: kept * _EQUALS]
    places = np.concatenate([some[number[some] == n] for n in range(len(tried))])
    parts = [one.taken(row[some[number[some] == n]]) for n, one in enumerate(tried)]
    found = joined([part for part in parts if part.rows])
    distinct = _distinct(found)
    measured = [_measures(found, nest, machine) for machine in machines]
    order = _mixed([_in_turn(m, distinct, rough=rough) for m in measured])[:kept]
    left = np.ones(len(row), bool)
    left[places[order]] = False
    return found.taken(order), float(measures[0][0, left].min()) if left.any() else math.inf


def _measures(tilings: Tilings, nest: TileNest, machine: Hierarchy) -> Floats:
    """Cycles, bytes moved and, negative, iterations in a tile; times that differ by rounding are
    equal."""
    moved = np.zeros(tilings.rows)
    for traffic in tilings.traffic.values():
        moved = moved + traffic.read_bytes + traffic.write_bytes
    time = np.round(cycles(tilings, nest, machine), 6)
    return np.stack([time, moved, -math.prod(tilings.sizes.values(), start=np.ones(tilings.rows))])


def _in_turn(measures: Floats, rows: Sequence[int] | Integers, *, rough: bool) -> Integers:
    """Rows of the least time first; of those, in turn, the fewest bytes moved and the largest
    tile, which leaves the most to share and to keep farther in."""
    own = np.asarray(rows, np.intp)
    time, moved, size = measures[:, own]
    if rough:
        time = np.floor(np.log(time / time.min()) / math.log(_ALIKE))
    orders = np.lexsort((size, moved, time)), np.lexsort((moved, size, time))
    return own[_mixed(orders)]


def _mixed(orders: Sequence[Integers]) -> Integers:
    """The first of each order, then the second of each, and so on; none twice."""
    mixed = np.stack(orders, axis=1).ravel()
    _, first = np.unique(mixed, return_index=True)
    found: Integers = mixed[np.sort(first)]
    return found


def _distinct(tilings: Tilings) -> list[int]:
    """Rows of tilings, one of those that seem to differ in nothing that is to come."""
    columns = [*tilings.sizes.values(), tilings.share, *tilings.busy]
    for traffic in tilings.traffic.values():
        columns += [traffic.read_bytes, traffic.write_bytes, traffic.total_read]
    return _first_of_each(columns)


def _choices(tilings: Tilings) -> list[Floats]:
    """All that was chosen of tilings."""
    return [
        column
        for stage in tilings.stages
        for named in (stage.sizes, stage.parts, stage.ranks)
        for column in named.values()
    ]


def _first_of_each(columns: Sequence[Floats]) -> list[int]:
    """Of rows that are equal in all columns the first, ascending."""
    _, first = np.unique(np.round(np.stack(columns), 6), axis=1, return_index=True)
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
            around = {name: int(outer.sizes[name][row]) for name in names}
            most = [int(min(size, self._largest[name])) for name, size in around.items()]
            options = [list(range(1, size + 1)) for size in most]
            if math.prod(most) > limit:
                every = False
                options = [
                    [size for size in _cuts(around[name]) if size <= largest]
                    for name, largest in zip(names, most, strict=True)
                ]
            thinned = _thinned(options, limit)
            # The first column is the row of the enclosing tile.
            grid = np.meshgrid([row], *thinned, indexing="ij")
            grids.append(np.stack([axis.ravel() for axis in grid]))
        table = np.concatenate(grids, axis=1)
        sizes = {name: table[n].astype(np.float64) for n, name in enumerate(names, 1)}
        taken = np.flatnonzero(np.broadcast_to(self._fits(sizes), (table.shape[1],)))
        inside = {name: values[taken] for name, values in sizes.items()}
        return outer.taken(table[0][taken]), inside, every

    @property
    def largest(self) -> list[int]:
        """The largest tile of each loop that fits where those of the others are 1."""
        return [int(self._largest[loop.name]) for loop in self.nest.loops]

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
            found = found & (
                filled_bytes(memory, operands, self.nest, sizes) <= memory.tile_capacity
            )
        return found

    def _check(self) -> None:
        ones = {loop.name: np.ones(1) for loop in self.nest.loops}
        for memory, operands in self.memories:
            needed = filled_bytes(memory, operands, self.nest, ones)[0]
            if needed > memory.tile_capacity:
                raise TransformError(
                    f"one execution takes {needed:,.0f} bytes of {memory.name}, which has room for "
                    f"{memory.tile_capacity:,.0f}"
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
