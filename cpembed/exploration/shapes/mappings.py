"""The embeddings of a shape in a layer of a network that differ in the layouts of its tensors."""

from __future__ import annotations

import math
from dataclasses import dataclass

from cpembed.cost.candidate import Candidate, derive_candidate, overheads
from cpembed.embedding.checks import check_embedding
from cpembed.embedding.constraint_set import ConstraintSet
from cpembed.embedding.cpsat import Status
from cpembed.embedding.embedding import Embedding
from cpembed.exploration.shapes.cells import (
    Cell,
    ProgramWalk,
    ProvenEmbedding,
    ShapeSearch,
    search_shape,
)
from cpembed.exploration.shapes.network import Port, Use
from cpembed.exploration.shapes.shape import Shape, instruction_of
from cpembed.exploration.shapes.tensor_layout import TensorLayout, tensor_layout
from cpembed.time_limit import Clock
from cpembed.transform.program import DerivedProgram, PackedOperand


@dataclass(frozen=True)
class Read:
    """The layout in which a layer reads a tensor.

    ``padded``: with a halo or padding around the tensor, or with elements more than once, none of
    which an input of the network has.
    """

    layout: TensorLayout
    padded: bool


@dataclass(frozen=True)
class LayerMapping:
    """An embedding with its executions and the layouts of its tensors, in the order of ports."""

    executions: int
    reads: tuple[Read, ...]
    writes: TensorLayout
    embedding: Embedding
    commuted: bool

    @property
    def layouts(self) -> tuple[TensorLayout, ...]:
        """The layouts that it reads, then the one that it writes."""
        return (*(read.layout for read in self.reads), self.writes)


@dataclass(frozen=True)
class LayerMappings:
    """The mappings of a shape in a layer, for each layouts the one of the fewest executions.

    Those that can be in no best choice are left out. Mappings that were not looked at have
    ``bound`` executions or more, infinite where all were.
    """

    mappings: tuple[LayerMapping, ...]
    bound: float = math.inf


def mappings_of(
    use: Use, constraints: ConstraintSet, shape: Shape, unit: int, seconds: float | None
) -> LayerMappings:
    """Return the mappings of a shape in a layer.

    Parameters
    ----------
    use
        The layer with its tensors.
    constraints
        The set under which the layer is embedded.
    shape
        The shape of the instruction.
    unit
        Bytes whose copying is worth an execution.
    seconds
        Time limit; None for no limit.
    """
    clock, cell = Clock(seconds), Cell(use.workload, constraints, shape)
    search = search_shape(cell, seconds)
    result = search.result
    if result.status is Status.INFEASIBLE:
        return LayerMappings(())
    walk = _MappingWalk(use, cell, search, unit)
    walk.run(clock)
    bound = math.inf if walk.complete else float(walk.executions)
    if not result.complete:
        bound = min(bound, float(cell.ideal))
    mappings = walk.needed()
    if result.problem is not None:
        for mapping in mappings:
            check_embedding(result.problem, search.constraints, mapping.embedding)
    return LayerMappings(mappings, bound)


def prove_mapping(cell: Cell, mapping: LayerMapping) -> ProvenEmbedding:
    """Return the embedding of a mapping of a cell with its program proven."""
    candidate = derive_candidate(cell.workload, instruction_of(cell.shape), mapping.embedding)
    cost = overheads(candidate.program)
    return ProvenEmbedding.of(candidate, cost, commuted=mapping.commuted, first_ranked=True)


class _MappingWalk(ProgramWalk):
    """Collects mappings until no further one can be in a best choice.

    One mapping can replace another where the tensors that it reads are copied, and for the readers
    those that the other one wrote. So a mapping whose executions exceed another's by more than
    these copies is never needed.
    """

    def __init__(self, use: Use, cell: Cell, search: ShapeSearch, unit: int) -> None:
        super().__init__(cell, search)
        self._best: dict[tuple[tuple[Read, ...], TensorLayout], LayerMapping] = {}
        self._use, self._unit = use, unit
        self._commuted = search.commuted
        self._limit = math.inf

    def needed(self) -> tuple[LayerMapping, ...]:
        """Return the mappings that can be in a best choice."""
        return tuple(m for m in self._best.values() if not self.ends_at(m.executions))

    def ends_at(self, executions: int) -> bool:
        return executions * self._unit >= self._limit

    def add(self, candidate: Candidate) -> None:
        use, program = self._use, candidate.program
        reads = tuple(_read(program, port) for port in use.reads)
        output = _operand(program, use.writes)
        writes = tensor_layout(output, use.writes.shape, stored=True)
        mapping = LayerMapping(
            program.calls, reads, writes, candidate.embedding, commuted=self._commuted
        )
        best = self._best.get((reads, writes))
        if best is None or mapping.executions < best.executions:
            self._best[reads, writes] = mapping
        copied = sum(
            read.layout.moved * port.item_bytes for read, port in zip(reads, use.reads, strict=True)
        )
        # The result is copied for readers that expect another layout: read and written.
        copied += 2 * writes.elements * use.writes.item_bytes
        if use.adds:
            # The tensor that is added has to lie as the result does.
            copied += writes.moved * use.writes.item_bytes
        self._limit = min(self._limit, mapping.executions * self._unit + copied)


def _operand(program: DerivedProgram, port: Port) -> PackedOperand:
    return next(operand for operand in program.operands if operand.name == port.operand)


def _read(program: DerivedProgram, port: Port) -> Read:
    operand = _operand(program, port)
    layout = tensor_layout(operand, port.shape, stored=False)
    return Read(layout, operand.elements != math.prod(port.shape))
