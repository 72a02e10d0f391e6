"""Tilings of a nest for a hierarchy of memories, many at a time, and the bytes that they move.

A tiling is chosen from main memory inwards. At each boundary between two levels the tile of the
outer one is cut into tiles of the inner one: loops over these, in some order, some of them shared
by the units of the inner level. An operand's tile is moved again with each iteration of the loops
outside it, except for those innermost ones that do not move it: there it stays.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from cpembed.hw.level_tables import Moved
from cpembed.hw.levels import Hierarchy, Memory
from cpembed.ir.computation import AxisKind
from cpembed.machine.nest import Floats, TileNest, TileOperand

Integers = NDArray[np.intp]

_PERMUTED = 3
"""Sets of loops that leave an operand where it is, of which all orders are tried; of more of them,
each is tried as the innermost."""


_SHARED = 2
"""The longest parallel loops, each of which is tried as the one that units share first."""


@dataclass(frozen=True)
class Boundary:
    """Between a level and the next one outside: loops over tiles, innermost first, and the loop
    that units share first (None: a single unit)."""

    order: tuple[str, ...]
    shared_first: str | None


@dataclass(frozen=True)
class Traffic:
    """What a unit of a memory exchanges with its parent: bytes, and transfers that bring or take
    them; ``tiles`` counts the tiles of the memory's level that one unit works through."""

    read_bytes: Floats
    write_bytes: Floats
    transfers: Floats
    tiles: Floats


@dataclass(frozen=True)
class Passes:
    """How often an operand's tile is moved by the loops so far: ``staying`` if no loop inside moves
    it, ``every`` if one does; ``distinct`` counts different tiles."""

    staying: Floats
    every: Floats
    distinct: Floats


@dataclass(frozen=True)
class Tilings:
    """Tilings that are chosen from main memory down to some level, one a row.

    ``sizes`` are the tiles of that level, ``chosen`` those of all levels inside main memory so
    far, the outermost first, each after the number of the boundary around it in what
    :func:`boundaries` gives. ``visits`` counts tiles that one unit works
    through, ``share`` is the part of all executions that the busiest unit does, ``busy`` says how
    many units of each level have work, the innermost first.
    """

    sizes: Mapping[str, Floats]
    passes: Mapping[str, Passes]
    visits: Floats
    share: Floats
    busy: tuple[Floats, ...]
    traffic: Mapping[str, Traffic] = field(default_factory=dict[str, Traffic])
    chosen: tuple[tuple[Floats, Mapping[str, Floats]], ...] = ()

    @property
    def rows(self) -> int:
        return len(self.share)

    def taken(self, rows: Sequence[int] | Integers) -> Tilings:
        """Some of the rows, which may be repeated."""
        count = self.rows

        def pick(values: list[Floats]) -> Floats:
            (found,) = values
            return (found if len(found) == count else np.broadcast_to(found, (count,)))[rows]

        return _combined([self], pick)


def joined(tilings: Sequence[Tilings]) -> Tilings:
    """The rows of all."""
    return _combined(tilings, np.concatenate)


def _combined(tilings: Sequence[Tilings], function: Callable[[list[Floats]], Floats]) -> Tilings:
    """What ``function`` makes of arrays that have the same place in each."""

    def named(mappings: Sequence[Mapping[str, Floats]]) -> dict[str, Floats]:
        return {name: function([m[name] for m in mappings]) for name in mappings[0]}

    def passes(every: Sequence[Passes]) -> Passes:
        return Passes(
            function([p.staying for p in every]),
            function([p.every for p in every]),
            function([p.distinct for p in every]),
        )

    def traffic(every: Sequence[Traffic]) -> Traffic:
        return Traffic(
            function([t.read_bytes for t in every]),
            function([t.write_bytes for t in every]),
            function([t.transfers for t in every]),
            function([t.tiles for t in every]),
        )

    first = tilings[0]
    return Tilings(
        named([t.sizes for t in tilings]),
        {name: passes([t.passes[name] for t in tilings]) for name in first.passes},
        function([t.visits for t in tilings]),
        function([t.share for t in tilings]),
        tuple(function([t.busy[n] for t in tilings]) for n in range(len(first.busy))),
        {name: traffic([t.traffic[name] for t in tilings]) for name in first.traffic},
        tuple(
            (function([t.chosen[n][0] for t in tilings]), named([t.chosen[n][1] for t in tilings]))
            for n in range(len(first.chosen))
        ),
    )


