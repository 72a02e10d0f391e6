"""The planner's template for one operator: which buffers it needs and which axes it may tile.

One statement, the *main* one, has the most points. Its spatial axes that all statements share are
tiled, and its reductions that no other statement has. The other statements are executed for each
tile of the main statement's output, before or after it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from cpembed.accelerator.buffer_specs import BufferSpec, buffer_specs, shared_index
from cpembed.accelerator.matching import Match
from cpembed.accelerator.operand_rows import OperandRows
from cpembed.accelerator.problem import (
    OperatorProblem,
    PlanningError,
    Step,
    steps,
)
from cpembed.accelerator.specification import Statement
from cpembed.hw.isa import InstructionSet, IsaInstruction
from cpembed.ir.dtypes import bits
from cpembed.ir.index import IndexExpr


@dataclass(frozen=True)
class Template:
    """Common part of all plans of an operator.

    Attributes
    ----------
    extents : mapping of str to int
        Extent of each shared axis, in whole granules where executions need them.
    granules : mapping of str to int
        Smallest tile of each axis that is tiled.
    spatial, reductions : frozenset of str
        Axes of the main statement that may be tiled.
    direct : tuple of (int, str)
        Operands, by statement, that instructions access in main memory.
    """

    problem: OperatorProblem
    machine: InstructionSet
    steps: tuple[Step, ...]
    main: int
    extents: Mapping[str, int]
    true_extents: Mapping[str, int]
    granules: Mapping[str, int]
    spatial: frozenset[str]
    reductions: frozenset[str]
    buffers: tuple[BufferSpec, ...]
    direct: tuple[tuple[int, str], ...]
    scalars: tuple[tuple[int, str], ...] = field(default=())

    @cached_property
    def fine(self) -> frozenset[str]:
        """Axes that may be tiled below the size of an execution: not in lanes, and not padded."""
        in_lanes = set[str]()
        for buffer in self.buffers:
            for dimension, _ in buffer.lanes:
                in_lanes.update(buffer.index[dimension].iterators)
        padded = frozenset[str]().union(*(step.padded for step in self.steps))
        return (self.spatial | self.reductions) - in_lanes - padded

    @cached_property
    def bank_groups(self) -> Mapping[tuple[str, str], int]:
        """Number of each buffer's group within its memory; groups share no bank.

        All buffers of a memory are one group unless an instruction needs two of them in different
        banks.
        """
        conflicts = set(self._bank_conflicts())
        groups: dict[tuple[str, str], int] = {}
        for buffer in self.buffers:
            used_groups = {
                number
                for key, number in groups.items()
                if (key, buffer.key) in conflicts or (buffer.key, key) in conflicts
            }
            groups[buffer.key] = next(n for n in itertools.count() if n not in used_groups)
        return groups

    def _bank_conflicts(self) -> Iterator[tuple[tuple[str, str], tuple[str, str]]]:
        """Yield pairs of buffers that an instruction needs in different banks."""
        for step in self.steps:
            for first, second in step.instruction.banks_differ:
                memory = step.instruction.places[first].memory
                pair = (step.tensor(first), memory), (step.tensor(second), memory)
                if pair[0] == pair[1]:
                    raise PlanningError(
                        f"rejected: {step.instruction.name} reads {first} and {second} in "
                        f"different banks of {memory}, and both are {pair[0][0]}: use a copy of it"
                    )
                yield pair

    def buffer(self, tensor: str, memory: str) -> BufferSpec:
        """Return the buffer of a tensor in a memory."""
        return next(b for b in self.buffers if b.key == (tensor, memory))

    def variant(self, instruction: IsaInstruction, accumulates: bool) -> IsaInstruction | None:
        """Return the instruction that differs only in whether it goes on from its output."""
        for alternative in self.machine.instructions.values():
            if (
                alternative.accumulates == accumulates
                and alternative.name != instruction.name
                and alternative.computation.statements == instruction.computation.statements
                and alternative.places == instruction.places
                and alternative.axes == instruction.axes
            ):
                return alternative
        return None

    def needs_fill(self, step: Step) -> bool:
        """True if a statement's sums have to be set to zero by another instruction."""
        if step.statement.computation.statement.reduction is None or step.statement.accumulates:
            return False
        return step.instruction.accumulates and self.variant(step.instruction, False) is None

    def extent(self, step: Step, axis: str) -> int:
        """Return how far the executions of a statement go along a shared axis.

        Those that write main memory in sizes set at run time end with the tensor; in rows, others
        need whole granules.
        """
        is_exact = self._writes_main(step) and axis not in step.padded
        return self.true_extents[axis] if is_exact else self.extents[axis]

    def stored_extent(self, step: Step, axis: str) -> int:
        """Return how far a statement needs its output in main memory along a shared axis.

        What instructions write in rows is copied to main memory without margins.
        """
        return self.extent(step, axis) if self._writes_main(step) else self.true_extents[axis]

    def _writes_main(self, step: Step) -> bool:
        """True if a statement's instruction writes main memory."""
        places = step.instruction.places
        return any(places[o].memory == self.machine.main.name for o in step.instruction.outputs)

    def is_written(self, tensor: str) -> bool:
        """True if a statement of this operator writes a tensor."""
        return any(step.statement.output.tensor == tensor for step in self.steps)

    def last_writer(self, spec: BufferSpec) -> int | None:
        """Return the statement that completes a buffer; None if instructions only read it."""
        writers = (n for n, o in spec.uses if o in self.steps[n].instruction.outputs)
        return max(writers, default=None)

    @property
    def main_step(self) -> Step:
        return self.steps[self.main]


