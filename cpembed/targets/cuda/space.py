"""Schedules of a product, ranked by estimates on a described GPU."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from random import Random

from cpembed.errors import LoweringError
from cpembed.ir.dtypes import size_bytes
from cpembed.runtime.tuning.space import Scored, Space
from cpembed.targets.cuda.emit import PACKING_THREADS
from cpembed.targets.cuda.instructions import LANES
from cpembed.targets.cuda.lower import GlobalOperand, TiledProduct
from cpembed.targets.cuda.model import Gpu, KernelWork, Phase, estimate, product_cycles
from cpembed.targets.cuda.schedule import KernelSchedule, Plan, check
from cpembed.targets.cuda.traffic import KernelTraffic, traffic

WARPS = ((1, 1), (1, 2), (2, 1), (2, 2), (1, 4), (4, 1), (2, 4), (4, 2))
ROW_TILES = (1, 2, 4)
COLUMN_TILES = (1, 2, 4, 8)
DEPTHS = (1, 2, 4)
STAGES = (2, 3, 4)
GROUPS = (1, 4, 8)
SPLITS = (1, 2, 3, 4, 6, 8, 12, 16)

REFINED = 40
"""Number of the best schedules that groups of blocks and splits are tried on."""

COPY_INSTRUCTIONS = 18
"""Number of instructions for a vector that is copied: its address in the operand and in shared
memory, whether it is inside. Counted in the loops over stages that nvcc 13 generates for sm_80: 12
to 16 for matrix products, 23 for convolutions with padding."""

RESULT_INSTRUCTIONS = 20
"""Number of instructions for a vector of results, counted likewise."""

_MOVE_REGISTERS = 24
"""Number of registers of a thread that only moves an element."""


class CudaSpace(Space[KernelSchedule]):
    """All combinations of the numbers above that fit the GPU."""

    def __init__(self, product: TiledProduct, gpu: Gpu) -> None:
        self.product, self.gpu = product, gpu

    @cached_property
    def _ranked(self) -> tuple[Scored[KernelSchedule], ...]:
        schedules = sorted(self._plain(), key=_rank)
        if not schedules:
            raise LoweringError(f"no schedule fits a multiprocessor of {self.gpu.name}")
        for item in schedules[:REFINED]:
            schedules += self._refined(item.schedule)
        return tuple(sorted(schedules, key=_rank))

    def ranked(self, limit: int | None = None) -> Sequence[Scored[KernelSchedule]]:
        return self._ranked[:limit]

    def scored(self, schedule: KernelSchedule) -> Scored[KernelSchedule]:
        plan = Plan(self.product, schedule)
        check(plan, self.gpu.shared_bytes)
        estimated = estimate(work_of(plan, self.gpu), self.gpu)
        return Scored(estimated.us, schedule, estimated.parts)

    def _plain(self) -> Iterator[Scored[KernelSchedule]]:
        """Yield schedules without groups and splits."""
        _, rows, columns, depth = self.product.tiles
        layouts = itertools.product(range(len(self.product.first)), range(len(self.product.second)))
        for pair, warps, tile, deep, stages in itertools.product(
            list(layouts),
            WARPS,
            itertools.product(_useful(ROW_TILES, rows), _useful(COLUMN_TILES, columns)),
            _useful(DEPTHS, depth),
            STAGES,
        ):
            schedule = KernelSchedule(warps, tile, deep, stages, layouts=pair)
            block = schedule.block
            # A block of twice as many tiles as there are leaves half of its warps idle.
            if (1 < block[0] >= 2 * rows) or (1 < block[1] >= 2 * columns):
                continue
            try:
                yield self.scored(schedule)
            except LoweringError:
                continue

    def _refined(self, schedule: KernelSchedule) -> Iterator[Scored[KernelSchedule]]:
        """Yield a schedule with groups and splits."""
        depth = self.product.tiles[3]
        for group, splits in itertools.product(GROUPS, SPLITS):
            # Every part of a split reduction has at least two stages.
            if (group, splits) == (1, 1) or splits * schedule.depth > max(1, depth // 2):
                continue
            yield self.scored(replace(schedule, group=group, splits=splits))

    def neighbour(self, schedule: KernelSchedule, random: Random) -> KernelSchedule | None:
        """Return a schedule that differs in one number."""
        choices: dict[str, Sequence[object]] = {
            "warps": WARPS,
            "tile": tuple(itertools.product(ROW_TILES, COLUMN_TILES)),
            "depth": DEPTHS,
            "stages": STAGES,
            "group": GROUPS,
            "splits": SPLITS,
        }
        name = random.choice(list(choices))
        values = [value for value in choices[name] if value != getattr(schedule, name)]
        return replace(schedule, **{name: random.choice(values)})


def _rank(item: Scored[KernelSchedule]) -> tuple[float, float]:
    # Of equal estimates, the schedule whose blocks wait less comes first.
    return round(item.cost, 3), item.parts["latency_us"]


def _useful(numbers: Sequence[int], extent: int) -> list[int]:
    """Return the numbers below twice the extent, beyond which nothing more is used."""
    return [number for number in numbers if number < 2 * extent] or [numbers[0]]


def work_of(plan: Plan, gpu: Gpu) -> KernelWork:
    """Return the work of all kernels of a call; weights are packed ahead of it."""
    counts = traffic(plan)
    return KernelWork(
        "product",
        counts.blocks,
        counts.warps,
        plan.shared_bytes,
        registers=plan.registers,
        steps=counts.steps,
        stages=plan.schedule.stages,
        fetch=_fetch(counts, gpu),
        compute=_compute(plan, counts, gpu),
        result=_result(plan, counts, gpu),
        dram_bytes=_bytes_from_dram(plan, counts, gpu) + counts.stored_bytes,
        auxiliary=_auxiliary(plan, gpu),
    )


def _fetch(counts: KernelTraffic, gpu: Gpu) -> Phase:
    """Return the copies of a stage: a warp issues them one after the other, and all are in flight
    at a time.
    """
    accesses = counts.stage.copies / LANES
    issue = accesses * COPY_INSTRUCTIONS / gpu.unit.schedulers
    issue_of_warp = accesses / counts.warps * COPY_INSTRUCTIONS * gpu.unit.integer_cycles
    loaded = counts.loaded_bytes / counts.blocks / counts.steps
    cycles = gpu.l2_cycles + issue_of_warp + loaded / gpu.l2_bytes_each
    return Phase(cycles, 0.0, counts.stage.copy_wavefronts, issue, bytes=loaded)


def _compute(plan: Plan, counts: KernelTraffic, gpu: Gpu) -> Phase:
    """Return the fragments and products of a stage, after a barrier."""
    rows, columns = plan.schedule.tile
    products = product_cycles(gpu, counts.warps, rows * columns, plan.schedule.depth)
    shared = counts.warps * counts.stage.fragment_wavefronts
    loads = counts.warps * plan.schedule.depth * (rows + columns / 2)
    waits = gpu.unit.shared_store_cycles + gpu.unit.shared_load_cycles
    cycles = max(products.cycles, shared) + waits
    issue = products.issue + 3 * loads / gpu.unit.schedulers
    return Phase(cycles, products.tensor, shared, issue)


def _result(plan: Plan, counts: KernelTraffic, gpu: Gpu) -> Phase:
    """Return the transfer of a block's results through shared memory to L2."""
    rows = plan.schedule.tile[0]
    wavefronts = counts.result.store_wavefronts + counts.result.load_wavefronts
    shared = counts.warps * wavefronts
    stored = counts.stored_bytes / counts.blocks
    instruction = plan.product.instruction
    elements = math.prod(plan.schedule.block) * instruction.m * instruction.n
    vectors = elements / plan.product.output.length / LANES
    issue = vectors * RESULT_INSTRUCTIONS / gpu.unit.schedulers
    issue_of_warp = vectors / counts.warps * RESULT_INSTRUCTIONS * gpu.unit.integer_cycles
    waits = rows * (gpu.unit.shared_store_cycles + gpu.unit.shared_load_cycles)
    return Phase(waits + issue_of_warp + wavefronts, 0.0, shared, issue, bytes=stored)


