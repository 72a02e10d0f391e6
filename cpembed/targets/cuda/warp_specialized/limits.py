"""Limits of plans of warp groups: of instructions, memories, registers and offsets of 32 bits."""

from __future__ import annotations

import math

from cpembed.errors import LoweringError
from cpembed.targets.cuda.lower import GlobalOperand
from cpembed.targets.cuda.multistage.offsets import (
    access_bound,
    largest_digits,
    packing_bound,
    require_offsets,
    require_parts,
)
from cpembed.targets.cuda.multistage.registers import REGISTER_MARGIN
from cpembed.targets.cuda.multistage.schedule import MAX_THREADS
from cpembed.targets.cuda.warp_specialized.device import column_counts
from cpembed.targets.cuda.warp_specialized.layouts import SPANS
from cpembed.targets.cuda.warp_specialized.packing import PackedImages
from cpembed.targets.cuda.warp_specialized.schedule import MAX_GROUPS, MAX_STAGES, SpecializedPlan

MAX_CLUSTER = 8
"""Maximum number of blocks of a cluster on every GPU (CUDA C++ Programming Guide)."""


MAX_STORE_BUFFERS = 2
"""Maximum number of buffers of a warp from which TMA stores results."""


def check(plan: SpecializedPlan, shared_bytes: int) -> None:
    """Raise :class:`LoweringError` if a plan cannot be executed.

    That is, if no such kernel is generated, or a multiprocessor with ``shared_bytes`` of shared
    memory for a block cannot execute it.
    """
    schedule, product = plan.schedule, plan.product
    numbers = (schedule.groups, *schedule.tile, schedule.depth, schedule.group, schedule.splits)
    if min(numbers) < 1 or schedule.groups > MAX_GROUPS or not 2 <= schedule.stages <= MAX_STAGES:
        raise LoweringError(
            f"{schedule}: tiles count from 1, groups from 1 to {MAX_GROUPS}, stages from 2 to "
            f"{MAX_STAGES}"
        )
    if schedule.splits > 1 and product.output.placement is not None:
        raise LoweringError(f"{schedule}: the kernel that adds parts writes an entire buffer")
    if product.instruction.kind == "mma":
        _check_warps(plan)
    else:
        _check_groups(plan)
    if not all(image.is_legal for image in plan.images):
        raise LoweringError(f"{schedule}: rows of a stage have {', '.join(map(str, SPANS))} bytes")
    counts = (len(product.first), len(product.second))
    for load, view, layout, count in zip(
        schedule.loads, plan.views, schedule.layouts, counts, strict=True
    ):
        if load == "tensor" and view is None:
            raise LoweringError(f"{schedule}: TMA cannot load a factor's tile")
        if view is not None and not view.zero_beyond and product.tiles[3] % schedule.depth:
            # Products with what lies there would be wrong, and even zeros of the other factor do
            # not hide infinities.
            raise LoweringError(f"{schedule}: the last stage goes beyond the depth")
        if load == "threads" and not 0 <= layout < count:
            raise LoweringError(f"{schedule}: there are {counts} layouts of the factors")
    if schedule.streamed and schedule.splits > 1:
        raise LoweringError(f"{schedule}: a reduction is split or divided evenly, not both")
    _check_stores(plan)
    _check_cluster(plan)
    order = plan.order
    if (order.splits - 1) * order.part_steps >= order.steps:
        raise LoweringError(f"{schedule}: a part of the reduction has no stage")
    if plan.shared_bytes > shared_bytes:
        raise LoweringError(
            f"{schedule}: {plan.shared_bytes:,} bytes of shared memory of {shared_bytes:,}"
        )
    needed = plan.registers + (0 if schedule.warps is None else REGISTER_MARGIN)
    if needed > plan.register_limit:
        raise LoweringError(f"{schedule}: {needed} registers of {plan.register_limit}")
    _check_offsets(plan)


def _check_groups(plan: SpecializedPlan) -> None:
    """Refuse products that warp groups do not have."""
    schedule, instruction = plan.schedule, plan.product.instruction
    columns = schedule.tile[1] * instruction.n
    if schedule.warps is not None or instruction.kind != "wgmma":
        raise LoweringError(f"{schedule}: no warps execute {instruction.name}")
    if columns not in column_counts(instruction):
        raise LoweringError(f"{schedule}: no instruction of {columns} columns")
    if schedule.alternating and (
        schedule.groups == 1 or schedule.streamed or plan.order.turns < schedule.groups
    ):
        raise LoweringError(f"{schedule}: groups take turns at whole tiles, of which each has one")
    if schedule.in_registers and plan.images[0].major != "k":
        raise LoweringError(f"{schedule}: the first factor in registers is K-major")


