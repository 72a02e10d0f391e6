"""Traffic of a kernel of warp groups, counted from its schedule; the executor counts the same.

Widths and addresses of accesses follow from the same formulas as the generated code.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from cpembed.ir.dtypes import size_bytes
from cpembed.targets.cuda.hopper.layouts import CHUNK, PATTERN_ROWS, SharedImage
from cpembed.targets.cuda.hopper.loads import factor_bytes
from cpembed.targets.cuda.hopper.schedule import HopperPlan
from cpembed.targets.cuda.instructions import LANES, WARP_GROUP
from cpembed.targets.cuda.schedule import WAVEFRONT_BYTES
from cpembed.targets.cuda.traffic import read_back_wavefronts, staged_wavefronts, wavefronts

MATRIX_BYTES = 32
"""Number of bytes along the depth of the factors of one instruction."""

WARPS = WARP_GROUP // LANES

COUNTER_BYTES = 4
"""Number of bytes of the count of a tile's parts."""


@dataclass(frozen=True, kw_only=True)
class HopperTraffic:
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
        Phases of mbarriers: each stage is filled and given back.
    shared_load_wavefronts, shared_store_wavefronts : int
        Wavefronts of threads: results, and factors that threads copy or load into registers.
    stored_bytes : int
        Bytes of results, or of parts of their sums.
    """

    products: int
    matrix_wavefronts: int
    image_bytes: int
    phases: int
    shared_load_wavefronts: int
    shared_store_wavefronts: int
    stored_bytes: int


def traffic(plan: HopperPlan) -> HopperTraffic:
    """Return the counts of the kernel that computes the product, or the parts of its sums."""
    product, schedule = plan.product, plan.schedule
    rows = schedule.block[0]
    # The parts of a reduction have all of its stages together.
    stages = plan.order.tiles * schedule.cluster_blocks * plan.steps
    # A copy to several blocks counts once.
    images = [factor_bytes(plan, n) // schedule.sharers(n) for n in range(2)]
    instructions = stages * schedule.depth * rows
    warps = schedule.consumers // LANES
    loads = plan.results * warps * _read_back(plan)
    if schedule.warps is not None:
        loads += stages * fragment_wavefronts(plan)
    if schedule.in_registers:
        # Four matrices of eight rows for each warp and instruction.
        loads += instructions * WARPS * 4
    size = size_bytes(product.output_dtype)
    if schedule.splits > 1:
        size = schedule.splits * size_bytes(product.sums)
    # Of each part a thread counts, and tells the other warps.
    parts = plan.order.streamed_parts
    return HopperTraffic(
        products=instructions * (WARPS if schedule.warps is None else schedule.block[1]),
        matrix_wavefronts=instructions * _matrix_wavefronts(plan),
        image_bytes=stages * sum(images),
        phases=2 * stages,
        shared_load_wavefronts=loads + parts * warps,
        shared_store_wavefronts=plan.results * warps * _staged(plan)
        + stages * copy_wavefronts(plan)
        + parts,
        stored_bytes=product.output.layout.elements * size + parts * part_bytes(plan),
    )


def _matrix_wavefronts(plan: HopperPlan) -> int:
    """Count the wavefronts of the factors of one instruction, which swizzles keep apart."""
    if plan.schedule.warps is not None:
        return 0
    instruction = plan.product.instruction
    lines = plan.schedule.tile[1] * instruction.n
    lines += 0 if plan.schedule.in_registers else instruction.m
    return lines * MATRIX_BYTES // WAVEFRONT_BYTES


def fragment_wavefronts(plan: HopperPlan) -> int:
    """Count the wavefronts of all warps that load the fragments of a stage by ``ldmatrix``."""
    rows, columns = plan.schedule.tile
    # Swizzles keep the eight rows of a matrix apart.
    return plan.schedule.consumers // LANES * plan.schedule.depth * (4 * rows + 2 * columns)


def part_bytes(plan: HopperPlan) -> int:
    """Return the bytes that a block stores of a part of a streamed tile, and of its count."""
    return plan.block_sums * size_bytes(plan.product.sums) + COUNTER_BYTES


def result_wavefronts(plan: HopperPlan) -> int:
    """Count the wavefronts of a block of results, or of a part of its sums."""
    warps = plan.schedule.consumers // LANES
    return warps * (_staged(plan) + _read_back(plan))


def _strips(plan: HopperPlan) -> int:
    """Return the number of times that a warp stages sums of a block of results."""
    rows, columns = plan.schedule.tile
    return rows * columns // plan.strip


def _staged(plan: HopperPlan) -> int:
    """Count the wavefronts of a warp that stages the sums of a block of results."""
    instruction = plan.product.instruction
    return _strips(plan) * staged_wavefronts(instruction, plan.staging, plan.strip)


def _read_back(plan: HopperPlan) -> int:
    """Count the wavefronts of a warp that reads the sums of a block of results back."""
    product = plan.product
    along_columns = product.output.along == product.axes[1]
    vectors = read_back_wavefronts(plan.staging, product.output.length, along_columns)
    return _strips(plan) * vectors


def copy_wavefronts(plan: HopperPlan) -> int:
    """Count the wavefronts of the vectors of a stage that threads copy."""
    total = 0
    for number, (image, load) in enumerate(zip(plan.images, plan.schedule.loads, strict=True)):
        if load == "threads":
            operand = plan.operand(number)
            total += _image_wavefronts(image, operand.length * size_bytes(operand.layout.dtype))
    return total


@lru_cache(maxsize=1024)
def _image_wavefronts(image: SharedImage, width: int) -> int:
    """Count the wavefronts of an image's vectors, in the order in which threads copy them."""
    vectors, per_row = image.content_bytes // width, image.span // width
    total = 0
    for first in range(0, vectors, WARP_GROUP):
        for warp in range(first, min(first + WARP_GROUP, vectors), LANES):
            # The last warp may have idle lanes.
            slots = np.arange(warp, min(warp + LANES, vectors))
            row, byte = slots // per_row, slots % per_row * width
            chunks = image.span // CHUNK
            turn = row // (PATTERN_ROWS // chunks) % chunks
            places = row * image.span + (byte // CHUNK ^ turn) * CHUNK + byte % CHUNK
            total += _access_wavefronts(places, width)
    return total


def _access_wavefronts(places: np.ndarray, width: int) -> int:
    """Count the wavefronts of an access of a warp in which only the first lanes take part."""
    served = min(LANES, WAVEFRONT_BYTES // width)
    groups = [places[first : first + served] for first in range(0, len(places), served)]
    # Idle lanes add nothing to what the first one of their group reads.
    filled = [np.concatenate([g, np.full(served - len(g), g[0])]) for g in groups]
    return sum(wavefronts(group, width) for group in filled)
