"""The obligations as lemmas about few variables each, shared between programs.

:class:`Factored` shows the obligations of a program; :class:`LayoutLemmas` has the lemmas about one
operand's layout, which :class:`SharedLemmas` keeps for all programs that have it. Every method
returns True only if lemmas imply the statement. False says nothing: the general proof decides then.
The documentation of the package gives the argument.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from cpembed.hw.instruction import Instruction, OperandMemory, StrideRule
from cpembed.ir.computation import Computation
from cpembed.transform.program import DerivedProgram, Loop, PackedOperand
from cpembed.transform.proof import lemmas
from cpembed.transform.proof.general import absorbing
from cpembed.transform.proof.lemmas import Goal, Plain, Term, holds, plain


@dataclass(frozen=True)
class IndexedDimension:
    """An original dimension of an operand with the workload's index, over its axes."""

    index: Plain
    axes: tuple[str, ...]
    size: int


class WorkloadFacts:
    """Facts about a workload that the lemmas need; they hold for all its programs."""

    def __init__(self, workload: Computation) -> None:
        self.sizes = workload.extents
        self.dimensions: dict[str, tuple[IndexedDimension, ...]] = {}
        for operand in workload.operands:
            indices = workload.access(operand.name).index
            self.dimensions[operand.name] = tuple(
                IndexedDimension(plain(index, self.sizes), index.iterators, size)
                for index, size in zip(indices, operand.shape, strict=True)
            )
        self.axes = {
            name: tuple(dict.fromkeys(axis for dimension in dimensions for axis in dimension.axes))
            for name, dimensions in self.dimensions.items()
        }
        self.witnesses = {axis: self._witnesses(workload, axis) for axis in self.sizes}

    def _witnesses(self, workload: Computation, axis: str) -> tuple[tuple[str, int], ...]:
        """Find the dimensions that may show that padding along an axis is harmless.

        They are the original dimensions, by operand and position, that the axis moves and that
        cancel a point out of their shape.
        """
        # Those that fewer axes move come first: their lemmas have the fewest variables, and an
        # index of the axis alone is the likeliest to leave its shape with it.
        candidates = [
            (len(dimension.axes), (name, position))
            for name in absorbing(workload)
            for position, dimension in enumerate(self.dimensions[name])
            if axis in dimension.axes
        ]
        return tuple(place for _, place in sorted(candidates))


facts_of = lru_cache(256)(WorkloadFacts)


class LayoutLemmas:
    """Lemmas about one operand's layout, as a program over given iterators uses it.

    Results are cached, since they hold for every program with this layout, iterators and axes.

    Parameters
    ----------
    operand : PackedOperand
        The layout.
    facts : WorkloadFacts
        Facts about the workload.
    extents : mapping of str to int
        Extents of the program's iterators.
    axes : mapping of str to Plain
        Coordinates of the workload axes over the iterators.
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
        # Index of the accessed element in each original dimension.
        self.accessed = tuple([_composed(index, access) for index in self.sources])
        # An enumeration asks for every program: this saves composing the goals again.
        self._excluded: dict[tuple[str, int], bool] = {}
        self._tiles: dict[tuple[str, tuple[Loop, ...]], bool] = {}

    @cached_property
    def is_correct(self) -> bool:
        """True if packed indices stay inside and the accessed elements are the workload's."""
        # One index at a time is enough: a tuple lies in a box if each index lies in its range.
        indices = zip(self.accesses, self.operand.dimensions, strict=True)
        if not all(holds(lemmas.inside, ((index, ()),), (d.extent,)) for index, d in indices):
            return False
        dimensions = self.facts.dimensions[self.operand.name]
        return len(self.accessed) == len(dimensions) and all(
            map(self._accesses, self.accessed, dimensions)
        )

    def _accesses(self, accessed: Goal, dimension: IndexedDimension) -> bool:
        """True if the accessed index is the workload's, wherever its axes are in their extents."""
        required = _composed(dimension.index, self.axes)
        guards = [(self.axes[axis], ()) for axis in dimension.axes]
        sizes = tuple([self.facts.sizes[axis] for axis in dimension.axes])
        return holds(lemmas.equal, (accessed, required, *guards), sizes)

    def excludes(self, axis: str, position: int) -> bool:
        """True if an original dimension is out of shape wherever the axis is out of its extent."""
        key = axis, position
        if key not in self._excluded:
            goals = (self.axes[axis], ()), self.accessed[position]
            sizes = self.facts.sizes[axis], self.operand.original_shape[position]
            self._excluded[key] = holds(lemmas.excluded, goals, sizes)
        return self._excluded[key]

    @cached_property
    def output(self) -> bool:
        """True if the workload writes every element, and packed elements are distinct."""
        operand = self.operand
        store = tuple([(dimension.index, ()) for dimension in self.facts.dimensions[operand.name]])
        if not holds(lemmas.onto, store, operand.original_shape):
            return False
        layout = {dimension.name: dimension.extent for dimension in operand.dimensions}
        # Injective on the whole layout, written or not, which is more than necessary. Over
        # independent digits the tuple is a product of maps: injective if each index is.
        source = _over_digits(self.sources, layout)
        return source is not None and all(holds(lemmas.injective, ((i, ()),)) for i in source)

    def tile(self, instruction: Instruction, operand: str, axes: tuple[Loop, ...]) -> bool:
        """True if instruction axes address memory as the instruction's operand requires."""
        key = operand, axes
        if key not in self._tiles:
            extents = {axis.name: axis.extent for axis in axes}
            self._tiles[key] = self._is_tile(instruction.memory[operand], extents)
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
                    # The memory side takes any stride, as long as it is one constant.
                    if divisor != 1 or modulus is not None or tiled.count(str(axis)) != 1:
                        return False
                elif axis in tiled:
                    address.append((axis, extent, coefficient * stride, divisor, modulus))
                else:
                    return False
        # Axes of any stride add the same to both addresses and are left out of the comparison.
        goals: tuple[Goal, Goal] = ((tuple(address), 0), ()), (_dense(memory, free, axes), ())
        return holds(lemmas.equal, goals)


