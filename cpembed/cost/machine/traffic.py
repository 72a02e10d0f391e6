"""Tilings of a nest for a hierarchy of memories, many at a time, and the bytes that they move.

A tiling is decided from main memory inwards. At each boundary between two levels, the tile of the
outer one is cut into tiles of the inner one: loops over these, in some order, some of them shared
by the units of the inner level. A level may be cut in several stages, each inside the one before:
an operand is held from one of them on, so that one can stay while slices of another stream by.
Transfers are counted tile by tile (:mod:`cpembed.cost.machine.passes`); where consecutive tiles
overlap, as windows of a convolution do, only what is new is transferred.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from cpembed.cost.machine.nest import ExecutionNest, Floats, TileOperand
from cpembed.cost.machine.passes import Integers, LoopCuts, OperandTiles, Scopes, Stage
from cpembed.hw.machine import Hierarchy, Memory, Overlapping, TransferUnit

_PERMUTED = 3
"""Maximum number of sets of loops that leave an operand in place of which all orders are compared;
of more, each is compared as the innermost."""


@dataclass(frozen=True)
class Traffic:
    """Bytes and transfers between a memory and its parent.

    Those without a prefix are of the memory's first unit, which has the most to do; ``shared`` ones
    of all units that the parent's first unit feeds; ``total`` ones of all units.
    """

    read_bytes: Floats
    write_bytes: Floats
    shared_read: Floats
    shared_write: Floats
    total_read: Floats
    total_write: Floats
    read_transfers: Floats
    write_transfers: Floats


@dataclass(frozen=True)
class Tilings:
    """Tilings from main memory down to some level, one a row.

    ``sizes`` are the tiles of that level, in iterations by loop, and ``stages`` the cuts so far,
    the outermost first. ``share`` is the fraction of all executions that the first unit does,
    ``waits`` the number of these that follow each other because they add to the same outputs, and
    ``busy`` the number of units of each level that have work, the innermost first. ``room`` are the
    iterations of each loop through which a memory farther in can leave an operand in place: those
    of the tile in which the operand is held. ``traffic`` is
    that of each memory; ``first`` that of the first tiles, for memories that are filled while
    another tile is computed.
    """

    sizes: Mapping[str, Floats]
    stages: tuple[Stage, ...]
    share: Floats
    busy: tuple[Floats, ...]
    waits: Floats
    room: Mapping[str, Floats]
    traffic: Mapping[str, Traffic] = field(default_factory=dict[str, Traffic])
    first: Mapping[str, Traffic] = field(default_factory=dict[str, Traffic])

    @property
    def rows(self) -> int:
        return len(self.share)

    def select(self, rows: Sequence[int] | Integers) -> Tilings:
        """Return some of the rows, which may be repeated."""

        def pick(values: Sequence[Floats]) -> Floats:
            (column,) = values
            return column[rows]

        return _combined([self], pick)


def joined(tilings: Sequence[Tilings]) -> Tilings:
    """Return the rows of all."""
    return _combined(tilings, np.concatenate)


def _combined(
    tilings: Sequence[Tilings], function: Callable[[Sequence[Floats]], Floats]
) -> Tilings:
    """Apply ``function`` to the arrays that have the same place in each."""

    def named(mappings: Sequence[Mapping[str, Floats]]) -> dict[str, Floats]:
        return {name: function([m[name] for m in mappings]) for name in mappings[0]}

    def stage(number: int) -> Stage:
        every = [t.stages[number] for t in tilings]
        return Stage(
            every[0].level,
            named([s.sizes for s in every]),
            named([s.parts for s in every]),
            named([s.ranks for s in every]),
            every[0].operands,
        )

    def traffic(mappings: Sequence[Mapping[str, Traffic]]) -> dict[str, Traffic]:
        columns = [f.name for f in fields(Traffic)]
        return {
            name: Traffic(*(function([getattr(m[name], c) for m in mappings]) for c in columns))
            for name in mappings[0]
        }

    first = tilings[0]
    return Tilings(
        sizes=named([t.sizes for t in tilings]),
        stages=tuple(stage(number) for number in range(len(first.stages))),
        share=function([t.share for t in tilings]),
        busy=tuple(function([t.busy[n] for t in tilings]) for n in range(len(first.busy))),
        waits=function([t.waits for t in tilings]),
        room=named([t.room for t in tilings]),
        traffic=traffic([t.traffic for t in tilings]),
        first=traffic([t.first for t in tilings]),
    )


@dataclass(frozen=True)
class HeldTile:
    """Tile sizes of a stage, a row for each tiling, and the operands that a level holds from it."""

    sizes: Mapping[str, Floats]
    operands: frozenset[str]


def untiled(nest: ExecutionNest) -> Tilings:
    """Return the tiling of main memory, which holds everything."""
    ones = np.ones(1)
    sizes = {loop.name: ones * loop.extent for loop in nest.loops}
    return Tilings(sizes, stages=(), share=ones, busy=(ones,), waits=ones, room=sizes)


def orders(nest: ExecutionNest) -> list[tuple[str, ...]]:
    """Return orders of loops, innermost first; one is optimal unless there are many operands."""
    # Only the sets of loops that leave an operand in place tell orders apart.
    names = [loop.name for loop in nest.loops]
    staying = dict.fromkeys(frozenset(names) - operand.loops for operand in nest.operands)
    sets = [loops for loops in staying if loops]
    # Orders in which each operand stays in place through as many loops are equivalent.
    if len(sets) <= _PERMUTED:
        priorities = list(itertools.permutations(sets))
    else:
        priorities = [(first, *(s for s in sets if s != first)) for first in sets]
    different = dict.fromkeys(
        tuple(sorted(names, key=lambda name: tuple(name not in loops for loops in priority)))
        for priority in priorities
    )
    return list(different)


def cut(
    outer: Tilings,
    level: int,
    tiles: Sequence[HeldTile],
    parts: Mapping[str, Floats],
    loop_orders: Sequence[Sequence[Sequence[str]]],
    nest: ExecutionNest,
    machine: Hierarchy,
    guessed: Mapping[str, NDArray[np.bool_]] | None = None,
) -> Iterator[Tilings]:
    """Yield the tilings with one more level, for each order of the loops.

    Parameters
    ----------
    outer : Tilings
        Tilings down to the level outside.
    level : int
        Level that is cut, 0 for the innermost.
    tiles : sequence of HeldTile
        Tiles of the level's stages, the outermost first; all operands are held by one of them.
    parts : mapping of str to array
        Number of blocks into which the tiles of each loop in the first stage are dealt to units.
    loop_orders : sequence of sequence of sequence of str
        For each result the orders of the loops over tiles of each stage, innermost loops first.
    nest : ExecutionNest
        Nest that is tiled.
    machine : Hierarchy
        Machine with its memories.
    guessed : mapping of str to array, optional
        Memories farther in whose traffic is guessed: what passes by the level is loaded with its
        tiles, and again in each iteration of the rows that are true.
    """
    rows = outer.rows
    stages = [
        Stage(level, tile.sizes, {} if number else parts, {}, tile.operands)
        for number, tile in enumerate(tiles)
    ]
    # Sizes and divisions do not depend on the order of the loops: regions serve all orders.
    memories = [*machine.levels[level], *(machine.memories[name] for name in guessed or ())]
    regions = _Regions((*outer.stages, *stages), memories, rows, nest, machine)
    busy, waits, room = regions.busy, regions.waits, _room(outer, tiles, nest)
    first = {
        memory.name: regions.first(memory)
        for memory in memories
        # Only a double-buffered memory waits for its first tile and then no more.
        if memory.effective_overlap is Overlapping.DOUBLE_BUFFER
    }
    around = [outer.sizes, *(tile.sizes for tile in tiles)]
    for stage_orders in loop_orders:
        ranks = [
            _ranks(order, *pair, rows)
            for order, pair in zip(stage_orders, itertools.pairwise(around), strict=True)
        ]
        history = [*(s.ranks for s in outer.stages), *ranks]
        moved = {
            memory.name: regions.moved(memory, history, (guessed or {}).get(memory.name))
            for memory in memories
        }
        ordered = [replace(s, ranks=rank) for s, rank in zip(stages, ranks, strict=True)]
        yield Tilings(
            sizes=tiles[-1].sizes,
            stages=(*outer.stages, *ordered),
            share=regions.share[0],
            busy=(busy, *outer.busy),
            waits=waits,
            room=room,
            traffic={**outer.traffic, **moved},
            first={**outer.first, **first},
        )


def _room(outer: Tilings, tiles: Sequence[HeldTile], nest: ExecutionNest) -> dict[str, Floats]:
    """Return the iterations through which memories farther in can leave operands in place."""
    room = {name: np.array(sizes) for name, sizes in tiles[-1].sizes.items()}
    for operand in nest.operands:
        resident = next((tile.sizes for tile in tiles if operand.name in tile.operands), None)
        stays = np.ones(outer.rows, bool)
        if resident is not None:
            # An operand that is cut here is replaced in the loops around.
            for name in operand.loops:
                stays = stays & (resident[name] == outer.sizes[name])
        for name in room.keys() - operand.loops:
            inside = outer.room[name] if resident is None else resident[name]
            most = np.where(stays, outer.room[name], inside)
            room[name] = np.maximum(room[name], most)
    return room


def _ranks(
    order: Sequence[str], outer: Mapping[str, Floats], inner: Mapping[str, Floats], rows: int
) -> dict[str, Floats]:
    """Return the positions of loops among those of several tiles, 0 for the others."""
    ranks, place = dict[str, Floats](), np.zeros(rows)
    for name in order:
        several = outer[name] > inner[name]
        ranks[name] = np.where(several, place, 0.0)
        place = place + several
    return ranks


def _scopes(stages: Sequence[Stage], memories: Sequence[Memory], machine: Hierarchy) -> Scopes:
    """Return the units to count: the first one, those below the first of each parent, and all.

    One scope suffices if nothing is dealt out.
    """
    if not any(stage.parts for stage in stages):
        return (0.0,)
    parents = {machine.memories[memory.parent or ""].level for memory in memories}
    return (0.0, *(float(level) for level in sorted(parents)), math.inf)


class _Regions:
    """Regions that a level's tiles occupy in the memories of the level."""

    def __init__(
        self,
        stages: Sequence[Stage],
        memories: Sequence[Memory],
        rows: int,
        nest: ExecutionNest,
        machine: Hierarchy,
    ) -> None:
        self._rows, self._nest, self._machine = rows, nest, machine
        self._scopes = scopes = _scopes(stages, memories, machine)
        # An operand is moved by the loops down to the stage that holds it.
        self._cuts = {
            number: {
                loop.name: LoopCuts(loop.name, loop.extent, stages[: number + 1], scopes, rows)
                for loop in nest.loops
            }
            for number, stage in enumerate(stages)
            if stage.level == stages[-1].level
        }
        self._last = self._cuts[len(stages) - 1]
        self._depths = {name: number for number in self._cuts for name in stages[number].operands}
        self._regions = {
            memory.name: [
                _Region(operand, memory, self._cuts, self._depths[operand.name], scopes, nest, rows)
                for operand in nest.operands_in(memory, machine)
            ]
            for memory in memories
        }

    @cached_property
    def share(self) -> Floats:
        """Fraction of all executions that units do, as ``[scope, row]``."""
        iterations = np.ones((len(self._scopes), self._rows))
        for loop in self._last.values():
            iterations = iterations * loop.iterations
        return iterations / math.prod(loop.extent for loop in self._nest.loops)

    @property
    def busy(self) -> Floats:
        """Number of units that have work."""
        firsts = (loop.visits[0, -1] for loop in self._last.values())
        return math.prod(firsts, start=np.ones(self._rows))

    @property
    def waits(self) -> Floats:
        """Executions of the first unit that follow each other: the reductions of each output.

        Those that add to the elements of one tile of the output take turns.
        """
        waits = np.zeros(self._rows)
        for operand in self._nest.operands:
            if operand.is_output:
                cuts = self._cuts.get(self._depths.get(operand.name, -1), self._last)
                each = (
                    loop.visits[-1, 0] if name in operand.loops else loop.iterations[0]
                    for name, loop in cuts.items()
                )
                waits = np.maximum(waits, math.prod(each, start=np.ones(self._rows)))
        return waits

    def first(self, memory: Memory) -> Traffic:
        """Return the traffic of the first tile of each unit."""
        return self._exchanged(memory, [r.first() for r in self._regions[memory.name]])

    def moved(
        self,
        memory: Memory,
        ranks: Sequence[Mapping[str, Floats]],
        again: NDArray[np.bool_] | None,
    ) -> Traffic:
        """Return the traffic of all tiles, with these positions of the loops of each stage."""
        calls = self._nest.calls * self.share
        regions = self._regions[memory.name]
        return self._exchanged(memory, [r.moved(ranks, calls, again) for r in regions])

    def _exchanged(self, memory: Memory, figures: Sequence[Floats]) -> Traffic:
        total = sum(figures, start=np.zeros((4, len(self._scopes), self._rows)))
        read, write, reads, writes = total
        level = float(self._machine.memories[memory.parent or ""].level)
        # Without division among units there is one scope, which stands for all.
        place = self._scopes.index(level) if level in self._scopes else 0
        return Traffic(
            *(read[0], write[0], read[place], write[place], read[-1], write[-1]),
            *(reads[0], writes[0]),
        )


