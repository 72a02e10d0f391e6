"""The best shapes of a network whose layers keep what they have packed: shapes, embeddings and the
layouts of the tensors between them are chosen together.

With layouts a shape that needs more executions in every layer may be the better one, so nothing is
removed by dominance. What the tables say bounds from below what a shape costs in a layer; shapes
that this shows to be in no best choice are never searched. One shape is looked at after the other,
in the order of these bounds, each with all its ways in all layers. Of several, those that the best
choice by all that is known rests on are searched, until it rests on known ways alone.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from cpembed.cluster import Task, Workers
from cpembed.exploration.shapes.cells import LEAST_SECONDS
from cpembed.exploration.shapes.joint import Choice, Limits, Option, choose_together
from cpembed.exploration.shapes.layers import Report
from cpembed.exploration.shapes.median import Budget
from cpembed.exploration.shapes.network import Network
from cpembed.exploration.shapes.question import Question
from cpembed.exploration.shapes.shape import Shape
from cpembed.exploration.shapes.ways import Ways, ways_of
from cpembed.exploration.shapes.within import Near, limit_of
from cpembed.time_limit import Clock

_LATE = 2.0
"""Seconds after the limit for the best of what is known."""

_FEW = 64
"""Shapes among which a good choice is looked for first."""

_PAIRS = 6_000
"""Shapes of which all pairs are bounded."""

_TOLERANCE = 0.5
"""Costs are integers that floating point holds exactly."""


@dataclass(frozen=True)
class Together:
    """The best choice and the next best one, that does not hold all of its shapes; ``bound``: no
    choice costs less. ``searched``: how many shapes in layers were. ``near``: the choices of one
    shape that cost little more than the best."""

    best: Choice
    second: Choice | None
    bound: float
    second_proven: bool
    searched: int
    near: Near | None = None


NOTHING = Together(Choice((), (), math.inf, math.inf), None, math.inf, False, 0)


class Chooser:
    """``executions``: lower bounds, a row per use and a column per shape; infinite where there is
    no embedding."""

    def __init__(
        self,
        network: Network,
        question: Question,
        shapes: Sequence[Shape],
        executions: NDArray[np.float64],
        clock: Clock,
    ) -> None:
        self._network, self._question, self._shapes = network, question, shapes
        self._clock = clock
        self._unit = question.cost.unit
        self._bounds = executions * self._unit
        self._weights = np.array(
            [network.weight(use) for use in range(len(network.uses))], np.float64
        )
        self._known: dict[tuple[int, int], Ways] = {}
        self._sizes = [shape.macs for shape in shapes]

    def run(self, workers: Workers, report: Report) -> Together:
        """The best, proven, or the best that were found in the time."""
        self._workers, self._report = workers, report
        if self._question.count == 1:
            return self._one_by_one()
        first = self._settle(())
        if not first.options:
            return Together(first, None, first.bound, False, len(self._known))
        second = self._settle(first.columns)
        better, other = (second, first) if second.cost < first.cost else (first, second)
        bound = min(first.bound, better.cost)
        return Together(
            better,
            other if other.options else None,
            bound,
            better.cost <= first.bound and other.cost <= other.bound,
            len(self._known),
        )

    # ------------------------------------------------------------------------------ one shape

    def _one_by_one(self) -> Together:
        """Shapes in the order of their bounds, until none can be among the two best."""
        totals = self._weights @ self._bounds
        order = [int(n) for n in np.argsort(totals, kind="stable") if math.isfinite(totals[n])]
        if self._question.total_macs is not None:
            order = [n for n in order if self._sizes[n] <= self._question.total_macs]
        best: list[Choice] = []
        rest, within = math.inf, self._question.within
        for place, column in enumerate(order):
            limit = -math.inf
            if within is not None and best:
                limit = limit_of(best[0].cost, within)
            if len(best) > 1 and totals[column] >= best[1].cost and totals[column] > limit:
                break
            if self._is_late():
                rest = min(rest, float(totals[column]))
                break
            ahead = order[place : place + self._workers.count]
            self._search((use, n) for n in ahead for use in range(len(self._network.uses)))
            limits = Limits(1, seconds=self._clock.left())
            choice = choose_together(self._network, self._options([column]), limits)
            if choice.bound < choice.cost or not self._is_known(choice):
                rest = min(rest, choice.bound)
                choice = choose_together(self._network, self._known_options([column]), limits)
            if choice.options:
                best = sorted([*best, choice], key=lambda one: one.cost)
        first = best[0] if best else Choice((), (), math.inf, rest)
        second = best[1] if len(best) > 1 else None
        proven = (math.inf if second is None else second.cost) <= rest
        near = None
        if within is not None and best:
            limit = limit_of(first.cost, within)
            sets = [(one.columns, one.cost) for one in best if one.cost <= limit]
            near = Near.of(sets, complete=rest > limit)
        return Together(first, second, min(rest, first.cost), proven, len(self._known), near)

    # ------------------------------------------------------------------------------ several shapes

    def _settle(self, without: tuple[int, ...]) -> Choice:
        """The best choice that does not open all of ``without``: first among few shapes, so that of
        the others only those are looked at that can be in a better one."""
        known, limits = Choice((), (), math.inf, 0.0), self._limits(without)
        for columns in self._starts():
            if not without or not set(without) <= set(columns):
                known = self._of_shapes(columns, limits, known)
        return self._better(self._better(known, without, self._few()), without)

    def _better(
        self, known: Choice, without: tuple[int, ...], among: Container[int] | None = None
    ) -> Choice:
        """The best choice ``among`` some shapes, or all; ``known`` where that is as good."""
        least = 0.0
        while True:
            columns = self._candidates(known.cost)
            if among is not None:
                columns = [column for column in columns if column in among]
            limits = self._limits(without)
            choice = choose_together(self._network, self._options(columns, known.cost), limits)
            least = max(least, min(choice.bound, known.cost))
            if self._is_known(choice) and choice.cost < known.cost:
                known = choice
            waiting = self._waiting(choice)
            if known.cost - least < _TOLERANCE or not (waiting or choice.options):
                return replace(known, bound=min(least, known.cost))
            if self._is_late() or not waiting:
                return replace(self._of_known(without, known), bound=least)
            known = self._of_shapes(choice.columns, limits, known)

    def _limits(self, without: tuple[int, ...]) -> Limits:
        left = self._clock.left()
        seconds = None if left is None else max(left / 2, LEAST_SECONDS)
        return Limits(self._question.count, self._budget(), without, seconds)

    def _few(self) -> frozenset[int]:
        """The shapes of the lowest bounds, and those that were searched."""
        reach = self._bounds.min(axis=1, keepdims=True) * self._question.count + 1
        totals = self._weights @ np.minimum(self._bounds, reach)
        bounds = self._pair_bounds if self._bounds_pairs() else totals
        order = np.argsort(bounds, kind="stable")[:_FEW]
        return frozenset(map(int, order)) | {column for _, column in self._known}

    def _starts(self) -> Sequence[Sequence[int]]:
        """The best shapes, and the next best, where layouts do not matter."""
        costs = self._bounds * self._weights[:, None]
        return self._question.choose(costs, np.array(self._sizes), Clock(self._clock.left())).sets

    def _of_shapes(self, columns: Sequence[int], limits: Limits, known: Choice) -> Choice:
        """The better one of a choice and the best of some shapes."""
        self._search((use, n) for n in columns for use in range(len(self._network.uses)))
        found = choose_together(self._network, self._options(columns), limits)
        return found if self._is_known(found) and found.cost < known.cost else known

    def _of_known(self, without: tuple[int, ...], known: Choice) -> Choice:
        """The best of the ways that are known, or ``known`` where that is better."""
        columns = sorted({column for _, column in self._known})
        limits = Limits(self._question.count, self._budget(), without, _LATE)
        found = choose_together(self._network, self._known_options(columns), limits)
        return found if found.cost < known.cost else known

    def _budget(self) -> Budget | None:
        most = self._question.total_macs
        return None if most is None else Budget(self._sizes, most)

    def _candidates(self, cost: float) -> list[int]:
        """The shapes that can be in a choice of less cost."""
        usable = self._usable(cost).any(axis=0)
        if self._bounds_pairs():
            usable &= self._pair_bounds < cost
        return [int(n) for n in np.flatnonzero(usable)]

    def _bounds_pairs(self) -> bool:
        return self._question.count == 2 and len(self._shapes) <= _PAIRS

    def _usable(self, cost: float) -> NDArray[np.bool_]:
        """Where a layer may take a shape in a choice of less cost."""
        floors = self._bounds.min(axis=1)
        if np.isinf(floors).any():
            # Some layer has no shape.
            return np.zeros(self._bounds.shape, np.bool_)
        slack = cost - float(self._weights @ floors)
        usable: NDArray[np.bool_] = np.isfinite(self._bounds)
        usable[usable] = (self._bounds - floors[:, None])[usable] < slack
        return usable

    @cached_property
    def _pair_bounds(self) -> NDArray[np.float64]:
        """Of each shape the least that it and another one cost."""
        weighted = self._bounds * self._weights[:, None]
        columns = range(len(self._shapes))
        least = [np.minimum(weighted, weighted[:, n : n + 1]).sum(axis=0).min() for n in columns]
        return np.array(least)

    # ------------------------------------------------------------------------------ what is known

    def _options(self, columns: Sequence[int], cost: float = math.inf) -> list[list[Option]]:
        """Of each use, in choices of less cost."""
        usable = self._usable(cost)
        return [
            [
                option
                for column in columns
                if usable[use, column]
                for option in self._of_cell(use, column)
            ]
            for use in range(len(self._network.uses))
        ]

    def _known_options(self, columns: Sequence[int]) -> list[list[Option]]:
        return [[one for one in of if one.way is not None] for of in self._options(columns)]

    def _of_cell(self, use: int, column: int) -> Iterable[Option]:
        known = self._known.get((use, column))
        if known is None:
            yield Option(column, int(self._bounds[use, column]))
            return
        for way in known.ways:
            yield Option(column, way.executions * self._unit, way)
        if math.isfinite(known.bound):
            yield Option(column, int(known.bound * self._unit))

    def _is_known(self, choice: Choice) -> bool:
        return bool(choice.options) and all(o.way is not None for o in choice.options)

    def _waiting(self, choice: Choice) -> list[tuple[int, int]]:
        """The shapes in layers that a choice rests on and that were not searched."""
        pairs = zip(self._network.products, choice.options, strict=False)
        cells = [(node.use, option.column) for node, option in pairs if option.way is None]
        return [cell for cell in dict.fromkeys(cells) if cell not in self._known]

    def _is_late(self) -> bool:
        left = self._clock.left()
        return left is not None and left <= 0

    def _search(self, cells: Iterable[tuple[int, int]]) -> None:
        """All ways of shapes in layers, by the workers."""
        missing = [
            (use, column)
            for use, column in dict.fromkeys(cells)
            if (use, column) not in self._known and math.isfinite(self._bounds[use, column])
        ]
        left = self._clock.left()
        seconds = None if left is None else max(left, LEAST_SECONDS)
        question = self._question
        tasks: list[Task] = []
        for use, column in missing:
            shape, found = self._shapes[column], self._network.uses[use]
            arguments = (found, question.constraints, shape, self._unit, seconds)
            doing = f"embedding {shape} in {found.workload.name}"
            tasks.append(Task(f"ways {use} {column}", ways_of, arguments, doing))
        places = {task.key: cell for task, cell in zip(tasks, missing, strict=True)}
        for task, result in self._workers.results(tasks):
            use, column = places[task.key]
            self._known[use, column] = result
            if not result.ways and math.isinf(result.bound):
                self._bounds[use, column] = math.inf
            self._report(f"searching: {len(self._known):,} shapes in layers", 0, 1)
