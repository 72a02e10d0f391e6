"""What can be chosen of a Tensor Core kernel: tiles of blocks and warps, stages, splits, order."""

from __future__ import annotations

from dataclasses import dataclass

from cpembed.errors import LoweringError
from cpembed.ir.dtypes import size_bytes
from cpembed.targets.cuda.instructions import LANES
from cpembed.targets.cuda.lower import Stored, TiledProduct

WAVEFRONT_BYTES = 128
"""One word of each of the 32 banks of shared memory."""

CHUNK = 16
"""Bytes of a row of a matrix that ``ldmatrix`` loads, and of the widest access."""


@dataclass(frozen=True)
class KernelSchedule:
    """A block computes ``warps[0] * tile[0]`` times ``warps[1] * tile[1]`` instruction tiles, each
    warp ``tile`` of them.

    ``depth``: instruction tiles along the reduction in a stage of shared memory; ``stages``: how
    many there are; ``group``: blocks of rows that are next to each other in the order of blocks, so
    that they find the second factor in L2; ``splits``: blocks that share a result's reduction;
    ``ways``: which layout of each factor.
    """

    warps: tuple[int, int]
    tile: tuple[int, int]
    depth: int = 2
    stages: int = 3
    group: int = 1
    splits: int = 1
    ways: tuple[int, int] = (0, 0)

    @property
    def block(self) -> tuple[int, int]:
        """Instruction tiles of a block: rows and columns."""
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
        words += ["factors packed in tiles"] * any(self.ways)
        return ", ".join(words)


