"""Products of floats with what follows them, and operators at every element that become one."""

import numpy as np
import pytest

from cpembed.graph.graph import evaluate
from cpembed.graph.kinds import Apply, Elementwise, Input, Product, Scalar
from cpembed.graph.passes import prepare
from cpembed.graph.passes.elementwise_fusion import fuse_elementwise
from cpembed.graph.passes.epilogue_fusion import fuse_float_epilogues
from cpembed.graph.passes.folding import fold
from cpembed.graph.passes.half_floats import shorten_floats
from cpembed.graph.passes.integer_products import integer_products
from cpembed.ir.dtypes import numpy_dtype
from cpembed.ir.scalars import apply
from tests.random_networks import BYTES, RELU, Network, largest_difference, same_results

ADD, MUL = (apply(operation, Input(0), Input(1)) for operation in ("add", "mul"))


def float_layer(net: Network, x: str) -> str:
    """A convolution of floats, with a bias or without, with constant weights."""
    net.constants |= {}
    y = net.convolution(x, 8, 3)
    return net.elementwise(RELU, y) if net.random.integers(2) else y


@pytest.mark.parametrize("seed", range(10))
def test_epilogues_of_floats_change_nothing(seed: int) -> None:
    net = Network(seed)
    x = net.input((1, 8, 5, 6), "float32")
    first = float_layer(net, x)
    second = float_layer(net, net.one_of((x, first)))
    parts = [str(name) for name in net.random.permutation([first, second])]
    y = net.elementwise(RELU, net.elementwise(ADD, *parts))
    graph = fold(net.graph(y), weights=True)
    changed = fuse_float_epilogues(graph)
    assert all(isinstance(o.kind, Product) for o in changed.operators)
    kinds = [o.kind for o in changed.operators if isinstance(o.kind, Product)]
    assert [k.epilogue is not None and k.epilogue.residual is not None for k in kinds] == [
        False,
        True,
    ]
    assert same_results(graph, changed, net.samples())
    assert fuse_float_epilogues(changed) == changed


def test_a_batch_normalization_goes_into_the_weights() -> None:
    net = Network(1)
    y = net.convolution(net.input((1, 8, 5, 6), "float32"), 8, 3)
    y = net.elementwise(MUL, y, net.constant(net.array((1, 8, 1, 1), "float32")))
    y = net.elementwise(ADD, y, net.constant(net.array((1, 8, 1, 1), "float32")))
    graph = net.graph(net.elementwise(RELU, y))
    changed = prepare(graph)
    assert [type(o.kind) for o in changed.operators] == [Product]
    size = float(np.abs(net.values[y]).max())
    assert largest_difference(graph, changed, net.samples()) < 1e-5 * size


@pytest.mark.parametrize("seed", range(4))
def test_products_of_shorter_floats(seed: int) -> None:
    net = Network(seed)
    x = net.input((1, 8, 5, 6), "float32")
    y = float_layer(net, float_layer(net, x))
    graph = fuse_float_epilogues(fold(net.graph(y), weights=True))
    changed = fold(shorten_floats(graph, "bfloat16"))
    kinds = [type(o.kind) for o in changed.operators]
    assert kinds == [Elementwise, Product, Product]
    # Each product by itself is that of its rounded operands.
    values = evaluate(changed, inputs := net.samples())
    first, second = changed.operators[1:]
    assert values[first.output].dtype == numpy_dtype("bfloat16")
    wanted = evaluate(graph, inputs)[y]
    size = float(np.abs(wanted).max())
    assert 0 < np.abs(values[second.output] - wanted).max() < 0.03 * size


def random_scalar(net: Network, inputs: int, depth: int) -> Scalar:
    if depth == 0 or net.random.integers(4) == 0:
        return Input(int(net.random.integers(inputs)))
    operation, count = net.one_of(
        [("add", 2), ("mul", 2), ("sub", 2), ("max", 2), ("fma", 3), ("tanh", 1), ("where", 3)]
    )
    arguments = [random_scalar(net, inputs, depth - 1) for _ in range(count)]
    if operation == "where":
        arguments[0] = Apply("less", (arguments[0], random_scalar(net, inputs, depth - 1)))
    return Apply(operation, tuple(arguments))


@pytest.mark.parametrize("seed", range(30))
def test_operators_at_every_element_become_one(seed: int) -> None:
    net = Network(seed)
    made = [net.input(shape, "float32") for shape in ((2, 3, 4), (3, 1), (4,))]
    quantized = net.input((2, 3, 4), net.one_of(BYTES))
    made.append(net.floats(quantized))
    for _ in range(8):
        count = int(net.random.integers(1, 4))
        names = [str(net.one_of(made)) for _ in range(count)]
        y = net.elementwise(random_scalar(net, count, 2), *names)
        if net.values[y].shape == (2, 3, 4) and net.random.integers(3) == 0:
            y = net.floats(net.quantize(y))
        made.append(y)
    outputs = dict.fromkeys((made[-1], str(net.one_of(made[4:]))))
    graph = net.graph(*outputs)
    merged = fuse_elementwise(graph)
    assert same_results(graph, merged, inputs := net.samples())
    assert fuse_elementwise(merged) == merged
    assert same_results(graph, fuse_elementwise(fold(graph)), inputs)


def test_floats_between_integers_are_one_operator() -> None:
    net = Network(2)
    parts = [net.floats(net.input((2, 3, 4), dtype)) for dtype in (*BYTES, "uint8")]
    y = net.elementwise(apply("sigmoid", ADD), *parts[:2])
    y = net.elementwise(MUL, y, parts[2])
    graph = net.graph(net.quantize(y))
    merged = prepare(graph)
    (operator,) = merged.operators
    assert isinstance(operator.kind, Elementwise)
    assert {*operator.inputs} == {*graph.inputs}
    assert same_results(graph, merged, net.samples())
    assert len(prepare(graph, fuse=False).operators) > 1


@pytest.mark.parametrize("relu", [False, True])
def test_a_sum_of_floats_is_stored_by_a_product_of_integers(relu: bool) -> None:
    net = Network(7)
    other = net.input((1, 8, 5, 6), "float32")
    y = net.convolution(net.floats(net.input((1, 8, 5, 6), "uint8")), 8, 3)
    y = net.elementwise(ADD, other, y)
    y = net.elementwise(RELU, y) if relu else y
    integers = integer_products(net.graph(y))
    changed = fuse_float_epilogues(integers)
    assert [type(o.kind) for o in changed.operators] == [Product]
    assert same_results(integers, changed, net.samples())


def test_what_two_operators_read_is_computed_once() -> None:
    net = Network(8)
    y = net.elementwise(apply("tanh", Input(0)), net.input((3, 4), "float32"))
    a, b = (net.elementwise(apply(operation, Input(0), 0.5), y) for operation in ("add", "mul"))
    graph = net.graph(a, b)
    assert fuse_elementwise(graph) == graph


def test_what_is_broadcast_is_computed_once() -> None:
    net = Network(9)
    row = net.elementwise(apply("tanh", Input(0)), net.input((4,), "float32"))
    graph = net.graph(net.elementwise(ADD, row, net.input((300, 4), "float32")))
    assert fuse_elementwise(graph) == graph
