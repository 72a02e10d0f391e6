"""The best K shapes by CP-SAT, where K is three or more or the shapes share a budget.

It is the p-median problem: open at most K of the shapes, and serve each layer by its best open one.
A layer's distinct costs ``D_0 < D_1 < …`` are levels: ``z_k`` says that no open shape reaches
level ``k``, so that the layer costs ``D_0 + sum (D_{k+1} - D_k) z_k``; ``z_{k-1}`` and no open
shape of cost ``D_k`` imply ``z_k`` (Elloumi, A tighter formulation of the p-median problem,
Journal of Combinatorial Optimization 19, 2010). Levels that cost more than a known set
are left out.

The choice of open shapes (:class:`OpenShapes`) is shared with the model of layouts
(:mod:`~cpembed.exploration.shapes.layout_model`).
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportAttributeAccessIssue=false
from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cpembed.exploration.shapes.choice import (
    Budget,
    Columns,
    Costs,
    SetChoice,
    cost_of,
    drop_redundant,
)
from cpembed.time_limit import Clock

_BEST_SHARE = 0.75
"""Fraction of the time for the best set; the runner-up gets what is left."""


@dataclass(frozen=True)
class SetLimits:
    """Limits on a set of shapes: at most ``count``, within a ``budget`` over all columns, and not
    all of ``excluded``; ``seconds`` limits the search for it."""

    count: int
    budget: Budget | None = None
    excluded: Columns = ()
    seconds: float | None = None


@dataclass(frozen=True)
class Solution:
    """The answer of CP-SAT: the ``values`` of literals by index, None where no solution was found,
    and a lower ``bound`` of the objective, infinite where the model is infeasible."""

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
    if solution.values is None:
        return start, floor
    opened = [n for n, literal in shapes.open.items() if solution.values[literal.index]]
    return tuple(opened), max(floor, constant + solution.bound)


def _levels(shapes: OpenShapes, costs: Costs, limit: float) -> tuple[int, list[tuple[int, Any]]]:
    """Post the levels of each layer; return the cost of all sets and the terms to add to it."""
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
            if level == len(levels) - 1:
                model.add_bool_or([*served, *reached])
                break
            missed = model.new_bool_var("")
            model.add_bool_or([*served, missed, *reached])
            terms.append((int(levels[level + 1] - value), missed))
            above = missed
    return constant, terms
