"""The cost table by search: the best sets of shapes, whose cells are searched as they are needed.

Every cell begins with a lower bound. The best set by the bounds is looked up, and the cells that it
rests on are searched, which raises their bounds to costs. A set whose cells are all searched is the
best of all, since no other set is below its bounds; most cells are never searched.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from cpembed.embedding.constraint_set import ConstraintSet
from cpembed.errors import InvariantError
from cpembed.exploration.shapes.cells import (
    MIN_SECONDS,
    Call,
    Cell,
    CellResult,
    keyed_results,
    search_cell,
)
from cpembed.exploration.shapes.choice import Columns, Costs, NearSets, SetChoice
from cpembed.exploration.shapes.shape import Cost, Shape, template
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation
from cpembed.runtime.cluster import Workers
from cpembed.time_limit import Clock

_BATCH = 4
"""Number of cells that are searched at a time, for each worker."""


@dataclass(frozen=True, kw_only=True)
class CellSearch:
    """The parameters of searches of cells.

    ``workloads`` holds the computation of each row, ``shape`` returns the shape of a column;
    ``report`` is called with the number of cells searched.
    """

    workloads: Sequence[Computation]
    shape: Callable[[int], Shape]
    constraints: ConstraintSet
    cost: Cost
    workers: Workers
    clock: Clock
    report: Callable[[int], None]
    spec: HardwareSpec = field(default_factory=template)


class CellTable:
    """Lower bounds and costs of cells, a row per computation and a column per shape.

    Searches raise the ``bounds``; those of ``exact`` rows are costs, which need no search.
    ``weights`` say how often the network has each row.
    """

    def __init__(
        self,
        bounds: NDArray[np.float64],
        exact: NDArray[np.bool_],
        weights: NDArray[np.float64],
        search: CellSearch,
    ) -> None:
        self.results: dict[tuple[int, int], CellResult] = {}
        self._bounds, self._exact = bounds, exact
        self._initial = bounds.copy()
        self._weights, self._search = weights, search
        # Costs of the best embeddings that were found; infinite where none was.
        self._costs = np.where(exact[:, None], bounds, np.inf)

    @property
    def weighted_costs(self) -> Costs:
        """Costs of the embeddings that were found, each as often as the network has its row."""
        return self._costs * self._weights[:, None]

    def best(self, choose: Callable[[Costs], SetChoice]) -> SetChoice:
        """Return the best set and the runner-up, or the best ones when the time is over.

        ``choose`` returns those by weighted costs.
        """
        while True:
            choice = choose(self._bounds * self._weights[:, None])
            # The runner-up's cells only where the best set has none left.
            places: list[tuple[int, int]] = []
            for columns in choice.sets:
                places = places or self._open_places(columns)
            if not places and all(map(self._is_settled, choice.sets)):
                return choice
            if not places or self._search.clock.is_over:
                break
            self._run(places)
        # The time is over. Costs are of embeddings that exist; the bounds still say how far the
        # best of them can be from the best of all.
        by_costs = choose(self.weighted_costs)
        least = choice.costs[-1] if len(choice.costs) > 1 else math.inf
        proven = len(by_costs.costs) > 1 and by_costs.costs[1] <= least
        return SetChoice(by_costs.sets, by_costs.costs, choice.bound, proven)

    def near(self, choose: Callable[[Costs], NearSets]) -> NearSets:
        """Return the sets within a limit, or those so far when the time is over.

        ``choose`` returns those by weighted costs.
        """
        while True:
            near = choose(self._bounds * self._weights[:, None])
            sets = [columns for columns, _ in near.sets]
            places = list(dict.fromkeys(place for s in sets for place in self._open_places(s)))
            if not places and all(map(self._is_settled, sets)):
                return near
            if not places or self._search.clock.is_over:
                return replace(choose(self.weighted_costs), complete=False)
            self._run(places)

    def _open_places(self, columns: Columns) -> list[tuple[int, int]]:
        """Return the cells that a set rests on and that are not searched, the most costly first."""
        best: list[int] = self._bounds[:, columns].argmin(axis=1).tolist()
        places = [(row, columns[n]) for row, n in enumerate(best)]
        unsearched = [p for p in places if p not in self.results and not self._exact[p[0]]]
        return sorted(unsearched, key=lambda place: -self._bounds[place] * self._weights[place[0]])

    def _is_settled(self, columns: Columns) -> bool:
        """True if no embeddings of a set can cost less than those that were found."""
        least = self._bounds[:, columns].min(axis=1)
        return bool((self._costs[:, columns].min(axis=1) <= least).all())

    def _run(self, places: Sequence[tuple[int, int]]) -> None:
        """Search a batch of the first cells, which may make the rest unnecessary."""
        search = self._search
        left = search.clock.left()
        seconds = None if left is None else max(left, MIN_SECONDS)
        calls: dict[tuple[int, int], Call] = {}
        for row, column in places[: _BATCH * search.workers.count]:
            shape = search.shape(column)
            cell = Cell(search.workloads[row], search.constraints, shape, search.spec)
            calls[row, column] = (cell, search.cost, seconds), f"embedding {cell}"
        for place, result in keyed_results(search.workers, search_cell, calls):
            self.results[place] = result
            value = result.cost(search.cost)
            # Times do not come from the tables: a bound above one would make a proof worthless.
            if search.cost.is_time and value < self._initial[place]:
                raise InvariantError(f"{search.workloads[place[0]].name}: {value} ps, below the "
                                     f"lower bound {self._initial[place]} ps")  # fmt: skip
            # A search that ran out of time may bound less than the table does.
            self._bounds[place] = max(self._bounds[place], result.bound)
            self._costs[place] = result.cost(search.cost)
            if math.isfinite(self._costs[place]):
                self._bounds[place] = min(self._bounds[place], self._costs[place])
            search.report(len(self.results))