class SharedLemmas:
    """Cache of lemmas about the layouts of one workload and instruction.

    A layout is identified by its object, which derivations with one cache share, together with all
    that the lemmas read of the program: the extents of the iterators that access the layout and the
    coordinates of the axes on which the workload's access depends. The cache is cleared for another
    workload or instruction.
    """

    def __init__(self) -> None:
        self._subject: tuple[Computation, Instruction] | None = None
        self._iterators: dict[int, tuple[str, ...]] = {}
        self._layouts: dict[tuple[int, tuple[int, ...], tuple[Plain, ...]], LayoutLemmas] = {}

    def facts(self, program: DerivedProgram) -> WorkloadFacts:
        """Return the facts about a program's workload."""
        if (
            self._subject is None
            or self._subject[0] is not program.workload
            or self._subject[1] is not program.instruction
        ):
            self._subject = program.workload, program.instruction
            self._facts = facts_of(program.workload)
            self._iterators.clear()
            self._layouts.clear()
        return self._facts

    def layout(
        self, program: DerivedProgram, operand: PackedOperand, axes: Mapping[Hashable, Plain]
    ) -> LayoutLemmas:
        """Return the lemmas about an operand's layout; ``axes`` are the program's coordinates."""
        facts = self.facts(program)
        extents = program.extents
        names = self._iterators.get(id(operand))
        if names is None:
            names = tuple(dict.fromkeys(n for index in operand.access for n in index.iterators))
        key = (
            id(operand),
            tuple([extents[name] for name in names]),
            tuple([axes[axis] for axis in facts.axes[operand.name]]),
        )
        shared = self._layouts.get(key)
        if shared is None:
            # The lemmas hold the operand, so that no new object can get its identity.
            shared = self._layouts[key] = LayoutLemmas(operand, facts, extents, axes)
            self._iterators[id(operand)] = names
        return shared


def _over_digits(indices: Sequence[Plain], extents: Mapping[str, int]) -> list[Plain] | None:
    """Rewrite indices over independent digits of their variables; None if that is not possible.

    It is possible if no two indices share a digit ``(variable // divisor) % modulus``, and every
    variable corresponds one to one to the box of its digits.
    """
    digits: dict[Hashable, dict[tuple[int, int | None], int]] = {name: {} for name in extents}
    result: list[Plain] = []
    for number, (terms, constant) in enumerate(indices):
        new: list[Term] = []
        for name, extent, coefficient, divisor, modulus in terms:
            if digits[name].setdefault((divisor, modulus), number) != number:
                return None
            # From here on the digit is a variable of its own, whose box is [0, count).
            count = lemmas.values(extent, divisor, modulus)
            new.append(((name, divisor, modulus), count, coefficient, 1, None))
        result.append((tuple(new), constant))
    for name, extent in extents.items():
        if not lemmas.independent(extent, tuple(digits[name])):
            return None
    return result


def _sources(operand: PackedOperand) -> tuple[Plain, ...]:
    layout = {dimension.name: dimension.extent for dimension in operand.dimensions}
    return tuple([plain(index, layout) for index in operand.source])


def _composed(index: Plain, bodies: Mapping[Hashable, Plain]) -> Goal:
    """Turn an index over names into a goal, each name bound to its body."""
    return index, tuple([(term[0], bodies[term[0]]) for term in index[0]])


def _dense(memory: OperandMemory, free: set[str], axes: Mapping[str, int]) -> Plain:
    """Return the address in a dense tile over its axes, without axes of any stride."""
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
        """True if the digits of axes are independent, and those of an axis number its range."""
        # A product of maps is a bijection onto a product of ranges if each factor is one.
        axes = _over_digits(list(self.axes.values()), self.program.extents)
        if axes is None:
            return False
        for extent, index in zip(self.facts.sizes.values(), axes, strict=True):
            size = _top(index) + 1
            if size < extent or not holds(lemmas.bijective, ((index, ()),), (size,)):
                return False
        return True

    def access(self, operand: PackedOperand) -> bool:
        """True if packed indices stay inside and access the workload's elements."""
        return self.layouts[operand.name].is_correct

    def neutral(self) -> bool:
        """True if each axis beyond its extent takes an operand's index out of shape."""
        return all(
            holds(lemmas.inside, ((self.axes[axis], ()),), (size,))
            or any(self.layouts[name].excludes(axis, n) for name, n in self.facts.witnesses[axis])
            for axis, size in self.facts.sizes.items()
        )

    def output(self, name: str) -> bool:
        """True if every element of an output is written, and none in two places.

        Coverage and the access of this output have to hold.
        """
        return self.layouts[name].output

    def tile(self) -> bool:
        """True if instruction axes address every operand as the memory side requires."""
        program = self.program
        return all(
            self.layouts[program.roles[name]].tile(
                program.instruction, name, program.instruction_axes
            )
            for name in program.instruction.memory
        )


def _top(index: Plain) -> int:
    """Return an upper bound of an index over independent variables without divisors."""
    terms, constant = index
    return constant + sum(max(0, term[2] * (term[1] - 1)) for term in terms)
