"""Elementwise operators that go into the epilogue of the product before them."""

from __future__ import annotations

import numpy as np
import pytest

from cpembed.graph.graph import Graph, evaluate
from cpembed.graph.kinds import Apply, Elementwise, Input, Product, Quantize
from cpembed.graph.passes import prepare
from cpembed.graph.passes.chain_fusion import fuse_chains, split_chain
from cpembed.ir.scalars import apply
from tests.random_networks import RELU, Network, largest_difference, same_results

ADD, MUL = (apply(operation, Input(0), Input(1)) for operation in ("add", "mul"))
SIGMOID = Apply("sigmoid", (Input(0),))
PRELU = apply("where", apply("less", Input(0), 0.0), MUL, Input(0))
SHAPE = (1, 8, 5, 6)


def silu(net: Network, x: str) -> str:
    return net.elementwise(MUL, x, net.elementwise(SIGMOID, x))


def products(graph: Graph) -> list[Product]:
    return [o.kind for o in graph.operators if isinstance(o.kind, Product)]


def chain_count(graph: Graph) -> int:
    kinds = products(graph)
    return sum(k.epilogue is not None and k.epilogue.chain is not None for k in kinds)


@pytest.mark.parametrize("seed", range(12))
def test_activations_of_random_layers_change_nothing(seed: int) -> None:
    """A bias or none, a residual before or after the activation or none, vectors per channel."""
    net = Network(seed)
    x = net.input(SHAPE, "float32")
    y = net.convolution(x, 8, 3)
    if net.random.integers(2):
        y = net.elementwise(ADD, y, net.constant(net.array((1, 8, 1, 1), "float32")))
    before, after = net.random.integers(2, size=2)
    y = net.elementwise(ADD, y, x) if before else y
    if net.random.integers(2):
        y = net.elementwise(PRELU, y, net.constant(net.array((8, 1, 1), "float32")))
    else:
        y = silu(net, y)
    y = net.elementwise(ADD, y, x) if after and not before else y
    y = net.elementwise(MUL, y, net.constant(net.array((1, 8, 1, 1), "float32")))
    graph = net.graph(y)
    unfused, fused = prepare(graph, fuse=False), prepare(graph)
    assert [type(o.kind) for o in fused.operators] == [Product]
    assert chain_count(fused) == 1
    assert same_results(unfused, fused, net.samples())


def test_a_quantized_result_is_rounded_in_the_epilogue() -> None:
    net = Network(3)
    y = silu(net, net.convolution(net.input(SHAPE, "float32"), 8, 3))
    graph = net.graph(net.add(Quantize((0.02,), (7,), "uint8"), y))
    fused = prepare(graph)
    (kind,) = products(fused)
    assert kind.dtype == "uint8"
    assert len(fused.operators) == 1
    assert same_results(prepare(graph, fuse=False), fused, net.samples())


def test_a_result_that_something_else_reads_stays() -> None:
    net = Network(4)
    x = net.input(SHAPE, "float32")
    y = net.convolution(x, 8, 3)
    z = silu(net, y)
    graph = net.graph(net.elementwise(ADD, net.convolution(y, 8, 3), z))
    fused = prepare(graph)
    assert same_results(prepare(graph, fuse=False), fused, net.samples())
    # The first convolution is read twice, so its activation goes into the second one's sum.
    first, second = products(fused)
    assert first.epilogue is None
    assert second.epilogue is not None


def test_what_an_epilogue_cannot_read_stays_an_operator() -> None:
    net = Network(5)
    x = net.input(SHAPE, "float32")
    y = net.convolution(x, 8, 3)
    per_pixel = net.constant(net.array((5, 6), "float32"))
    for operands in ((y, per_pixel), (y, net.input((1, 8, 1, 1), "float32"))):
        graph = prepare(net.graph(net.elementwise(MUL, *operands)))
        assert chain_count(graph) == 0
        assert any(isinstance(o.kind, Elementwise) for o in graph.operators)


def test_a_network_output_keeps_its_product() -> None:
    net = Network(6)
    y = net.convolution(net.input(SHAPE, "float32"), 8, 3)
    graph = net.graph(y, silu(net, y))
    assert chain_count(prepare(graph)) == 0


@pytest.mark.parametrize("seed", range(6))
def test_a_chain_that_is_split_off_is_the_same(seed: int) -> None:
    net = Network(seed)
    x = net.input(SHAPE, "float32")
    y = net.convolution(x, 8, 3)
    y = net.elementwise(RELU, net.elementwise(ADD, y, x)) if seed % 2 else y
    y = net.elementwise(PRELU, y, net.constant(net.array((8, 1, 1), "float32")))
    y = silu(net, y) if seed % 3 else net.elementwise(ADD, y, y)
    graph = prepare(net.graph(y))
    (operator,) = graph.operators
    assert isinstance(operator.kind, Product)
    parts, constants = split_chain(graph, operator, operator.kind, "between")
    split = graph.with_operators(parts, constants)
    assert [type(o.kind) for o in split.operators] == [Product, Elementwise]
    assert same_results(graph, split, net.samples())
    assert np.isfinite(evaluate(split, net.samples())[y]).all()


def test_fusing_twice_changes_nothing_more() -> None:
    net = Network(7)
    y = silu(net, net.convolution(net.input(SHAPE, "float32"), 8, 3))
    graph = prepare(net.graph(y))
    assert fuse_chains(graph) == graph
    assert largest_difference(prepare(net.graph(y), fuse=False), graph, net.samples()) == 0
