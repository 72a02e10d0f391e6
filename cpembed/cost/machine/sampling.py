"""Sample of the tilings of a nest, for machines that differ in bandwidths and latencies.

Levels are decided from main memory inwards. For each level, all tile sizes are compared if they are
few; else those that cut the enclosing tile into equal parts, or a grid of them. The best few
continue to the next level. A level holds the tiles of all operands at one place.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields

import numpy as np
from numpy.typing import NDArray

from cpembed.cost.machine.divisions import dealings, dealt
from cpembed.cost.machine.nest import ExecutionNest, Floats
from cpembed.cost.machine.passes import Integers
from cpembed.cost.machine.sizes import cuts, thinned
from cpembed.cost.machine.times import cycles
from cpembed.cost.machine.traffic import (
    HeldTile,
    Tilings,
    cut,
    joined,
    orders,
    untiled,
)
from cpembed.errors import TransformError
from cpembed.hw.machine import Hierarchy

_BEAM = 8
"""Minimum number of tilings that continue to the next level, however many tiles that has."""

_RESOLUTION = 1.05
"""Ratio of times that are distinguished before the innermost tiles are decided."""

_ORDERS = 64
"""Maximum ratio of tilings to the beam's width at which duplicates are searched for right away."""

_EQUALS = 4
"""Factor by which the beam is widened before tilings with equal prospects are dropped."""


def tilings_for(
    nest: ExecutionNest, machines: Sequence[Hierarchy], rows: int, beam: int = _BEAM
) -> Tilings:
    """Return tilings for machines that differ in bandwidths and latencies only.

    They are all innermost tilings of the outer ones that are best for each of the machines.

    Parameters
    ----------
    nest : ExecutionNest
        Nest to tile.
    machines : sequence of Hierarchy
        Machines.
    rows : int
        Maximum number of tilings of a level that are compared for each order of the loops.
    beam : int
        Number of outer tilings that continue to the next level, unless all can.

    Raises
    ------
    TransformError
        A memory is too small for one execution.
    """
    tilings, candidates, machine = untiled(nest), list[Tilings](), machines[0]
    for level in reversed(range(len(machine.levels) - 1)):
        candidates = _cut(tilings, level, nest, machine, rows)
        if level:
            width = _beam(nest, machine, level, rows, beam)
            tilings = _best(candidates, width, nest, machines)
    return joined(candidates)


