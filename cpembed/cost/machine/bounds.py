"""Lower bounds on the cost of all tilings of a nest, by the sizes of their tiles.

Tile sizes are divided into cells: of each loop a range of sizes, and for all loops a grid of these.
At each level, a loop that leaves an operand in place repeats its transfers as often as there are
tiles, at least the number of the largest ones of the cell; an operand occupies at least what the
smallest ones do. Operands may be held one outside the other: those inside may be held in slices of
one iteration. A level's bound is added to that of the levels inside it, whose tiles are no larger.
So every tiling costs at least what the cells of its tiles do, and the least of all cells is a bound
for the nest.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from cpembed.cost.machine.nest import ExecutionNest, Floats, TileOperand
from cpembed.cost.machine.objective import Cost, enclosing_cycles
from cpembed.cost.machine.passes import Integers
from cpembed.cost.machine.sizes import cuts, thinned
from cpembed.cost.machine.times import compute_time
from cpembed.cost.machine.traffic import Tilings
from cpembed.hw.machine import Hierarchy, Link, Memory, Overlapping, TransferUnit
from cpembed.ir.computation import AxisKind

_PERMUTED = 4
"""Maximum number of operands of a level of which all orders are compared."""

_BEYOND = 1e30
"""Bytes and transfers of cells in which no tile fits."""

Booleans = NDArray[np.bool_]

HoldOrder = tuple[str, ...]
"""Operands of a level, the one that is held outermost first."""


@dataclass(frozen=True)
class Grid:
    """Cells of tile sizes: those of a loop begin at ``sizes``, ascending from 1."""

    names: tuple[str, ...]
    extents: tuple[int, ...]
    sizes: tuple[Floats, ...]

    @staticmethod
    def for_nest(nest: ExecutionNest, limit: int) -> Grid:
        """Return a grid of at most about ``limit`` cells, of single sizes if there are so few."""
        extents = tuple(loop.extent for loop in nest.loops)
        options = [list(range(1, extent + 1)) for extent in extents]
        if math.prod(extents) > limit:
            # Any other size has as many tiles as a smaller one of these.
            options = thinned([cuts(extent) for extent in extents], limit)
        names = tuple(loop.name for loop in nest.loops)
        return Grid(names, extents, tuple(np.array(sizes, float) for sizes in options))

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of cells of each loop; a nest without loops has one cell."""
        return tuple(len(sizes) for sizes in self.sizes) or (1,)

    def along(self, place: int, values: Floats) -> Floats:
        """Return values of a loop's cells, to be broadcast over the grid."""
        return values.reshape([-1 if n == place else 1 for n in range(len(self.names))])

    @cached_property
    def least(self) -> dict[str, Floats]:
        """Smallest size of each loop's cells."""
        return {n: self.along(i, self.sizes[i]) for i, n in enumerate(self.names)}

    @cached_property
    def counts(self) -> dict[str, Floats]:
        """Least number of tiles of each loop's cells."""
        counts: dict[str, Floats] = {}
        for place, (name, extent) in enumerate(zip(self.names, self.extents, strict=True)):
            largest = np.append(self.sizes[place][1:] - 1, extent)
            counts[name] = self.along(place, np.ceil(extent / largest))
        return counts

    def cells(self, sizes: Mapping[str, Floats]) -> tuple[Integers, ...]:
        """Return the cells of tile sizes, an index array for each loop."""
        cells = tuple(
            np.searchsorted(values, sizes[name], "right") - 1
            for name, values in zip(self.names, self.sizes, strict=True)
        )
        return cells or (np.zeros(1, np.intp),)

    def within(self, values: Floats, free: Collection[str]) -> Floats:
        """Return for each cell the least value of the cells with no larger tiles.

        The sizes of loops in ``free`` do not matter.
        """
        least = np.broadcast_to(values, self.shape)
        for axis, name in enumerate(self.names):
            least = np.minimum.accumulate(least, axis=axis)
            if name in free:
                last = np.take(least, [-1], axis=axis)
                least = np.broadcast_to(last, self.shape)
        return least


def moving_loops(nest: ExecutionNest) -> dict[str, frozenset[str]]:
    """Return the loops that move each operand, by its name."""
    loops: dict[str, frozenset[str]] = {}
    for operand in nest.operands:
        loops[operand.name] = loops.get(operand.name, frozenset()) | operand.loops
    return loops


def level_operands(nest: ExecutionNest, machine: Hierarchy, level: int) -> list[str]:
    """Return the names of the operands that pass through a level's memories.

    Parameters
    ----------
    nest : ExecutionNest
        Nest with the operands.
    machine : Hierarchy
        Machine with the memories.
    level : int
        Level, 0 for the innermost.
    """
    operands = [
        o.name for memory in machine.levels[level] for o in nest.operands_in(memory, machine)
    ]
    return list(dict.fromkeys(operands))


