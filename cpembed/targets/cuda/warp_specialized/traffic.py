"""Traffic of a kernel of warp groups, counted from its schedule; the executor counts the same.

Widths and addresses of accesses follow from the same formulas as the generated code.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from cpembed.ir.dtypes import size_bytes
from cpembed.targets.cuda.fragment_products import MATRIX_BYTES
from cpembed.targets.cuda.instructions import LANES, WARP_GROUP
from cpembed.targets.cuda.multistage.reads import SECTOR_BYTES
from cpembed.targets.cuda.multistage.schedule import WAVEFRONT_BYTES, SharedTile
from cpembed.targets.cuda.multistage.traffic import (
    read_back_wavefronts,
    staged_wavefronts,
    vector_wavefronts,
)
from cpembed.targets.cuda.tma.factors import Numbers, digit_values
from cpembed.targets.cuda.warp_specialized.loads import factor_bytes
from cpembed.targets.cuda.warp_specialized.schedule import SpecializedPlan
from cpembed.targets.cuda.warp_specialized.tiles import WorkItem

WARPS = WARP_GROUP // LANES

COUNTER_BYTES = 4
"""Number of bytes of the count of a tile's parts."""


@dataclass(frozen=True, kw_only=True)
class SpecializedTraffic:
    """Counts of a product kernel, all blocks together.

    Attributes
    ----------
    products : int
        Number of instructions, each counted by all of its warps.
    matrix_wavefronts : int
        Wavefronts of the factors that instructions read in shared memory.
    image_bytes : int
        Bytes that bulk copies write to shared memory, zeros included.
    phases : int
        Phases of mbarriers: each stage is filled and given back, and groups give their turn on.
    shared_load_wavefronts, shared_store_wavefronts : int
        Wavefronts of threads: results, and factors that threads copy or load into registers.
    stored_bytes : int
        Bytes of results, or of parts of their sums, and counts of parts.
    stored_sectors : int
        Sectors of these, if rows of results begin and end with a sector.
    part_bytes_loaded : int
        Bytes of parts that blocks add, and of counts.
    """

    products: int
    matrix_wavefronts: int
    image_bytes: int
    phases: int
    shared_load_wavefronts: int
    shared_store_wavefronts: int
    stored_bytes: int
    stored_sectors: int
    part_bytes_loaded: int


@dataclass(frozen=True)
class _Share:
    """Work of some workers of a kernel, counted in blocks."""

    stages: int
    results: int
    """Number of times that sums are staged, for results or for parts that a kernel adds."""
    elements: int
    """Number of elements that are stored then."""
    parts: int
    """Number of parts of streamed tiles."""
    added: int
    """Number of parts that are added up."""
    tiles: int
    """Number of tiles that they are added to."""


def _kernel_share(plan: SpecializedPlan) -> _Share:
    order, blocks = plan.order, plan.schedule.cluster_blocks
    parts = order.streamed_parts
    return _Share(
        # The parts of a reduction have all of its stages together.
        stages=order.tiles * blocks * plan.steps,
        results=plan.results,
        elements=plan.product.output.layout.elements * order.splits,
        parts=parts,
        added=parts,
        tiles=order.divided_tiles,
    )


def _share(plan: SpecializedPlan, workers: Collection[int]) -> _Share:
    """Return what some workers do; a tile's parts are added if all of them are among theirs."""
    order, blocks = plan.order, plan.schedule.cluster_blocks
    items = [item for worker in workers for item in order.items(worker)]
    parts = [item for item in items if item.parts > 1 and order.splits == 1]
    counts = Counter(item.tile for item in parts)
    divided = {item.tile: item for item in parts if counts[item.tile] == item.parts}
    stored = [item for item in items if item.parts == 1 or order.splits > 1]
    stored += divided.values()
    return _Share(
        stages=sum(item.last - item.first for item in items) * blocks,
        results=len(stored) * blocks,
        elements=sum(_stored_elements(plan, item) for item in stored),
        parts=len(parts),
        added=sum(item.parts for item in divided.values()),
        tiles=len(divided),
    )


def _stored_elements(plan: SpecializedPlan, item: WorkItem) -> int:
    """Count the elements of the result in the tiles of a work item."""
    product, (rows, columns) = plan.product, plan.schedule.block
    instruction, output = product.instruction, product.output.layout
    across, along = plan.schedule.cluster
    sizes = across * rows * instruction.m, along * columns * instruction.n
    row = (item.row * rows * instruction.m + np.arange(sizes[0]))[:, None]
    column = (item.column * columns * instruction.n + np.arange(sizes[1]))[None]
    tiles = row // instruction.m, column // instruction.n
    values: dict[str, int | Numbers] = {
        **dict.fromkeys(product.program.extents, 0),
        **digit_values(np.array(item.batch), product.batch),
        **digit_values(tiles[0], product.rows),
        **digit_values(tiles[1], product.columns),
        product.axes[0]: row % instruction.m,
        product.axes[1]: column % instruction.n,
    }
    inside = (tiles[0] < product.tiles[1]) & (tiles[1] < product.tiles[2])
    for index, size in zip(output.access, output.shape, strict=True):
        coordinate = index.evaluate(values)
        inside = inside & (coordinate >= 0) & (coordinate < size)
    return int(np.count_nonzero(np.broadcast_to(inside, sizes)))