class _Region:
    """Part of an operand in a memory, tile by tile: bytes, and the transfers that move them."""

    def __init__(
        self,
        operand: TileOperand,
        memory: Memory,
        cuts: Mapping[int, Mapping[str, LoopCuts]],
        depth: int,
        scopes: Scopes,
        nest: ExecutionNest,
        rows: int,
    ) -> None:
        self.operand, self.memory, self._nest = operand, memory, nest
        self._cuts, self._depth, self._scopes = cuts, depth, scopes
        self._rows = rows
        self.tiles = OperandTiles(operand, cuts[depth], scopes, rows)
        self._streams = memory.transfer_unit is TransferUnit.EXECUTION and not operand.is_output
        self._bytes, self._each = self._sizes(self.tiles)

    def _sizes(self, tiles: OperandTiles) -> tuple[Floats, Floats]:
        """Return bytes and transfers of each tile."""
        operand, nest, granule = self.operand, self._nest, self.memory.granule_bytes
        if self.memory.transfer_unit is TransferUnit.REGION:
            return operand.moved_bytes({**nest.fixed, **tiles.sizes}, granule), np.ones(1)
        each = np.ones(1)
        if not self._streams:
            each = nest.execution_tiles(operand, tiles.sizes)
        return nest.execution_bytes(operand, granule) * each, each

    def first(self) -> Floats:
        """Return the result of :meth:`moved` for the first tile of each unit."""
        tiles = OperandTiles(
            self.operand, self._cuts[self._depth], self._scopes, self._rows, first=True
        )
        size, each = self._sizes(tiles)
        moved, transfers = tiles.totals(tiles.distinct * size), tiles.totals(tiles.distinct * each)
        none = np.zeros_like(moved)
        if self.operand.is_output:
            return np.stack([none, moved, none, transfers])
        return np.stack([moved, none, transfers, none])

    def moved(
        self,
        ranks: Sequence[Mapping[str, Floats]],
        calls: Floats,
        again: NDArray[np.bool_] | None,
    ) -> Floats:
        """Return bytes read and written, and transfers likewise, as ``[figure, scope, row]``.

        ``calls`` are executions; in rows of ``again``, each iteration loads a tile again.
        """
        none = np.zeros_like(calls)
        if self._streams:
            return np.stack([calls * self._bytes, none, calls, none])
        tiles = self.tiles
        count = tiles.moves(ranks)
        if again is not None:
            count = np.where(np.broadcast_to(again, (tiles.rows,))[tiles.row], tiles.every, count)
        if not self.operand.is_output:
            read = self._swept(ranks, tiles.totals(count * self._bytes))
            return np.stack([read, none, tiles.totals(count * self._each), none])
        # Incomplete sums are read again.
        back = count - tiles.distinct
        figures = back * self._bytes, count * self._bytes, back * self._each, count * self._each
        return np.stack([tiles.totals(figure) for figure in figures])

    def _swept(self, ranks: Sequence[Mapping[str, Floats]], moved: Floats) -> Floats:
        """Return the bytes read where consecutive tiles keep their common elements."""
        if self.memory.transfer_unit is not TransferUnit.REGION:
            return moved
        windowed, operand = self._nest.windowed(self.operand), self.operand
        cuts = self._cuts[self._depth]
        for number in (stage for stage in self._cuts if stage <= self._depth):
            for name in windowed:
                is_innermost = self._sweeps(name, number, ranks)
                if not is_innermost.any():
                    continue
                loop = cuts[name].swept(number)
                tiles = OperandTiles(operand, {**cuts, name: loop}, self._scopes, self._rows)
                new = tiles.totals(tiles.moves(ranks) * self._sizes(tiles)[0])
                moved = np.where(is_innermost, np.minimum(moved, new), moved)
        return moved

    def _sweeps(
        self, name: str, number: int, ranks: Sequence[Mapping[str, Floats]]
    ) -> NDArray[np.bool_]:
        """Return the rows in which the loop goes on to the next tile of the operand first.

        That is the innermost of the loops over its tiles, which are those of stage ``number``.
        """
        cuts = self._cuts[self._depth]
        sweeps = cuts[name].several(number)
        for moving in self.operand.loops:
            for stage in range(number + 1, self._depth + 1):
                sweeps = sweeps & ~cuts[moving].several(stage)
            if moving != name:
                is_outside = ranks[number][moving] > ranks[number][name]
                sweeps = sweeps & (is_outside | ~cuts[moving].several(number))
        return sweeps
