"""Schedules of a Tensor Core kernel: tiles of blocks and warps, stages, splits, order of blocks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from cpembed.errors import LoweringError
from cpembed.ir.dtypes import size_bytes
from cpembed.targets.cuda.instructions import LANES
from cpembed.targets.cuda.lower import GlobalOperand, TiledProduct
from cpembed.targets.cuda.multistage.offsets import check_offsets
from cpembed.targets.cuda.multistage.registers import (
    MAX_REGISTERS,
    may_spill,
    registers,
)
from cpembed.targets.cuda.multistage.separation import Separation, separation_of

WAVEFRONT_BYTES = 128
"""Number of bytes of one word from each of the 32 banks of shared memory."""

CHUNK = 16
"""Number of bytes of a matrix row that ``ldmatrix`` loads, and of the widest access."""

MAX_UNROLLED_COPIES = 16
"""Maximum number of copies of a thread that are unrolled."""

UNROLLED_PRODUCTS, UNROLLED_COPIES = 16, 8
"""Maximum number of products of a warp in a stage, and of copies of a thread, for which each stage
has its own statements."""

MAX_THREADS = 1024
MAX_BATCH = 65535


@dataclass(frozen=True)
class KernelSchedule:
    """Choices of a product kernel."""

    warps: tuple[int, int]
    """Number of warps of a block along rows and columns."""
    tile: tuple[int, int]
    """Number of instruction tiles of a warp along rows and columns."""
    depth: int = 2
    """Number of instruction tiles along the reduction in a stage of shared memory."""
    stages: int = 3
    """Number of stages of shared memory."""
    group: int = 1
    """Number of adjacent blocks of rows that share columns of the second factor in L2."""
    splits: int = 1
    """Number of blocks that share the reduction of a result."""
    layouts: tuple[int, int] = (0, 0)
    """Numbers of the factors' layouts in :class:`~cpembed.targets.cuda.lower.TiledProduct`."""

    @property
    def block(self) -> tuple[int, int]:
        """Number of instruction tiles of a block along rows and columns."""
        return self.warps[0] * self.tile[0], self.warps[1] * self.tile[1]

    @property
    def threads(self) -> int:
        return LANES * self.warps[0] * self.warps[1]

    def __str__(self) -> str:
        rows, columns = self.block
        words = [
            f"blocks of {rows} x {columns} tiles on {self.warps[0]} x {self.warps[1]} warps",
            f"{self.depth} deep in {self.stages} stages",
        ]
        words += [f"{self.group} blocks of rows in a group"] * (self.group > 1)
        words += [f"sums split {self.splits} ways"] * (self.splits > 1)
        words += ["factors in layouts {} and {}".format(*self.layouts)] * any(self.layouts)
        return ", ".join(words)