def stage_operands(nest: ExecutionNest, machine: Hierarchy, level: int) -> list[frozenset[str]]:
    """Return the operands of a level's stages if each is held at a place of its own.

    A level that all operands pass by has a stage without any.

    Parameters
    ----------
    nest, machine, level
        Those of :func:`level_operands`.
    """
    operands = level_operands(nest, machine, level)
    return [frozenset([name]) for name in operands] or [frozenset()]


def hold_orders(nest: ExecutionNest, machine: Hierarchy, level: int) -> list[HoldOrder]:
    """Return orders in which a level's operands are held: all, unless there are many operands.

    Parameters
    ----------
    nest, machine, level
        Those of :func:`level_operands`.
    """
    operands = level_operands(nest, machine, level)
    if len(operands) <= _PERMUTED:
        return list(itertools.permutations(operands))
    return [(*operands[n:], *operands[:n]) for n in range(len(operands))]


@dataclass(frozen=True)
class Exchange:
    """Least bytes and transfers between all units of a memory and of the one that fills it.

    ``sent_bytes`` are read there, ``read_bytes`` arrive.
    """

    read_bytes: Floats
    write_bytes: Floats
    sent_bytes: Floats
    read_transfers: Floats
    write_transfers: Floats


class Bounds:
    """Bounds of a nest on a machine by level and cell.

    ``cycles`` and ``amounts`` are, for each level, the innermost first, those of everything up to
    the transfers into the level, of tilings whose tiles at the level are in the cell; ``inside_…``
    are those of the best cell with no larger tiles. ``likely_amounts`` are amounts where operands
    that pass by a level stay in place within its tiles alone; tilings may cost less.
    """

    def __init__(self, nest: ExecutionNest, machine: Hierarchy, grid: Grid, cost: Cost) -> None:
        self.nest, self.machine, self.grid, self.cost = nest, machine, grid, cost
        self._loops = moving_loops(nest)
        self._operands = [
            level_operands(nest, machine, level) for level in range(len(machine.levels))
        ]
        self._links: dict[str, Link] = {}
        self._exchanged: dict[str, Exchange] = {}
        self.cycles, self.amounts = list[Floats](), list[Floats]()
        self.inside_cycles, self.inside_amounts = list[Floats](), list[Floats]()
        self.likely_amounts, self._likely_inside = list[Floats](), list[Floats]()
        self.orders = list[list[HoldOrder]]()
        for level in range(len(machine.levels) - 1):
            self._add(level)

    @property
    def least(self) -> float:
        """Lower bound on the cost of every tiling."""
        last = tuple(size - 1 for size in self.grid.shape)
        time, amount = self.inside_cycles[-1][last], self.inside_amounts[-1][last]
        return float(self.cost.combined(time, amount))

    def likely_amount(self, tilings: Tilings, level: int) -> Floats:
        """Return the likely amounts of what is undecided, inside the tiles of a level."""
        return self._likely_inside[level - 1][self.grid.cells(tilings.sizes)]

    def cycles_of(self, tilings: Tilings, nest: ExecutionNest, machine: Hierarchy) -> Floats:
        """Return the least cycles of tilings whose inner levels are undecided."""
        level = len(machine.levels) - len(tilings.busy)
        computing = compute_time(tilings, nest, machine).longest
        inside = self.inside_cycles[level - 1][self.grid.cells(tilings.room)]
        return enclosing_cycles(tilings, nest, machine, np.maximum(computing, inside))

    def _add(self, level: int) -> None:
        machine, grid, free = self.machine, self.grid, self._free(level)
        orders = hold_orders(self.nest, machine, level)
        self.orders.append(orders)
        exact = len(orders[0]) <= _PERMUTED if orders else True
        amount = np.zeros(1)
        for name, (link, operands) in self.nest.links(machine, machine.levels[level]).items():
            self._links[name] = link
            self._exchanged[name] = moved = self._exchange(link, operands)
            price = self.cost.prices[name]
            amount = amount + price.read * moved.sent_bytes + price.write * moved.write_bytes
            amount = amount + price.fill * moved.read_bytes
        inside = self.inside_cycles[-1] if level else self._computing()
        fits_any, times = np.zeros(grid.shape, bool), np.full(grid.shape, math.inf)
        # Which operand is held outside which decides what a tile occupies and, with a double
        # buffer, the time of the first tile.
        for order in orders if exact else [()]:
            fits = np.broadcast_to(self._fits(level, order), grid.shape)
            fits_any = fits_any | fits
            total = self._total(level, order, inside)
            times = np.minimum(times, np.where(fits, total, math.inf))
        self.cycles.append(times)
        likely = amount + (self._likely_inside[-1] if level else 0.0)
        amount = amount + (self.inside_amounts[-1] if level else 0.0)
        self.likely_amounts.append(np.where(fits_any, likely, math.inf))
        self._likely_inside.append(grid.within(self.likely_amounts[-1], ()))
        self.amounts.append(np.where(fits_any, amount, math.inf))
        self.inside_cycles.append(grid.within(times, free))
        self.inside_amounts.append(grid.within(self.amounts[-1], free))
        for name, link in self._links.items():
            moved = self._exchanged[name]
            figures = (getattr(moved, column.name) for column in fields(Exchange))
            if link.memory.level == level:
                figures = (np.where(fits_any, values, _BEYOND) for values in figures)
            self._exchanged[name] = Exchange(*(grid.within(v, free) for v in figures))

    def _free(self, level: int) -> set[str]:
        """Return the loops that leave in place an operand that passes by the next level.

        Its tiles may be held outside the loops of that level.
        """
        inside = {n for below in range(level + 1) for n in self._operands[below]}
        passing = inside - set(self._operands[level + 1]) if level + 2 < len(self._operands) else ()
        return {n for n in self.grid.names if any(n not in self._loops[o] for o in passing)}

    # ------------------------------------------------------------------------------- one level

    def held_sizes(self, order: HoldOrder, place: int) -> dict[str, Floats]:
        """Return the least sizes of the tile in which an operand of an order is held.

        A loop that leaves an operand farther in in place is repeated as often as the cell says, so
        that tiles outside are as large; those inside may be slices.
        """
        sizes: dict[str, Floats] = {}
        for name in self.grid.names:
            staying = [n for n, resident in enumerate(order) if name not in self._loops[resident]]
            is_outside = bool(staying) and place < staying[0]
            sizes[name] = self.grid.least[name] if is_outside else np.ones(1)
        return sizes

    def _fits(self, level: int, order: HoldOrder) -> Booleans:
        fits = np.ones(1, bool)
        single = {name: np.ones(1) for name in self.grid.names}
        for memory in self.machine.levels[level]:
            filled = np.zeros(1)
            for operand in self.nest.operands_in(memory, self.machine):
                sizes = single
                if order:
                    sizes = self.held_sizes(order, order.index(operand.name))
                filled = filled + self.nest.occupied_bytes(memory, operand, sizes)
            fits = fits & (filled <= memory.tile_capacity)
        return fits

    def _exchange(self, link: Link, operands: Sequence[TileOperand]) -> Exchange:
        totals = [np.zeros(1)] * len(fields(Exchange))
        for operand in operands:
            moved = self._moved(link, operand)
            figures = (getattr(moved, column.name) for column in fields(Exchange))
            totals = [total + figure for total, figure in zip(totals, figures, strict=True)]
        return Exchange(*totals)

    def _moved(self, link: Link, operand: TileOperand) -> Exchange:
        """Return the least that moves of one operand."""
        nest, memory, zero = self.nest, link.memory, np.zeros(1)
        full = {
            name: np.full(1, float(e))
            for name, e in zip(self.grid.names, self.grid.extents, strict=True)
        }
        counts = self.grid.counts
        again = math.prod((counts[n] for n in counts if n not in operand.loops), start=np.ones(1))
        tiles = math.prod((counts[n] for n in counts if n in operand.loops), start=np.ones(1))
        if memory.transfer_unit is TransferUnit.REGION:
            size = operand.least_elements({**nest.fixed, **full}) * operand.element_bytes
        else:
            each = nest.execution_bytes(operand, memory.granule_bytes)
            if memory.transfer_unit is TransferUnit.EXECUTION and not operand.is_output:
                calls = np.full(1, float(nest.calls))
                return Exchange(calls * each, zero, calls * each, calls, zero)
            tiles = operand.least_elements({**dict.fromkeys(nest.axes, np.ones(1)), **full})
            size = tiles * each
        if operand.is_output:
            back = again - 1
            return Exchange(size * back, size * again, size * back, tiles * back, tiles * again)
        sent = size * again
        if link.parent.multicast:
            # A read serves no more units than there are, and each element is read at least once.
            sent = size * np.maximum(again / link.fan_out, 1.0)
        return Exchange(size * again, zero, sent, tiles * again, zero)

    # ------------------------------------------------------------------------------- times

    def _computing(self) -> Floats:
        """Return the least cycles of the busiest unit, by the cells of the innermost tiles."""
        nest, machine, unit = self.nest, self.machine, self.machine.compute
        units = machine.levels[0][0].units
        kinds = {loop.name: loop for loop in nest.loops}
        parallel = math.prod(loop.extent for loop in nest.loops if loop.kind is AxisKind.SPATIAL)
        sums = math.prod(loop.extent for loop in nest.loops if loop.kind is not AxisKind.SPATIAL)
        # Units share the parallel loops alone, and the busiest one has no less than its share.
        calls = nest.executed * sums * math.ceil(parallel / units)
        waiting = np.zeros(1)
        if nest.has_reduction:
            for operand in nest.operands:
                if operand.is_output:
                    tiles = (self.grid.counts[n] for n in kinds if n in operand.loops)
                    count = math.prod(tiles, start=np.ones(1)) / units
                    waiting = np.maximum(waiting, np.maximum(count, 1.0) * sums)
            waiting = waiting * nest.executed * unit.latency_cycles
        loads = np.zeros(1)
        for memory in machine.levels[0]:
            if memory.transfer_unit is TransferUnit.REGION:
                continue
            for name in nest.links(machine, [memory]):
                moved = self._exchanged[name]
                loads = loads + (moved.read_transfers + moved.write_transfers) / units
        issuing = (calls + loads) / unit.issues_per_cycle
        longest = np.maximum(np.maximum(unit.cycles * calls, waiting), issuing)
        return longest + unit.latency_cycles

    def _total(self, level: int, order: HoldOrder, inside: Floats) -> Floats:
        """Return the least cycles with the transfers out of the next level's memories."""
        machine, total = self.machine, inside
        for memory in machine.levels[level + 1]:
            links = [link for link in self._links.values() if link.parent == memory]
            if links:
                total = self._with_transfers(memory, links, level, order, total)
        return total

    def _with_transfers(
        self, memory: Memory, links: Sequence[Link], level: int, order: HoldOrder, inside: Floats
    ) -> Floats:
        reading, writing = self._transfer_times(
            memory, ((link.memory, self._exchanged[link.name]) for link in links)
        )
        modes = {link.memory.effective_overlap for link in links}
        strictest = next(mode for mode in Overlapping if mode in modes)
        if strictest is Overlapping.NONE:
            return inside + reading + writing
        moving = reading + writing if memory.half_duplex else np.maximum(reading, writing)
        if strictest is not Overlapping.DOUBLE_BUFFER:
            return np.maximum(inside, moving)
        first = [
            (link.memory, self._first(link, order))
            for link in links
            if link.memory.level == level
            and link.memory.effective_overlap is Overlapping.DOUBLE_BUFFER
        ]
        # The first tile of the first unit alone: others may be idle.
        ends = sum(self._transfer_times(memory, first, shared=False), start=np.zeros(1))
        units = machine_units(self.machine, 0) / machine_units(self.machine, level)
        tile_time = self.machine.compute.cycles * self.nest.executed / units
        return np.maximum(inside + ends, moving + tile_time)

    def _first(self, link: Link, order: HoldOrder) -> Exchange:
        """Return the least that the first tile of one unit moves."""
        nest, memory, zero = self.nest, link.memory, np.zeros(1)
        read, write, reads, writes = zero, zero, zero, zero
        _, operands = nest.links(self.machine, [memory])[link.name]
        for operand in operands:
            sizes = {name: np.ones(1) for name in self.grid.names}
            if order:
                sizes = self.held_sizes(order, order.index(operand.name))
            if memory.transfer_unit is TransferUnit.REGION:
                all_sizes = {**nest.fixed, **sizes}
                size, transfers = operand.elements(all_sizes) * operand.element_bytes, np.ones(1)
            else:
                each = nest.execution_bytes(operand, memory.granule_bytes)
                size, transfers = each, np.ones(1)
            if operand.is_output:
                write, writes = write + size, writes + transfers
            else:
                read, reads = read + size, reads + transfers
        return Exchange(read, write, read, reads, writes)

    def _transfer_times(
        self,
        memory: Memory,
        moved: Iterable[tuple[Memory, Exchange]],
        *,
        shared: bool = True,
    ) -> tuple[Floats, Floats]:
        """Return the least cycles of reading from a unit of a memory and of writing to it.

        The busiest unit moves no less than its share, if the transfers are those of all units.
        """
        reading, writing, read, write = (np.zeros(1) for _ in range(4))
        for child, exchange in moved:
            units = child.units if shared else 1
            read = read + exchange.sent_bytes / (memory.units if shared else 1)
            write = write + exchange.write_bytes / (memory.units if shared else 1)
            is_blocking = child.overlap is not Overlapping.HARDWARE
            is_blocking = is_blocking and child.transfer_unit is TransferUnit.REGION
            waits = memory.latency_cycles / units if is_blocking else 0.0
            reading = reading + waits * exchange.read_transfers
            writing = writing + waits * exchange.write_transfers
            reading = np.maximum(reading, exchange.read_bytes / (units * memory.child_read_bytes))
            writing = np.maximum(writing, exchange.write_bytes / (units * memory.child_write_bytes))
        return reading + read / memory.read_bytes, writing + write / memory.write_bytes


def machine_units(machine: Hierarchy, level: int) -> int:
    """Return the number of units of a level."""
    return machine.levels[level][0].units
