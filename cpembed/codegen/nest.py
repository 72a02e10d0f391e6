"""The loop nest of a contraction kernel, on flat packed buffers, and what passes rewrite.

A kernel runs *tasks*: points of the spatial loops, a loop taken in tiles of several points where it
is register-tiled. A task initialises its accumulators, adds over the reduction loops and stores.
All that is inside a task (the points of its register tile, instruction axes) is an *inner* loop.

A schedule is a sequence of passes (:data:`Pass`), each of which returns another nest: with other
loops, or annotated with what is no change of loops (software prefetch, per-thread packing).
:func:`~cpembed.codegen.emit.emit` writes the last one down.

Buffers are flat, so an access is one affine expression however the layout spreads an instruction
axis over dimensions: a row axis inside a compound dimension is only a stride.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import Enum
from functools import reduce
from typing import TYPE_CHECKING, Any

from cpembed.codegen.epilogue import Epilogue
from cpembed.ir.computation import AxisKind
from cpembed.ir.index import IndexExpr, IndexTerm
from cpembed.transform.program import Loop

if TYPE_CHECKING:
    from cpembed.codegen.per_thread_packing import PerThreadPacking
    from cpembed.codegen.prefetch import Prefetch
    from cpembed.codegen.split_k import SplitK


@dataclass(frozen=True)
class TileLoop:
    """A spatial loop around the tasks, ``tile`` points to a task; ``origin`` is its name in the
    program.

    Where the tile does not divide the extent the last tile is shifted back to end at the extent: it
    computes some points twice, with the same result, and needs no code of its own. Or so many tiles
    as ``remainder`` says, the last ones, have a point less. Of a loop over overlapping tiles of the
    output (:class:`~cpembed.transform.program.Overlap`) the points are those of the axis, ``unit``
    of which make a tile of the instruction.
    """

    name: str
    extent: int
    tile: int = 1
    origin: str = ""
    unit: int = 1
    remainder: int = 0

    @property
    def steps(self) -> int:
        """The largest register tile: tiles of the instruction, or points."""
        return self.extent // self.unit

    def tiles_of(self, steps: int) -> int:
        """How many register tiles of so many steps there are."""
        return -(-self.extent // (steps * self.unit))

    @property
    def count(self) -> int:
        return -(-self.extent // self.tile)

    @property
    def points(self) -> int:
        """Points computed, including recomputed ones."""
        return self.count * self.tile - self.remainder

    def start(self, number: int) -> int:
        """The first point of a tile."""
        whole = number * self.tile
        if self.remainder:
            return min(whole, number * (self.tile - 1) + self.count - self.remainder)
        return min(whole, max(0, self.extent - self.tile))

    def start_text(self, number: str) -> str:
        """:meth:`start` in a kernel's text."""
        whole = number if self.tile == 1 else f"{number} * {self.tile}"
        if self.remainder:
            after = f"{number} * {self.tile - 1} + {self.count - self.remainder}"
            return f"T.min({whole}, {after})"
        return f"T.min({whole}, {self.extent - self.tile})" if self.recomputes else whole

    @property
    def recomputes(self) -> bool:
        """Whether a shifted remainder tile computes points again."""
        return self.points > self.extent

    @property
    def step(self) -> str:
        """Name of the inner loop over the points of a tile."""
        return f"{self.name}_step"


class Peeling(Enum):
    """Which products with zero padding a kernel leaves out (:mod:`~cpembed.codegen.halo`)."""

    STEPS = "steps of the reductions in which a task sees only padding"
    POINTS = "those, and in each step the points of a register tile that see only padding"
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

    ``operands`` are the two factors in the instruction's order and the output, to which ``sums``
    are stored; with an ``epilogue`` their types differ, and ``channels`` are the vectors that it
    takes, by the index of an element, ``residual`` is what it adds. ``halo`` are coordinates of the
    first factor that leave its original dimensions, of ``elements`` each, where it holds padding;
    ``peeling`` says what is left out there. ``unpadded``: it holds no padding but lies as it came,
    and nothing outside of it may be read.

    Annotations: ``threads`` share the tasks in as many chunks; ``prefetched`` are the operands with
    software prefetch; ``packing``: each chunk packs the first factor for itself, and the nest reads
    these copies; ``split``: the nest stores partial sums; ``non_temporal`` is the factor, by
    number, that is loaded past the nearest cache; ``line_bytes``: of the caches for which passes
    decide.
    """

    tasks: tuple[TileLoop, ...]
    reductions: tuple[Loop, ...]
    inner: tuple[Loop, ...]
    operands: tuple[KernelOperand, KernelOperand, KernelOperand]
    epilogue: Epilogue | None = None
    channels: KernelOperand | None = None
    residual: KernelOperand | None = None
    sums_dtype: str = ""
    halo: tuple[KernelOperand, ...] = ()
    peeling: Peeling = Peeling.STEPS
    unpadded: bool = False
    threads: int = 1
    prefetched: frozenset[Prefetch] = frozenset()
    packing: PerThreadPacking | None = None
    split: SplitK | None = None
    non_temporal: int | None = None
    line_bytes: int = 64

    @property
    def sums(self) -> str:
        """Type of the accumulators."""
        return self.sums_dtype or self.operands[2].dtype

    @property
    def accessed(self) -> tuple[KernelOperand, ...]:
        """Everything that the loops index."""
        others = (self.channels, self.residual)
        return (*self.operands, *(operand for operand in others if operand is not None))

    def changed(self, change: Callable[[KernelOperand], KernelOperand], **others: Any) -> Nest:
        """The nest with everything that the loops index changed, and other fields replaced."""
        first, second, output = (change(operand) for operand in self.operands)
        channels = None if self.channels is None else change(self.channels)
        residual = None if self.residual is None else change(self.residual)
        halo = tuple(change(coordinate) for coordinate in self.halo)
        kept = {"operands": (first, second, output), "halo": halo}
        kept |= {"channels": channels, "residual": residual}
        return replace(self, **(kept | others))

    def after(self, passes: Iterable[Pass]) -> Nest:
        """The nest that a sequence of passes makes of this one."""
        return reduce(lambda nest, one: one(nest), passes, self)

    @property
    def task_count(self) -> int:
        return math.prod(loop.count for loop in self.tasks)

    @property
    def chunks(self) -> int:
        """Parallel chunks of equal numbers of tasks."""
        return min(self.threads, self.task_count)

    @property
    def steps(self) -> tuple[Loop, ...]:
        """Loops over the points of a register tile."""
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


Pass = Callable[[Nest], Nest]
"""A step of a schedule."""
