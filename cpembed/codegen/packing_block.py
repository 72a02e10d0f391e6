"""Packing blocks: consecutive tasks, and the rows of a packed operand that they read.

The outermost loops of the tasks often move the outermost dimensions of the operand that is packed:
images, rows, points of a row. Consecutive tasks then read consecutive *rows* of the operand, points
of those dimensions; the tasks of a packing block read a range, which can be packed just before.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from cpembed.codegen.nest import Nest, TileLoop
from cpembed.codegen.program_nest import in_points
from cpembed.ir.index import IndexExpr
from cpembed.transform.program import DerivedProgram, PackedOperand


@dataclass(frozen=True)
class RowAccess:
    """Which rows tasks read: ``loops`` are the outermost ones of ``task_count`` tasks, each of
    which moves one of the outermost dimensions of an operand, ``steps`` rows a point; ``inside``
    tasks are an iteration of the last one.

    A task reads ``span`` rows, from ``low`` after those that its points move. The operand has
    ``row_count`` rows, each of which is ``each`` rows of :mod:`~cpembed.codegen.packing`.
    """

    loops: tuple[TileLoop, ...]
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
    def step(self) -> int:
        """Rows from an iteration of the last loop to the next, at most."""
        return self.steps[-1] * self.loops[-1].tile

    def first_row(self, task: int) -> int:
        """The first row that a task reads."""
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
class PackingBlocks:
    """The tasks of each of ``chunks`` chunks, ``points`` iterations of the last loop of ``access``
    at a time, never across an iteration of the loops around it; all of them at once where 0."""

    access: RowAccess
    chunks: int
    points: int

    @staticmethod
    def whole(access: RowAccess, chunks: int) -> PackingBlocks:
        return PackingBlocks(access, chunks, 0)

    @staticmethod
    def of(access: RowAccess, chunks: int, rows: int) -> PackingBlocks | None:
        """The longest blocks that read no more than ``rows`` rows, or the shortest where none reads
        what another does; None where one iteration reads more."""
        if access.span > rows:
            return None
        most = min(access.count, 1 + (rows - access.span) // access.step)
        if access.span == access.step:
            most = 1
        # All of about the same length.
        return PackingBlocks(access, chunks, -(-access.count // -(-access.count // most)))

    @property
    def rows(self) -> int:
        """The most that a block reads."""
        if self.points:
            return self.access.span + (self.points - 1) * self.access.step
        return max(end - first for first, end in map(self._chunk_rows, range(self.chunks)))

    def share(self) -> float:
        """Of all rows, the share of the chunk that packs most, some of them more than once."""
        access = self.access
        if not self.points:
            return self.rows / access.row_count
        mine = -(-access.task_count // access.inside // self.chunks)
        read = -(-mine // self.points) * (access.span - access.step) + mine * access.step
        return read / access.row_count

    def numbers(self, chunk: str, tasks: tuple[str, str]) -> tuple[str, str]:
        """The first number, and the end, of the blocks of a chunk's tasks."""
        if not self.points:
            return chunk, f"{chunk} + 1"
        first, end = tasks
        return self._number(first), f"{self._number(f'{end} - 1')} + 1"

    def tasks(self, block: str, tasks: tuple[str, str]) -> tuple[str, str]:
        """The first task of a block, and the end, of those of a chunk."""
        if not self.points:
            return tasks
        access, around = self.access, self._around
        length = self.points * access.inside
        first, end = f"{block} * {length}", f"({block} + 1) * {length}"
        if access.count % self.points:
            # The last one of an iteration of the loops around is shorter.
            begin = f"{block} // {around} * {access.count * access.inside}"
            place = f"{block} % {around}"
            first = f"{begin} + {place} * {length}"
            end = f"{begin} + T.min(({place} + 1) * {length}, {access.count * access.inside})"
        return f"T.max({tasks[0]}, {first})", f"T.min({tasks[1]}, {end})"

    def packing_rows(self, first: str, end: str) -> tuple[str, str]:
        """The rows of :func:`~cpembed.codegen.packing.packed_rows` that tasks read."""
        access = self.access
        last = f"{access.first_row_text(f'{end} - 1')} + {access.span}"
        stop = f"T.min({access.row_count}, {last})"
        return _times(access.first_row_text(first), access.each), _times(stop, access.each)

    @property
    def _around(self) -> int:
        """Blocks of an iteration of the loops around the last one."""
        return -(-self.access.count // self.points)

    def _number(self, task: str) -> str:
        access, length = self.access, self.points * self.access.inside
        if access.count % self.points == 0:
            return f"({task}) // {length}"
        whole = access.count * access.inside
        return f"({task}) // {whole} * {self._around} + ({task}) % {whole} // {length}"

    def _chunk_rows(self, chunk: int) -> tuple[int, int]:
        access, total = self.access, self.access.task_count
        first, last = chunk * total // self.chunks, (chunk + 1) * total // self.chunks - 1
        end = min(access.row_count, access.first_row(last) + access.span)
        return access.first_row(first), end


def row_accesses(
    program: DerivedProgram, operand: PackedOperand, nest: Nest, rows: tuple[int, int]
) -> list[RowAccess]:
    """Which rows tasks read, by more and more of the outermost loops; none where the outermost loop
    of more than one task does not move the operand's outermost dimension of more than one element,
    forwards. ``nest`` has its tasks as they are executed; ``rows`` are the operand's of
    :func:`~cpembed.codegen.packing.rows_of`."""
    count, dimensions = rows
    tasks = [task for task in nest.tasks if task.count > 1]
    positions = [n for n, extent in enumerate(operand.shape[:dimensions]) if extent > 1]
    found: list[RowAccess] = []
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
        blocks = sum(s * (each.tile - 1) for s, each in zip(steps, loops, strict=True))
        found.append(
            RowAccess(
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
    program: DerivedProgram, index: IndexExpr, loops: Sequence[TileLoop]
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
