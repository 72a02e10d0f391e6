"""The best K columns of a cost table, where each layer takes its best of them.

One and two shapes are found by exhausting what bounds leave (:func:`best_one`, :func:`best_two`),
larger sets and those that share a budget by CP-SAT (:func:`best_sets`), as a p-median problem: open
at most K of the shapes, and serve each layer by its best open one. Shapes that another one matches
on every layer are removed beforehand (:func:`undominated`).
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportAttributeAccessIssue=false
from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.time_limit import Clock

Costs = NDArray[np.float64]
"""A row per layer, weighted with how often the network has it; a column per shape. Infinite where
the shape has no embedding in the layer."""

Columns = tuple[int, ...]
"""A set of shapes as ascending columns of a cost table."""

MAX_SETS = 10_000
"""Maximum number of sets near the best that are listed."""

_COMPARED_FIRST = 6
"""Number of layers that decide most comparisons of a shape with the one that may dominate it."""

_ROUNDING = 1e-12
"""Relative tolerance of a cost limit, so that a set that costs exactly the limit is within it."""


@dataclass(frozen=True)
class Budget:
    """A limit on the sum of the ``sizes`` (one per column) of a set's shapes."""

    sizes: Sequence[int]
    limit: int

    def admits(self, columns: Columns) -> bool:
        """True if the shapes of a set fit the budget."""
        return sum(self.sizes[n] for n in columns) <= self.limit


@dataclass(frozen=True)
class SetChoice:
    """The best set and the runner-up, which does not hold all shapes of the best.

    ``sets`` and ``costs`` are empty where no set serves all layers. No set of as many shapes costs
    less than ``bound``; ``runner_up_proven``: nor, without all of the best, less than the second.
    """

    sets: tuple[Columns, ...]
    costs: tuple[float, ...]
    bound: float
    runner_up_proven: bool = True

    @property
    def proven(self) -> bool:
        """True if the first set is proven to be the best."""
        return bool(self.costs) and self.costs[0] <= self.bound


def cost_of(costs: Costs, columns: Sequence[int]) -> float:
    """Return the cost of a set, each layer by its best shape."""
    return float(costs[:, list(columns)].min(axis=1).sum())


def drop_redundant(costs: Costs, columns: Sequence[int]) -> Columns:
    """Return a set without the shapes whose removal does not raise its cost, ascending."""
    needed = sorted(columns)
    cost = cost_of(costs, needed)
    for column in sorted(columns, reverse=True):
        rest = [n for n in needed if n != column]
        if rest and cost_of(costs, rest) <= cost:
            needed = rest
    return tuple(needed)


def best_one(costs: Costs) -> SetChoice:
    """Return the best shape and the runner-up."""
    totals = costs.sum(axis=0)
    first_two = np.argsort(totals, kind="stable")[:2].tolist()
    return _finite([((n,), float(totals[n])) for n in first_two])


def best_two(costs: Costs) -> SetChoice:
    """Return the best set of at most two shapes and the runner-up."""
    best = _best_pair(costs, ())
    runner_up = None if best is None else _best_pair(costs, best[0])
    return _finite([pair for pair in (best, runner_up) if pair is not None])


def _finite(sets: Sequence[tuple[Columns, float]]) -> SetChoice:
    finite = [(columns, cost) for columns, cost in sets if math.isfinite(cost)]
    costs = tuple(cost for _, cost in finite)
    return SetChoice(
        tuple(columns for columns, _ in finite), costs, costs[0] if costs else math.inf
    )