def _cut(
    tilings: Tilings, level: int, nest: ExecutionNest, machine: Hierarchy, rows: int
) -> list[Tilings]:
    """Return tilings with one more level."""
    outer, inside = _Sizes(nest, machine, level).within(tilings, max(1, rows // tilings.rows))
    tile = HeldTile(inside, frozenset(operand.name for operand in nest.operands))
    ordered = [[order] for order in orders(nest)]
    guessed = _guessed(inside, level, nest, machine)
    candidates: list[Tilings] = []
    for parts in dealings(nest, machine.fan_out(level)):
        blocks = dealt(outer.sizes, inside, parts, machine.fan_out(level))
        candidates += cut(outer, level, [tile], blocks, ordered, nest, machine, guessed)
    return candidates


def _guessed(
    sizes: Mapping[str, Floats], level: int, nest: ExecutionNest, machine: Hierarchy
) -> dict[str, NDArray[np.bool_]]:
    """Return the memories farther in whose data passes by the level.

    Where such a memory has no room for a tile of the level, its data is likely to be loaded again
    with each.
    """
    units, guessed = machine.levels[level][0].units, dict[str, NDArray[np.bool_]]()
    for memory in machine.memories.values():
        if memory.parent and memory.level < level < machine.memories[memory.parent].level:
            operands = nest.operands_in(memory, machine)
            room = memory.tile_capacity * memory.units // units
            guessed[memory.name] = nest.filled_bytes(memory, operands, sizes) > room
    return guessed


def _beam(nest: ExecutionNest, machine: Hierarchy, level: int, rows: int, least: int) -> int:
    """Return the number of tilings that continue to the next level: all tiles there fit in each."""
    return max(least, rows // math.prod(_Sizes(nest, machine, level - 1).largest))


def _best(
    candidates: list[Tilings],
    beam: int,
    nest: ExecutionNest,
    machines: Sequence[Hierarchy],
) -> Tilings:
    """Return the best rows for each machine.

    Times that differ by little are equal, since inner levels are undecided.
    """
    if sum(tilings.rows for tilings in candidates) <= beam * _ORDERS:
        # Few candidates: before sizes are compared at all, drop those that made the same decisions.
        every = joined(candidates)
        distinct = _first_of_each([every.share, *_choices(every)])
        if len(distinct) <= beam:
            return every.select(distinct)
    counts = [tilings.rows for tilings in candidates]
    number: Integers = np.repeat(np.arange(len(candidates)), counts)
    row: Integers = np.concatenate([np.arange(count) for count in counts])
    measures = [
        np.concatenate(
            [_measures(tilings, cycles(tilings, nest, machine)) for tilings in candidates], axis=1
        )
        for machine in machines
    ]
    # Rows with equal prospects are neighbours: take more of them, then drop duplicates.
    ranked = [_in_turn(m, np.arange(len(row))) for m in measures]
    first = _mixed(ranked)[: beam * _EQUALS]
    selected = [first[number[first] == n] for n in range(len(candidates))]
    parts = [t.select(row[at]) for t, at in zip(candidates, selected, strict=True)]
    tilings = joined([part for part in parts if part.rows])
    distinct = _distinct(tilings)
    measured = [_measures(tilings, cycles(tilings, nest, machine)) for machine in machines]
    order = _mixed([_in_turn(m, distinct) for m in measured])[:beam]
    return tilings.select(order)


def _measures(tilings: Tilings, time: Floats) -> Floats:
    """Return cycles, bytes moved and, negated, iterations in a tile.

    Times are rounded, so that those which differ by rounding errors are equal.
    """
    moved = np.zeros(tilings.rows)
    for traffic in tilings.traffic.values():
        moved = moved + traffic.read_bytes + traffic.write_bytes
    return np.stack(
        [np.round(time, 6), moved, -math.prod(tilings.sizes.values(), start=np.ones(tilings.rows))]
    )


def _in_turn(measures: Floats, rows: Sequence[int] | Integers) -> Integers:
    """Return rows by time; of equal ones, the fewest bytes and the largest tile take turns."""
    indices = np.asarray(rows, np.intp)
    time, moved, size = measures[:, indices]
    # Inner levels are undecided, so that small differences of time say nothing: classes of 5 %.
    time = np.floor(np.log(time / time.min()) / math.log(_RESOLUTION))
    # A large tile leaves the most to share and to keep farther in.
    orders = np.lexsort((size, moved, time)), np.lexsort((moved, size, time))
    return indices[_mixed(orders)]


def _mixed(orders: Sequence[Integers]) -> Integers:
    """Return the first of each order, then the second of each, and so on, without repetitions."""
    mixed: Integers = np.stack(orders, axis=1).ravel()
    _, first = np.unique(mixed, return_index=True)
    return mixed[np.sort(first)]


def _distinct(tilings: Tilings) -> list[int]:
    """Return one row of those with equal prospects: all that times depend on."""
    columns = [*tilings.sizes.values(), tilings.share, tilings.waits, *tilings.busy]
    # Also the transfers: rows that move the same bytes in fewer of them wait for main memory less.
    for traffic in (*tilings.traffic.values(), *tilings.first.values()):
        columns += [getattr(traffic, column.name) for column in fields(traffic)]
    return _first_of_each(columns)


def _choices(tilings: Tilings) -> list[Floats]:
    """Return all decisions of tilings: sizes, parts and ranks of each stage."""
    return [
        column
        for stage in tilings.stages
        for named in (stage.sizes, stage.parts, stage.ranks)
        for column in named.values()
    ]


def _first_of_each(columns: Sequence[Floats]) -> list[int]:
    """Return the first of rows that are equal in all columns, ascending."""
    _, first = np.unique(np.round(np.stack(columns), 6), axis=1, return_index=True)
    return sorted(first.tolist())


class _Sizes:
    """Tile sizes of a level."""

    def __init__(self, nest: ExecutionNest, machine: Hierarchy, level: int) -> None:
        self.nest = nest
        self.memories = [
            (memory, nest.operands_in(memory, machine)) for memory in machine.levels[level]
        ]
        self._check()
        self._largest = self._largest_sizes()

    def within(self, outer: Tilings, limit: int) -> tuple[Tilings, dict[str, Floats]]:
        """Return rows of ``outer``, repeated, with tile sizes in each.

        There are about ``limit`` of each row at most.
        """
        grids = list[np.ndarray]()
        names = [loop.name for loop in self.nest.loops]
        for row in range(outer.rows):
            around = {name: int(outer.sizes[name][row]) for name in names}
            most = [int(min(size, self._largest[name])) for name, size in around.items()]
            # All sizes if they are few, else those that cut the enclosing tile into equal parts:
            # any other size needs as many tiles as a smaller one of these.
            options = [list(range(1, size + 1)) for size in most]
            if math.prod(most) > limit:
                options = [
                    [size for size in cuts(around[name]) if size <= largest]
                    for name, largest in zip(names, most, strict=True)
                ]
            sizes_by_loop = thinned(options, limit)
            # The first column is the row of the enclosing tile.
            grid = np.meshgrid([row], *sizes_by_loop, indexing="ij")
            grids.append(np.stack([axis.ravel() for axis in grid]))
        table = np.concatenate(grids, axis=1)
        sizes = {name: table[n].astype(np.float64) for n, name in enumerate(names, 1)}
        fitting = np.flatnonzero(np.broadcast_to(self._fits(sizes), (table.shape[1],)))
        inside = {name: values[fitting] for name, values in sizes.items()}
        return outer.select(table[0][fitting]), inside

    @property
    def largest(self) -> list[int]:
        """Largest size of each loop that fits with the others at 1."""
        return [int(self._largest[loop.name]) for loop in self.nest.loops]

    def _largest_sizes(self) -> dict[str, float]:
        """Return the largest size by loop that fits with the others at 1."""
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
        fits = np.ones(1, bool)
        for memory, operands in self.memories:
            filled = self.nest.filled_bytes(memory, operands, sizes)
            fits = fits & (filled <= memory.tile_capacity)
        return fits

    def _check(self) -> None:
        ones = {loop.name: np.ones(1) for loop in self.nest.loops}
        for memory, operands in self.memories:
            needed = self.nest.filled_bytes(memory, operands, ones)[0]
            if needed > memory.tile_capacity:
                raise TransformError(
                    f"one execution takes {needed:,.0f} bytes of {memory.name}, which has room for "
                    f"{memory.tile_capacity:,.0f}"
                )