def traffic(plan: SpecializedPlan, workers: Collection[int] | None = None) -> SpecializedTraffic:
    """Return the counts of the kernel that computes the product, or the parts of its sums.

    Parameters
    ----------
    plan : SpecializedPlan
    workers : collection of int, optional
        Workers that are counted, as if no other were there; by default all of them.
    """
    product, schedule = plan.product, plan.schedule
    share = _kernel_share(plan) if workers is None else _share(plan, workers)
    rows, stages = schedule.block[0], share.stages
    # A copy to several blocks counts once.
    images = [factor_bytes(plan, n) // schedule.sharers(n) for n in range(2)]
    instructions = stages * schedule.depth * rows
    warps = schedule.readers
    loads = share.results * warps * _read_back(plan)
    if schedule.warps is not None:
        loads += stages * fragment_wavefronts(plan)
    if schedule.in_registers:
        # Four matrices of eight rows for each warp and instruction.
        loads += instructions * WARPS * 4
    size = size_bytes(product.sums if schedule.splits > 1 else product.output_dtype)
    # Of each part a thread counts, and tells the other warps; the last one clears the count.
    parts, counts = share.parts, (share.parts + share.tiles) * COUNTER_BYTES
    sums = plan.block_sums * size_bytes(product.sums)
    results = share.elements * size + parts * sums
    return SpecializedTraffic(
        products=instructions * (WARPS if schedule.warps is None else schedule.block[1]),
        matrix_wavefronts=instructions * _matrix_wavefronts(plan),
        image_bytes=stages * sum(images),
        phases=2 * stages + share.results * schedule.alternating,
        shared_load_wavefronts=loads + parts * warps,
        shared_store_wavefronts=share.results * warps * _staged(plan)
        + stages * copy_wavefronts(plan)
        + parts,
        stored_bytes=results + counts,
        # The store that clears a count has a sector of its own; atomic operations have none.
        stored_sectors=-(-results // SECTOR_BYTES) + share.tiles,
        part_bytes_loaded=share.added * sums + parts * COUNTER_BYTES,
    )


def _matrix_wavefronts(plan: SpecializedPlan) -> int:
    """Count the wavefronts of the factors of one instruction, which swizzles keep apart."""
    if plan.schedule.warps is not None:
        return 0
    instruction = plan.product.instruction
    lines = plan.schedule.tile[1] * instruction.n
    lines += 0 if plan.schedule.in_registers else instruction.m
    return lines * MATRIX_BYTES // WAVEFRONT_BYTES


def fragment_wavefronts(plan: SpecializedPlan) -> int:
    """Count the wavefronts of all warps that load the fragments of a stage by ``ldmatrix``."""
    rows, columns = plan.schedule.tile
    # Swizzles keep the eight rows of a matrix apart.
    return plan.schedule.consumers // LANES * plan.schedule.depth * (4 * rows + 2 * columns)


def result_wavefronts(plan: SpecializedPlan) -> int:
    """Count the wavefronts of a block of results, or of a part of its sums."""
    warps = plan.schedule.readers
    return warps * (_staged(plan) + _read_back(plan))


def _staged(plan: SpecializedPlan) -> int:
    """Count the wavefronts of a warp that stages the sums of a block of results."""
    if plan.store is not None:
        # Swizzles keep the rows of a matrix, and the pairs of words, apart.
        return plan.strips * plan.store_image.content_bytes // WAVEFRONT_BYTES
    instruction = plan.product.instruction
    return plan.strips * staged_wavefronts(instruction, plan.staging, plan.strip)


def _read_back(plan: SpecializedPlan) -> int:
    """Count the wavefronts of a warp that reads the sums of a block of results back."""
    if plan.store is not None:
        return 0
    product = plan.product
    along_columns = product.output.along == product.axes[1]
    vectors = read_back_wavefronts(plan.staging, product.output.length, along_columns)
    return plan.strips * vectors


def copied_tile(plan: SpecializedPlan, number: int) -> SharedTile:
    """Return the image of a factor as the tile that the producers' threads copy."""
    image, operand = plan.images[number], plan.operand(number)
    width = operand.length * size_bytes(operand.layout.dtype)
    return SharedTile(image.rows, image.span, image.span, width, swizzled=True)


def copy_wavefronts(plan: SpecializedPlan) -> int:
    """Count the wavefronts of the vectors of a stage that threads copy."""
    total = 0
    for number, (image, load) in enumerate(zip(plan.images, plan.schedule.loads, strict=True)):
        if load == "threads":
            tile = copied_tile(plan, number)
            total += vector_wavefronts(tile, image.content_bytes // tile.width)
    return total
