"""A pair of embeddings with a schedule: operands, tiles of shared memory, registers.

A block computes rows of tiles of the second product's result. The rows of the first product's first
factor stay in shared memory, or in registers, for the whole kernel; the other two factors arrive in
chunks: columns of the first product, which the second sums over. A chunk of both is a stage.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from cpembed.embedding.coupling import Coupling
from cpembed.errors import LoweringError
from cpembed.ir.dtypes import is_integer, size_bytes
from cpembed.ir.index import IndexExpr, IndexTerm
from cpembed.targets.cuda.chains.pairs import Pair, Via
from cpembed.targets.cuda.instructions import LANES
from cpembed.targets.cuda.lower import (
    ACCESS_BYTES,
    GlobalOperand,
    TiledProduct,
    global_operand,
    in_original,
)
from cpembed.targets.cuda.multistage.offsets import MAX_OFFSET
from cpembed.targets.cuda.multistage.registers import resident_blocks
from cpembed.targets.cuda.multistage.schedule import (
    CHUNK,
    MAX_BATCH,
    MAX_THREADS,
    KernelSchedule,
    Plan,
    SharedTile,
)
from cpembed.transform.program import DerivedProgram
from cpembed.workloads.chains import ProductChain, RowSoftmax

MAX_HELD = 8
"""Number of instruction tiles along the first product's depth up to which fragments of its first
factor stay in registers."""

MAX_UNROLLED = 16
"""Number of instruction tiles along the first product's depth up to which its loop is unrolled."""

MAX_ESTIMATE = 248
"""Maximum number of estimated registers of a thread: ptxas 13 takes up to 38 more than estimated
(``test_machine_code.py``), but manages with fewer where there are no more."""

MAX_SPLITS = 64
"""Maximum number of blocks that share the chunks of a block of results."""

REGISTER_MARGIN = 16
"""Number of registers of a thread beyond the estimate with which as many blocks run together."""

OTHER_REGISTERS = 28
"""Number of registers of a thread for addresses, loop counters and temporaries, read off what
ptxas 13 allocates for sm_80."""


@dataclass(frozen=True)
class ChainSchedule:
    """Choices of a chain's kernel.

    Attributes
    ----------
    via : str
        Place of the operand between the products.
    warps : tuple of int
        Number of warps of a block along rows, and along columns of either product. Warps along
        columns share the operand between the products, through shared memory.
    rows : int
        Number of instruction tiles of a warp along rows.
    chunk : int
        Number of instruction tiles along the second product's depth in a stage.
    columns : int
        Number of instruction tiles of a block along columns of the result.
    stages : int
        Number of stages of shared memory.
    splits : int
        Number of blocks that share the chunks of a block of results.
    """

    via: Via
    warps: tuple[int, int]
    rows: int
    chunk: int
    columns: int
    stages: int = 2
    splits: int = 1

    def __str__(self) -> str:
        block = f"{self.warps[0] * self.rows} x {self.columns}"
        warps = f"{self.warps[0]} x {self.warps[1]}"
        split = f", chunks split among {self.splits} blocks" * (self.splits > 1)
        return (
            f"blocks of {block} tiles on {warps} warps, {self.chunk} deep in {self.stages} stages, "
            f"through {self.via}{split}"
        )


Role = Literal["A", "B", "B2"]
"""Factors of a chain's kernel: those of the first product, and the second's own."""


@dataclass(frozen=True, kw_only=True)
class Factor:
    """A factor in global memory.

    Attributes
    ----------
    role : str
        Name in the kernel.
    product : TiledProduct
        Product that it is a factor of.
    operand : GlobalOperand
        Layout in global memory.
    """

    role: Role
    product: TiledProduct
    operand: GlobalOperand


@dataclass(frozen=True, kw_only=True)
class TileFactor(Factor):
    """A factor of which a block copies tiles by ``cp.async``.

    Attributes
    ----------
    tile : SharedTile
        Tile in shared memory that a block copies at a time. Its lines run along the depth of the
        product, as fragments expect, unless it is transposed, which ``ldmatrix`` undoes.
    """

    tile: SharedTile


