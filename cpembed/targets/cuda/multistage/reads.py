"""Sectors and lines of global memory that threads read when they copy a factor, by their addresses.

Vectors of a warp's access that are neighbours share sectors; of a factor that is gathered each may
lie in another one, of which the rest is read in vain.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Any

import numpy as np

from cpembed.ir.dtypes import size_bytes
from cpembed.targets.cuda.instructions import LANES
from cpembed.targets.cuda.lower import GlobalOperand, TiledProduct
from cpembed.targets.cuda.multistage.schedule import CHUNK, Plan, SharedTile
from cpembed.targets.cuda.tma.factors import Numbers, digit_values

SECTOR_BYTES = 32
"""Number of bytes of global memory that are read or written together."""

LINE_SECTORS = 4
"""Number of sectors of a line of L1."""

SAMPLED_BLOCKS, SAMPLED_STAGES = 4, 8
"""Maximum number of blocks along rows, and of stages, over which means are taken."""


@dataclass(frozen=True)
class CopyReads:
    """Counts of the copies of a factor's tile, those of a stage or their sum."""

    vectors: float
    """Vectors inside of the factor."""
    sectors: float
    """Sectors of each access of a warp, added up: they are read if L1 is passed by."""
    distinct: float
    """Sectors of all accesses of a stage together: they are read if L1 holds a stage."""
    lines: float
    """Lines of each access of a warp, added up."""

    def bytes(self, width: int) -> float:
        """Return the bytes from L2 for vectors of so many bytes.

        Copies of 16 bytes pass L1 by (``cp.async.cg``), which holds a stage's sectors for others.
        """
        return (self.sectors if width == CHUNK else self.distinct) * SECTOR_BYTES


