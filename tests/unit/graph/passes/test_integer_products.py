"""Products of integers, and what is stored of them, beside the products of floats."""

import numpy as np
import pytest

from cpembed.frontends.products import matrix_product
from cpembed.graph.graph import Graph
from cpembed.graph.kinds import (
    Dequantize,
    Elementwise,
    Input,
    Pool,
    Product,
    Quantize,
    Reduce,
    Table,
)
from cpembed.graph.passes import prepare
from cpembed.graph.passes.epilogue_fusion import fuse_requantizations, fuse_residuals
from cpembed.graph.passes.folding import fold
from cpembed.graph.passes.integer_products import integer_products
from cpembed.graph.passes.zero_points import remove_zero_points
from cpembed.ir.scalars import apply
from tests.random_networks import (
    BYTES,
    RELU,
    RELU6,
    Network,
    largest_difference,
    random_network,
    same_results,
)


def products(graph: Graph) -> list[Product]:
    return [o.kind for o in graph.operators if isinstance(o.kind, Product)]


def _layer(seed: int, zero: bool = False) -> Network:
    net = Network(seed)
    x = net.floats(net.input((2, 8, 7, 5), net.one_of(BYTES)))
    groups = net.one_of((1, 2, 8))
    y = net.convolution(x, 8, net.one_of((1, 3)), net.one_of((1, 2)), groups, zero)
    for expression in (RELU, RELU6):
        if net.random.integers(3) == 0:
            y = net.elementwise(expression, y)
    net.quantize(y)
    return net


@pytest.mark.parametrize("seed", range(16))
def test_a_layer_differs_by_one_quantum_at_most(seed: int) -> None:
    net = _layer(seed)
    graph = net.graph(net.operators[-1].output)
    changed = integer_products(graph)
    assert [type(o.kind) for o in changed.operators] == [Product]
    assert largest_difference(graph, changed, net.samples()) <= 1
    prepared = prepare(graph)
    assert same_results(changed, prepared, inputs := net.samples())
    assert largest_difference(graph, prepared, inputs) <= 1


@pytest.mark.parametrize("seed", range(12))
def test_weights_with_a_zero_point(seed: int) -> None:
    net = _layer(seed, zero=True)
    graph = net.graph(net.operators[-1].output)
    changed = integer_products(graph)
    apart = remove_zero_points(changed)
    assert all(product.zero_points == (0, 0) for product in products(apart))
    assert largest_difference(graph, changed, inputs := net.samples()) <= 1
    assert same_results(changed, apart, inputs)
    assert same_results(changed, prepare(graph), inputs)


@pytest.mark.parametrize("seed", range(12))
def test_both_operands_vary(seed: int) -> None:
    net = Network(seed)
    a = net.floats(net.input((2, 3, 5, 7), net.one_of(BYTES)))
    b = net.floats(net.input((2, 3, 4, 7), net.one_of(BYTES)))
    graph = net.graph(net.quantize(net.attention(a, b)))
    changed = integer_products(graph)
    apart = remove_zero_points(changed)
    assert all(product.zero_points == (0, 0) for product in products(apart))
    assert largest_difference(graph, changed, inputs := net.samples()) <= 1
    assert same_results(changed, apart, inputs)
    assert same_results(changed, prepare(graph, first="int8"), inputs)


def test_integers_of_a_bias_are_taken_as_they_are() -> None:
    net = Network(3)
    q = net.input((4, 6), "uint8")
    y = net.add(_gemm(net), net.floats(q), net.weights((6, 5), 1))
    scales = net.operators[-2].kind.scale
    unit = tuple(float(np.float32(net.quantized[q][0]) * np.float32(s)) for s in scales)
    integers = np.array([5, -7, 2**23 + 1, 0, 123456789], np.int32)
    bias = net.add(Dequantize(unit, (0,) * 5, 0), net.constant(integers))
    net.quantize(net.elementwise(apply("add", Input(0), Input(1)), y, bias))
    changed = integer_products(net.graph(net.operators[-1].output))
    (operator,) = changed.operators
    assert np.array_equal(changed.constants[operator.inputs[2]], integers)


def _gemm(net: Network) -> Product:
    return matrix_product((4, 6), (6, 5)).product


