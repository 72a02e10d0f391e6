"""What a product's kernel moves and executes, counted from its schedule: what the executor counts.

Sizes of accesses and their places follow from the same formulas as the generated code
(:mod:`cpembed.targets.cuda.emit`, :mod:`cpembed.targets.cuda.results`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from cpembed.ir.dtypes import size_bytes
from cpembed.targets.cuda.instructions import LANES, TensorCoreInstruction
from cpembed.targets.cuda.lower import Stored
from cpembed.targets.cuda.schedule import CHUNK, WAVEFRONT_BYTES, Plan, SharedTile, Staging

BANK_BYTES = 4
Places = NDArray[np.int64]


def wavefronts(places: Places, width: int) -> int:
    """Of accesses of ``width`` bytes at byte addresses, one row for each access of a warp.

    Accesses of 16 bytes are served in quarters of a warp, of 8 in halves; words that lanes have in
    common are read once. (CUDA C++ Best Practices Guide, shared memory and memory banks.)
    """
    lanes = min(LANES, WAVEFRONT_BYTES // width)
    total = 0
    for group in places.reshape(-1, lanes):
        words = np.unique(group[:, None] // BANK_BYTES + np.arange(max(1, width // BANK_BYTES)))
        banks = np.bincount(words % (WAVEFRONT_BYTES // BANK_BYTES))
        total += int(banks.max())
    return total


@dataclass(frozen=True)
class StageTraffic:
    """Of a block, in a stage: ``products`` and ``fragment_wavefronts`` of each warp, and
    ``copy_wavefronts`` of all warps together; ``copies``: how many vectors are copied."""

    products: int
    fragment_wavefronts: int
    copy_wavefronts: int
    copies: int


@dataclass(frozen=True)
class ResultTraffic:
    """Of a warp, at the end of a block: shared memory's wavefronts of sums that are stored and
    read back."""

    store_wavefronts: int
    load_wavefronts: int


@dataclass(frozen=True)
class KernelTraffic:
    """Of the whole product kernel: what a block does in each of ``steps`` stages and at its end,
    and bytes of global memory, those that lie outside an operand not counted."""

    blocks: int
    warps: int
    steps: int
    stage: StageTraffic
    result: ResultTraffic
    loaded_bytes: int
    stored_bytes: int

    @property
    def products(self) -> int:
        return self.blocks * self.warps * self.steps * self.stage.products

    @property
    def shared_load_wavefronts(self) -> int:
        inside = self.steps * self.stage.fragment_wavefronts
        return self.blocks * self.warps * (inside + self.result.load_wavefronts)

    @property
    def shared_store_wavefronts(self) -> int:
        each = self.steps * self.stage.copy_wavefronts + self.warps * self.result.store_wavefronts
        return self.blocks * each


def traffic(plan: Plan) -> KernelTraffic:
    """Of the kernel that computes the product, or the parts of its sums."""
    rows, columns, batch, splits = plan.blocks
    loaded = valid_elements(plan, plan.first) * size_bytes(plan.first.layout.dtype) * columns
    loaded += valid_elements(plan, plan.second) * size_bytes(plan.second.layout.dtype) * rows
    product = plan.product
    elements = product.output.layout.elements
    parts = splits * size_bytes(product.sums) if splits > 1 else size_bytes(product.stored_dtype)
    return KernelTraffic(
        rows * columns * batch * splits,
        plan.schedule.threads // LANES,
        plan.steps,
        stage_traffic(plan),
        result_traffic(plan),
        loaded,
        elements * parts,
    )


def stage_traffic(plan: Plan) -> StageTraffic:
    schedule = plan.schedule
    copies, stored = 0, 0
    for operand in (plan.first, plan.second):
        tile = plan.shared(operand)
        copies += tile.copies
        stored += _copy_wavefronts(tile)
    products = schedule.tile[0] * schedule.tile[1] * schedule.depth
    return StageTraffic(products, _fragment_wavefronts(plan), stored, copies)


@lru_cache(maxsize=4096)
def _copy_wavefronts(tile: SharedTile) -> int:
    """Of all vectors of a tile, in the order in which a block's threads copy them."""
    slots = np.arange(tile.copies)
    row, byte = slots // tile.across, slots % tile.across * tile.width
    return wavefronts(_place(tile, row, byte // CHUNK) + byte % CHUNK, tile.width)


def _place(tile: SharedTile, row: Places, chunk: Places) -> Places:
    """The byte of :meth:`SharedTile.place`."""
    if tile.swizzled and tile.chunks > 1:
        turn = row if tile.chunks >= 8 else row // (8 // tile.chunks)
        chunk = chunk ^ (turn % min(tile.chunks, 8))
    return row * tile.pitch + chunk * CHUNK


def _fragment_wavefronts(plan: Plan) -> int:
    """Of a warp, loading the fragments of a stage: ``ldmatrix`` has no conflicts, rows of WMMA's
    matrices may."""
    schedule, instruction = plan.schedule, plan.product.instruction
    rows, columns = schedule.tile
    if instruction.kind == "mma":
        return schedule.depth * (4 * rows + 2 * columns)
    return schedule.depth * sum(
        count
        * _matrix_wavefronts(
            extent,
            instruction.k * size_bytes(operand.layout.dtype),
            plan.shared(operand).pitch,
            size_bytes(operand.layout.dtype),
        )
        for operand, count, extent in (
            (plan.first, rows, instruction.m),
            (plan.second, columns, instruction.n),
        )
    )


@lru_cache(maxsize=256)
def _matrix_wavefronts(lines: int, line_bytes: int, pitch: int, element: int) -> int:
    """Of a WMMA load or store: by 8 pieces of 16 bytes at a time as ``ldmatrix``, or, of words, by
    4 pieces of 32 bytes; how a GPU does it is not specified."""
    together, piece = (4, 32) if element == BANK_BYTES else (8, CHUNK)
    total = 0
    for first in range(0, lines, together):
        for offset in range(0, line_bytes, piece):
            line = np.arange(first, first + together)[:, None]
            words = line * pitch + offset + np.arange(0, piece, BANK_BYTES)
            banks = np.unique(words // BANK_BYTES) % (WAVEFRONT_BYTES // BANK_BYTES)
            total += int(np.bincount(banks).max())
    return total


def result_traffic(plan: Plan) -> ResultTraffic:
    product, (rows, columns) = plan.product, plan.schedule.tile
    stored = product.output
    along_columns = stored.along == product.axes[1]
    back = _read_back(plan.staging, stored.length, along_columns)
    return ResultTraffic(rows * _staged(product.instruction, plan.staging, columns), rows * back)


@lru_cache(maxsize=1024)
def _staged(instruction: TensorCoreInstruction, staging: Staging, columns: int) -> int:
    """A row of instruction tiles, stored by a warp."""
    size = size_bytes(staging.dtype)
    if instruction.kind == "wmma":
        pitch = staging.pitch * size
        return columns * _matrix_wavefronts(instruction.m, instruction.n * size, pitch, size)
    lane, total = np.arange(LANES), 0
    for number in range(columns):
        for half in range(instruction.m * instruction.n // LANES // 2):
            row, column = lane // 4 + 8 * half, lane % 4 * 2
            places = (row * staging.pitch + number * instruction.n + column) * size
            total += wavefronts(places, 2 * size)
    return total


@lru_cache(maxsize=1024)
def _read_back(staging: Staging, length: int, along_columns: bool) -> int:
    size, rows = size_bytes(staging.dtype), staging.rows
    across = (staging.columns if along_columns else rows) // length
    slots = staging.columns * rows // length
    slot = np.arange(-(-slots // LANES) * LANES)
    place, other = slot // across, slot % across * length
    row, column = (place, other) if along_columns else (other, place)
    start = (row % rows * staging.pitch + column % staging.columns) * size
    if along_columns:
        width = min(CHUNK, length * size)
        steps = range(0, length * size, width)
    else:
        width = size
        steps = range(0, length * staging.pitch * size, staging.pitch * size)
    return sum(wavefronts(start + step, width) for step in steps)


@lru_cache(maxsize=256)
def _inside(stored: Stored, extents: tuple[tuple[str, int], ...]) -> int:
    """How many points of the iterators that an operand's place depends on are inside it."""
    known = dict(extents)
    checked = [stored.layout.access[place] for place in stored.checked]
    names = {name for index in checked for name in index.iterators}
    others = {name for index in stored.layout.access for name in index.iterators} - names
    total = math.prod(known[name] for name in others)
    if not names:
        return total
    ordered = sorted(names)
    grids = np.indices([known[name] for name in ordered], np.int32, sparse=True)
    values = dict(zip(ordered, grids, strict=True))
    inside: NDArray[np.bool_] = np.ones((1,) * len(ordered), np.bool_)
    for place, index in zip(stored.checked, checked, strict=True):
        at = index.evaluate(values)
        inside = inside & (at >= 0) & (at < stored.layout.shape[place])
    shape = [known[name] for name in ordered]
    return total * int(np.count_nonzero(np.broadcast_to(inside, shape)))


def valid_elements(plan: Plan, stored: Stored) -> int:
    """Elements of a factor that one pass over all of its tiles reads, those outside left out."""
    product = plan.product
    program = product.program
    is_first = stored is plan.first
    loops = (*product.batch, *(product.rows if is_first else product.columns), *product.depth)
    axes = (product.axes[0 if is_first else 1], product.axes[2])
    extents = {loop.name: loop.extent for loop in loops}
    extents |= {lane.name: lane.extent for lane in program.instruction_axes if lane.name in axes}
    used = {name for index in stored.layout.access for name in index.iterators}
    # Iterators that do not move the operand read it again.
    again = math.prod(extent for name, extent in extents.items() if name not in used)
    known = {loop.name: 1 for loop in program.loops} | extents
    return again * _inside(stored, tuple(sorted(known.items())))
