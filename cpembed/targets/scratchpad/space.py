"""The schedules of a product: all sizes of tiles that are worth it and fit, by their estimates.

Of an axis, sizes that give as many tiles differ in what they hold: the least of them stands for
all (dominated sizes are left out), in whole granules; an axis that slides over another is whole or
single. Every combination that fits the scratchpads is estimated.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from random import Random

import numpy as np

from cpembed.errors import LoweringError
from cpembed.targets.scratchpad.boxes import Form
from cpembed.targets.scratchpad.lower import Axis, BoxProduct
from cpembed.targets.scratchpad.model import Numbers, Times, box_bytes, moving_loops, times
from cpembed.targets.scratchpad.schedule import (
    PLACED_BYTES,
    Plan,
    Schedule,
    check,
    check_form,
    loop_orders,
)
from cpembed.tuning.space import Scored, Space

MOST = 1_000_000
"""Combinations of sizes that are estimated; with more, sizes are left out evenly."""

KEPT = 64
"""Schedules that are ranked."""


class ScratchpadSpace(Space[Schedule]):
    """Sizes, orders and buffers, in tiles ahead where operands are constant or as they lie.

    ``ahead``: whether constant operands may be laid out before the kernel runs.
    """

    def __init__(self, product: BoxProduct, *, ahead: bool = True) -> None:
        self.product = product
        constant = any(operand.constant for operand in product.operands)
        self.ways = (True, False) if ahead and constant else (False,)

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
        found: list[Scored[Schedule]] = []
        reasons: list[str] = []
        for form, tiles in self._forms():
            try:
                check_form(form)
            except LoweringError as error:
                reasons.append(str(error))
                continue
            for order, buffers in itertools.product(loop_orders(self.product), (2, 1)):
                found += self._best(form, tiles, order, buffers)
        if not found:
            reason = reasons[0] if reasons else "no tile fits"
            raise LoweringError(f"{self.product.machine.name}: {reason}")
        found.sort(
            key=lambda item: (round(item.cost, 9), item.schedule.buffers, str(item.schedule))
        )
        return tuple(found[:KEPT])

    def ranked(self, limit: int | None = None) -> Sequence[Scored[Schedule]]:
        return self._ranked[:limit]

    def scored(self, schedule: Schedule) -> Scored[Schedule]:
        plan = check(Plan(self.product, schedule))
        tile = {name: np.full(1, float(points)) for name, points in schedule.tile}
        found = times(plan.form, tile, schedule.order, schedule.buffers)
        return self._scored(schedule, found, 0)

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
            parts = [(True, ones), (False, [size for size in sizes if size not in ones])]
            choices.append([part for part in parts if part[1]])
        for chosen in itertools.product(*choices):
            single = frozenset(n for n, (one, _) in zip(names, chosen, strict=True) if one)
            parts = [sizes for _, sizes in chosen]
            grid = np.meshgrid(*[np.array(part, np.float64) for part in parts], indexing="ij")
            tiles = {n: axis.ravel() for n, axis in zip(names, grid, strict=True)}
            for ahead in self.ways:
                yield Form(self.product, single, ahead), tiles

    def _best(
        self, form: Form, tiles: dict[str, Numbers], order: tuple[str, ...], buffers: int
    ) -> Iterator[Scored[Schedule]]:
        fits = np.flatnonzero(self._fits(form, tiles, buffers))
        if not len(fits):
            return
        own = {name: sizes[fits] for name, sizes in tiles.items()}
        found = times(form, own, order, buffers)
        costs = np.broadcast_to(found.total, fits.shape)
        moved = np.broadcast_to(found.moved_bytes, fits.shape)
        for row in np.lexsort((moved, costs))[:KEPT]:
            tile = tuple((name, int(sizes[row])) for name, sizes in own.items())
            schedule = Schedule(tile, order, buffers, form.ahead)
            yield self._scored(schedule, found, int(row))

    def _fits(self, form: Form, tiles: dict[str, Numbers], buffers: int) -> np.ndarray:
        """Whether boxes fit together: two of each that moves, where two are asked for."""
        machine = self.product.machine
        counts = {n: np.ceil(a.extent / tiles[n]) for n, a in self.product.axes.items()}
        used = [np.zeros(1) for _ in machine.memories]
        for box, size in zip(form.boxes, box_bytes(form, tiles), strict=True):
            room = np.ceil(size / PLACED_BYTES) * PLACED_BYTES
            number = np.where(moving_loops(box, counts), buffers, 1)
            memory = box.operand.memory
            used[memory] = used[memory] + room * number
        fits = np.ones(len(next(iter(tiles.values()))), bool)
        for bytes_, room in zip(used, machine.capacities, strict=True):
            fits = fits & (bytes_ <= room)
        for lane, largest in machine.largest.items():
            size = np.full(1, float(machine.parts(lane)))
            for axis in form.chains.get(lane, ()):
                points = np.minimum(tiles[axis.name], axis.extent)
                size = size * np.ceil(points / axis.granule) * axis.grain
            fits = fits & (size <= largest)
        return fits

    def _scored(self, schedule: Schedule, found: Times, row: int) -> Scored[Schedule]:
        clock = self.product.machine.clock_mhz

        def us(cycles: Numbers) -> float:
            return float(cycles[row if len(cycles) > 1 else 0]) / clock

        parts = {
            "transferring_us": us(found.transferring),
            "executing_us": us(found.executing),
            "exposed_us": us(found.exposed),
        }
        return Scored(us(found.total), schedule, parts)
