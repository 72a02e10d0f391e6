"""Loop nest of a contraction kernel on flat packed buffers: the value that passes rewrite.

A kernel runs *tasks*: points of the spatial loops, where a register-tiled loop contributes several
points to a task. A task clears its accumulators, adds over the reduction loops and stores. All
loops inside a task (points of its register tile, instruction axes) are *inner* loops.

A schedule is a sequence of passes (:data:`Pass`). Each returns another nest, with other loops or
with annotations that change no loop (software prefetch, per-thread packing).
:func:`~cpembed.codegen.emit.emit` writes the last one as text.

Buffers are flat, so an access is one affine expression however the layout spreads an instruction
axis over dimensions: a row axis inside a compound dimension is only a stride.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from enum import Enum
from functools import reduce
from typing import Any, Protocol

from cpembed.codegen.epilogue import Epilogue
from cpembed.codegen.plan import Script
from cpembed.ir.computation import AxisKind
from cpembed.ir.index import IndexExpr, flat_index, row_major_strides
from cpembed.transform.program import Loop


@dataclass(frozen=True)
class TileLoop:
    """Spatial loop around the tasks, with ``tile`` points of ``extent`` in a task.

    If the tile does not divide the extent, the last tile is shifted back to end at the extent, or
    the last ``remainder`` tiles have a point less. ``origin`` is the loop's name in the program. In
    a loop over overlapping tiles of the output (:class:`~cpembed.transform.program.Overlap`),
    points are those of the axis, and ``unit`` of them are a tile of the instruction.
    """

    # A shifted tile computes some points twice, with the same result, and needs no separate code.

    name: str
    extent: int
    tile: int = 1
    origin: str = ""
    unit: int = 1
    remainder: int = 0

    @property
    def steps(self) -> int:
        """Maximum number of steps of a register tile: tiles of the instruction, or points."""
        return self.extent // self.unit

    def tiles_of(self, steps: int) -> int:
        """Return the number of register tiles of that many steps."""
        return -(-self.extent // (steps * self.unit))

    @property
    def count(self) -> int:
        """Number of tiles."""
        return -(-self.extent // self.tile)

    @property
    def points(self) -> int:
        """Number of points computed, including recomputed ones."""
        return self.count * self.tile - self.remainder

    def start(self, number: int) -> int:
        """Return the first point of a tile."""
        start = number * self.tile
        if self.remainder:
            return min(start, number * (self.tile - 1) + self.count - self.remainder)
        return min(start, max(0, self.extent - self.tile))

    def start_text(self, number: str) -> str:
        """Return :meth:`start` as TVMScript."""
        start = number if self.tile == 1 else f"{number} * {self.tile}"
        # Both lines rise with the number and cross at the first shorter tile.
        if self.remainder:
            shorter = f"{number} * {self.tile - 1} + {self.count - self.remainder}"
            return f"T.min({start}, {shorter})"
        return f"T.min({start}, {self.extent - self.tile})" if self.recomputes else start

    @property
    def recomputes(self) -> bool:
        """True if a shifted remainder tile computes points again."""
        return self.points > self.extent

    @property
    def step(self) -> str:
        """Name of the inner loop over the points of a tile."""
        return f"{self.name}_step"


class Peeling(Enum):
    """Products with zero padding that a kernel leaves out (:mod:`~cpembed.codegen.halo`)."""

    STEPS = "steps of the reductions in which a task sees only padding"
    POINTS = "those, and in each step the points of a register tile that see only padding"
    EVERY = "those, all of them known when the kernel is compiled"


class Prefetch(Enum):
    """Operands with software prefetch, in the order in which a step requests their lines."""

    A = "the first factor, a task ahead"
    B = "the second factor, a register tile of columns ahead"
    C = "the results, before they are stored"


@dataclass(frozen=True)
class KernelOperand:
    """Flat buffer in the kernel with one index expression over the loops.

    A coordinate of the halo is one too: without a parameter, and with its dimension's size as
    ``elements``.
    """

    parameter: str
    dtype: str
    elements: int
    access: IndexExpr

    def stride(self, loop: str) -> int:
        """Return the distance in elements from one step of a loop to the next."""
        return self.access.coefficient(loop)


@dataclass(frozen=True)
class SplitK:
    """Partial sums of a split reduction (:func:`~cpembed.codegen.passes.split_k`).

    The nest stores ``parts`` sums of each element of ``output``; ``epilogue`` is applied to their
    total.
    """

    output: KernelOperand
    epilogue: Epilogue | None
    parts: int


# A protocol, because `per_thread_packing` reads nests and so cannot be imported here.
class ThreadCopies(Protocol):
    """Copies of the first factor that chunks pack themselves, as emission uses them."""

    @property
    def original(self) -> KernelOperand:
        """First factor in its original layout: a parameter of the kernel."""
        ...

    def packed(
        self, script: Script, tasks: tuple[str, str], regions: Sequence[str]
    ) -> AbstractContextManager[tuple[str, str]]:
        """Write the packing; return the first task and the end of those that may run inside."""
        ...


@dataclass(frozen=True)
class Nest:
    """Loops of a contraction kernel and the accesses of its operands over them.

    Parameters
    ----------
    tasks, reductions, inner : tuple of loops
        Loops, outermost first.
    operands : tuple of three KernelOperand
        The two factors in the instruction's order, and the output.
    epilogue : Epilogue, optional
        Steps between the sums and the output.
    channels, residual : KernelOperand, optional
        Vectors of the epilogue (by the index of an element), and its residual.
    sums_dtype : str
        Type of the accumulators; by default that of the output.
    halo : tuple of KernelOperand
        Coordinates of the first factor that leave its original dimensions, of ``elements`` each:
        there it holds padding.
    peeling : Peeling
        Products with padding that are left out.
    unpadded : bool
        The first factor lies in its original layout, without padding; nothing outside may be read.
    threads : int
        Threads that share the tasks, in as many chunks.
    prefetched : frozenset of Prefetch
        Operands with software prefetch.
    packing : ThreadCopies, optional
        Packing of the first factor by each chunk; the nest reads these copies.
    split : SplitK, optional
        Split of a reduction; the nest stores partial sums.
    non_temporal : int, optional
        Number of the factor that is loaded past the nearest cache.
    line_bytes : int
        Cache line that passes assume.
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
    packing: ThreadCopies | None = None
    split: SplitK | None = None
    non_temporal: int | None = None
    line_bytes: int = 64

    @property
    def sums(self) -> str:
        """Type of the accumulators."""
        return self.sums_dtype or self.operands[2].dtype

    @property
    def accessed(self) -> tuple[KernelOperand, ...]:
        """All operands that the loops index."""
        extra = (self.channels, self.residual)
        return (*self.operands, *(operand for operand in extra if operand is not None))

    def changed(self, change: Callable[[KernelOperand], KernelOperand], **fields: Any) -> Nest:
        """Return the nest with all that the loops index changed, and other fields replaced."""
        first, second, output = map(change, self.operands)
        channels = None if self.channels is None else change(self.channels)
        residual = None if self.residual is None else change(self.residual)
        indexed = {"operands": (first, second, output), "halo": tuple(map(change, self.halo))}
        indexed |= {"channels": channels, "residual": residual}
        return replace(self, **(indexed | fields))

    def indexed(self, change: Callable[[IndexExpr], IndexExpr], **fields: Any) -> Nest:
        """Return the nest with all index expressions changed, and other fields replaced."""

        def changed(operand: KernelOperand) -> KernelOperand:
            access = change(operand.access)
            # Searches make very many nests, in which most operands stay.
            if access is operand.access:
                return operand
            return KernelOperand(operand.parameter, operand.dtype, operand.elements, access)

        return self.changed(changed, **fields)

    def after(self, passes: Iterable[Pass]) -> Nest:
        """Return the nest after a sequence of passes."""
        return reduce(lambda nest, apply: apply(nest), passes, self)

    @property
    def task_count(self) -> int:
        return math.prod(loop.count for loop in self.tasks)

    @property
    def chunks(self) -> int:
        """Number of parallel chunks, of equal numbers of tasks."""
        return min(self.threads, self.task_count)

    @property
    def steps(self) -> tuple[Loop, ...]:
        """Loops over the points of a register tile."""
        names = {task.step for task in self.tasks}
        return tuple(loop for loop in self.inner if loop.name in names)

    @property
    def spatial_inner(self) -> tuple[Loop, ...]:
        """Inner loops over different outputs."""
        return tuple(loop for loop in self.inner if loop.kind is AxisKind.SPATIAL)

    @property
    def accumulators(self) -> int:
        """Number of output elements of a task."""
        return math.prod(loop.extent for loop in self.spatial_inner)

    @property
    def accumulator_access(self) -> IndexExpr:
        """Index of an accumulator: dense, row-major over the spatial inner loops."""
        strides = row_major_strides([loop.extent for loop in self.spatial_inner])
        return flat_index([IndexExpr.iterator(loop.name) for loop in self.spatial_inner], strides)

    def inner_loop(self, name: str) -> Loop:
        """Return an inner loop by name; raise KeyError if there is none."""
        return {loop.name: loop for loop in self.inner}[name]


Pass = Callable[[Nest], Nest]
"""Step of a schedule."""
