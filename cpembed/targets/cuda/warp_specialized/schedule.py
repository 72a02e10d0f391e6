"""Schedules of a kernel of warp groups: tiles of a block, stages, how factors reach shared memory.

Each consumer group of a block computes its own rows of instruction tiles and all columns of the
block; neighbouring tiles of columns are one instruction. Another group fills a ring of stages ahead
of them. Where each warp executes instructions of its own, the consumers are warps, and the producer
is another warp.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from cpembed.errors import LoweringError
from cpembed.ir.dtypes import size_bytes
from cpembed.targets.cuda.epilogue import input_parameters
from cpembed.targets.cuda.instructions import LANES, WARP_GROUP, WARP_ROWS
from cpembed.targets.cuda.lower import GlobalOperand, TiledProduct
from cpembed.targets.cuda.multistage.registers import (
    MAX_REGISTERS,
    MULTIPROCESSOR_REGISTERS,
    PAIR_MARGIN,
    REGISTER_MARGIN,
    product_registers,
    resident_blocks,
)
from cpembed.targets.cuda.multistage.schedule import Staging
from cpembed.targets.cuda.tma.stores import StoreView, store_view
from cpembed.targets.cuda.tma.views import ImageView, image_views
from cpembed.targets.cuda.warp_specialized.layouts import SharedImage
from cpembed.targets.cuda.warp_specialized.tiles import TileOrder, streamed_tiles

MAX_GROUPS = 3
MAX_STAGES = 12

STRIP_BYTES = 128
"""Maximum number of bytes of a row of sums that pass through shared memory at a time."""

BARRIER_BYTES = 8

# A multiprocessor has 65,536 registers, a block of two consumer groups 384 threads: each starts
# with 168, of which the producers give some to the consumers. Producers that compute addresses of
# their own need more than one thread that issues copies of TMA, and more than three groups leave.
REGISTERS = {(2, False): (168, 40, 232), (2, True): (168, 72, 216), (3, False): (128, 40, 152)}
"""Registers of a thread at the launch, of producers and of consumers, by the number of consumer
groups and by whether producers compute addresses."""

RESULT_REGISTERS = 8
"""Number of registers of a thread for each vector of results beyond two that are stored together,
with which no kernel was seen to spill."""

CONTROL_REGISTERS, WAIT_REGISTERS = 40, 4
"""Registers of a group's consumer beside its sums, and of a warp's for waiting for its stages,
estimated."""
PART_REGISTERS = 24
"""Further ones where parts of sums are stored and added."""
INPUT_REGISTERS = 40
"""Further ones where vectors or a residual are added to results."""

Load = Literal["bulk", "tensor", "threads"]
"""Copies of a factor into shared memory: of packed images in bulk, of boxes or pixels of a tensor
map by TMA, or of vectors by the producers' threads."""


