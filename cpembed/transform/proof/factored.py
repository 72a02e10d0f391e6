"""Lemmas about one operand's layout, kept for all programs that have it.

Every method answers True only where lemmas imply the statement; False says nothing.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from cpembed.hw.instruction import Instruction, OperandMemory, StrideRule
from cpembed.ir.computation import Computation
from cpembed.transform.program import DerivedProgram, Loop, PackedOperand
from cpembed.transform.proof.general import absorbing
from cpembed.transform.proof.lemmas import (
    Goal,
    Plain,
    Term,
    bijective,
    equal,
    excluded,
    holds,
    independent,
    injective,
    inside,
    onto,
    plain,
    values,
)


@dataclass(frozen=True)
class Wanted:
    """An original dimension of an operand as the workload indexes it, over its axes."""

    index: Plain
    axes: tuple[str, ...]
    size: int


class WorkloadFacts:
    """Facts about a workload that the lemmas need, the same for all its programs."""

    def __init__(self, workload: Computation) -> None:
        self.sizes = workload.extents
        self.wanted: dict[str, tuple[Wanted, ...]] = {}
        for operand in workload.operands:
            indices = workload.access(operand.name).index
            self.wanted[operand.name] = tuple(
                Wanted(plain(index, self.sizes), index.iterators, size)
                for index, size in zip(indices, operand.shape, strict=True)
            )
        self.axes = {
            name: tuple(dict.fromkeys(axis for dimension in found for axis in dimension.axes))
            for name, found in self.wanted.items()
        }
        self.witnesses = {axis: self._witnesses(workload, axis) for axis in self.sizes}

    def _witnesses(self, workload: Computation, axis: str) -> tuple[tuple[str, int], ...]:
        """Original dimensions, by operand and position, that an axis moves and that undo a point
        out of their shape; those first that fewer axes move."""
        found = [
            (len(dimension.axes), (name, position))
            for name in absorbing(workload)
            for position, dimension in enumerate(self.wanted[name])
            if axis in dimension.axes
        ]
        return tuple(place for _, place in sorted(found))


facts_of = lru_cache(256)(WorkloadFacts)


class LayoutLemmas:
    """Lemmas about one operand's layout, as a program over given iterators uses it.

    Answers are kept: they are those of every program with the same layout, iterators and axes.
    """

    def __init__(
        self,
        operand: PackedOperand,
        facts: WorkloadFacts,
        extents: Mapping[str, int],
        axes: Mapping[Hashable, Plain],
    ) -> None:
        self.operand = operand
        self.facts = facts
        self.axes = axes
        self.accesses = tuple([plain(index, extents) for index in operand.access])
        self.sources = _sources(operand)
        access: dict[Hashable, Plain] = {
            d.name: index for d, index in zip(operand.dimensions, self.accesses, strict=True)
        }
        # Per original dimension: the index that packing put where the program accesses.
        self.named = tuple([_composed(index, access) for index in self.sources])
        self._excluded: dict[tuple[str, int], bool] = {}
        self._tiles: dict[tuple[str, tuple[Loop, ...]], bool] = {}

    @cached_property
    def access(self) -> bool:
        """Each packed index stays inside; each original index is the workload's."""
        indices = zip(self.accesses, self.operand.dimensions, strict=True)
        if not all(holds(inside, ((index, ()),), (d.extent,)) for index, d in indices):
            return False
        wanted = self.facts.wanted[self.operand.name]
        return len(self.named) == len(wanted) and all(map(self._is_wanted, self.named, wanted))

    def _is_wanted(self, named: Goal, wanted: Wanted) -> bool:
        right = _composed(wanted.index, self.axes)
        guards = [(self.axes[axis], ()) for axis in wanted.axes]
        sizes = tuple([self.facts.sizes[axis] for axis in wanted.axes])
        return holds(equal, (named, right, *guards), sizes)

    def excludes(self, axis: str, position: int) -> bool:
        """Whether an original dimension is out of shape wherever the axis is out of its extent."""
        key = axis, position
        if key not in self._excluded:
            goals = (self.axes[axis], ()), self.named[position]
            sizes = self.facts.sizes[axis], self.operand.original_shape[position]
            self._excluded[key] = holds(excluded, goals, sizes)
        return self._excluded[key]

    @cached_property
    def output(self) -> bool:
        """The workload writes every element, and no two packed elements are the same original."""
        operand = self.operand
        store = tuple([(wanted.index, ()) for wanted in self.facts.wanted[operand.name]])
        if not holds(onto, store, operand.original_shape):
            return False
        layout = {dimension.name: dimension.extent for dimension in operand.dimensions}
        source = over_digits(self.sources, layout)
        return source is not None and all(holds(injective, ((i, ()),)) for i in source)

    def tile(self, instruction: Instruction, ours: str, axes: tuple[Loop, ...]) -> bool:
        """Instruction axes address memory as the memory side of the instruction's operand asks."""
        key = ours, axes
        if key not in self._tiles:
            extents = {axis.name: axis.extent for axis in axes}
            self._tiles[key] = self._is_tile(instruction.memory[ours], extents)
        return self._tiles[key]

    def _is_tile(self, memory: OperandMemory, axes: Mapping[str, int]) -> bool:
        tiled = [dimension.axis for dimension in memory.tile]
        free = {a for a in memory.axes if memory.stride_rule(a) is StrideRule.ANY}
        address: list[Term] = []
        for (terms, _), stride in zip(self.accesses, self.operand.strides, strict=True):
            for axis, extent, coefficient, divisor, modulus in terms:
                if axis not in axes:
                    continue
                if axis in free:
                    # Its step is one constant: whatever that is, the memory side takes it.
                    if divisor != 1 or modulus is not None or tiled.count(str(axis)) != 1:
                        return False
                elif axis in tiled:
                    address.append((axis, extent, coefficient * stride, divisor, modulus))
                else:
                    return False
        goals: tuple[Goal, Goal] = ((tuple(address), 0), ()), (_dense(memory, free, axes), ())
        return holds(equal, goals)