@dataclass(frozen=True)
class SharedTile:
    """A factor's part of a stage: ``rows`` of ``row_bytes``, ``pitch`` bytes apart, copied in
    vectors of ``width`` bytes. With ``swizzled``, the chunks of a row are exchanged so that eight
    rows' chunks are in different banks."""

    rows: int
    row_bytes: int
    pitch: int
    width: int
    swizzled: bool

    @property
    def across(self) -> int:
        """Vectors of a row."""
        return self.row_bytes // self.width

    @property
    def copies(self) -> int:
        """Vectors that are copied, by whole warps: what is beyond the rows is zeros."""
        return -(-self.rows * self.across // LANES) * LANES

    @property
    def bytes(self) -> int:
        return -(-self.copies // self.across) * self.pitch

    @property
    def chunks(self) -> int:
        return self.row_bytes // CHUNK

    def place(self, row: str, chunk: str) -> str:
        """TVMScript of the byte at which a chunk of a row begins.

        Eight rows, one after the other, take eight chunks of 16 bytes that together are 128 bytes
        of different banks: rows of 128 bytes have all places of a chunk, of 64 bytes two rows share
        each, of 32 bytes four.
        """
        if self.swizzled and self.chunks > 1:
            turn = row if self.chunks >= 8 else f"({row}) // {8 // self.chunks}"
            chunk = f"T.bitwise_xor({chunk}, ({turn}) % {min(self.chunks, 8)})"
        return f"({row}) * {self.pitch} + ({chunk}) * {CHUNK}"


@dataclass(frozen=True)
class Staging:
    """Where a warp's results of a row of instruction tiles pass through shared memory: ``pitch``
    elements between rows."""

    rows: int
    columns: int
    pitch: int
    dtype: str

    @property
    def bytes(self) -> int:
        return self.rows * self.pitch * size_bytes(self.dtype)


@dataclass(frozen=True)
class Plan:
    """A product with a schedule: what kernels are generated from."""

    product: TiledProduct
    schedule: KernelSchedule

    @property
    def first(self) -> Stored:
        return self.product.first[self.schedule.ways[0]]

    @property
    def second(self) -> Stored:
        return self.product.second[self.schedule.ways[1]]

    def shared(self, operand: Stored) -> SharedTile:
        """Of one stage."""
        instruction, schedule = self.product.instruction, self.schedule
        is_first = operand is self.first
        extent = instruction.m if is_first else instruction.n
        rows = schedule.block[0 if is_first else 1] * extent
        row_bytes = schedule.depth * instruction.k * size_bytes(operand.layout.dtype)
        swizzled = instruction.kind == "mma"
        # WMMA's rows begin at multiples of a fragment's bytes: 32 of float16, at most 16 of bytes
        # (PTX ISA, Matrix Storage for WMMA, Address Alignment).
        pitch = row_bytes if swizzled else row_bytes + 2 * CHUNK
        width = operand.length * size_bytes(operand.layout.dtype)
        return SharedTile(rows, row_bytes, pitch, width, swizzled)

    @property
    def staging(self) -> Staging:
        """Rows begin in different banks: eight words apart, or four where elements are halves."""
        instruction, dtype = self.product.instruction, self.product.sums
        columns = self.schedule.tile[1] * instruction.n
        size = size_bytes(dtype)
        pitch = columns * size
        pitch += (8 * size - pitch) % WAVEFRONT_BYTES
        return Staging(instruction.m, columns, pitch // size, dtype)

    @property
    def stage_bytes(self) -> int:
        return self.shared(self.first).bytes + self.shared(self.second).bytes

    @property
    def shared_bytes(self) -> int:
        """Of a block: the stages, or after them the results of its warps."""
        warps = self.schedule.threads // LANES
        return max(self.schedule.stages * self.stage_bytes, warps * self.staging.bytes)

    @property
    def blocks(self) -> tuple[int, int, int, int]:
        """Of rows, of columns, of the batch, and splits."""
        batch, rows, columns, _ = self.product.tiles
        block = self.schedule.block
        return -(-rows // block[0]), -(-columns // block[1]), batch, self.schedule.splits

    @property
    def group(self) -> int:
        """Blocks of rows in a group: groups are of one size."""
        return self.schedule.group if self.blocks[0] % self.schedule.group == 0 else 1

    @property
    def steps(self) -> int:
        """Stages that a block goes through."""
        whole = -(-self.product.tiles[3] // self.schedule.depth)
        return -(-whole // self.schedule.splits)

    @property
    def registers(self) -> int:
        """Of a thread, about: its sums, the fragments of two inner steps, and what the places of
        its copies and other addresses take."""
        instruction, (rows, columns) = self.product.instruction, self.schedule.tile
        first, second, sums = instruction.registers
        fragments = min(2, self.schedule.depth) * (rows * first + columns * second)
        tiles = (self.shared(self.first), self.shared(self.second))
        copies = sum(-(-tile.copies // self.schedule.threads) for tile in tiles if tile.width >= 4)
        total = rows * columns * sums + fragments + COPY_REGISTERS * copies + ADDRESSES
        return -(-total // 8) * 8


COPY_REGISTERS, ADDRESSES = 2, 14
"""Registers of a thread for each of its copies, and beside all that: read off what ptxas 13 takes
for 54 kernels on sm_80, whose numbers the sum is within 0.85 to 1.5 of."""

MOST_REGISTERS = 255
MOST_THREADS = 1024
MOST_BATCH = 65535


def check(plan: Plan, shared_bytes: int) -> None:
    """Raises :class:`LoweringError` for a schedule that the program, or a multiprocessor with so
    much shared memory for a block, does not have."""
    schedule, product = plan.schedule, plan.product
    numbers = (*schedule.warps, *schedule.tile, schedule.depth, schedule.group, schedule.splits)
    if min(numbers) < 1 or schedule.stages < 2 or schedule.depth not in (1, 2, 4):
        raise LoweringError(
            f"{schedule}: tiles count from 1, stages from 2, the depth is 1, 2 or 4"
        )
    ways = (len(product.first), len(product.second))
    if any(not 0 <= way < count for way, count in zip(schedule.ways, ways, strict=True)):
        raise LoweringError(f"{schedule}: there are {ways} layouts of the factors")
    if schedule.threads > MOST_THREADS:
        raise LoweringError(f"{schedule}: a block has at most {MOST_THREADS} threads")
    if plan.shared_bytes > shared_bytes:
        raise LoweringError(
            f"{schedule}: {plan.shared_bytes:,} bytes of shared memory of {shared_bytes:,}"
        )
    if plan.registers > MOST_REGISTERS:
        raise LoweringError(f"{schedule}: {plan.registers} registers of {MOST_REGISTERS}")
    if product.tiles[0] > MOST_BATCH:
        raise LoweringError(f"a batch of {product.tiles[0]:,}: a grid has {MOST_BATCH:,} in a row")