@dataclass(frozen=True)
class SpecializedSchedule:
    """Choices of a kernel of warp groups."""

    groups: int
    """Number of consumer groups of a block, along rows; 1 with ``warps``."""
    tile: tuple[int, int]
    """Number of instruction tiles of a group, or of one of ``warps``, along rows and columns."""
    depth: int = 4
    """Number of instruction tiles along the reduction in a stage."""
    stages: int = 4
    """Number of stages of shared memory."""
    loads: tuple[Load, Load] = ("tensor", "bulk")
    """Copies of each factor into shared memory."""
    group: int = 1
    """Number of adjacent blocks of rows that share columns of the second factor in L2."""
    splits: int = 1
    """Number of blocks that share the reduction of a result."""
    blocks: int = 0
    """Number of blocks of the grid, each of which computes several; 0: one for each."""
    streamed: bool = False
    """True if the stages of the last tiles are divided evenly among the blocks."""
    cluster: tuple[int, int] = (1, 1)
    """Number of blocks along rows and columns that share what TMA loads."""
    warps: tuple[int, int] | None = None
    """Number of consumer warps along rows and columns that execute instructions of their own; None
    for warp groups."""
    in_registers: bool = False
    """True if consumers load the first factor into registers."""
    alternating: bool = False
    """True if consumer groups compute tiles in turn: one stores while the next one multiplies."""
    store_buffers: int = 0
    """Number of buffers of a warp from which TMA stores results; 0: threads store them."""
    layouts: tuple[int, int] = (0, 0)
    """Numbers of the factors' layouts: of the views of TMA for tensor copies, otherwise of those in
    :class:`~cpembed.targets.cuda.lower.TiledProduct`."""

    @property
    def block(self) -> tuple[int, int]:
        """Number of instruction tiles of a block along rows and columns."""
        rows, columns = self.warps or (1 if self.alternating else self.groups, 1)
        return rows * self.tile[0], columns * self.tile[1]

    @property
    def cluster_blocks(self) -> int:
        """Number of blocks of a cluster."""
        return math.prod(self.cluster)

    def sharers(self, number: int) -> int:
        """Return the number of blocks that a copy of a factor goes to."""
        return self.cluster[1 - number] if self.loads[number] == "tensor" else 1

    @property
    def consumers(self) -> int:
        """Number of threads that multiply."""
        if self.warps is not None:
            return math.prod(self.warps) * LANES
        return self.groups * WARP_GROUP

    @property
    def readers(self) -> int:
        """Number of warps of a block that read a stage, and that store a block of results."""
        return self.consumers // LANES // (self.groups if self.alternating else 1)

    @property
    def threads(self) -> int:
        return self.consumers + (WARP_GROUP if self.warps is None else LANES)

    def __str__(self) -> str:
        (rows, columns), plural = self.block, "s" * (self.groups > 1)
        units = f"{self.groups} warp group{plural}"
        if self.warps is not None:
            units = f"{self.warps[0]} x {self.warps[1]} warps and a producer"
        words = [
            f"blocks of {rows} x {columns} tiles on {units}",
            f"{self.depth} deep in {self.stages} stages",
            f"factors by {self.loads[0]} and {self.loads[1]} copies",
        ]
        words += [f"{self.group} blocks of rows in a group"] * (self.group > 1)
        words += [f"sums split {self.splits} ways"] * (self.splits > 1)
        words += [f"{self.blocks} persistent blocks"] * bool(self.blocks)
        words += [f"clusters of {self.cluster[0]} x {self.cluster[1]}"] * (self.cluster_blocks > 1)
        words += ["the last tiles divided evenly"] * self.streamed
        words += ["the first factor in registers"] * self.in_registers
        words += ["groups take turns"] * self.alternating
        copies = f"results by tensor copies from {self.store_buffers} buffers of each warp"
        words += [copies.replace("1 buffers", "a buffer")] * bool(self.store_buffers)
        return ", ".join(words)


