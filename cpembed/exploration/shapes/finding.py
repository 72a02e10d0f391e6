"""The best shapes for the layers of a suite: tables, dominance, the choice, and its embeddings."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from cpembed.cluster import Task, Workers
from cpembed.exploration.shapes.choice import Costs, Found
from cpembed.exploration.shapes.dominance import undominated, undominated_without
from cpembed.exploration.shapes.embedded import Embedded, Fewest, NoProgram, embed
from cpembed.exploration.shapes.layers import (
    LayerSet,
    Report,
    executions_of,
    read_layers,
    weighted,
)
from cpembed.exploration.shapes.network import network_of
from cpembed.exploration.shapes.question import Model, Question
from cpembed.exploration.shapes.result import (
    Counts,
    LayerRow,
    LeftOut,
    Sets,
    ShapedSets,
    ShapeResult,
)
from cpembed.exploration.shapes.settling import Cells, Search, settle, settle_near
from cpembed.exploration.shapes.shape import Shape
from cpembed.exploration.shapes.together import NOTHING, Chooser
from cpembed.exploration.shapes.used_ways import rows_of
from cpembed.exploration.shapes.within import Near
from cpembed.time_limit import Clock


def find_shapes(model: Model, question: Question, workers: Workers, report: Report) -> ShapeResult:
    """The best shapes, proven, or the best that were found in the time, with the gap.

    Raises :class:`~cpembed.errors.CpembedError` for a model that cannot be read, and what ends a
    worker's task.
    """
    started = time.perf_counter()
    finder = _Finder(model, question, workers, report)
    if question.layouts:
        return _with_layouts(finder, started)
    answer = finder.answer()
    try:
        rows = finder.rows(answer)
    except NoProgram:
        answer = finder.searched(exact=False)
        rows = finder.rows(answer)
    return ShapeResult(
        finder.layers.suite,
        question,
        Sets.of(answer.found, [finder.shape(int(n)) for n in answer.columns]),
        tuple(rows),
        finder.left_out(),
        Counts(len(finder.columns), answer.not_dominated, answer.searched),
        tuple(finder.shape(column) for column in answer.equal),
        time.perf_counter() - started,
        near=answer.near,
    )


def _with_layouts(finder: _Finder, started: float) -> ShapeResult:
    network = network_of(finder.layers, frozenset(finder.used))
    shapes = [finder.shape(int(column)) for column in finder.columns]
    found = NOTHING
    if network.uses and shapes:
        executions = [finder.tables[n].executions[finder.columns] for n in network.computations]
        chooser = Chooser(network, finder.question, shapes, np.stack(executions), finder.clock)
        found = chooser.run(finder.workers, finder.report)
    rows = rows_of(network, found.best, finder.layers, shapes, finder.workers)
    choices = [found.best, *([] if found.second is None else [found.second])]
    sets = Found(
        tuple(choice.columns for choice in choices if choice.options),
        tuple(choice.cost for choice in choices if choice.options),
        found.bound,
        found.second_proven,
    )
    return ShapeResult(
        finder.layers.suite,
        finder.question,
        Sets.of(sets, shapes),
        tuple(rows),
        finder.left_out(),
        Counts(len(shapes), None if shapes else 0, found.searched),
        (),
        time.perf_counter() - started,
        found.best.copies,
        None if found.near is None else ShapedSets.of(found.near, shapes),
    )


def choose_undominated(
    question: Question,
    compared: Costs,
    costs: Costs,
    sizes: NDArray[np.int64],
    kept: NDArray[np.int64],
    clock: Clock,
) -> tuple[Found, NDArray[np.int64]]:
    """The best sets and the columns that their numbers are of; ``kept`` are the undominated ones.

    A runner-up lacks one of the best shapes, in whose place there may be one that it dominates.
    """
    columns, looked_at = kept, set[int]()
    while True:
        found = question.choose(costs[:, columns], sizes[columns], clock)
        best = {int(columns[n]) for chosen in found.sets[:1] for n in chosen}
        if best <= looked_at:
            return found, columns
        for column in best - looked_at:
            more = undominated_without(compared, sizes, kept, column)
            columns = np.union1d(columns, more)
        looked_at |= best


@dataclass(frozen=True)
class _Answer:
    """Sets of ``columns``; ``costs`` of the rows in these. ``embedded``: embeddings that are known,
    by row and by place among the columns. ``not_dominated`` and ``searched`` are None where
    nothing was removed, and no cell searched. ``equal``: columns of all shapes that are as good as
    a best one."""

    found: Found
    columns: NDArray[np.int64]
    costs: Costs
    embedded: dict[tuple[int, int], Embedded]
    not_dominated: int | None = None
    searched: int | None = None
    equal: tuple[int, ...] = ()
    near: ShapedSets | None = None


class _Finder:
    """The suite's layers with their tables, and the ways to the best shapes."""

    def __init__(self, model: Model, question: Question, workers: Workers, report: Report) -> None:
        self.question, self.workers, self.report = question, workers, report
        self.clock = Clock(question.timeout)
        self.layers: LayerSet = read_layers(model.name, model.layout, model.inputs)
        self.tables = executions_of(
            self.layers, question.constraints, question.scope, workers, report
        )
        self.used = [n for n, found in enumerate(self.tables) if found.reason is None]
        self.columns = question.admitted()

    def shape(self, column: int) -> Shape:
        """The shape of a column of the tables."""
        return Shape(*map(int, self.question.scope.shapes[column]))

    def answer(self) -> _Answer:
        """The best sets."""
        if not self.used or not len(self.columns):
            nothing = Found((), (), float("inf"))
            return _Answer(nothing, self.columns[:0], np.empty((0, 0)), {}, 0)
        searched = any(self.tables[n].obstacle is not None for n in self.used)
        if searched or self.question.cost.bytes_per_execution is not None:
            return self.searched(exact=self.question.cost.bytes_per_execution is None)
        return self._from_tables()

    def _from_tables(self) -> _Answer:
        costs = weighted(self.layers, self.tables, self.used)[:, self.columns]
        sizes = self._sizes(self.columns)
        compared = costs
        if self.question.total_macs is not None:
            # Where shapes share a budget a smaller one may be needed.
            compared = np.concatenate([costs, sizes[None].astype(np.float64)])
        kept = undominated(compared, sizes)
        found, columns = choose_undominated(self.question, compared, costs, sizes, kept, self.clock)
        near = None
        if self.question.within is not None and found.sets:
            near = self.question.near(costs, sizes, found.costs[0], self.clock)
        shaped = self._shaped(near, self.columns, found)
        answer = _Answer(
            found, self.columns[columns], costs[:, columns], {}, len(kept), near=shaped
        )
        if len(found.sets[:1]) and len(found.sets[0]) == 1:
            totals = costs.sum(axis=0)
            equal = self.columns[totals == found.costs[0]]
            best = answer.columns[found.sets[0][0]]
            return replace(answer, equal=tuple(int(n) for n in equal if n != best))
        return answer

    def _shaped(
        self, near: Near | None, columns: NDArray[np.int64], found: Found
    ) -> ShapedSets | None:
        if near is None:
            return None
        shapes = {int(n): self.shape(int(columns[n])) for chosen, _ in near.sets for n in chosen}
        return ShapedSets.of(replace(near, complete=near.complete and found.proven), shapes)

    def searched(self, *, exact: bool) -> _Answer:
        """The best sets by searches of shapes in layers; ``exact``: executions that tables know are
        costs, else they are lower bounds."""
        unit = self.question.cost.unit
        bounds = np.stack([self.tables[n].executions[self.columns] * unit for n in self.used])
        weights = np.array([self.layers.weights(n) for n in self.used], np.float64)
        known = [exact and self.tables[n].obstacle is None for n in self.used]
        cells = Cells(bounds, weights, np.array(known, np.bool_))
        search = Search(
            [self.layers.workloads[n] for n in self.used],
            lambda column: self.shape(self.columns[column]),
            self.question.constraints,
            self.question.cost,
            self.workers,
            self.clock,
            lambda count: self.report(f"searching: {count:,} shapes in layers", 0, 1),
        )
        sizes = self._sizes(self.columns)
        found = settle(cells, search, lambda c: self.question.choose(c, sizes, self.clock))
        near = None
        if self.question.within is not None and found.sets:
            best = found.costs[0]
            near = settle_near(
                cells, search, lambda c: self.question.near(c, sizes, best, self.clock)
            )
        embedded = {
            place: cell.embedded for place, cell in cells.known.items() if cell.embedded is not None
        }
        costs = cells.weighted_costs
        shaped = self._shaped(near, self.columns, found)
        return _Answer(found, self.columns, costs, embedded, None, len(cells.known), near=shaped)

    def _sizes(self, columns: NDArray[np.int64]) -> NDArray[np.int64]:
        sizes: NDArray[np.int64] = self.question.scope.shapes[columns].prod(axis=1)
        return sizes

    def rows(self, answer: _Answer) -> list[LayerRow]:
        """Each layer with its shape and the embedding of that, proven."""
        if not answer.found.sets:
            return []
        best = list(answer.found.sets[0])
        taken = {
            n: (row, best[int(np.argmin(answer.costs[row, best]))])
            for row, n in enumerate(self.used)
        }
        columns = {n: int(answer.columns[place]) for n, (_, place) in taken.items()}
        known = {n: answer.embedded[p] for n, p in taken.items() if p in answer.embedded}
        known |= self._embed({n: column for n, column in columns.items() if n not in known})
        return [
            LayerRow(layer, self.shape(columns[n]), known[n])
            for layer in self.layers.layers
            if (n := layer.computation) in columns
        ]

    def _embed(self, columns: dict[int, int]) -> dict[int, Embedded]:
        """The embeddings of the chosen shapes, by the workers."""
        tasks: list[Task] = []
        for computation, column in columns.items():
            table, shape = self.tables[computation], self.shape(column)
            fewest = Fewest(int(table.executions[column]), bool(table.commuted[column]))
            workload = self.layers.workloads[computation]
            arguments = (workload, self.question.constraints, shape, fewest)
            doing = f"embedding {shape} in {workload.name}"
            tasks.append(Task(str(computation), embed, arguments, doing))
        found: dict[int, Embedded] = {}
        for task, result in self.workers.results(tasks):
            found[int(task.key)] = result
            self.report("embedding the best shapes", len(found), len(tasks))
        return found

    def left_out(self) -> tuple[LeftOut, ...]:
        """The layers that no shape embeds."""
        return tuple(
            LeftOut(layer, reason)
            for layer in self.layers.layers
            if (reason := self.tables[layer.computation].reason) is not None
        )
