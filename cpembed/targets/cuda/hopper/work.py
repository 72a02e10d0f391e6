"""Work of a plan's kernels of warp groups, from its schedule, for the estimate of their time."""

from __future__ import annotations

import math

from cpembed.ir.dtypes import size_bytes
from cpembed.targets.cuda.hopper.schedule import LAUNCH_REGISTERS, WARP_ROWS, HopperPlan
from cpembed.targets.cuda.instructions import LANES, WARP_GROUP
from cpembed.targets.cuda.lower import GlobalOperand
from cpembed.targets.cuda.model import Gpu, KernelWork, Phase
from cpembed.targets.cuda.schedule import WAVEFRONT_BYTES
from cpembed.targets.cuda.traffic import COPY_INSTRUCTIONS, RESULT_INSTRUCTIONS
from cpembed.targets.cuda.writer import PACKING_THREADS

MATRIX_BYTES = 32
"""Number of bytes along the depth of the factors of one instruction."""


def work_of(plan: HopperPlan, gpu: Gpu) -> KernelWork:
    """Return the work of all kernels of a call; weights are packed ahead of it."""
    items = -(-plan.work_items // plan.grid)
    schedule, product = plan.schedule, plan.product
    registers = plan.registers if schedule.groups == 1 else LAUNCH_REGISTERS
    return KernelWork(
        "product",
        plan.grid,
        schedule.threads // LANES,
        plan.shared_bytes,
        registers=registers,
        steps=items * plan.order.part_steps,
        stages=schedule.stages,
        fetch=_fetch(plan, gpu),
        compute=_compute(plan, gpu),
        result=_result(plan, gpu),
        results=items,
        dram_bytes=_bytes_from_dram(plan, gpu) + product.output.layout.elements * _stored(plan),
        auxiliary=_auxiliary(plan, gpu),
    )


def _stored(plan: HopperPlan) -> int:
    """Return the bytes that are stored for each element of the result."""
    if plan.schedule.splits > 1:
        return plan.schedule.splits * size_bytes(plan.product.sums)
    return size_bytes(plan.product.output_dtype)


def _stage_content(plan: HopperPlan) -> int:
    return sum(image.content_bytes for image in plan.images)


def _fetch(plan: HopperPlan, gpu: Gpu) -> Phase:
    """Return the copies of a stage: bytes from L2, which are written to shared memory."""
    content = _stage_content(plan)
    vectors = 0.0
    for number, (image, load) in enumerate(zip(plan.images, plan.schedule.loads, strict=True)):
        if load == "threads":
            operand = plan.operand(number)
            width = operand.length * size_bytes(operand.layout.dtype)
            vectors += image.content_bytes / width / LANES
    issue = vectors * COPY_INSTRUCTIONS / gpu.unit.schedulers
    # The producers' four warps issue their copies one after the other.
    issue_of_warp = vectors / (WARP_GROUP // LANES) * COPY_INSTRUCTIONS * gpu.unit.integer_cycles
    cycles = gpu.l2_cycles + content / gpu.l2_bytes_each + issue_of_warp
    return Phase(cycles, 0.0, content / WAVEFRONT_BYTES, issue, bytes=content)


def _compute(plan: HopperPlan, gpu: Gpu) -> Phase:
    """Return the products of a stage, whose factors are read from shared memory."""
    schedule, instruction = plan.schedule, plan.product.instruction
    rows, columns = schedule.block
    tensor = rows * columns * schedule.depth * gpu.product_cycles
    # Each instruction reads its rows of A, and all of its columns of B.
    lines = instruction.m + columns * instruction.n
    shared = rows * schedule.depth * lines * MATRIX_BYTES / WAVEFRONT_BYTES
    issue = rows * schedule.depth * (WARP_GROUP // LANES) / gpu.unit.schedulers
    latency = gpu.product_latency if schedule.stages == 1 else 0.0
    return Phase(max(tensor, shared, latency), tensor, shared, issue)


def _result(plan: HopperPlan, gpu: Gpu) -> Phase:
    """Return the transfer of a block's results through shared memory to L2."""
    product, instruction = plan.product, plan.product.instruction
    rows, columns = plan.schedule.block
    elements = rows * columns * instruction.m * instruction.n
    staged = elements * size_bytes(product.sums) / WAVEFRONT_BYTES
    vectors = elements / product.output.length / LANES
    warps = plan.schedule.consumers // LANES
    issue_of_warp = vectors / warps * RESULT_INSTRUCTIONS * gpu.unit.integer_cycles
    strips = elements / warps / (WARP_ROWS * plan.staging.columns)
    waits = strips * (gpu.unit.shared_store_cycles + gpu.unit.shared_load_cycles)
    stored = elements * size_bytes(
        product.sums if plan.schedule.splits > 1 else product.output_dtype
    )
    issue = vectors * RESULT_INSTRUCTIONS / gpu.unit.schedulers
    cycles = waits + issue_of_warp + 2 * staged / warps
    return Phase(cycles, 0.0, 2 * staged, issue, bytes=stored)


def _bytes(operand: GlobalOperand) -> int:
    return math.prod(operand.layout.original_shape) * size_bytes(operand.layout.dtype)


def _bytes_from_dram(plan: HopperPlan, gpu: Gpu) -> float:
    """Return the bytes of factors that are read from main memory.

    As for kernels of warps: each factor once if both fit L2, otherwise again in each wave of
    blocks.
    """
    first, second = (_bytes(plan.operand(number)) for number in range(2))
    if first + second <= gpu.l2_capacity:
        return first + second
    rows, columns, _ = plan.blocks
    blocks = min(plan.work_items, gpu.multiprocessors)
    group = min(plan.schedule.group, rows)
    wave_rows = min(rows, group * max(1, blocks // (group * columns)))
    wave_columns = min(columns, -(-blocks // group))
    wave = wave_rows * first / rows + wave_columns * second / columns
    loaded = plan.work_items * plan.order.part_steps * _stage_content(plan)
    return min(max(first + second, plan.work_items / blocks * wave), loaded)


def _auxiliary(plan: HopperPlan, gpu: Gpu) -> tuple[KernelWork, ...]:
    """Return the packing of operands other than weights, and the addition of parts."""
    product, kernels = plan.product, list[KernelWork]()
    weights = product.program.workload.inputs[1].name
    for number in range(2):
        operand = plan.operand(number)
        if plan.packs(number) and operand.layout.name != weights:
            elements = operand.layout.elements
            transferred = _bytes(operand) + elements * size_bytes(operand.layout.dtype)
            kernels.append(_element_kernel("packing", elements, transferred, gpu))
    if plan.schedule.splits > 1:
        elements = product.output.layout.elements
        transferred = elements * plan.schedule.splits * size_bytes(product.sums)
        transferred += elements * size_bytes(product.output_dtype)
        kernels.append(_element_kernel("reduction", elements, transferred, gpu))
    return tuple(kernels)


_ELEMENT_REGISTERS = 24
"""Number of registers of a thread that only moves an element."""


def _element_kernel(name: str, elements: int, transferred: int, gpu: Gpu) -> KernelWork:
    """Return the work of a kernel with a thread for each element, which moves bytes in all."""
    warps, blocks = PACKING_THREADS // LANES, -(-elements // PACKING_THREADS)
    issue = warps * COPY_INSTRUCTIONS / gpu.unit.schedulers
    cycles = gpu.l2_cycles + COPY_INSTRUCTIONS * gpu.unit.integer_cycles
    phase = Phase(cycles, 0.0, 2 * warps, issue, bytes=transferred / blocks)
    return KernelWork(
        name, blocks, warps, 0, registers=_ELEMENT_REGISTERS, compute=phase, dram_bytes=transferred
    )
