"""The cost table of a layer: the fewest executions of every shape, without a search for each.

What feeds an instruction axis is a combination of feeds (:mod:`~cpembed.exploration.shapes.feeds`)
whose counts multiply to its extent. Combinations on two instruction axes go together unless they
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

from cpembed.embedding.constraint_set import ConstraintSet
from cpembed.embedding.problem import EmbeddingProblem, LabelMismatch
from cpembed.embedding.search import alternative_problems
from cpembed.errors import WorkloadError
from cpembed.exploration.shapes.feeds import (
    TABULATED,
    Feed,
    FeedSet,
    FeedTables,
    Table,
    join,
    tabulation_obstacle,
    unfed_table,
)
from cpembed.exploration.shapes.shape import AXES, Extents, representative, shapes_within
from cpembed.ir.computation import Computation


@dataclass(frozen=True)
class Scope:
    """The shapes that are compared: those of at most ``macs`` multiply-accumulates, with extents of
    at least ``smallest``, and of powers of two only where ``powers`` is set."""

    macs: int
    powers: bool = False
    smallest: int = 1

    @property
    def shapes(self) -> Extents:
        """All shapes, ascending; their row numbers are the columns of cost tables."""
        return _shapes(self)

    @property
    def largest(self) -> int:
        """The largest extent of any shape."""
        return int(self.shapes.max())


@lru_cache(maxsize=2)
def _shapes(scope: Scope) -> Extents:
    return shapes_within(scope.macs, powers=scope.powers, smallest=scope.smallest)


@dataclass(frozen=True)
class LayerExecutions:
    """The executions of a layer by shape, infinite where a shape has no embedding.

    ``commuted`` marks shapes that fit only with commuted factors. ``reason`` says why no shape
    fits. ``obstacle`` says why tables do not hold the executions, which then are lower bounds.
    """

    executions: NDArray[np.float64]
    commuted: NDArray[np.bool_]
    reason: str | None = None
    obstacle: str | None = None


def layer_executions(
    workload: Computation, constraints: ConstraintSet, scope: Scope
) -> LayerExecutions:
    """Return the fewest executions of each shape, as a search for each would find them.

    Parameters
    ----------
    workload
        The layer, on the element types of the instruction.
    constraints
        The set under which the layer is embedded. Where a shape does not fit with the factors in
        the roles that their order gives them, they are commuted, as ``solve`` does.
    scope
        The shapes.
    """
    table = _tabulated(workload, constraints, scope)
    if table.reason is not None:
        return table
    if table.obstacle is not None:
        table = replace(table, executions=_lower_bounds(workload, constraints, scope))
    elif constraints.get("dataflow") and not constraints.commutes:
        table = _with_commuted(table, workload, constraints, scope)
    if np.isinf(table.executions).all():
        return replace(table, reason=f"no shape fits under {constraints.name}", obstacle=None)
    return table


def _with_commuted(
    table: LayerExecutions, workload: Computation, constraints: ConstraintSet, scope: Scope
) -> LayerExecutions:
    """Add the executions with commuted factors of shapes that do not fit without."""
    if not np.isinf(table.executions).any():
        return table
    second = _tabulated(workload, constraints.with_commuted_operands(), scope)
    commuted = np.isinf(table.executions) & np.isfinite(second.executions)
    executions = np.where(commuted, second.executions, table.executions)
    return replace(table, executions=executions, commuted=commuted)


def _lower_bounds(
    workload: Computation, constraints: ConstraintSet, scope: Scope
) -> NDArray[np.float64]:
    """Return lower bounds: without the constraints that tables do not cover there are more
    embeddings, with the factors in either role; and no execution is more than useful throughout."""
    ideal = np.ceil(workload.macs / scope.shapes.prod(axis=1))
    omitted = [c.name for c in constraints.constraints if c.name not in TABULATED]
    relaxed = constraints.without(*omitted)
    if relaxed.get("dataflow") is not None:
        relaxed = relaxed.with_commuted_operands()
    table = _tabulated(workload, relaxed, scope)
    return ideal if table.reason or table.obstacle else np.maximum(ideal, table.executions)


def _tabulated(workload: Computation, constraints: ConstraintSet, scope: Scope) -> LayerExecutions:
    """Return the executions with the factors in one assignment of roles, infinite where tables do
    not hold them."""
    count = len(scope.shapes)
    unfit = LayerExecutions(np.full(count, np.inf), np.zeros(count, np.bool_))
    try:
        problems = alternative_problems(workload, representative(), constraints)
    except WorkloadError as error:
        return replace(unfit, reason=str(error))
    if isinstance(problems, LabelMismatch):
        return replace(unfit, reason=problems.reason)
    for problem in problems:
        obstacle = tabulation_obstacle(problem, constraints)
        if obstacle is not None:
            return replace(unfit, obstacle=obstacle)
    feed_tables = _feed_tables(constraints, scope.largest)
    tables = [_layer_table(p, feed_tables.feeds(p), scope.largest) for p in problems]
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
            if len(used) < sum(len(resources) for resources, _ in tables):
                continue
            loops = math.prod(e for name, e in self.contested.items() if name not in used)
            product = float(self.unfed * loops) * np.ones(len(shapes))
            for column, (_, table) in enumerate(tables):
                product = product * table[shapes[:, column]]
            best = np.minimum(best, product)
        return best


def _layer_table(problem: EmbeddingProblem, feed_set: FeedSet, largest: int) -> _LayerTable:
    feeds = feed_set.feeds
    fed_axes: dict[str, set[str]] = {}
    for feed in feeds:
        for member in feed.members:
            fed_axes.setdefault(member, set()).add(feed.axis)
    extents = problem.workload.extents
    contested = {name: extents[name] for name, axes in fed_axes.items() if len(axes) > 1}
    unfed = math.prod(e for name, e in extents.items() if name not in fed_axes)
    shared = [group for group in feed_set.exclusive if len({feeds[n].axis for n in group}) > 1]
    by_axis: dict[str, Mapping[_Resources, Table]] = {}
    for axis in AXES:
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
    """Positions of feeds that share an instruction axis, with the executions along their workload
    axes by extent: ``free`` without a feed that has to be the first digit, ``led`` with one."""

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
    yield (), unfed_table(largest)
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