@dataclass(frozen=True)
class ChainPlan:
    """A pair with a schedule, from which a kernel is generated."""

    chain: ProductChain
    pair: Pair
    schedule: ChainSchedule

    @property
    def first(self) -> TiledProduct:
        return self.pair.first.product

    @property
    def second(self) -> TiledProduct:
        return self.pair.second.product

    @property
    def threads(self) -> int:
        """Number of threads of a block."""
        return LANES * self.schedule.warps[0] * self.schedule.warps[1]

    @property
    def schedule_text(self) -> str:
        """Words of the schedule."""
        return str(self.schedule)

    def row_in_tile(self, row: str) -> str:
        """Return the row of an instruction tile, from that of a warp's part of it."""
        return row

    @property
    def coupling(self) -> Coupling:
        """Coupling of registers; the pair has one if the operand stays there."""
        assert isinstance(self.pair.coupling, Coupling)
        return self.pair.coupling

    @property
    def order(self) -> tuple[int, ...]:
        """Digits of the summed coordinate in an instruction tile of the operand between."""
        if self.schedule.via == "registers":
            return self.coupling.digits
        return tuple(range(self.second.instruction.k.bit_length() - 1))

    @property
    def is_ordered(self) -> bool:
        return self.order == tuple(range(len(self.order)))

    @property
    def column_tiles(self) -> int:
        """Number of instruction tiles of a chunk along columns of the first product."""
        return self.schedule.chunk * self.second.instruction.k // self.first.instruction.n

    @property
    def warp_column_tiles(self) -> int:
        """Number of a chunk's tiles along columns that one warp computes."""
        return self.column_tiles // self.schedule.warps[1]

    @property
    def warp_columns(self) -> int:
        """Number of instruction tiles of a warp along columns of the result."""
        return -(-self.schedule.columns // self.schedule.warps[1])

    @property
    def chunk_columns(self) -> int:
        """Number of columns of the first product in a chunk."""
        return self.schedule.chunk * self.second.instruction.k

    @property
    def chunks(self) -> int:
        """Number of chunks of the operand between the products."""
        return -(-self.second.tiles[3] // self.schedule.chunk)

    @property
    def block_rows(self) -> int:
        """Number of instruction tiles of a block along rows."""
        return self.schedule.warps[0] * self.schedule.rows

    @property
    def holds_rows(self) -> bool:
        """True if fragments of the first product's first factor stay in registers."""
        return self.schedule.rows * self.first.tiles[3] <= MAX_HELD

    @cached_property
    def rows_factor(self) -> TileFactor:
        """The first product's first factor."""
        product = self.first
        operand = product.first[0]
        lines = self.block_rows * product.instruction.m
        return _factor("A", product, operand, (lines, self._depth(product)))

    @cached_property
    def columns_factor(self) -> TileFactor:
        """The first product's second factor."""
        product = self.first
        workload = product.program.workload.inputs[1]
        operand = product.second[0]
        if workload.varies:
            operand = original(product.program, operand.layout.name, product.axes[2])
        return _factor("B", product, operand, (self.chunk_columns, self._depth(product)))

    @cached_property
    def second_factor(self) -> TileFactor:
        """The second product's own factor."""
        product = self.second
        workload = product.program.workload.inputs[1]
        columns = self.second_tiles * product.instruction.n
        if workload.varies:
            if is_integer(workload.dtype):
                raise LoweringError(
                    f"{workload.name}: ldmatrix transposes elements of 16 bits only"
                )
            operand = original(product.program, product.second[0].layout.name, product.axes[1])
            size = (self.chunk_columns, columns)
            return _factor("B2", product, operand, size, transposed=True)
        operand = product.second[0]
        if not self.is_ordered:
            operand = reordered(operand, product.instruction.k, self.order)
        return _factor("B2", product, operand, (columns, self.chunk_columns))

    @property
    def second_tiles(self) -> int:
        """Number of tiles of columns of the second factor in shared memory."""
        # Even, because fragments of two tiles are loaded at a time, and whole warps copy.
        return 2 * -(-(self.warp_columns * self.schedule.warps[1]) // 2)

    @property
    def factors(self) -> tuple[Factor, Factor, Factor]:
        """The factors in global memory."""
        return self.rows_factor, self.columns_factor, self.second_factor

    def _depth(self, product: TiledProduct) -> int:
        return product.tiles[3] * product.instruction.k

    @cached_property
    def result(self) -> Plan:
        """The second product as a plan of its own, for the end of the kernel."""
        schedule = self.schedule
        return Plan(
            self.second,
            KernelSchedule(
                warps=schedule.warps,
                tile=(schedule.rows, self.warp_columns),
                splits=schedule.splits,
            ),
        )

    @cached_property
    def middle(self) -> SharedTile:
        """Tile of the operand between the products in shared memory; empty if in registers."""
        size = size_bytes(self.chain.factors)
        rows = self.block_rows * self.first.instruction.m
        if self.schedule.via == "registers":
            return _shared_tile(0, CHUNK, CHUNK)
        return _shared_tile(rows, self.chunk_columns * size, CHUNK)

    @property
    def stage_bytes(self) -> int:
        return self.columns_factor.tile.bytes + self.second_factor.tile.bytes

    @property
    def stage_start(self) -> int:
        """First byte of the first stage, after the rows and the operand between."""
        return self.rows_factor.tile.bytes + self.middle.bytes

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory: rows, operand between, stages; at the end the results."""
        warps = self.threads // LANES
        stages = self.stage_start + self.schedule.stages * self.stage_bytes
        return max(stages, warps * self.result.staging.bytes)

    @property
    def blocks(self) -> tuple[int, int, int]:
        """Number of blocks along rows, columns and batch."""
        batch, rows, columns, _ = self.second.tiles
        return -(-rows // self.block_rows), -(-columns // self.schedule.columns), batch

    @property
    def registers(self) -> int:
        """Estimated registers of a thread."""
        schedule, instruction = self.schedule, self.second.instruction
        first, second, sums = instruction.registers
        fragments = schedule.rows * (self.first.tiles[3] if self.holds_rows else 1) * first
        scores = schedule.rows * self.warp_column_tiles * sums
        middle = schedule.rows * (schedule.chunk if schedule.via == "registers" else 1) * first
        results = schedule.rows * self.warp_columns * sums
        softmax = 4 * schedule.rows * 2 if isinstance(self.chain.function, RowSoftmax) else 0
        # Scores are dead once the operand between is made of them, so the larger counts.
        # Two sets of columns: one is multiplied while the other is loaded.
        total = fragments + results + max(scores, middle) + middle // 2 + 4 * second + softmax
        # Each two tiles of columns are loaded from an address of their own.
        return -(-(total + self.warp_columns + OTHER_REGISTERS) // 8) * 8

    @property
    def min_blocks(self) -> int:
        """Number of blocks whose registers a multiprocessor has to have room for."""
        return resident_blocks(self.registers + REGISTER_MARGIN, self.threads)

    @property
    def register_limit(self) -> int:
        """Maximum of :attr:`registers`."""
        return MAX_ESTIMATE

    def check_kernel(self) -> None:
        """Raise :class:`LoweringError` if this kind of kernel does not exist."""
        schedule = self.schedule
        if self.first.instruction.kind != "mma":
            raise LoweringError("chains are generated for the instructions mma_* and wgmma_*")
        if self.column_tiles % (2 * schedule.warps[1]):
            raise LoweringError(f"{schedule}: a warp computes an even number of tiles of a chunk")
        if self.threads > MAX_THREADS:
            raise LoweringError(f"{schedule}: at most {MAX_THREADS} threads")


def check(plan: ChainPlan, shared_bytes: int) -> None:
    """Raise :class:`LoweringError` if a plan has no kernel, or a block does not fit.

    Parameters
    ----------
    plan : ChainPlan
    shared_bytes : int
        Shared memory of a block of the multiprocessor.
    """
    schedule, pair = plan.schedule, plan.pair
    if pair.is_swapped:
        raise LoweringError("no kernel is generated for transposed products in a chain")
    if schedule.via not in pair.via:
        assert not isinstance(pair.coupling, Coupling)
        raise LoweringError(pair.coupling.reason)
    if schedule.via == "registers" and schedule.warps[1] != 1:
        raise LoweringError("a warp has the operand between the products to itself in registers")
    if schedule.via != "registers" and isinstance(plan.chain.function, RowSoftmax):
        raise LoweringError("softmax of rows needs each row in one warp, so registers")
    if not 1 <= schedule.splits <= min(plan.chunks, MAX_SPLITS):
        raise LoweringError(f"{schedule}: at most {min(plan.chunks, MAX_SPLITS)} parts")
    if schedule.stages < 2:
        raise LoweringError(f"{schedule}: at least 2 stages")
    plan.check_kernel()
    if plan.shared_bytes > shared_bytes:
        raise LoweringError(
            f"{schedule}: {plan.shared_bytes:,} bytes of shared memory of {shared_bytes:,}"
        )
    if plan.registers > plan.register_limit:
        raise LoweringError(f"{schedule}: {plan.registers} registers of {plan.register_limit}")
    # Offsets have 32 bits. Those of padded tiles are computed too, before a condition discards
    # them: less than twice those of an operand.
    operands = (*(factor.operand for factor in plan.factors), plan.second.output)
    largest = max(math.prod(operand.layout.original_shape) for operand in operands)
    if schedule.splits > 1:
        largest = max(largest, schedule.splits * plan.second.output.layout.elements)
    if 2 * largest > MAX_OFFSET:
        raise LoweringError(
            f"an operand of {largest:,} elements: offsets of padded tiles need more than 32 bits"
        )
    if plan.second.tiles[0] > MAX_BATCH:
        raise LoweringError(f"a batch of {plan.second.tiles[0]:,}: a grid has {MAX_BATCH:,}")


def original(program: DerivedProgram, name: str, along: str) -> GlobalOperand:
    """Return an operand in its original layout, with vectors along an axis of the instruction.

    Parameters
    ----------
    program : DerivedProgram
        Program of the operand.
    name : str
        Name of the operand.
    along : str
        Axis of the instruction.
    """
    layout = program.operand(name)
    layout = in_original(layout, range(len(layout.original_shape)))
    extents = {lane.name: lane.extent for lane in program.instruction_axes}
    longest = min(ACCESS_BYTES // size_bytes(layout.dtype), extents[along])
    return global_operand(layout, program, along, longest)


def reordered(operand: GlobalOperand, depth: int, digits: tuple[int, ...]) -> GlobalOperand:
    """Return a packed factor whose depth within a tile is in the order of a coupling.

    Parameters
    ----------
    operand : GlobalOperand
        Factor whose last dimension is along the depth.
    depth : int
        Number of elements of an instruction tile along the depth.
    digits : tuple of int
        Binary digit of the summed coordinate for each digit of the depth, the least one first.
    """
    layout = operand.layout
    last = layout.dimensions[-1]
    if not operand.needs_packing or last.extent % depth:
        raise LoweringError(f"{layout.name}: only a packed factor's depth can be reordered")
    name = last.name
    moved = IndexExpr.sum(
        [
            *[IndexTerm(name, coefficient=depth, divisor=depth)] * (last.extent > depth),
            *(
                IndexTerm(name, coefficient=1 << digit, divisor=1 << bit, modulus=2)
                for bit, digit in enumerate(digits)
            ),
        ],
        0,
    )
    source = tuple(
        index.substitute({name: moved}) if name in index.iterators else index
        for index in layout.source
    )
    return replace(operand, layout=replace(layout, source=source))


def _factor(
    role: Role,
    product: TiledProduct,
    operand: GlobalOperand,
    size: tuple[int, int],
    *,
    transposed: bool = False,
) -> TileFactor:
    """Return a factor with a tile of a number of lines and of elements of a line."""
    element = size_bytes(operand.layout.dtype)
    line_bytes, width = size[1] * element, operand.length * element
    tile = _shared_tile(size[0], line_bytes, width, transposed=transposed)
    return TileFactor(role=role, product=product, operand=operand, tile=tile)


def _shared_tile(
    lines: int, line_bytes: int, width: int, *, transposed: bool = False
) -> SharedTile:
    """Return a tile whose chunks are exchanged within lines of a power of two, or eight, chunks."""
    chunks = max(1, -(-line_bytes // CHUNK))
    # Chunks change places with others of their group of eight, or of all if there are fewer.
    chunks = 8 * -(-chunks // 8) if chunks > 4 else 1 << (chunks - 1).bit_length()
    return SharedTile(
        rows=lines,
        row_bytes=line_bytes,
        pitch=chunks * CHUNK,
        width=width,
        swizzled=True,
        transposed=transposed,
    )
