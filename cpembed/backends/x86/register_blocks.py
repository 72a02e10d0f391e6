"""The choice of a register block: how many points of which spatial loops a task computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from cpembed.backends.nest import TaskLoop

_PER_DISTANCE = 0.03
"""What blocking a loop costs, per place from the innermost: the points of a block should be near
each other in memory (rows of an image 4 KiB apart share cache sets)."""


@dataclass(frozen=True)
class RegisterBlock:
    """Block size per task loop; ``rows`` x ``columns`` products share their operands."""

    blocks: Mapping[str, int]
    rows: int
    columns: int


def choose_block(
    row_loops: Sequence[TaskLoop],
    column_loops: Sequence[TaskLoop],
    fits: Callable[[int, int], bool],
    cost: Callable[[int, int], float],
    largest: int,
) -> RegisterBlock:
    """The block of least estimated cost.

    ``cost(rows, columns)`` is the time of one reduction step of a block; what is compared is that
    times the number of blocks, so points computed twice (see :class:`TaskLoop`) count. Loops are
    given outermost first, that is, by falling distance between their points.
    """
    best: float | None = None
    chosen = RegisterBlock({}, 1, 1)
    for rows, row_blocks, row_count in _choices(row_loops, largest):
        for columns, column_blocks, column_count in _choices(column_loops, largest):
            if not fits(rows, columns):
                continue
            spread = _distance(row_blocks) + _distance(column_blocks)
            score = cost(rows, columns) * row_count * column_count * (1 + _PER_DISTANCE * spread)
            if best is None or score < best:
                best = score
                names = [loop.name for loop in (*row_loops, *column_loops)]
                sizes = dict(zip(names, (*row_blocks, *column_blocks), strict=True))
                blocks = {name: size for name, size in sizes.items() if size > 1}
                chosen = RegisterBlock(blocks, rows, columns)
    return chosen


def _distance(blocks: Sequence[int]) -> int:
    return sum(place for place, size in enumerate(reversed(blocks), start=1) if size > 1)


def _choices(loops: Sequence[TaskLoop], largest: int) -> Iterator[tuple[int, tuple[int, ...], int]]:
    """``(points of a block, block size per loop, number of blocks)`` up to ``largest`` points."""
    if not loops:
        yield 1, (), 1
        return
    *outer, loop = loops
    for size in range(1, min(loop.extent, largest) + 1):
        for points, blocks, count in _choices(outer, largest // size):
            yield points * size, (*blocks, size), count * -(-loop.extent // size)
