"""Passes that say that they change nothing, bit for bit, on networks at random."""

from collections.abc import Callable

import pytest

from cpembed.graph.graph import Graph, Operator
from cpembed.graph.kinds import Pad, Pool, Product, Quantize, Reshape, Table, TensorType
from cpembed.graph.passes.element_types import assign_element_types
from cpembed.graph.passes.epilogue_fusion import fuse_residuals
from cpembed.graph.passes.folding import fold
from cpembed.graph.passes.integer_operators import move_integers, tabulate
from cpembed.graph.passes.integer_products import integer_products
from cpembed.graph.passes.zero_points import remove_zero_points
from tests.random_networks import Network, random_network, same_results

Pass = Callable[[Graph], Graph]

ON_FLOATS: dict[str, Pass] = {
    "fold": fold,
    "fold weights": lambda graph: fold(graph, weights=True),
    "movements": move_integers,
    "tables": tabulate,
}
ON_INTEGERS: dict[str, Pass] = {
    "unsigned and signed": lambda graph: assign_element_types(graph, "uint8", "int8"),
    "signed": lambda graph: assign_element_types(graph, "int8", "int8"),
    "unsigned": lambda graph: assign_element_types(graph, "uint8", "uint8"),
    "zero points": remove_zero_points,
}


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("name", ON_FLOATS)
def test_graphs_of_floats_keep_their_results(name: str, seed: int) -> None:
    net = random_network(seed)
    graph = net.graph(net.operators[-1].output, net.operators[len(net.operators) // 2].output)
    changed = ON_FLOATS[name](graph)
    assert same_results(graph, changed, net.samples())
    assert ON_FLOATS[name](changed) == changed


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("name", ON_INTEGERS)
def test_graphs_of_integers_keep_their_results(name: str, seed: int) -> None:
    net = random_network(seed)
    graph = fuse_residuals(integer_products(fold(net.graph(net.operators[-1].output))))
    changed = ON_INTEGERS[name](graph)
    assert same_results(graph, changed, net.samples())
    assert ON_INTEGERS[name](changed) == changed


@pytest.mark.parametrize("first", ["uint8", "int8"])
@pytest.mark.parametrize("seed", range(10))
def test_operands_have_the_types_that_are_wanted(first: str, seed: int) -> None:
    net = random_network(seed)
    graph = integer_products(fold(net.graph(net.operators[-1].output)))
    for operator in assign_element_types(graph, first, "int8").operators:
        if isinstance(operator.kind, Product):
            assert [o.dtype for o in operator.kind.computation.inputs] == [first, "int8"]


def test_an_output_keeps_its_name_when_its_operator_goes() -> None:
    scale, zero = (0.5,), (3,)
    graph = Graph(
        "outputs",
        {"x": TensorType((4,), "float32")},
        ("y", "again"),
        {},
        (
            Operator("one", Quantize(scale, zero, "uint8"), ("x",), ("q",)),
            Operator("two", Table(tuple(range(256)), "uint8"), ("q",), ("y",)),
            Operator("three", Table(tuple(range(256)), "uint8"), ("q",), ("again",)),
        ),
    )
    changed = tabulate(graph)
    assert changed.outputs == ("y", "again")
    assert len(changed.operators) == 2
    net = random_network(0)
    assert same_results(graph, changed, {"x": net.array((4,), "float32")})


def test_integers_of_another_zero_point_are_others() -> None:
    net = Network(1)
    q = net.input((2, 3), "uint8")
    scale, zero = net.quantized[q]
    same, other = (
        net.add(Quantize((scale,), (point,), "uint8"), net.floats(q)) for point in (zero, zero ^ 1)
    )
    graph = net.graph(*(net.add(Reshape((6,)), name) for name in (same, other)))
    changed = fold(graph)
    assert same_results(graph, changed, net.samples())
    assert len([o for o in changed.operators if isinstance(o.kind, Quantize)]) == 1
    assert changed.producers[graph.outputs[0]].inputs == (q,)


@pytest.mark.parametrize("value", [0.0, 1.5])
def test_padding_of_integers_is_what_it_stands_for(value: float) -> None:
    net = Network(2)
    q = net.input((2, 3), "uint8")
    net.quantized[q] = (0.5, 17)
    padded = net.add(Pad((1, 0), (0, 2), value), net.floats(q))
    after = net.quantize(net.add(Pad((1, 0), (0, 2), value), net.input((2, 3), "float32")), "int8")
    graph = net.graph(padded, after)
    changed = move_integers(graph)
    assert same_results(graph, changed, net.samples())
    pads = [o for o in changed.operators if isinstance(o.kind, Pad)]
    assert [changed.types[o.output].dtype for o in pads] == ["uint8", "int8"]


def test_a_maximum_of_padding_alone_stays_one_of_floats() -> None:
    net = Network(3)
    x = net.floats(net.input((1, 1, 3, 3), "uint8"))
    graph = net.graph(net.add(Pool("max", (2, 2), (1, 1), (2, 2), (0, 0), (1, 1)), x))
    assert same_results(graph, move_integers(graph), net.samples())
    inside = net.graph(net.add(Pool("max", (2, 2), (1, 1), (1, 1), (0, 0), (1, 1)), x))
    assert isinstance(move_integers(inside).operators[0].kind, Pool)
    assert same_results(inside, move_integers(inside), net.samples())
