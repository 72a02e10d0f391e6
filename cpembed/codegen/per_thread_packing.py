"""Per-thread packing: each chunk of a kernel's tasks packs the operands that it reads.

Packed by a separate kernel, an operand is written by some cores and read by others, line by line
through the cache that they share, after one more launch. A chunk that packs its own share finds it
in its own cache; what chunks share (the rows between two halves of an image) is packed twice.

Where a share is larger than a near cache, a chunk packs and computes by *packing blocks*: ranges of
consecutive tasks, each packed in the memory of the one before, so that im2col windows, thirty times
the size of the image, never leave the cache. This works because the outermost loops of the tasks
often move the outermost dimensions of the packed operand (images, rows, points of a row):
consecutive tasks then read consecutive *rows* of the operand, points of those dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from cpembed.codegen.nest import KernelOperand, Nest, TileLoop
from cpembed.codegen.packing import ORIGINAL, packed_rows, rows_of
from cpembed.codegen.plan import Script
from cpembed.codegen.program_nest import first_factor, in_points
from cpembed.ir.dtypes import size_bytes
from cpembed.ir.index import IndexExpr, IndexTerm
from cpembed.transform.program import DerivedProgram, PackedOperand

CHUNK = "part"
"""Name in the text of the number of the parallel chunk."""

_LEFT, _FIRST, _END = "left", "first_task", "end_task"
"""Names in the text: lines of the packed operand that do not precede a packing block, its first
task and the end of its tasks."""


@dataclass(frozen=True)
class RowAccess:
    """Rows of the packed operand that tasks read.

    ``loops`` are the outermost task loops, each of which moves one of the operand's outermost
    dimensions, a point by ``steps`` rows; an iteration of the last loop has ``inside`` of all
    ``task_count`` tasks. A task reads ``span`` rows, beginning ``low`` after those that its points
    move. The operand has ``row_count`` rows, each of them ``each`` rows of
    :func:`~cpembed.codegen.packing.packed_rows`.
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
        """Maximum number of rows from an iteration of the last loop to the next."""
        return self.steps[-1] * self.loops[-1].tile

    def first_row(self, task: int) -> int:
        """Return the first row that a task reads."""
        row, inside = self.low, self.inside
        for loop, step in zip(reversed(self.loops), reversed(self.steps), strict=True):
            row += step * loop.start(task // inside % loop.count)
            inside *= loop.count
        return max(0, row)

    def first_row_text(self, task: str) -> str:
        """Return :meth:`first_row` as TVMScript."""
        total, inside = "", self.inside
        for loop, step in zip(reversed(self.loops), reversed(self.steps), strict=True):
            number = f"({task})" if inside == 1 else f"({task}) // {inside}"
            if inside * loop.count != self.task_count:
                number = f"{number} % {loop.count}"
            rows = _times(loop.start_text(number), step)
            total = f"{rows} + {total}" if total else rows
            inside *= loop.count
        return f"T.max(0, {total} + {self.low})" if self.low else f"({total})"


@dataclass(frozen=True)
class PackingBlocks:
    """Division of each chunk's tasks into packing blocks.

    A block is ``points`` iterations of the last loop of ``access``, and never crosses an iteration
    of the loops around it; with 0, all tasks of a chunk are one block.
    """

    access: RowAccess
    chunks: int
    points: int

    @staticmethod
    def longest(access: RowAccess, chunks: int, rows: int) -> PackingBlocks | None:
        """Return the longest blocks that read at most ``rows`` rows.

        They are the shortest if no row is read twice. None if one iteration reads more.
        """
        if access.span > rows:
            return None
        # The first iteration reads `span` rows, each further one `step` more.
        most = min(access.count, 1 + (rows - access.span) // access.step)
        # Nothing is packed twice however short blocks are, and short ones stay near.
        if access.span == access.step:
            most = 1
        # As many blocks as necessary, of about the same length.
        return PackingBlocks(access, chunks, -(-access.count // -(-access.count // most)))

    @property
    def rows(self) -> int:
        """Maximum number of rows that a block reads."""
        if self.points:
            return self.access.span + (self.points - 1) * self.access.step
        return max(end - first for first, end in map(self._chunk_rows, range(self.chunks)))

    def share(self) -> float:
        """Return the fraction of all rows that the busiest chunk packs, counting repetitions."""
        access = self.access
        if not self.points:
            return self.rows / access.row_count
        iterations = -(-access.task_count // access.inside // self.chunks)
        blocks = -(-iterations // self.points)
        # Each block packs again what it shares with the one before.
        return (blocks * (access.span - access.step) + iterations * access.step) / access.row_count

    def numbers(self, chunk: str, tasks: tuple[str, str]) -> tuple[str, str]:
        """Return the number of the first block of a chunk's tasks, and the end."""
        if not self.points:
            return chunk, f"{chunk} + 1"
        first, end = tasks
        return self._number(first), f"{self._number(f'{end} - 1')} + 1"

    def tasks(self, block: str, tasks: tuple[str, str]) -> tuple[str, str]:
        """Return the first task of a block, and the end, among those of a chunk."""
        if not self.points:
            return tasks
        access, around = self.access, self._around
        length = self.points * access.inside
        first, end = f"{block} * {length}", f"({block} + 1) * {length}"
        if access.count % self.points:
            # The last block of an iteration of the loops around is shorter.
            begin = f"{block} // {around} * {access.count * access.inside}"
            place = f"{block} % {around}"
            first = f"{begin} + {place} * {length}"
            end = f"{begin} + T.min(({place} + 1) * {length}, {access.count * access.inside})"
        return f"T.max({tasks[0]}, {first})", f"T.min({tasks[1]}, {end})"

    def packing_rows(self, first: str, end: str) -> tuple[str, str]:
        """Return the rows of :func:`~cpembed.codegen.packing.packed_rows` that tasks read."""
        access = self.access
        last = f"{access.first_row_text(f'{end} - 1')} + {access.span}"
        stop = f"T.min({access.row_count}, {last})"
        return _times(access.first_row_text(first), access.each), _times(stop, access.each)

    @property
    def _around(self) -> int:
        """Number of blocks in an iteration of the loops around the last one."""
        return -(-self.access.count // self.points)

    def _number(self, task: str) -> str:
        access, length = self.access, self.points * self.access.inside
        if access.count % self.points == 0:
            return f"({task}) // {length}"
        around = access.count * access.inside
        return f"({task}) // {around} * {self._around} + ({task}) % {around} // {length}"

    def _chunk_rows(self, chunk: int) -> tuple[int, int]:
        access, total = self.access, self.access.task_count
        first, last = chunk * total // self.chunks, (chunk + 1) * total // self.chunks - 1
        end = min(access.row_count, access.first_row(last) + access.span)
        return access.first_row(first), end


@dataclass(frozen=True)
class PerThreadPacking:
    """Packing of the first factor by each parallel chunk of tasks, into a copy of its own.

    The ``tasks`` of the kernel are divided among ``chunks``. A chunk packs and computes one of
    ``blocks`` after the other; if ``blocks`` is None, it packs the entire factor first.
    ``operand`` is the factor and ``parameter`` the name of its buffer in the TVMScript text. Each
    copy is aligned to cache lines of ``line_bytes`` bytes.
    """

    operand: PackedOperand
    parameter: str
    tasks: int
    chunks: int
    blocks: PackingBlocks | None
    line_bytes: int

    @property
    def elements(self) -> int:
        """Number of elements of a chunk's copy, in full lines."""
        line = self._line
        if self.blocks is None:
            return -(-self.operand.elements // line) * line
        # A block begins somewhere in the first line.
        return (self.blocks.rows * self._row_elements // line + 2) * line

    @property
    def original(self) -> KernelOperand:
        """First factor in its original layout, as a parameter of the kernel."""
        count = math.prod(self.operand.original_shape)
        return KernelOperand(ORIGINAL, self.operand.dtype, count, IndexExpr())

    @property
    def bytes(self) -> int:
        """Size of a chunk's copy."""
        return self.elements * size_bytes(self.operand.dtype)

    def share(self) -> float:
        """Return the fraction of the operand that the busiest chunk packs."""
        return 1.0 if self.blocks is None else self.blocks.share()

    @contextmanager
    def packed(
        self, script: Script, tasks: tuple[str, str], regions: Sequence[str]
    ) -> Generator[tuple[str, str]]:
        """Write the packing of a chunk, block by block; lines written inside run for each block.

        Parameters
        ----------
        script : Script
            Text to write to.
        tasks : tuple of str
            First task of the chunk and the end; what is yielded are those of a block.
        regions : sequence of str
            Regions that the tasks read and write.
        """
        if self.blocks is None:
            everything = "0", str(rows_of(self.operand)[0])
            packed_rows(script, self.operand, everything, self.parameter, self.base)
            yield tasks
            return
        numbers = self.blocks.numbers(CHUNK, tasks)
        header = f"for packing_block in T.serial({', '.join(numbers)}):"
        with script.nested(header, 'with T.sblock("packing_block"):'):
            first, end = self.blocks.tasks("packing_block", tasks)
            row = self.blocks.access.first_row_text(first)
            skipped = f"{row} * {self._row_elements} // {self._line}"
            limit = self._lines + 1
            script.line(f"{_FIRST} = T.axis.spatial({self.tasks}, {first})")
            script.line(f"{_END} = T.axis.spatial({self.tasks + 1}, {end})")
            # TVM's simplifier divides by zero where rows cancel; it does not see through the bits.
            bits = (1 << limit.bit_length()) - 1
            opaque = f"T.bitwise_and({self._lines} - {skipped}, {bits})"
            script.line(f"{_LEFT} = T.axis.spatial({limit}, {opaque})")
            script.lines(regions)
            rows = self.blocks.packing_rows(_FIRST, _END)
            packed_rows(script, self.operand, rows, self.parameter, self.base)
            yield _FIRST, _END

    @property
    def base(self) -> IndexExpr:
        """Index at which element 0 of the packed operand would lie.

        Copies begin at lines, as the operand does, so that rows lie in lines as they do there.
        """
        copy = IndexTerm(CHUNK, self.elements)
        if self.blocks is None:
            return IndexExpr.sum([copy])
        # LLVM does not know that a difference fits 32 bits and extends it in every load (76
        # instructions for 28 products instead of 51), so the lines left over are bound as a whole.
        return IndexExpr.sum([copy, IndexTerm(_LEFT, self._line)], -self._line * self._lines)

    def cost(self, rooms: Sequence[float], packed_in: Sequence[float]) -> float:
        """Return the time of packing and reading again, relative to packing the operand once."""
        # Packing takes longest on the busiest chunk; reading depends on the cache of the copy.
        level = next((n for n, room in enumerate(rooms) if self.bytes <= room), len(rooms))
        return self.share() * self.chunks + packed_in[level]

    @property
    def _line(self) -> int:
        """Elements of a line."""
        return max(1, self.line_bytes // size_bytes(self.operand.dtype))

    @property
    def _lines(self) -> int:
        """Number of full cache lines of the packed operand."""
        return self.operand.elements // self._line

    @property
    def _row_elements(self) -> int:
        assert self.blocks is not None
        return self.operand.elements // self.blocks.access.row_count


def plan_packing(
    program: DerivedProgram, nest: Nest, rooms: Sequence[float], packed_in: Sequence[float]
) -> PerThreadPacking | None:
    """Return the cheapest per-thread packing of a nest's first factor; None if it is in place.

    Parameters
    ----------
    program, nest : DerivedProgram, Nest
        Program, and its nest with the tasks in the order of execution.
    rooms : sequence of float
        Bytes of a core's caches, the nearest first, that a packing block may fill.
    packed_in : sequence of float
        Cost of having a block in each of these and beyond them, relative to packing the operand
        once.
    """
    operand = first_factor(program)
    if operand.is_identity or not operand.dimensions:
        return None
    packings = [
        PerThreadPacking(
            operand=operand,
            parameter=nest.operands[0].parameter,
            tasks=nest.task_count,
            chunks=nest.chunks,
            blocks=blocks,
            line_bytes=nest.line_bytes,
        )
        for blocks in _proposals(program, operand, nest, rooms)
    ]
    return min(packings, key=lambda packing: (packing.cost(rooms, packed_in), packing.bytes))


def pack_per_thread(nest: Nest, packing: PerThreadPacking) -> Nest:
    """Return the nest on the chunks' copies of the first factor, which lie behind one another."""
    first, second, output = nest.operands
    copies = replace(
        first, elements=packing.elements * packing.chunks, access=first.access + packing.base
    )
    return replace(nest, operands=(copies, second, output), packing=packing)


def _proposals(
    program: DerivedProgram, operand: PackedOperand, nest: Nest, rooms: Sequence[float]
) -> Iterator[PackingBlocks | None]:
    """Yield all tasks of a chunk as one block, then the longest blocks that fill each room."""
    accesses = row_accesses(program, operand, nest, rows_of(operand))
    if not accesses:
        yield None
        return
    yield PackingBlocks(accesses[0], nest.chunks, 0)
    for room in rooms:
        for access in accesses:
            row_bytes = operand.elements // access.row_count * size_bytes(operand.dtype)
            blocks = PackingBlocks.longest(access, nest.chunks, int(room) // row_bytes)
            if blocks is not None:
                yield blocks


def row_accesses(
    program: DerivedProgram, operand: PackedOperand, nest: Nest, rows: tuple[int, int]
) -> list[RowAccess]:
    """Return the rows that tasks read, by one, two and more of the outermost loops.

    Parameters
    ----------
    program, nest : DerivedProgram, Nest
        Program, and its nest with the tasks in the order of execution.
    operand : PackedOperand
        Operand that is packed.
    rows : tuple of int
        Number of rows and of their dimensions (:func:`~cpembed.codegen.packing.rows_of`).
    """
    count, dimensions = rows
    tasks = [task for task in nest.tasks if task.count > 1]
    positions = [n for n, extent in enumerate(operand.shape[:dimensions]) if extent > 1]
    accesses: list[RowAccess] = []
    moves: list[tuple[int, int, int, int]] = []
    for number, position in enumerate(positions[: len(tasks)]):
        loops = tasks[: number + 1]
        move = _move(program, operand.access[position], loops)
        # Only if each loop moves its dimension forwards do consecutive tasks read consecutive rows.
        if move is None:
            break
        moves.append((position, *move))
        row_count = math.prod(operand.shape[: position + 1])
        weights = [math.prod(operand.shape[at + 1 : position + 1]) for at, *_ in moves]
        steps = [weight * step for weight, (_, step, _, _) in zip(weights, moves, strict=True)]
        low = sum(weight * least for weight, (*_, least, _) in zip(weights, moves, strict=True))
        high = sum(weight * most for weight, (*_, most) in zip(weights, moves, strict=True))
        tiles = sum(step * (loop.tile - 1) for step, loop in zip(steps, loops, strict=True))
        accesses.append(
            RowAccess(
                loops=tuple(loops),
                steps=tuple(steps),
                low=low,
                span=high - low + 1 + tiles,
                row_count=row_count,
                each=count // row_count,
                inside=math.prod(task.count for task in tasks[number + 1 :]),
                task_count=nest.task_count,
            )
        )
    return accesses


def _move(
    program: DerivedProgram, index: IndexExpr, loops: Sequence[TileLoop]
) -> tuple[int, int, int] | None:
    """Return the elements of a dimension that a point of the last loop moves, forwards.

    The bounds of what other iterators add follow. None if one of these is a loop further out.
    """
    by_points = {loop.origin for loop in loops if loop.unit > 1}
    for overlap in program.overlaps:
        if overlap.loop in by_points:
            over_points = in_points(index, overlap)
            if over_points is None:
                return None
            index = over_points
    origin = loops[-1].origin
    step = index.coefficient(origin)
    rest = IndexExpr.sum([t for t in index.terms if t.iterator != origin], index.constant)
    if step <= 0 or {loop.origin for loop in loops} & set(rest.iterators):
        return None
    return step, *rest.bounds(program.extents)


def _times(text: str, factor: int) -> str:
    return text if factor == 1 else f"{text} * {factor}"
