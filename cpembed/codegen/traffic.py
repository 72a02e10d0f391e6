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
from collections.abc import Mapping, Sequence
from functools import lru_cache

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
        tasks = zip(reversed(nest.tasks), self._trips, strict=True)
        around = [(task.name, math.ceil(count)) for task, count in tasks]
        inside = {loop.name: loop.extent for loop in (*nest.reductions, *nest.inner)}
        first, second, output = (
            _pieces_by_level(operand, inside, around, steps, nest.line_bytes)
            for operand in nest.operands
        )
        self.footprints: list[Lines] = [
            (a[0] * a[1], b[0] * b[1], c[0] * c[1])
            for a, b, c in zip(first, second, output, strict=True)
        ]
        """Footprint of a task, then of each task loop with all inside it."""
        self._pieces = [pieces for pieces, _ in output]

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


def touched_lines(operand: KernelOperand, extents: Mapping[str, int], line_bytes: int) -> int:
    """Return the number of lines of an operand that loops touch.

    Parameters
    ----------
    operand : KernelOperand
        Operand on its flat buffer.
    extents : mapping of str to int
        Iterations by loop; loops that are not named stand still.
    line_bytes : int
        Size of a cache line.
    """
    ((pieces, lines),) = _pieces_by_level(operand, extents, (), {}, line_bytes)
    return pieces * lines


_Move = tuple[int, int]
"""Bytes from one iteration of a loop to the next, and the number of iterations."""


def _pieces_by_level(
    operand: KernelOperand,
    inside: Mapping[str, int],
    around: Sequence[tuple[str, int]],
    steps: Mapping[str, int],
    line_bytes: int,
) -> list[tuple[int, int]]:
    """Return the number of contiguous pieces that loops touch, and of cache lines in each.

    The first entry is for the loops ``inside`` with their iterations, each further one with one
    more loop ``around`` them.
    """
    size = size_bytes(operand.dtype)
    extents = {**inside, **dict(around)}
    level_of = {name: level for level, (name, _) in enumerate(around, 1)}
    moves: list[list[_Move]] = [[] for _ in range(len(around) + 1)]
    for term in operand.access.terms:
        if term.is_affine:
            name = term.iterator
            if name not in extents:
                continue
            move = abs(term.coefficient) * size * steps.get(name, 1), extents[name]
            moves[level_of.get(name, 0)].append(move)
            continue
        names = term.iterators
        if not extents.keys() >= set(names):
            continue
        reach = {name: (extents[name] - 1) * steps.get(name, 1) + 1 for name in names}
        low, high = term.bounds(reach)
        move = abs(term.coefficient) * size, high - low + 1
        # A digit of several loops moves once all of them do.
        moves[max((level_of.get(name, 0) for name in names), default=0)].append(move)
    results: list[tuple[int, int]] = []
    so_far: list[_Move] = []
    for added in moves:
        if added or not results:
            so_far = sorted([*so_far, *added])
            results.append(_pieces(size, tuple(so_far), line_bytes))
        else:
            results.append(results[-1])
    return results


@lru_cache(1 << 16)
def _pieces(size: int, moves: tuple[_Move, ...], line_bytes: int) -> tuple[int, int]:
    """Return the number of contiguous pieces that sorted moves touch, and of lines in each."""
    span, strided = size, list[_Move]()
    # Exact for pieces that begin at a line. From the nearest move on: within a line, or what is
    # contiguous so far, it makes the piece longer, else there are as many pieces.
    for distance, count in moves:
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