@dataclass(frozen=True)
class Region:
    """What a tile of an operand is to a memory: bytes, transfers, and whether the memory has room
    for it until it is needed again. ``streams``: it is what one execution takes, each time."""

    bytes: Floats
    transfers: Floats
    fits: NDArray[np.bool_]
    streams: bool = False


@dataclass(frozen=True)
class LevelTiles:
    """Tile sizes of a level, and the regions that they make, by memory and operand.

    Memories farther in that are filled past this level are among them: whatever their own tiles
    will be, what all of them together have no room for comes again with each tile of this level.
    """

    level: int
    sizes: Mapping[str, Floats]
    regions: Mapping[str, Mapping[str, Region]]

    @staticmethod
    def of(
        level: int, sizes: Mapping[str, Floats], nest: TileNest, machine: Hierarchy
    ) -> LevelTiles:
        known = {**nest.fixed, **sizes}
        units = machine.levels[level][0].units
        regions: dict[str, dict[str, Region]] = {}
        for memory in machine.memories.values():
            if memory.parent is None or memory.level > level:
                continue
            if memory.level < level >= machine.memories[memory.parent].level:
                continue
            operands = operands_in(memory, nest, machine)
            room = memory.room * memory.units // units
            fits = filled_bytes(memory, operands, nest, sizes) <= room
            regions[memory.name] = {
                operand.name: _region(operand, memory, nest, known, fits) for operand in operands
            }
        return LevelTiles(level, sizes, regions)


def whole(nest: TileNest) -> Tilings:
    """The tiling of main memory, which holds everything."""
    one = np.ones(1)
    return Tilings(
        {loop.name: one * loop.extent for loop in nest.loops},
        {operand.name: Passes(one, one, one) for operand in nest.operands},
        one,
        one,
        (one,),
    )


def boundaries(nest: TileNest, units: int) -> Iterator[Boundary]:
    """The orders of loops that can be best, each with the ways to share the parallel ones.

    Between two orders in which each operand stays through as many loops, there is nothing to
    choose.
    """
    names = [loop.name for loop in nest.loops]
    staying = dict.fromkeys(frozenset(names) - operand.loops for operand in nest.operands)
    sets = [loops for loops in staying if loops]
    if len(sets) <= _PERMUTED:
        priorities = list(itertools.permutations(sets))
    else:
        priorities = [(first, *(s for s in sets if s != first)) for first in sets]
    parallel = sorted(
        (loop for loop in nest.loops if loop.kind is AxisKind.SPATIAL),
        key=lambda loop: -loop.extent,
    )
    longest = [loop.name for loop in parallel[:_SHARED]] if units > 1 else []
    orders = dict.fromkeys(
        tuple(sorted(names, key=lambda name: tuple(name not in loops for loops in priority)))
        for priority in priorities
    )
    for order in orders or {(): None}:
        for first in longest or (None,):
            yield Boundary(order, first)


def cut(
    outer: Tilings,
    inner: LevelTiles,
    boundary: tuple[int, Boundary],
    nest: TileNest,
    machine: Hierarchy,
) -> Tilings:
    """The tilings with one more level: ``inner`` tiles in those of ``outer``, row by row; a
    boundary with its number.

    A tile that does not divide the one around it counts as a part of a tile where it moves an
    operand, and as a whole one where the operand has to be moved again.
    """
    sizes = inner.sizes
    number, loops = boundary
    full = {name: outer.sizes[name] / size for name, size in sizes.items()}
    trips = {name: np.ceil(count) for name, count in full.items()}
    shares = _shares(trips, loops, nest, machine.sharing(inner.level))
    tiles = np.ones(1)
    for name, parts in shares.items():
        tiles = tiles * trips[name]
        trips[name] = trips[name] / parts
        full[name] = np.minimum(full[name], trips[name])
    # Whole tiles are dealt out, whatever loop they come from.
    rounds = np.ceil(tiles / machine.sharing(inner.level)) if shares else tiles
    share, busy = outer.share * rounds / tiles, outer.busy[0] * tiles / rounds
    visits = outer.visits
    for count in trips.values():
        visits = visits * count
    passes = {o.name: _passes(o, outer, loops.order, trips, full) for o in nest.operands}
    chosen = (*outer.chosen, (np.full(outer.rows, float(number)), sizes))
    found = Tilings(sizes, passes, visits, share, (busy, *outer.busy), outer.traffic, chosen)
    traffic = {name: _traffic(found, regions, nest) for name, regions in inner.regions.items()}
    return replace(found, traffic={**outer.traffic, **traffic})


