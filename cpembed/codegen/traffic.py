"""Cache traffic of a loop nest: the number of lines that each operand moves into a cache.

The data-movement side of an analytical model (AMOS section 5.3, swATOP section 4.6). Take the
largest inner part of the nest whose data fit. Loops around it that do not move an operand find its
data where the last iteration left them. The first loop that moves it brings in all that it touches,
and so does every iteration of the loops outside of that one.

This counts lines of a transparent cache, from a kernel's register-tiled loops. Transfers between
the memories of a described machine, tile by tile, are counted by
:mod:`cpembed.cost.machine.traffic`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from cpembed.codegen.nest import KernelOperand, Nest
from cpembed.ir.dtypes import size_bytes

# Sets fill unevenly, and code, stack and prefetched lines need room too.
USED_SHARE = 0.75
"""Fraction of a cache that a loop's data can fill before it evicts itself."""

Lines = tuple[float, float, float]
"""Lines by operand: the two factors and the output."""


class Reuse:
    """Footprints of the part of a nest that one of ``threads`` threads executes."""

    def __init__(self, nest: Nest, threads: int = 1) -> None:
        steps = {task.name: task.tile for task in nest.tasks}
        trips: list[float] = []
        remaining = threads
        # Outer loops are divided among the threads first, as parallel chunks are; fractions of an
        # iteration count as such.
        for task in nest.tasks:
            share = min(remaining, task.count)
            remaining = -(-remaining // share)
            trips.append(task.count / share)
        self._line_bytes = nest.line_bytes
        # Everything below is by task loop, the innermost first.
        self._trips = trips[::-1]
        self._moves = [
            [task.name in operand.access.iterators for task in reversed(nest.tasks)]
            for operand in nest.operands
        ]
        extents = {loop.name: loop.extent for loop in (*nest.reductions, *nest.inner)}
        self.footprints = [_footprint(nest, extents, steps)]
        """Footprint of a task, then of each task loop with all inside it."""
        self._pieces = [_pieces(nest.operands[2], extents, steps, nest.line_bytes)[0]]
        for task, count in zip(reversed(nest.tasks), self._trips, strict=True):
            extents[task.name] = math.ceil(count)
            self.footprints.append(_footprint(nest, extents, steps))
            self._pieces.append(_pieces(nest.operands[2], extents, steps, nest.line_bytes)[0])

    @property
    def tasks(self) -> float:
        """Number of tasks that the thread executes."""
        return math.prod(self._trips)

    def traffic(self, cache_bytes: int, bypassing: int | None = None) -> Lines:
        """Return the lines that enter a cache in one of many executions.

        Operand number ``bypassing`` goes past the cache.
        """
        room = cache_bytes * USED_SHARE / self._line_bytes
        fitting = 0
        while fitting < len(self.footprints) and self._filled(fitting, bypassing) <= room:
            fitting += 1
        # All data stay from one of many executions to the next.
        if fitting == len(self.footprints):
            return 0.0, 0.0, 0.0
        first, second, output = (
            0.0 if number == bypassing else self._moved(number, fitting) for number in range(3)
        )
        return first, second, output

    def pieces(self, cache_bytes: float) -> float:
        """Return the number of contiguous pieces per line of the output.

        Lines that lie together are one piece if they are written before the output has filled
        ``cache_bytes``.
        """
        lines = [footprint[2] for footprint in self.footprints]
        room = max(lines[0], cache_bytes / self._line_bytes)
        last = max(number for number, touched in enumerate(lines) if touched <= room)
        return self._pieces[last] / lines[last]

    def _filled(self, around: int, bypassing: int | None) -> float:
        """Return the lines of a cache that the loops inside fill."""
        return sum(n for number, n in enumerate(self.footprints[around]) if number != bypassing)

    def _moved(self, number: int, around: int) -> float:
        """Return the lines of an operand that enter a cache.

        ``around`` is the innermost loop whose data do not fit, 0 for the task itself.
        """
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
            # Neighbouring iterations follow at once: windows that overlap are still there.
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
    """Return the number of lines of an operand that loops touch.

    Parameters
    ----------
    operand : KernelOperand
        Operand on its flat buffer.
    extents : mapping of str to int
        Iterations by loop; loops that are not named stand still.
    line_bytes : int
        Size of a cache line.
    steps : mapping of str to int, optional
        Points of an iteration by loop; 1 by default.
    """
    pieces, lines = _pieces(operand, extents, steps or {}, line_bytes)
    return pieces * lines


def _pieces(
    operand: KernelOperand, extents: Mapping[str, int], steps: Mapping[str, int], line_bytes: int
) -> tuple[int, int]:
    """Return the number of contiguous pieces of what loops touch, and the lines of each."""
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
    span, strided = size, list[tuple[int, int]]()
    # Exact for pieces that begin at a line. From the nearest move on: within a line, or what is
    # contiguous so far, it makes the piece longer, else there are as many pieces.
    for distance, count in sorted(moves):
        if distance <= max(span, line_bytes) and not strided:
            span += (count - 1) * distance
        # A window: steps of the outer loop are multiples of the inner one's and overlap with it.
        elif (
            strided
            and distance % strided[-1][0] == 0
            and (distance // strided[-1][0] <= strided[-1][1])
        ):
            inner, points = strided[-1]
            strided[-1] = inner, points + (count - 1) * (distance // inner)
        else:
            strided.append((distance, count))
    return math.prod(count for _, count in strided), -(-span // line_bytes)
