"""The best shapes where costs are searched cell by cell: a cell is a shape in a layer.

Every cell begins with a lower bound: its fewest executions where tables know them. The best set by
the bounds is looked at, and the cells that it rests on are searched, which raises their bounds to
costs. A set whose cells are all known is the best of all, since no other set is below its bounds;
most cells are never searched. Where time is over, the bounds still say how far the best set that is
known can be from that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from cpembed.cluster import Task, Workers
from cpembed.embedding.constraint_set import ConstraintSet
from cpembed.exploration.shapes.cells import LEAST_SECONDS, Cell, Cost, evaluate
from cpembed.exploration.shapes.choice import Costs, Found
from cpembed.exploration.shapes.shape import Shape
from cpembed.exploration.shapes.within import Near
from cpembed.ir.computation import Computation
from cpembed.time_limit import Clock

Choose = Callable[[Costs], Found]
"""The best set of shapes by weighted costs, and the runner-up."""

_AHEAD = 4
"""Cells that are searched at a time, for each worker."""


@dataclass
class Cells:
    """Lower bounds of a row per computation and a column per shape; what was searched. Those of
    ``exact`` rows are costs, which need no search."""

    bounds: NDArray[np.float64]
    weights: NDArray[np.float64]
    exact: NDArray[np.bool_]
    costs: NDArray[np.float64] = field(init=False)
    """Of the best embedding that is known; infinite where none is."""
    known: dict[tuple[int, int], Cell] = field(default_factory=dict[tuple[int, int], Cell])

    def __post_init__(self) -> None:
        self.costs = np.where(self.exact[:, None], self.bounds, np.inf)

    def set(self, row: int, column: int, cell: Cell, cost: Cost) -> None:
        self.known[row, column] = cell
        self.bounds[row, column] = max(self.bounds[row, column], cell.bound)
        self.costs[row, column] = cell.cost(cost)
        if math.isfinite(self.costs[row, column]):
            self.bounds[row, column] = min(self.bounds[row, column], self.costs[row, column])

    @property
    def weighted_bounds(self) -> Costs:
        return self.bounds * self.weights[:, None]

    @property
    def weighted_costs(self) -> Costs:
        return self.costs * self.weights[:, None]

    def open_cells(self, chosen: Sequence[int]) -> list[tuple[int, int]]:
        """The cells that a set rests on and that are not known, those of the most cost first."""
        columns = list(chosen)
        taken: list[int] = self.bounds[:, columns].argmin(axis=1).tolist()
        found = [(row, columns[place]) for row, place in enumerate(taken)]
        missing = [cell for cell in found if cell not in self.known and not self.exact[cell[0]]]
        return sorted(missing, key=lambda cell: -self.bounds[cell] * self.weights[cell[0]])

    def is_settled(self, chosen: Sequence[int]) -> bool:
        """Whether no embedding of a set can cost less than what is known of it."""
        columns = list(chosen)
        least = self.bounds[:, columns].min(axis=1)
        return bool((self.costs[:, columns].min(axis=1) <= least).all())


@dataclass(frozen=True)
class Search:
    """How cells are searched: the computation of each row and the shape of each column."""

    workloads: Sequence[Computation]
    shapes: Callable[[int], Shape]
    constraints: ConstraintSet
    cost: Cost
    workers: Workers
    clock: Clock
    report: Callable[[int], None]

    def task(self, row: int, column: int) -> Task:
        """The search of a cell, in the time that is left."""
        shape, workload = self.shapes(column), self.workloads[row]
        left = self.clock.left()
        seconds = None if left is None else max(left, LEAST_SECONDS)
        arguments = (workload, self.constraints, shape, self.cost, seconds)
        doing = f"embedding {shape} in {workload.name}"
        return Task(f"cell {row} {column}", evaluate, arguments, doing)

    def run(self, cells: Cells, waiting: Sequence[tuple[int, int]]) -> None:
        """Search the first of the cells."""
        batch = waiting[: _AHEAD * self.workers.count]
        tasks = [self.task(row, column) for row, column in batch]
        places = {task.key: cell for task, cell in zip(tasks, batch, strict=True)}
        for task, result in self.workers.results(tasks):
            cells.set(*places[task.key], result, self.cost)
            self.report(len(cells.known))


def settle(cells: Cells, search: Search, choose: Choose) -> Found:
    """The best set and the runner-up, proven, or the best that are known when the time is over."""
    while True:
        found = choose(cells.weighted_bounds)
        if not found.sets:
            return found
        waiting: list[tuple[int, int]] = []
        for chosen in found.sets:
            waiting = waiting or cells.open_cells(chosen)
        left = search.clock.left()
        if not waiting and all(map(cells.is_settled, found.sets)):
            return found
        if not waiting or (left is not None and left <= 0):
            return _known(cells, choose, found)
        search.run(cells, waiting)


def settle_near(cells: Cells, search: Search, near: Callable[[Costs], Near]) -> Near:
    """The sets within a limit, all of them, or those that are known when the time is over."""
    while True:
        found = near(cells.weighted_bounds)
        waiting = dict.fromkeys(
            cell for chosen, _ in found.sets for cell in cells.open_cells(chosen)
        )
        if not waiting and all(cells.is_settled(chosen) for chosen, _ in found.sets):
            return found
        left = search.clock.left()
        if not waiting or (left is not None and left <= 0):
            return replace(near(cells.weighted_costs), complete=False)
        search.run(cells, list(waiting))


def _known(cells: Cells, choose: Choose, bounds: Found) -> Found:
    """The best sets among the cells that are known; ``bounds`` are the best by the bounds."""
    complete = choose(cells.weighted_costs)
    least = bounds.costs[-1] if len(bounds.costs) > 1 else math.inf
    proven = len(complete.costs) > 1 and complete.costs[1] <= least
    return Found(complete.sets, complete.costs, bounds.bound, proven)
