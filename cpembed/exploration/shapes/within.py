"""All sets of shapes that cost little more than the best one.

A set counts where each of its shapes is needed: without it some layer would cost more. Sets grow
shape by shape, in ascending order of what shapes cost alone; with all shapes that follow, a set
costs no less than where each layer takes the best of these, and where that is above the limit it is
not continued.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cpembed.exploration.shapes.choice import Costs, needed
from cpembed.exploration.shapes.median import Budget
from cpembed.time_limit import Clock

MOST_SETS = 10_000
"""Sets that are listed."""

_ROUNDING = 1e-12
"""Of a limit, relative: what costs exactly so much more is within it."""

CostedSet = tuple[tuple[int, ...], float]
"""Shapes (columns, ascending) and what they cost."""


@dataclass(frozen=True)
class Near:
    """Sets in ascending order of their costs, the best among them; ``complete``: there are no
    others within the limit."""

    sets: tuple[CostedSet, ...]
    complete: bool

    @staticmethod
    def of(sets: Sequence[CostedSet], *, complete: bool) -> Near:
        """The first of them, where there are too many."""
        ordered = sorted(sets, key=lambda one: (one[1], one[0]))
        return Near(tuple(ordered[:MOST_SETS]), complete and len(ordered) <= MOST_SETS)


def limit_of(best: float, percent: float) -> float:
    """What a set within so many percent of the best costs at most."""
    return best * (1 + percent / 100) * (1 + _ROUNDING)


def sets_within(
    costs: Costs, count: int, limit: float, clock: Clock, budget: Budget | None = None
) -> Near:
    """The sets of at most ``count`` shapes that cost at most ``limit``, within a budget."""
    found: list[CostedSet] = []
    for chosen, cost in _grown(costs, count, limit):
        left = clock.left()
        if left is not None and left <= 0:
            return Near.of(found, complete=False)
        if budget is not None and sum(budget.sizes[n] for n in chosen) > budget.most:
            continue
        if needed(costs, chosen) == chosen:
            found.append((chosen, cost))
            if len(found) > MOST_SETS * 10:
                return Near.of(found, complete=False)
    return Near.of(found, complete=True)


def _grown(costs: Costs, count: int, limit: float) -> Iterator[CostedSet]:
    totals = costs.sum(axis=0)
    order = np.argsort(totals, kind="stable")
    ordered = np.ascontiguousarray(costs[:, order])
    after = np.minimum.accumulate(ordered[:, ::-1], axis=1)[:, ::-1]

    def grow(chosen: tuple[int, ...], held: NDArray[np.float64], begin: int) -> Iterator[CostedSet]:
        together = np.minimum(ordered[:, begin:], held[:, None])
        sums = together.sum(axis=0)
        for place in np.flatnonzero(sums <= limit).tolist():
            columns = (*chosen, begin + place)
            yield tuple(sorted(int(order[n]) for n in columns)), float(sums[place])
        if len(chosen) + 1 == count:
            return
        bounds = np.minimum(together[:, :-1], after[:, begin + 1 :]).sum(axis=0)
        for place in np.flatnonzero(bounds <= limit).tolist():
            yield from grow((*chosen, begin + place), together[:, place], begin + place + 1)

    if len(order):
        yield from grow((), np.full(len(costs), np.inf), 0)
