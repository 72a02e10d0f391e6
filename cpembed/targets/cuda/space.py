"""The schedules of a product, by their estimates on a described GPU."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from random import Random

from cpembed.errors import LoweringError
from cpembed.hw.instruction import HardwareSpec
from cpembed.hw.levels import Hierarchy
from cpembed.ir.dtypes import size_bytes
from cpembed.targets.cuda.lower import TiledProduct
from cpembed.targets.cuda.schedule import LANES, KernelSchedule, Plan, check
from cpembed.targets.cuda.traffic import traffic
from cpembed.tuning.space import Scored, Space

WARPS = ((1, 1), (1, 2), (2, 1), (2, 2), (1, 4), (4, 1), (2, 4), (4, 2))
ROW_TILES = (1, 2, 4)
COLUMN_TILES = (1, 2, 4, 8)
DEPTHS = (1, 2, 4)
STAGES = (2, 3, 4)
GROUPS = (1, 4, 8)
SPLITS = (1, 2, 3, 4, 6, 8, 12, 16)

TRIED = 40
"""Of the best schedules without them, groups of blocks and splits are tried."""

TENSOR_CORES = 4
"""Of a multiprocessor."""
WARPS_LIMIT, BLOCKS_LIMIT, REGISTERS_LIMIT = 64, 32, 65536
RESERVED_BYTES = 1024
"""Of shared memory, for each block: CUDA C++ Programming Guide, compute capability 8.x."""
LAUNCH_US = 2.0


@dataclass(frozen=True)
class Gpu:
    """A machine of a specification in the terms of a GPU."""

    machine: Hierarchy
    architecture: str
    shared_bytes: int

    @property
    def name(self) -> str:
        return self.machine.name

    @property
    def multiprocessors(self) -> int:
        return self.machine.memories["shared"].units


ARCHITECTURES = {"a100": ("sm_80", 166_912), "h100": ("sm_90", 232_448)}
"""Of GPUs: what code is generated for, and the most shared memory of a block (CUDA C++ Programming
Guide, technical specifications per compute capability)."""


def gpu(spec: HardwareSpec, name: str) -> Gpu:
    """Raises :class:`LoweringError` for a machine that the specification does not describe."""
    machine = spec.machines.get(name)
    if machine is None or name not in ARCHITECTURES:
        raise LoweringError(
            f"{spec.name} describes no GPU {name}: there are {', '.join(spec.machines)}"
        )
    return Gpu(machine, *ARCHITECTURES[name])


class CudaSpace(Space[KernelSchedule]):
    """All combinations of the numbers above that fit."""

    def __init__(self, product: TiledProduct, gpu: Gpu) -> None:
        self.product, self.gpu = product, gpu

    @cached_property
    def _ranked(self) -> tuple[Scored[KernelSchedule], ...]:
        found = sorted(self._plain(), key=lambda item: item.cost)
        if not found:
            raise LoweringError(f"no schedule fits a multiprocessor of {self.gpu.name}")
        for item in found[:TRIED]:
            found += self._varied(item.schedule)
        return tuple(sorted(found, key=lambda item: item.cost))

    def ranked(self, limit: int | None = None) -> Sequence[Scored[KernelSchedule]]:
        return self._ranked[:limit]

    def scored(self, schedule: KernelSchedule) -> Scored[KernelSchedule]:
        plan = Plan(self.product, schedule)
        check(plan, self.gpu.shared_bytes)
        parts = _parts(plan, self.gpu)
        return Scored(sum(parts.values()), schedule, parts)

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


def _useful(numbers: Sequence[int], extent: int) -> list[int]:
    """Those below twice the extent, which is all that can be used of them."""
    return [number for number in numbers if number < 2 * extent] or [numbers[0]]


def _parts(plan: Plan, gpu: Gpu) -> Mapping[str, float]:
    """Microseconds of the kernels of a call, weights packed ahead."""
    clock, memories = gpu.machine.clock_mhz, gpu.machine.memories
    kernel = _kernel_cycles(plan, gpu) / clock
    product, splits = plan.product, plan.schedule.splits
    dram = memories["dram"].read_bytes * clock
    parts = {"kernel_us": kernel, "launch_us": LAUNCH_US}
    weights = product.program.workload.inputs[1].name
    moved = 0.0
    for stored in (plan.first, plan.second):
        if stored.needs_packing and stored.layout.name != weights:
            size = size_bytes(stored.layout.dtype)
            moved += (math.prod(stored.layout.original_shape) + stored.layout.elements) * size
            parts["launch_us"] += LAUNCH_US
    if moved:
        parts["packing_us"] = moved / dram
    if splits > 1:
        elements = product.output.layout.elements
        parts["reduction_us"] = elements * (splits + 1) * 4 / dram
        parts["launch_us"] += LAUNCH_US
    return parts


def _kernel_cycles(plan: Plan, gpu: Gpu) -> float:
    """Of the product: the busiest of a multiprocessor's units, or the way of a block through its
    stages where too few blocks hide it; at least what main memory takes."""
    machine, found = gpu.machine, traffic(plan)
    memories, compute = machine.memories, machine.compute
    warps = found.warps
    stage = found.stage
    products = stage.products * compute.cycles * -(-warps // TENSOR_CORES)
    shared = warps * stage.fragment_wavefronts + stage.copy_wavefronts
    loaded = found.loaded_bytes / found.blocks / found.steps / memories["l2"].each_read
    issued = warps * (stage.products + stage.fragment_wavefronts / 4) + 12 * stage.copies / LANES
    issued /= TENSOR_CORES * compute.issues_per_cycle
    work = max(products, shared, loaded, issued)
    latency = memories["l2"].latency_cycles + memories["dram"].latency_cycles / 4
    chain = max(latency / (plan.schedule.stages - 1), 2 * compute.latency_cycles + products / 2)
    resident = _resident(plan, gpu)
    ends = warps * (found.result.store_wavefronts + found.result.load_wavefronts)
    ends += found.stored_bytes / found.blocks / memories["l2"].each_write
    per = -(-found.blocks // gpu.multiprocessors)
    full, rest = divmod(per, resident)

    def round_of(blocks: int) -> float:
        each = found.steps * max(blocks * work, chain + work)
        return each + blocks * ends + latency if blocks else 0.0

    cycles = full * round_of(resident) + round_of(rest)
    unique = sum(
        math.prod(s.layout.original_shape) * size_bytes(s.layout.dtype)
        for s in (plan.first, plan.second)
    )
    return max(cycles, (unique + found.stored_bytes) / memories["dram"].read_bytes)


def _resident(plan: Plan, gpu: Gpu) -> int:
    """Blocks of a multiprocessor at a time."""
    warps = plan.schedule.threads // LANES
    registers = -(-plan.registers // 8) * 8 * LANES * warps
    capacity = gpu.machine.memories["shared"].capacity_bytes or gpu.shared_bytes
    return max(1, min(
        BLOCKS_LIMIT,
        WARPS_LIMIT // warps,
        REGISTERS_LIMIT // registers,
        capacity // (plan.shared_bytes + RESERVED_BYTES),
    ))  # fmt: skip
