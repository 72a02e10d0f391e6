"""Tilings of a nest for a hierarchy of memories, many at a time, and the bytes that they move.

A tiling is decided from main memory inwards. At each boundary between two levels, the tile of the
outer one is cut into tiles of the inner one: loops over these, in some order, some of them shared
by the units of the inner level. Transfers are counted tile by tile
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

from cpembed.cost.machine.nest import ExecutionNest, Floats, TileOperand
from cpembed.cost.machine.passes import Integers, LoopCuts, OperandTiles, Scopes, Stage
from cpembed.hw.machine import Hierarchy, Memory, Overlapping, TransferUnit
from cpembed.ir.computation import AxisKind

_PERMUTED = 3
"""Maximum number of sets of loops that leave an operand in place of which all orders are compared;
of more, each is compared as the innermost."""

_SHARED = 2
"""Number of the longest parallel loops that units share in turn if not all divisions are
compared."""

_DEALT = 16
"""Maximum number of divisions of the parallel loops among units of which all are compared."""

Parts = Mapping[str, int]
"""Maximum number of blocks into which the tiles of each loop are dealt to units; earlier loops get
theirs first."""


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
    ``busy`` the number of units of each level that have work, the innermost first. ``traffic`` is
    that of each memory; ``first`` that of the first tiles, for memories that are filled while
    another tile is computed.
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
        traffic=traffic([t.traffic for t in tilings]),
        first=traffic([t.first for t in tilings]),
    )


@dataclass(frozen=True)
class LevelTiles:
    """Tile sizes of a level, a row for each tiling.

    The level also fills memories farther in whose parent is farther out. ``comes_again`` names
    those without room for such a tile, whose data is then likely to be loaded again with each tile.
    """

    level: int
    sizes: Mapping[str, Floats]
    memories: tuple[Memory, ...]
    comes_again: Mapping[str, NDArray[np.bool_]]

    @staticmethod
    def filling(
        level: int, sizes: Mapping[str, Floats], nest: ExecutionNest, machine: Hierarchy
    ) -> LevelTiles:
        """Return tiles of a level, 0 for the innermost, with the memories that they fill."""
        units = machine.levels[level][0].units
        filled = tuple(
            memory
            for memory in machine.memories.values()
            if memory.parent is not None
            and memory.level <= level < machine.memories[memory.parent].level
        )
        again: dict[str, NDArray[np.bool_]] = {}
        for memory in filled:
            # A memory farther in, with a parent farther out, is filled past this level, though its
            # own tiles are cut later.
            if memory.level < level:
                room = memory.tile_capacity * memory.units // units
                operands = nest.operands_in(memory, machine)
                again[memory.name] = nest.filled_bytes(memory, operands, sizes) > room
        return LevelTiles(level, sizes, filled, again)


def untiled(nest: ExecutionNest) -> Tilings:
    """Return the tiling of main memory, which holds everything."""
    ones = np.ones(1)
    sizes = {loop.name: ones * loop.extent for loop in nest.loops}
    return Tilings(sizes, stages=(), share=ones, busy=(ones,), waits=ones)


def orders(nest: ExecutionNest) -> tuple[list[tuple[str, ...]], bool]:
    """Return orders of loops, innermost first, and whether one of them is optimal."""
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
    return list(different), len(sets) <= _PERMUTED


def dealings(nest: ExecutionNest, units: int) -> tuple[list[Parts], bool]:
    """Return divisions of the parallel loops' tiles among units, and whether these are all.

    Units may be left idle.
    """
    # Reductions are not shared: units would have to add up partial sums.
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


def cut(
    outer: Tilings,
    inner: LevelTiles,
    parts: Parts,
    loop_orders: Sequence[Sequence[str]],
    nest: ExecutionNest,
    machine: Hierarchy,
) -> Iterator[Tilings]:
    """Yield the tilings with one more level, for each order of the loops.

    Parameters
    ----------
    outer : Tilings
        Tilings down to the level outside.
    inner : LevelTiles
        Tiles of the level, row by row.
    parts : Parts
        Division of the tiles among units.
    loop_orders : sequence of sequence of str
        Orders of the loops over tiles, innermost first.
    nest : ExecutionNest
        Nest that is tiled.
    machine : Hierarchy
        Machine with its memories.
    """
    rows = outer.rows
    stage = Stage(inner.level, inner.sizes, _dealt(outer, inner, parts, machine), {})
    # Sizes and divisions do not depend on the order of the loops: regions serve all orders.
    regions = _Regions((*outer.stages, stage), inner, rows, nest, machine)
    busy, waits = regions.busy, regions.waits
    first = {
        memory.name: regions.first(memory)
        for memory in inner.memories
        # Only a double-buffered memory waits for its first tile and then no more.
        if memory.effective_overlap is Overlapping.DOUBLE_BUFFER
    }
    for order in loop_orders:
        ranks = _ranks(order, outer.sizes, inner.sizes, rows)
        history = [*(s.ranks for s in outer.stages), ranks]
        traffic = {memory.name: regions.moved(memory, history) for memory in inner.memories}
        yield Tilings(
            sizes=inner.sizes,
            stages=(*outer.stages, replace(stage, ranks=ranks)),
            share=regions.share[0],
            busy=(busy, *outer.busy),
            waits=waits,
            traffic={**outer.traffic, **traffic},
            first={**outer.first, **first},
        )


def _dealt(
    outer: Tilings, inner: LevelTiles, parts: Parts, machine: Hierarchy
) -> dict[str, Floats]:
    """Return the number of blocks into which each loop is dealt, in the order of ``parts``.

    A loop gets no more than it has tiles; the loops after it divide the units that are left.
    """
    dealt = dict[str, Floats]()
    units = np.full(outer.rows, float(machine.fan_out(inner.level)))
    for name, most in parts.items():
        tiles = np.ceil(outer.sizes[name] / inner.sizes[name])
        dealt[name] = np.minimum(np.minimum(units, most), tiles)
        units = np.floor(units / dealt[name])
    return dealt


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


def _scopes(stages: Sequence[Stage], inner: LevelTiles, machine: Hierarchy) -> Scopes:
    """Return the units to count: the first one, those below the first of each parent, and all.

    One scope suffices if nothing is dealt out.
    """
    if not any(stage.parts for stage in stages):
        return (0.0,)
    parents = {machine.memories[memory.parent or ""].level for memory in inner.memories}
    return (0.0, *(float(level) for level in sorted(parents)), math.inf)


class _Regions:
    """Regions that a level's tiles occupy in all memories that they fill."""

    def __init__(
        self,
        stages: Sequence[Stage],
        inner: LevelTiles,
        rows: int,
        nest: ExecutionNest,
        machine: Hierarchy,
    ) -> None:
        self._inner, self._rows, self._nest, self._machine = inner, rows, nest, machine
        self._scopes = scopes = _scopes(stages, inner, machine)
        self._cuts = cuts = {
            loop.name: LoopCuts(loop.name, loop.extent, stages, scopes, rows=rows)
            for loop in nest.loops
        }
        self._regions = {
            memory.name: [
                _Region(operand, memory, OperandTiles(operand, cuts, scopes, rows), nest)
                for operand in nest.operands_in(memory, machine)
            ]
            for memory in inner.memories
        }

    @cached_property
    def share(self) -> Floats:
        """Fraction of all executions that units do, as ``[scope, row]``."""
        iterations = np.ones((len(self._scopes), self._rows))
        for loop in self._cuts.values():
            iterations = iterations * loop.iterations
        return iterations / math.prod(loop.extent for loop in self._nest.loops)

    @property
    def busy(self) -> Floats:
        """Number of units that have work."""
        firsts = (loop.visits[0, -1] for loop in self._cuts.values())
        return math.prod(firsts, start=np.ones(self._rows))

    @property
    def waits(self) -> Floats:
        """Executions of the first unit that follow each other: the reductions of each output."""
        waits = np.zeros(self._rows)
        for operand in self._nest.operands:
            if operand.is_output:
                each = (
                    loop.visits[-1, 0] if name in operand.loops else loop.iterations[0]
                    for name, loop in self._cuts.items()
                )
                waits = np.maximum(waits, math.prod(each, start=np.ones(self._rows)))
        return waits

    def first(self, memory: Memory) -> Traffic:
        """Return the traffic of the first tile of each unit."""
        regions = self._regions[memory.name]
        return self._exchanged(memory, [r.first(self._cuts, self._scopes) for r in regions])

    def moved(self, memory: Memory, ranks: Sequence[Mapping[str, Floats]]) -> Traffic:
        """Return the traffic of all tiles, with these positions of the loops of each stage."""
        calls, again = self._nest.calls * self.share, self._inner.comes_again.get(memory.name)
        regions = self._regions[memory.name]
        return self._exchanged(memory, [r.moved(ranks, again, calls) for r in regions])

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
        self, operand: TileOperand, memory: Memory, tiles: OperandTiles, nest: ExecutionNest
    ) -> None:
        self.operand, self.memory, self.tiles, self._nest = operand, memory, tiles, nest
        self._streams = memory.transfer_unit is TransferUnit.EXECUTION and not operand.is_output
        self._bytes, self._each = self._sizes(tiles)

    def _sizes(self, tiles: OperandTiles) -> tuple[Floats, Floats]:
        """Return bytes and transfers of each tile."""
        operand, nest, granule = self.operand, self._nest, self.memory.granule_bytes
        if self.memory.transfer_unit is TransferUnit.REGION:
            return operand.moved_bytes({**nest.fixed, **tiles.sizes}, granule), np.ones(1)
        each = np.ones(1)
        if not self._streams:
            each = nest.execution_tiles(operand, tiles.sizes)
        return nest.execution_bytes(operand, granule) * each, each

    def first(self, cuts: Mapping[str, LoopCuts], scopes: Scopes) -> Floats:
        """Return the result of :meth:`moved` for the first tile of each unit."""
        tiles = OperandTiles(self.operand, cuts, scopes, self.tiles.rows, first=True)
        size, each = self._sizes(tiles)
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
        """Return bytes read and written, and transfers likewise, as ``[figure, scope, row]``.

        In rows of ``again``, a tile is loaded again with each iteration; ``calls`` are executions.
        """
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
        # Incomplete sums are read again.
        back = count - tiles.distinct
        figures = back * self._bytes, count * self._bytes, back * self._each, count * self._each
        return np.stack([tiles.totals(figure) for figure in figures])
