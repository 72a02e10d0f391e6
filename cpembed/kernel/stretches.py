"""Tasks of a contraction one after the other, by what they read of a packed operand.

The outermost loops of the tasks often move the outermost dimensions of the operand that is packed:
images, rows, points of a row. Tasks that follow each other then read *rows* of the operand, points
of those dimensions, that follow each other; a stretch of them reads a range, which can be packed
just before.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from cpembed.ir.index import IndexExpr
from cpembed.kernel.nest import Nest, TaskLoop
from cpembed.kernel.program_nest import in_points
from cpembed.transform.program import DerivedProgram, PackedOperand


@dataclass(frozen=True)
class Walk:
    """``loops`` are the outermost ones of ``task_count`` tasks, each of which moves one of the
    outermost dimensions of an operand, ``steps`` rows a point; ``inside`` tasks are an iteration of
    the last one.

    A task reads ``span`` rows, from ``low`` after those that its points move. The operand has
    ``row_count`` rows, each of which is ``each`` rows of :mod:`~cpembed.kernel.packing`.
    """

    loops: tuple[TaskLoop, ...]
    steps: tuple[int, ...]
    low: int
    span: int
    row_count: int
    each: int
    inside: int
    task_count: int

    @property
    def count(self) -> int:
        """Iterations of the last loop."""
        return self.loops[-1].count

    @property
    def move(self) -> int:
        """Rows from an iteration of the last loop to the next, at most."""
        return self.steps[-1] * self.loops[-1].block

    def first_row(self, task: int) -> int:
        """That a task reads."""
        row, inside = self.low, self.inside
        for loop, step in zip(reversed(self.loops), reversed(self.steps), strict=True):
            row += step * loop.start(task // inside % loop.count)
            inside *= loop.count
        return max(0, row)

    def first_row_text(self, task: str) -> str:
        """:meth:`first_row` in a kernel's text."""
        found, inside = "", self.inside
        for loop, step in zip(reversed(self.loops), reversed(self.steps), strict=True):
            at = loop.start_text(_place(task, inside, loop.count, self.task_count))
            found = f"{_times(at, step)} + {found}" if found else _times(at, step)
            inside *= loop.count
        return f"T.max(0, {found} + {self.low})" if self.low else f"({found})"