class SharedLemmas:
    """Lemmas about layouts that programs of one workload and instruction have in common.

    A layout is known by the object, which derivations with one cache share, together with all that
    the lemmas read of the program: the extents of the iterators that access it, and the indices of
    the axes that the workload reaches it by. For another workload or instruction it starts anew.
    """

    def __init__(self) -> None:
        self._of: tuple[Computation, Instruction] | None = None
        self._iterators: dict[int, tuple[str, ...]] = {}
        self._layouts: dict[tuple[int, tuple[int, ...], tuple[Plain, ...]], LayoutLemmas] = {}

    def facts(self, program: DerivedProgram) -> WorkloadFacts:
        if (
            self._of is None
            or self._of[0] is not program.workload
            or self._of[1] is not program.instruction
        ):
            self._of = program.workload, program.instruction
            self._facts = facts_of(program.workload)
            self._iterators.clear()
            self._layouts.clear()
        return self._facts

    def layout(
        self, program: DerivedProgram, operand: PackedOperand, axes: Mapping[Hashable, Plain]
    ) -> LayoutLemmas:
        facts = self.facts(program)
        extents = program.extents
        names = self._iterators.get(id(operand))
        if names is None:
            names = tuple(dict.fromkeys(n for index in operand.access for n in index.iterators))
        known = (
            id(operand),
            tuple([extents[name] for name in names]),
            tuple([axes[axis] for axis in facts.axes[operand.name]]),
        )
        found = self._layouts.get(known)
        if found is None:
            # It holds the operand, so that no other object gets its identity.
            found = self._layouts[known] = LayoutLemmas(operand, facts, extents, axes)
            self._iterators[id(operand)] = names
        return found


