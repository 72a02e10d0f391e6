"""Buffers of an operator: which tensors lie in which memories while its statements are executed.

A tensor has a buffer in each memory in which an instruction reads or writes it, and one in each
memory on its way between these and main memory. The ways are the cheapest chains of moves; where
the neighbours of one end are not those of the other, one of the moves transposes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from cpembed.accelerator.moves import MoveChain, MoveKind, move_chains
from cpembed.accelerator.operand_rows import OperandRows
from cpembed.accelerator.problem import OperatorProblem, PlanningError, Step
from cpembed.hw.isa import InstructionSet, MemoryKind
from cpembed.ir.expression import Access
from cpembed.ir.index import IndexExpr

Lanes = tuple[tuple[int, int], ...]
"""Dimensions in the lanes of a row, with their blocks, outermost first."""


@dataclass(frozen=True)
class BufferSpec:
    """A tensor in rows of a memory while statements use it there, or while it passes through.

    Attributes
    ----------
    index : tuple of IndexExpr
        Index along each dimension over the shared axes.
    uses : tuple of (int, str)
        Statement and operand of its instruction; none for a buffer that the tensor passes through.
    lanes : tuple of (int, int)
        Dimensions in the lanes of a row, with their blocks, outermost first.
    steps : mapping of int to int
        Distance of elements in neighbouring rows, of dimensions where it is not 1.
    load, store : tuple of str
        Memories from which the tensor is moved here, and from here on; empty if it is not.
    role : str
        ``main``: the main statement alone uses it, and it has a residency of its own; ``chain``:
        it lives as long as a tile of the main statement's output; ``granule``: one statement uses
        it, and it holds what one of its executions needs.
    stage : int, optional
        Statement before which the tensor passes through on its way in, or after which it does on
        its way out.
    is_outgoing : bool
        True where the tensor passes through on its way out.
    """

    tensor: str
    memory: str
    dtype: str
    index: tuple[IndexExpr, ...]
    uses: tuple[tuple[int, str], ...]
    lanes: Lanes
    steps: Mapping[int, int]
    load: tuple[str, ...]
    store: tuple[str, ...]
    role: str
    is_home: bool = False
    stage: int | None = None
    is_outgoing: bool = False

    @property
    def key(self) -> tuple[str, str]:
        """Tensor and memory."""
        return self.tensor, self.memory

    @cached_property
    def axes(self) -> frozenset[str]:
        """Shared axes on which the box depends."""
        return frozenset(n for e in self.index for n in e.iterators)

    @property
    def first_use(self) -> int:
        """Statement that needs it first; of one on the way out, the statement that fills it."""
        return min((n for n, _ in self.uses), default=-1 if self.stage is None else self.stage)


def shared_index(step: Step, access: Access) -> tuple[IndexExpr, ...]:
    """Return an access of a statement over the shared axes."""
    return tuple(e.rename(lambda name: step.axes[name]) for e in access.index)


def buffer_specs(
    problem: OperatorProblem,
    machine: InstructionSet,
    all_steps: tuple[Step, ...],
    main: int,
    smallest: Mapping[str, int],
) -> tuple[BufferSpec, ...]:
    """Return the buffers of an operator.

    Parameters
    ----------
    problem : OperatorProblem
    machine : InstructionSet
    all_steps : tuple of Step
        The operator's statements.
    main : int
        Number of the main statement.
    smallest : mapping of str to int
        Size of each shared axis in the smallest tile of the main statement.

    Raises
    ------
    PlanningError
        If a tensor cannot reach the memory of an operand, or instructions need it in different
        layouts.
    """
    return tuple(_Builder(problem, machine, all_steps, main, smallest).specs())


class _Builder:
    """Makes the buffers of one operator."""

    def __init__(
        self,
        problem: OperatorProblem,
        machine: InstructionSet,
        all_steps: tuple[Step, ...],
        main: int,
        smallest: Mapping[str, int],
    ) -> None:
        self.problem, self.machine = problem, machine
        self.steps, self.main, self.smallest = all_steps, main, smallest
        self.uses: dict[tuple[str, str], list[tuple[int, str]]] = {}
        for step in all_steps:
            for operand, place in step.instruction.places.items():
                memory = machine.memories.get(place.memory)
                if place.dimensions and memory is not None and memory.kind is MemoryKind.ROWS:
                    key = step.tensor(operand), place.memory
                    self.uses.setdefault(key, []).append((step.number, operand))
        self.lanes: dict[tuple[str, str], Lanes] = {}
        self.row_steps: dict[tuple[str, str], dict[int, int]] = {}
        for (tensor, memory), users in self.uses.items():
            lanes, row_steps = _requirements(all_steps, tensor, users)
            self.lanes[tensor, memory] = lanes
            self.row_steps[tensor, memory] = row_steps
        self.written = {s.statement.output.tensor: s for s in all_steps}

    def specs(self) -> list[BufferSpec]:
        """Return all buffers, each after those that it gets its contents from."""
        specs: dict[tuple[str, str], BufferSpec] = {}
        leaving: list[BufferSpec] = []
        for tensor, memory in self.uses:
            spec = self._spec(tensor, memory)
            if self._is_written_in(tensor, memory):
                on_the_way = self._outgoing(spec)
                if on_the_way:
                    spec = replace(spec, store=on_the_way[0])
                    leaving += on_the_way[1]
                specs[spec.key] = spec
                continue
            for part in self._incoming(spec):
                specs[part.key] = part
        for spec in leaving:
            used = specs.get(spec.key)
            specs[spec.key] = spec if used is None else replace(used, store=spec.store)
        return list(specs.values())

    def _spec(self, tensor: str, memory: str) -> BufferSpec:
        """Return a buffer that nothing is moved to or from."""
        key = tensor, memory
        users = self.uses[key]
        number, operand = users[0]
        first = self.steps[number]
        output = self.steps[self.main].statement.output.tensor
        only_main = all(n == self.main for n, _ in users)
        role = "main"
        if tensor == output:
            role = "output"
        elif not only_main or tensor in self.written:
            role = "chain"
        return BufferSpec(
            tensor,
            memory,
            first.instruction.places[operand].dtype,
            self._widest_index(users),
            tuple(users),
            self.lanes[key],
            self.row_steps[key],
            (),
            (),
            role,
            tensor in self.problem.homes and self.problem.homes[tensor].memory == memory,
        )

    def _widest_index(self, users: Sequence[tuple[int, str]]) -> tuple[IndexExpr, ...]:
        """Return the index of the use that moves along the most axes, the first of several.

        Lowering refuses tilings whose box does not have what another use reads.
        """
        indices = [shared_index(self.steps[n], self.steps[n].access(o)) for n, o in users]
        return max(indices, key=lambda index: sum(len(e.iterators) for e in index))

    def _is_written_in(self, tensor: str, memory: str) -> bool:
        """True if an instruction writes a tensor in a memory."""
        return any(o in self.steps[n].instruction.outputs for n, o in self.uses[tensor, memory])

    def _start(self, tensor: str) -> str:
        """Return the memory in which a tensor lies before, or stays afterwards."""
        home = self.problem.homes.get(tensor)
        return self.machine.main.name if home is None else home.layout.memory

    def _incoming(self, spec: BufferSpec) -> list[BufferSpec]:
        """Return a buffer of a tensor that comes from elsewhere, after those on its way."""
        source = self._start(spec.tensor)
        if source == spec.memory:
            return [spec]
        if spec.tensor in self.written:
            source = _producer_memory(self.written[spec.tensor], spec.tensor)
        chains = self._chains(source, spec.memory, spec)
        chain = next((c for c in chains if self._fits(spec, c)), chains[0])
        memories = chain.memories
        if self.machine.main.name in memories[1:-1]:
            raise PlanningError(
                f"rejected: {spec.tensor} moves from {source} to {spec.memory} through "
                f"{self.machine.main.name}: store it in one program and load it in the next"
            )
        spec = replace(spec, load=memories[-2:])
        role = spec.role
        if self._holds_granules(spec):
            # What one execution needs lies in a small memory, the tensor's tile in a large one.
            spec = replace(spec, role="granule")
            role = role if len(memories) == 3 else "chain"
        elif len(memories) > 2:
            role = "chain"
            spec = replace(spec, role=role)
        parts: list[BufferSpec] = []
        for place in range(1, len(memories) - 1):
            if (spec.tensor, memories[place]) in self.uses:
                continue
            part = replace(
                spec,
                memory=memories[place],
                uses=(),
                lanes=self._lanes_at(chain, place, spec),
                steps={},
                load=memories[place - 1 : place + 1],
                role=role,
                stage=spec.first_use,
            )
            parts.append(part)
        return [*parts, spec]

    def _holds_granules(self, spec: BufferSpec) -> bool:
        """True for a buffer of one statement that is filled from a larger one."""
        first, last = (self.machine.memories[m] for m in spec.load)
        is_smaller = (last.capacity_bytes or 0) < (first.capacity_bytes or 0)
        return first.kind is MemoryKind.ROWS and is_smaller and len({n for n, _ in spec.uses}) == 1

    def _fits(self, spec: BufferSpec, chain: MoveChain) -> bool:
        """True if the smallest tile of a tensor leaves room, or parts of it come from elsewhere."""
        if self._holds_granules(replace(spec, load=chain.memories[-2:])):
            return True
        blocks = dict(spec.lanes)
        rows = 1
        for dimension, e in enumerate(spec.index):
            size = 1 + sum(abs(t.coefficient) * (self.smallest[t.iterator] - 1) for t in e.terms)
            rows *= -(-size // blocks.get(dimension, 1))
        # The other half is for other tensors, or for a second copy.
        return 2 * rows <= self.machine.memories[spec.memory].rows

    def _outgoing(self, spec: BufferSpec) -> tuple[tuple[str, ...], list[BufferSpec]] | None:
        """Return where a buffer's tensor is stored to, and the buffers on its way to its home."""
        end = self._start(spec.tensor)
        if spec.tensor not in self.problem.specification.outputs or end == spec.memory:
            return None
        memories = self._chains(spec.memory, end, spec)[0].memories
        if len(memories) == 2:
            return memories, []
        last_writer = max(n for n, o in spec.uses if o in self.steps[n].instruction.outputs)
        parts = [
            replace(
                spec,
                memory=memories[place],
                uses=(),
                load=memories[place - 1 : place + 1],
                store=memories[place:] if place == len(memories) - 2 else (),
                role="chain",
                stage=last_writer,
                is_outgoing=True,
            )
            for place in range(1, len(memories) - 1)
        ]
        return (), parts

    def _chains(self, source: str, target: str, spec: BufferSpec) -> tuple[MoveChain, ...]:
        """Return moves of a tensor between two memories, the cheapest first."""
        first = self._neighbours(spec.tensor, source)
        last = self._neighbours(spec.tensor, target)
        kinds = (MoveKind.COPY,)
        if first is not None and last is not None and first != last:
            # Without a move that transposes, elements are copied one by one.
            kinds = (MoveKind.TRANSPOSE, MoveKind.COPY)
        for kind in kinds:
            chains = move_chains(self.machine, source, target, spec.dtype, kind)
            if chains:
                return chains
        raise PlanningError(
            f"rejected: {self.machine.name} has no copies of {spec.dtype} from {source} to "
            f"{target}, where {spec.tensor} is needed: describe "
            f"{'a store' if target == self.machine.main.name else 'a load'}, or a move between the "
            "two"
        )

    def _neighbours(self, tensor: str, memory: str) -> int | None:
        """Return the dimension of a tensor along which neighbours lie; None if any will do."""
        if (tensor, memory) in self.lanes:
            lanes = self.lanes[tensor, memory]
            return lanes[-1][0] if lanes else None
        home = self.problem.homes.get(tensor)
        if home is not None and home.memory == memory:
            return next((d.dimension for d in home.layout.lanes if d.stride == 1), None)
        specification = self.problem.specification
        if tensor in self.problem.layouts:
            return self.problem.layouts[tensor].order[-1]
        shape = specification.operands[tensor].shape
        is_free = tensor in specification.constants or not self.problem.keeps_order
        return None if is_free or not shape else len(shape) - 1

    def _lanes_at(self, chain: MoveChain, place: int, spec: BufferSpec) -> Lanes:
        """Return the lanes of a tensor in a memory on its way."""
        is_turned = any(m.kind is MoveKind.TRANSPOSE for m in chain.moves[:place])
        is_straight = all(m.kind is MoveKind.COPY for m in chain.moves)
        neighbours = self._neighbours(spec.tensor, chain.memories[0])
        if is_turned or is_straight or neighbours is None:
            return spec.lanes
        move = chain.moves[place - 1]
        return (
            (neighbours, math.prod(move.instruction.lane_radices(move.instruction.outputs[0]))),
        )