def test_a_bias_of_floats_is_rounded_to_the_nearest_unit_of_the_sums() -> None:
    net = Network(8)
    q = net.input((4, 6), "uint8")
    w = net.weights((6, 5), 1)
    bias = net.array((5,), "float32")
    y = net.add(_gemm(net), net.floats(q), w)
    net.quantize(net.elementwise(apply("add", Input(0), Input(1)), y, net.constant(bias)))
    changed = integer_products(net.graph(net.operators[-1].output))
    (operator,) = changed.operators
    (dequantize,) = (o.kind for o in net.operators if o.output == w)
    assert isinstance(dequantize, Dequantize)
    unit = net.quantized[q][0] * np.array(dequantize.scale)
    assert np.array_equal(changed.constants[operator.inputs[2]], np.rint(bias / unit))


def test_a_bias_beyond_32_bits_makes_its_weights_coarser() -> None:
    net = Network(4)
    q = net.input((4, 6), "uint8")
    scales = (0.01, 1e-13, 0.01, 1e-11, 0.02)
    w = net.add(Dequantize(scales, (0,) * 5, 1), net.constant(net.array((6, 5), "int8")))
    y = net.add(_gemm(net), net.floats(q), w)
    bias = net.constant(np.array([1, 2, -3, -4, 5], np.float32))
    net.quantize(net.elementwise(apply("add", Input(0), Input(1)), y, bias))
    graph = net.graph(net.operators[-1].output)
    changed = integer_products(graph)
    assert [type(o.kind) for o in changed.operators] == [Product]
    assert largest_difference(graph, changed, net.samples()) <= 1


def test_results_that_stay_floats() -> None:
    net = Network(5)
    x = net.floats(net.input((2, 8, 7, 5), "uint8"))
    y = net.elementwise(RELU, net.convolution(x, 8, 3))
    graph = net.graph(y)
    changed = integer_products(graph)
    (operator,) = changed.operators
    assert isinstance(operator.kind, Product)
    assert operator.kind.epilogue is not None
    assert operator.kind.epilogue.relu
    size = float(np.abs(net.values[y]).max())
    assert largest_difference(graph, changed, net.samples()) < 1e-4 * size


def test_a_factor_of_each_channel_is_part_of_the_scale() -> None:
    net = Network(6)
    x = net.floats(net.input((2, 8, 7, 5), "uint8"))
    y = net.convolution(x, 8, 3)
    factor = net.constant(net.array((1, 8, 1, 1), "float32"))
    y = net.elementwise(apply("mul", Input(0), Input(1)), y, factor)
    bias = net.constant(net.array((8, 1, 1), "float32"))
    y = net.elementwise(apply("add", Input(0), Input(1)), y, bias)
    graph = net.graph(net.quantize(y))
    changed = integer_products(graph)
    assert [type(o.kind) for o in changed.operators] == [Product]
    assert largest_difference(graph, changed, net.samples()) <= 1


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("operation", ["add", "sub", "mul"])
def test_elementwise_operators_on_integers(operation: str, seed: int) -> None:
    net = Network(seed)
    a = net.floats(net.input((2, 8, 4, 4), net.one_of(BYTES)))
    b = net.floats(net.input((2, 8, 1, 1), net.one_of(BYTES)))
    order = (Input(0), Input(1)) if seed % 3 else (Input(1), Input(0))
    y = net.elementwise(apply(operation, *order), *net.random.permutation([a, b]))
    if seed % 2:
        y = net.elementwise(RELU, y)
    graph = net.graph(net.quantize(y))
    changed = prepare(graph)
    assert [type(o.kind) for o in changed.operators] == [Elementwise]
    assert largest_difference(graph, changed, net.samples()) <= 1


@pytest.mark.parametrize("seed", range(8))
def test_means_on_integers(seed: int) -> None:
    net = Network(seed)
    x = net.floats(net.input((2, 8, 6, 6), net.one_of(BYTES)))
    pool = Pool("mean", (3, 3), (2, 2), (1, 1), (1, 1), (1, 1), bool(seed % 2))
    kind = net.one_of((pool, Reduce("mean", (-2, -1), False), Reduce("mean", (2, 3), True)))
    graph = net.graph(net.quantize(net.add(kind, x)))
    changed = prepare(graph)
    assert isinstance(changed.operators[0].kind, Pool)
    assert not any(isinstance(o.kind, Dequantize) for o in changed.operators)
    assert largest_difference(graph, changed, net.samples()) <= 1


