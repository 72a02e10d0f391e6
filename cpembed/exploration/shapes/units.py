"""What may feed each instruction axis, and what excludes what, asked of the constraints themselves.

A **unit** is a workload axis, or a group of axes that may be fused, on an instruction axis, with
the counts that a digit along it may have there. Of the strides that a digit may have, 1 needs the
fewest executions: ``ceil(extent / (count * stride)) * stride`` does not decrease with the stride,
and what may be walked in larger steps may be walked in steps of one. So the tables know stride 1
alone; sets of which this is not known are searched shape by shape (:func:`tables_obstacle`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from cpembed.embedding.constraint_set import ConstraintSet
from cpembed.embedding.constraints.strides import Strides
from cpembed.embedding.digit_model import DigitModel, DigitOption
from cpembed.embedding.domains import digit_model_obstacle, joint_digits
from cpembed.embedding.embedding import Digit
from cpembed.embedding.flatten import adds_tiles, candidate_groups
from cpembed.embedding.problem import EmbeddingProblem
from cpembed.errors import InvariantError
from cpembed.exploration.shapes.products import Table, nothing

KNOWN = (
    *("dataflow", "all_different", "hyper_rectangle", "fixed_origin", "dense", "linear_access"),
    *("strides", "digits", "extents", "padding"),
)
"""Constraints that judge a digit of stride 1 by the axes that it walks, by whether it is the first
of its instruction axis, and (``padding``) by its count: not by the instruction's other extents."""

_BY_COUNT = ("padding",)


def tables_obstacle(problem: EmbeddingProblem, constraints: ConstraintSet) -> str | None:
    """Why executions are not read from tables; None where they are."""
    obstacle = digit_model_obstacle(problem, constraints) or joint_digits(problem, constraints)
    if obstacle is not None:
        return obstacle
    for constraint in constraints.constraints:
        if constraint.name not in KNOWN:
            return f"{constraint.name} may depend on all extents of an instruction"
        if isinstance(constraint, Strides) and "one" not in constraint.allowed:
            return "no digit may have a stride of 1"
    return None


def without_extents(constraints: ConstraintSet) -> ConstraintSet:
    """The set without the rule for configurable axes: the axes of a shape are fixed."""
    return constraints.without("extents")


@dataclass(frozen=True)
class Unit:
    """``executions`` per count of a digit, of any place; ``alone``: it is its instruction axis's
    only digit; ``first``: it is the first one, or the only one."""

    axis: str
    members: frozenset[str]
    executions: Table
    alone: bool
    first: bool


@dataclass(frozen=True)
class Units:
    """All that can feed the instruction axes. ``exclusive`` are sets of units of which an
    embedding has one at most; ``most``: how many digits an instruction axis may have."""

    units: tuple[Unit, ...]
    exclusive: tuple[frozenset[int], ...]
    most: Mapping[str, int]