def _bytes(operand: GlobalOperand) -> int:
    return math.prod(operand.layout.original_shape) * size_bytes(operand.layout.dtype)


def _bytes_from_dram(plan: Plan, counts: KernelTraffic, gpu: Gpu) -> float:
    """Return the bytes of factors that are read from main memory.

    Each factor is read once if both fit L2. Otherwise each wave of resident blocks reads its rows
    and columns again; the blocks of a group of rows share columns.
    """
    once = _bytes(plan.first) + _bytes(plan.second)
    if once <= gpu.l2_capacity:
        return once
    rows, columns, _, _ = plan.blocks
    resident = max(1, gpu.resident(counts.warps, plan.shared_bytes, plan.registers))
    blocks = min(counts.blocks, resident * gpu.multiprocessors)
    group = plan.group
    wave_rows = min(rows, group * max(1, blocks // (group * columns)))
    wave_columns = min(columns, -(-blocks // group))
    wave = wave_rows * _bytes(plan.first) / rows + wave_columns * _bytes(plan.second) / columns
    return min(max(once, counts.blocks / blocks * wave), counts.loaded_bytes)


def _auxiliary(plan: Plan, gpu: Gpu) -> tuple[KernelWork, ...]:
    """Return the packing of what is not a weight, and the addition of parts."""
    product, kernels = plan.product, list[KernelWork]()
    weights = product.program.workload.inputs[1].name
    for operand in (plan.first, plan.second):
        if operand.needs_packing and operand.layout.name != weights:
            elements = operand.layout.elements
            moved = _bytes(operand) + elements * size_bytes(operand.layout.dtype)
            kernels.append(_element_kernel("packing", elements, moved, gpu))
    if plan.schedule.splits > 1:
        elements = product.output.layout.elements
        moved = elements * plan.schedule.splits * size_bytes(product.sums)
        moved += elements * size_bytes(product.output_dtype)
        kernels.append(_element_kernel("reduction", elements, moved, gpu))
    return tuple(kernels)


def _element_kernel(name: str, elements: int, moved: int, gpu: Gpu) -> KernelWork:
    """Return the work of a kernel with a thread for each element, which moves bytes in all."""
    warps, blocks = PACKING_THREADS // LANES, -(-elements // PACKING_THREADS)
    issue = warps * COPY_INSTRUCTIONS / gpu.unit.schedulers
    cycles = gpu.l2_cycles + COPY_INSTRUCTIONS * gpu.unit.integer_cycles
    phase = Phase(cycles, 0.0, 2 * warps, issue, bytes=moved / blocks)
    return KernelWork(
        name, blocks, warps, 0, registers=_MOVE_REGISTERS, compute=phase, dram_bytes=moved
    )