def strip_tiles(product: TiledProduct, columns: int) -> int:
    """Return how many of a group's instruction tiles of columns are staged at a time."""
    width = product.instruction.n * size_bytes(product.sums)
    fitting = range(1, STRIP_BYTES // width + 1)
    return max(count for count in fitting if columns % count == 0)


def strip_staging(product: TiledProduct, strip: int) -> Staging:
    """Return a warp's part of shared memory for tiles of columns of its sums."""
    return Staging.of_sums(WARP_ROWS, strip * product.instruction.n, product.sums)


@dataclass(frozen=True, eq=False)
class SpecializedProduct:
    """A product of instruction tiles, and the images of its factors that TMA can load."""

    tiled: TiledProduct
    _views: dict[tuple[int, int, int], tuple[ImageView, ...]] = field(
        default_factory=dict[tuple[int, int, int], tuple[ImageView, ...]], repr=False
    )
    mean_reads: dict[tuple[int, ...], float] = field(
        default_factory=dict[tuple[int, ...], float], repr=False
    )
    """Mean number of bytes that copies of an image read, by factor, layout, and tiles."""
    _stores: dict[int, StoreView | LoweringError] = field(
        default_factory=dict[int, StoreView | LoweringError], repr=False
    )

    def views(self, number: int, tiles: int, depth: int) -> tuple[ImageView, ...]:
        """Return the views of a factor's image of so many instruction tiles, the best one first."""
        key = number, tiles, depth
        if key not in self._views:
            self._views[key] = image_views(self.tiled, number, tiles, depth)
        return self._views[key]

    def store(self, columns: int) -> StoreView:
        """Return the boxes of results of a warp with so many instruction tiles of columns.

        Raises :class:`LoweringError` if TMA does not store them.
        """
        if columns not in self._stores:
            try:
                self._stores[columns] = store_view(self.tiled, columns)
            except LoweringError as error:
                self._stores[columns] = error
        view = self._stores[columns]
        if isinstance(view, LoweringError):
            raise view
        return view


@dataclass(frozen=True, eq=False)
class SpecializedPlan:
    """A product with a schedule, from which kernels are generated."""

    lowered: SpecializedProduct
    schedule: SpecializedSchedule

    @property
    def product(self) -> TiledProduct:
        return self.lowered.tiled

    @cached_property
    def views(self) -> tuple[ImageView | None, ImageView | None]:
        """Views of the factors that come by tensor copies; None where there is none."""
        first, second = (self._view(number) for number in range(2))
        return first, second

    def _view(self, number: int) -> ImageView | None:
        schedule = self.schedule
        if schedule.loads[number] != "tensor":
            return None
        views = self.lowered.views(number, schedule.block[number], schedule.depth)
        layout = schedule.layouts[number]
        return views[layout] if layout < len(views) else None

    @cached_property
    def images(self) -> tuple[SharedImage, SharedImage]:
        """Images of both factors in a stage."""
        instruction, schedule = self.product.instruction, self.schedule
        first, second = (
            SharedImage(
                tiles * extent,
                schedule.depth * instruction.k * size_bytes(dtype),
                "k" if view is None else view.major,
            )
            for tiles, extent, dtype, view in zip(
                schedule.block,
                (instruction.m, instruction.n),
                (instruction.a, instruction.b),
                self.views,
                strict=True,
            )
        )
        return first, second

    def operand(self, number: int) -> GlobalOperand:
        """Return the layout of a factor in global memory, unless it is packed as images."""
        view = self.views[number]
        if view is not None:
            return view.operand
        layouts = (self.product.first, self.product.second)[number]
        return layouts[
            0 if self.schedule.loads[number] == "bulk" else self.schedule.layouts[number]
        ]

    def packs(self, number: int) -> bool:
        """True if a kernel of its own packs a factor."""
        return self.schedule.loads[number] == "bulk" or self.operand(number).needs_packing

    @property
    def stage_bytes(self) -> int:
        return sum(image.bytes for image in self.images)

    @cached_property
    def staging(self) -> Staging:
        """A warp's part of shared memory for some columns of its sums of an instruction tile."""
        return strip_staging(self.product, self.strip)

    @cached_property
    def store(self) -> StoreView | None:
        """Boxes of results that TMA stores; None if threads store them.

        Raises :class:`LoweringError` if TMA does not store them.
        """
        if not self.schedule.store_buffers:
            return None
        return self.lowered.store(self.schedule.tile[1])

    @cached_property
    def store_image(self) -> SharedImage:
        """Image of a box of results in shared memory."""
        assert self.store is not None
        return SharedImage(WARP_ROWS, self.store.tensor_map.swizzle)

    @cached_property
    def strip(self) -> int:
        """Number of instruction tiles of columns that are staged at a time."""
        if self.store is not None:
            return self.store.tiles
        return strip_tiles(self.product, self.schedule.tile[1])

    @property
    def strips(self) -> int:
        """Number of times that a warp stages sums of a block of results."""
        rows, columns = self.schedule.tile
        return rows * columns // self.strip

    @property
    def staging_bytes(self) -> int:
        """Bytes of shared memory in which a warp stages results."""
        if self.store is not None:
            return self.schedule.store_buffers * self.store_image.content_bytes
        return self.staging.bytes

    @property
    def staging_offset(self) -> int:
        """First byte of shared memory behind the stages."""
        return self.schedule.stages * self.stage_bytes

    @property
    def barrier_offset(self) -> int:
        """First byte of the mbarriers: full stages, then empty ones."""
        return self.staging_offset + self.schedule.consumers // LANES * self.staging_bytes

    @property
    def flag_offset(self) -> int:
        """First byte of the number of a streamed tile's parts that are finished."""
        return self.barrier_offset + 2 * self.schedule.stages * BARRIER_BYTES

    @property
    def turn_offset(self) -> int:
        """First byte of the mbarriers by which each group learns that it may multiply."""
        return self.flag_offset + BARRIER_BYTES * self.schedule.streamed

    @property
    def shared_bytes(self) -> int:
        turns = self.schedule.groups if self.schedule.alternating else 0
        return self.turn_offset + BARRIER_BYTES * turns

    @property
    def block_sums(self) -> int:
        """Number of sums of a block of results."""
        instruction, (rows, columns) = self.product.instruction, self.schedule.block
        return rows * columns * instruction.m * instruction.n

    @property
    def blocks(self) -> tuple[int, int, int]:
        """Number of blocks of results along rows, columns and batch."""
        batch, rows, columns, _ = self.product.tiles
        block = self.schedule.block
        return -(-rows // block[0]), -(-columns // block[1]), batch

    @property
    def work_items(self) -> int:
        """Number of blocks of results, or of parts of their sums."""
        return math.prod(self.blocks) * self.schedule.splits

    @property
    def results(self) -> int:
        """Number of times that a block stores its results, or a part for another kernel."""
        return self.order.tiles * self.schedule.splits * self.schedule.cluster_blocks

    @property
    def grid(self) -> int:
        cluster, size = self.schedule.cluster, self.schedule.cluster_blocks
        if size > 1:
            rows, columns, batch = self.blocks
            tiles = -(-rows // cluster[0]) * -(-columns // cluster[1]) * batch
            workers = self.schedule.blocks // size or tiles * self.schedule.splits
            return min(workers, tiles * self.schedule.splits) * size
        if self.schedule.streamed:
            # Fewer tiles than blocks are divided too.
            return min(self.schedule.blocks or self.work_items, self.work_items * self.steps)
        return min(self.schedule.blocks or self.work_items, self.work_items)

    @property
    def steps(self) -> int:
        """Number of stages of the whole reduction."""
        return -(-self.product.tiles[3] // self.schedule.depth)

    @cached_property
    def order(self) -> TileOrder:
        """Work items of each block."""
        rows, columns, batch = self.blocks
        tiles = rows * columns * batch
        streamed = streamed_tiles(tiles, self.grid) if self.schedule.streamed else 0
        return TileOrder(
            rows=rows,
            columns=columns,
            batch=batch,
            steps=self.steps,
            workers=self.grid // self.schedule.cluster_blocks,
            cluster=self.schedule.cluster,
            group=self.schedule.group,
            splits=self.schedule.splits,
            streamed=streamed,
        )

    @property
    def by_threads(self) -> bool:
        """True if threads of the producers copy a factor."""
        return "threads" in self.schedule.loads

    @property
    def is_whole(self) -> bool:
        """True if each work item is the whole reduction of its results."""
        return self.schedule.splits == 1 and not self.order.streamed

    @property
    def registers(self) -> int:
        """Estimated registers of a thread of the consumers."""
        instruction, schedule = self.product.instruction, self.schedule
        if schedule.warps is not None:
            total = WAIT_REGISTERS
            total += product_registers(instruction, schedule.tile, schedule.depth, self.images)
        else:
            total = math.prod(schedule.tile) * instruction.registers[2] + CONTROL_REGISTERS
        if schedule.in_registers:
            total += self.fragment_registers
        # What ptxas of CUDA 13 spills of kernels with 160 and 192 sums a thread says how many more.
        total += PART_REGISTERS * schedule.streamed
        total += INPUT_REGISTERS * bool(input_parameters(self.product))
        return -(-total // 8) * 8

    @property
    def fragment_sets(self) -> int:
        """Number of sets of registers that the first factor is loaded into.

        One is loaded while products read the other. A stage of one product begins with either.
        """
        return 1 if self.schedule.depth % 2 else 2

    @property
    def fragment_registers(self) -> int:
        """Number of registers of a thread for the first factor."""
        return self.fragment_sets * self.schedule.tile[0] * self.product.instruction.registers[0]

    @property
    def most_registers(self) -> int:
        """Number of registers with which no kernel of warps of their own was seen to spill."""
        most = self.registers + REGISTER_MARGIN + PAIR_MARGIN * (self.schedule.depth % 2)
        if self.store is not None:
            # Results are made in the registers of their sums.
            return most
        vectors = self.staging.rows * self.staging.columns // self.product.output.length // LANES
        return most + RESULT_REGISTERS * max(0, vectors - 2)

    @property
    def min_blocks(self) -> int:
        """Number of blocks that a multiprocessor has registers for; 0 if ptxas may decide."""
        if self.schedule.warps is not None:
            return resident_blocks(self.most_registers, self.schedule.threads)
        # Registers can be passed from group to group only if ptxas knows how many each thread
        # begins with.
        return int(self.schedule.groups > 1)

    @property
    def register_shares(self) -> tuple[int, int, int]:
        """Registers of a thread at the launch, of producers, and of consumers.

        Raises :class:`LoweringError` if groups have too few to pass on.
        """
        key = self.schedule.groups, self.by_threads
        if key not in REGISTERS:
            raise LoweringError(f"{self.schedule}: the registers of so many groups are too few")
        return REGISTERS[key]

    @property
    def register_limit(self) -> int:
        if self.schedule.groups == 1:
            share = MULTIPROCESSOR_REGISTERS // self.schedule.threads // 8 * 8
            return min(MAX_REGISTERS, share)
        return self.register_shares[2]
