"""Cache traffic of a loop nest: how many lines each operand moves into a cache of some size.

The data-movement side of an analytical model (AMOS section 5.3, swATOP section 4.6). Take the
largest inner part of the nest whose data fit. Loops around it that do not move an operand find its
data where the last iteration left them; the first that moves it brings in all that it touches, and
every iteration of the loops outside of that one does so again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from cpembed.codegen.nest import KernelOperand, Nest
from cpembed.ir.dtypes import size_bytes

USED_SHARE = 0.75
"""Of a cache, what a loop's data can fill before it evicts itself: sets fill unevenly, and code,
stack and lines fetched ahead need room too."""

Lines = tuple[float, float, float]
"""By operand: the two factors and the output."""


class Reuse:
    """The part of a nest that one of ``threads`` threads executes, with its footprints.

    Threads share the iterations of the outermost loops; a part of an iteration counts as such.
    """

    def __init__(self, nest: Nest, threads: int = 1) -> None:
        steps = {task.name: task.tile for task in nest.tasks}
        trips: list[float] = []
        left = threads
        for task in nest.tasks:
            share = min(left, task.count)
            left = -(-left // share)
            trips.append(task.count / share)
        self._line_bytes = nest.line_bytes
        self._trips = trips[::-1]
        """Of the task loops, innermost first."""
        self._moves = [
            [task.name in operand.access.iterators for task in reversed(nest.tasks)]
            for operand in nest.operands
        ]
        extents = {loop.name: loop.extent for loop in (*nest.reductions, *nest.inner)}
        self.footprints = [_footprint(nest, extents, steps)]
        """Of a task, then of what each task loop and all inside it touch."""
        self._pieces = [_pieces(nest.operands[2], extents, steps, nest.line_bytes)[0]]
        for task, count in zip(reversed(nest.tasks), self._trips, strict=True):
            extents[task.name] = math.ceil(count)
            self.footprints.append(_footprint(nest, extents, steps))
            self._pieces.append(_pieces(nest.operands[2], extents, steps, nest.line_bytes)[0])

    @property
    def tasks(self) -> float:
        """Executed by the thread."""
        return math.prod(self._trips)

    def traffic(self, cache_bytes: int, without: int | None = None) -> Lines:
        """Lines that enter a cache, by operand, in one of many executions: none where all of the
        data stay from one to the next. Operand number ``without`` does not enter the cache."""
        room = cache_bytes * USED_SHARE / self._line_bytes
        fitting = 0
        while fitting < len(self.footprints) and self._filled(fitting, without) <= room:
            fitting += 1
        if fitting == len(self.footprints):
            return 0.0, 0.0, 0.0
        first, second, output = (
            0.0 if number == without else self._moved(number, fitting) for number in range(3)
        )
        return first, second, output

    def pieces(self, cache_bytes: float) -> float:
        """Of each line of the output, the share of a piece: lines that lie together are one where
        they are written before the output has filled so much."""
        lines = [footprint[2] for footprint in self.footprints]
        room = max(lines[0], cache_bytes / self._line_bytes)
        last = max(number for number, touched in enumerate(lines) if touched <= room)
        return self._pieces[last] / lines[last]

    def _filled(self, around: int, without: int | None) -> float:
        """Lines of a cache that the loops inside fill."""
        return sum(n for number, n in enumerate(self.footprints[around]) if number != without)

    def _moved(self, number: int, around: int) -> float:
        """Lines of an operand; ``around`` is the innermost loop whose data do not fit, 0 being the
        task itself."""
        if around == 0:
            return self.footprints[0][number] * self.tasks
        moves = self._moves[number]
        moving = around
        while moving <= len(moves) and not moves[moving - 1]:
            moving += 1
        if moving > len(moves):
            return 0.0
        again = math.prod(self._trips[moving:])
        if moving == around:
            return self.footprints[moving][number] * again
        # Windows that overlap from one iteration to the next have been evicted in between.
        return self.footprints[moving - 1][number] * self._trips[moving - 1] * again


def _footprint(nest: Nest, extents: Mapping[str, int], steps: Mapping[str, int]) -> Lines:
    first, second, output = (
        touched_lines(o, extents, nest.line_bytes, steps) for o in nest.operands
    )
    return first, second, output


def touched_lines(
    operand: KernelOperand,
    extents: Mapping[str, int],
    line_bytes: int,
    steps: Mapping[str, int] | None = None,
) -> int:
    """Lines that loops touch of an operand: ``extents`` iterations of those that are named, of
    ``steps`` points each (1 where not named); the others stand still.

    Exact for rows that begin at a line; overlapping windows are counted once where their steps are
    multiples of each other.
    """
    pieces, lines = _pieces(operand, extents, steps or {}, line_bytes)
    return pieces * lines


def _pieces(
    operand: KernelOperand, extents: Mapping[str, int], steps: Mapping[str, int], line_bytes: int
) -> tuple[int, int]:
    """Into how many pieces what :func:`touched_lines` counts falls apart, and the lines of one."""
    size = size_bytes(operand.dtype)
    moves: list[tuple[int, int]] = []
    for term in operand.access.terms:
        if not set(term.iterators) <= extents.keys():
            continue
        step = steps.get(term.iterator, 1)
        reach = {name: (extents[name] - 1) * step + 1 for name in term.iterators}
        if term.is_affine:
            moves.append((abs(term.coefficient) * size * step, extents[term.iterator]))
        else:
            moves.append((abs(term.coefficient) * size, term.maximum(reach) + 1))
    span, apart = size, list[tuple[int, int]]()
    for distance, count in sorted(moves):
        if distance <= max(span, line_bytes) and not apart:
            span += (count - 1) * distance
        elif apart and distance % apart[-1][0] == 0 and distance // apart[-1][0] <= apart[-1][1]:
            inner, points = apart[-1]
            apart[-1] = inner, points + (count - 1) * (distance // inner)
        else:
            apart.append((distance, count))
    return math.prod(count for _, count in apart), -(-span // line_bytes)
