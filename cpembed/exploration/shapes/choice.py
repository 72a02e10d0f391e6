"""The best K shapes, of which each layer takes its best: one and two by exhausting what bounds
leave."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Costs = NDArray[np.float64]
"""A row per layer, weighted with how often the network has it; a column per shape. Infinite where
the shape has no embedding in the layer."""


@dataclass(frozen=True)
class Found:
    """Sets of shapes (columns, ascending) in ascending order of what they cost, the best first;
    ``bound``: no set of as many shapes costs less. The second is the runner-up, the best that does
    not hold all shapes of the first; ``second_proven``: that is proven too."""

    sets: tuple[tuple[int, ...], ...]
    costs: tuple[float, ...]
    bound: float
    second_proven: bool = True

    @property
    def proven(self) -> bool:
        return bool(self.costs) and self.costs[0] <= self.bound


def best_one(costs: Costs) -> Found:
    """The best shape and the runner-up."""
    totals = costs.sum(axis=0)
    return _result([((int(n),), float(totals[n])) for n in np.argsort(totals, kind="stable")[:2]])


def best_two(costs: Costs) -> Found:
    """The best set of at most two shapes, and the runner-up: the best one without all of these."""
    first = _best_pair(costs, ())
    if first is None:
        return _result([])
    chosen, cost = first
    second = _best_pair(costs, chosen)
    return _result([(chosen, cost), *([] if second is None else [second])])


def needed(costs: Costs, chosen: Sequence[int]) -> tuple[int, ...]:
    """A set without those of its shapes without which it costs no more; ascending."""
    kept = sorted(chosen)
    cost = cost_of(costs, kept)
    for number in sorted(chosen, reverse=True):
        rest = [n for n in kept if n != number]
        if rest and cost_of(costs, rest) <= cost:
            kept = rest
    return tuple(kept)


def cost_of(costs: Costs, chosen: Sequence[int]) -> float:
    """What a set costs, each layer by its best."""
    return float(costs[:, list(chosen)].min(axis=1).sum())


def _result(found: Sequence[tuple[tuple[int, ...], float]]) -> Found:
    finite = [(chosen, cost) for chosen, cost in found if math.isfinite(cost)]
    costs = tuple(cost for _, cost in finite)
    return Found(tuple(chosen for chosen, _ in finite), costs, costs[0] if costs else math.inf)


def _best_pair(costs: Costs, without: Sequence[int]) -> tuple[tuple[int, ...], float] | None:
    """The best set of at most two shapes that does not hold all of ``without``.

    Shapes are taken in ascending order of what they cost alone, each with those after it. With
    these it costs no less than where each layer takes the best of all of them; where that is not
    below the best pair so far, the shape is the first of no better pair.
    """
    totals = costs.sum(axis=0)
    order = np.argsort(totals, kind="stable")
    if len(without) == 1:
        order = order[order != without[0]]
    if not len(order):
        return None
    ordered = np.ascontiguousarray(costs[:, order])
    best, pair = float(totals[order[0]]), (int(order[0]),)
    after = np.minimum.accumulate(ordered[:, ::-1], axis=1)[:, ::-1]
    bounds = np.minimum(ordered[:, :-1], after[:, 1:]).sum(axis=0)
    for place in np.flatnonzero(bounds < best):
        if bounds[place] >= best:
            continue
        first = int(order[place])
        pairs = np.minimum(ordered[:, place + 1 :], ordered[:, place : place + 1]).sum(axis=0)
        if first in without:
            pairs[np.isin(order[place + 1 :], without)] = np.inf
        other = int(np.argmin(pairs))
        if pairs[other] < best:
            best, pair = float(pairs[other]), (first, int(order[place + 1 + other]))
    return (needed(costs, pair), best) if math.isfinite(best) else None
