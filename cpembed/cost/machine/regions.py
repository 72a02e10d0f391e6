"""Bytes and transfers of the tiles that a level holds, by link between memories.

Each operand has a region in each memory that it passes, whose tiles are counted one by one
(:mod:`cpembed.cost.machine.passes`): as the units take them, and as their parent reads them, which
is less where one read serves several units. Where consecutive tiles overlap, as windows of a
convolution do, only what is new is transferred.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from cpembed.cost.machine.nest import ExecutionNest, Floats, TileOperand
from cpembed.cost.machine.passes import LoopCuts, OperandTiles, Scopes, Stage
from cpembed.hw.machine import Hierarchy, Link, Memory, TransferUnit


@dataclass(frozen=True)
class Traffic:
    """Bytes and transfers between a memory and the one that fills it, its parent.

    Those without a prefix are of the memory's first unit, which has the most to do; ``shared`` ones
    are those of the parent's first unit, ``total`` ones of all units of the parent. All units of
    the memory together take ``received`` bytes, which are more than the parent reads if one read
    serves several units.
    """

    read_bytes: Floats
    write_bytes: Floats
    shared_read: Floats
    shared_write: Floats
    total_read: Floats
    total_write: Floats
    received: Floats
    read_transfers: Floats
    write_transfers: Floats


def _scopes(stages: Sequence[Stage], links: Iterable[Link]) -> Scopes:
    """Return the units to count: the first one, those below the first of each parent, and all.

    One of each level is enough where all units below a parent are served by one read. One scope
    suffices if nothing is dealt out.
    """
    if not any(stage.parts for stage in stages):
        return (0.0,)
    levels = sorted({float(link.parent.level) for link in links})
    serving = sorted({-float(link.parent.level) for link in links if link.parent.multicast})
    return (0.0, *levels, *serving, math.inf)


class Regions:
    """Regions that a level's tiles occupy in the memories of the level."""

    def __init__(
        self,
        stages: Sequence[Stage],
        memories: Sequence[Memory],
        rows: int,
        nest: ExecutionNest,
        machine: Hierarchy,
    ) -> None:
        self._rows, self._nest = rows, nest
        links = nest.links(machine, memories)
        self.links = {name: link for name, (link, _) in links.items()}
        self._scopes = scopes = _scopes(stages, self.links.values())
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
            name: [
                _Region(operand, link, self._cuts, self._depths[operand.name], scopes, nest, rows)
                for operand in operands
            ]
            for name, (link, operands) in links.items()
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

    def first(self, link: Link) -> Traffic:
        """Return the traffic of the first tile of each unit."""
        return self._exchanged(link, [r.first() for r in self._regions[link.name]])

    def moved(
        self,
        link: Link,
        ranks: Sequence[Mapping[str, Floats]],
        again: NDArray[np.bool_] | None,
    ) -> Traffic:
        """Return the traffic of all tiles, with these positions of the loops of each stage."""
        calls = self._nest.calls * self.share
        regions = self._regions[link.name]
        return self._exchanged(link, [r.moved(ranks, calls, again) for r in regions])

    def _exchanged(self, link: Link, figures: Sequence[Floats]) -> Traffic:
        total = sum(figures, start=np.zeros((5, len(self._scopes), self._rows)))
        read, write, reads, writes, sent = total
        place = _place(self._scopes, float(link.parent.level))
        return Traffic(
            *(read[0], write[0], sent[place], write[place], sent[-1], write[-1], read[-1]),
            *(reads[0], writes[0]),
        )


def _place(scopes: Scopes, scope: float) -> int:
    """Return the place of a scope; without division among units there is one, which stands for all.

    Parameters
    ----------
    scopes : tuple of float
        Scopes that are counted.
    scope : float
        One of them.
    """
    return scopes.index(scope) if scope in scopes else 0


