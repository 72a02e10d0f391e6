"""The best K shapes by CP-SAT, where K is three or more or the shapes share a budget.

It is the p-median problem: open at most K of the shapes, and serve each layer by its best open one.
A layer's distinct costs ``D_0 < D_1 < …`` are levels: ``z_k`` says that no open shape reaches
level ``k``, so that the layer costs ``D_0 + sum (D_{k+1} - D_k) z_k``; ``z_{k-1}`` and no open
shape of cost ``D_k`` imply ``z_k`` (Elloumi, A tighter formulation of the p-median problem,
Journal of Combinatorial Optimization 19, 2010). Levels that cost more than a known set
are left out.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportAttributeAccessIssue=false
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cpembed.exploration.shapes.choice import Costs, Found, cost_of, needed
from cpembed.time_limit import Clock

_SHARE = 0.75
"""Of the time, for the best set; the runner-up gets what is left."""


@dataclass(frozen=True)
class Budget:
    """What the shapes of a set may have together: ``sizes`` per shape, ``most`` in all."""

    sizes: Sequence[int]
    most: int


def best_sets(
    costs: Costs, count: int, seconds: float | None = None, budget: Budget | None = None
) -> Found:
    """The best set of at most ``count`` shapes and the runner-up, or the best that were found in
    the time, with a bound. Costs are integers."""
    if np.isinf(costs.min(axis=1)).any():
        return Found((), (), math.inf)
    clock = Clock(seconds)
    start = greedy(costs, count, budget)
    left = clock.left()
    first = _solve(costs, count, start, None if left is None else _SHARE * left, budget, ())
    if first.chosen is None:
        return Found((), (), first.bound)
    best = (cost_of(costs, first.chosen), needed(costs, first.chosen))
    second = _solve(costs, count, None, clock.left(), budget, best[1])
    if second.chosen is None:
        return Found((best[1],), (best[0],), first.bound, not math.isfinite(second.bound))
    other = (cost_of(costs, second.chosen), needed(costs, second.chosen))
    (low, one), (high, two) = sorted([best, other])
    proven = low <= first.bound and high <= second.bound
    return Found((one, two), (low, high), first.bound, proven)


def greedy(costs: Costs, count: int, budget: Budget | None = None) -> tuple[int, ...] | None:
    """A good set: shapes added one by one, then exchanged while that helps; None where the budget
    or layers without an embedding leave none to such steps."""
    chosen: list[int] = []
    for _ in range(min(count, costs.shape[1])):
        options = _improvements(costs, chosen, budget)
        if options is None:
            break
        chosen.append(options)
    better = True
    while better and chosen:
        better = False
        for place in range(len(chosen)):
            rest = chosen[:place] + chosen[place + 1 :]
            other = _improvements(costs, rest, budget)
            if other is not None and _measure(costs, [*rest, other]) < _measure(costs, chosen):
                chosen, better = [*rest, other], True
    found = tuple(sorted(chosen))
    return found if found and math.isfinite(cost_of(costs, found)) else None


def _measure(costs: Costs, chosen: Sequence[int]) -> tuple[int, float]:
    """Layers without an embedding, then what the others cost."""
    least = costs[:, list(chosen)].min(axis=1)
    return int(np.isinf(least).sum()), float(least[np.isfinite(least)].sum())


def _improvements(costs: Costs, chosen: Sequence[int], budget: Budget | None) -> int | None:
    """The shape that helps most beside those chosen, that the budget allows."""
    held = costs[:, list(chosen)].min(axis=1) if chosen else np.full(len(costs), np.inf)
    together = np.minimum(costs, held[:, None])
    missing = np.isinf(together).sum(axis=0)
    sums = np.where(np.isinf(together), 0.0, together).sum(axis=0)
    order = np.lexsort((sums, missing))
    if budget is not None:
        used = sum(budget.sizes[n] for n in chosen)
        sizes = np.array(budget.sizes)[order]
        order = order[used + sizes <= budget.most]
    order = [int(n) for n in order[: len(chosen) + 1] if n not in chosen]
    return order[0] if order else None


@dataclass(frozen=True)
class _Solved:
    chosen: tuple[int, ...] | None
    bound: float


def _solve(
    costs: Costs,
    count: int,
    start: tuple[int, ...] | None,
    seconds: float | None,
    budget: Budget | None,
    without: Sequence[int],
) -> _Solved:
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    opened = [model.new_bool_var("") for _ in range(costs.shape[1])]
    model.add(sum(opened) <= count)
    if budget is not None:
        model.add(sum(s * o for s, o in zip(budget.sizes, opened, strict=True)) <= budget.most)
    if without:
        model.add(sum(opened[n] for n in without) <= len(without) - 1)
    limit = math.inf if start is None else cost_of(costs, start)
    constant, terms = _levels(model, opened, costs, limit)
    model.minimize(sum(weight * literal for weight, literal in terms))
    if start is not None:
        for number, literal in enumerate(opened):
            model.add_hint(literal, number in start)
    response = solved(model, seconds)
    floor = float(costs.min(axis=1).sum()) if len(costs) else 0.0
    if response.status.name == "INFEASIBLE":
        return _Solved(None, math.inf)
    if response.status.name not in ("OPTIMAL", "FEASIBLE"):
        return _Solved(start, floor)
    values = list(response.solution)
    picked = tuple(n for n, literal in enumerate(opened) if values[literal.index])
    bound = constant + math.ceil(response.best_objective_bound - 1e-6)
    return _Solved(picked, max(floor, float(bound)))


def solved(model: Any, seconds: float | None) -> Any:
    """What CP-SAT answers within the time, on one thread, so that it is the same every time."""
    from ortools.sat.python import cp_model_helper as cmh

    from cpembed.embedding.cpsat import solve_in_thread

    wrapper = cmh.SolveWrapper()
    parameters = cmh.SatParameters()
    parameters.num_workers = 1
    # The relaxation of such choices is nearly tight: 0.2 s instead of 6.4 s for two shapes of
    # MobileNetV2 with its layouts.
    parameters.linearization_level = 2
    parameters.catch_sigint_signal = False
    if seconds is not None:
        parameters.max_time_in_seconds = max(seconds, 0.01)
    wrapper.set_parameters(parameters)
    return solve_in_thread(wrapper, model.proto)


def _levels(
    model: Any, opened: Sequence[Any], costs: Costs, limit: float
) -> tuple[int, list[tuple[int, Any]]]:
    """Post the levels of each layer; what all sets cost, and the weighted literals of the rest."""
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
            here = [opened[n] for n in np.flatnonzero(row == value).tolist()]
            if level == len(levels) - 1:
                model.add_bool_or([*here, *([] if above is None else [above.negated()])])
                break
            missed = model.new_bool_var("")
            model.add_bool_or([*here, missed, *([] if above is None else [above.negated()])])
            terms.append((int(levels[level + 1] - value), missed))
            above = missed
    return constant, terms
