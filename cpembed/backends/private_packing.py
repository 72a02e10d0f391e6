"""Packing inside a contraction kernel: each parallel part packs what it reads, for itself.

Packed by a kernel of its own, an operand is written by some cores and read by others, line by line
through the cache that they share, after one launch more. A part that packs its own share finds it
in its own cache; what parts have in common (the rows between two halves of an image) is packed
twice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from cpembed.backends.nest import KernelOperand, Nest, TaskLoop, in_points
from cpembed.backends.packing import ORIGINAL, packed_rows, rows_of
from cpembed.backends.script import Script
from cpembed.ir.index import IndexExpr, IndexTerm
from cpembed.transform.program import DerivedProgram, PackedOperand

PART = "part"
"""Number of the parallel part, in the kernel's text."""


@dataclass(frozen=True)
class _Walk:
    """The packed dimension that the outermost loop of the tasks moves: ``step`` elements a point,
    over ``low`` to ``high`` for what is inside."""

    position: int
    loop: TaskLoop
    inside: int
    """Tasks of an iteration of the loop."""
    step: int
    low: int
    high: int


@dataclass(frozen=True)
class PrivatePacking:
    """The first factor of a nest, packed by ``chunks`` parts."""

    operand: PackedOperand
    nest: Nest
    chunks: int
    walk: _Walk | None

    @staticmethod
    def of(program: DerivedProgram, nest: Nest, chunks: int) -> PrivatePacking | None:
        """None where the first factor is in place. ``nest`` has its tasks as they are executed."""
        operand = program.role(program.instruction.computation.inputs[0].name)
        if operand.is_identity or not operand.dimensions:
            return None
        chunks = min(chunks, nest.task_count)
        return PrivatePacking(operand, nest, chunks, _walk(program, operand, nest))

    @property
    def contraction(self) -> Nest:
        """The nest on the parts' own copies, which lie behind one another."""
        first, *others = self.nest.operands
        own = IndexExpr.of([IndexTerm(PART, first.elements)])
        copies = replace(
            first,
            elements=first.elements * self.chunks,
            access=first.access + own,
        )
        return replace(self.nest, operands=(copies, *others))

    @property
    def original(self) -> KernelOperand:
        count = math.prod(self.operand.original_shape)
        return KernelOperand(ORIGINAL, self.operand.dtype, count, IndexExpr())

    def write(self, script: Script) -> None:
        """What a part does before its tasks."""
        own = IndexExpr.of([IndexTerm(PART, self.operand.elements)])
        name = self.nest.operands[0].parameter
        packed_rows(script, self.operand, self._rows(), name, own)

    def share(self) -> float:
        """Of the whole operand, what the part packs that packs most."""
        if self.walk is None:
            return 1.0
        extent = self.operand.shape[self.walk.position]
        spans = [self._span(self.walk, part) for part in range(self.chunks)]
        return max(end - first for first, end in spans) / extent

    def _span(self, walk: _Walk, part: int) -> tuple[int, int]:
        """First and end of the dimension, as :meth:`_rows` computes them."""
        total, loop = self.nest.task_count, walk.loop
        first, last = part * total // self.chunks, (part + 1) * total // self.chunks - 1
        starts = [
            min(task // walk.inside * loop.block, max(0, loop.extent - loop.block))
            for task in (first, last)
        ]
        extent = self.operand.shape[walk.position]
        low = walk.step * starts[0] + walk.low
        high = walk.step * (starts[1] + loop.block - 1) + walk.high
        return max(0, low), min(extent, high + 1)

    def _rows(self) -> tuple[str, str]:
        """The rows of :func:`~cpembed.backends.packing.packed_rows` that a part reads."""
        count, rows = rows_of(self.operand)
        walk = self.walk
        if walk is None or walk.position >= rows:
            return "0", str(count)
        total, loop = self.nest.task_count, walk.loop
        extent = self.operand.shape[walk.position]
        each = math.prod(self.operand.shape[walk.position + 1 : rows])

        def start(task: str) -> str:
            at = f"({task}) // {walk.inside} * {loop.block}"
            return f"T.min({at}, {max(0, loop.extent - loop.block)})"

        first = start(f"{PART} * {total} // {self.chunks}")
        last = start(f"({PART} + 1) * {total} // {self.chunks} - 1")
        low = f"T.max(0, {walk.step} * {first} + {walk.low})"
        high = walk.step * (loop.block - 1) + walk.high + 1
        end = f"T.min({extent}, {walk.step} * {last} + {high})"
        return f"{low} * {each}", f"{end} * {each}"


def _walk(program: DerivedProgram, operand: PackedOperand, nest: Nest) -> _Walk | None:
    """None where the outermost loop of more than one task does not move the operand's outermost
    dimension of more than one element, forwards."""
    tasks = [task for task in nest.tasks if task.count > 1]
    positions = [n for n, extent in enumerate(operand.shape) if extent > 1]
    if not tasks or not positions:
        return None
    loop, position = tasks[0], positions[0]
    index = operand.access[position]
    for overlap in program.overlaps:
        if overlap.loop == loop.origin:
            index = in_points(index, overlap)
    step = index.coefficient(loop.origin)
    rest = IndexExpr.of(
        [term for term in index.terms if term.iterator != loop.origin], index.constant
    )
    if step <= 0 or loop.origin in rest.iterators:
        return None
    low, high = rest.bounds(program.extents)
    inside = math.prod(task.count for task in tasks[1:])
    return _Walk(position, loop, inside, step, low, high)