class _Region:
    """Part of an operand in a memory, tile by tile: bytes, and the transfers that move them."""

    def __init__(
        self,
        operand: TileOperand,
        link: Link,
        cuts: Mapping[int, Mapping[str, LoopCuts]],
        depth: int,
        scopes: Scopes,
        nest: ExecutionNest,
        rows: int,
    ) -> None:
        self.operand, self.memory, self._nest = operand, link.memory, nest
        self._cuts, self._depth, self._scopes = cuts, depth, scopes
        self._rows = rows
        self._streams = link.memory.transfer_unit is TransferUnit.EXECUTION
        self._streams = self._streams and not operand.is_output
        self._serving = self._serving_scopes(link)
        self.tiles = self._tiles(cuts[depth])
        self._bytes, self._each = self._sizes(self.tiles)

    def _serving_scopes(self, link: Link) -> list[int] | None:
        """Return for each scope the place of that in which loops count that leave a tile in place.

        None if each unit is served by reads of its own: then they count as all others do.
        """
        scopes, level = self._scopes, float(link.parent.level)
        if not link.parent.multicast or self._streams or self.operand.is_output or len(scopes) < 2:
            return None
        # The first unit has the most iterations, and others take the same tiles as it does.
        serving = [0] * len(scopes)
        serving[-1] = scopes.index(-level)
        return serving

    def _sizes(self, tiles: OperandTiles) -> tuple[Floats, Floats]:
        """Return bytes and transfers of each tile."""
        operand, nest, granule = self.operand, self._nest, self.memory.granule_bytes
        if self.memory.transfer_unit is TransferUnit.REGION:
            return operand.moved_bytes({**nest.fixed, **tiles.sizes}, granule), np.ones(1)
        each = np.ones(1)
        if not self._streams:
            each = nest.execution_tiles(operand, tiles.sizes)
        return nest.execution_bytes(operand, granule) * each, each

    def _tiles(
        self, cuts: Mapping[str, LoopCuts], *, first: bool = False, served: bool = False
    ) -> OperandTiles:
        """Return tiles as units take them, or ``served``: as the parent reads them for all."""
        still_scopes = self._serving if served else None
        return OperandTiles(
            self.operand, cuts, self._scopes, self._rows, first=first, still_scopes=still_scopes
        )

    def first(self) -> Floats:
        """Return the result of :meth:`moved` for the first tile of each unit."""
        cuts = self._cuts[self._depth]
        tiles = self._tiles(cuts, first=True)
        size, each = self._sizes(tiles)
        moved, transfers = tiles.totals(tiles.distinct * size), tiles.totals(tiles.distinct * each)
        none = np.zeros_like(moved)
        if self.operand.is_output:
            return np.stack([none, moved, none, transfers, none])
        sent = moved
        if self._serving is not None:
            served = self._tiles(cuts, first=True, served=True)
            sent = served.totals(served.distinct * size)
        return np.stack([moved, none, transfers, none, sent])

    def moved(
        self,
        ranks: Sequence[Mapping[str, Floats]],
        calls: Floats,
        again: NDArray[np.bool_] | None,
    ) -> Floats:
        """Return bytes and transfers as ``[figure, scope, row]``.

        Figures are the bytes that units read and write, transfers likewise, and the bytes that the
        parent gives. ``calls`` are executions; in rows of ``again``, each iteration loads a tile
        again.
        """
        none = np.zeros_like(calls)
        if self._streams:
            return np.stack([calls * self._bytes, none, calls, none, calls * self._bytes])
        tiles = self.tiles
        count = self._moves(tiles, ranks, again)
        if not self.operand.is_output:
            read = self._swept(ranks, tiles.totals(count * self._bytes), served=False)
            sent = read
            if self._serving is not None:
                served = self._tiles(self._cuts[self._depth], served=True)
                sent = served.totals(self._moves(served, ranks, again) * self._bytes)
                sent = self._swept(ranks, sent, served=True)
            return np.stack([read, none, tiles.totals(count * self._each), none, sent])
        # Incomplete sums are read again.
        back = count - tiles.distinct
        figures = back * self._bytes, count * self._bytes, back * self._each, count * self._each
        totals = [tiles.totals(figure) for figure in figures]
        return np.stack([*totals, totals[0]])

    def _moves(
        self,
        tiles: OperandTiles,
        ranks: Sequence[Mapping[str, Floats]],
        again: NDArray[np.bool_] | None,
    ) -> Floats:
        count = tiles.moves(ranks)
        if again is None:
            return count
        return np.where(np.broadcast_to(again, (tiles.rows,))[tiles.row], tiles.every, count)

    def _swept(
        self, ranks: Sequence[Mapping[str, Floats]], moved: Floats, *, served: bool
    ) -> Floats:
        """Return the bytes read where consecutive tiles keep their common elements."""
        if self.memory.transfer_unit is not TransferUnit.REGION:
            return moved
        windowed = self._nest.windowed(self.operand)
        cuts = self._cuts[self._depth]
        full = {**self._nest.fixed, **{n: loop.tile(self._depth) for n, loop in cuts.items()}}
        for number in (stage for stage in self._cuts if stage <= self._depth):
            for name in windowed:
                is_innermost = self._sweeps(name, number, ranks)
                is_innermost = is_innermost & self.operand.keeps_overlap(name, full)
                if not is_innermost.any():
                    continue
                swept = {**cuts, name: cuts[name].swept(number)}
                tiles = self._tiles(swept, served=served)
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
