"""Work of a plan's kernels of warp groups, from its schedule, for the estimate of their time."""

from __future__ import annotations

import numpy as np

from cpembed.ir.dtypes import size_bytes
from cpembed.targets.cuda.instructions import LANES, WARP_GROUP, WARP_ROWS
from cpembed.targets.cuda.model import Gpu, KernelWork, Phase, product_cycles
from cpembed.targets.cuda.multistage.reads import mean_reads
from cpembed.targets.cuda.multistage.schedule import WAVEFRONT_BYTES
from cpembed.targets.cuda.multistage.traffic import (
    COPY_INSTRUCTIONS,
    RESULT_INSTRUCTIONS,
    auxiliary_work,
    operand_bytes,
)
from cpembed.targets.cuda.tma.reads import mean_bytes
from cpembed.targets.cuda.warp_specialized.schedule import SpecializedPlan
from cpembed.targets.cuda.warp_specialized.tiles import wave_reads
from cpembed.targets.cuda.warp_specialized.traffic import (
    SpecializedTraffic,
    copied_tile,
    fragment_wavefronts,
    result_wavefronts,
    traffic,
)

PART_LATENCIES = 3
"""Number of latencies of L2 that follow each other where parts of sums are added."""

# Counted in the loops that nvcc 13 generates for sm_120 (benchmarks/gpu/main_loop.md): 16 to 20.
STAGE_INSTRUCTIONS = 20
"""Number of integer instructions of a consumer warp for a stage, beside its loads of fragments."""

# Counted in the epilogues that nvcc 13 generates for sm_90a, of 128 sums a thread.
BOX_INSTRUCTIONS = 20
"""Number of instructions of a warp for each box of results that TMA stores."""
MATRIX_INSTRUCTIONS, PAIR_INSTRUCTIONS = 6, 3
"""Further ones for eight results of 16 bits of a lane, and for two of 32 bits."""


