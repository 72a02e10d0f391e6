"""Signed and unsigned bytes: the same numbers around zero points that are 128 apart."""

import numpy as np
import pytest

from cpembed.graph.graph import Graph
from cpembed.graph.kinds import (
    DynamicQuantize,
    Elementwise,
    Gather,
    Input,
    Kind,
    Pad,
    Pool,
    Product,
    Reduce,
    Resize,
    Table,
)
from cpembed.graph.passes import prepare
from cpembed.graph.passes.element_types import assign_element_types, shifted
from cpembed.graph.passes.epilogue_fusion import fuse_residuals
from cpembed.graph.passes.folding import fold
from cpembed.graph.passes.integer_products import integer_products
from cpembed.ir.scalars import apply
from tests.random_networks import RELU, Network, same_results

ADD = apply("add", Input(0), Input(1))
UNROUNDED = apply("mul", apply("sub", Input(0), 3.0), 0.37)
KINDS: tuple[Kind, ...] = (
    Table(tuple(range(127, -129, -1)), "int8"),
    Elementwise(UNROUNDED, "int8", "float32"),
    # Just below the middle, which a float of the size of 128 does not tell from it.
    Elementwise(apply("mul", Input(0), 0.49999997), "int8", "float32"),
    Elementwise(apply("add", apply("round", UNROUNDED), 5.0), "int8", "float32"),
    Elementwise(apply("max", apply("round", UNROUNDED), -0.5), "int8", "float32"),
    Elementwise(apply("mul", Input(0), 3), "int8", "int32"),
    Pad((1, 0, 0), (0, 2, 0), -7),
    Pool("max", (2,), (1,), (1,), (0,), (1,)),
    Pool("mean", (2,), (2,), (1,), (1,), (1,), True, 5),
    Pool("mean", (2,), (2,), (1,), (1,), (1,), False, 5, 1.3, 9),
    Reduce("max", (1,), True),
    Resize((8, 8)),
)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.label)
def test_kinds_do_the_same_to_larger_elements(kind: Kind) -> None:
    net = Network(0)
    x = net.array((3, 4, 6), "int8")
    (wanted,) = kind.evaluate([x])
    moved = shifted(kind, [128], 128)
    assert moved is not None
    (found,) = moved.evaluate([(x.astype(np.int16) + 128).astype(np.uint8)])
    assert found.dtype == np.uint8
    assert np.array_equal(found.astype(np.int16) - 128, wanted)


def test_some_kinds_cannot_change() -> None:
    assert shifted(Resize((8, 8), "linear"), [128], 128) is None
    assert shifted(Reduce("sum", (1,), True), [128], 128) is None
    assert shifted(DynamicQuantize(), [0], -128) is None
    assert shifted(Gather(0), [128, 0], 0) is None


@pytest.mark.parametrize("first", ["uint8", "int8"])
@pytest.mark.parametrize("seed", range(6))
def test_sums_that_the_next_layer_reads(seed: int, first: str) -> None:
    net = Network(seed)
    q = net.input((1, 8, 5, 5), "int8" if seed % 2 else "uint8")
    y = net.floats(net.quantize(net.convolution(net.floats(q), 8, 3)))
    y = net.elementwise(ADD, y, net.floats(q))
    # With a scale for negative numbers too, of which the ReLU leaves none: limits are needed.
    y = net.floats(net.quantize(net.elementwise(RELU, y), like=net.quantize(y)))
    net.quantize(net.convolution(y, 8, 1))
    graph = fuse_residuals(integer_products(fold(net.graph(net.operators[-1].output))))
    changed = assign_element_types(graph, first, "int8")
    kinds = [o.kind for o in changed.operators if isinstance(o.kind, Product)]
    assert len(kinds) == 2
    assert all(k.computation.inputs[0].dtype == first for k in kinds)
    assert same_results(graph, changed, net.samples())


def test_second_operands_are_made_as_they_are_wanted() -> None:
    net = Network(1)
    a, b = (net.quantize(net.input((2, 4, 6), "float32"), "uint8") for _ in range(2))
    graph = net.graph(net.attention(net.floats(a), net.floats(b)))
    prepared = prepare(graph)
    assert not any(isinstance(o.kind, Table) for o in prepared.operators)
    assert {prepared.types[o.output].dtype for o in prepared.operators[:2]} == {"uint8", "int8"}


@pytest.mark.parametrize("depth", [64, 2000])
def test_one_operator_corrects_small_sums(depth: int) -> None:
    net = Network(2)
    a, b = (net.input((2, 3, depth), "uint8") for _ in range(2))
    net.quantize(net.attention(net.floats(a), net.floats(b)), "uint8")
    graph = integer_products(net.graph(net.operators[-1].output))
    extreme = {name: np.full((2, 3, depth), value, np.uint8) for name, value in ((a, 255), (b, 0))}
    prepared = prepare(graph)
    kinds = [o.kind for o in prepared.operators]
    assert sum(isinstance(kind, Elementwise) for kind in kinds) == (1 if depth == 64 else 2)
    for inputs in (net.samples(), extreme):
        assert same_results(graph, prepared, inputs)


def test_what_is_wanted_of_one_tensor_in_two_ways_is_converted() -> None:
    net = Network(3)
    a = net.quantize(net.input((2, 4, 4), "float32"), "uint8")
    x = net.floats(a)
    graph: Graph = integer_products(net.graph(net.attention(x, x)))
    changed = assign_element_types(graph, "uint8", "int8")
    assert sum(isinstance(o.kind, Table) for o in changed.operators) == 1
    assert same_results(graph, changed, net.samples())


ALL_SIGNS = [(a, b) for a in ("uint8", "int8") for b in ("uint8", "int8")]


@pytest.mark.parametrize("first", [("uint8", 0), ("uint8", 128), ("int8", -128), ("int8", 7)])
@pytest.mark.parametrize("second", [("int8", 0), ("uint8", 128), ("uint8", 0), ("int8", 7)])
def test_factors_that_vary_get_the_types_of_the_fewest_zero_points(
    first: tuple[str, int], second: tuple[str, int]
) -> None:
    """A zero point costs a product with ones in each call; the ends and the middle need none."""
    net = Network(4)
    factors: list[str] = []
    for dtype, zero in (first, second):
        name = net.input((2, 3, 5), dtype)
        net.quantized[name] = (0.05, zero)
        factors.append(net.floats(name))
    graph = integer_products(net.graph(net.attention(*factors)))
    any_signs, fixed_signs = prepare(graph, multiplied=ALL_SIGNS), prepare(graph)
    counts = [
        sum(isinstance(o.kind, Product) for o in changed.operators)
        for changed in (any_signs, fixed_signs)
    ]
    assert counts[0] == 1 + sum(zero == 7 for _, zero in (first, second)) <= counts[1]
    for changed in (any_signs, fixed_signs):
        assert same_results(graph, changed, net.samples())