@dataclass(frozen=True)
class Stretches:
    """The tasks of each of ``parts`` parts, ``points`` iterations of the walk's last loop at a
    time, never across an iteration of the loops around it; all of them at once where 0."""

    walk: Walk
    parts: int
    points: int

    @staticmethod
    def whole(walk: Walk, parts: int) -> Stretches:
        return Stretches(walk, parts, 0)

    @staticmethod
    def of(walk: Walk, parts: int, rows: int) -> Stretches | None:
        """The longest that read no more than ``rows`` rows, or the shortest where none reads what
        another does; None where one iteration reads more."""
        if walk.span > rows:
            return None
        most = min(walk.count, 1 + (rows - walk.span) // walk.move)
        if walk.span == walk.move:
            most = 1
        # All of about the same length.
        return Stretches(walk, parts, -(-walk.count // -(-walk.count // most)))

    @property
    def rows(self) -> int:
        """The most that a stretch reads."""
        if self.points:
            return self.walk.span + (self.points - 1) * self.walk.move
        return max(end - first for first, end in map(self._part_rows, range(self.parts)))

    def share(self) -> float:
        """Of all rows, what the part packs that packs most, some of them more than once."""
        walk = self.walk
        if not self.points:
            return self.rows / walk.row_count
        mine = -(-walk.task_count // walk.inside // self.parts)
        read = -(-mine // self.points) * (walk.span - walk.move) + mine * walk.move
        return read / walk.row_count

    def numbers(self, part: str, tasks: tuple[str, str]) -> tuple[str, str]:
        """The first number, and the end, of the stretches of a part's tasks."""
        if not self.points:
            return part, f"{part} + 1"
        first, end = tasks
        return self._number(first), f"{self._number(f'{end} - 1')} + 1"

    def tasks(self, stretch: str, tasks: tuple[str, str]) -> tuple[str, str]:
        """The first task of a stretch, and the end, of those of a part."""
        if not self.points:
            return tasks
        walk, around = self.walk, self._around
        length = self.points * walk.inside
        first, end = f"{stretch} * {length}", f"({stretch} + 1) * {length}"
        if walk.count % self.points:
            # The last one of an iteration of the loops around is shorter.
            begin = f"{stretch} // {around} * {walk.count * walk.inside}"
            place = f"{stretch} % {around}"
            first = f"{begin} + {place} * {length}"
            end = f"{begin} + T.min(({place} + 1) * {length}, {walk.count * walk.inside})"
        return f"T.max({tasks[0]}, {first})", f"T.min({tasks[1]}, {end})"

    def packing_rows(self, first: str, end: str) -> tuple[str, str]:
        """The rows of :func:`~cpembed.kernel.packing.packed_rows` that tasks read."""
        walk = self.walk
        last = f"{walk.first_row_text(f'{end} - 1')} + {walk.span}"
        stop = f"T.min({walk.row_count}, {last})"
        return _times(walk.first_row_text(first), walk.each), _times(stop, walk.each)

    @property
    def _around(self) -> int:
        """Stretches of an iteration of the loops around the last one."""
        return -(-self.walk.count // self.points)

    def _number(self, task: str) -> str:
        walk, length = self.walk, self.points * self.walk.inside
        if walk.count % self.points == 0:
            return f"({task}) // {length}"
        whole = walk.count * walk.inside
        return f"({task}) // {whole} * {self._around} + ({task}) % {whole} // {length}"

    def _part_rows(self, part: int) -> tuple[int, int]:
        walk, total = self.walk, self.walk.task_count
        first, last = part * total // self.parts, (part + 1) * total // self.parts - 1
        end = min(walk.row_count, walk.first_row(last) + walk.span)
        return walk.first_row(first), end


def walks(
    program: DerivedProgram, operand: PackedOperand, nest: Nest, rows: tuple[int, int]
) -> list[Walk]:
    """Of more and more loops; none where the outermost loop of more than one task does not move the
    operand's outermost dimension of more than one element, forwards. ``nest`` has its tasks as they
    are executed; ``rows`` are the operand's of :func:`~cpembed.kernel.packing.rows_of`."""
    count, dimensions = rows
    tasks = [task for task in nest.tasks if task.count > 1]
    positions = [n for n, extent in enumerate(operand.shape[:dimensions]) if extent > 1]
    found: list[Walk] = []
    moves: list[tuple[int, int, int, int]] = []
    for number, position in enumerate(positions[: len(tasks)]):
        move = _move(program, operand.access[position], tasks[: number + 1])
        if move is None:
            break
        moves.append((position, *move))
        row_count = math.prod(operand.shape[: position + 1])
        weights = [math.prod(operand.shape[at + 1 : position + 1]) for at, *_ in moves]
        steps = [weight * step for weight, (_, step, _, _) in zip(weights, moves, strict=True)]
        low = sum(weight * least for weight, (*_, least, _) in zip(weights, moves, strict=True))
        high = sum(weight * most for weight, (*_, most) in zip(weights, moves, strict=True))
        loops = tasks[: number + 1]
        blocks = sum(s * (each.block - 1) for s, each in zip(steps, loops, strict=True))
        found.append(
            Walk(
                tuple(loops),
                tuple(steps),
                low,
                high - low + 1 + blocks,
                row_count,
                count // row_count,
                math.prod(task.count for task in tasks[number + 1 :]),
                nest.task_count,
            )
        )
    return found


def _move(
    program: DerivedProgram, index: IndexExpr, loops: Sequence[TaskLoop]
) -> tuple[int, int, int] | None:
    """Elements of a dimension that a point of the last loop moves, forwards, and the range of what
    else moves it; None where another of the loops does."""
    by_points = {loop.origin for loop in loops if loop.unit > 1}
    for overlap in program.overlaps:
        if overlap.loop in by_points:
            walked = in_points(index, overlap)
            if walked is None:
                return None
            index = walked
    *outer, loop = loops
    step = index.coefficient(loop.origin)
    rest = IndexExpr.of([t for t in index.terms if t.iterator != loop.origin], index.constant)
    if step <= 0 or {loop.origin, *(each.origin for each in outer)} & set(rest.iterators):
        return None
    return step, *rest.bounds(program.extents)


def _place(task: str, inside: int, count: int, total: int) -> str:
    """The iteration of a loop with ``inside`` tasks an iteration, of ``total`` in all."""
    found = f"({task})" if inside == 1 else f"({task}) // {inside}"
    return found if inside * count == total else f"{found} % {count}"


def _times(text: str, factor: int) -> str:
    return text if factor == 1 else f"{text} * {factor}"
