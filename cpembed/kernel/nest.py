"""The loop nest of a contraction kernel, on flat packed buffers.

A kernel runs *tasks*: points of the spatial loops, a loop taken in blocks of several points where
it is register-blocked. A task initialises its accumulators, adds over the reduction loops and
stores. All that is inside a task (register-block steps, lanes) is an *inner* loop.

Buffers are flat, so an access is one affine expression however the layout spreads a lane over
dimensions: a row lane inside a compound dimension is only a stride.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from cpembed.ir.computation import AxisKind
from cpembed.ir.index import IndexExpr, IndexTerm
from cpembed.kernel.epilogue import Epilogue
from cpembed.transform.program import Loop


@dataclass(frozen=True)
class TaskLoop:
    """A spatial loop around the tasks, ``block`` points to a task; ``origin`` is its name in the
    program.

    Where the block does not divide the extent the last block is moved back to end at the extent:
    it computes some points twice, with the same result, and needs no code of its own. Or so many
    blocks as ``shorter`` says, the last ones, have a point less. Of a loop over overlapping tiles
    (:class:`~cpembed.transform.program.Overlap`) the points are those of the axis, ``unit`` of
    which make a tile.
    """

    name: str
    extent: int
    block: int = 1
    origin: str = ""
    unit: int = 1
    shorter: int = 0

    @property
    def steps(self) -> int:
        """What a block can hold at most: tiles, or points that are none."""
        return self.extent // self.unit

    def blocks_of(self, steps: int) -> int:
        """How many blocks of so many steps there are."""
        return -(-self.extent // (steps * self.unit))

    @property
    def count(self) -> int:
        return -(-self.extent // self.block)

    @property
    def points(self) -> int:
        """That are computed, some of them twice."""
        return self.count * self.block - self.shorter

    def start(self, number: int) -> int:
        """Where a block begins."""
        whole = number * self.block
        if self.shorter:
            return min(whole, number * (self.block - 1) + self.count - self.shorter)
        return min(whole, max(0, self.extent - self.block))

    def start_text(self, number: str) -> str:
        """The same in a kernel's text."""
        whole = number if self.block == 1 else f"{number} * {self.block}"
        if self.shorter:
            after = f"{number} * {self.block - 1} + {self.count - self.shorter}"
            return f"T.min({whole}, {after})"
        return f"T.min({whole}, {self.extent - self.block})" if self.repeats else whole

    @property
    def repeats(self) -> bool:
        """Whether points are computed twice."""
        return self.points > self.extent

    @property
    def step(self) -> str:
        """Name of the inner loop over the points of a block."""
        return f"{self.name}_step"


class Borders(Enum):
    """Which products with zero padding a kernel leaves out (:mod:`~cpembed.kernel.margins`)."""

    WHOLE = "steps of the reductions in which a task sees nothing else"
    POINTS = "those, and in each step the points of a block that see nothing else"
    EVERY = "those, all of them known when the kernel is compiled"


@dataclass(frozen=True)
class KernelOperand:
    """A packed operand as the kernel sees it: flat, with one index expression."""

    parameter: str
    dtype: str
    elements: int
    access: IndexExpr

    def stride(self, loop: str) -> int:
        """Elements from one step of a loop to the next."""
        return self.access.coefficient(loop)


@dataclass(frozen=True)
class Nest:
    """Loops of a contraction kernel and the accesses of its operands over them.

    ``operands`` are the two factors in the instruction's order and the output, which ``sums`` are
    stored to; with an ``epilogue`` their types differ, and ``channels`` are the vectors that it
    takes, by the index of an element. ``margins`` are coordinates of the first factor that leave
    its original dimensions, of ``elements`` each, where it holds padding; ``borders`` says what is
    left out there. ``unpadded``: it holds none but lies as it came, and what is outside of it must
    not be read.
    """

    tasks: tuple[TaskLoop, ...]
    reductions: tuple[Loop, ...]
    inner: tuple[Loop, ...]
    operands: tuple[KernelOperand, KernelOperand, KernelOperand]
    epilogue: Epilogue | None = None
    channels: KernelOperand | None = None
    sums_dtype: str = ""
    margins: tuple[KernelOperand, ...] = ()
    borders: Borders = Borders.WHOLE
    unpadded: bool = False

    @property
    def sums(self) -> str:
        """Type of the accumulators."""
        return self.sums_dtype or self.operands[2].dtype

    @property
    def accessed(self) -> tuple[KernelOperand, ...]:
        """Everything that the loops index."""
        return self.operands if self.channels is None else (*self.operands, self.channels)

    def changed(self, change: Callable[[KernelOperand], KernelOperand], **others: Any) -> Nest:
        """The nest with everything that the loops index changed, and other fields replaced."""
        first, second, output = (change(operand) for operand in self.operands)
        channels = None if self.channels is None else change(self.channels)
        margins = tuple(change(margin) for margin in self.margins)
        kept = {"operands": (first, second, output), "channels": channels, "margins": margins}
        return replace(self, **(kept | others))

    @property
    def task_count(self) -> int:
        return math.prod(loop.count for loop in self.tasks)

    @property
    def steps(self) -> tuple[Loop, ...]:
        """The points of a block."""
        names = {task.step for task in self.tasks}
        return tuple(loop for loop in self.inner if loop.name in names)

    @property
    def spatial_inner(self) -> tuple[Loop, ...]:
        return tuple(loop for loop in self.inner if loop.kind is AxisKind.SPATIAL)

    @property
    def accumulators(self) -> int:
        """Output elements of a task."""
        return math.prod(loop.extent for loop in self.spatial_inner)

    @property
    def accumulator_access(self) -> IndexExpr:
        """Accumulators are dense, row-major over the spatial inner loops."""
        terms: list[IndexTerm] = []
        stride = 1
        for loop in reversed(self.spatial_inner):
            terms.append(IndexTerm(loop.name, stride))
            stride *= loop.extent
        return IndexExpr.of(reversed(terms))

    def inner_loop(self, name: str) -> Loop:
        for loop in self.inner:
            if loop.name == name:
                return loop
        raise KeyError(name)
