"""Work of a plan's kernels: traffic and instructions, counted from its schedule.

The executor counts the same traffic. Widths and addresses of accesses follow from the same formulas
as the generated code (:mod:`cpembed.targets.cuda.multistage.emit`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from cpembed.ir.dtypes import size_bytes
from cpembed.targets.cuda.instructions import LANES, TensorCoreInstruction
from cpembed.targets.cuda.lower import GlobalOperand, TiledProduct
from cpembed.targets.cuda.model import Gpu, KernelWork, Phase, product_cycles
from cpembed.targets.cuda.multistage.reads import CopyReads, mean_reads
from cpembed.targets.cuda.multistage.schedule import (
    CHUNK,
    WAVEFRONT_BYTES,
    Plan,
    ProductPlan,
    SharedTile,
    Staging,
)
from cpembed.targets.cuda.writer import ELEMENT_THREADS, element_blocks

BANK_BYTES = 4
Addresses = NDArray[np.int64]


def wavefronts(addresses: Addresses, width: int) -> int:
    """Count the wavefronts of accesses of ``width`` bytes.

    A row of addresses is one access of a warp.
    """
    # Accesses of 16 bytes are served in quarters of a warp, of 8 bytes in halves; a word that
    # several lanes read is read once (CUDA C++ Best Practices Guide, shared memory and memory
    # banks).
    lanes = min(LANES, WAVEFRONT_BYTES // width)
    total = 0
    for group in addresses.reshape(-1, lanes):
        words = np.unique(group[:, None] // BANK_BYTES + np.arange(max(1, width // BANK_BYTES)))
        total += _max_bank_words(words)
    return total


def _max_bank_words(words: Addresses) -> int:
    return int(np.bincount(words % (WAVEFRONT_BYTES // BANK_BYTES)).max())


@dataclass(frozen=True, kw_only=True)
class StageTraffic:
    """Counts of a stage.

    ``products`` and ``fragment_wavefronts`` are those of each warp; ``copy_wavefronts``,
    ``copy_cycles`` (of L1 and shared memory), ``copy_instructions`` (integer instructions) and
    ``copied_bytes`` (from L2, on average) are those of all warps of a block.
    """

    products: int
    fragment_wavefronts: int
    copy_wavefronts: int
    copy_cycles: float
    copy_instructions: float
    copied_bytes: float


@dataclass(frozen=True)
class ResultTraffic:
    """Wavefronts of a warp at the end of a block: sums that are staged, and read back."""

    store_wavefronts: int
    load_wavefronts: int


@dataclass(frozen=True, kw_only=True)
class KernelTraffic:
    """Counts of a product kernel.

    ``stage`` and ``result`` are those of a block in each of ``steps`` stages and at its end; bytes
    are those of global memory inside the operands.
    """

    blocks: int
    warps: int
    steps: int
    stage: StageTraffic
    result: ResultTraffic
    stored_bytes: int

    @property
    def products(self) -> int:
        return self.blocks * self.warps * self.steps * self.stage.products

    @property
    def shared_load_wavefronts(self) -> int:
        fragments = self.steps * self.stage.fragment_wavefronts
        return self.blocks * self.warps * (fragments + self.result.load_wavefronts)

    @property
    def shared_store_wavefronts(self) -> int:
        copies = self.steps * self.stage.copy_wavefronts
        return self.blocks * (copies + self.warps * self.result.store_wavefronts)


def traffic(plan: Plan) -> KernelTraffic:
    """Return the counts of the kernel that computes the product, or the parts of its sums."""
    rows, columns, batch, splits = plan.blocks
    product = plan.product
    result_bytes = size_bytes(product.output_dtype)
    if splits > 1:
        result_bytes = splits * size_bytes(product.sums)
    return KernelTraffic(
        blocks=rows * columns * batch * splits,
        warps=plan.schedule.threads // LANES,
        steps=plan.steps,
        stage=_stage_traffic(plan),
        result=_result_traffic(plan),
        stored_bytes=product.output.layout.elements * result_bytes,
    )


def _stage_traffic(plan: Plan) -> StageTraffic:
    schedule, tiles = plan.schedule, plan.shared_tiles
    reads = [mean_reads(plan.product, n, schedule.layouts[n], tiles[n]) for n in range(2)]
    return StageTraffic(
        products=schedule.tile[0] * schedule.tile[1] * schedule.depth,
        fragment_wavefronts=_fragment_wavefronts(plan),
        copy_wavefronts=sum(vector_wavefronts(tile, tile.copies) for tile in tiles),
        copy_cycles=sum(map(_copy_cycles, tiles, reads)),
        copy_instructions=_copy_instructions(plan),
        copied_bytes=sum(r.bytes(tile.width) for r, tile in zip(reads, tiles, strict=True)),
    )


def _copy_cycles(tile: SharedTile, reads: CopyReads) -> float:
    """Return the cycles that the copies of a tile keep L1 and shared memory busy.

    A line of an access takes a cycle, as a wavefront does; an asynchronous copy has both together.
    """
    stores = vector_wavefronts(tile, tile.copies)
    return max(stores, reads.lines) if tile.width >= BANK_BYTES else stores + reads.lines


def _copy_instructions(plan: Plan) -> float:
    """Return the integer instructions of a block's warps for the copies of a stage."""
    warps, total = plan.schedule.threads // LANES, 0.0
    of_step = 0.0
    for number in range(2):
        accesses = plan.shared_tiles[number].copies / LANES
        separation = plan.separation(number)
        if separation is None:
            total += accesses * COPY_INSTRUCTIONS
            continue
        step, copy = WINDOW_INSTRUCTIONS if separation.windows else LINEAR_INSTRUCTIONS
        total += accesses * copy
        # Both factors walk along the depth together.
        of_step = max(of_step, step)
    return total + warps * of_step


