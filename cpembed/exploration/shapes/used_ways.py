"""The rows of a network whose layouts were chosen: the layers that take the same way, together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from cpembed.cluster import Task, Workers
from cpembed.exploration.shapes.embedded import Embedded
from cpembed.exploration.shapes.joint import Choice
from cpembed.exploration.shapes.layers import LayerSet
from cpembed.exploration.shapes.network import Network
from cpembed.exploration.shapes.result import LayerRow
from cpembed.exploration.shapes.shape import Shape
from cpembed.exploration.shapes.tensor_layout import TensorLayout
from cpembed.exploration.shapes.ways import Way, proven

_Key = tuple[int, int, tuple[TensorLayout, ...]]
"""A computation, a column and the layouts of a way, of which there is one for each layouts."""


def rows_of(
    network: Network,
    choice: Choice,
    layers: LayerSet,
    shapes: Sequence[Shape],
    workers: Workers,
) -> list[LayerRow]:
    """In the order of the layers, each way proven by the workers."""
    ways: dict[_Key, Way] = {}
    counts: Counter[_Key] = Counter()
    for node, option in zip(network.products, choice.options, strict=False):
        if option.way is not None:
            layouts = (*(read.layout for read in option.way.reads), option.way.writes)
            key = network.computations[node.use], option.column, layouts
            ways[key] = option.way
            counts[key] += 1
    found = _proven(layers, ways, shapes, workers)
    rows: list[LayerRow] = []
    for key, embedded in found.items():
        number, column, layouts = key
        layer = next(one for one in layers.layers if one.computation == number)
        counted = replace(layer, count=counts[key])
        rows.append(LayerRow(counted, shapes[column], embedded, tuple(map(network.named, layouts))))
    return sorted(rows, key=lambda row: row.layer.index)


def _proven(
    layers: LayerSet, ways: Mapping[_Key, Way], shapes: Sequence[Shape], workers: Workers
) -> dict[_Key, Embedded]:
    keys = list(ways)
    tasks: list[Task] = []
    for place, key in enumerate(keys):
        workload, shape = layers.workloads[key[0]], shapes[key[1]]
        doing = f"proving {shape} in {workload.name}"
        tasks.append(Task(str(place), proven, (workload, shape, ways[key]), doing))
    found: dict[_Key, Embedded] = {}
    for task, result in workers.results(tasks):
        found[keys[int(task.key)]] = result
    return {key: found[key] for key in keys}
