"""Per-thread packing: each chunk of a kernel's tasks packs what it reads, for itself.

Packed by a kernel of its own, an operand is written by some cores and read by others, line by line
through the cache that they share, after one more launch. A chunk that packs its own share finds it
in its own cache; what chunks have in common (the rows between two halves of an image) is packed
twice. Where a share is larger than a near cache, a chunk packs and computes by packing blocks
(:mod:`~cpembed.codegen.packing_block`), each in the memory of the one before: im2col windows,
thirty times the size of the image, never leave the cache.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from cpembed.codegen.layout_transform import ORIGINAL
from cpembed.codegen.nest import KernelOperand, Nest
from cpembed.codegen.packing import packed_rows, rows_of
from cpembed.codegen.packing_block import PackingBlocks, row_accesses
from cpembed.codegen.program_nest import first_factor
from cpembed.codegen.script import Script
from cpembed.ir.dtypes import size_bytes
from cpembed.ir.index import IndexExpr, IndexTerm
from cpembed.transform.program import DerivedProgram, PackedOperand

CHUNK = "part"
"""Number of the parallel chunk, in the kernel's text."""

_LEFT, _FIRST, _END = "left", "first_task", "end_task"
"""In the text: lines of the packed operand but for those before a packing block, and its tasks."""


@dataclass(frozen=True)
class PerThreadPacking:
    """The first factor, ``parameter`` in the text, packed by each of ``chunks`` chunks of ``tasks``
    tasks, by ``blocks`` of each one's tasks; all of it by each where those are None. Copies begin
    at lines of ``line_bytes``."""

    operand: PackedOperand
    parameter: str
    tasks: int
    chunks: int
    blocks: PackingBlocks | None
    line_bytes: int

    @property
    def elements(self) -> int:
        """Of a chunk's copy, whole lines of it."""
        line = self._line
        if self.blocks is None:
            return -(-self.operand.elements // line) * line
        # A block begins somewhere in the first line.
        return (self.blocks.rows * self._row_elements // line + 2) * line

    @property
    def original(self) -> KernelOperand:
        count = math.prod(self.operand.original_shape)
        return KernelOperand(ORIGINAL, self.operand.dtype, count, IndexExpr())

    @property
    def bytes(self) -> int:
        """Of a chunk's copy."""
        return self.elements * size_bytes(self.operand.dtype)

    def share(self) -> float:
        """Of the whole operand, what the chunk packs that packs most."""
        return 1.0 if self.blocks is None else self.blocks.share()

    @contextmanager
    def packed(
        self, script: Script, tasks: tuple[str, str], regions: Sequence[str]
    ) -> Generator[tuple[str, str]]:
        """What is inside runs for each packing block of a chunk's tasks, a first one and an end,
        after that has been packed; given its own tasks. ``regions`` are those of the tasks."""
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
            # The simplifier divides by zero where rows cancel, and does not see through the bits.
            bits = (1 << limit.bit_length()) - 1
            opaque = f"T.bitwise_and({self._lines} - {skipped}, {bits})"
            script.line(f"{_LEFT} = T.axis.spatial({limit}, {opaque})")
            for region in regions:
                script.line(region)
            rows = self.blocks.packing_rows(_FIRST, _END)
            packed_rows(script, self.operand, rows, self.parameter, self.base)
            yield _FIRST, _END

    @property
    def base(self) -> IndexExpr:
        """Where element 0 of the packed operand would be. Copies begin at lines, as the operand
        does, so that rows lie in their lines as they do there."""
        own = IndexTerm(CHUNK, self.elements)
        if self.blocks is None:
            return IndexExpr.of([own])
        # Of a difference LLVM does not know that it fits 32 bits, and extends it in every load (76
        # instructions for 28 products instead of 51).
        return IndexExpr.of([own, IndexTerm(_LEFT, self._line)], -self._line * self._lines)

    def cost(self, rooms: Sequence[float], packed_in: Sequence[float]) -> float:
        """Packing and reading again, in times that all of the operand is packed."""
        level = next((n for n, room in enumerate(rooms) if self.bytes <= room), len(rooms))
        return self.share() * self.chunks + packed_in[level]

    @property
    def _line(self) -> int:
        """Elements of a line."""
        return max(1, self.line_bytes // size_bytes(self.operand.dtype))

    @property
    def _lines(self) -> int:
        """Whole ones of the packed operand."""
        return self.operand.elements // self._line

    @property
    def _row_elements(self) -> int:
        assert self.blocks is not None
        return self.operand.elements // self.blocks.access.row_count


def plan_packing(
    program: DerivedProgram, nest: Nest, rooms: Sequence[float], packed_in: Sequence[float]
) -> PerThreadPacking | None:
    """The cheapest per-thread packing of a nest's first factor; None where that is in place.

    ``nest`` has its tasks as they are executed; ``rooms`` are the bytes of a core's caches, the
    nearest first, that a packing block may fill; ``packed_in`` is what it takes to have it in each,
    and beyond them, in times that all of the operand is packed.
    """
    operand = first_factor(program)
    if operand.is_identity or not operand.dimensions:
        return None
    found = [
        PerThreadPacking(
            operand,
            nest.operands[0].parameter,
            nest.task_count,
            nest.chunks,
            blocks,
            nest.line_bytes,
        )
        for blocks in _proposals(program, operand, nest, rooms)
    ]
    return min(found, key=lambda packing: (packing.cost(rooms, packed_in), packing.bytes))


def pack_per_thread(nest: Nest, packing: PerThreadPacking) -> Nest:
    """The nest on the chunks' own copies of the first factor, which lie behind one another."""
    first, *others = nest.operands
    copies = replace(
        first, elements=packing.elements * packing.chunks, access=first.access + packing.base
    )
    return replace(nest, operands=(copies, *others), packing=packing)


def _proposals(
    program: DerivedProgram, operand: PackedOperand, nest: Nest, rooms: Sequence[float]
) -> Iterator[PackingBlocks | None]:
    """All tasks of a chunk at once, then the longest blocks that fill each room."""
    found = row_accesses(program, operand, nest, rows_of(operand))
    if not found:
        yield None
        return
    yield PackingBlocks.whole(found[0], nest.chunks)
    for room in rooms:
        for access in found:
            row_bytes = operand.elements // access.row_count * size_bytes(operand.dtype)
            blocks = PackingBlocks.of(access, nest.chunks, int(room) // row_bytes)
            if blocks is not None:
                yield blocks
