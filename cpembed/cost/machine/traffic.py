"""Tilings of a nest for a hierarchy of memories, many at a time, and the bytes that they move.

A tiling is chosen from main memory inwards. At each boundary between two levels the tile of the
outer one is cut into tiles of the inner one: loops over these, in some order, some of them shared
by the units of the inner level. What is moved is counted tile by tile
(:mod:`cpembed.cost.machine.passes`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from cpembed.cost.machine.nest import Floats, TileNest, TileOperand
from cpembed.cost.machine.passes import Integers, LoopCuts, OperandTiles, Scopes, Stage
from cpembed.hw.machine import Hierarchy, Memory, Overlapping, TransferUnit
from cpembed.ir.computation import AxisKind

_PERMUTED = 3
"""Sets of loops that leave an operand where it is, of which all orders are tried; of more of them,
each is tried as the innermost."""

_SHARED = 2
"""The longest parallel loops, which units share in several ways where not all ways are compared."""

_DEALT = 16
"""Ways to share the parallel loops that are compared at most."""

Parts = Mapping[str, int]
"""Into how many blocks the tiles of loops are dealt to units at most, the first loop first."""


@dataclass(frozen=True)
class Traffic:
    """What a memory exchanges with its parent: bytes and transfers of its first unit, which has the
    most to do; ``shared``: bytes of all units that the parent's first unit feeds; ``total``: of all
    units."""

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
    """Tilings that are chosen from main memory down to some level, one a row.

    ``sizes`` are the tiles of that level, ``stages`` the cuts so far, the outermost first.
    ``share`` is the part of all executions that the first unit does, ``busy`` says how many units
    of each level have work, the innermost first; ``waits`` counts executions of the first unit that
    follow each other because they add to the same outputs. ``first`` is the traffic of the first
    tiles alone, of memories that are filled while a tile before is computed.
    """

    sizes: Mapping[str, Floats]
    stages: tuple[Stage, ...]
    share: Floats
    busy: tuple[Floats, ...]
    waits: Floats
    traffic: Mapping[str, Traffic] = field(default_factory=dict[str, Traffic])
    first: Mapping[str, Traffic] = field(default_factory=dict[str, Traffic])

    @property
    def rows(self) -> int:
        return len(self.share)

    def taken(self, rows: Sequence[int] | Integers) -> Tilings:
        """Some of the rows, which may be repeated."""

        def pick(values: Sequence[Floats]) -> Floats:
            (column,) = values
            return column[rows]

        return _combined([self], pick)


def joined(tilings: Sequence[Tilings]) -> Tilings:
    """The rows of all."""
    return _combined(tilings, np.concatenate)


def _combined(
    tilings: Sequence[Tilings], function: Callable[[Sequence[Floats]], Floats]
) -> Tilings:
    """What ``function`` makes of arrays that have the same place in each."""

    def named(mappings: Sequence[Mapping[str, Floats]]) -> dict[str, Floats]:
        return {name: function([m[name] for m in mappings]) for name in mappings[0]}

    def stage(number: int) -> Stage:
        every = [t.stages[number] for t in tilings]
        return Stage(
            every[0].level,
            named([s.sizes for s in every]),
            named([s.parts for s in every]),
            named([s.ranks for s in every]),
        )

    def traffic(mappings: Sequence[Mapping[str, Traffic]]) -> dict[str, Traffic]:
        columns = [f.name for f in fields(Traffic)]
        return {
            name: Traffic(*(function([getattr(m[name], c) for m in mappings]) for c in columns))
            for name in mappings[0]
        }

    first = tilings[0]
    return Tilings(
        named([t.sizes for t in tilings]),
        tuple(stage(number) for number in range(len(first.stages))),
        function([t.share for t in tilings]),
        tuple(function([t.busy[n] for t in tilings]) for n in range(len(first.busy))),
        function([t.waits for t in tilings]),
        traffic([t.traffic for t in tilings]),
        traffic([t.first for t in tilings]),
    )


@dataclass(frozen=True)
class LevelTiles:
    """Tile sizes of a level, a row for each tiling.

    Memories farther in that are filled past this level are filled by it too: ``comes_again`` names
    those that have no room for all that such a tile takes, so that it is likely to come again with
    each tile.
    """

    level: int
    sizes: Mapping[str, Floats]
    memories: tuple[Memory, ...]
    comes_again: Mapping[str, NDArray[np.bool_]]

    @staticmethod
    def of(
        level: int, sizes: Mapping[str, Floats], nest: TileNest, machine: Hierarchy
    ) -> LevelTiles:
        units = machine.levels[level][0].units
        filled = filled_at(level, machine)
        again: dict[str, NDArray[np.bool_]] = {}
        for memory in filled:
            if memory.level < level:
                room = memory.tile_capacity * memory.units // units
                operands = operands_in(memory, nest, machine)
                again[memory.name] = filled_bytes(memory, operands, nest, sizes) > room
        return LevelTiles(level, sizes, filled, again)


def filled_at(level: int, machine: Hierarchy) -> tuple[Memory, ...]:
    """The memories of a level, and those farther in that are filled past it."""
    return tuple(
        memory
        for memory in machine.memories.values()
        if memory.parent is not None
        and memory.level <= level < machine.memories[memory.parent].level
    )


def whole(nest: TileNest) -> Tilings:
    """The tiling of main memory, which holds everything."""
    one = np.ones(1)
    return Tilings({loop.name: one * loop.extent for loop in nest.loops}, (), one, (one,), one)


def orders(nest: TileNest) -> tuple[list[tuple[str, ...]], bool]:
    """The orders of loops, innermost first, and whether one of them is as good as any other.

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
    found = dict.fromkeys(
        tuple(sorted(names, key=lambda name: tuple(name not in loops for loops in priority)))
        for priority in priorities
    )
    return list(found), len(sets) <= _PERMUTED


