"""Shapes and layouts chosen together, against every set of shapes with every candidate of solve,
whose layouts another solver assigns."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from cpembed.driver.bench_layers import model_layers
from cpembed.driver.named import workload
from cpembed.driver.solve import solve
from cpembed.embedding.constraint_set import load_constraint_set
from cpembed.exploration.shapes.executions import layer_executions
from cpembed.exploration.shapes.layout_model import LayoutChoice, mappings_of
from cpembed.exploration.shapes.layout_search import LayoutAnswer, LayoutSearch
from cpembed.exploration.shapes.network import Network, TensorLayout, network_of, tensor_layout
from cpembed.exploration.shapes.question import Question
from cpembed.exploration.shapes.shape import (
    Cost,
    LayerSet,
    Scope,
    Shape,
    ShapedLayer,
    template,
)
from cpembed.graph.graph import Graph, Operator
from cpembed.graph.kinds import (
    Apply,
    Concat,
    Elementwise,
    Input,
    Kind,
    Pool,
    Product,
    Reduce,
    TensorType,
)
from cpembed.network.assignment import Node, Option, Problem, Tensor, assign
from cpembed.runtime.cluster import open_workers
from cpembed.time_limit import Clock
from tests.unit.exploration.shapes.layers import target_of

Key = tuple[TensorLayout, bool]
"""A layout, and whether it is that of a tensor which is given, but with padding."""


class Networks:
    """Random networks of two to four convolutions with what may stand between them."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.operators: list[Operator] = []
        self.types: dict[str, TensorType] = {}
        self.weights: dict[str, NDArray[np.int8]] = {}

    def graph(self) -> Graph:
        rng = self.rng
        shape = (1, rng.choice((2, 3, 4)), rng.choice((3, 4)), rng.choice((3, 4)))
        given = {"x": TensorType(shape, "int8")}
        self.types |= given
        name = self.convolution("x")
        for _ in range(rng.choice((1, 1, 2))):
            kind = rng.choice(("chain", "chain", "residual", "concat", "pool"))
            if kind == "residual":
                name = self.both(name, self.convolution(name, self.types[name].shape[1]))
            elif kind == "concat":
                parts = (self.convolution(name), self.convolution(name))
                name = self.add("concat", Concat(1), parts)
            elif kind == "pool":
                name = self.convolution(
                    self.add("pool", Pool("max", (2, 2), (1, 1), (0, 0), (0, 0), (1, 1)), (name,))
                )
            else:
                name = self.convolution(name)
        if rng.random() < 0.3:
            name = self.add("most", Reduce("max", (2, 3), False), (name,))
        return Graph("random", given, (name,), self.weights, tuple(self.operators))

    def convolution(self, name: str, filters: int = 0) -> str:
        rng = self.rng
        _, c, h, w = self.types[name].shape
        size = rng.choice((1, 1, 3)) if min(h, w) > 1 else 1
        filters = filters or rng.choice((2, 3, 4))
        words = f"conv2d n=1 c={c} h={h} w={w} k={filters} r={size} s={size} pad={size // 2}"
        computation = workload(words, template())
        weights = f"weights{len(self.operators)}"
        self.weights[weights] = np.ones((filters, c, size, size), np.int8)
        product = Product(computation, (1, filters, h, w))
        sums = self.add("conv", product, (name, weights))
        return self.add("cast", Elementwise(Apply("neg", (Input(0),)), "int8"), (sums,))

    def both(self, first: str, second: str) -> str:
        total = Elementwise(Apply("add", (Input(0), Input(1))), "int8")
        return self.add("sum", total, (first, second))

    def add(self, label: str, kind: Kind, inputs: tuple[str, ...]) -> str:
        name = f"{label}{len(self.operators)}"
        self.operators.append(Operator(name, kind, inputs, (name,)))
        taken = [
            self.types[n] if n in self.types else TensorType.of_array(self.weights[n])
            for n in inputs
        ]
        (self.types[name],) = kind.types(taken)
        return name


def layer_set(graph: Graph) -> LayerSet:
    found = model_layers(graph, graph.name)
    layers = [
        ShapedLayer(n, layer.label, layer.count, layer.workload().macs, n)
        for n, layer in enumerate(found)
    ]
    workloads = tuple(layer.workload() for layer in found)
    numbers = {layer: n for n, layer in enumerate(workloads)}
    return LayerSet(graph.name, tuple(layers), workloads, graph, numbers)


def silent(what: str, done: int, total: int) -> None:
    pass


