"""The best shapes for the layers of a suite: tables, dominance, the choice, and its embeddings."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from cpembed.exploration.shapes.cell_table import CellSearch, CellTable
from cpembed.exploration.shapes.cells import (
    Call,
    Cell,
    FewestExecutions,
    NoProgramError,
    ProvenEmbedding,
    embed,
    keyed_results,
)
from cpembed.exploration.shapes.choice import (
    Costs,
    NearSets,
    SetChoice,
    undominated,
    undominated_without,
)
from cpembed.exploration.shapes.layout_search import LayoutSearch
from cpembed.exploration.shapes.network import network_of
from cpembed.exploration.shapes.question import (
    Counts,
    LayerRow,
    LeftOut,
    NearShapes,
    Question,
    Sets,
    ShapeResult,
    tabulate,
    weighted,
)
from cpembed.exploration.shapes.shape import Model, Shape, read_layers
from cpembed.runtime.cluster import Workers
from cpembed.steps import Progress
from cpembed.time_limit import Clock


def find_shapes(
    model: Model, question: Question, workers: Workers, report: Progress
) -> ShapeResult:
    """Return the best shapes, proven, or the best that were found in the time, with the gap.

    Parameters
    ----------
    model
        The suite or the model.
    question
        The shapes that are compared and how.
    workers
        The workers that compute tables and search embeddings.
    report
        Called as the search proceeds.

    Raises
    ------
    CpembedError
        If the model cannot be read or a worker's task ends with an error.
    """
    finder = _Finder(model, question, workers, report)
    if question.layouts:
        return _with_layouts(finder)
    answer = finder.answer()
    try:
        rows = finder.rows(answer)
    except NoProgramError:
        # The tables count an embedding without a program: they are lower bounds only.
        answer = finder.by_search(exact=False)
        rows = finder.rows(answer)
    counts = Counts(len(finder.columns), answer.not_dominated, answer.searched)
    sets = Sets.from_choice(answer.choice, [finder.shape(int(n)) for n in answer.columns])
    equal = tuple(finder.shape(column) for column in answer.equal)
    result = finder.result(sets, rows, counts)
    return replace(result, equal=equal, near=answer.near)


def _with_layouts(finder: _Finder) -> ShapeResult:
    network = network_of(finder.layers, frozenset(finder.computations))
    shapes = [finder.shape(int(column)) for column in finder.columns]
    # Without products, or without shapes, there is no table to stack.
    executions = np.empty((0, 0))
    if network.uses and shapes:
        rows = [finder.tables[n].executions[finder.columns] for n in network.computations]
        executions = np.stack(rows)
    # No dominance: with layouts a shape that needs more executions everywhere may be the better
    # one.
    search = LayoutSearch(network, finder.question, shapes, executions, clock=finder.clock)
    answer = search.run(finder.workers, finder.report)
    choices = [choice for choice in (answer.best, answer.runner_up) if choice and choice.options]
    sets = SetChoice(
        tuple(choice.columns for choice in choices),
        tuple(choice.cost for choice in choices),
        answer.bound,
        answer.runner_up_proven,
    )
    counts = Counts(len(shapes), None if shapes else 0, answer.searched)
    near = None if answer.near is None else NearShapes.from_columns(answer.near, shapes)
    rows = search.rows(answer.best, finder.layers)
    result = finder.result(Sets.from_choice(sets, shapes), rows, counts)
    return replace(result, copies=answer.best.copies, near=near)


def choose_undominated(
    question: Question,
    costs: Costs,
    macs: NDArray[np.int64],
    clock: Clock,
) -> tuple[SetChoice, NDArray[np.int64], int]:
    """Return the best sets among the undominated shapes.

    Parameters
    ----------
    question
        How shapes are chosen.
    costs
        A row per layer, weighted, and a column per shape.
    macs
        The multiply-accumulates of each shape.
    clock
        The time limit.

    Returns
    -------
    The choice, the columns that its sets number, and the number of undominated shapes.
    """
    compared = costs
    if question.total_macs is not None:
        # Where shapes share a budget a smaller one may be needed.
        compared = np.concatenate([costs, macs[None].astype(np.float64)])
    remaining = undominated(compared, macs)
    columns, excluded = remaining, set[int]()
    while True:
        choice = question.choose(costs[:, columns], macs[columns], clock)
        best = {int(columns[n]) for best_set in choice.sets[:1] for n in best_set}
        if best <= excluded:
            return choice, columns, len(remaining)
        # A runner-up lacks one of the best shapes, and may need one that only this one dominates.
        for column in best - excluded:
            more = undominated_without(compared, macs, remaining, column)
            columns = np.union1d(columns, more)
        excluded |= best


@dataclass(frozen=True, kw_only=True)
class _Answer:
    """A choice among ``columns`` of the table, with the ``costs`` of its rows there.

    ``embedded`` holds the embeddings that searches found, by row and position among the columns;
    ``equal`` the columns of all other shapes that are as good as a single best one;
    ``not_dominated`` and ``searched`` are as in
    :class:`~cpembed.exploration.shapes.question.Counts`.
    """

    choice: SetChoice
    columns: NDArray[np.int64]
    costs: Costs
    embedded: dict[tuple[int, int], ProvenEmbedding]
    not_dominated: int | None = None
    searched: int | None = None
    equal: tuple[int, ...] = ()
    near: NearShapes | None = None


class _Finder:
    """The suite's layers with their tables, from which the best shapes are chosen."""

    def __init__(
        self, model: Model, question: Question, workers: Workers, report: Progress
    ) -> None:
        self.question, self.workers, self.report = question, workers, report
        self.clock, self._started = Clock(question.timeout), time.perf_counter()
        self.layers = read_layers(model, question.spec)
        self.tables = tabulate(self.layers, question, workers, report)
        self.computations = [n for n, table in enumerate(self.tables) if table.reason is None]
        self.columns = question.admitted()
        self._macs: NDArray[np.int64] = question.scope.shapes[self.columns].prod(axis=1)

    def shape(self, column: int) -> Shape:
        """Return the shape of a column of the tables."""
        return Shape(*map(int, self.question.scope.shapes[column]))

    def answer(self) -> _Answer:
        """Return the best sets, by tables alone where these hold all costs."""
        if not self.computations or not len(self.columns):
            return _Answer(
                choice=SetChoice((), (), math.inf),
                columns=self.columns[:0],
                costs=np.empty((0, 0)),
                embedded={},
                not_dominated=0,
            )
        # Tables hold executions only, and none for constraints that judge whole instructions.
        cost = self.question.cost
        packing = cost.bytes_per_execution is not None or cost.is_time
        if packing or any(self.tables[n].obstacle is not None for n in self.computations):
            return self.by_search(exact=not packing)
        return self._by_tables()

    def _by_tables(self) -> _Answer:
        costs = weighted(self.layers, self.tables, self.computations)[:, self.columns]
        choice, columns, not_dominated = choose_undominated(
            self.question, costs, self._macs, self.clock
        )
        # Among all columns again: a dominated shape may be near the best, or as good as it.
        near, equal = None, ()
        if self.question.within is not None and choice.sets:
            near = self.question.near(costs, self._macs, choice.costs[0], self.clock)
        if choice.sets and len(choice.sets[0]) == 1:
            best = columns[choice.sets[0][0]]
            ties = np.flatnonzero(costs.sum(axis=0) == choice.costs[0])
            equal = tuple(int(self.columns[n]) for n in ties if n != best)
        return _Answer(
            choice=choice,
            columns=self.columns[columns],
            costs=costs[:, columns],
            embedded={},
            not_dominated=not_dominated,
            equal=equal,
            near=self._near_shapes(near, choice),
        )

    def by_search(self, *, exact: bool) -> _Answer:
        """Return the best sets by searches of cells.

        ``exact``: executions in tables are costs, else they are lower bounds.
        """
        question, tables, rows = self.question, self.tables, self.computations
        # Executions without bytes of packing bound the cost from below.
        executions = [tables[n].executions[self.columns] for n in rows]
        machine = question.cost.machine
        if machine is None:
            bounds = np.stack(executions) * question.cost.unit
        else:
            shapes = [self.shape(int(column)) for column in self.columns]
            workloads = [self.layers.workloads[n] for n in rows]
            bounds = machine.bounds(shapes, workloads, np.stack(self._inside(rows)))
        weights = np.array([self.layers.weight(n) for n in rows], np.float64)
        in_tables = [exact and tables[n].obstacle is None for n in rows]
        search = CellSearch(
            workloads=[self.layers.workloads[n] for n in rows],
            shape=lambda column: self.shape(self.columns[column]),
            constraints=question.constraints,
            cost=question.cost,
            workers=self.workers,
            clock=self.clock,
            report=lambda count: self.report(f"searching: {count:,} shapes in layers", 0, 1),
            spec=question.spec,
        )
        table = CellTable(bounds, np.array(in_tables, np.bool_), weights, search)
        choice = table.best(lambda costs: question.choose(costs, self._macs, self.clock))
        near = None
        if question.within is not None and choice.sets:
            best = choice.costs[0]
            near = table.near(lambda costs: question.near(costs, self._macs, best, self.clock))
        results = table.results.items()
        return _Answer(
            choice=choice,
            columns=self.columns,
            costs=table.weighted_costs,
            embedded={place: c.embedded for place, c in results if c.embedded is not None},
            searched=len(results),
            near=self._near_shapes(near, choice),
        )

    def _inside(self, rows: Sequence[int]) -> list[NDArray[np.float64]]:
        """Return lower bounds of the executions that take time on a described machine."""
        inside = list[NDArray[np.float64]]()
        for row in rows:
            table = self.tables[row]
            assert table.inside is not None
            # A shape without an embedding has none.
            fits = np.isfinite(table.executions)
            inside.append(np.where(fits, table.inside, np.inf)[self.columns])
        return inside

    def _near_shapes(self, near: NearSets | None, choice: SetChoice) -> NearShapes | None:
        """Return the shapes of sets near the best; they are all only if the best is proven."""
        if near is None:
            return None
        numbers = {n for columns, _ in near.sets for n in columns}
        shapes = {n: self.shape(int(self.columns[n])) for n in numbers}
        return NearShapes.from_columns(
            replace(near, complete=near.complete and choice.proven), shapes
        )

    def rows(self, answer: _Answer) -> list[LayerRow]:
        """Return each layer with its best shape and the embedding, proven."""
        if not answer.choice.sets:
            return []
        best = list(answer.choice.sets[0])
        columns: dict[int, int] = {}
        embedded: dict[int, ProvenEmbedding] = {}
        for row, computation in enumerate(self.computations):
            place = row, best[int(np.argmin(answer.costs[row, best]))]
            columns[computation] = int(answer.columns[place[1]])
            if place in answer.embedded:
                embedded[computation] = answer.embedded[place]
        embedded |= self._embed({n: c for n, c in columns.items() if n not in embedded})
        return [
            LayerRow(layer, self.shape(columns[n]), embedded[n])
            for layer in self.layers.layers
            if (n := layer.computation) in columns
        ]

    def _embed(self, columns: dict[int, int]) -> dict[int, ProvenEmbedding]:
        """Return the embeddings of the shape of a column in each computation."""
        calls: dict[int, Call] = {}
        for computation, column in columns.items():
            table, workload = self.tables[computation], self.layers.workloads[computation]
            question = self.question
            cell = Cell(workload, question.constraints, self.shape(column), question.spec)
            fewest = FewestExecutions(int(table.executions[column]), bool(table.commuted[column]))
            calls[computation] = (cell, fewest), f"embedding {cell}"
        embedded: dict[int, ProvenEmbedding] = {}
        for computation, result in keyed_results(self.workers, embed, calls):
            embedded[computation] = result
            self.report("embedding the best shapes", len(embedded), len(calls))
        return embedded

    def result(self, sets: Sets, rows: Sequence[LayerRow], counts: Counts) -> ShapeResult:
        """Return the result with the rows of layers, and with those that no shape embeds."""
        reasons = {n: t.reason for n, t in enumerate(self.tables) if t.reason is not None}
        layers = (layer for layer in self.layers.layers if layer.computation in reasons)
        return ShapeResult(
            suite=self.layers.suite,
            question=self.question,
            sets=sets,
            layers=tuple(rows),
            left_out=tuple(LeftOut(layer, reasons[layer.computation]) for layer in layers),
            counts=counts,
            seconds=time.perf_counter() - self._started,
        )
