"""Packing inside a contraction kernel: each parallel part packs what it reads, for itself.

Packed by a kernel of its own, an operand is written by some cores and read by others, line by line
through the cache that they share, after one launch more. A part that packs its own share finds it
in its own cache; what parts have in common (the rows between two halves of an image) is packed
twice. Where a share is more than a near cache holds, a part packs and computes by *stretches*
(:mod:`~cpembed.kernel.stretches`), each in the memory of the one before: windows that take thirty
times the image never leave the cache.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from cpembed.ir.dtypes import size_bytes
from cpembed.ir.index import IndexExpr, IndexTerm
from cpembed.kernel.move import ORIGINAL
from cpembed.kernel.nest import KernelOperand, Nest
from cpembed.kernel.packing import packed_rows, rows_of
from cpembed.kernel.program_nest import first_factor
from cpembed.kernel.script import Script
from cpembed.kernel.stretches import Stretches, walks
from cpembed.kernel.traffic import LINE_BYTES
from cpembed.transform.program import DerivedProgram, PackedOperand

PART = "part"
"""Number of the parallel part, in the kernel's text."""

_LEFT, _FIRST, _END = "left", "first_task", "end_task"
"""In the text: lines of the packed operand but for those before a stretch's, and its tasks."""

_SHARES = (0.5, 0.25)
"""Of the nearest two caches, what a stretch may fill beside the operands that are not packed."""

_FARTHER = (0.0, 0.05, 1.0)
"""What it takes to have the packed operand in the first, the second or a farther cache, in times
that all of it is packed; it decides between packing less at a time and packing more twice."""


@dataclass(frozen=True)
class PrivatePacking:
    """The first factor of a nest, packed by ``chunks`` parts, by ``stretches`` of each one's tasks;
    all of it by each where those are None."""

    operand: PackedOperand
    nest: Nest
    chunks: int
    stretches: Stretches | None

    @staticmethod
    def of(
        program: DerivedProgram, nest: Nest, chunks: int, cache_bytes: Sequence[int]
    ) -> PrivatePacking | None:
        """None where the first factor is in place. ``nest`` has its tasks as they are executed;
        ``cache_bytes`` are a core's, the nearest cache first."""
        operand = first_factor(program)
        if operand.is_identity or not operand.dimensions:
            return None
        chunks = min(chunks, nest.task_count)
        found = [
            PrivatePacking(operand, nest, chunks, stretches)
            for stretches in _proposals(program, operand, nest, chunks, cache_bytes)
        ]
        return min(found, key=lambda packing: (packing._dearness(cache_bytes), packing.bytes))

    @property
    def elements(self) -> int:
        """Of a part's copy, whole lines of it."""
        line = self._line
        if self.stretches is None:
            return -(-self.operand.elements // line) * line
        # A stretch begins somewhere in the first line.
        return (self.stretches.rows * self._row_elements // line + 2) * line

    @property
    def contraction(self) -> Nest:
        """The nest on the parts' own copies, which lie behind one another."""
        first, *others = self.nest.operands
        copies = replace(
            first, elements=self.elements * self.chunks, access=first.access + self._base
        )
        return replace(self.nest, operands=(copies, *others))

    @property
    def original(self) -> KernelOperand:
        count = math.prod(self.operand.original_shape)
        return KernelOperand(ORIGINAL, self.operand.dtype, count, IndexExpr())

    @property
    def bytes(self) -> int:
        """Of a part's copy."""
        return self.elements * size_bytes(self.operand.dtype)

    def share(self) -> float:
        """Of the whole operand, what the part packs that packs most."""
        return 1.0 if self.stretches is None else self.stretches.share()

    @contextmanager
    def packed(
        self, script: Script, tasks: tuple[str, str], regions: Sequence[str]
    ) -> Generator[tuple[str, str]]:
        """What is inside runs for each stretch of a part's tasks, a first one and an end, after the
        stretch has been packed; given its own tasks. ``regions`` are those of the tasks."""
        name, found = self.nest.operands[0].parameter, self.stretches
        if found is None:
            everything = "0", str(rows_of(self.operand)[0])
            packed_rows(script, self.operand, everything, name, self._base)
            yield tasks
            return
        total = self.nest.task_count
        numbers = found.numbers(PART, tasks)
        header = f"for stretch in T.serial({', '.join(numbers)}):"
        with script.nested(header, 'with T.sblock("stretch"):'):
            first, end = found.tasks("stretch", tasks)
            skipped = f"{found.walk.first_row_text(first)} * {self._row_elements} // {self._line}"
            limit = self._lines + 1
            script.line(f"{_FIRST} = T.axis.spatial({total}, {first})")
            script.line(f"{_END} = T.axis.spatial({total + 1}, {end})")
            # The simplifier divides by zero where rows cancel, and does not see through the bits.
            bits = (1 << limit.bit_length()) - 1
            opaque = f"T.bitwise_and({self._lines} - {skipped}, {bits})"
            script.line(f"{_LEFT} = T.axis.spatial({limit}, {opaque})")
            for region in regions:
                script.line(region)
            rows = found.packing_rows(_FIRST, _END)
            packed_rows(script, self.operand, rows, name, self._base)
            yield _FIRST, _END

    @property
    def _line(self) -> int:
        """Elements of a line."""
        return max(1, LINE_BYTES // size_bytes(self.operand.dtype))

    @property
    def _row_elements(self) -> int:
        assert self.stretches is not None
        return self.operand.elements // self.stretches.walk.row_count

    @property
    def _base(self) -> IndexExpr:
        """Where element 0 of the packed operand would be. Copies begin at lines, as the operand
        does, so that rows lie in their lines as they do there."""
        own = IndexTerm(PART, self.elements)
        if self.stretches is None:
            return IndexExpr.of([own])
        # Of a difference LLVM does not know that it fits 32 bits, and extends it in every load (76
        # instructions for 28 products instead of 51).
        return IndexExpr.of([own, IndexTerm(_LEFT, self._line)], -self._line * self._lines)

    @property
    def _lines(self) -> int:
        """Whole ones of the packed operand."""
        return self.operand.elements // self._line

    def _dearness(self, cache_bytes: Sequence[int]) -> float:
        rooms = [share * size for share, size in zip(_SHARES, cache_bytes, strict=False)]
        level = next((n for n, room in enumerate(rooms) if self.bytes <= room), len(rooms))
        return self.share() * self.chunks + _FARTHER[level]


def _proposals(
    program: DerivedProgram,
    operand: PackedOperand,
    nest: Nest,
    chunks: int,
    cache_bytes: Sequence[int],
) -> Iterator[Stretches | None]:
    """All tasks of a part at once, then the longest stretches that fill each cache's share."""
    found = walks(program, operand, nest, rows_of(operand))
    if not found:
        yield None
        return
    yield Stretches.whole(found[0], chunks)
    for share, size in zip(_SHARES, cache_bytes, strict=False):
        for walk in found:
            row_bytes = operand.elements // walk.row_count * size_bytes(operand.dtype)
            stretches = Stretches.of(walk, chunks, int(share * size) // row_bytes)
            if stretches is not None:
                yield stretches