def dealings(nest: TileNest, units: int) -> tuple[list[Parts], bool]:
    """Ways to deal the tiles of parallel loops to units, some of which may be left idle, and
    whether these are all."""
    parallel = sorted(
        (loop for loop in nest.loops if loop.kind is AxisKind.SPATIAL),
        key=lambda loop: -loop.extent,
    )
    if units == 1 or not parallel:
        return [{}], True
    every: list[Parts] = []
    for parts in _products([loop.extent for loop in parallel], units):
        every.append({loop.name: n for loop, n in zip(parallel, parts, strict=True)})
        if len(every) > _DEALT:
            return _some_dealings([loop.name for loop in parallel], units), False
    return every, True


def _products(most: Sequence[int], units: int) -> Iterator[tuple[int, ...]]:
    """All tuples of at most these numbers whose product is at most so many."""
    if not most:
        yield ()
        return
    for first in range(1, min(most[0], units) + 1):
        for rest in _products(most[1:], units // first):
            yield first, *rest


def _some_dealings(names: Sequence[str], units: int) -> list[Parts]:
    """Each of the longest loops as far as it goes, or less far, then what is left; and one unit
    alone."""
    found: list[Parts] = [dict.fromkeys(names, 1)]
    for first in names[:_SHARED]:
        for limit in dict.fromkeys((units, units // 2, math.isqrt(units))):
            rest = dict.fromkeys((name for name in names if name != first), units)
            found.append({first: limit, **rest})
    return found


def cut(
    outer: Tilings,
    inner: LevelTiles,
    parts: Parts,
    tried: Sequence[Sequence[str]],
    nest: TileNest,
    machine: Hierarchy,
) -> Iterator[Tilings]:
    """The tilings with one more level, for each of the orders that are ``tried``: ``inner`` tiles
    in those of ``outer``, row by row, dealt to units in ``parts``."""
    rows = outer.rows
    stage = Stage(inner.level, inner.sizes, _dealt(outer, inner, parts, machine), {})
    regions = _Regions((*outer.stages, stage), inner, rows, nest, machine)
    busy, waits = regions.busy, regions.waits
    first = {
        memory.name: regions.first(memory)
        for memory in inner.memories
        if memory.effective_overlap is Overlapping.DOUBLE_BUFFER
    }
    for order in tried:
        ranks = _ranks(order, outer.sizes, inner.sizes, rows)
        history = [*(s.ranks for s in outer.stages), ranks]
        traffic = {memory.name: regions.moved(memory, history) for memory in inner.memories}
        yield Tilings(
            inner.sizes,
            (*outer.stages, replace(stage, ranks=ranks)),
            regions.share[0],
            (busy, *outer.busy),
            waits,
            {**outer.traffic, **traffic},
            {**outer.first, **first},
        )


def _dealt(
    outer: Tilings, inner: LevelTiles, parts: Parts, machine: Hierarchy
) -> dict[str, Floats]:
    """Into how many blocks loops are dealt, row by row: no more than they have tiles."""
    dealt = dict[str, Floats]()
    left = np.full(outer.rows, float(machine.fan_out(inner.level)))
    for name, most in parts.items():
        tiles = np.ceil(outer.sizes[name] / inner.sizes[name])
        dealt[name] = np.minimum(np.minimum(left, most), tiles)
        left = np.floor(left / dealt[name])
    return dealt


def _ranks(
    order: Sequence[str], outer: Mapping[str, Floats], inner: Mapping[str, Floats], rows: int
) -> dict[str, Floats]:
    """The places of loops among those of more than one tile, 0 for the others."""
    ranks, place = dict[str, Floats](), np.zeros(rows)
    for name in order:
        several = outer[name] > inner[name]
        ranks[name] = np.where(several, place, 0.0)
        place = place + several
    return ranks


def _scopes(stages: Sequence[Stage], inner: LevelTiles, machine: Hierarchy) -> Scopes:
    """The first unit, those below the first unit of each parent, and all; one where nothing is
    dealt out."""
    if not any(stage.parts for stage in stages):
        return (0.0,)
    parents = {machine.memories[memory.parent or ""].level for memory in inner.memories}
    return (0.0, *(float(level) for level in sorted(parents)), math.inf)


class _Regions:
    """The regions that a level's tiles make in all memories that they fill."""

    def __init__(
        self,
        stages: Sequence[Stage],
        inner: LevelTiles,
        rows: int,
        nest: TileNest,
        machine: Hierarchy,
    ) -> None:
        self._inner, self._rows, self._nest, self._machine = inner, rows, nest, machine
        self._scopes = scopes = _scopes(stages, inner, machine)
        self._cuts = cuts = {
            loop.name: LoopCuts(loop.name, loop.extent, stages, scopes, rows) for loop in nest.loops
        }
        self._regions = {
            memory.name: [
                _Region(operand, memory, OperandTiles(operand, cuts, scopes, rows), nest)
                for operand in operands_in(memory, nest, machine)
            ]
            for memory in inner.memories
        }

    @cached_property
    def share(self) -> Floats:
        """``[scope, row]``: the part of all executions that units do."""
        found = np.ones((len(self._scopes), self._rows))
        for loop in self._cuts.values():
            found = found * loop.iterations
        return found / math.prod(loop.extent for loop in self._nest.loops)

    @property
    def busy(self) -> Floats:
        """Units that have work."""
        firsts = (loop.visits[0, -1] for loop in self._cuts.values())
        return math.prod(firsts, start=np.ones(self._rows))

    @property
    def waits(self) -> Floats:
        """Executions of the first unit that follow each other: of each tile of outputs all
        reductions."""
        found = np.zeros(self._rows)
        for operand in self._nest.operands:
            if operand.is_output:
                each = (
                    loop.visits[-1, 0] if name in operand.loops else loop.iterations[0]
                    for name, loop in self._cuts.items()
                )
                found = np.maximum(found, math.prod(each, start=np.ones(self._rows)))
        return found

    def first(self, memory: Memory) -> Traffic:
        """Of the first tile of each unit alone."""
        regions = self._regions[memory.name]
        return self._exchanged(memory, [one.first(self._cuts, self._scopes) for one in regions])

    def moved(self, memory: Memory, ranks: Sequence[Mapping[str, Floats]]) -> Traffic:
        """Of all tiles, where the loops of each stage have these places."""
        calls, again = self._nest.calls * self.share, self._inner.comes_again.get(memory.name)
        regions = self._regions[memory.name]
        return self._exchanged(memory, [one.moved(ranks, again, calls) for one in regions])

    def _exchanged(self, memory: Memory, figures: Sequence[Floats]) -> Traffic:
        total = sum(figures, start=np.zeros((4, len(self._scopes), self._rows)))
        read, write, reads, writes = total
        level = float(self._machine.memories[memory.parent or ""].level)
        place = self._scopes.index(level) if level in self._scopes else 0
        return Traffic(
            *(read[0], write[0], read[place], write[place], read[-1], write[-1]),
            *(reads[0], writes[0]),
        )


class _Region:
    """What a memory holds of an operand, tile by tile: bytes, and transfers that bring them."""

    def __init__(
        self, operand: TileOperand, memory: Memory, tiles: OperandTiles, nest: TileNest
    ) -> None:
        self.operand, self.memory, self.tiles, self._nest = operand, memory, tiles, nest
        self._streams = memory.transfer_unit is TransferUnit.EXECUTION and not operand.is_output
        self._bytes, self._each = self._of(tiles)

    def _of(self, tiles: OperandTiles) -> tuple[Floats, Floats]:
        """Bytes and transfers of tiles."""
        operand, nest, granule = self.operand, self._nest, self.memory.granule_bytes
        if self.memory.transfer_unit is TransferUnit.REGION:
            return operand.moved_bytes({**nest.fixed, **tiles.sizes}, granule), np.ones(1)
        each = np.ones(1)
        if not self._streams:
            each = execution_tiles(operand, nest, tiles.sizes)
        return nest.execution_bytes(operand, granule) * each, each

    def first(self, cuts: Mapping[str, LoopCuts], scopes: Scopes) -> Floats:
        """As :meth:`moved`, of the first tile of each unit alone."""
        tiles = OperandTiles(self.operand, cuts, scopes, self.tiles.rows, first=True)
        size, each = self._of(tiles)
        moved, transfers = tiles.totals(tiles.distinct * size), tiles.totals(tiles.distinct * each)
        none = np.zeros_like(moved)
        if self.operand.is_output:
            return np.stack([none, moved, none, transfers])
        return np.stack([moved, none, transfers, none])

    def moved(
        self,
        ranks: Sequence[Mapping[str, Floats]],
        again: NDArray[np.bool_] | None,
        calls: Floats,
    ) -> Floats:
        """``[figure, scope, row]``: bytes read, bytes written, transfers that read, that write.
        ``again``: where a tile comes again with each iteration; ``calls`` are executions."""
        none = np.zeros_like(calls)
        if self._streams:
            return np.stack([calls * self._bytes, none, calls, none])
        tiles = self.tiles
        count = tiles.moves(ranks)
        if again is not None:
            count = np.where(np.broadcast_to(again, (tiles.rows,))[tiles.row], tiles.every, count)
        if not self.operand.is_output:
            moved = tiles.totals(count * self._bytes), none, tiles.totals(count * self._each), none
            return np.stack(moved)
        # Sums that are not complete come back.
        back = count - tiles.distinct
        figures = back * self._bytes, count * self._bytes, back * self._each, count * self._each
        return np.stack([tiles.totals(figure) for figure in figures])


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
        if memory.transfer_unit is not TransferUnit.REGION:
            each = nest.execution_bytes(operand, memory.granule_bytes)
            total = total + execution_tiles(operand, nest, sizes) * each
        else:
            element = operand.held_bytes if operand.scope == memory.name else operand.element_bytes
            total = total + operand.elements(known) * element
    return total


def execution_tiles(operand: TileOperand, nest: TileNest, sizes: Mapping[str, Floats]) -> Floats:
    """Different tiles of single executions in a tile of many."""
    return operand.elements({**dict.fromkeys(nest.axes, np.ones(1)), **sizes})