def over_digits(indices: Sequence[Plain], extents: Mapping[str, int]) -> list[Plain] | None:
    """The indices over independent digits of their variables; None where that is not shown.

    Shown are: no two indices share a digit ``(variable // divisor) % modulus``, and every
    variable corresponds one to one to the box of its digits.
    """
    digits: dict[Hashable, dict[tuple[int, int | None], int]] = {name: {} for name in extents}
    result: list[Plain] = []
    for number, (terms, constant) in enumerate(indices):
        new: list[Term] = []
        for name, extent, coefficient, divisor, modulus in terms:
            if digits[name].setdefault((divisor, modulus), number) != number:
                return None
            count = values(extent, divisor, modulus)
            new.append(((name, divisor, modulus), count, coefficient, 1, None))
        result.append((tuple(new), constant))
    for name, extent in extents.items():
        if not independent(extent, tuple(digits[name])):
            return None
    return result


def _sources(operand: PackedOperand) -> tuple[Plain, ...]:
    layout = {dimension.name: dimension.extent for dimension in operand.dimensions}
    return tuple([plain(index, layout) for index in operand.source])


def _composed(index: Plain, bodies: Mapping[Hashable, Plain]) -> Goal:
    """An index over names as a goal, each name bound to its body."""
    return index, tuple([(term[0], bodies[term[0]]) for term in index[0]])


def _dense(memory: OperandMemory, free: set[str], axes: Mapping[str, int]) -> Plain:
    """The address in a dense tile over its axes, without those whose stride is free."""
    terms: list[Term] = []
    weight = 1
    for dimension in reversed(memory.tile):
        if dimension.axis not in free:
            extent = axes[dimension.axis]
            size = dimension.size(extent)
            terms.append((dimension.axis, extent, weight, dimension.divisor, size))
            weight *= size
    return tuple(terms), 0


class Factored:
    """A program's obligations as lemmas about its axes and its layouts."""

    def __init__(self, program: DerivedProgram, shared: SharedLemmas | None = None) -> None:
        shared = shared or SharedLemmas()
        self.program = program
        self.facts = shared.facts(program)
        extents = program.extents
        self.axes: dict[Hashable, Plain] = {
            axis: plain(program.axis_map[axis], extents) for axis in self.facts.sizes
        }
        self.layouts = {
            operand.name: shared.layout(program, operand, self.axes) for operand in program.operands
        }

    def coverage(self) -> bool:
        """Digits of different axes are independent, and each axis's digits number its range."""
        axes = over_digits(list(self.axes.values()), self.program.extents)
        if axes is None:
            return False
        for extent, index in zip(self.facts.sizes.values(), axes, strict=True):
            size = _top(index) + 1
            if size < extent or not holds(bijective, ((index, ()),), (size,)):
                return False
        return True

    def access(self, operand: PackedOperand) -> bool:
        """Packed indices stay inside, and name the elements that the workload names."""
        return self.layouts[operand.name].access

    def neutral(self) -> bool:
        """Each axis that can leave its extent takes an operand's index out of shape with it."""
        return all(
            holds(inside, ((self.axes[axis], ()),), (size,))
            or any(self.layouts[name].excludes(axis, at) for name, at in self.facts.witnesses[axis])
            for axis, size in self.facts.sizes.items()
        )

    def output(self, name: str) -> bool:
        """Every element of an output is written, and none in two places.

        Given that coverage holds and that the output's access does.
        """
        return self.layouts[name].output

    def tile(self) -> bool:
        """Per operand: instruction axes address memory as the instruction's memory side asks."""
        program = self.program
        return all(
            self.layouts[program.roles[ours]].tile(
                program.instruction, ours, program.instruction_axes
            )
            for ours in program.instruction.memory
        )


def _top(index: Plain) -> int:
    """Upper bound of an index over independent variables without divisors."""
    terms, constant = index
    return constant + sum(max(0, term[2] * (term[1] - 1)) for term in terms)