def chosen(
    network: Network, shapes: Sequence[Shape], count: int, unit: int, constraints: str
) -> LayoutAnswer:
    scope = Scope(max(shape.macs for shape in shapes))
    places = {tuple(map(int, row)): n for n, row in enumerate(scope.shapes)}
    columns = [places[shape.x, shape.y, shape.z] for shape in shapes]
    chosen_set = load_constraint_set(constraints)
    executions = np.stack(
        [
            layer_executions(use.workload, chosen_set, scope, template()).executions[columns]
            for use in network.uses
        ]
    )
    within = 25.0 if count == 1 else None
    question = Question(scope, count, chosen_set, Cost(unit), layouts=True, within=within)
    with open_workers(1) as workers:
        return LayoutSearch(network, question, shapes, executions, Clock(None)).run(workers, silent)


# ------------------------------------------------------------------------------ the referee


Candidates = dict[tuple[int, Shape], list[tuple[int, tuple[Key, ...], TensorLayout]]]


def candidates(network: Network, shapes: Sequence[Shape], constraints: str) -> Candidates:
    """Of each use and shape: executions, what is read, what is written, of all embeddings."""
    found: Candidates = {}
    for number, use in enumerate(network.uses):
        for shape in shapes:
            result = solve(use.workload, target_of(shape), constraints=constraints, top=None)
            rows = found[number, shape] = []
            for one in result.embeddings:
                operands = {o.name: o for o in one.candidate.program.operands}
                reads = tuple(
                    (
                        tensor_layout(operands[port.operand], port.shape, stored=False),
                        operands[port.operand].elements != math.prod(port.shape),
                    )
                    for port in use.reads
                )
                writes = tensor_layout(operands[use.writes.operand], use.writes.shape, stored=True)
                rows.append((one.overheads.calls, reads, writes))
    return found


def key_of(network: Network, name: str, layout: TensorLayout, padded: bool) -> Key:
    """What is given in the order of its axes has no padding."""
    tensor = network.tensors[name]
    return layout, padded and tensor.is_input and layout == tensor.plain


def layouts(network: Network, of: Candidates, opened: Sequence[Shape]) -> dict[str, dict[Key, int]]:
    """All layouts that any tensor may have, those of one of the same shape included."""
    found: dict[str, dict[Key, int]] = {
        name: {(tensor.plain, False): 0} for name, tensor in network.tensors.items()
    }
    for node in network.products:
        for shape in opened:
            for _, reads, writes in of[node.use, shape]:
                found[node.writes].setdefault((writes, False), len(found[node.writes]))
                for name, (layout, padded) in zip(node.reads, reads, strict=True):
                    key = key_of(network, name, layout, padded)
                    found[name].setdefault(key, len(found[name]))
    for _ in range(len(network.unmapped)):
        for node in network.unmapped:
            names = (*node.reads, *node.writes)
            for source, name in itertools.permutations(names, 2):
                for layout, _padded in list(found[source]):
                    taken = layout.carried_to(network.tensors[name].shape, node.axes)
                    if node.any_layout and taken is not None:
                        found[name].setdefault((taken, False), len(found[name]))
    return found


def cost_of(network: Network, of: Candidates, opened: Sequence[Shape], unit: int) -> float:
    numbers = layouts(network, of, opened)
    tensors: list[Tensor] = []
    for name, tensor in network.tensors.items():
        keys = list(numbers[name])
        copying = {
            (a, b): float(keys[b][0].moved * tensor.item_bytes)
            for a, b in itertools.permutations(range(len(keys)), 2)
        }
        plain = 0 if tensor.is_input else None
        wanted = (0,) if tensor.is_output else ()
        tensors.append(Tensor(name, tuple(map(str, range(len(keys)))), copying, plain, wanted))
    nodes: dict[str, Node] = {}
    for node in network.products:
        options: list[Option] = []
        for shape in opened:
            for calls, reads, writes in of[node.use, shape]:
                keys = [
                    key_of(network, name, layout, padded)
                    for name, (layout, padded) in zip(node.reads, reads, strict=True)
                ]
                ports = [numbers[n][key] for n, key in zip(node.reads, keys, strict=True)]
                ports.append(numbers[node.writes][writes, False])
                options.append(Option("", tuple(ports), float(calls * unit)))
        if not options:
            return math.inf
        nodes[node.writes] = Node(node.name, node.reads, (node.writes,), tuple(options))
    for node in network.unmapped:
        (name,) = node.writes
        options: list[Option] = []
        for (layout, _), number in numbers[name].items():
            plain = layout == network.tensors[name].plain
            if layout.packed or not (plain or node.any_layout):
                continue
            needed = [
                network.tensors[read].plain
                if plain
                else layout.carried_to(network.tensors[read].shape, node.axes)
                for read in node.reads
            ]
            if all(one is not None for one in needed):
                ports = [
                    numbers[read][one, False]
                    for read, one in zip(node.reads, needed, strict=True)
                    if one is not None
                ]
                options.append(Option("", (*ports, number), 0.0))
        nodes[name] = Node(node.name, node.reads, (name,), tuple(options))
    ordered = [nodes[name] for name in network.tensors if name in nodes]
    found = assign(Problem(tuple(ordered), tuple(tensors)))
    assert found.proven
    return found.cost


