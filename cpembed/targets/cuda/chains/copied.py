"""Tiles of a chain's factors that a block copies, and how chunks move them."""

from __future__ import annotations

from cpembed.targets.cuda.chains.plan import ChainPlan, TileFactor
from cpembed.targets.cuda.multistage.tile_copies import CopiedTile


def copied_tiles(plan: ChainPlan) -> tuple[CopiedTile, CopiedTile, CopiedTile]:
    """Return the tiles of the first product's factors, and of the second product's own.

    The first is copied once; of the others, a step of the kernel's loop is a chunk.
    """
    chunk, columns = plan.schedule.chunk, plan.schedule.columns
    tiles, depth = plan.column_tiles, plan.first.tiles[3]
    rows = plan.blocks[0] * plan.block_rows
    # The last block may have more columns in shared memory than it has results.
    last = (plan.blocks[1] - 1) * columns + plan.second_tiles
    return (
        _copied(plan, plan.rows_factor, "row", (0, 0), (rows, depth)),
        _copied(plan, plan.columns_factor, "0", (tiles, 0), (plan.chunks * tiles, depth)),
        _copied(plan, plan.second_factor, "column", (0, chunk), (last, plan.chunks * chunk)),
    )


def _copied(
    plan: ChainPlan,
    factor: TileFactor,
    first: str,
    moves: tuple[int, int],
    visited: tuple[int, int],
) -> CopiedTile:
    return CopiedTile(
        name=factor.role,
        number=int(factor.role != "A"),
        product=factor.product,
        operand=factor.operand,
        tile=factor.tile,
        threads=plan.threads,
        first=(first, "0"),
        moves=moves,
        visited=visited,
    )