def _producer_memory(step: Step, tensor: str) -> str:
    for operand in step.instruction.outputs:
        if step.tensor(operand) == tensor:
            return step.instruction.places[operand].memory
    raise PlanningError(f"rejected: no operand of {step.instruction.name} writes {tensor}")


def _requirements(
    all_steps: tuple[Step, ...], tensor: str, users: list[tuple[int, str]]
) -> tuple[Lanes, dict[int, int]]:
    """Return the lanes and the steps in rows that all uses of a buffer need."""
    lanes: Lanes | None = None
    row_steps: dict[int, int] = {}
    for number, operand in users:
        rows = OperandRows(all_steps[number], operand)
        use_lanes = rows.lane_blocks()
        if lanes is None:
            lanes = use_lanes
        elif lanes != use_lanes:
            lanes = _merged(lanes, use_lanes, tensor)
        for dimension, distance in rows.row_distances():
            if row_steps.setdefault(dimension, distance) != distance:
                raise PlanningError(
                    f"rejected: two statements read {tensor} with different steps along dimension "
                    f"{dimension}: give it a buffer for each"
                )
    return lanes or (), row_steps


def _merged(first: Lanes, second: Lanes, tensor: str) -> Lanes:
    if [d for d, _ in first] != [d for d, _ in second]:
        raise PlanningError(
            f"rejected: two instructions need {tensor} with different dimensions in the lanes of "
            "a row: move it between two buffers by an instruction that transposes"
        )
    return tuple((d, max(a, b)) for (d, a), (_, b) in zip(first, second, strict=True))
