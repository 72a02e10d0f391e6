"""Order in which the blocks of a persistent kernel compute the tiles of a result.

A *worker* is a cluster of blocks, most often of one. It computes one work item after the other: a
tile of the result for each of its blocks, or a range of the stages of its reduction. Neighbouring
workers go down a group of rows before they go on to the next column, so that what they read
together stays in L2.

Three kinds of items:

- whole tiles, worker by worker in turns;
- parts of tiles: the reduction is split evenly, and parts are added by a kernel of their own;
- ranges of *streamed* tiles (stream-K; Osama et al., PPoPP 2023): all stages of these tiles, one
  after the other, are divided evenly among the workers, so that the last turn leaves no worker
  idle. A range ends at most one tile in its middle and begins at most one. The parts of a tile are
  added, in their order, by the worker whose part is finished last; nobody waits for another.

What the functions here return as numbers, :meth:`TileOrder.script` returns as text of the kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.errors import LoweringError

# Kernels compute with 32-bit integers.
_MAX_NUMBER = 2**31 - 1


@dataclass(frozen=True, kw_only=True)
class WorkItem:
    """A range of the reduction of a tile of each block of a worker.

    Attributes
    ----------
    tile : int
        Number of the worker's tile.
    row, column, batch : int
        Number of the first block of results along rows, columns and batch.
    first, last : int
        First stage, and the one after the last.
    part, parts : int
        Number of the range among those of its tile, and their number.
    slot : int
        Place in the workspace of the sums of a range of a streamed tile.
    """

    tile: int
    row: int
    column: int
    batch: int
    first: int
    last: int
    part: int = 0
    parts: int = 1
    slot: int = 0


@dataclass(frozen=True, kw_only=True)
class TileOrder:
    """Work items of each worker.

    Raises :class:`LoweringError` if there are no such items.

    Attributes
    ----------
    rows, columns, batch : int
        Number of blocks of results along rows, columns and batch.
    steps : int
        Number of stages of the reduction of a tile.
    workers : int
        Number of workers, all of which run at the same time.
    group : int
        Number of rows of tiles that are computed column by column; the last group may have fewer.
    cluster : tuple of int
        Number of blocks of a worker along rows and columns.
    splits : int
        Number of parts of each tile's reduction, which are items of their own.
    streamed : int
        Number of tiles, the first ones, whose stages are divided evenly among workers.
    """

    rows: int
    columns: int
    batch: int = 1
    steps: int
    workers: int
    group: int = 1
    cluster: tuple[int, int] = (1, 1)
    splits: int = 1
    streamed: int = 0

    def __post_init__(self) -> None:
        numbers = (self.rows, self.columns, self.batch, self.steps, self.workers, self.group)
        if min(*numbers, *self.cluster, self.splits) < 1 or not 0 <= self.streamed <= self.tiles:
            raise LoweringError(f"{self}: numbers count from 1, streamed tiles up to {self.tiles}")
        if self.streamed and self.splits > 1:
            raise LoweringError("the reduction of a tile is split or streamed, not both")
        if self.splits > self.steps:
            raise LoweringError(f"{self.splits} parts of a reduction of {self.steps} stages")
        # A worker without a stage would count as a part of a tile.
        if self.streamed and self.streamed_steps < self.workers:
            raise LoweringError(f"{self.streamed_steps} stages for {self.workers} workers")
        if (self.streamed_steps + 1) * self.workers > _MAX_NUMBER:
            raise LoweringError(f"{self.streamed_steps} streamed stages exceed 32 bits")

    @property
    def grid_rows(self) -> int:
        """Number of tiles of workers along rows."""
        return -(-self.rows // self.cluster[0])

    @property
    def grid_columns(self) -> int:
        """Number of tiles of workers along columns."""
        return -(-self.columns // self.cluster[1])

    @property
    def tiles(self) -> int:
        """Number of tiles of workers; blocks of a worker may be beyond the result."""
        return self.grid_rows * self.grid_columns * self.batch

    @property
    def part_steps(self) -> int:
        """Number of stages of a part of a split reduction; the last may have fewer."""
        return -(-self.steps // self.splits)

    @property
    def streamed_steps(self) -> int:
        return self.streamed * self.steps

    @property
    def slots(self) -> int:
        """Number of places in the workspace for sums of ranges of streamed tiles."""
        return self.workers + self.streamed - 1 if self.streamed else 0

    @cached_property
    def streamed_turns(self) -> int:
        """Maximum number of ranges of streamed tiles of a worker."""
        if not self.streamed:
            return 0
        return max(
            (end - 1) // self.steps - begin // self.steps + 1
            for begin, end in map(self._range, range(self.workers))
        )

    @cached_property
    def _divided(self) -> tuple[int, ...]:
        """Number of the streamed tile of each end of a range that is inside of a tile."""
        total, workers, steps = self.streamed_steps, self.workers, self.steps
        ends = (worker * total // workers for worker in range(1, workers))
        return tuple(end // steps for end in ends if end % steps)

    @property
    def divided_tiles(self) -> int:
        """Number of streamed tiles of several ranges."""
        return len(set(self._divided))

    @property
    def streamed_parts(self) -> int:
        """Number of ranges of streamed tiles that are not whole reductions."""
        return len(self._divided) + self.divided_tiles

    @property
    def turns(self) -> int:
        """Maximum number of items of a worker, where ranges of streamed tiles come first."""
        items = (self.tiles - self.streamed) * self.splits
        return self.streamed_turns + -(-items // self.workers)

    def _range(self, worker: int) -> tuple[int, int]:
        """Return the streamed stages of a worker: the first, and the one after the last."""
        total = self.streamed_steps
        return worker * total // self.workers, (worker + 1) * total // self.workers

    def _owner(self, step: int) -> int:
        """Return the worker of a streamed stage."""
        return ((step + 1) * self.workers - 1) // self.streamed_steps

    def item(self, worker: int, turn: int) -> WorkItem | None:
        """Return an item of a worker; None if it has none in that turn."""
        if turn < self.streamed_turns:
            return self._streamed_item(worker, turn)
        number = (turn - self.streamed_turns) * self.workers + worker
        if number >= (self.tiles - self.streamed) * self.splits:
            return None
        # Neighbouring workers compute the same part of neighbouring tiles.
        part, tile = divmod(number, self.tiles - self.streamed)
        first = part * self.part_steps
        row, column, batch = self.place(self.streamed + tile)
        return WorkItem(
            tile=self.streamed + tile,
            row=row,
            column=column,
            batch=batch,
            first=min(first, self.steps),
            last=min(first + self.part_steps, self.steps),
            part=part,
            parts=self.splits,
        )

    def _streamed_item(self, worker: int, turn: int) -> WorkItem | None:
        begin, end = self._range(worker)
        tile = begin // self.steps + turn
        start = tile * self.steps
        if start >= end:
            return None
        row, column, batch = self.place(tile)
        owners = self._owner(start), self._owner(start + self.steps - 1)
        return WorkItem(
            tile=tile,
            row=row,
            column=column,
            batch=batch,
            first=max(begin - start, 0),
            last=min(end - start, self.steps),
            part=worker - owners[0],
            parts=owners[1] - owners[0] + 1,
            # From range to range the worker, the tile or both are the next ones.
            slot=worker + tile,
        )

    def items(self, worker: int) -> Iterator[WorkItem]:
        """Yield the items of a worker in their order."""
        for turn in range(self.turns):
            item = self.item(worker, turn)
            if item is not None:
                yield item

    def place(self, tile: int) -> tuple[int, int, int]:
        """Return the first block along rows, columns and batch of a worker's tile."""
        row, column, batch = self._place(tile, min)
        return row, column, batch

    def places(self, tiles: NDArray[np.int64]) -> tuple[NDArray[np.int64], ...]:
        """Return the first blocks along rows, columns and batch of workers' tiles."""
        return self._place(tiles, np.minimum)

    def _place(self, tile: Any, minimum: Callable[[Any, Any], Any]) -> tuple[Any, Any, Any]:
        rows, columns = self.grid_rows, self.grid_columns
        batch, block = tile // (rows * columns), tile % (rows * columns)
        above = block // (self.group * columns) * self.group
        inside = block % (self.group * columns)
        height = minimum(self.group, rows - above)
        row, column = above + inside % height, inside // height
        return row * self.cluster[0], column * self.cluster[1], batch

    def script(self, worker: str, turn: str) -> tuple[list[str], str]:
        """Return TVMScript of an item.

        Parameters
        ----------
        worker, turn
            Expressions of the number of the worker and of the turn.

        Returns
        -------
        lines : list of str
            Assignments of ``tile``, ``first_step`` and ``last_step``, and of ``part`` where each
            reduction is split.
        active : str
            Condition that the worker has an item in the turn, which holds the lines; ``True`` if it
            always has.
        """
        if not self.streamed:
            return self._whole_script(worker, turn)
        steps, total, end = self.steps, self.streamed_steps, "stream_end"
        lines = [
            f"stream_begin = {worker} * {total} // {self.workers}",
            f"{end} = ({worker} + 1) * {total} // {self.workers}",
        ]
        stream_tile = f"stream_begin // {steps} + {turn}"
        whole_tile = f"({turn} - {self.streamed_turns}) * {self.workers} + {worker}"
        is_streamed = f"{turn} < {self.streamed_turns}"
        if self.streamed == self.tiles:
            lines.append(f"tile = {stream_tile}")
            active = f"tile * {steps} < {end}"
        else:
            lines.append(
                f"tile = T.Select({is_streamed}, {stream_tile}, {whole_tile} + {self.streamed})"
            )
            active = f"T.Select({is_streamed}, tile * {steps} < {end}, tile < {self.tiles})"
        inside = f"tile < {self.streamed}"
        # Products with the number of a tile that is not streamed could exceed 32 bits.
        start = f"T.min(tile, {self.streamed - 1}) * {steps}"
        lines += [
            f"tile_start = {start}",
            f"first_step = T.Select({inside}, T.max(stream_begin - tile_start, 0), 0)",
            f"last_step = T.Select({inside}, T.min({end} - tile_start, {steps}), {steps})",
        ]
        return lines, active

    def part_script(self, worker: str) -> list[str]:
        """Return TVMScript that sets ``part``, ``parts`` and ``part_slot`` behind that of a range.

        Empty unless tiles are streamed.
        """
        if not self.streamed:
            return []
        workers, total, inside = self.workers, self.streamed_steps, f"tile < {self.streamed}"
        return [
            f"first_owner = ((tile_start + 1) * {workers} - 1) // {total}",
            f"last_owner = ((tile_start + {self.steps}) * {workers} - 1) // {total}",
            f"part = T.Select({inside}, {worker} - first_owner, 0)",
            f"parts = T.Select({inside}, last_owner - first_owner + 1, 1)",
            f"part_slot = {worker} + tile",
        ]

    def _whole_script(self, worker: str, turn: str) -> tuple[list[str], str]:
        items = self.tiles * self.splits
        lines = [
            f"item = {turn} * {self.workers} + {worker}" if self.turns > 1 else f"item = {worker}"
        ]
        active = "True" if self.turns * self.workers == items else f"item < {items}"
        if self.splits == 1:
            return [*lines, "tile = item", "first_step = 0", f"last_step = {self.steps}"], active
        length = self.part_steps
        return [
            *lines,
            f"tile = item % {self.tiles}",
            f"part = item // {self.tiles}",
            f"first_step = T.min(part * {length}, {self.steps})",
            f"last_step = T.min(part * {length} + {length}, {self.steps})",
        ], active

    def place_script(self, rank: str = "0") -> list[str]:
        """Return TVMScript that sets ``batch``, ``row_block`` and ``column_block`` of ``tile``.

        Parameters
        ----------
        rank
            Expression of the number of a block in its cluster, whose columns are next to each
            other.
        """
        rows, columns = self.grid_rows, self.grid_columns
        lines = [f"batch = tile // {rows * columns}"] * (self.batch > 1)
        block = f"tile % {rows * columns}" if self.batch > 1 else "tile"
        lines.append(f"block = {block}")
        if rows == 1 or columns == 1:
            # Quotients by 1 would leave variables that nothing reads.
            row, column = ("0" if size == 1 else "block" for size in (rows, columns))
        elif self.group == 1:
            row, column = f"block // {columns}", f"block % {columns}"
        else:
            lines += [
                f"above = block // {self.group * columns} * {self.group}",
                f"inside = block % {self.group * columns}",
            ]
            height = str(min(self.group, rows))
            if rows % self.group and rows > self.group:
                lines.append(f"height = T.min({self.group}, {rows} - above)")
                height = "height"
            row, column = f"above + inside % {height}", f"inside // {height}"
        across = self.cluster[1]
        if self.cluster[0] > 1:
            row = f"({row}) * {self.cluster[0]} + {rank} // {across}"
        if across > 1:
            column = f"({column}) * {across} + {rank} % {across}"
        return [*lines, f"row_block = {row}", f"column_block = {column}"]


