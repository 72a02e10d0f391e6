"""The schedules of a product, by their estimates on a described GPU."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from random import Random

from cpembed.errors import LoweringError
from cpembed.runtime.tuning.space import Scored, Space
from cpembed.targets.cuda.gpu import Gpu
from cpembed.targets.cuda.lower import TiledProduct
from cpembed.targets.cuda.model import estimate
from cpembed.targets.cuda.schedule import KernelSchedule, Plan, check
from cpembed.targets.cuda.work import work_of

WARPS = ((1, 1), (1, 2), (2, 1), (2, 2), (1, 4), (4, 1), (2, 4), (4, 2))
ROW_TILES = (1, 2, 4)
COLUMN_TILES = (1, 2, 4, 8)
DEPTHS = (1, 2, 4)
STAGES = (2, 3, 4)
GROUPS = (1, 4, 8)
SPLITS = (1, 2, 3, 4, 6, 8, 12, 16)

TRIED = 40
"""Of the best schedules without them, groups of blocks and splits are tried."""


class CudaSpace(Space[KernelSchedule]):
    """All combinations of the numbers above that fit."""

    def __init__(self, product: TiledProduct, gpu: Gpu) -> None:
        self.product, self.gpu = product, gpu

    @cached_property
    def _ranked(self) -> tuple[Scored[KernelSchedule], ...]:
        found = sorted(self._plain(), key=_order)
        if not found:
            raise LoweringError(f"no schedule fits a multiprocessor of {self.gpu.name}")
        for item in found[:TRIED]:
            found += self._varied(item.schedule)
        return tuple(sorted(found, key=_order))

    def ranked(self, limit: int | None = None) -> Sequence[Scored[KernelSchedule]]:
        return self._ranked[:limit]

    def scored(self, schedule: KernelSchedule) -> Scored[KernelSchedule]:
        plan = Plan(self.product, schedule)
        check(plan, self.gpu.shared_bytes)
        found = estimate(work_of(plan, self.gpu), self.gpu)
        return Scored(found.us, schedule, found.parts)

    def _plain(self) -> Iterator[Scored[KernelSchedule]]:
        """Without groups and splits."""
        _, rows, columns, depth = self.product.tiles
        ways = itertools.product(range(len(self.product.first)), range(len(self.product.second)))
        for way, warps, tile, deep, stages in itertools.product(
            list(ways),
            WARPS,
            itertools.product(_useful(ROW_TILES, rows), _useful(COLUMN_TILES, columns)),
            _useful(DEPTHS, depth),
            STAGES,
        ):
            schedule = KernelSchedule(warps, tile, deep, stages, ways=way)
            block = schedule.block
            # A block of twice as many tiles as there are leaves half of its warps idle.
            if (1 < block[0] >= 2 * rows) or (1 < block[1] >= 2 * columns):
                continue
            try:
                yield self.scored(schedule)
            except LoweringError:
                continue

    def _varied(self, schedule: KernelSchedule) -> Iterator[Scored[KernelSchedule]]:
        depth = self.product.tiles[3]
        for group, splits in itertools.product(GROUPS, SPLITS):
            if (group, splits) == (1, 1) or splits * schedule.depth > max(1, depth // 2):
                continue
            yield self.scored(replace(schedule, group=group, splits=splits))

    def neighbour(self, schedule: KernelSchedule, random: Random) -> KernelSchedule | None:
        """One number exchanged for another of its list."""
        choices: dict[str, Sequence[object]] = {
            "warps": WARPS,
            "tile": tuple(itertools.product(ROW_TILES, COLUMN_TILES)),
            "depth": DEPTHS,
            "stages": STAGES,
            "group": GROUPS,
            "splits": SPLITS,
        }
        name = random.choice(list(choices))
        others = [value for value in choices[name] if value != getattr(schedule, name)]
        return replace(schedule, **{name: random.choice(others)})


def _order(item: Scored[KernelSchedule]) -> tuple[float, float]:
    """Of equal estimates, the one whose blocks wait less comes first."""
    return round(item.cost, 3), item.parts["latency_us"]


def _useful(numbers: Sequence[int], extent: int) -> list[int]:
    """Those below twice the extent, which is all that can be used of them."""
    return [number for number in numbers if number < 2 * extent] or [numbers[0]]