def referee(
    network: Network, of: Candidates, shapes: Sequence[Shape], count: int, unit: int
) -> dict[tuple[Shape, ...], float]:
    sets = [s for n in range(1, count + 1) for s in itertools.combinations(shapes, n)]
    return {opened: cost_of(network, of, opened, unit) for opened in sets}


SHAPES = [
    Shape(x, y, z) for x in (1, 2, 4) for y in (1, 2, 4) for z in (1, 2, 3, 4) if x * y * z <= 8
]


@pytest.mark.slow
def test_a_way_is_left_out_only_for_one_that_copies_make_no_worse() -> None:
    """By what another way executes more, less the copies of what it reads and of what the first one
    wrote."""
    rng = random.Random(5)
    left_out = 0
    for _ in range(12):
        graph = Networks(rng).graph()
        layers = layer_set(graph)
        network = network_of(layers, frozenset(range(len(layers.workloads))))
        shape, unit = rng.choice(SHAPES), rng.choice((1, 4, 16, 64))
        of = candidates(network, [shape], "in_place_padded")
        for number, use in enumerate(network.uses):
            rows = of[number, shape]
            copied = [
                sum(
                    layout.moved * p.item_bytes for (layout, _), p in zip(r, use.reads, strict=True)
                )
                for _, r, _ in rows
            ]
            copied = [c + 2 * math.prod(use.writes.shape) * use.writes.item_bytes for c in copied]
            least = min(
                (calls * unit + c for (calls, _, _), c in zip(rows, copied, strict=True)),
                default=math.inf,
            )
            needed = {(reads, writes) for calls, reads, writes in rows if calls * unit < least}
            found = mappings_of(use, load_constraint_set("in_place_padded"), shape, unit, None)
            keys = {
                (tuple((read.layout, read.padded) for read in mapping.reads), mapping.writes)
                for mapping in found.mappings
            }
            assert keys == needed
            assert math.isinf(found.bound)
            left_out += len({(reads, writes) for _, reads, writes in rows}) - len(needed)
    assert left_out


def compare(seed: int, count: int, shapes: Sequence[Shape], constraints: str) -> None:
    rng = random.Random(seed)
    graph = Networks(rng).graph()
    layers = layer_set(graph)
    network = network_of(layers, frozenset(range(len(layers.workloads))))
    unit = rng.choice((1, 4, 16, 64))
    costs = referee(network, candidates(network, shapes, constraints), shapes, count, unit)
    found = chosen(network, shapes, count, unit, constraints)
    least = min(costs.values())
    assert found.best.cost == found.bound == least, (graph, unit)
    if math.isinf(least):
        assert not found.best.options
        assert found.runner_up is None
        return
    best = {shapes[column] for column in found.best.columns}
    assert costs[tuple(s for s in shapes if s in best)] == least
    others = [cost for opened, cost in costs.items() if not best <= {*opened}]
    following = min(others, default=math.inf)
    assert (math.inf if found.runner_up is None else found.runner_up.cost) == following
    assert found.runner_up_proven
    check_copies(network, found.best, unit)
    if count == 1:
        assert found.near is not None
        assert found.near.complete
        listed = {(shapes[chosen[0]],): cost for chosen, cost in found.near.sets}
        assert listed == {s: cost for s, cost in costs.items() if 100 * cost <= 125 * least}


def check_copies(network: Network, choice: LayoutChoice, unit: int) -> None:
    """What the choice says it costs is the sum of what it says it does."""
    executions = sum(option.mapping.executions for option in choice.options if option.mapping)
    moved = sum(copy.moved_bytes for copy in choice.copies)
    assert choice.cost == executions * unit + moved
    assert len({(copy.tensor, copy.layout) for copy in choice.copies}) == len(choice.copies)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_one_shape_equals_brute_force(seed: int) -> None:
    compare(seed, 1, SHAPES, "in_place_padded")


@pytest.mark.quick(1)
@pytest.mark.parametrize("seed", range(3))
def test_two_shapes_equal_brute_force(seed: int) -> None:
    compare(100 + seed, 2, SHAPES[::4], "in_place_padded")


@pytest.mark.slow
@pytest.mark.parametrize("constraints", ["strict", "in_place_padded", "relaxed"])
@pytest.mark.parametrize("seed", range(12))
def test_many_networks_equal_brute_force(seed: int, constraints: str) -> None:
    compare(200 + seed, 1, SHAPES, constraints)
    compare(300 + seed, 2, SHAPES[1::3], constraints)
    compare(400 + seed, 3, SHAPES[2::4], constraints)
