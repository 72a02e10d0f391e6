"""The layers of a suite, each distinct computation once, with the executions of all shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from cpembed.cluster import Task, Workers
from cpembed.driver.bench_layers import layer_workload, named_suite
from cpembed.driver.named import default_dtypes, is_typed, typed_by_roles
from cpembed.embedding.constraint_set import ConstraintSet
from cpembed.errors import WorkloadError
from cpembed.exploration.shapes.choice import Costs
from cpembed.exploration.shapes.executions import LayerExecutions, Scope, layer_executions
from cpembed.exploration.shapes.shape import template
from cpembed.graph.graph import Graph
from cpembed.ir.computation import Computation
from cpembed.workloads.suites import Layer
from cpembed.workloads.user_suites import ComputedLayer

Report = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is."""


@dataclass(frozen=True)
class ShapedLayer:
    """A layer of the suite; ``computation`` is the number of its computation among the distinct
    ones."""

    index: int
    label: str
    count: int
    macs: int
    computation: int


@dataclass(frozen=True)
class LayerSet:
    """All layers of a suite and its distinct computations. Of a model also ``graph``, and by a
    product's own computation (:func:`~cpembed.driver.bench_layers.product_key`) the number of that
    among the distinct ones."""

    suite: str
    layers: tuple[ShapedLayer, ...]
    workloads: tuple[Computation, ...]
    graph: Graph | None = None
    of_product: Mapping[Computation, int] = field(default_factory=dict[Computation, int])

    def weights(self, computation: int) -> int:
        """How often the network has a computation."""
        return sum(layer.count for layer in self.layers if layer.computation == computation)


def read_layers(
    suite: str, layout: str, shapes: Mapping[str, Sequence[int]] | None = None
) -> LayerSet:
    """The layers of a suite or a model, on the element types of the instruction.

    Raises :class:`WorkloadError` for a suite that is not known and a layer without the layout.
    """
    spec = template()
    named = named_suite(suite, spec, shapes)
    numbers: dict[Computation, int] = {}
    layers: list[ShapedLayer] = []
    products: dict[Computation, int] = {}
    for layer in named.layers:
        workload = _typed(layer, layout)
        number = numbers.setdefault(replace(workload, name=workload.name.split()[0]), len(numbers))
        layers.append(ShapedLayer(layer.index, layer.label, layer.count, workload.macs, number))
        if isinstance(layer, ComputedLayer):
            products[layer.computation] = number
    return LayerSet(named.name, tuple(layers), tuple(numbers), named.graph, products)


def _typed(layer: Layer, layout: str) -> Computation:
    """On the element types of the instruction, where the layer does not say its own."""
    spec = template()
    if isinstance(layer, ComputedLayer):
        return layer_workload(layer, layout, spec)
    named = layer.workload(default_dtypes(spec), layout)
    return named if is_typed([layer.label]) else typed_by_roles(named, spec.instruction)


def executions_of(
    layers: LayerSet, constraints: ConstraintSet, scope: Scope, workers: Workers, report: Report
) -> list[LayerExecutions]:
    """The executions of all shapes in each distinct computation, by the workers."""
    tasks = [
        Task(
            f"computation {number}",
            layer_executions,
            (workload, constraints, scope),
            f"executions of {workload.name}",
        )
        for number, workload in enumerate(layers.workloads)
    ]
    places = {task.key: number for number, task in enumerate(tasks)}
    found: dict[int, LayerExecutions] = {}
    for task, result in workers.results(tasks):
        found[places[task.key]] = result
        report("tables", len(found), len(tasks))
    return [found[number] for number in range(len(tasks))]


def weighted(layers: LayerSet, found: Sequence[LayerExecutions], used: Sequence[int]) -> Costs:
    """Executions times counts, of the computations that are ``used``."""
    if not used:
        raise WorkloadError("no layer to choose a shape for")
    return np.stack([found[n].executions * layers.weights(n) for n in used])
