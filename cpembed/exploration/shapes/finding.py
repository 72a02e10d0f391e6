"""The best shapes for the layers of a suite: tables, dominance, the choice, and its embeddings."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cpembed.cluster import Task, Workers
from cpembed.embedding.constraint_set import ConstraintSet
from cpembed.exploration.shapes.choice import Costs, Found, best_one, best_two
from cpembed.exploration.shapes.dominance import undominated
from cpembed.exploration.shapes.embedded import Embedded, Fewest, embed
from cpembed.exploration.shapes.executions import LayerExecutions, Scope
from cpembed.exploration.shapes.layers import (
    LayerSet,
    Report,
    executions_of,
    read_layers,
    weighted,
)
from cpembed.exploration.shapes.median import Budget, best_sets
from cpembed.exploration.shapes.result import LayerRow, LeftOut, RunnerUp, ShapeResult
from cpembed.exploration.shapes.shape import Shape, tile_bytes
from cpembed.time_limit import Clock

DEFAULT_SET = "in_place_padded"


@dataclass(frozen=True)
class Question:
    """What is asked: the best ``count`` shapes or fewer within ``scope``. ``buffer_bytes``: the
    tiles of a shape's operands take no more; ``total_macs``: nor have the shapes more together."""

    scope: Scope
    count: int
    constraints: ConstraintSet
    buffer_bytes: int | None = None
    total_macs: int | None = None
    timeout: float | None = None


@dataclass(frozen=True)
class Model:
    """A suite or a model and how it is read."""

    name: str
    layout: str = "NCHW"
    inputs: Mapping[str, Sequence[int]] | None = None


def find_shapes(model: Model, question: Question, workers: Workers, report: Report) -> ShapeResult:
    """The best shapes, proven, or the best that were found in the time, with the gap."""
    started, clock = time.perf_counter(), Clock(question.timeout)
    layers = read_layers(model.name, model.layout, model.inputs)
    tables = executions_of(layers, question.constraints, question.scope, workers, report)
    used = [n for n, found in enumerate(tables) if found.reason is None]
    columns = _admitted(question)
    if not used or not len(columns):
        return _nothing(layers, tables, question, len(columns), time.perf_counter() - started)
    costs = weighted(layers, tables, used)[:, columns]
    sizes = question.scope.shapes[columns].prod(axis=1)
    kept = undominated(_with_budget(costs, sizes, question), sizes)
    found = _chosen(costs[:, kept], sizes[kept], question, clock)
    shapes = _Shapes(question.scope.shapes[columns[kept]], columns[kept])
    rows = _rows(layers, tables, (found, shapes, costs[:, kept], used), question, workers, report)
    return ShapeResult(
        suite=layers.suite,
        question=question,
        shapes=tuple(shapes.at(n) for n in found.sets[0]) if found.sets else (),
        executions=int(found.costs[0]) if found.costs else None,
        bound=found.bound,
        runner_up=_runner_up(found, shapes),
        layers=tuple(rows),
        left_out=_left_out(layers, tables),
        compared=len(columns),
        not_dominated=len(kept),
        seconds=time.perf_counter() - started,
    )


@dataclass(frozen=True)
class _Shapes:
    """Shapes by their number among those that are chosen from; ``columns`` are those of tables."""

    extents: NDArray[np.int64]
    columns: NDArray[np.int64]

    def at(self, number: int) -> Shape:
        return Shape(*map(int, self.extents[number]))


def _admitted(question: Question) -> NDArray[np.int64]:
    """The shapes whose tiles the buffer holds and that the total budget allows, by number."""
    shapes = question.scope.shapes
    admitted = np.ones(len(shapes), np.bool_)
    if question.buffer_bytes is not None:
        admitted &= tile_bytes(shapes) <= question.buffer_bytes
    if question.total_macs is not None:
        admitted &= shapes.prod(axis=1) <= question.total_macs
    return np.flatnonzero(admitted)


def _with_budget(costs: Costs, sizes: NDArray[np.int64], question: Question) -> Costs:
    """Costs for dominance: where shapes share a budget a smaller one may be needed."""
    if question.total_macs is None:
        return costs
    return np.concatenate([costs, sizes[None].astype(np.float64)])


def _chosen(costs: Costs, sizes: NDArray[np.int64], question: Question, clock: Clock) -> Found:
    if question.total_macs is None and question.count <= 2:
        return best_one(costs) if question.count == 1 else best_two(costs)
    budget = None
    if question.total_macs is not None:
        budget = Budget(sizes.tolist(), question.total_macs)
    return best_sets(costs, question.count, clock.left(), budget)


def _rows(
    layers: LayerSet,
    tables: Sequence[LayerExecutions],
    chosen: tuple[Found, _Shapes, Costs, Sequence[int]],
    question: Question,
    workers: Workers,
    report: Report,
) -> list[LayerRow]:
    """Each layer with its shape and the embedding of that, proven."""
    found, shapes, costs, used = chosen
    if not found.sets:
        return []
    best = found.sets[0]
    taken = {n: best[int(np.argmin(costs[row, list(best)]))] for row, n in enumerate(used)}
    tasks: list[Task] = []
    for computation, number in taken.items():
        table, column = tables[computation], shapes.columns[number]
        fewest = Fewest(int(table.executions[column]), bool(table.exchanged[column]))
        workload, shape = layers.workloads[computation], shapes.at(number)
        arguments = (workload, question.constraints, shape, fewest)
        doing = f"embedding {shape} in {workload.name}"
        tasks.append(Task(str(computation), embed, arguments, doing))
    embedded: dict[int, Embedded] = {}
    for outcome in workers.outcomes(tasks):
        if outcome.error is not None:
            raise outcome.error
        embedded[int(outcome.task.key)] = outcome.result
        report("embeddings", len(embedded), len(tasks))
    return [
        LayerRow(layer, shapes.at(taken[layer.computation]), embedded[layer.computation])
        for layer in layers.layers
        if layer.computation in taken
    ]


def _runner_up(found: Found, shapes: _Shapes) -> RunnerUp | None:
    if len(found.sets) < 2:
        return None
    others = tuple(shapes.at(n) for n in found.sets[1])
    return RunnerUp(others, int(found.costs[1]), found.second_proven)


def _left_out(layers: LayerSet, tables: Sequence[LayerExecutions]) -> tuple[LeftOut, ...]:
    return tuple(
        LeftOut(layer, reason)
        for layer in layers.layers
        if (reason := tables[layer.computation].reason) is not None
    )


def _nothing(
    layers: LayerSet,
    tables: Sequence[LayerExecutions],
    question: Question,
    compared: int,
    seconds: float,
) -> ShapeResult:
    return ShapeResult(
        suite=layers.suite,
        question=question,
        shapes=(),
        executions=None,
        bound=float("inf"),
        runner_up=None,
        layers=(),
        left_out=_left_out(layers, tables),
        compared=compared,
        not_dominated=0,
        seconds=seconds,
    )