@lru_cache(maxsize=4096)
def vector_wavefronts(tile: SharedTile, vectors: int) -> int:
    """Count the wavefronts of a tile's first vectors, in the order in which threads copy them."""
    served = min(LANES, WAVEFRONT_BYTES // tile.width)
    # Idle lanes add nothing to what the last one writes.
    slots = np.minimum(np.arange(-(-vectors // served) * served), vectors - 1)
    row, byte = slots // tile.row_vectors, slots % tile.row_vectors * tile.width
    return wavefronts(_address(tile, row, byte // CHUNK) + byte % CHUNK, tile.width)


def _address(tile: SharedTile, row: Addresses, chunk: Addresses) -> Addresses:
    """Return the byte of :meth:`SharedTile.place`."""
    if tile.swizzled and tile.chunks > 1:
        turn = row if tile.chunks >= 8 else row // (8 // tile.chunks)
        chunk = chunk ^ (turn % min(tile.chunks, 8))
    return row * tile.pitch + chunk * CHUNK


def _fragment_wavefronts(plan: Plan) -> int:
    """Count the wavefronts of a warp that loads the fragments of a stage."""
    schedule, instruction = plan.schedule, plan.product.instruction
    rows, columns = schedule.tile
    if instruction.kind == "mma":
        # ldmatrix on swizzled tiles has no bank conflicts; rows of WMMA's matrices may have.
        return schedule.depth * (4 * rows + 2 * columns)
    total = 0
    for number, count, extent in ((0, rows, instruction.m), (1, columns, instruction.n)):
        size = size_bytes(plan.operand(number).layout.dtype)
        pitch = plan.shared_tiles[number].pitch
        total += count * _matrix_wavefronts(extent, instruction.k * size, pitch, size)
    return schedule.depth * total


@lru_cache(maxsize=256)
def _matrix_wavefronts(lines: int, line_bytes: int, pitch: int, element_bytes: int) -> int:
    """Count the wavefronts of a WMMA load or store of ``lines``, ``pitch`` bytes apart.

    The ISA does not specify its accesses; they are assumed to be 8 pieces of 16 bytes at a time, as
    those of ``ldmatrix``, or 4 pieces of 32 bytes if elements are words.
    """
    step, piece = (4, 32) if element_bytes == BANK_BYTES else (8, CHUNK)
    total = 0
    for first in range(0, lines, step):
        for offset in range(0, line_bytes, piece):
            line = np.arange(first, first + step)[:, None]
            addresses = line * pitch + offset + np.arange(0, piece, BANK_BYTES)
            total += _max_bank_words(np.unique(addresses // BANK_BYTES))
    return total


def _result_traffic(plan: Plan) -> ResultTraffic:
    product, (rows, columns) = plan.product, plan.schedule.tile
    along_columns = product.output.along == product.axes[1]
    loads = read_back_wavefronts(plan.staging, product.output.length, along_columns)
    stores = staged_wavefronts(product.instruction, plan.staging, columns)
    return ResultTraffic(rows * stores, rows * loads)


@lru_cache(maxsize=1024)
def staged_wavefronts(instruction: TensorCoreInstruction, staging: Staging, columns: int) -> int:
    """Count the wavefronts of a warp that stores a row of instruction tiles.

    Parameters
    ----------
    instruction : TensorCoreInstruction
    staging : Staging
        The warp's part of shared memory.
    columns : int
        Number of tiles of a row.
    """
    size = size_bytes(staging.dtype)
    if instruction.kind == "wmma":
        pitch = staging.pitch * size
        return columns * _matrix_wavefronts(instruction.m, instruction.n * size, pitch, size)
    lane, total = np.arange(LANES), 0
    for number in range(columns):
        for half in range(instruction.m * instruction.n // instruction.threads // 2):
            row, column = lane // 4 + 8 * half, lane % 4 * 2
            addresses = (row * staging.pitch + number * instruction.n + column) * size
            total += wavefronts(addresses, 2 * size)
    return total


@lru_cache(maxsize=1024)
def read_back_wavefronts(staging: Staging, length: int, along_columns: bool) -> int:
    """Count the wavefronts of a warp that reads staged sums back.

    Parameters
    ----------
    staging : Staging
        The warp's part of shared memory.
    length : int
        Number of sums of a vector.
    along_columns : bool
        True if the sums of a vector are neighbours in a row.
    """
    size, rows = size_bytes(staging.dtype), staging.rows
    vectors = (staging.columns if along_columns else rows) // length
    slots = staging.columns * rows // length
    slot = np.arange(-(-slots // LANES) * LANES)
    across, along = slot // vectors, slot % vectors * length
    row, column = (across, along) if along_columns else (along, across)
    start = (row % rows * staging.pitch + column % staging.columns) * size
    if along_columns:
        width = min(CHUNK, length * size)
        steps = range(0, length * size, width)
    else:
        width = size
        steps = range(0, length * staging.pitch * size, staging.pitch * size)
    return sum(wavefronts(start + step, width) for step in steps)


# Counted in the loops over stages that nvcc 13 generates for sm_80: 12 to 16 for matrix products,
# 23 for convolutions with padding. They compute two addresses, and whether the vector is inside.
COPY_INSTRUCTIONS = 18
"""Number of instructions for a vector that is copied from an address that is computed for it."""

# Counted likewise in kernels that locate rows before the loop (benchmarks/gpu/main_loop.md).
LINEAR_INSTRUCTIONS = (8.0, 1.5)
"""Number of instructions of a warp for a stage, and for each vector, of rows that are located."""
WINDOW_INSTRUCTIONS = (12.0, 3.0)
"""The same with windows, of which a mask tells whether a vector is inside."""

RESULT_INSTRUCTIONS = 20
"""Number of instructions for a vector of results, counted likewise."""

_ELEMENT_REGISTERS = 24
"""Number of registers of a thread that only moves an element."""


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
        auxiliary=auxiliary_work(plan, plan.schedule.splits, gpu),
    )


def _fetch(counts: KernelTraffic, gpu: Gpu) -> Phase:
    """Return the copies of a stage."""
    # A warp issues its copies one after the other, and all are in flight at a time.
    instructions = counts.stage.copy_instructions
    issue = instructions / gpu.unit.schedulers
    issue_of_warp = instructions / counts.warps * gpu.unit.integer_cycles
    moved = counts.stage.copied_bytes
    cycles = gpu.l2_cycles + issue_of_warp + moved / gpu.l2_bytes_each
    return Phase(cycles, 0.0, counts.stage.copy_cycles, issue, bytes=moved)


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


def operand_bytes(operand: GlobalOperand) -> int:
    """Return the bytes of a factor as the workload has it."""
    return math.prod(operand.layout.original_shape) * size_bytes(operand.layout.dtype)


def _bytes_from_dram(plan: Plan, counts: KernelTraffic, gpu: Gpu) -> float:
    """Return the bytes of factors that are read from main memory.

    Each factor is read once if both fit L2. Otherwise each wave of resident blocks reads its rows
    and columns again; the blocks of a group of rows share columns.
    """
    first, second = operand_bytes(plan.first), operand_bytes(plan.second)
    once = first + second
    if once <= gpu.l2_capacity:
        return once
    rows, columns, _, _ = plan.blocks
    resident = max(1, gpu.resident(counts.warps, plan.shared_bytes, plan.registers))
    blocks = min(counts.blocks, resident * gpu.multiprocessors)
    group = plan.group
    # The blocks that run together are whole groups of rows, or a part of one group's columns.
    wave_rows = min(rows, group * max(1, blocks // (group * columns)))
    wave_columns = min(columns, -(-blocks // group))
    copied = counts.blocks * counts.steps * counts.stage.copied_bytes
    wave = wave_rows * first / rows + wave_columns * second / columns
    return min(max(once, counts.blocks / blocks * wave), copied)


def auxiliary_work(plan: ProductPlan, splits: int, gpu: Gpu) -> tuple[KernelWork, ...]:
    """Return the work of packing operands other than weights, and of adding parts.

    Parameters
    ----------
    plan : ProductPlan
    splits : int
        Number of parts of the reduction.
    gpu : Gpu
    """
    product, kernels = plan.product, list[KernelWork]()
    for number in range(2):
        operand = plan.operand(number)
        if plan.packs(number) and operand.layout.name != product.packed_ahead:
            kernels.append(packing_work(operand, gpu))
    if splits > 1:
        kernels.append(reduction_work(product, splits, gpu))
    return tuple(kernels)


def packing_work(operand: GlobalOperand, gpu: Gpu) -> KernelWork:
    """Return the work of a kernel that packs an operand."""
    elements = operand.layout.elements
    transferred = operand_bytes(operand) + elements * size_bytes(operand.layout.dtype)
    return element_work("packing", elements, transferred, gpu)


def reduction_work(
    product: TiledProduct, splits: int, gpu: Gpu, instructions: float = COPY_INSTRUCTIONS
) -> KernelWork:
    """Return the work of a kernel that adds parts of a result.

    Parameters
    ----------
    product : TiledProduct
    splits : int
        Number of parts.
    gpu : Gpu
    instructions : float
        Number of instructions of a thread.
    """
    elements = product.output.layout.elements
    transferred = elements * splits * size_bytes(product.sums)
    transferred += elements * size_bytes(product.output_dtype)
    return element_work("reduction", elements, transferred, gpu, instructions)


def element_work(
    name: str,
    elements: int,
    transferred: int,
    gpu: Gpu,
    instructions: float = COPY_INSTRUCTIONS,
) -> KernelWork:
    """Return the work of a kernel with a thread for each element.

    Parameters
    ----------
    name : str
        Name of the kernel.
    elements : int
        Number of elements.
    transferred : int
        Bytes that all threads together read and write.
    gpu : Gpu
    instructions : float
        Number of instructions of a thread.
    """
    warps, blocks = ELEMENT_THREADS // LANES, element_blocks(elements)
    issue = warps * instructions / gpu.unit.schedulers
    cycles = gpu.l2_cycles + instructions * gpu.unit.integer_cycles
    phase = Phase(cycles, 0.0, 2 * warps, issue, bytes=transferred / blocks)
    return KernelWork(
        name, blocks, warps, 0, registers=_ELEMENT_REGISTERS, compute=phase, dram_bytes=transferred
    )