def _check_warps(plan: SpecializedPlan) -> None:
    """Refuse schedules that no warps of their own execute."""
    schedule = plan.schedule
    if schedule.warps is None or schedule.groups != 1 or min(schedule.warps) < 1:
        raise LoweringError(f"{schedule}: {plan.product.instruction.name} is executed by warps")
    if schedule.threads > MAX_THREADS:
        raise LoweringError(f"{schedule}: a block has at most {MAX_THREADS} threads")
    if plan.by_threads or schedule.in_registers or schedule.cluster_blocks > 1:
        raise LoweringError(f"{schedule}: warps take what bulk copies load for their block")
    for tiles, extent, image in zip(
        schedule.tile,
        (plan.product.instruction.m, plan.product.instruction.n),
        plan.images,
        strict=True,
    ):
        # Chunks are permuted by exclusive or, so that rows of a warp begin at multiples.
        if image.transposed and tiles * extent & (tiles * extent - 1):
            raise LoweringError(f"{schedule}: transposed rows of a warp are a power of two")


def _check_stores(plan: SpecializedPlan) -> None:
    """Refuse stores by TMA that there are not, and buffers that a warp would not take in turn."""
    buffers = plan.schedule.store_buffers
    if not 0 <= buffers <= MAX_STORE_BUFFERS:
        raise LoweringError(f"{plan.schedule}: from 0 to {MAX_STORE_BUFFERS} buffers of results")
    if plan.store is None:
        return
    if plan.schedule.splits > 1:
        raise LoweringError(f"{plan.schedule}: threads store parts of sums")
    # A block begins with the first buffer, which has to be the one that is free first.
    if plan.strips % buffers:
        raise LoweringError(f"{plan.schedule}: {plan.strips} boxes from {buffers} buffers")


def _check_cluster(plan: SpecializedPlan) -> None:
    """Refuse clusters of which the kernels know nothing."""
    schedule = plan.schedule
    if min(schedule.cluster) < 1 or schedule.cluster_blocks > MAX_CLUSTER:
        raise LoweringError(f"{schedule}: a cluster has from 1 to {MAX_CLUSTER} blocks")
    if schedule.cluster_blocks == 1:
        return
    if plan.by_threads or schedule.streamed:
        raise LoweringError(f"{schedule}: clusters copy by TMA, and compute whole tiles")
    for number, load in enumerate(schedule.loads):
        if load == "bulk" and plan.blocks[number] % schedule.cluster[number]:
            raise LoweringError(f"{schedule}: no images are packed for blocks beyond the result")


def _check_offsets(plan: SpecializedPlan) -> None:
    """Refuse a plan whose kernels would compute an offset of more than 32 bits."""
    product, schedule = plan.product, plan.schedule
    require_parts(product, schedule.splits)
    values = _largest_values(plan)
    for number, load in enumerate(schedule.loads):
        operand, bounds = plan.operand(number), list[int]()
        if load == "bulk":
            bounds = [PackedImages(plan, number).elements, *_elements(operand)]
        elif load == "threads":
            bounds = [access_bound(operand, values)]
        # Coordinates of TMA are below those of elements.
        if operand.needs_packing and load != "bulk":
            bounds += [packing_bound(operand), *_elements(operand)]
        require_offsets(operand, bounds)
    require_offsets(product.output, [access_bound(product.output, values)])


def _elements(operand: GlobalOperand) -> tuple[int, int]:
    return operand.layout.elements, math.prod(operand.layout.original_shape)


def _largest_values(plan: SpecializedPlan) -> dict[str, int]:
    """Return the largest values of iterators, in tiles beyond the product too."""
    product, schedule = plan.product, plan.schedule
    rows, columns, batch = plan.blocks
    values = {loop.name: 0 for loop in product.program.loops}
    values |= {axis.name: axis.extent - 1 for axis in product.program.instruction_axes}
    for count, loops in (
        (batch, product.batch),
        (rows * schedule.block[0], product.rows),
        (columns * schedule.block[1], product.columns),
        (plan.steps * schedule.depth, product.depth),
    ):
        values |= largest_digits(count - 1, loops)
    return values
