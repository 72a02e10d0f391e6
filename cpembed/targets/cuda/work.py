"""What the kernels of a plan do, in the terms of the model of a GPU."""

from __future__ import annotations

import math

from cpembed.ir.dtypes import size_bytes
from cpembed.targets.cuda.gpu import Gpu
from cpembed.targets.cuda.instructions import LANES
from cpembed.targets.cuda.lower import Stored
from cpembed.targets.cuda.model import KernelWork, Phase, product_cycles
from cpembed.targets.cuda.packing import THREADS
from cpembed.targets.cuda.schedule import Plan
from cpembed.targets.cuda.traffic import KernelTraffic, traffic

COPY_INSTRUCTIONS = 18
"""Of a vector that is copied: its place in the operand and in shared memory, whether it is inside.
Counted in the loops over stages that nvcc 13 makes for sm_80: 12 to 16 of matrix products, 23 of
convolutions with padding."""

RESULT_INSTRUCTIONS = 20
"""Of a vector of results, likewise."""

_PLAIN_REGISTERS = 24
"""Of a kernel that only moves elements."""


def work_of(plan: Plan, gpu: Gpu) -> KernelWork:
    """All kernels of a call; weights are packed ahead of it."""
    found = traffic(plan)
    return KernelWork(
        "product",
        found.blocks,
        found.warps,
        plan.shared_bytes,
        plan.registers,
        found.steps,
        plan.schedule.stages,
        _fetch(plan, found, gpu),
        _compute(plan, found, gpu),
        _result(plan, found, gpu),
        dram_bytes=_read_from_dram(plan, found, gpu) + found.stored_bytes,
        others=_others(plan, gpu),
    )


def _fetch(plan: Plan, found: KernelTraffic, gpu: Gpu) -> Phase:
    """A stage's copies, asked for one after the other by a warp, all under way at a time."""
    schedulers = gpu.unit.schedulers
    accesses = found.stage.copies / LANES
    issue = accesses * COPY_INSTRUCTIONS / schedulers
    own = accesses / found.warps * COPY_INSTRUCTIONS * gpu.unit.integer_cycles
    loaded = found.loaded_bytes / found.blocks / found.steps
    cycles = gpu.l2_cycles + own + loaded / gpu.l2_bytes_each
    return Phase(cycles, 0.0, found.stage.copy_wavefronts, issue, loaded)


def _compute(plan: Plan, found: KernelTraffic, gpu: Gpu) -> Phase:
    """A barrier, then fragments and products of a stage."""
    rows, columns = plan.schedule.tile
    products = product_cycles(gpu, found.warps, rows * columns, plan.schedule.depth)
    shared = found.warps * found.stage.fragment_wavefronts
    loads = found.warps * plan.schedule.depth * (rows + columns / 2)
    waits = gpu.unit.shared_store_cycles + gpu.unit.shared_load_cycles
    cycles = max(products.cycles, shared) + waits
    issue = products.issue + 3 * loads / gpu.unit.schedulers
    return Phase(cycles, products.tensor, shared, issue)


def _result(plan: Plan, found: KernelTraffic, gpu: Gpu) -> Phase:
    """The way of a block's results through shared memory to L2."""
    rows = plan.schedule.tile[0]
    shared = found.warps * (found.result.store_wavefronts + found.result.load_wavefronts)
    stored = found.stored_bytes / found.blocks
    instruction = plan.product.instruction
    elements = math.prod(plan.schedule.block) * instruction.m * instruction.n
    vectors = elements / plan.product.output.length / LANES
    issue = vectors * RESULT_INSTRUCTIONS / gpu.unit.schedulers
    own = vectors / found.warps * RESULT_INSTRUCTIONS * gpu.unit.integer_cycles
    waits = rows * (gpu.unit.shared_store_cycles + gpu.unit.shared_load_cycles)
    return Phase(waits + own + shared / found.warps, 0.0, shared, issue, stored)


def _bytes(stored: Stored) -> int:
    return math.prod(stored.layout.original_shape) * size_bytes(stored.layout.dtype)


def _read_from_dram(plan: Plan, found: KernelTraffic, gpu: Gpu) -> float:
    """Each factor once where both fit L2; else what the blocks of a time read, anew for each such
    wave of blocks: those of a group of rows share columns."""
    once = _bytes(plan.first) + _bytes(plan.second)
    if once <= gpu.l2_capacity:
        return once
    rows, columns, _, _ = plan.blocks
    resident = max(1, gpu.resident(found.warps, plan.shared_bytes, plan.registers))
    at_once = min(found.blocks, resident * gpu.multiprocessors)
    group = plan.group
    tall = min(rows, group * max(1, at_once // (group * columns)))
    wide = min(columns, -(-at_once // group))
    wave = tall * _bytes(plan.first) / rows + wide * _bytes(plan.second) / columns
    return min(max(once, found.blocks / at_once * wave), found.loaded_bytes)


def _others(plan: Plan, gpu: Gpu) -> tuple[KernelWork, ...]:
    """Packing, but for weights, and the sum of parts."""
    product, found = plan.product, list[KernelWork]()
    weights = product.program.workload.inputs[1].name
    for stored in (plan.first, plan.second):
        if stored.needs_packing and stored.layout.name != weights:
            size = size_bytes(stored.layout.dtype)
            elements = stored.layout.elements
            moved = _bytes(stored) + elements * size
            found.append(_moving("packing", elements, moved, gpu))
    if plan.schedule.splits > 1:
        elements = product.output.layout.elements
        moved = elements * plan.schedule.splits * size_bytes(product.sums)
        moved += elements * size_bytes(product.stored_dtype)
        found.append(_moving("reduction", elements, moved, gpu))
    return tuple(found)


def _moving(name: str, elements: int, moved: int, gpu: Gpu) -> KernelWork:
    """A kernel of a thread for each element."""
    warps, blocks = THREADS // LANES, -(-elements // THREADS)
    issue = warps * COPY_INSTRUCTIONS / gpu.unit.schedulers
    cycles = gpu.l2_cycles + COPY_INSTRUCTIONS * gpu.unit.integer_cycles
    phase = Phase(cycles, 0.0, 2 * warps, issue, moved / blocks)
    return KernelWork(name, blocks, warps, 0, _PLAIN_REGISTERS, compute=phase, dram_bytes=moved)
