"""The obligations taken apart into lemmas about few variables each.

Every method answers True only where lemmas imply the obligation; False says nothing, the general
proof decides then. The package's documentation gives the argument.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from cpembed.hw.instruction import OperandMemory, StrideRule
from cpembed.ir.computation import Computation
from cpembed.transform.program import DerivedProgram, PackedOperand
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
    """What the lemmas need of a workload, the same for all its programs."""

    def __init__(self, workload: Computation) -> None:
        self.sizes = workload.extents
        self.wanted: dict[str, tuple[Wanted, ...]] = {}
        for operand in workload.operands:
            indices = workload.access(operand.name).index
            self.wanted[operand.name] = tuple(
                Wanted(plain(index, self.sizes), index.iterators, size)
                for index, size in zip(indices, operand.shape, strict=True)
            )
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


class Factored:
    """A program's expressions as plain values, and its obligations as lemmas about them."""

    def __init__(self, program: DerivedProgram) -> None:
        self.program = program
        self.facts = facts_of(program.workload)
        extents = program.extents
        self.axes: dict[Hashable, Plain] = {
            axis: plain(program.axis_map[axis], extents) for axis in program.workload.extents
        }
        self.accesses = {
            operand.name: tuple([plain(index, extents) for index in operand.access])
            for operand in program.operands
        }
        self.sources = {operand.name: _sources(operand) for operand in program.operands}
        self.named = {operand.name: self._named(operand) for operand in program.operands}

    def _named(self, operand: PackedOperand) -> tuple[Goal, ...]:
        """Per original dimension: the index that packing put where the program accesses."""
        found = self.accesses[operand.name]
        access: dict[Hashable, Plain] = {
            d.name: index for d, index in zip(operand.dimensions, found, strict=True)
        }
        return tuple([_composed(index, access) for index in self.sources[operand.name]])

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
        """Each packed index stays inside; each original index is the workload's."""
        indices = zip(self.accesses[operand.name], operand.dimensions, strict=True)
        if not all(holds(inside, ((index, ()),), (d.extent,)) for index, d in indices):
            return False
        named, wanted = self.named[operand.name], self.facts.wanted[operand.name]
        return len(named) == len(wanted) and all(map(self._is_wanted, named, wanted))

    def _is_wanted(self, named: Goal, wanted: Wanted) -> bool:
        right = _composed(wanted.index, self.axes)
        guards = [(self.axes[axis], ()) for axis in wanted.axes]
        sizes = tuple([self.facts.sizes[axis] for axis in wanted.axes])
        return holds(equal, (named, right, *guards), sizes)

    def neutral(self) -> bool:
        """Each axis that can leave its extent takes an operand's index out of shape with it."""
        return all(map(self._is_neutral, self.facts.sizes))

    def _is_neutral(self, axis: str) -> bool:
        coordinate: Goal = (self.axes[axis], ())
        size = self.facts.sizes[axis]
        if holds(inside, (coordinate,), (size,)):
            return True
        for name, position in self.facts.witnesses[axis]:
            shape = self.program.operand(name).original_shape
            goals = (coordinate, self.named[name][position])
            if holds(excluded, goals, (size, shape[position])):
                return True
        return False

    def output(self, name: str) -> bool:
        """The workload writes every element, and no two packed elements are the same original.

        Given that coverage holds and that the output's access does.
        """
        operand = self.program.operand(name)
        store = tuple([(wanted.index, ()) for wanted in self.facts.wanted[operand.name]])
        if not holds(onto, store, operand.original_shape):
            return False
        layout = {dimension.name: dimension.extent for dimension in operand.dimensions}
        source = over_digits(self.sources[operand.name], layout)
        return source is not None and all(holds(injective, ((i, ()),)) for i in source)

    def tile(self) -> bool:
        """Per operand: lanes address memory as the instruction's memory side asks."""
        program = self.program
        return all(
            self._is_tile(program.role(ours.name), program.instruction.memory[ours.name])
            for ours in program.instruction.computation.operands
        )

    def _is_tile(self, operand: PackedOperand, memory: OperandMemory) -> bool:
        lanes = {lane.name: lane.extent for lane in self.program.lanes}
        tiled = [dimension.axis for dimension in memory.tile]
        free = {a for a in memory.axes if memory.stride_rule(a) is StrideRule.ANY}
        address: list[Term] = []
        for (terms, _), stride in zip(self.accesses[operand.name], operand.strides, strict=True):
            for lane, extent, coefficient, divisor, modulus in terms:
                if lane not in lanes:
                    continue
                if lane in free:
                    # Its step is one constant: whatever that is, the memory side takes it.
                    if divisor != 1 or modulus is not None or tiled.count(str(lane)) != 1:
                        return False
                elif lane in tiled:
                    address.append((lane, extent, coefficient * stride, divisor, modulus))
                else:
                    return False
        goals: tuple[Goal, Goal] = ((tuple(address), 0), ()), (_dense(memory, free, lanes), ())
        return holds(equal, goals)


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


def _dense(memory: OperandMemory, free: set[str], lanes: Mapping[str, int]) -> Plain:
    """Where a dense tile holds each lane, without the lanes whose distance is free."""
    terms: list[Term] = []
    weight = 1
    for dimension in reversed(memory.tile):
        if dimension.axis not in free:
            extent = lanes[dimension.axis]
            size = dimension.size(extent)
            terms.append((dimension.axis, extent, weight, dimension.divisor, size))
            weight *= size
    return tuple(terms), 0


def _top(index: Plain) -> int:
    """Upper bound of an index over independent variables without divisors."""
    terms, constant = index
    return constant + sum(max(0, term[2] * (term[1] - 1)) for term in terms)
