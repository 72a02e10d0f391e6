"""The cost table of a layer: the fewest executions of every shape, without a search for each.

A **feed** is a workload axis, or a group of axes that may be fused, on one instruction axis, with
the counts that a digit along it may have there, as the constraints themselves allow them.
Constraint sets whose judgement depends on more are searched shape by shape.

A combination of feeds on an instruction axis has counts that multiply to its extent, and executions
are a product over digits. So a table over extents is joined from smaller ones over the pairs of
factors. Combinations on two instruction axes go together unless they
use the same resource: a workload axis, or a dimension of an operand that only one digit may move
along. So an instruction axis has a table for each set of shared resources that its combinations
use, and the executions of a shape are the least product over disjoint sets.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from cpembed.embedding.commute import Pairing
from cpembed.embedding.constraint_set import ConstraintSet
from cpembed.embedding.constraints.digits import Strides
from cpembed.embedding.digit_search import digit_model_obstacle, joint_digits
from cpembed.embedding.problem import EmbeddingProblem, LabelMismatch
from cpembed.errors import WorkloadError
from cpembed.exploration.shapes.feeds import Feed, FeedSet, FeedTables, Table, empty_table, join
from cpembed.exploration.shapes.shape import AXES, Extents, Scope, representative
from cpembed.hw.instruction import HardwareSpec, Instruction
from cpembed.ir.computation import Computation

TABULATED = (
    *("dataflow", "all_different", "hyper_rectangle", "fixed_origin", "dense", "linear_access"),
    *("strides", "digits", "extents", "padding"),
)
"""Constraints that judge a digit of stride 1 by the axes that it walks, by whether it is the first
of its instruction axis, and (``padding``) by its count, never by the instruction's other extents.
"""


def _tabulation_obstacle(problem: EmbeddingProblem, constraints: ConstraintSet) -> str | None:
    """Return the reason why tables do not hold the executions of a problem, or None."""
    obstacle = digit_model_obstacle(problem, constraints) or joint_digits(problem, constraints)
    if obstacle is not None:
        return obstacle
    for constraint in constraints.constraints:
        if constraint.name not in TABULATED:
            return f"{constraint.name} may depend on all extents of an instruction"
        # Only digits of stride 1 are tabulated. They need the fewest executions, because
        # ceil(extent / (count * stride)) * stride does not decrease with the stride.
        if isinstance(constraint, Strides) and "one" not in constraint.allowed:
            return "no digit may have a stride of 1"
    return None


@dataclass(frozen=True)
class LayerExecutions:
    """The executions of a layer by shape, infinite where a shape has no embedding.

    ``commuted`` marks shapes that fit only with commuted factors. ``reason`` says why no shape
    fits. ``obstacle`` says why tables do not hold the executions, which then are lower bounds.
    ``inside`` are lower bounds of the executions that multiply more than padding, which alone take
    time on a described machine; None where times are not asked for.
    """

    executions: NDArray[np.float64]
    commuted: NDArray[np.bool_]
    reason: str | None = None
    obstacle: str | None = None
    inside: NDArray[np.float64] | None = None


def layer_executions(
    workload: Computation,
    constraints: ConstraintSet,
    scope: Scope,
    spec: HardwareSpec,
    timed: bool = False,
) -> LayerExecutions:
    """Return the fewest instruction executions that the layer needs on each shape.

    They equal the result of a search per shape, or are lower bounds where ``obstacle`` is set.

    Parameters
    ----------
    workload
        The layer, on the element types of the instruction.
    constraints
        Constraint set of the embeddings. If it has the constraint ``dataflow`` and a shape has no
        embedding with the factors in their order, the two factors are swapped, as in ``solve``.
    scope
        Instruction shapes to evaluate.
    spec
        Specification with the element types and memories of all shapes.
    timed
        True for ``inside``, the lower bounds for times.
    """
    instruction = representative(spec)
    table = _tabulated(workload, constraints, scope, instruction)
    if table.reason is not None:
        return table
    if timed:
        table = replace(table, inside=_inside(workload, constraints, scope, instruction))
    if table.obstacle is not None:
        table = replace(table, executions=_lower_bounds(workload, constraints, scope, instruction))
    elif constraints.get("dataflow") and not constraints.commutes:
        table = _with_commuted(table, workload, constraints, scope, instruction)
    if np.isinf(table.executions).all():
        return replace(table, reason=f"no shape fits under {constraints.name}", obstacle=None)
    return table


def _with_commuted(
    table: LayerExecutions,
    workload: Computation,
    constraints: ConstraintSet,
    scope: Scope,
    instruction: Instruction,
) -> LayerExecutions:
    """Add the executions with commuted factors of shapes that do not fit without."""
    if not np.isinf(table.executions).any():
        return table
    second = _tabulated(workload, constraints.with_commuted_operands(), scope, instruction)
    commuted = np.isinf(table.executions) & np.isfinite(second.executions)
    executions = np.where(commuted, second.executions, table.executions)
    return replace(table, executions=executions, commuted=commuted)


def _lower_bounds(
    workload: Computation,
    constraints: ConstraintSet,
    scope: Scope,
    instruction: Instruction,
    charged: Mapping[str, int] | None = None,
) -> NDArray[np.float64]:
    """Return lower bounds of the executions where tables do not hold them."""
    # Without the constraints that tables do not cover there are more embeddings, also with the
    # factors in either role; and no execution is more than useful throughout.
    macs = workload.macs if charged is None else workload.macs_inside
    ideal = np.ceil(macs / scope.shapes.prod(axis=1))
    omitted = [c.name for c in constraints.constraints if c.name not in TABULATED]
    relaxed = constraints.removing(*omitted)
    if relaxed.get("dataflow") is not None:
        relaxed = relaxed.with_commuted_operands()
    table = _tabulated(workload, relaxed, scope, instruction, charged)
    return ideal if table.reason or table.obstacle else np.maximum(ideal, table.executions)


def _inside(
    workload: Computation, constraints: ConstraintSet, scope: Scope, instruction: Instruction
) -> NDArray[np.float64]:
    """Return lower bounds of the executions that multiply more than padding."""
    charged = _extents_inside(workload)
    if charged is None:
        return np.ceil(workload.macs_inside / scope.shapes.prod(axis=1))
    return _lower_bounds(workload, constraints, scope, instruction, charged)


def _extents_inside(workload: Computation) -> dict[str, int] | None:
    """Return the places of each axis from which an operand is inside at any place of the others.

    An execution has no more places of an axis than its digit counts. Whatever the others are, so
    many executions multiply more than padding as these places need. None where several dimensions
    have an axis in common, so that places inside one may be outside the other.
    """
    extents, counted = dict(workload.extents), set[str]()
    for operand in workload.inputs:
        if not operand.zero_outside:
            continue
        for expression, size in zip(
            workload.access(operand.name).index, operand.shape, strict=True
        ):
            names = sorted(set(expression.iterators), key=lambda name: -workload.extents[name])
            grids = np.meshgrid(*(np.arange(workload.extents[n]) for n in names), indexing="ij")
            position = np.asarray(expression.evaluate(dict(zip(names, grids, strict=True))))
            inside = (position >= 0) & (position < size)
            if inside.all():
                continue
            if not counted.isdisjoint(names):
                return None
            counted.update(names)
            extents[names[0]] = int(inside.sum(axis=0).min())
    return extents


def _tabulated(
    workload: Computation,
    constraints: ConstraintSet,
    scope: Scope,
    instruction: Instruction,
    charged: Mapping[str, int] | None = None,
) -> LayerExecutions:
    """Return the executions under one constraint set; infinite where tables do not hold them.

    ``charged`` are extents of axes for which executions are counted, if not all.
    """
    count = len(scope.shapes)
    unfit = LayerExecutions(np.full(count, np.inf), np.zeros(count, np.bool_))
    try:
        problems = Pairing(workload, instruction).problems(constraints.commutes)
    except WorkloadError as error:
        return replace(unfit, reason=str(error))
    if isinstance(problems, LabelMismatch):
        return replace(unfit, reason=problems.reason)
    for problem in problems:
        obstacle = _tabulation_obstacle(problem, constraints)
        if obstacle is not None:
            return replace(unfit, obstacle=obstacle)
    feed_tables = _feed_tables(constraints, scope.largest)
    tables = [
        _layer_table(feed_tables.feeds(p, charged), charged or workload.extents, scope.largest)
        for p in problems
    ]
    least = np.minimum.reduce([table.executions(scope.shapes) for table in tables])
    return replace(unfit, executions=least)


# What depends on extents alone is shared by the layers of a suite.
_feed_tables: Callable[[ConstraintSet, int], FeedTables] = lru_cache(maxsize=4)(FeedTables)

_Resources = frozenset[str]
"""Names of the shared resources that a combination uses: workload axes that several instruction
axes could use, and (``#n``) groups of feeds that exclude each other."""


@dataclass(frozen=True)
class _LayerTable:
    """Executions of a layer under one assignment of its operands.

    They are ``unfed`` along the axes that feed nothing, times a table for each instruction axis,
    times the extents of ``contested`` axes that no table uses.
    """

    by_axis: Mapping[str, Mapping[_Resources, Table]]
    unfed: int
    contested: Mapping[str, int]

    def executions(self, shapes: Extents) -> NDArray[np.float64]:
        """Return the executions of each shape, infinite where it has no embedding."""
        best = np.full(len(shapes), np.inf)
        for tables in itertools.product(*(self.by_axis[axis].items() for axis in AXES)):
            used = frozenset[str]().union(*(resources for resources, _ in tables))
            # Two instruction axes would use the same workload axis, or the same dimension of an
            # operand.
            if len(used) < sum(len(resources) for resources, _ in tables):
                continue
            # A contested axis that no instruction axis walks is a loop around the instruction.
            loops = math.prod(e for name, e in self.contested.items() if name not in used)
            product = float(self.unfed * loops) * np.ones(len(shapes))
            for column, (_, table) in enumerate(tables):
                product = product * table[shapes[:, column]]
            best = np.minimum(best, product)
        return best


def _layer_table(feed_set: FeedSet, extents: Mapping[str, int], largest: int) -> _LayerTable:
    feeds = feed_set.feeds
    fed_axes: dict[str, set[str]] = {}
    for feed in feeds:
        for member in feed.members:
            fed_axes.setdefault(member, set()).add(feed.axis)
    contested = {name: extents[name] for name, axes in fed_axes.items() if len(axes) > 1}
    unfed = math.prod(e for name, e in extents.items() if name not in fed_axes)
    shared = [group for group in feed_set.exclusive if len({feeds[n].axis for n in group}) > 1]
    by_axis: dict[str, Mapping[_Resources, Table]] = {}
    for axis in AXES:
        # Axes that may only feed this instruction axis are loops where the combination lacks them,
        # so their extents belong to its table.
        private = {n: e for n, e in extents.items() if fed_axes.get(n) == {axis}}
        tables: dict[_Resources, Table] = {}
        for combination, table in _combinations(feed_set, axis, largest):
            members = {member for n in combination for member in feeds[n].members}
            groups = (n for n, group in enumerate(shared) if not group.isdisjoint(combination))
            resources = frozenset([*(members & contested.keys()), *(f"#{n}" for n in groups)])
            total = table * math.prod(e for name, e in private.items() if name not in members)
            best = tables.get(resources)
            tables[resources] = total if best is None else np.minimum(best, total)
        by_axis[axis] = _undominated(tables)
    return _LayerTable(by_axis, unfed, contested)


def _undominated(tables: Mapping[_Resources, Table]) -> dict[_Resources, Table]:
    """Drop tables that use more resources than others and are nowhere better."""
    undominated: dict[_Resources, Table] = {}
    for resources, table in sorted(
        tables.items(), key=lambda item: (len(item[0]), sorted(item[0]))
    ):
        cheaper = [rival for fewer, rival in undominated.items() if fewer <= resources]
        if not cheaper or (table < np.minimum.reduce(cheaper)).any():
            undominated[resources] = table
    return undominated


@dataclass(frozen=True)
class _Combination:
    """Feeds that share an instruction axis, by position, with their executions by extent.

    ``free`` is the table without a feed that has to be the first digit, ``led`` that with one.
    """

    feeds: tuple[int, ...] = ()
    free: Table | None = None
    led: Table | None = None

    @property
    def table(self) -> Table | None:
        """The fewest executions by extent; None where no extent has any."""
        tables = [table for table in (self.free, self.led) if table is not None]
        least = np.minimum.reduce(tables) if tables else None
        return None if least is None or not np.isfinite(least).any() else least

    def extended(self, position: int, feed: Feed) -> _Combination:
        """Add a feed. At most one of a combination has to be the first digit."""
        free = led = None
        if not self.feeds:
            free, led = (None, feed.executions) if feed.first_digit else (feed.executions, None)
        else:
            base = self.free if feed.first_digit else self.led
            led = None if base is None else join(base, feed.executions)
            if not feed.first_digit and self.free is not None:
                free = join(self.free, feed.executions)
        return _Combination((*self.feeds, position), free, led)


def _combinations(
    feed_set: FeedSet, axis: str, largest: int
) -> Iterator[tuple[tuple[int, ...], Table]]:
    """Yield all sets of feeds that can share an instruction axis, with their executions."""
    # Without digits the axis has extent 1, at one execution.
    unfed = empty_table(largest)
    unfed[1] = 1.0
    yield (), unfed
    candidates = [n for n, feed in enumerate(feed_set.feeds) if feed.axis == axis]
    excluded = {
        n: frozenset(m for group in feed_set.exclusive if n in group for m in group) - {n}
        for n in candidates
    }
    limit = feed_set.digit_limits[axis]

    def grow(
        combination: _Combination, remaining: Sequence[int]
    ) -> Iterator[tuple[tuple[int, ...], Table]]:
        if len(combination.feeds) == limit:
            return
        # Only later feeds are added, so that each set is built once.
        for place, position in enumerate(remaining):
            feed = feed_set.feeds[position]
            if any(
                position in excluded[n] or feed.members & feed_set.feeds[n].members
                for n in combination.feeds
            ):
                continue
            if feed.sole_digit:
                if not combination.feeds:
                    yield (position,), feed.executions
                continue
            larger = combination.extended(position, feed)
            table = larger.table
            if table is not None:
                yield larger.feeds, table
                yield from grow(larger, remaining[place + 1 :])

    yield from grow(_Combination(), candidates)
