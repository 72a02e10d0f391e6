"""Transpositions beside products of matrices."""

import pytest

from cpembed.graph.kinds import Input, Product, Reshape, Transpose
from cpembed.graph.passes import prepare
from cpembed.graph.passes.epilogue_fusion import fuse_float_epilogues
from cpembed.graph.passes.folding import fold
from cpembed.graph.passes.rewriting import broadcastable, segments
from cpembed.graph.passes.transpositions import absorb_transpositions
from cpembed.ir.scalars import apply
from tests.random_networks import BYTES, Network, largest_difference, same_results


def heads(net: Network, x: str) -> str:
    """[batch, tokens, heads * depth] as [batch, heads, tokens, depth]."""
    batch, tokens, size = net.values[x].shape
    return net.add(Transpose((0, 2, 1, 3)), net.add(Reshape((batch, tokens, 4, size // 4)), x))


@pytest.mark.parametrize("batch", [1, 2])
def test_heads_of_attention_are_indices(batch: int) -> None:
    net = Network(batch)
    a, b = (heads(net, net.input((batch, 5, 8), "float32")) for _ in range(2))
    scores = net.attention(a, b)
    back = net.add(Transpose((0, 2, 1, 3)), scores)
    graph = net.graph(net.add(Reshape((batch, 5, 20)), back))
    changed = absorb_transpositions(graph)
    kinds = [type(o.kind) for o in changed.operators]
    # One axis stands for images and heads, which are apart in memory where there are several.
    assert kinds.count(Transpose) == (0 if batch == 1 else 3)
    assert same_results(graph, changed, net.samples())


def test_a_transposed_matrix_is_read_as_it_is() -> None:
    net = Network(3)
    x = net.add(Transpose((1, 0)), net.input((7, 5), "float32"))
    graph = net.graph(net.add(Transpose((1, 0)), net.linear(x, 6)))
    changed = absorb_transpositions(graph)
    assert [type(o.kind) for o in changed.operators].count(Transpose) == 1
    assert same_results(graph, changed, net.samples())
    prepared = prepare(graph)
    assert [type(o.kind) for o in prepared.operators] == [Product]
    assert largest_difference(graph, prepared, net.samples()) < 1e-4


@pytest.mark.parametrize("seed", range(6))
def test_quantized_attention(seed: int) -> None:
    net = Network(seed)
    a, b = (heads(net, net.floats(net.input((1, 5, 8), net.one_of(BYTES)))) for _ in range(2))
    scores = net.floats(net.quantize(net.attention(a, b)))
    back = net.add(Transpose((0, 2, 1, 3)), scores)
    graph = net.graph(net.quantize(net.add(Reshape((1, 5, 20)), back)))
    prepared = prepare(graph)
    assert not any(isinstance(o.kind, Transpose) for o in prepared.operators)
    assert largest_difference(graph, prepared, net.samples()) <= 2


def test_dimensions_that_hold_the_same_elements() -> None:
    assert [(s.outer, s.inner) for s in segments((4, 1, 6), (2, 2, 6, 1))] == [
        ((0,), (0, 1)),
        ((2,), (2,)),
    ]
    assert broadcastable((2, 3, 5), (True, False, True), (6, 5)) is None
    assert broadcastable((2, 3, 5), (True, True, False), (6, 5)) == (6, 1)


def test_a_product_that_adds_a_tensor_keeps_its_order() -> None:
    net = Network(5)
    other = net.input((7, 6), "float32")
    y = net.elementwise(
        apply("add", Input(0), Input(1)), net.linear(net.input((7, 5), "float32"), 6), other
    )
    graph = fuse_float_epilogues(fold(net.graph(net.add(Transpose((1, 0)), y)), weights=True))
    assert [type(o.kind) for o in graph.operators] == [Product, Transpose]
    assert absorb_transpositions(graph) == graph
