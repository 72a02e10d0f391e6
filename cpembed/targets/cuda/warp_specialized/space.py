"""Schedules of kernels that bulk copies feed, ranked by their estimated times."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from cpembed.errors import LoweringError
from cpembed.runtime.tuning.space import Scored
from cpembed.targets.cuda.instructions import LANES
from cpembed.targets.cuda.model import Gpu, estimate
from cpembed.targets.cuda.multistage.space import (
    COLUMN_TILES,
    RASTER_GROUPS,
    ROW_TILES,
    SPLITS,
    WARPS,
    RefinedSpace,
    leaves_half_idle,
)
from cpembed.targets.cuda.warp_specialized.device import column_counts
from cpembed.targets.cuda.warp_specialized.limits import check
from cpembed.targets.cuda.warp_specialized.schedule import (
    Load,
    SpecializedPlan,
    SpecializedProduct,
    SpecializedSchedule,
)
from cpembed.targets.cuda.warp_specialized.work import work_of

GROUPS = (1, 2, 3)
GROUP_ROW_TILES = (1, 2)
GROUP_COLUMN_TILES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
DEPTHS = (4, 2, 1)
STAGES = (8, 6, 4, 3, 2)
CLUSTERS = ((2, 1), (1, 2))
STREAMED_PARTS = (2, 4, 8)
STORE_BUFFERS = (1, 2, 0)

CLOSE_RATIO = 1.02
"""Ratio of estimates that are too close to choose by them alone."""

WARP_STAGES = (6, 4, 3, 2)
"""Numbers of stages of warps that execute instructions of their own."""


class SpecializedSpace(RefinedSpace[SpecializedSchedule]):
    """Schedules of a product that fit a GPU, ranked by their estimated times.

    Refinements are buffers of results, groups of blocks, splits, clusters, last tiles that are
    divided, and groups that take turns. Warps of their own have no clusters: multicast is slow
    where they are used (PTX ISA, ``cp.async.bulk.tensor``), or missing (CUTLASS, Blackwell SM120
    GEMMs: GeForce).
    """

    refined = 24
    choices: ClassVar[Mapping[str, Sequence[object]]] = {
        "groups": GROUPS,
        "tile": tuple(itertools.product(GROUP_ROW_TILES, GROUP_COLUMN_TILES)),
        "depth": DEPTHS,
        "stages": STAGES,
        "group": RASTER_GROUPS,
        "splits": SPLITS,
        "cluster": ((1, 1), *CLUSTERS),
        "alternating": (False, True),
        "store_buffers": STORE_BUFFERS,
    }

    def __init__(self, product: SpecializedProduct, gpu: Gpu) -> None:
        super().__init__(product.tiled, gpu)
        self.product = product
        self.of_warps = product.tiled.instruction.kind == "mma"

    def scored(self, schedule: SpecializedSchedule) -> Scored[SpecializedSchedule]:
        plan = SpecializedPlan(self.product, schedule)
        check(plan, self.gpu.shared_bytes)
        estimated = estimate(work_of(plan, self.gpu), self.gpu)
        return Scored(estimated.us, schedule, estimated.parts)

    def plain(self) -> Iterator[Scored[SpecializedSchedule]]:
        """Yield schedules without groups of blocks and splits."""
        for shape in self._shapes():
            # One buffer takes no more memory than what threads stage.
            buffers = int(self._has_boxes(shape))
            for loads, layouts in self._loads(shape.block, shape.depth):
                yield from self._with_stages(
                    replace(shape, loads=loads, layouts=layouts, store_buffers=buffers)
                )

    def _has_boxes(self, schedule: SpecializedSchedule) -> bool:
        """Return True if TMA can store the results of a warp."""
        try:
            self.product.store(schedule.tile[1])
        except LoweringError:
            return False
        return True

    def _shapes(self) -> Iterator[SpecializedSchedule]:
        """Yield schedules that differ in the tiles of a block and the depth of a stage."""
        _, rows, columns, depth = self.product.tiled.tiles
        for shape in self._warps() if self.of_warps else self._groups():
            sizes = zip((*shape.block, shape.depth), (rows, columns, depth), strict=True)
            if not any(itertools.starmap(leaves_half_idle, sizes)):
                yield shape

    def _groups(self) -> Iterator[SpecializedSchedule]:
        instruction = self.product.tiled.instruction
        legal = column_counts(instruction)
        counts = [count for count in GROUP_COLUMN_TILES if count * instruction.n in legal]
        for groups, *tile, deep in itertools.product(GROUPS, GROUP_ROW_TILES, counts, DEPTHS):
            yield SpecializedSchedule(groups, (tile[0], tile[1]), deep)

    def _warps(self) -> Iterator[SpecializedSchedule]:
        for warps, *tile, deep in itertools.product(WARPS, ROW_TILES, COLUMN_TILES, DEPTHS):
            yield SpecializedSchedule(1, (tile[0], tile[1]), deep, warps=warps)

    def _loads(
        self, block: tuple[int, int], deep: int
    ) -> Iterator[tuple[tuple[Load, Load], tuple[int, int]]]:
        """Yield the ways in which both factors reach shared memory."""
        for first, second in itertools.product(
            self._factor_loads(0, block[0], deep), self._factor_loads(1, block[1], deep)
        ):
            yield (first[0], second[0]), (first[1], second[1])

    def _factor_loads(self, number: int, tiles: int, deep: int) -> Sequence[tuple[Load, int]]:
        """Return loads of a factor with their layouts: where it is, if TMA loads it from there."""
        product = self.product.tiled
        views = self.product.views(number, tiles, deep)
        if views and not views[0].operand.needs_packing:
            return [("tensor", 0)]
        layouts = (product.first, product.second)[number]
        if layouts[0].layout.name == product.program.workload.inputs[1].name:
            # Weights are packed ahead of all calls anyway, others by a kernel before each.
            return [("bulk", 0)]
        packed: list[tuple[Load, int]] = [("tensor", 0)] if views else []
        if self.of_warps:
            # Their one producer warp copies nothing by itself: other kernels do.
            return packed
        return [*(("threads", n) for n in range(len(layouts))), *packed]

    def _with_stages(self, schedule: SpecializedSchedule) -> Iterator[Scored[SpecializedSchedule]]:
        """Yield a schedule with numbers of stages, and with as many blocks as are resident.

        A block of warp groups has as many stages as fit. Of those of warps, more are resident with
        fewer stages.
        """
        for stages in WARP_STAGES if self.of_warps else STAGES:
            with_stages = replace(schedule, stages=stages)
            plan = SpecializedPlan(self.product, with_stages)
            resident = self._resident(plan)
            if plan.work_items > resident:
                with_stages = replace(with_stages, blocks=resident)
            # Ranked among others only if it fits, which fewer stages may.
            for scored in self.fitting([with_stages]):
                yield scored
                if not self.of_warps:
                    return

    def _resident(self, plan: SpecializedPlan) -> int:
        """Return the number of blocks of a persistent kernel."""
        if not self.of_warps:
            return self.gpu.multiprocessors
        warps = plan.schedule.threads // LANES
        each = self.gpu.resident(warps, plan.shared_bytes, plan.registers)
        return max(1, each) * self.gpu.multiprocessors

    def refinements(self, schedule: SpecializedSchedule) -> Iterator[Scored[SpecializedSchedule]]:
        """Yield a schedule with groups of blocks, splits, clusters, or divided last tiles."""
        if schedule.store_buffers:
            stored = [replace(schedule, store_buffers=buffers) for buffers in STORE_BUFFERS]
            variants = [item for each in stored for item in self._with_stages(each)]
            yield from variants
            schedule = min(variants, key=self.rank).schedule
        if schedule.groups > 1:
            for cluster in ((1, 1), *CLUSTERS):
                yield from self._with_stages(replace(schedule, alternating=True, cluster=cluster))
        yield from self.fitting(self._rearranged(schedule))

    def _rearranged(self, schedule: SpecializedSchedule) -> Iterator[SpecializedSchedule]:
        """Yield schedules of the same blocks: other orders, clusters, splits and last tiles."""
        clusters = () if self.of_warps else CLUSTERS
        for group, cluster in itertools.product(RASTER_GROUPS, clusters):
            # Whole clusters are resident, so that an odd multiprocessor stays idle.
            blocks = schedule.blocks and schedule.blocks // 2 * 2
            yield replace(schedule, group=group, cluster=cluster, blocks=blocks)
        plan = SpecializedPlan(self.product, replace(schedule, streamed=True))
        tiles, resident = math.prod(plan.blocks), self._resident(plan)
        # All multiprocessors together would divide few tiles into many parts, which are added.
        fewer = [tiles * parts for parts in STREAMED_PARTS if tiles * parts < resident]
        for group, blocks in itertools.product(RASTER_GROUPS, (resident, *fewer)):
            yield replace(schedule, group=group, streamed=True, blocks=blocks)
        for group, splits in self.splits_of(schedule.depth):
            buffers = schedule.store_buffers * (splits == 1)
            yield replace(schedule, group=group, splits=splits, store_buffers=buffers)

    def rank(self, item: Scored[SpecializedSchedule]) -> tuple[float, ...]:
        # Of estimates within a fiftieth of each other, longer rows come first, which take fewer
        # requests of TMA, then the schedule that reads less from main memory, and whose blocks
        # wait less.
        cost, parts = round(math.log(item.cost, CLOSE_RATIO)), item.parts
        return cost, -item.schedule.depth, parts["dram_us"], parts["latency_us"]