def is_possible(statement: Statement, match: Match) -> bool:
    """Return False for a match whose operands no layout suits."""
    step = Step.of_match(statement, match)
    try:
        for operand, place in match.instruction.places.items():
            if place.dimensions and (place.rows or place.lanes):
                list(OperandRows(step, operand).row_distances())
            elif place.dimensions:
                _check_direct(step, operand)
    except PlanningError:
        return False
    return True


def exact_template(problem: OperatorProblem, machine: InstructionSet) -> Template:
    """Return the template of an operator with its matches as they are.

    Raises
    ------
    PlanningError
        If a tensor cannot reach the memory of an operand, or instructions need it in different
        layouts.
    """
    all_steps = steps(problem)
    true_extents: dict[str, int] = {}
    padding: dict[str, int] = {}
    for step in all_steps:
        for axis in step.statement.computation.axes:
            name = step.axes[axis.name]
            true_extents[name] = axis.extent
            if name in step.padded:
                padding[name] = math.lcm(padding.get(name, 1), step.granules[name])
    extents = {a: -(-e // padding.get(a, 1)) * padding.get(a, 1) for a, e in true_extents.items()}
    _check_sums(all_steps)
    main = _main_statement(all_steps)
    spatial, reductions = _tiled_axes(all_steps, main)
    granules = {a: min(_granule(all_steps, main, a), extents[a]) for a in spatial | reductions}
    for axis in all_steps[main].axes.values():
        granules.setdefault(axis, min(all_steps[main].granules[axis], extents[axis]))
    smallest = {**extents, **{a: granules[a] for a in spatial | reductions}}
    buffers = buffer_specs(problem, machine, all_steps, main, smallest)
    direct: list[tuple[int, str]] = []
    scalars: list[tuple[int, str]] = []
    for step in all_steps:
        for operand, place in step.instruction.places.items():
            if not place.dimensions:
                scalars.append((step.number, operand))
            elif place.memory == machine.main.name:
                _check_direct(step, operand)
                direct.append((step.number, operand))
    return Template(
        problem,
        machine,
        all_steps,
        main,
        extents,
        true_extents,
        granules,
        spatial,
        reductions,
        buffers,
        tuple(direct),
        tuple(scalars),
    )


def _granule(all_steps: tuple[Step, ...], main: int, axis: str) -> int:
    """Return the smallest tile of an axis that every statement executes on within the tile.

    A statement that covers an axis in whole granules would reach beyond a smaller tile.
    """
    return math.lcm(
        all_steps[main].granules[axis],
        *(step.granules[axis] for step in all_steps if axis in step.padded),
    )


def _check_sums(all_steps: tuple[Step, ...]) -> None:
    """Check that sums go on in the memory in which they begin."""
    memories: dict[str, str] = {}
    for step in all_steps:
        (operand,) = step.instruction.outputs
        tensor, memory = step.tensor(operand), step.instruction.places[operand].memory
        if step.statement.accumulates and memories.get(tensor, memory) != memory:
            raise PlanningError(
                f"rejected: {tensor} begins in {memories[tensor]} and goes on in {memory}: use an "
                f"instruction that begins it in {memory}"
            )
        memories[tensor] = memory


def _check_direct(step: Step, operand: str) -> None:
    """Check that an operand in main memory does not walk parts of two dimensions at once."""
    shape = step.statement.computation.operand(step.access(operand).operand).shape
    for axis in step.instruction.axes:
        walks = [w for w in OperandRows(step, operand).walks(axis.name) if w.size > 1]
        if any(walk.size < shape[walk.dimension] for walk in walks[1:]):
            raise PlanningError(
                f"rejected: {step.instruction.name} walks parts of two dimensions of "
                f"{step.tensor(operand)} in main memory at once, which have no common stride: "
                "walk one of them"
            )


def _main_statement(all_steps: tuple[Step, ...]) -> int:
    """Return the statement with the most points; the first reduction of them."""
    return max(
        range(len(all_steps)),
        key=lambda n: (
            all_steps[n].statement.computation.macs,
            bool(all_steps[n].reductions),
            -n,
        ),
    )


def _tiled_axes(all_steps: tuple[Step, ...], main: int) -> tuple[frozenset[str], frozenset[str]]:
    step = all_steps[main]
    other_steps = [s for s in all_steps if s.number != main]
    spatial = frozenset(step.axes.values()) - step.reductions
    for other_step in other_steps:
        spatial &= frozenset(other_step.axes.values()) - other_step.reductions
    for temporary, index in _temporary_indices(all_steps):
        del temporary
        # A tile of a temporary that is read beside its own index would need its neighbours.
        for first, *rest in zip(*index, strict=True):
            names = {n for e in (first, *rest) for n in e.iterators}
            if any(e != first or e.single_iterator is None for e in rest) or not first.terms:
                spatial -= names
    reductions = step.reductions
    for other_step in other_steps:
        reductions -= frozenset(other_step.axes.values())
    return spatial, reductions


def _temporary_indices(
    all_steps: tuple[Step, ...],
) -> Iterator[tuple[str, list[tuple[IndexExpr, ...]]]]:
    """Yield each tensor that a statement writes with the shared indices of all its accesses."""
    uses: dict[str, list[tuple[IndexExpr, ...]]] = {}
    written = {s.statement.output.tensor for s in all_steps}
    for step in all_steps:
        computation = step.statement.computation
        for access in (*computation.reads, computation.statement.store):
            tensor = computation.operand(access.operand).tensor
            if tensor in written:
                uses.setdefault(tensor, []).append(shared_index(step, access))
    yield from uses.items()


def element_bits(dtype: str) -> int:
    """Return the bits of an element in a memory."""
    return bits(dtype)