def streamed_tiles(tiles: int, workers: int) -> int:
    """Return the number of tiles to stream, so that no worker is idle in the last turn.

    Those of the last turn, which is not full, and of the one before: with them each worker has at
    least a tile's stages, so that few tiles have more than two parts.
    """
    rest = tiles % workers
    if rest == 0 or tiles <= workers:
        return rest
    return rest + workers


def multicast_mask(cluster: tuple[int, int], number: int) -> str:
    """Return an expression of the blocks of a cluster that read the same image of a factor.

    The blocks of a row of the cluster read the same rows of the first factor, those of a column the
    same columns of the second one. Bit ``n`` of the mask stands for block ``n``.

    Parameters
    ----------
    cluster
        Number of blocks along rows and columns.
    number
        0 for the first factor, 1 for the second.
    """
    rows, columns = cluster
    if number == 0:
        mask = (1 << columns) - 1
        return str(mask) if rows == 1 else f"T.shift_left({mask}, rank // {columns} * {columns})"
    mask = sum(1 << row * columns for row in range(rows))
    return str(mask) if columns == 1 else f"T.shift_left({mask}, rank % {columns})"


@lru_cache(maxsize=1024)
def wave_reads(order: TileOrder) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which rows, and which columns, of workers' tiles each turn reads: turns by places.

    Those of different batches are different places. Parts of tiles, and streamed tiles, are read as
    if they were whole.
    """
    tiles = np.arange(order.tiles)
    streamed_turns = -(-order.streamed // order.workers)
    turns = np.where(
        tiles < order.streamed,
        tiles // order.workers,
        (tiles - order.streamed) // order.workers + streamed_turns,
    )
    *places, batch = order.places(tiles)
    sizes = zip(places, order.cluster, (order.grid_rows, order.grid_columns), strict=True)
    reads: list[NDArray[np.bool_]] = []
    for place, step, count in sizes:
        read = np.zeros((int(turns.max()) + 1, count * order.batch), np.bool_)
        read[turns, place // step * order.batch + batch] = True
        reads.append(read)
    return reads[0], reads[1]