def _passes(
    operand: TileOperand,
    outer: Tilings,
    order: Sequence[str],
    trips: Mapping[str, Floats],
    full: Mapping[str, Floats],
) -> Passes:
    """Of an operand at a boundary; ``full`` are the trips in parts of a tile."""
    before = outer.passes[operand.name]
    staying, every, distinct = np.ones(1), before.every, before.distinct
    stays = np.ones(1, bool)
    for name in order:
        if name in operand.loops:
            staying, every, distinct = (n * full[name] for n in (staying, every, distinct))
            stays = stays & (trips[name] <= 1)
        else:
            every = every * trips[name]
            staying = np.where(stays, staying, staying * trips[name])
    return Passes(staying * np.where(stays, before.staying, before.every), every, distinct)


def _shares(
    trips: Mapping[str, Floats], boundary: Boundary, nest: TileNest, units: int
) -> dict[str, Floats]:
    """Into how many parts the loops are shared by the units: the first one as far as it goes. A
    part of an iteration counts as such."""
    if boundary.shared_first is None:
        return {}
    parallel = [loop.name for loop in nest.loops if loop.kind is AxisKind.SPATIAL]
    first = boundary.shared_first
    left = np.full(1, float(units))
    shares: dict[str, Floats] = {}
    for name in (first, *(other for other in parallel if other != first)):
        shares[name] = np.minimum(left, trips[name])
        left = left / shares[name]
    return shares


def operands_in(memory: Memory, nest: TileNest, machine: Hierarchy) -> list[TileOperand]:
    """The operands that pass a memory."""
    return [o for o in nest.operands if memory in machine.path(o.scope)]


def filled_bytes(
    memory: Memory, operands: Sequence[TileOperand], nest: TileNest, sizes: Mapping[str, Floats]
) -> Floats:
    """Bytes of a memory that a tile takes."""
    total = np.zeros(1)
    known = {**nest.fixed, **sizes}
    for operand in operands:
        if memory.moves is not Moved.REGION:
            total = total + _tiles(operand, nest, known) * _tile_bytes(operand, memory, nest)
        else:
            element = operand.held_bytes if operand.scope == memory.name else operand.element_bytes
            total = total + operand.elements(known) * element
    return total


def _tiles(operand: TileOperand, nest: TileNest, sizes: Mapping[str, Floats]) -> Floats:
    """Tiles of single executions in a tile of many."""
    return operand.elements(sizes) / nest.execution_elements(operand)


def _tile_bytes(operand: TileOperand, memory: Memory, nest: TileNest) -> Floats:
    return nest.execution_bytes(operand, memory.granule_bytes)


def _region(
    operand: TileOperand,
    memory: Memory,
    nest: TileNest,
    sizes: Mapping[str, Floats],
    fits: NDArray[np.bool_],
) -> Region:
    if memory.moves is Moved.EXECUTION and not operand.is_output:
        return Region(_tile_bytes(operand, memory, nest), np.ones(1), fits, True)
    if memory.moves is not Moved.REGION:
        count = _tiles(operand, nest, sizes)
        return Region(count * _tile_bytes(operand, memory, nest), count, fits)
    return Region(operand.moved_bytes(sizes, memory.granule_bytes), np.ones(1), fits)


def _traffic(found: Tilings, regions: Mapping[str, Region], nest: TileNest) -> Traffic:
    read, write, transfers = np.zeros(found.rows), np.zeros(found.rows), np.zeros(found.rows)
    for operand in nest.operands:
        if operand.name not in regions:
            continue
        region, passes = regions[operand.name], found.passes[operand.name]
        moved = np.where(region.fits, passes.staying, passes.every)
        if region.streams:
            moved = nest.calls * found.share
        if operand.is_output:
            # Sums that are not complete come back.
            again = np.maximum(0.0, moved - passes.distinct)
            write = write + region.bytes * moved
            read = read + region.bytes * again
            moved = moved + again
        else:
            read = read + region.bytes * moved
        transfers = transfers + region.transfers * np.ceil(moved)
    return Traffic(read, write, transfers, found.visits)