@dataclass(frozen=True)
class SharedTile:
    """Tile of a factor in one stage of shared memory."""

    rows: int
    row_bytes: int
    pitch: int
    """Bytes between the beginnings of rows."""
    width: int
    """Bytes of a vector that is copied."""
    swizzled: bool
    """True if chunks are permuted so that those of eight rows are in different banks."""
    transposed: bool = False
    """True if a row is a step of the depth, and vectors run along the rows of the factor."""

    @property
    def row_vectors(self) -> int:
        return self.row_bytes // self.width

    @property
    def copies(self) -> int:
        """Number of vectors that are copied: whole warps copy, and zeros beyond the rows."""
        return -(-self.rows * self.row_vectors // LANES) * LANES

    @property
    def bytes(self) -> int:
        return -(-self.copies // self.row_vectors) * self.pitch

    @property
    def chunks(self) -> int:
        """Number of chunks among which those of a row are permuted."""
        return self.pitch // CHUNK

    def unrolled_copies(self, turns: int) -> int:
        """Return how many of a thread's copies that compute their addresses are unrolled."""
        # Many short accesses in parallel would need more registers than there are.
        most = MAX_UNROLLED_COPIES // 2
        return math.gcd(turns, most) if self.width < 4 or turns > most else turns

    def place(self, row: str, chunk: str) -> str:
        """Return TVMScript of the byte at which a chunk of a row begins.

        Eight consecutive rows have eight chunks of 16 bytes in the 128 bytes of different banks:
        rows of 128 bytes take all places of a chunk in turn, two rows of 64 bytes share each, and
        four rows of 32 bytes.
        """
        if self.swizzled and self.chunks > 1:
            turn = row if self.chunks >= 8 else f"({row}) // {8 // self.chunks}"
            chunk = f"T.bitwise_xor({chunk}, ({turn}) % {min(self.chunks, 8)})"
        return f"({row}) * {self.pitch} + ({chunk}) * {CHUNK}"

    def matrix_moves(self, row: int, depth_byte: int) -> tuple[int, int]:
        """Return what the place of a matrix is changed by: an exclusive or, and a sum.

        The matrix begins so many rows of the factor, and bytes along its depth, behind the place.
        """
        # Chunks are permuted by exclusive or, and those of one depth, or of one tile, are
        # neighbours.
        if self.transposed:
            return row // 8 * CHUNK, depth_byte // 2 * self.pitch
        return depth_byte, row * self.pitch


@dataclass(frozen=True)
class Staging:
    """A warp's part of shared memory for the results of a row of instruction tiles.

    ``pitch`` is the number of elements from row to row.
    """

    rows: int
    columns: int
    pitch: int
    dtype: str

    @staticmethod
    def of_sums(rows: int, columns: int, dtype: str) -> Staging:
        """Return a part for so many rows and columns of sums."""
        size = size_bytes(dtype)
        pitch = columns * size
        # Rows begin in different banks: eight words apart, or four if elements are halves.
        pitch += (8 * size - pitch) % WAVEFRONT_BYTES
        return Staging(rows, columns, pitch // size, dtype)

    @property
    def bytes(self) -> int:
        return self.rows * self.pitch * size_bytes(self.dtype)


class ProductPlan(Protocol):
    """Plan that kernels of a product were generated from, as running them needs it."""

    @property
    def product(self) -> TiledProduct: ...

    @property
    def schedule(self) -> object: ...

    def operand(self, number: int) -> GlobalOperand:
        """Return the layout of a factor in global memory."""
        ...

    def packs(self, number: int) -> bool:
        """True if a kernel of its own packs a factor."""
        ...


@dataclass(frozen=True)
class Plan:
    """A product with a schedule, from which kernels are generated."""

    product: TiledProduct
    schedule: KernelSchedule

    @property
    def first(self) -> GlobalOperand:
        return self.product.first[self.schedule.layouts[0]]

    @property
    def second(self) -> GlobalOperand:
        return self.product.second[self.schedule.layouts[1]]

    def operand(self, number: int) -> GlobalOperand:
        """Return the layout of a factor in global memory."""
        return (self.first, self.second)[number]

    def packs(self, number: int) -> bool:
        """True if a kernel of its own packs a factor."""
        return self.operand(number).needs_packing

    @cached_property
    def shared_tiles(self) -> tuple[SharedTile, SharedTile]:
        """Tiles of both factors in one stage."""
        return self._shared_tile(0), self._shared_tile(1)

    def _shared_tile(self, number: int) -> SharedTile:
        instruction, schedule, operand = (
            self.product.instruction,
            self.schedule,
            self.operand(number),
        )
        size, swizzled = size_bytes(operand.layout.dtype), instruction.kind == "mma"
        rows = schedule.block[number] * (instruction.m, instruction.n)[number]
        deep, width = schedule.depth * instruction.k, operand.length * size
        if operand.along != self.product.axes[2]:
            row_bytes = rows * size
            return SharedTile(deep, row_bytes, row_bytes, width, swizzled, transposed=True)
        # WMMA's rows begin at multiples of a fragment's bytes: 32 of float16, at most 16 of bytes
        # (PTX ISA, Matrix Storage for WMMA, Address Alignment).
        pitch = deep * size if swizzled else deep * size + 2 * CHUNK
        return SharedTile(rows, deep * size, pitch, width, swizzled)

    def separation(self, number: int) -> Separation | None:
        """Return a factor's parts by rows and depth; None if each copy computes its address.

        Parameters
        ----------
        number
            0 for the first factor, 1 for the second.
        """
        tile, threads = self.shared_tiles[number], self.schedule.threads
        # A thread's vectors have one place along the depth if a turn copies whole rows.
        located = not tile.transposed and threads % tile.row_vectors == 0
        if not located or self.copy_turns(number) > MAX_UNROLLED_COPIES:
            return None
        return separation_of(self.product, number, self.schedule.layouts[number])

    def row_distance(self, number: int) -> int | None:
        """Return the elements between a thread's rows of a factor; None if they vary."""
        separation = self.separation(number)
        assert separation is not None
        turn_rows = self.schedule.threads // self.shared_tiles[number].row_vectors
        return separation.row_distance(self.product, number, turn_rows)

    def unrolled_copies(self, number: int) -> int:
        """Return how many copies that compute their addresses are unrolled, a divisor of all."""
        return self.shared_tiles[number].unrolled_copies(self.copy_turns(number))

    def copy_turns(self, number: int) -> int:
        """Return the number of vectors of a factor that a thread copies in a step."""
        return -(-self.shared_tiles[number].copies // self.schedule.threads)

    @cached_property
    def staging(self) -> Staging:
        instruction = self.product.instruction
        columns = self.schedule.tile[1] * instruction.n
        return Staging.of_sums(instruction.m, columns, self.product.sums)

    @property
    def stage_bytes(self) -> int:
        return sum(tile.bytes for tile in self.shared_tiles)

    @cached_property
    def shared_bytes(self) -> int:
        """Bytes of shared memory of a block: the stages, or after them the results of its warps."""
        warps = self.schedule.threads // LANES
        return max(self.schedule.stages * self.stage_bytes, warps * self.staging.bytes)

    @property
    def blocks(self) -> tuple[int, int, int, int]:
        """Number of blocks along rows, columns and batch, and number of splits."""
        batch, rows, columns, _ = self.product.tiles
        block = self.schedule.block
        return -(-rows // block[0]), -(-columns // block[1]), batch, self.schedule.splits

    @property
    def group(self) -> int:
        """Number of blocks of rows in a group; 1 unless all groups have the same size."""
        # A last, smaller group would need a numbering of its own.
        return self.schedule.group if self.blocks[0] % self.schedule.group == 0 else 1

    @property
    def steps(self) -> int:
        """Number of stages that a block computes."""
        stages = -(-self.product.tiles[3] // self.schedule.depth)
        return -(-stages // self.schedule.splits)

    @cached_property
    def copying(self) -> int:
        """Number of steps that copy a later stage."""
        return max(0, self.steps - self.schedule.stages + 1)

    @property
    def ring_turns(self) -> int:
        """Number of turns of the ring of stages in which each stage has statements of its own.

        Where a stage has few products, computing where it is takes much of its time.
        """
        (rows, columns), depth = self.schedule.tile, self.schedule.depth
        turns = self.copying // self.schedule.stages
        is_small = depth % 2 == 0 and rows * columns * depth <= UNROLLED_PRODUCTS
        # Each row of each stage would have an address of its own.
        is_small = is_small and self.copy_turns(0) + self.copy_turns(1) <= UNROLLED_COPIES
        return turns if is_small and turns > 1 else 0

    @cached_property
    def registers(self) -> int:
        """Estimated registers of a thread."""
        return registers(self)


def check(plan: Plan, shared_bytes: int) -> None:
    """Raise :class:`LoweringError` if a plan cannot be executed.

    That is, if the program does not have the schedule, or a multiprocessor with ``shared_bytes`` of
    shared memory for a block cannot execute it.
    """
    schedule, product = plan.schedule, plan.product
    numbers = (*schedule.warps, *schedule.tile, schedule.depth, schedule.group, schedule.splits)
    if min(numbers) < 1 or schedule.stages < 2 or schedule.depth not in (1, 2, 4):
        raise LoweringError(
            f"{schedule}: tiles count from 1, stages from 2, the depth is 1, 2 or 4"
        )
    if schedule.splits > 1 and product.output.placement is not None:
        raise LoweringError(f"{schedule}: the kernel that adds parts writes an entire buffer")
    counts = (len(product.first), len(product.second))
    if any(not 0 <= n < count for n, count in zip(schedule.layouts, counts, strict=True)):
        raise LoweringError(f"{schedule}: there are {counts} layouts of the factors")
    for tile in plan.shared_tiles:
        # Chunks are permuted by exclusive or.
        if tile.transposed and tile.chunks & (tile.chunks - 1):
            raise LoweringError(
                f"{schedule}: rows of {tile.chunks} chunks; those of a factor that is transposed "
                "when it is loaded are a power of two"
            )
    if schedule.threads > MAX_THREADS:
        raise LoweringError(f"{schedule}: a block has at most {MAX_THREADS} threads")
    if plan.shared_bytes > shared_bytes:
        raise LoweringError(
            f"{schedule}: {plan.shared_bytes:,} bytes of shared memory of {shared_bytes:,}"
        )
    if may_spill(plan):
        raise LoweringError(
            f"{schedule}: about {plan.registers} registers of {MAX_REGISTERS}: take smaller tiles "
            "of a warp or an even depth"
        )
    if product.tiles[0] > MAX_BATCH:
        raise LoweringError(f"a batch of {product.tiles[0]:,}: a grid has {MAX_BATCH:,} in a row")
    check_offsets(plan)