def _best_pair(costs: Costs, excluded: Columns) -> tuple[Columns, float] | None:
    """Return the best set of at most two shapes that does not hold all of ``excluded``."""
    # Shapes are taken in ascending order of their costs alone, each with those after it. With these
    # it costs no less than where each layer takes the best of all of them; where that is not below
    # the best pair so far, the shape is the first of no better pair.
    totals = costs.sum(axis=0)
    order = np.argsort(totals, kind="stable")
    # Every set with this shape holds all of the excluded ones.
    if len(excluded) == 1:
        order = order[order != excluded[0]]
    if not len(order):
        return None
    ordered = np.ascontiguousarray(costs[:, order])
    best, pair = float(totals[order[0]]), (int(order[0]),)
    bounds = np.minimum(ordered[:, :-1], _suffix_minima(ordered)[:, 1:]).sum(axis=0)
    for place in np.flatnonzero(bounds < best):
        # The best pair may have improved since the loop began.
        if bounds[place] >= best:
            continue
        first = int(order[place])
        pairs = np.minimum(ordered[:, place + 1 :], ordered[:, place : place + 1]).sum(axis=0)
        # Of two excluded shapes each may be in the set, but not both.
        if first in excluded:
            pairs[np.isin(order[place + 1 :], excluded)] = np.inf
        second = int(np.argmin(pairs))
        if pairs[second] < best:
            best, pair = float(pairs[second]), (first, int(order[place + 1 + second]))
    return (drop_redundant(costs, pair), best) if math.isfinite(best) else None


def _suffix_minima(ordered: Costs) -> Costs:
    return np.minimum.accumulate(ordered[:, ::-1], axis=1)[:, ::-1]


