"""Digits that feed one axis of an instruction, and the executions that they cost."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.embedding.constraint_set import ConstraintSet
from cpembed.embedding.digit_model import DigitModel, DigitOption
from cpembed.embedding.embedding import Digit
from cpembed.embedding.flatten import adds_tiles, candidate_groups
from cpembed.embedding.problem import EmbeddingProblem
from cpembed.errors import InvariantError

Table = NDArray[np.float64]
"""Executions by extent, from 0 (unused) to the largest; infinite where no digits have that extent.
Executions are integers below 2**53, which these numbers hold exactly."""


def empty_table(largest: int) -> Table:
    """Return a table without a value for any extent."""
    return np.full(largest + 1, np.inf)


def join(first: Table, second: Table) -> Table:
    """Return the least product, by extent, of a value of each table at factors of 2 or more."""
    left, right, products, starts = _factor_pairs(len(first) - 1)
    table = empty_table(len(first) - 1)
    if len(left):
        table[products] = np.minimum.reduceat(first[left] * second[right], starts)
    return table


@cache
def _factor_pairs(largest: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return all pairs of factors of 2 or more by their products, and the first pair of each.

    These are the left and the right factors, the distinct products, ascending, and the position of
    each one's first pair.
    """
    firsts, seconds = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for first in range(2, largest // 2 + 1):
        second = np.arange(2, largest // first + 1, dtype=np.int64)
        firsts.append(np.full(len(second), first, np.int64))
        seconds.append(second)
    left, right = np.concatenate(firsts), np.concatenate(seconds)
    order = np.argsort(left * right, kind="stable")
    # Pairs of one product stand side by side, so that reduceat finds the least of each at once.
    products, starts = np.unique((left * right)[order], return_index=True)
    return left[order], right[order], products, starts


@dataclass(frozen=True)
class Feed:
    """A workload axis, or a fused group of ``members``, on an instruction axis.

    ``executions`` are by the count of its digit; ``sole_digit``: it tolerates no other digit on the
    instruction axis; ``first_digit``: it may only be the first digit there.
    """

    axis: str
    members: frozenset[str]
    executions: Table
    sole_digit: bool
    first_digit: bool


@dataclass(frozen=True)
class FeedSet:
    """All feeds of the instruction axes.

    An embedding has at most one of each ``exclusive`` group of positions among ``feeds``, and at
    most ``digit_limits`` digits on an instruction axis.
    """

    feeds: tuple[Feed, ...]
    exclusive: tuple[frozenset[int], ...]
    digit_limits: Mapping[str, int]


_FeedKey = tuple[str, frozenset[str]]
"""An instruction axis and the workload axes that feed it."""


class FeedTables:
    """Builds the feeds of problems; tables that depend on extents alone are computed once."""

    def __init__(self, constraints: ConstraintSet, largest: int) -> None:
        # The axes of a shape are fixed, so the rule for configurable axes does not apply.
        self.constraints, self.largest = constraints.removing("extents"), largest
        every = self.constraints.constraints
        self._axis_judges = [c for c in every if c.name != "padding"]
        self._count_judges = [c for c in every if c.name == "padding"]
        self._blocks: dict[tuple[object, ...], Table] = {}
        self._fused_tiles: dict[tuple[object, ...], Table] = {}

    def feeds(self, problem: EmbeddingProblem, charged: Mapping[str, int] | None = None) -> FeedSet:
        """Return the feeds of a problem whose instruction is configurable to every shape.

        Parameters
        ----------
        problem
            The problem.
        charged
            Extents of the workload's axes for which executions are counted; all by default.
        """
        tables: dict[_FeedKey, Table] = {}
        options: dict[_FeedKey, tuple[DigitOption, ...]] = {}
        workload, flatten = problem.workload, self.constraints.flatten
        fused = candidate_groups(workload, flatten.max_axes, flatten.min_extent)
        walkable = {axis.name: (axis.name,) for axis in workload.axes} | fused
        for axis in problem.instruction.axes:
            for name, members in walkable.items():
                positions = self._positions(problem, axis.name, name, members)
                if not positions:
                    continue
                key = axis.name, frozenset(members)
                table = self._executions(problem, positions[0], charged or workload.extents)
                tables[key] = np.minimum(tables[key], table) if key in tables else table
                options.setdefault(key, positions)
        usable = {key: table for key, table in tables.items() if np.isfinite(table).any()}
        return self._related(problem, usable, options)

    def _positions(
        self, problem: EmbeddingProblem, axis: str, name: str, members: tuple[str, ...]
    ) -> tuple[DigitOption, ...]:
        """Return the digit as the first of its instruction axis and as a later one, if allowed."""
        extent = math.prod(problem.workload.extents[member] for member in members)
        # The smallest count and the weights 1 and 2 stand for all: these constraints do not judge
        # the count, nor the weight beyond whether the digit is the first.
        digit = Digit(name, 2)
        options = [DigitOption(axis, w, digit, members, extent=extent) for w in (1, 2)]
        return tuple(o for o in options if all(c.allows(problem, o) for c in self._axis_judges))

    def _executions(
        self, problem: EmbeddingProblem, option: DigitOption, charged: Mapping[str, int]
    ) -> Table:
        extent = math.prod(charged[member] for member in option.members)
        table = self._block_counts(problem, option, extent)
        if len(option.members) > 1:
            table = table + self._fused_penalty(problem, option.members)
        return table

    def _block_counts(self, problem: EmbeddingProblem, option: DigitOption, charged: int) -> Table:
        """Return the blocks of the axis by count, where padding allows it to be cut so.

        Those are counted that ``charged`` of its values need.
        """
        rule = self.constraints.padding.on(problem)
        limit = rule.limit(option.digit.axis, option.extent)
        fused = len(option.members) > 1
        judged = fused and (rule.axes == "all" or (rule.axes, option.members))
        key = option.extent, charged, limit, judged
        if key not in self._blocks:
            table = empty_table(self.largest)
            for count in range(2, self.largest + 1):
                digit = Digit(option.digit.axis, count)
                cut = replace(option, weight=1, digit=digit)
                if all(c.allows(problem, cut) for c in self._count_judges):
                    table[count] = -(-charged // count)
            self._blocks[key] = table
        return self._blocks[key]

    def _fused_penalty(self, problem: EmbeddingProblem, members: tuple[str, ...]) -> Table:
        """Return 0 by count where a digit on the fused axis is searched, else infinity."""
        extents = tuple(problem.workload.extents[member] for member in members)
        if extents not in self._fused_tiles:
            plain, table = self.constraints.flatten.plain, empty_table(self.largest)
            for count in range(2, self.largest + 1):
                if adds_tiles(problem.workload, members, count, plain=plain):
                    table[count] = 0.0
            self._fused_tiles[extents] = table
        return self._fused_tiles[extents]

    def _related(
        self,
        problem: EmbeddingProblem,
        tables: Mapping[_FeedKey, Table],
        options: Mapping[_FeedKey, tuple[DigitOption, ...]],
    ) -> FeedSet:
        """Return the feeds with what the constraints post about their digits."""
        keys = list(tables)
        owner = {option: n for n, key in enumerate(keys) for option in options[key]}
        axes = tuple(axis.name for axis in problem.instruction.axes)
        model = RecordingModel(problem, list(owner), axes)
        for constraint in self.constraints.constraints:
            constraint.post_digits(model)
        feeds = tuple(
            Feed(
                axis=axis,
                members=members,
                executions=tables[axis, members],
                sole_digit=any(option in model.sole_digits for option in options[axis, members]),
                first_digit=len(options[axis, members]) == 1,
            )
            for axis, members in keys
        )
        groups = {frozenset(owner[option] for option in group) for group in model.exclusive}
        exclusive = tuple(group for group in groups if len(group) > 1)
        limits = {axis: min(len(keys), model.limits.get(axis, len(keys))) for axis in axes}
        return FeedSet(feeds, exclusive, limits)


@dataclass
class RecordingModel(DigitModel):
    """A digit model that records what constraints post instead of posting it to a solver."""

    exclusive: list[list[DigitOption]] = field(default_factory=list[list[DigitOption]])
    limits: dict[str, int] = field(default_factory=dict[str, int])
    sole_digits: set[DigitOption] = field(default_factory=set[DigitOption])

    def at_most_one(self, options: list[DigitOption]) -> None:
        self.exclusive.append(options)

    def at_most(self, options: list[DigitOption], count: int) -> None:
        axes = {option.instruction_axis for option in options}
        if len(axes) > 1:
            raise InvariantError("one limit on the digits of several instruction axes")
        for axis in axes:
            self.limits[axis] = min(self.limits.get(axis, count), count)

    def requires_extent(
        self, option: DigitOption, extent: int, partner_options: Iterable[DigitOption] = ()
    ) -> None:
        if not partner_options:
            self.sole_digits.add(option)
