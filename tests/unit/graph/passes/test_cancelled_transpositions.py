"""Networks whose channels come last, with a transposition on both sides of each convolution."""

import pytest

from cpembed.graph.kinds import Concat, Input, Pad, Reduce, Transpose
from cpembed.graph.passes.folding import fold
from cpembed.graph.passes.transpositions import cancel_transpositions
from cpembed.ir.scalars import apply
from tests.random_networks import RELU, Network, same_results

LAST, FIRST = (0, 2, 3, 1), (0, 3, 1, 2)
ADD = apply("add", Input(0), Input(1))


def layer(net: Network, x: str) -> str:
    y = net.add(Transpose(LAST), net.convolution(net.add(Transpose(FIRST), x), 8, 3))
    return net.elementwise(ADD, y, net.constant(net.array((8,), "float32")))


def transpositions(net: Network, *outputs: str) -> tuple[int, int]:
    graph = net.graph(*outputs)
    changed = fold(cancel_transpositions(fold(graph)))
    assert same_results(graph, changed, net.samples())
    assert fold(cancel_transpositions(changed)) == changed
    before, after = (
        sum(isinstance(o.kind, Transpose) for o in g.operators) for g in (graph, changed)
    )
    return before, after


def test_transpositions_between_convolutions_meet() -> None:
    net = Network(1)
    x = net.input((1, 5, 6, 8), "float32")
    a = net.elementwise(RELU, layer(net, x))
    b = layer(net, a)
    y = net.elementwise(ADD, net.elementwise(RELU, b), layer(net, a))
    last = layer(net, y)
    # The network's own input and output stay in their order.
    assert transpositions(net, last) == (8, 2)


@pytest.mark.parametrize(
    "kind", [Concat(-1), Pad((0, 1, 0, 0), (0, 0, 2, 0)), Reduce("max", (1,), True)]
)
def test_other_kinds_between_them(kind: Concat | Pad | Reduce) -> None:
    net = Network(2)
    x = net.input((1, 8, 5, 6), "float32")
    a = net.add(Transpose(LAST), x)
    b = net.elementwise(RELU, a)
    inputs = (a, b) if isinstance(kind, Concat) else (b,)
    y = net.add(Transpose(FIRST), net.add(kind, *inputs))
    assert transpositions(net, net.elementwise(RELU, y)) == (2, 0)


def test_what_is_read_in_the_other_order_stays() -> None:
    net = Network(3)
    a = net.elementwise(RELU, net.add(Transpose(LAST), net.input((1, 8, 5, 6), "float32")))
    y = net.add(Transpose(FIRST), a)
    assert transpositions(net, y, a) == (2, 2)


def test_another_input_in_the_other_order_keeps_the_transpositions() -> None:
    net = Network(4)
    a = net.elementwise(RELU, net.add(Transpose(LAST), net.input((1, 8, 5, 6), "float32")))
    b = net.elementwise(RELU, net.input((1, 5, 6, 8), "float32"))
    y = net.add(Transpose(FIRST), net.elementwise(ADD, a, b))
    assert transpositions(net, y) == (2, 2)


def test_operators_beside_the_way_belong_to_it() -> None:
    net = Network(5)
    x = net.input((1, 8, 5, 6), "float32")
    a = net.elementwise(RELU, net.add(Transpose(LAST), x))
    other = net.add(Transpose(LAST), net.elementwise(RELU, x))
    for _ in range(3):
        other = net.elementwise(apply("tanh", Input(0)), other)
    y = net.add(Transpose(FIRST), net.elementwise(ADD, a, other))
    assert transpositions(net, y) == (3, 0)


def test_transpositions_to_a_third_order_stay() -> None:
    net = Network(6)
    a = net.elementwise(RELU, net.add(Transpose(LAST), net.input((1, 8, 5, 6), "float32")))
    assert transpositions(net, net.elementwise(RELU, net.add(Transpose(LAST), a))) == (2, 2)