@dataclass(frozen=True)
class StagedTile:
    """A factor with the tile of it that threads copy in a stage."""

    product: TiledProduct
    number: int
    """0 for the first factor, 1 for the second."""
    operand: GlobalOperand
    tile: SharedTile

    @property
    def sizes(self) -> tuple[int, int]:
        """Number of instruction tiles along rows and along the depth."""
        elements = self.tile.row_bytes // size_bytes(self.operand.layout.dtype)
        rows, deep = self.tile.rows, elements
        if self.tile.transposed:
            rows, deep = elements, self.tile.rows
        instruction = self.product.instruction
        return rows // (instruction.m, instruction.n)[self.number], deep // instruction.k

    def reads(self, batch: Numbers, block: Numbers, stage: Numbers) -> CopyReads:
        """Count what is read for all blocks and stages of some numbers.

        Parameters
        ----------
        batch, block, stage
            Numbers in the batch, of blocks along the factor's rows, and of stages of the reduction.
        """
        sectors = self._sectors(batch[:, None, None, None], block[:, None, None], stage[:, None])
        stages = np.sort(sectors.reshape(-1, self.tile.copies), axis=1)
        warps = np.sort(sectors.reshape(-1, LANES), axis=1)
        lines = warps // LINE_SECTORS
        vectors = int(np.count_nonzero(sectors >= 0))
        return CopyReads(vectors, _distinct(warps), _distinct(stages), _distinct(lines))

    def _sectors(self, batch: Numbers, block: Numbers, stage: Numbers) -> Numbers:
        """Return the sector of each vector, in the order of copies; -1 where nothing is read."""
        tile, operand, instruction = self.tile, self.operand, self.product.instruction
        slot = np.arange(tile.copies, dtype=np.int64)
        line, element = slot // tile.row_vectors, slot % tile.row_vectors * operand.length
        across, along = (element, line) if tile.transposed else (line, element)
        row = block * self.sizes[0] * (instruction.m, instruction.n)[self.number] + across
        deep = stage * self.sizes[1] * instruction.k + along
        places = addresses(self.product, self.number, operand, (batch, row, deep))
        sectors = np.where(line < tile.rows, places // SECTOR_BYTES, -1)
        return np.broadcast_to(sectors, (batch.size, block.size, stage.size, tile.copies))


def addresses(
    product: TiledProduct,
    number: int,
    operand: GlobalOperand,
    places: tuple[Numbers, Numbers, Numbers],
) -> Numbers:
    """Return the first byte of elements of a factor in its layout; -1 outside of the factor.

    Parameters
    ----------
    product : TiledProduct
    number : int
        0 for the first factor, 1 for the second.
    operand : GlobalOperand
        The factor in one of its layouts.
    places : tuple of array of int64
        Numbers in the batch, of rows and along the depth, in shapes that broadcast.
    """
    batch, row, deep = places
    extent, k = (product.instruction.m, product.instruction.n)[number], product.instruction.k
    values: dict[str, Any] = {
        **dict.fromkeys(product.program.extents, 0),
        **digit_values(batch, product.batch),
        **digit_values(row // extent, (product.rows, product.columns)[number]),
        **digit_values(deep // k, product.depth),
        product.axes[number]: row % extent,
        product.axes[2]: deep % k,
    }
    valid = (row // extent < product.tiles[1 + number]) & (deep // k < product.tiles[3])
    for dimension in operand.checked:
        coordinate = operand.layout.access[dimension].evaluate(values)
        valid = valid & (coordinate >= 0) & (coordinate < operand.layout.shape[dimension])
    size = size_bytes(operand.layout.dtype)
    return np.where(valid, operand.address.evaluate(values) * size, -1)


def _distinct(numbers: Numbers) -> int:
    """Return how many different numbers that are not negative are in each sorted row, in all."""
    changes = (numbers[:, 1:] != numbers[:, :-1]) & (numbers[:, 1:] >= 0)
    return int(np.count_nonzero(numbers[:, 0] >= 0) + np.count_nonzero(changes))


def count_reads(plan: Plan) -> tuple[int, int]:
    """Count the bytes and the sectors of all copies of a product's kernel, access by access."""
    rows, columns, batch, splits = plan.blocks
    total = np.zeros(2, np.int64)
    for number, (blocks, times) in enumerate(((rows, columns), (columns, rows))):
        tile = plan.shared_tiles[number]
        staged = StagedTile(plan.product, number, plan.operand(number), tile)
        reads = staged.reads(*map(np.arange, (batch, blocks, splits * plan.steps)))
        total += times * np.array([reads.vectors * tile.width, reads.sectors], np.int64)
    return int(total[0]), int(total[1])


def mean_reads(product: TiledProduct, number: int, layout: int, tile: SharedTile) -> CopyReads:
    """Return what the copies of a tile read in a stage on average, over some of all stages.

    Parameters
    ----------
    product : TiledProduct
    number, layout : int
        0 for the first factor, 1 for the second, and the number of its layout.
    tile : SharedTile
        Tile that is copied.
    """
    # Cached by hand in the product, of which very many schedules are estimated.
    cache: dict[Any, CopyReads] = product.__dict__.setdefault("_copy_reads", {})
    key = number, layout, tile
    if key not in cache:
        operand = (product.first, product.second)[number][layout]
        staged = StagedTile(product, number, operand, tile)
        across, along = staged.sizes
        batch = _sampled(product.tiles[0], 2)
        block = _sampled(-(-product.tiles[1 + number] // across), SAMPLED_BLOCKS)
        stage = _sampled(-(-product.tiles[3] // along), SAMPLED_STAGES)
        reads, count = staged.reads(batch, block, stage), batch.size * block.size * stage.size
        cache[key] = CopyReads(*(value / count for value in astuple(reads)))
    return cache[key]


def _sampled(count: int, most: int) -> Numbers:
    """Return numbers below ``count`` at equal distances, all of them if there are few."""
    samples = min(count, most)
    return ((np.arange(samples) + 0.5) * count / samples).astype(np.int64)