def work_of(plan: SpecializedPlan, gpu: Gpu) -> KernelWork:
    """Return the work of all kernels of a call; weights are packed ahead of it."""
    counts = traffic(plan)
    items = -(-plan.results // plan.grid)
    steps = items * plan.order.part_steps
    if plan.order.streamed:
        # Each block has as many stages as any other, and a part more than it has results.
        steps = -(-plan.order.tiles * plan.steps // plan.grid)
        items += 1
    schedule = plan.schedule
    registers = plan.registers if schedule.groups == 1 else plan.register_shares[0]
    return KernelWork(
        "product",
        plan.grid,
        schedule.threads // LANES,
        plan.shared_bytes,
        registers=registers,
        steps=steps,
        stages=schedule.stages,
        fetch=_fetch(plan, gpu),
        compute=_compute(plan, counts, gpu),
        result=_result(plan, counts, gpu),
        results=items,
        overlapped=schedule.alternating,
        dram_bytes=_bytes_from_dram(plan, gpu) + counts.stored_bytes,
        auxiliary=auxiliary_work(plan, schedule.splits, gpu),
    )


def _fetch(plan: SpecializedPlan, gpu: Gpu) -> Phase:
    """Return the copies of a stage: bytes from L2, which are written to shared memory."""
    shared = sum(image.content_bytes for image in plan.images) / WAVEFRONT_BYTES
    # Every block receives all of its stage but the zeros, of which L2 reads a share for it.
    received = [0.0, 0.0]
    vectors = 0.0
    for number, (image, load) in enumerate(zip(plan.images, plan.schedule.loads, strict=True)):
        if load != "threads":
            received[number] = mean_bytes(plan, number)
            continue
        tile = copied_tile(plan, number)
        vectors += image.content_bytes / tile.width / LANES
        reads = mean_reads(plan.product, number, plan.schedule.layouts[number], tile)
        received[number] = reads.bytes(tile.width)
        # Beyond the wavefronts of a row's bytes.
        shared += max(0.0, reads.lines - image.content_bytes / WAVEFRONT_BYTES)
    read = sum(received[number] / plan.schedule.sharers(number) for number in range(2))
    issue = vectors * COPY_INSTRUCTIONS / gpu.unit.schedulers
    # The producers' four warps issue their copies one after the other.
    issue_of_warp = vectors / (WARP_GROUP // LANES) * COPY_INSTRUCTIONS * gpu.unit.integer_cycles
    moved = sum(received)
    cycles = gpu.l2_cycles + moved / gpu.l2_bytes_each + issue_of_warp
    return Phase(cycles, 0.0, shared, issue, bytes=moved, multicast=moved - read)


def _compute(plan: SpecializedPlan, counts: SpecializedTraffic, gpu: Gpu) -> Phase:
    """Return the products of a stage, whose factors are read from shared memory."""
    schedule = plan.schedule
    if schedule.warps is not None:
        return _compute_of_warps(plan, gpu)
    rows, columns = schedule.block
    tensor = rows * columns * schedule.depth * gpu.product_cycles
    stages = plan.order.tiles * schedule.cluster_blocks * plan.steps
    shared = counts.matrix_wavefronts / stages
    issue = rows * schedule.depth * (WARP_GROUP // LANES) / gpu.unit.schedulers
    # Products of neighbouring stages overlap, so no stage waits for its own.
    return Phase(max(tensor, shared), tensor, shared, issue)


def _compute_of_warps(plan: SpecializedPlan, gpu: Gpu) -> Phase:
    """Return the fragments and products of a stage, of warps of their own."""
    schedule = plan.schedule
    (rows, columns), warps = schedule.tile, schedule.consumers // LANES
    products = product_cycles(gpu, warps, rows * columns, schedule.depth)
    shared = fragment_wavefronts(plan)
    loads = warps * schedule.depth * (rows + -(-columns // 2))
    # Fragments of the next stage are loaded behind the last products but one; a warp waits for its
    # mbarrier, which is in shared memory, and for no other warp.
    cycles = max(products.cycles, shared) + gpu.unit.shared_load_cycles
    issue = products.issue + (loads + warps * STAGE_INSTRUCTIONS) / gpu.unit.schedulers
    return Phase(cycles, products.tensor, shared, issue)


def _result(plan: SpecializedPlan, counts: SpecializedTraffic, gpu: Gpu) -> Phase:
    """Return the transfer of a block's results through shared memory to L2."""
    product, items = plan.product, plan.results
    rows, columns = plan.schedule.block
    elements = rows * columns * product.instruction.m * product.instruction.n
    shared = result_wavefronts(plan)
    warps = plan.schedule.readers
    waits = plan.strips * gpu.unit.shared_store_cycles
    if plan.store is None:
        instructions = elements / product.output.length / LANES * RESULT_INSTRUCTIONS
        waits += plan.strips * gpu.unit.shared_load_cycles
    else:
        instructions = _box_instructions(plan) * warps
        shared += warps * plan.strips * plan.store_image.content_bytes / WAVEFRONT_BYTES
        if plan.schedule.store_buffers == 1:
            # A box is read before the next one is written.
            read = plan.store_image.content_bytes / WAVEFRONT_BYTES
            waits += plan.strips * (gpu.unit.shared_load_cycles + read)
    issue_of_warp = instructions / warps * gpu.unit.integer_cycles
    issue = instructions / gpu.unit.schedulers
    cycles = waits + issue_of_warp + shared / warps
    if plan.order.streamed_parts:
        # A part is stored, then counted, then the last block loads all parts: three times to L2.
        cycles += PART_LATENCIES * gpu.l2_cycles
    moved = counts.stored_bytes + counts.part_bytes_loaded
    return Phase(cycles, 0.0, shared, issue, bytes=moved / items)


def _box_instructions(plan: SpecializedPlan) -> float:
    """Return the instructions of a warp for a block of results that TMA stores."""
    assert plan.store is not None
    sums = plan.store.tiles * plan.product.instruction.n * WARP_ROWS / LANES
    if size_bytes(plan.product.output_dtype) == 2:
        words = sums / 8 * MATRIX_INSTRUCTIONS
    else:
        words = sums / 2 * PAIR_INSTRUCTIONS
    return plan.strips * (BOX_INSTRUCTIONS + words)


def _bytes_from_dram(plan: SpecializedPlan, gpu: Gpu) -> float:
    """Return the bytes of factors that are read from main memory.

    Each factor once if both fit L2. Otherwise each turn of the persistent blocks reads its rows and
    columns; those of the turn before are still in L2 if all of that turn fitted.
    """
    factors = tuple(operand_bytes(plan.operand(number)) for number in range(2))
    if sum(factors) <= gpu.l2_capacity:
        return sum(factors)
    reads = wave_reads(plan.order)
    # Bytes of all of the depth of a worker's rows, and of its columns.
    sizes = [size / read.shape[1] for size, read in zip(factors, reads, strict=True)]
    turns = reads[0].sum(axis=1) * sizes[0] + reads[1].sum(axis=1) * sizes[1]
    again = sum(
        (read[1:] & read[:-1]).sum(axis=1) * size for read, size in zip(reads, sizes, strict=True)
    )
    total = turns.sum() - np.where(turns[:-1] <= gpu.l2_capacity, again, 0.0).sum()
    return max(sum(factors), float(total))
