"""The choice of a register block: how many points of which spatial loops a task computes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from cpembed.backends.blocking import block, drop_unit_loops, order_tasks
from cpembed.backends.contract import Knobs
from cpembed.backends.nest import Nest, TaskLoop
from cpembed.backends.x86.roles import column_loops, row_loops
from cpembed.errors import LoweringError

_PER_DISTANCE = 0.03
"""What blocking a loop costs, per place from the innermost: the points of a block should be near
each other in memory (rows of an image 4 KiB apart share cache sets)."""


@dataclass(frozen=True)
class RegisterModel:
    """What a block of ``rows`` x ``columns`` accumulators needs and costs.

    ``cost(rows, columns)`` is the time of one reduction step of a block; ``largest`` bounds either
    side.
    """

    fits: Callable[[int, int], bool]
    cost: Callable[[int, int], float]
    largest: int


def ranked_blocks(nest: Nest, model: RegisterModel) -> list[Knobs]:
    """Every block that fits, best estimate first.

    What is compared is the cost of a block times the number of blocks, so points computed twice
    (see :class:`TaskLoop`) count.
    """
    rows, columns = row_loops(nest), column_loops(nest)
    names = [loop.origin for loop in (*rows, *columns)]
    scored: list[tuple[float, tuple[int, ...]]] = []
    for row_points, row_blocks, row_count in _choices(rows, model.largest):
        for column_points, column_blocks, column_count in _choices(columns, model.largest):
            if not model.fits(row_points, column_points):
                continue
            spread = _distance(row_blocks) + _distance(column_blocks)
            cost = model.cost(row_points, column_points) * (1 + _PER_DISTANCE * spread)
            scored.append((cost * row_count * column_count, (*row_blocks, *column_blocks)))
    return [
        Knobs({name: size for name, size in zip(names, sizes, strict=True) if size > 1})
        for _, sizes in sorted(scored)
    ]


def knob_candidates(nest: Nest, model: RegisterModel, limit: int) -> list[Knobs]:
    """At most ``limit`` settings worth timing, the default first: good blocks, both orders."""
    found: list[Knobs] = []
    for knobs in ranked_blocks(nest, model)[: -(-limit // 2)]:
        found += [knobs, Knobs(knobs.blocks, columns_outermost=False)]
    return found[:limit]


def apply_knobs(nest: Nest, model: RegisterModel, knobs: Knobs | None) -> Nest:
    """Order and block the tasks, by the best estimate where no knobs are given.

    Raises :class:`LoweringError` for a block that does not fit the registers or names a loop that
    shares nothing.
    """
    rows, columns = row_loops(nest), column_loops(nest)
    chosen = knobs or ranked_blocks(nest, model)[0]
    by_origin = {loop.origin: loop for loop in (*rows, *columns)}
    strange = [name for name in chosen.blocks if name not in by_origin]
    if strange:
        raise LoweringError(
            f"loop {strange[0]} cannot be blocked: use one of {', '.join(by_origin)}"
        )
    sides = [math.prod(chosen.blocks.get(o.origin, 1) for o in loops) for loops in (rows, columns)]
    if not model.fits(*sides):
        raise LoweringError(f"a block of {sides[0]} x {sides[1]} does not fit the registers")
    outer, inner = (columns, rows) if chosen.columns_outermost else (rows, columns)
    nest = order_tasks(nest, [loop.name for loop in (*outer, *inner)])
    blocks = {by_origin[name].name: size for name, size in chosen.blocks.items()}
    return drop_unit_loops(block(nest, blocks))


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