class UnitTables:
    """Makes the units of problems; what depends on extents alone is computed once."""

    def __init__(self, constraints: ConstraintSet, largest: int) -> None:
        self.constraints, self.largest = without_extents(constraints), largest
        every = self.constraints.constraints
        self._judges = [c for c in every if c.name not in _BY_COUNT]
        self._counting = [c for c in every if c.name in _BY_COUNT]
        self._counted: dict[tuple[object, ...], Table] = {}
        self._tiles: dict[tuple[object, ...], Table] = {}

    def units(self, problem: EmbeddingProblem) -> Units:
        """The units of a problem whose instruction is configurable to every shape."""
        found: dict[tuple[str, frozenset[str]], Table] = {}
        places: dict[tuple[str, frozenset[str]], tuple[DigitOption, ...]] = {}
        for axis in problem.instruction.axes:
            for name, members in self._walked(problem):
                options = self._places(problem, axis.name, name, members)
                if not options:
                    continue
                key = axis.name, frozenset(members)
                table = self._executions(problem, options[0])
                found[key] = np.minimum(found[key], table) if key in found else table
                places.setdefault(key, options)
        listed = {key: table for key, table in found.items() if np.isfinite(table).any()}
        return self._related(problem, listed, places)

    def _walked(self, problem: EmbeddingProblem) -> Iterable[tuple[str, tuple[str, ...]]]:
        """Workload axes, and groups of them that may be fused, by name."""
        fused = self.constraints.flatten
        for axis in problem.workload.axes:
            yield axis.name, (axis.name,)
        groups = candidate_groups(problem.workload, fused.max_axes, fused.min_extent)
        yield from groups.items()

    def _places(
        self, problem: EmbeddingProblem, axis: str, name: str, members: tuple[str, ...]
    ) -> tuple[DigitOption, ...]:
        """The digit as the first one of its axis and as a later one, where it may be that; whatever
        its count."""
        extent = math.prod(problem.workload.extents[member] for member in members)
        options = [DigitOption(axis, w, Digit(name, 2), members, extent) for w in (1, 2)]
        return tuple(o for o in options if all(c.allows(problem, o) for c in self._judges))

    def _executions(self, problem: EmbeddingProblem, option: DigitOption) -> Table:
        table = self._padded(problem, option)
        if len(option.members) > 1:
            table = table + self._new_tiles(problem, option.members)
        return table

    def _padded(self, problem: EmbeddingProblem, option: DigitOption) -> Table:
        """Executions by count: blocks of the axis, where padding allows it to be cut so."""
        rule = self.constraints.padding.on(problem)
        several = len(option.members) > 1
        limit = rule.limit(option.digit.axis, option.extent)
        key = (
            option.extent,
            limit,
            several and (rule.axes == "all" or (rule.axes, option.members)),
        )
        if key not in self._counted:
            table = nothing(self.largest)
            for count in range(2, self.largest + 1):
                digit = Digit(option.digit.axis, count)
                at = DigitOption(option.instruction_axis, 1, digit, option.members, option.extent)
                if all(c.allows(problem, at) for c in self._counting):
                    table[count] = -(-option.extent // count)
            self._counted[key] = table
        return self._counted[key]

    def _new_tiles(self, problem: EmbeddingProblem, members: tuple[str, ...]) -> Table:
        """0 where a digit on the fused axis is searched, else infinite."""
        extents = tuple(problem.workload.extents[member] for member in members)
        if extents not in self._tiles:
            plain, table = self.constraints.flatten.plain, nothing(self.largest)
            for count in range(2, self.largest + 1):
                if adds_tiles(problem.workload, members, count, plain=plain):
                    table[count] = 0.0
            self._tiles[extents] = table
        return self._tiles[extents]

    def _related(
        self,
        problem: EmbeddingProblem,
        found: Mapping[tuple[str, frozenset[str]], Table],
        places: Mapping[tuple[str, frozenset[str]], tuple[DigitOption, ...]],
    ) -> Units:
        """The units with what the constraints post about their digits."""
        keys = list(found)
        owner = {option: n for n, key in enumerate(keys) for option in places[key]}
        axes = tuple(axis.name for axis in problem.instruction.axes)
        said = Said(problem, list(owner), axes)
        for constraint in self.constraints.constraints:
            constraint.post_digits(said)
        units = tuple(
            Unit(
                axis,
                members,
                found[axis, members],
                any(option in said.alone for option in places[axis, members]),
                len(places[axis, members]) == 1,
            )
            for axis, members in keys
        )
        exclusive = {frozenset(owner[o] for o in group) for group in said.exclusive}
        most = {axis: len(keys) for axis in axes}
        for axis, count in said.most.items():
            most[axis] = min(most[axis], count)
        kept = tuple(group for group in exclusive if len(group) > 1)
        return Units(units, kept, most)


@dataclass
class Said(DigitModel):
    """A digit model that notes what constraints post instead of posting it."""

    exclusive: list[list[DigitOption]] = field(default_factory=list[list[DigitOption]])
    most: dict[str, int] = field(default_factory=dict[str, int])
    alone: set[DigitOption] = field(default_factory=set[DigitOption])

    def at_most_one(self, options: list[DigitOption]) -> None:
        self.exclusive.append(options)

    def at_most(self, options: list[DigitOption], count: int) -> None:
        axes = {option.instruction_axis for option in options}
        if len(axes) > 1:
            raise InvariantError("a limit on the digits of several instruction axes together")
        for axis in axes:
            self.most[axis] = min(self.most.get(axis, count), count)

    def requires_extent(
        self, option: DigitOption, extent: int, beside: Iterable[DigitOption] = ()
    ) -> None:
        if not beside:
            self.alone.add(option)
