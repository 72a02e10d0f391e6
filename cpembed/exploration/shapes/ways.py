"""All ways in which a shape computes a layer of a network, by where they have its tensors."""

from __future__ import annotations

import math
from dataclasses import dataclass

from cpembed.embedding.checks import check_embedding
from cpembed.embedding.constraint_set import ConstraintSet
from cpembed.embedding.cpsat import Status
from cpembed.embedding.embedding import Embedding
from cpembed.errors import TransformError
from cpembed.exploration.shapes.cells import Searched, in_time, searched
from cpembed.exploration.shapes.embedded import EXECUTIONS_ONLY, Embedded, embedded_of
from cpembed.exploration.shapes.shape import Shape, instruction_of
from cpembed.exploration.shapes.tensor_layout import TensorLayout, tensor_layout
from cpembed.ir.computation import Computation
from cpembed.selection.best_first import best_first
from cpembed.selection.candidate import derive_candidate
from cpembed.selection.overheads import overheads
from cpembed.time_limit import Clock
from cpembed.transform.derive import LayoutCache
from cpembed.transform.program import DerivedProgram
from cpembed.transform.proof import require


@dataclass(frozen=True)
class Port:
    """A tensor that a layer reads or writes as an operand: its shape in the network, the bytes of
    an element there."""

    operand: str
    shape: tuple[int, ...]
    item_bytes: int


@dataclass(frozen=True)
class Use:
    """A computation as a network has it: the tensors that it reads, constants left out, and the
    one that it writes; ``adds``: it adds another one like that, in its layout."""

    workload: Computation
    reads: tuple[Port, ...]
    writes: Port
    adds: bool = False


@dataclass(frozen=True)
class Read:
    """Where a layer finds a tensor. ``padded``: with a halo or padding around it, or more than
    once, which what comes from outside does not have."""

    layout: TensorLayout
    padded: bool


@dataclass(frozen=True)
class Way:
    """An embedding: its executions, and the layouts of its tensors in the order of the ports."""

    executions: int
    reads: tuple[Read, ...]
    writes: TensorLayout
    embedding: Embedding
    exchanged: bool


@dataclass(frozen=True)
class Ways:
    """Of a shape in a layer: one for each layouts, that of the fewest executions; those left out
    that can be in no best choice. Ways that were not looked at have ``bound`` executions or more,
    infinite where all were."""

    ways: tuple[Way, ...]
    bound: float = math.inf


def ways_of(
    use: Use, constraints: ConstraintSet, shape: Shape, unit: int, seconds: float | None
) -> Ways:
    """The ways of a shape; ``unit``: bytes whose copying is worth an execution."""
    clock = Clock(seconds)
    found = searched(use.workload, constraints, shape, seconds)
    if found.result.status is Status.INFEASIBLE:
        return Ways(())
    ways = _Ways(use, shape, found, unit)
    in_time(clock, ways.collect)
    least = math.ceil(use.workload.macs / shape.macs)
    bound = ways.bound if found.result.complete else min(ways.bound, float(least))
    needed = ways.needed()
    if found.result.problem is not None:
        for way in needed:
            check_embedding(found.result.problem, found.constraints, way.embedding)
    return Ways(needed, bound)


def proven(workload: Computation, shape: Shape, way: Way) -> Embedded:
    """A way that was chosen, its program proven."""
    candidate = derive_candidate(workload, instruction_of(shape), way.embedding)
    require(candidate.program)
    cost = overheads(candidate.program)
    return embedded_of(candidate, cost, exchanged=way.exchanged, first=True)


class _Ways:
    """Looks at embeddings in ascending order of their executions until no further one can be in a
    best choice.

    Another way can stand in the place of one where what the other reads is copied, and for the
    readers what the first wrote: a way whose executions exceed another one's by more than these
    copies is never needed.
    """

    def __init__(self, use: Use, shape: Shape, found: Searched, unit: int) -> None:
        self.found: dict[tuple[tuple[Read, ...], TensorLayout], Way] = {}
        self.bound = 0.0
        self._use, self._shape, self._searched, self._unit = use, shape, found, unit
        self._enough = math.inf

    def collect(self) -> None:
        layouts: LayoutCache = {}
        instruction = instruction_of(self._shape)
        workload = self._use.workload
        for item in best_first(
            workload, instruction, self._searched.result.embeddings, EXECUTIONS_ONLY
        ):
            self.bound = float(item.lower.calls)
            if item.lower.calls * self._unit >= self._enough:
                break
            try:
                candidate = derive_candidate(workload, instruction, item.embedding, layouts)
            except TransformError:
                continue
            self._add(candidate.program, item.embedding)
        self.bound = math.inf

    def needed(self) -> tuple[Way, ...]:
        """Of the ways that were looked at. What is out of time may still go on and add some."""
        found = list(self.found.values())
        return tuple(w for w in found if w.executions * self._unit < self._enough)

    def _add(self, program: DerivedProgram, embedding: Embedding) -> None:
        use = self._use
        reads = tuple(_read(program, port) for port in use.reads)
        writes = _layout(program, use.writes, stored=True)
        way = Way(program.calls, reads, writes, embedding, self._searched.exchanged)
        known = self.found.get((reads, writes))
        if known is None or way.executions < known.executions:
            self.found[reads, writes] = way
        copied = sum(
            read.layout.moved * port.item_bytes for read, port in zip(reads, use.reads, strict=True)
        )
        copied += 2 * writes.elements * use.writes.item_bytes
        if use.adds:
            copied += writes.moved * use.writes.item_bytes
        self._enough = min(self._enough, way.executions * self._unit + copied)


def _layout(program: DerivedProgram, port: Port, *, stored: bool) -> TensorLayout:
    operand = next(o for o in program.operands if o.name == port.operand)
    return tensor_layout(operand, port.shape, stored=stored)


def _read(program: DerivedProgram, port: Port) -> Read:
    operand = next(o for o in program.operands if o.name == port.operand)
    layout = tensor_layout(operand, port.shape, stored=False)
    return Read(layout, operand.elements != math.prod(port.shape))