def undominated(costs: Costs, preference: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the columns that no other column matches or beats on every layer.

    They are ascending by their total costs; of equal columns the one of the least ``preference``
    remains. No set of K columns is better than the best one of those that remain.
    """
    if not costs.size:
        return np.arange(min(costs.shape[1], 1), dtype=np.int64)
    # Sums with infinite costs have no order, so the number of infinite costs comes first.
    missing = np.isinf(costs).sum(axis=0)
    sums = np.where(np.isinf(costs), 0.0, costs).sum(axis=0)
    remaining = np.lexsort((preference, sums, missing))
    result: list[int] = []
    # The layers on which costs vary most come first, as most comparisons end there.
    ordered = np.ascontiguousarray(costs[np.argsort(-_variation(costs))][:, remaining])
    while len(remaining):
        # What dominates a column has a smaller sum, or as large a one and a smaller preference, so
        # that the first remaining column is undominated, and only later ones can be dominated by
        # it.
        head = ordered[:, 0]
        result.append(int(remaining[0]))
        better = ordered[:_COMPARED_FIRST] < head[:_COMPARED_FIRST, None]
        survives = np.array(better.any(axis=0), np.bool_)
        unsure = np.flatnonzero(~survives)
        later = (ordered[_COMPARED_FIRST:, unsure] < head[_COMPARED_FIRST:, None]).any(axis=0)
        survives[unsure[later]] = True
        remaining, ordered = remaining[survives], ordered[:, survives]
    return np.array(result, np.int64)


def undominated_without(
    costs: Costs, preference: NDArray[np.int64], columns: NDArray[np.int64], excluded: int
) -> NDArray[np.int64]:
    """Return the undominated columns where one column is excluded from the table.

    Parameters
    ----------
    costs, preference
        As in :func:`undominated`.
    columns
        The undominated columns of the whole table.
    excluded
        The column to leave out.
    """
    rest = columns[columns != excluded]
    dominated = np.flatnonzero((costs >= costs[:, excluded : excluded + 1]).all(axis=0))
    candidates = np.union1d(rest, dominated[dominated != excluded])
    return candidates[undominated(costs[:, candidates], preference[candidates])]


def _variation(costs: Costs) -> NDArray[np.float64]:
    """Return the ratio of the mean cost to the best on each layer."""
    finite = np.isfinite(costs)
    mean = np.where(finite, costs, 0.0).sum(axis=1) / np.maximum(finite.sum(axis=1), 1)
    least = costs.min(axis=1)
    usable = np.isfinite(least) & (least > 0)
    return np.where(usable, mean / np.where(usable, least, 1.0), 0.0)


@dataclass(frozen=True)
class NearSets:
    """Sets with their costs in ascending order; ``complete``: these are all within the limit."""

    sets: tuple[tuple[Columns, float], ...]
    complete: bool

    @staticmethod
    def first_of(sets: Sequence[tuple[Columns, float]], *, complete: bool) -> NearSets:
        """Return the first :data:`MAX_SETS` of sets in any order."""
        ordered = sorted(sets, key=lambda item: (item[1], item[0]))
        return NearSets(tuple(ordered[:MAX_SETS]), complete and len(ordered) <= MAX_SETS)


def cost_limit(best: float, percent: float) -> float:
    """Return the maximum cost of a set within a percentage of the best cost."""
    return best * (1 + percent / 100) * (1 + _ROUNDING)


def sets_within(
    costs: Costs, count: int, limit: float, clock: Clock, budget: Budget | None = None
) -> NearSets:
    """Return all sets that cost at most a limit and have no redundant shape.

    Parameters
    ----------
    costs
        The cost table.
    count
        Maximum number of shapes in a set.
    limit
        Maximum cost of a set.
    clock
        When it runs out, the sets listed so far are returned as incomplete.
    budget
        A limit on the sizes of a set's shapes.
    """
    sets: list[tuple[Columns, float]] = []
    for columns, cost in _grown(costs, count, limit):
        if clock.is_over:
            return NearSets.first_of(sets, complete=False)
        if budget is not None and not budget.admits(columns):
            continue
        if drop_redundant(costs, columns) == columns:
            sets.append((columns, cost))
            # Enough to list the cheapest ones, while memory and time stay bounded.
            if len(sets) > MAX_SETS * 10:
                return NearSets.first_of(sets, complete=False)
    return NearSets.first_of(sets, complete=True)


def _grown(costs: Costs, count: int, limit: float) -> Iterator[tuple[Columns, float]]:
    """Yield the sets within the limit, each with its cost."""
    order = np.argsort(costs.sum(axis=0), kind="stable")
    ordered = np.ascontiguousarray(costs[:, order])
    minima = _suffix_minima(ordered)

    def grow(places: Columns, least: Costs, begin: int) -> Iterator[tuple[Columns, float]]:
        extended = np.minimum(ordered[:, begin:], least[:, None])
        sums = extended.sum(axis=0)
        for place in np.flatnonzero(sums <= limit).tolist():
            columns = (*places, begin + place)
            yield tuple(sorted(int(order[n]) for n in columns)), float(sums[place])
        if len(places) + 1 == count:
            return
        # With all shapes that follow, a set costs no less than where each layer takes the best of
        # these; where that is above the limit the set is not extended.
        bounds = np.minimum(extended[:, :-1], minima[:, begin + 1 :]).sum(axis=0)
        for place in np.flatnonzero(bounds <= limit).tolist():
            yield from grow((*places, begin + place), extended[:, place], begin + place + 1)

    if len(order):
        yield from grow((), np.full(len(costs), np.inf), 0)


_BEST_SHARE = 0.75
"""Fraction of the time for the best set; the runner-up gets what is left."""


@dataclass(frozen=True)
class SetLimits:
    """Limits on a set of shapes.

    It has at most ``count`` shapes, fits a ``budget`` over all columns and does not hold all of
    ``excluded``; ``seconds`` limits the search for it.
    """

    count: int
    budget: Budget | None = None
    excluded: Columns = ()
    seconds: float | None = None


@dataclass(frozen=True)
class Solution:
    """The answer of CP-SAT.

    ``values`` are those of literals by index, None where no solution was found; ``bound`` is a
    lower bound of the objective, infinite where the model is infeasible.
    """

    values: Sequence[int] | None
    bound: float

    @property
    def infeasible(self) -> bool:
        """True if the model is proven to have no solution."""
        return self.bound == math.inf


class OpenShapes:
    """A CP-SAT model with a literal per column that says whether the shape is in the set."""

    def __init__(self, columns: Iterable[int], limits: SetLimits) -> None:
        from ortools.sat.python import cp_model

        self.model = cp_model.CpModel()
        self.open = {column: self.model.new_bool_var("") for column in columns}
        self._seconds = limits.seconds
        self.model.add(sum(self.open.values()) <= limits.count)
        if limits.budget is not None:
            sizes = limits.budget.sizes
            total = sum(sizes[column] * literal for column, literal in self.open.items())
            self.model.add(total <= limits.budget.limit)
        if limits.excluded and all(column in self.open for column in limits.excluded):
            opened = sum(self.open[column] for column in limits.excluded)
            self.model.add(opened <= len(limits.excluded) - 1)

    def minimize(self, objective: Any) -> Solution:
        """Minimize an objective of integers on one thread, so that the answer is reproducible."""
        from ortools.sat.python import cp_model_helper as cmh

        from cpembed.embedding.cpsat import solve_in_thread

        self.model.minimize(objective)
        wrapper = cmh.SolveWrapper()
        parameters = cmh.SatParameters()
        parameters.num_workers = 1
        # The relaxation of such choices is nearly tight: 0.2 s instead of 6.4 s for two shapes of
        # MobileNetV2 with its layouts.
        parameters.linearization_level = 2
        parameters.catch_sigint_signal = False
        if self._seconds is not None:
            parameters.max_time_in_seconds = max(self._seconds, 0.01)
        wrapper.set_parameters(parameters)
        response = solve_in_thread(wrapper, self.model.proto)
        if response.status.name == "INFEASIBLE":
            return Solution(None, math.inf)
        bound = response.best_objective_bound
        if math.isfinite(bound):
            # Objectives are integers, the bound is a sum of floating-point numbers.
            bound = float(math.ceil(bound - 1e-6))
        solved = response.status.name in ("OPTIMAL", "FEASIBLE")
        return Solution(list(response.solution) if solved else None, bound)


def best_sets(
    costs: Costs, count: int, seconds: float | None = None, budget: Budget | None = None
) -> SetChoice:
    """Return the best set and the runner-up, or the best ones found in the time, with a bound.

    Parameters
    ----------
    costs
        The cost table; finite costs are integers.
    count
        Maximum number of shapes in a set.
    seconds
        Time limit for both searches; None for no limit.
    budget
        A limit on the sizes of a set's shapes.
    """
    if np.isinf(costs.min(axis=1)).any():
        return SetChoice((), (), math.inf)
    clock = Clock(seconds)
    # A good set first: levels that cost more than it does are left out of the model.
    start = greedy(costs, count, budget)
    left = clock.left()
    limits = SetLimits(count, budget, (), None if left is None else _BEST_SHARE * left)
    columns, bound = _best_set(costs, limits, start)
    if columns is None:
        return SetChoice((), (), bound)
    best = (cost_of(costs, columns), drop_redundant(costs, columns))
    limits = SetLimits(count, budget, best[1], clock.left())
    columns, second_bound = _best_set(costs, limits, None)
    if columns is None:
        return SetChoice((best[1],), (best[0],), bound, not math.isfinite(second_bound))
    # A search that was stopped may find the better set second.
    (low, first), (high, second) = sorted(
        [best, (cost_of(costs, columns), drop_redundant(costs, columns))]
    )
    return SetChoice((first, second), (low, high), bound, low <= bound and high <= second_bound)


def greedy(costs: Costs, count: int, budget: Budget | None = None) -> Columns | None:
    """Return a good set as a start: shapes are added one by one, then exchanged while that helps.

    Parameters
    ----------
    costs, count, budget
        As in :func:`best_sets`.

    Returns
    -------
    The set, or None where the budget, or layers without an embedding, leave no set to such steps.
    """
    columns: list[int] = []
    for _ in range(min(count, costs.shape[1])):
        best = _best_addition(costs, columns, budget)
        if best is None:
            break
        columns.append(best)
    improved = True
    while improved and columns:
        improved = False
        for place in range(len(columns)):
            rest = columns[:place] + columns[place + 1 :]
            best = _best_addition(costs, rest, budget)
            if best is not None and _measure(costs, [*rest, best]) < _measure(costs, columns):
                columns, improved = [*rest, best], True
    result = tuple(sorted(columns))
    return result if result and math.isfinite(cost_of(costs, result)) else None


def _measure(costs: Costs, columns: Sequence[int]) -> tuple[int, float]:
    """Return the number of layers without an embedding, then the cost of the rest."""
    least = costs[:, list(columns)].min(axis=1)
    return int(np.isinf(least).sum()), float(least[np.isfinite(least)].sum())


def _best_addition(costs: Costs, columns: Sequence[int], budget: Budget | None) -> int | None:
    """Return the shape within the budget that lowers the cost of a set most."""
    least = costs[:, list(columns)].min(axis=1) if columns else np.full(len(costs), np.inf)
    extended = np.minimum(costs, least[:, None])
    missing = np.isinf(extended).sum(axis=0)
    sums = np.where(np.isinf(extended), 0.0, extended).sum(axis=0)
    order = np.lexsort((sums, missing))
    if budget is not None:
        used = sum(budget.sizes[n] for n in columns)
        order = order[used + np.array(budget.sizes)[order] <= budget.limit]
    # At most as many of the first columns are in the set already.
    candidates = [int(n) for n in order[: len(columns) + 1] if n not in columns]
    return candidates[0] if candidates else None


def _best_set(
    costs: Costs, limits: SetLimits, start: Columns | None
) -> tuple[Columns | None, float]:
    """Return the best set that CP-SAT finds, beginning with ``start``, and a bound of all sets."""
    shapes = OpenShapes(range(costs.shape[1]), limits)
    cost = math.inf if start is None else cost_of(costs, start)
    constant, terms = _levels(shapes, costs, cost)
    if start is not None:
        for column, literal in shapes.open.items():
            shapes.model.add_hint(literal, column in start)
    solution = shapes.minimize(sum(weight * literal for weight, literal in terms))
    if solution.infeasible:
        return None, math.inf
    floor = float(costs.min(axis=1).sum()) if len(costs) else 0.0
    # Out of time before the first solution: nothing is known but that each layer costs its least.
    if solution.values is None:
        return start, floor
    opened = [n for n, literal in shapes.open.items() if solution.values[literal.index]]
    return tuple(opened), max(floor, constant + solution.bound)


def _levels(shapes: OpenShapes, costs: Costs, limit: float) -> tuple[int, list[tuple[int, Any]]]:
    """Post the levels of each layer; return the cost of all sets and the terms to add to it.

    A layer's distinct costs ``D_0 < D_1 < …`` are levels: ``z_k`` says that no open shape reaches
    level ``k``, so that the layer costs ``D_0 + sum (D_{k+1} - D_k) z_k``; ``z_{k-1}`` and no open
    shape of cost ``D_k`` imply ``z_k`` (Elloumi, A tighter formulation of the p-median problem,
    Journal of Combinatorial Optimization 19, 2010).
    """
    model = shapes.model
    floors = costs.min(axis=1)
    slack = limit - floors.sum()
    constant, terms = 0, []
    for row, floor in zip(costs, floors, strict=True):
        # With a level above this one the set costs more than the limit.
        usable = np.isfinite(row) & (row <= floor + slack)
        levels: list[float] = np.unique(row[usable]).tolist()
        constant += int(levels[0])
        above = None
        for level, value in enumerate(levels):
            served = [shapes.open[n] for n in np.flatnonzero(row == value).tolist()]
            reached = [] if above is None else [above.negated()]
            # Some open shape has to reach the last level, else the set costs more than the limit.
            if level == len(levels) - 1:
                model.add_bool_or([*served, *reached])
                break
            missed = model.new_bool_var("")
            model.add_bool_or([*served, missed, *reached])
            terms.append((int(levels[level + 1] - value), missed))
            above = missed
    return constant, terms
