"""The question of ``cpembed shape``: the layers of a suite, and which shapes are compared how."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from cpembed.driver.bench_layers import layer_workload, named_suite
from cpembed.driver.named import default_dtypes, is_typed, typed_by_roles
from cpembed.embedding.constraint_set import ConstraintSet
from cpembed.errors import WorkloadError
from cpembed.exploration.shapes.cells import Cost, keyed_results
from cpembed.exploration.shapes.choice import (
    Budget,
    Costs,
    NearSets,
    SetChoice,
    best_one,
    best_sets,
    best_two,
    cost_limit,
    sets_within,
)
from cpembed.exploration.shapes.executions import LayerExecutions, layer_executions
from cpembed.exploration.shapes.shape import Scope, template, tile_bytes
from cpembed.graph.graph import Graph
from cpembed.ir.computation import Computation
from cpembed.runtime.cluster import Workers
from cpembed.steps import Progress
from cpembed.time_limit import Clock
from cpembed.workloads.suites import Layer
from cpembed.workloads.user_suites import ComputedLayer

DEFAULT_SET = "in_place_padded"
"""Name of the constraint set where none is named."""


@dataclass(frozen=True)
class Model:
    """A suite or a model, with the layout of images and the shapes of a model's inputs."""

    name: str
    layout: str = "NCHW"
    inputs: Mapping[str, Sequence[int]] | None = None


@dataclass(frozen=True)
class Question:
    """The best shapes that are searched for.

    Attributes
    ----------
    scope
        The shapes that are compared.
    count
        Maximum number of shapes in a set.
    constraints
        The set under which layers are embedded.
    cost
        The measure of a shape in a layer.
    buffer_bytes
        Maximum number of bytes of the tiles of a shape's operands.
    total_macs
        Maximum number of multiply-accumulates of all shapes of a set.
    timeout
        Time limit in seconds.
    layouts
        Tensors of a model stay packed between its layers: what counts of packing is copying them
        from one layout to another, and constants are packed ahead of time.
    within
        All sets that cost at most so many percent more than the best are listed.
    """

    scope: Scope
    count: int
    constraints: ConstraintSet
    cost: Cost = field(default_factory=Cost)
    buffer_bytes: int | None = None
    total_macs: int | None = None
    timeout: float | None = None
    layouts: bool = False
    within: float | None = None

    def admitted(self) -> NDArray[np.int64]:
        """Return the columns of the shapes that the buffer and the total of a set admit."""
        shapes = self.scope.shapes
        admitted = np.ones(len(shapes), np.bool_)
        if self.buffer_bytes is not None:
            admitted &= tile_bytes(shapes) <= self.buffer_bytes
        if self.total_macs is not None:
            admitted &= shapes.prod(axis=1) <= self.total_macs
        return np.flatnonzero(admitted)

    def choose(self, costs: Costs, macs: NDArray[np.int64], clock: Clock) -> SetChoice:
        """Return the best set and the runner-up.

        Parameters
        ----------
        costs
            A row per layer, weighted, and a column per shape.
        macs
            The multiply-accumulates of each shape.
        clock
            The time limit.
        """
        if self.total_macs is None and self.count <= 2:
            return best_one(costs) if self.count == 1 else best_two(costs)
        return best_sets(costs, self.count, clock.left(), self.budget(macs.tolist()))

    def near(self, costs: Costs, macs: NDArray[np.int64], best: float, clock: Clock) -> NearSets:
        """Return the sets that cost little more than the best.

        Parameters
        ----------
        costs, macs, clock
            As in :meth:`choose`.
        best
            The cost of the best set.
        """
        limit = cost_limit(best, self.within or 0.0)
        return sets_within(costs, self.count, limit, clock, self.budget(macs.tolist()))

    def budget(self, macs: Sequence[int]) -> Budget | None:
        """Return the limit on the multiply-accumulates of a set, by those of each column."""
        return None if self.total_macs is None else Budget(macs, self.total_macs)


@dataclass(frozen=True)
class ShapedLayer:
    """A layer of the suite; ``computation`` is its number among the distinct computations."""

    index: int
    label: str
    count: int
    macs: int
    computation: int


@dataclass(frozen=True)
class LayerSet:
    """All layers of a suite, and its distinct computations as ``workloads``.

    A model has a ``graph`` too, and ``of_product`` by a product's own computation
    (:func:`~cpembed.driver.bench_layers.product_key`) its number among the distinct ones.
    """

    suite: str
    layers: tuple[ShapedLayer, ...]
    workloads: tuple[Computation, ...]
    graph: Graph | None = None
    of_product: Mapping[Computation, int] = field(default_factory=dict[Computation, int])

    def weight(self, computation: int) -> int:
        """Return how often the network has a computation."""
        return sum(layer.count for layer in self.layers if layer.computation == computation)


def read_layers(model: Model) -> LayerSet:
    """Return the layers of a suite or a model, on the element types of the instruction.

    Raises
    ------
    WorkloadError
        If the suite is unknown, or a layer does not have the layout.
    """
    suite = named_suite(model.name, template(), model.inputs)
    numbers: dict[Computation, int] = {}
    layers: list[ShapedLayer] = []
    products: dict[Computation, int] = {}
    for layer in suite.layers:
        workload = _typed(layer, model.layout)
        # Layers of the same computation differ in their names after the first word.
        number = numbers.setdefault(replace(workload, name=workload.name.split()[0]), len(numbers))
        layers.append(ShapedLayer(layer.index, layer.label, layer.count, workload.macs, number))
        if isinstance(layer, ComputedLayer):
            products[layer.computation] = number
    return LayerSet(suite.name, tuple(layers), tuple(numbers), suite.graph, products)


def _typed(layer: Layer, layout: str) -> Computation:
    """Return a layer on the element types of the instruction, unless it names its own."""
    spec = template()
    if isinstance(layer, ComputedLayer):
        return layer_workload(layer, layout, spec)
    workload = layer.workload(default_dtypes(spec), layout)
    return workload if is_typed([layer.label]) else typed_by_roles(workload, spec.instruction)


def tabulate(
    layers: LayerSet, question: Question, workers: Workers, report: Progress
) -> list[LayerExecutions]:
    """Return the executions of all shapes in each distinct computation.

    Parameters
    ----------
    layers
        The layers.
    question
        The shapes and the constraint set.
    workers
        The workers that compute the tables.
    report
        Called after each table.
    """
    calls = {
        n: ((workload, question.constraints, question.scope), f"executions of {workload.name}")
        for n, workload in enumerate(layers.workloads)
    }
    tables: dict[int, LayerExecutions] = {}
    for number, table in keyed_results(workers, layer_executions, calls):
        tables[number] = table
        report("tables", len(tables), len(calls))
    return [tables[number] for number in calls]


def weighted(
    layers: LayerSet, tables: Sequence[LayerExecutions], computations: Sequence[int]
) -> Costs:
    """Return executions times counts, as costs to choose shapes by.

    Parameters
    ----------
    layers, tables
        The layers, and the table of each distinct computation.
    computations
        The computations that get a row.
    """
    if not computations:
        raise WorkloadError("no layer to choose a shape for")
    return np.stack([tables[n].executions * layers.weight(n) for n in computations])