@pytest.mark.parametrize("seed", range(8))
def test_a_residual_is_stored_by_its_product(seed: int) -> None:
    net = Network(seed)
    q = net.input((1, 8, 6, 6), net.one_of(BYTES))
    first = net.quantize(net.convolution(net.floats(q), 8, 3))
    second = net.quantize(net.convolution(net.floats(net.one_of((q, first))), 8, 1))
    parts = net.random.permutation([net.floats(first), net.floats(second)])
    y = net.elementwise(apply("add", Input(0), Input(1)), *parts)
    if seed % 2:
        y = net.elementwise(RELU, y)
    graph = net.graph(net.quantize(y))
    changed = prepare(graph)
    assert {type(o.kind) for o in changed.operators} <= {Product, Table}
    assert [p.epilogue.residual is not None for p in products(changed)] == [False, True]
    named = [[o.name for o in g.operators if isinstance(o.kind, Product)] for g in (graph, changed)]
    assert named[0] == named[1]
    # A quantum of either operand, and that of the sum.
    assert largest_difference(graph, changed, net.samples()) <= 3


def test_a_product_that_others_read_too_takes_no_residual() -> None:
    net = Network(9)
    q = net.input((1, 8, 6, 6), "uint8")
    first = net.quantize(net.convolution(net.floats(q), 8, 3))
    parts = net.floats(first), net.floats(q)
    net.quantize(net.elementwise(apply("add", Input(0), Input(1)), *parts))
    graph = net.graph(net.operators[-1].output, first)
    changed = prepare(graph)
    assert len(products(changed)) == 1
    assert largest_difference(graph, changed, net.samples()) <= 2


@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_a_residual_of_a_product_that_is_not_quantized_in_between(seed: int, zero: bool) -> None:
    net = Network(seed)
    q = net.input((1, 8, 6, 6), net.one_of(BYTES))
    other = net.input((1, 8, 6, 6), net.one_of(BYTES))
    y = net.convolution(net.floats(q), 8, 3, zero=zero)
    y = net.elementwise(RELU, y) if seed % 3 == 0 else y
    y = net.elementwise(apply("add", Input(0), Input(1)), net.floats(other), y)
    graph = net.graph(net.quantize(net.elementwise(RELU, y) if seed % 2 else y))
    changed = prepare(graph)
    assert len(products(changed)) <= 2
    assert not any(isinstance(o.kind, Dequantize | Quantize) for o in changed.operators)
    if not zero:
        assert {type(o.kind) for o in changed.operators} <= {Product, Table}
    assert largest_difference(graph, changed, net.samples()) <= 1


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_a_result_is_stored_in_the_scale_in_which_it_is_wanted(
    seed: int, adds: bool, relu: bool
) -> None:
    net = Network(seed)
    q = net.input((1, 8, 6, 6), net.one_of(BYTES))
    y = net.convolution(net.floats(q), 8, 3)
    if adds:
        y = net.elementwise(RELU, y) if seed % 2 else y
        second = net.floats(net.quantize(y))
        y = net.elementwise(apply("add", Input(0), Input(1)), net.floats(q), second)
    y = net.floats(net.quantize(y))
    graph = net.graph(net.quantize(net.elementwise(RELU, y) if relu else y))
    changed = fuse_requantizations(
        fuse_residuals(fuse_requantizations(integer_products(fold(graph))))
    )
    # Scales of tensors that lost their negative half may be more than twice as fine.
    scales = [o.kind.scale[0] for o in net.operators if isinstance(o.kind, Quantize)]
    once = [Product] if scales[-2] <= 2 * scales[-1] else [Product, Dequantize]
    assert [type(o.kind) for o in changed.operators][:2] == once
    assert largest_difference(graph, changed, net.samples()) <= 3


@pytest.mark.parametrize("seed", range(30))
def test_networks_at_random_are_prepared(seed: int) -> None:
    net = random_network(seed)
    last = net.operators[-1].output
    graph = net.graph(last)
    first = ("uint8", "int8")[seed % 2]
    prepared = prepare(graph, first=first)
    for operator in prepared.operators:
        if isinstance(operator.kind, Product):
            assert [o.dtype for o in operator.kind.computation.inputs] == [first, "int8"]
            assert operator.kind.zero_points == (0, 0)
    assert not any(isinstance(o.kind, Dequantize) for o in prepared.operators)
    assert largest_difference(graph, prepared, net.samples()) <= 4
    assert prepare(prepared, first=first) == prepared
