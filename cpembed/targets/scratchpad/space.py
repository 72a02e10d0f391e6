"""The schedules of a product: all sizes of tiles that are worth it and fit, by their estimates.

Of an axis, sizes that give as many tiles differ in what they hold: the least of them, in whole
granules, stands for all. It executes as much, in as many tiles, and needs no more room; what it
moves differs only by padding, and by where blocks begin in a transaction (2 % more on average over
random small problems, when counted). So a larger one may have a lower estimate, all the more as
its last tile, the smaller, counts as a share of a whole one. A reduction that slides over another
axis is whole or single, which may lose where memory is tight. Every combination that fits the
scratchpads, each buffer rounded up to :data:`~cpembed.targets.scratchpad.schedule.PLACED_BYTES`, is
estimated.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from random import Random

import numpy as np

from cpembed.errors import LoweringError
from cpembed.runtime.tuning.space import Scored, Space
from cpembed.targets.scratchpad.boxes import Form
from cpembed.targets.scratchpad.lower import Axis, BoxProduct
from cpembed.targets.scratchpad.model import Numbers, Times, Work
from cpembed.targets.scratchpad.schedule import (
    PLACED_BYTES,
    Plan,
    Schedule,
    check,
    check_form,
    loop_orders,
)

MOST = 200_000
"""Combinations of sizes that are estimated; with more, sizes are left out evenly."""

AT_ONCE = 250_000
"""Combinations in one array."""

KEPT = 64
"""Schedules that are ranked."""


@dataclass(frozen=True)
class _Found:
    """A schedule among the best so far: its cycles, bytes moved, and which of ``tiles`` it has."""

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
    """The :data:`KEPT` schedules of the least time."""

    def __init__(self, buffers: Sequence[int], below: float) -> None:
        self.found: list[_Found] = []
        self._buffers = buffers
        self._most = min(below, float(np.finfo(np.float64).max))

    def add(
        self, work: Work, tiles: Mapping[str, Numbers], orders: Sequence[tuple[str, ...]]
    ) -> None:
        """Those of all sizes of ``tiles`` that fit and are better than what is there."""
        if work.executing.min() > self._most:
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
        rows = np.flatnonzero(costs <= self._most)
        if not len(rows):
            return
        if len(rows) > KEPT:
            rows = rows[costs[rows] <= np.partition(costs[rows], KEPT - 1)[KEPT - 1]]
        moved = np.broadcast_to(times.moved_bytes, shape)
        places = np.stack(np.unravel_index(rows, shape), 1)
        found = zip(costs[rows].tolist(), moved[tuple(places.T)].tolist(), places, strict=True)
        self.found += [
            _Found(cycles, bytes_, work, tiles, order, buffers, tuple(place))
            for cycles, bytes_, place in sorted(found, key=lambda item: item[:2])[:KEPT]
        ]
        self.found.sort(key=lambda item: (item.cycles, item.moved_bytes))
        del self.found[KEPT:]
        if len(self.found) == KEPT:
            self._most = self.found[-1].cycles


def _at(numbers: Numbers, place: tuple[int, ...]) -> float:
    """Of an array that is broadcast to the shape of ``place``."""
    inner = place[len(place) - numbers.ndim :]
    return float(
        numbers[tuple(min(n, size - 1) for n, size in zip(inner, numbers.shape, strict=True))]
    )


def _fits(work: Work, buffers: int) -> np.ndarray:
    """Whether boxes fit together: two of each that moves, where two are asked for."""
    machine = work.form.product.machine
    fits = np.ones(1, bool)
    for used, room in zip(work.room(buffers, PLACED_BYTES), machine.capacities, strict=True):
        fits = fits & (used <= room)
    for lane, largest in machine.largest.items():
        chain = work.form.chains.get(lane, ())
        size = math.prod((work.held[a.name] for a in chain), start=np.ones(1))
        fits = fits & (machine.parts(lane) * size <= largest)
    return fits


class ScratchpadSpace(Space[Schedule]):
    """Sizes, orders and buffers.

    ``ahead``: whether constant operands may be laid out before the kernel runs; they then are,
    which takes the fewest transfers. ``buffers``: how many there may be of what is transferred.
    ``below``: microseconds that only faster schedules are looked for.
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
        constant = any(operand.constant for operand in product.operands)
        self.ahead = ahead and constant

    @property
    def lower_bound(self) -> float:
        """All granules executed, or every operand moved once, whichever takes longer."""
        machine, axes = self.product.machine, self.product.axes.values()
        executing = machine.cycles * math.prod(-(-a.extent // a.granule) for a in axes)
        moving = sum(
            o.element_bytes * math.prod(o.shape) / machine.engines[o.role].bytes_per_cycle
            for o in self.product.operands
        )
        return max(executing, moving) / machine.clock_mhz

    def _no_room(self) -> str:
        machine = self.product.machine
        rooms = zip(machine.memories, machine.capacities, strict=True)
        return "not even the least tile fits " + ", ".join(
            f"the {room:,} bytes of {name} in each PE" for name, room in rooms
        )

    @cached_property
    def sizes(self) -> dict[str, list[int]]:
        """Sizes of each axis that are compared, ascending."""
        found = {name: self._sizes(axis) for name, axis in self.product.axes.items()}
        while math.prod(map(len, found.values())) > MOST:
            longest = max(found, key=lambda name: len(found[name]))
            found[longest] = [*found[longest][:-1:2], found[longest][-1]]
        return found

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
        if not best.found:
            reason = reasons[0] if reasons and not fitting else self._no_room()
            if self.below < math.inf:
                reason = f"no schedule below {self.below:.4g} us"
            raise LoweringError(f"{self.product.machine.name}: {reason}")
        ranked: list[tuple[float, int, float, str, Scored[Schedule]]] = []
        for item in best.found:
            schedule = item.schedule
            times = item.work.times(item.order, item.buffers)
            scored = self._scored(schedule, times, item.place)
            key = round(item.cycles, 6), item.buffers, item.moved_bytes, str(schedule)
            ranked.append((*key, scored))
        return tuple(item[-1] for item in sorted(ranked, key=lambda item: item[:-1]))

    def ranked(self, limit: int | None = None) -> Sequence[Scored[Schedule]]:
        return self._ranked[:limit]

    def scored(self, schedule: Schedule) -> Scored[Schedule]:
        plan = check(Plan(self.product, schedule))
        tile = {name: np.full(1, float(points)) for name, points in schedule.tile}
        found = Work(plan.form, tile).times(schedule.order, schedule.buffers)
        return self._scored(schedule, found, (0,))

    def neighbour(self, schedule: Schedule, random: Random) -> Schedule | None:
        """Another size of one axis."""
        name = random.choice(list(self.sizes))
        others = [size for size in self.sizes[name] if size != dict(schedule.tile)[name]]
        if not others:
            return None
        tile = tuple((n, random.choice(others) if n == name else s) for n, s in schedule.tile)
        return Schedule(tile, schedule.order, schedule.buffers, schedule.ahead)

    def _sizes(self, axis: Axis) -> list[int]:
        granules = -(-axis.extent // axis.granule)
        slides = any(
            axis.name in index.iterators and len(index.iterators) > 1
            for operand in self.product.operands
            for index in operand.index
        )
        if slides and axis.reduction and axis.granule == 1:
            return sorted({1, axis.extent})
        counts = range(1, granules + 1)
        return sorted({-(-granules // count) * axis.granule for count in counts})

    def _forms(self) -> Iterator[tuple[Form, dict[str, Numbers]]]:
        """Tiles by the axes of which a PE holds one point."""
        axes, names = self.product.axes, list(self.sizes)

        def is_single(name: str, points: int) -> bool:
            return axes[name].held(min(points, axes[name].extent)) == 1

        choices: list[list[tuple[bool, list[int]]]] = []
        for name, sizes in self.sizes.items():
            ones = [size for size in sizes if is_single(name, size)]
            parts = [(False, [size for size in sizes if size not in ones]), (True, ones)]
            choices.append([part for part in parts if part[1]])
        for chosen in itertools.product(*choices):
            single = frozenset(n for n, (one, _) in zip(names, chosen, strict=True) if one)
            parts = [sizes for _, sizes in chosen]
            for piece in _pieces(parts):
                grid = np.meshgrid(
                    *[np.array(part, np.float64) for part in piece], indexing="ij", sparse=True
                )
                yield Form(self.product, single, self.ahead), dict(zip(names, grid, strict=True))

    @cached_property
    def number(self) -> int:
        """Schedules of these sizes that fit."""
        found, orders = 0, len(loop_orders(self.product))
        for form, tiles in self._forms():
            try:
                check_form(form)
            except LoweringError:
                continue
            work = Work(form, tiles)
            shape = np.broadcast_shapes(*(sizes.shape for sizes in tiles.values()))
            for buffers in self.buffers:
                found += int(np.broadcast_to(_fits(work, buffers), shape).sum()) * orders
        return found

    def _scored(self, schedule: Schedule, found: Times, place: tuple[int, ...]) -> Scored[Schedule]:
        clock = self.product.machine.clock_mhz

        def us(cycles: Numbers) -> float:
            return _at(cycles, place) / clock

        parts = {
            "us": us(found.total),
            "moves_us": 0.0,
            "transferring_us": us(found.transferring),
            "executing_us": us(found.executing),
            "exposed_us": us(found.exposed),
        }
        return Scored(us(found.total), schedule, parts)


def _pieces(parts: list[list[int]]) -> Iterator[list[list[int]]]:
    """Sizes of each axis, the longest list cut so that few enough combinations are in one array."""
    longest = max(range(len(parts)), key=lambda n: len(parts[n]))
    others = math.prod(len(part) for n, part in enumerate(parts) if n != longest)
    step = max(1, AT_ONCE // others)
    for first in range(0, len(parts[longest]), step):
        cut = parts[longest][first : first + step]
        yield [cut if n == longest else part for n, part in enumerate(parts)]
