"""Graph of memories with copy instructions as edges, and the cheapest chains in it.

A move is a form of an instruction that writes what it reads: a copy of one, two or three
dimensions, one that repeats elements along a dimension, one that exchanges rows and lanes, or one
between element types. Registers are set from immediates by configuration instructions.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from cpembed.accelerator.instruction_forms import InstructionForm, instruction_forms
from cpembed.hw.isa import InstructionSet, IsaInstruction, OperandPlace
from cpembed.ir.computation import Computation
from cpembed.ir.dtypes import holds
from cpembed.ir.expression import Access, copied_read

_MOST_CHAINS = 8
"""Maximum number of chains that are returned."""

_LONGEST_CHAIN = 4
"""Maximum number of moves of a chain; a machine has a few memories."""


class MoveKind(StrEnum):
    """Effect of a move on the order of the elements."""

    COPY = "copy"
    """Neighbours stay neighbours."""
    BROADCAST = "broadcast"
    """Each element is repeated along a dimension."""
    TRANSPOSE = "transpose"
    """Another dimension becomes the one of neighbours."""


@dataclass(frozen=True)
class Move:
    """A form of an instruction that copies elements from a memory to a memory.

    Attributes
    ----------
    form : InstructionForm
    operand : str
        Operand that is read.
    source, target : str
        Memories.
    source_dtype, target_dtype : str
        Element types in them; every value of the first is one of the second.
    repeated : tuple of str
        Axes of the instruction along which elements are repeated.
    """

    form: InstructionForm
    operand: str
    source: str
    target: str
    source_dtype: str
    target_dtype: str
    kind: MoveKind
    repeated: tuple[str, ...] = ()

    @property
    def instruction(self) -> IsaInstruction:
        """Instruction of the form."""
        return self.form.instruction

    @property
    def is_plain(self) -> bool:
        """True for a copy as it is, without values in registers or another element type."""
        return not self.form.values and self.source_dtype == self.target_dtype

    @property
    def cycles_per_element(self) -> float:
        """Cycles of an execution of the largest size, for each element that it writes."""
        instruction = self.instruction
        elements = math.prod(axis.maximum for axis in instruction.axes)
        return instruction.occupied_cycles({}) / elements


@dataclass(frozen=True)
class MoveChain:
    """Moves one after the other, each from where the one before wrote."""

    moves: tuple[Move, ...]

    @property
    def cycles_per_element(self) -> float:
        """Cycles that all moves occupy their units, for each element."""
        return sum(move.cycles_per_element for move in self.moves)

    @property
    def memories(self) -> tuple[str, ...]:
        """Memories that hold the elements, from the first to the last."""
        return (self.moves[0].source, *(move.target for move in self.moves))

    def __str__(self) -> str:
        return ", ".join(move.instruction.name for move in self.moves)


@lru_cache(maxsize=64)
def moves(machine: InstructionSet) -> tuple[Move, ...]:
    """Return all moves of a machine."""
    return tuple(
        move
        for name in machine.instructions
        for form in instruction_forms(machine, name)
        for move in _moves_of(form)
    )


def _moves_of(form: InstructionForm) -> Iterator[Move]:
    computation = form.computation
    statement = computation.statement
    access = copied_read(statement.value)
    if statement.reduction is not None or access is None:
        return
    if not form.instruction.axes or access.operand in form.scalars:
        return
    output = computation.output
    source_dtype = computation.operand(access.operand).dtype
    # A conversion that loses nothing keeps the elements.
    if source_dtype != output.dtype and not holds(output.dtype, source_dtype):
        return
    places = form.instruction.places
    source, target = places[access.operand], places[output.name]
    if not is_plain(access) or not is_plain(statement.store):
        return
    repeated = tuple(axis.name for axis in computation.axes if axis.name not in access.iterators)
    kind = _kind(computation, access, source, target, repeated)
    yield Move(
        form,
        access.operand,
        source.memory,
        target.memory,
        source_dtype,
        output.dtype,
        kind,
        repeated,
    )


def is_plain(access: Access) -> bool:
    """True if each dimension is indexed by one axis."""
    return all(index.single_iterator is not None for index in access.index)


def _kind(
    computation: Computation,
    access: Access,
    source: OperandPlace,
    target: OperandPlace,
    repeated: tuple[str, ...],
) -> MoveKind:
    if repeated:
        return MoveKind.BROADCAST
    neighbours = [
        _neighbours(a, place)
        for a, place in ((access, source), (computation.statement.store, target))
    ]
    return MoveKind.COPY if neighbours[0] == neighbours[1] else MoveKind.TRANSPOSE


def _neighbours(access: Access, place: OperandPlace) -> str | None:
    """Return the axis along which an operand's neighbours lie."""
    if not place.dimensions:
        return None
    dimension = place.lanes[-1].axis if place.lanes else place.dimensions[-1]
    position = place.dimensions.index(dimension)
    return access.index[position].single_iterator if position < len(access.index) else None


def move_chains(
    machine: InstructionSet,
    source: str,
    target: str,
    dtype: str,
    kind: MoveKind = MoveKind.COPY,
) -> tuple[MoveChain, ...]:
    """Return the cheapest chains of plain moves from a memory to a memory.

    Parameters
    ----------
    machine : InstructionSet
    source, target : str
        Names of the memories. If they are the same, a chain has a move at least.
    dtype : str
        Element type in all of them.
    kind : MoveKind
        What the chain does with the order of the elements: all moves copy but for one, of this
        kind.

    Returns
    -------
    tuple of MoveChain
        At most eight chains, the fewest cycles for each element first; no memory is visited twice.
        Empty where no chain exists.
    """
    edges: dict[str, list[Move]] = {}
    for move in moves(machine):
        if move.is_plain and move.source_dtype == dtype:
            edges.setdefault(move.source, []).append(move)
    # Paths in the order of their costs: with positive costs, the first ones are the cheapest.
    order = itertools.count()
    queue: list[tuple[float, int, tuple[Move, ...]]] = []
    chains: list[MoveChain] = []

    def extend(cost: float, path: tuple[Move, ...], place: str) -> None:
        visited = {m.source for m in path}
        has_kind = any(m.kind is not MoveKind.COPY for m in path)
        for move in edges.get(place, ()):
            if move.kind is not MoveKind.COPY and (has_kind or move.kind is not kind):
                continue
            returns = move.target in visited or move.target == place
            if returns and move.target != target:
                continue
            added = cost + move.cycles_per_element
            heapq.heappush(queue, (added, next(order), (*path, move)))

    extend(0.0, (), source)
    while queue and len(chains) < _MOST_CHAINS:
        cost, _, path = heapq.heappop(queue)
        end = path[-1].target
        if end == target and (kind is MoveKind.COPY or any(m.kind is kind for m in path)):
            chains.append(MoveChain(path))
        elif len(path) < _LONGEST_CHAIN:
            extend(cost, path, end)
    return tuple(chains)
