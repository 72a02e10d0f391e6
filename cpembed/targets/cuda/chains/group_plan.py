"""A pair with a schedule for warp groups of Hopper: images of the factors, registers, barriers.

A block has consumer groups, each with 64 rows of the operand between the products, and a thread
that loads by TMA. Factors are panels of at most 128 bytes of the depth, each an image that TMA
writes and ``wgmma`` reads. A stage has a chunk of both factors; each of them has mbarriers of its
own, because the second factor is read longer than the first.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from cpembed.errors import LoweringError
from cpembed.ir.dtypes import size_bytes
from cpembed.targets.cuda.chains.plan import ChainPlan, Factor, reordered
from cpembed.targets.cuda.instructions import LANES, WARP_GROUP, TensorCoreInstruction
from cpembed.targets.cuda.lower import TiledProduct
from cpembed.targets.cuda.multistage.registers import MAX_REGISTERS
from cpembed.targets.cuda.multistage.schedule import Staging
from cpembed.targets.cuda.tma.tensor_maps import TensorMap
from cpembed.targets.cuda.tma.views import BLOCK_ROWS, ImageView, image_views
from cpembed.targets.cuda.warp_specialized.device import column_counts
from cpembed.targets.cuda.warp_specialized.layouts import SharedImage
from cpembed.targets.cuda.warp_specialized.schedule import (
    BARRIER_BYTES,
    CONTROL_REGISTERS,
    WARP_ROWS,
    strip_staging,
    strip_tiles,
)
from cpembed.targets.cuda.warp_specialized.traffic import MATRIX_BYTES
from cpembed.workloads.chains import RowSoftmax

PANEL_TILES = 4
"""Number of instruction tiles along the depth in 128 bytes."""

SHARED_REGISTERS = {1: (0, MAX_REGISTERS), 2: (40, 232), 3: (32, 160)}
"""Registers of a thread of the producers and of the consumers, by the number of consumer groups:
together the 65,536 of a multiprocessor. With one group none are passed on."""

LAUNCH_REGISTERS = {1: MAX_REGISTERS, 2: 168, 3: 128}
"""Registers of a thread at the beginning, by the number of consumer groups."""


@dataclass(frozen=True, kw_only=True)
class PanelFactor(Factor):
    """A factor whose part in shared memory is panels, side by side along the depth.

    Attributes
    ----------
    number : int
        0 for the first factor of its product, 1 for the second.
    depth : int
        Number of instruction tiles along the depth in all panels.
    panel : int
        Number of instruction tiles along the depth of a panel.
    view : ImageView
        What TMA loads of a panel.
    image : SharedImage
        The panel in shared memory.
    """

    number: int
    depth: int
    panel: int
    view: ImageView
    image: SharedImage

    @property
    def panels(self) -> int:
        return -(-self.depth // self.panel)

    @property
    def bytes(self) -> int:
        return self.panels * self.image.bytes

    @property
    def transaction_bytes(self) -> int:
        """Number of bytes that the mbarrier counts."""
        return self.panels * self.view.transaction_bytes

    def offset(self, row: int, inner: int) -> int:
        """Return the byte of the matrix that begins at a row, and at an instruction tile."""
        panel, rest = divmod(inner, self.panel)
        return panel * self.image.bytes + self.image.matrix_offset(row, rest * MATRIX_BYTES)


def legal_columns(instruction: TensorCoreInstruction, columns: int) -> int:
    """Return the least number of tiles of columns, not below one, that an instruction has.

    Numbers beyond all are those of the widest instruction.
    """
    counts = [count // instruction.n for count in column_counts(instruction)]
    return min((count for count in counts if count >= columns), default=counts[-1])


def _panel_tiles(depth: int, *, once: bool) -> list[int]:
    """Return the numbers of instruction tiles along the depth that panels can have.

    Parameters
    ----------
    depth : int
        Number of instruction tiles along the depth of a stage.
    once : bool
        True if a stage has all of the depth; otherwise each begins with a panel.
    """
    powers = [1, 2, PANEL_TILES]
    if once:
        return [min((n for n in powers if n >= depth), default=PANEL_TILES)]
    # Images along the other dimension can be as deep as the stage is.
    return [depth, *(n for n in powers if n < depth and depth % n == 0)]


@dataclass(frozen=True)
class GroupPlan(ChainPlan):
    """A plan of warp groups; ``schedule.warps`` counts consumer groups."""

    @property
    def groups(self) -> int:
        """Number of consumer groups."""
        return self.schedule.warps[0]

    @property
    def consumers(self) -> int:
        """Number of threads that multiply."""
        return self.groups * WARP_GROUP

    @property
    def threads(self) -> int:
        return self.consumers + WARP_GROUP

    @property
    def schedule_text(self) -> str:
        return super().schedule_text.replace(" warps", " warp groups")

    def row_in_tile(self, row: str) -> str:
        return f"warp % 4 * {WARP_ROWS} + {row}"

    @property
    def factors(self) -> tuple[Factor, Factor, Factor]:
        return self.rows_panels, self.columns_panels, self.second_panels

    @cached_property
    def rows_panels(self) -> PanelFactor:
        """The first product's first factor: the rows of the block."""
        return self._panels("A", self.first, 0, self.block_rows, self.first.tiles[3])

    @cached_property
    def columns_panels(self) -> PanelFactor:
        """The first product's second factor: columns of a chunk."""
        return self._panels("B", self.first, 1, self.column_tiles, self.first.tiles[3])

    @cached_property
    def second_panels(self) -> PanelFactor:
        """The second product's own factor: a chunk along its depth."""
        return self._panels("B2", self.second, 1, self.schedule.columns, self.schedule.chunk)

    def _panels(
        self, role: str, product: TiledProduct, number: int, tiles: int, depth: int
    ) -> PanelFactor:
        instruction = product.instruction
        extent, dtype = ((instruction.m, instruction.a), (instruction.n, instruction.b))[number]
        counts = [tiles]
        if tiles >= product.tiles[1 + number]:
            # A block that has everything may have more: images along rows or columns are blocks
            # of 64.
            block = BLOCK_ROWS // extent or 1
            counts.append(-(-tiles // block) * block)
        views = [
            (view, count, panel)
            for count in dict.fromkeys(counts)
            for panel in _panel_tiles(depth, once=role != "B2")
            for view in image_views(product, number, count, panel)
        ]
        if not views:
            raise LoweringError(f"TMA cannot load tiles of {tiles} of factor {role}")
        # In place if possible, then in as few panels as possible.
        view, count, panel = min(
            views, key=lambda item: (item[0].operand.needs_packing, -(-depth // item[2]))
        )
        operand = view.operand
        if role == "B2" and not self.is_ordered:
            operand = reordered(operand, instruction.k, self.order)
        image = SharedImage(count * extent, panel * instruction.k * size_bytes(dtype), view.major)
        return PanelFactor(
            role=role,  # pyright: ignore[reportArgumentType]
            product=product,
            operand=operand,
            number=number,
            depth=depth,
            panel=panel,
            view=view,
            image=image,
        )

    @property
    def tensor_maps(self) -> dict[str, TensorMap]:
        """Tensor maps by role of the factor."""
        panels = (self.rows_panels, self.columns_panels, self.second_panels)
        return {factor.role: factor.view.tensor_map for factor in panels}

    # -- shared memory ----------------------------------------------------------------------------

    @property
    def stage_start(self) -> int:
        return self.rows_panels.bytes

    @property
    def stage_bytes(self) -> int:
        return self.columns_panels.bytes + self.second_panels.bytes

    @property
    def strip(self) -> int:
        """Number of instruction tiles of columns that are staged at a time."""
        return strip_tiles(self.second, self.schedule.columns)

    @property
    def staging(self) -> Staging:
        return strip_staging(self.second, self.strip)

    @property
    def staging_offset(self) -> int:
        return self.stage_start + self.schedule.stages * self.stage_bytes

    @property
    def barrier_offset(self) -> int:
        """First byte of the mbarriers: of the rows, then of stages."""
        return self.staging_offset + self.consumers // LANES * self.staging.bytes

    @property
    def shared_bytes(self) -> int:
        return self.barrier_offset + (1 + 4 * self.schedule.stages) * BARRIER_BYTES

    # -- limits -----------------------------------------------------------------------------------

    @property
    def registers(self) -> int:
        """Estimated registers of a thread of the consumers."""
        sums = self.second.instruction.registers[2]
        total = (self.schedule.columns + self.column_tiles) * sums + CONTROL_REGISTERS
        # The operand between is read by products while the next scores are computed.
        total += self.schedule.chunk * self.second.instruction.registers[0]
        if isinstance(self.chain.function, RowSoftmax):
            total += 5 * 2
        return -(-total // 8) * 8

    @property
    def register_limit(self) -> int:
        return SHARED_REGISTERS[self.groups][1]

    def check_kernel(self) -> None:
        schedule = self.schedule
        if schedule.via != "registers":
            raise LoweringError("warp groups have the operand between the products in registers")
        if self.groups not in SHARED_REGISTERS or schedule.rows != 1:
            raise LoweringError(f"{schedule}: from 1 to 3 groups of one tile of rows each")
        for product, columns in (
            (self.first, self.column_tiles),
            (self.second, schedule.columns),
        ):
            if columns * product.instruction.n not in column_counts(product.instruction):
                raise LoweringError(
                    f"{schedule}: no instruction of {columns * product.instruction.n} columns"
                )
        panels = (self.rows_panels, self.columns_panels, self.second_panels)
        if not all(factor.image.is_legal for factor in panels):
            raise LoweringError(f"{schedule}: no swizzle of the factors' rows")
        second = self.second_panels
        if not second.view.zero_beyond and self.second.tiles[3] % schedule.chunk:
            # Zeros between do not hide infinities.
            raise LoweringError(f"{schedule}: the last chunk goes beyond the depth")
