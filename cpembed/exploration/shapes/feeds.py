"""Feeds of instruction axes, as the constraints themselves allow them, with executions by count.

A **feed** is a workload axis, or a group of axes that may be fused, on one instruction axis, with
the counts that a digit along it may have there. Only digits of stride 1 are tabulated, because that
stride needs the fewest executions: ``ceil(extent / (count * stride)) * stride`` does not decrease
with the stride, and an axis that may be walked in larger steps may be walked in steps of one.
Constraint sets for which this does not hold are searched shape by shape
(:func:`tabulation_obstacle`).

The digits of an instruction axis have counts that multiply to its extent, and executions are a
product over digits. So a table over extents is joined from smaller ones over the pairs of factors.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache

import numpy as np
from numpy.typing import NDArray

from cpembed.embedding.constraint_set import ConstraintSet
from cpembed.embedding.constraints.strides import Strides
from cpembed.embedding.digit_model import DigitModel, DigitOption
from cpembed.embedding.domains import digit_model_obstacle, joint_digits
from cpembed.embedding.embedding import Digit
from cpembed.embedding.flatten import adds_tiles, candidate_groups
from cpembed.embedding.problem import EmbeddingProblem
from cpembed.errors import InvariantError

TABULATED = (
    *("dataflow", "all_different", "hyper_rectangle", "fixed_origin", "dense", "linear_access"),
    *("strides", "digits", "extents", "padding"),
)
"""Constraints that judge a digit of stride 1 by the axes that it walks, by whether it is the first
of its instruction axis, and (``padding``) by its count, never by the instruction's other extents.
"""

_JUDGE_COUNTS = ("padding",)

Table = NDArray[np.float64]
"""Executions by extent, from 0 (unused) to the largest; infinite where no digits have that extent.
Executions are integers below 2**53, which these numbers hold exactly."""


def empty_table(largest: int) -> Table:
    """Return a table without a value for any extent."""
    return np.full(largest + 1, np.inf)


def unfed_table(largest: int) -> Table:
    """Return the table of an instruction axis without digits: extent 1, at one execution."""
    table = empty_table(largest)
    table[1] = 1.0
    return table


def join(first: Table, second: Table) -> Table:
    """Return the least product, by extent, of a value of each table at factors of 2 or more."""
    pairs = _factor_pairs(len(first) - 1)
    table = empty_table(len(first) - 1)
    if len(pairs.left):
        table[pairs.products] = np.minimum.reduceat(
            first[pairs.left] * second[pairs.right], pairs.starts
        )
    return table


@dataclass(frozen=True)
class _FactorPairs:
    """All pairs of factors of 2 or more, ordered by their products; ``starts`` holds the position
    of the first pair of each of the ascending ``products``."""

    left: NDArray[np.int64]
    right: NDArray[np.int64]
    products: NDArray[np.int64]
    starts: NDArray[np.intp]


@cache
def _factor_pairs(largest: int) -> _FactorPairs:
    firsts, seconds = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for first in range(2, largest // 2 + 1):
        second = np.arange(2, largest // first + 1, dtype=np.int64)
        firsts.append(np.full(len(second), first, np.int64))
        seconds.append(second)
    left, right = np.concatenate(firsts), np.concatenate(seconds)
    order = np.argsort(left * right, kind="stable")
    products, starts = np.unique((left * right)[order], return_index=True)
    return _FactorPairs(left=left[order], right=right[order], products=products, starts=starts)


def tabulation_obstacle(problem: EmbeddingProblem, constraints: ConstraintSet) -> str | None:
    """Return the reason why tables do not hold the executions of a problem, or None."""
    obstacle = digit_model_obstacle(problem, constraints) or joint_digits(problem, constraints)
    if obstacle is not None:
        return obstacle
    for constraint in constraints.constraints:
        if constraint.name not in TABULATED:
            return f"{constraint.name} may depend on all extents of an instruction"
        if isinstance(constraint, Strides) and "one" not in constraint.allowed:
            return "no digit may have a stride of 1"
    return None


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
        self.constraints, self.largest = constraints.without("extents"), largest
        every = self.constraints.constraints
        self._axis_judges = [c for c in every if c.name not in _JUDGE_COUNTS]
        self._count_judges = [c for c in every if c.name in _JUDGE_COUNTS]
        self._blocks: dict[tuple[object, ...], Table] = {}
        self._fused_tiles: dict[tuple[object, ...], Table] = {}

    def feeds(self, problem: EmbeddingProblem) -> FeedSet:
        """Return the feeds of a problem whose instruction is configurable to every shape."""
        tables: dict[_FeedKey, Table] = {}
        options: dict[_FeedKey, tuple[DigitOption, ...]] = {}
        for axis in problem.instruction.axes:
            for name, members in self._walkable(problem):
                positions = self._positions(problem, axis.name, name, members)
                if not positions:
                    continue
                key = axis.name, frozenset(members)
                table = self._executions(problem, positions[0])
                tables[key] = np.minimum(tables[key], table) if key in tables else table
                options.setdefault(key, positions)
        usable = {key: table for key, table in tables.items() if np.isfinite(table).any()}
        return self._related(problem, usable, options)

    def _walkable(self, problem: EmbeddingProblem) -> Iterable[tuple[str, tuple[str, ...]]]:
        """Yield workload axes, and groups of them that may be fused, by name."""
        flatten = self.constraints.flatten
        for axis in problem.workload.axes:
            yield axis.name, (axis.name,)
        yield from candidate_groups(problem.workload, flatten.max_axes, flatten.min_extent).items()

    def _positions(
        self, problem: EmbeddingProblem, axis: str, name: str, members: tuple[str, ...]
    ) -> tuple[DigitOption, ...]:
        """Return the digit as the first of its instruction axis and as a later one, where allowed
        whatever its count."""
        extent = math.prod(problem.workload.extents[member] for member in members)
        # The smallest count and the weights 1 and 2 stand for all: these constraints do not judge
        # the count, nor the weight beyond whether the digit is the first.
        options = [DigitOption(axis, w, Digit(name, 2), members, extent) for w in (1, 2)]
        return tuple(o for o in options if all(c.allows(problem, o) for c in self._axis_judges))

    def _executions(self, problem: EmbeddingProblem, option: DigitOption) -> Table:
        table = self._block_counts(problem, option)
        if len(option.members) > 1:
            table = table + self._fused_penalty(problem, option.members)
        return table

    def _block_counts(self, problem: EmbeddingProblem, option: DigitOption) -> Table:
        """Return the blocks of the axis by count, where padding allows it to be cut so."""
        rule = self.constraints.padding.on(problem)
        limit = rule.limit(option.digit.axis, option.extent)
        fused = len(option.members) > 1
        key = option.extent, limit, fused and (rule.axes == "all" or (rule.axes, option.members))
        if key not in self._blocks:
            table = empty_table(self.largest)
            for count in range(2, self.largest + 1):
                digit = Digit(option.digit.axis, count)
                cut = DigitOption(option.instruction_axis, 1, digit, option.members, option.extent)
                if all(c.allows(problem, cut) for c in self._count_judges):
                    table[count] = -(-option.extent // count)
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
