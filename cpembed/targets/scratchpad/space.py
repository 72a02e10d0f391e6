"""Schedules of a product: all useful sizes of tiles that fit, ranked by their estimates.

Of the sizes of an axis that give equally many tiles, the smallest stands for all. What it transfers
differs only by padding, and by where blocks begin in a transaction (2 % more on average over random
small problems, when counted). So a larger one may have a lower estimate, all the more as its last
tile, the smaller, counts as a share of a full one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from random import Random

import numpy as np

from cpembed.errors import LoweringError
from cpembed.runtime.tuning.space import Scored, Space
from cpembed.targets.scratchpad.boxes import Axis, BoxProduct
from cpembed.targets.scratchpad.forms import Form
from cpembed.targets.scratchpad.model import Numbers, Times, Work
from cpembed.targets.scratchpad.schedule import (
    Plan,
    Schedule,
    check,
    check_form,
    loop_orders,
    placed_bytes,
)

MAX_COMBINATIONS = 200_000
"""Maximum number of combinations of sizes that are estimated; with more, sizes are thinned out."""

MAX_ARRAY = 250_000
"""Maximum number of combinations in one array."""

MAX_RANKED = 64
"""Maximum number of schedules that are ranked."""


@dataclass(frozen=True, kw_only=True)
class _Candidate:
    """A schedule among the best so far, at ``place`` of the arrays ``tiles``."""

    cycles: float
    moved_bytes: float
    work: Work
    tiles: Mapping[str, Numbers]
    order: tuple[str, ...]
    buffers: int
    place: tuple[int, ...]

    @property
    def schedule(self) -> Schedule:
        tile = tuple((name, int(_at(sizes, self.place))) for name, sizes in self.tiles.items())
        return Schedule(tile, self.order, self.buffers, self.work.form.ahead)


class _Best:
    """The :data:`MAX_RANKED` schedules with the lowest estimates, all below a limit in cycles."""

    def __init__(self, buffers: Sequence[int], limit: float) -> None:
        self.candidates: list[_Candidate] = []
        self._buffers = buffers
        self._limit = min(limit, float(np.finfo(np.float64).max))

    def add(
        self, work: Work, tiles: Mapping[str, Numbers], orders: Sequence[tuple[str, ...]]
    ) -> None:
        """Add the sizes in ``tiles`` that fit and are better than the present candidates."""
        # Transfers only add to the time of executions.
        if work.executing.min() > self._limit:
            return
        for buffers in self._buffers:
            fits = _fits(work, buffers)
            if not fits.any():
                continue
            for order in orders:
                self._add(work, tiles, order, buffers, fits)

    def _add(
        self,
        work: Work,
        tiles: Mapping[str, Numbers],
        order: tuple[str, ...],
        buffers: int,
        fits: np.ndarray,
    ) -> None:
        times = work.times(order, buffers)
        shape = np.broadcast_shapes(*(sizes.shape for sizes in tiles.values()))
        costs = np.broadcast_to(np.where(fits, times.total, np.inf), shape).ravel()
        # Schedules as slow as the last candidate may still win by the bytes that they move.
        rows = np.flatnonzero(costs <= self._limit)
        if not len(rows):
            return
        # Only the candidates that can be kept are sorted below.
        if len(rows) > MAX_RANKED:
            rows = rows[costs[rows] <= np.partition(costs[rows], MAX_RANKED - 1)[MAX_RANKED - 1]]
        moved = np.broadcast_to(times.moved_bytes, shape)
        places = np.stack(np.unravel_index(rows, shape), 1)
        items = zip(costs[rows].tolist(), moved[tuple(places.T)].tolist(), places, strict=True)
        self.candidates += [
            _Candidate(
                cycles=cycles,
                moved_bytes=moved_bytes,
                work=work,
                tiles=tiles,
                order=order,
                buffers=buffers,
                place=tuple(place),
            )
            for cycles, moved_bytes, place in sorted(items, key=lambda item: item[:2])[:MAX_RANKED]
        ]
        self.candidates.sort(key=lambda item: (item.cycles, item.moved_bytes))
        del self.candidates[MAX_RANKED:]
        if len(self.candidates) == MAX_RANKED:
            self._limit = self.candidates[-1].cycles


def _at(numbers: Numbers, place: tuple[int, ...]) -> float:
    """Return the element at ``place`` of an array that is broadcast to its shape."""
    inner = place[len(place) - numbers.ndim :]
    return float(
        numbers[tuple(min(n, size - 1) for n, size in zip(inner, numbers.shape, strict=True))]
    )


def _fits(work: Work, buffers: int) -> np.ndarray:
    """True if the boxes, with ``buffers`` of each that moves, fit the scratchpads together."""
    machine = work.form.product.machine
    fits = np.ones(1, bool)
    placed = partial(placed_bytes, machine)
    for used, room in zip(work.room(buffers, placed), machine.capacities, strict=True):
        fits = fits & (used <= room)
    for lane, largest in machine.largest.items():
        chain = work.form.chains.get(lane, ())
        size = math.prod((work.pe_points[a.name] for a in chain), start=np.ones(1))
        fits = fits & (machine.parts(lane) * size <= largest)
    return fits


class ScratchpadSpace(Space[Schedule]):
    """Sizes of tiles, orders of loops and buffers.

    ``ahead``: constant operands may be packed before the kernel runs; they then are, which takes
    the fewest transfers. ``buffers`` are possible numbers of buffers of what is transferred; only
    schedules ``below`` a time in microseconds are searched for.
    """

    def __init__(
        self,
        product: BoxProduct,
        *,
        ahead: bool = True,
        buffers: Sequence[int] = (2, 1),
        below: float = math.inf,
    ) -> None:
        self.product = product
        self.below = below
        self.buffers = buffers
        self.ahead = ahead and any(operand.constant for operand in product.operands)

    @property
    def lower_bound(self) -> float:
        """Microseconds to execute all granules, or to transfer every operand once if longer."""
        machine, axes = self.product.machine, self.product.axes.values()
        executing = machine.cycles * math.prod(-(-a.extent // a.granule) for a in axes)
        moving = sum(
            o.bytes_of(math.prod(o.shape)) / machine.engines[o.role].bytes_per_cycle
            for o in self.product.operands
        )
        return max(executing, moving) / machine.clock_mhz

    @cached_property
    def sizes(self) -> dict[str, list[int]]:
        """Sizes of each axis that are compared, ascending."""
        sizes = {name: self._sizes(axis) for name, axis in self.product.axes.items()}
        while math.prod(map(len, sizes.values())) > MAX_COMBINATIONS:
            # Every second size of the axis that has most, down to the largest, which is one tile.
            longest = max(sizes, key=lambda name: len(sizes[name]))
            sizes[longest] = [*sizes[longest][:-1:2], sizes[longest][-1]]
        return sizes

    def _sizes(self, axis: Axis) -> list[int]:
        granules = -(-axis.extent // axis.granule)
        slides = any(
            axis.name in index.iterators and len(index.iterators) > 1
            for operand in self.product.operands
            for index in operand.index
        )
        # A reduction that slides over another axis shares elements between its tiles; sizes in
        # between are left out, which may lose if memory is tight.
        if slides and axis.reduction and axis.granule == 1:
            return sorted({1, axis.extent})
        # Of the sizes that give equally many tiles, the smallest in full granules stands for all:
        # it executes as much in as many tiles and needs no more room.
        counts = range(1, granules + 1)
        return sorted({-(-granules // count) * axis.granule for count in counts})

    def ranked(self, limit: int | None = None) -> Sequence[Scored[Schedule]]:
        return self._ranked[:limit]

    @cached_property
    def _ranked(self) -> tuple[Scored[Schedule], ...]:
        best = _Best(self.buffers, self.below * self.product.machine.clock_mhz)
        reasons, fitting = list[str](), False
        for form, tiles in self._forms():
            try:
                check_form(form)
            except LoweringError as error:
                reasons.append(str(error))
                continue
            fitting = True
            best.add(Work(form, tiles), tiles, loop_orders(self.product))
        if not best.candidates:
            reason = reasons[-1] if reasons and not fitting else self._no_room()
            if self.below < math.inf:
                reason = f"no schedule below {self.below:.4g} us"
            raise LoweringError(f"{self.product.machine.name}: {reason}")
        ranked: list[tuple[float, int, float, str, Scored[Schedule]]] = []
        for item in best.candidates:
            schedule = item.schedule
            scored = self._scored(schedule, item.work.times(item.order, item.buffers), item.place)
            # Rounded, so that equal estimates tie despite floating point: one buffer before two,
            # then the least bytes, then the text, which makes the order reproducible.
            key = round(item.cycles, 6), item.buffers, item.moved_bytes, str(schedule)
            ranked.append((*key, scored))
        return tuple(item[-1] for item in sorted(ranked, key=lambda item: item[:-1]))

    def _no_room(self) -> str:
        machine = self.product.machine
        rooms = zip(machine.memories, machine.capacities, strict=True)
        axes = self.product.axes
        order, *_ = loop_orders(self.product)
        tile = tuple((name, axis.granule) for name, axis in axes.items())
        least = Plan(self.product, Schedule(tile, order, min(self.buffers), self.ahead)).used
        return "not even the least tile fits: " + ", ".join(
            f"it takes {used:,} of the {room:,} bytes of {name} in each PE"
            for used, (name, room) in zip(least, rooms, strict=True)
            if used > room or len(least) == 1
        )

    def scored(self, schedule: Schedule) -> Scored[Schedule]:
        plan = check(Plan(self.product, schedule))
        tile = {name: np.full(1, float(points)) for name, points in schedule.tile}
        times = Work(plan.form, tile).times(schedule.order, schedule.buffers)
        return self._scored(schedule, times, (0,))

    def _scored(self, schedule: Schedule, times: Times, place: tuple[int, ...]) -> Scored[Schedule]:
        clock = self.product.machine.clock_mhz

        def us(cycles: Numbers) -> float:
            return _at(cycles, place) / clock

        parts = {
            "us": us(times.total),
            "moves_us": 0.0,
            "transferring_us": us(times.transferring),
            "executing_us": us(times.executing),
            "exposed_us": us(times.exposed),
        }
        return Scored(parts["us"], schedule, parts)

    def neighbour(self, schedule: Schedule, random: Random) -> Schedule | None:
        """Return a schedule with another size of one axis."""
        name = random.choice(list(self.sizes))
        sizes = [size for size in self.sizes[name] if size != dict(schedule.tile)[name]]
        if not sizes:
            return None
        tile = tuple((n, random.choice(sizes) if n == name else s) for n, s in schedule.tile)
        return Schedule(tile, schedule.order, schedule.buffers, schedule.ahead)

    def _forms(self) -> Iterator[tuple[Form, dict[str, Numbers]]]:
        """Yield the sizes of tiles by the axes of which a PE holds one point."""
        axes, names = self.product.axes, list(self.sizes)
        choices: list[list[tuple[bool, list[int]]]] = []
        for name, sizes in self.sizes.items():
            axis = axes[name]
            # Which axes have one point decides the form, so that all sizes of a form are one
            # computation.
            ones = [size for size in sizes if axis.points_per_pe(min(size, axis.extent)) == 1]
            parts = [(False, [size for size in sizes if size not in ones]), (True, ones)]
            choices.append([part for part in parts if part[1]])
        for choice in itertools.product(*choices):
            single = frozenset(n for n, (is_one, _) in zip(names, choice, strict=True) if is_one)
            # Sparse grids: what depends on one axis is computed once for all sizes of the others.
            for piece in _pieces([sizes for _, sizes in choice]):
                arrays = [np.array(sizes, np.float64) for sizes in piece]
                grid = np.meshgrid(*arrays, indexing="ij", sparse=True)
                yield Form(self.product, single, self.ahead), dict(zip(names, grid, strict=True))

    @cached_property
    def number(self) -> int:
        """Number of schedules of these sizes that fit."""
        number, orders = 0, len(loop_orders(self.product))
        for form, tiles in self._forms():
            try:
                check_form(form)
            except LoweringError:
                continue
            work = Work(form, tiles)
            shape = np.broadcast_shapes(*(sizes.shape for sizes in tiles.values()))
            for buffers in self.buffers:
                number += int(np.broadcast_to(_fits(work, buffers), shape).sum()) * orders
        return number


def _pieces(parts: list[list[int]]) -> Iterator[list[list[int]]]:
    """Cut the longest list of sizes so that the combinations fit one array."""
    longest = max(range(len(parts)), key=lambda n: len(parts[n]))
    combinations = math.prod(len(part) for n, part in enumerate(parts) if n != longest)
    step = max(1, MAX_ARRAY // combinations)
    for first in range(0, len(parts[longest]), step):
        cut = parts[longest][first : first + step]
        yield [cut if n == longest else part for n, part in enumerate(parts)]
