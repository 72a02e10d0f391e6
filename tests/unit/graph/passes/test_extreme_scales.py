"""Quantized graphs whose scales are next to 0, denormal or huge: what passes combine is a number.

A quotient of two such scales may be infinite in float32; times 0, or beside an infinity of the
other sign, it is no number, where the definition saturates each value by itself.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cpembed.frontends.products import matrix_product
from cpembed.graph.graph import Graph, Operator
from cpembed.graph.kinds import Dequantize, Elementwise, Input, Pool, Quantize, TensorType
from cpembed.graph.passes import prepare
from cpembed.graph.passes.integer_products import integer_products
from cpembed.ir.scalars import apply
from tests.random_networks import Network, largest_difference

EXTREMES = (1e-45, 1e-40, 1.1754944e-38, 1e-30, 1e-6, 0.05, 1.0, 2.0**20, 2.0**48)


def _extreme(net: Network, operator: Operator) -> Operator:
    """Each scale becomes another one, one of all channels."""
    match operator.kind:
        case Quantize() | Dequantize() as kind if net.random.integers(3):
            scale = float(np.float32(net.one_of(EXTREMES)))
            return replace(operator, kind=replace(kind, scale=(scale,) * len(kind.scale)))
        case _:
            return operator


def _graph(net: Network) -> Graph:
    form = net.one_of(("sum", "difference", "product", "mean", "layer", "residual", "stored"))
    x = net.input((2, 8, 6, 6), net.one_of(("int8", "uint8")))
    y = net.input((2, 8, 6, 6), net.one_of(("int8", "uint8")))
    match form:
        case "mean":
            pool = Pool("mean", (2, 2), (2, 2), (0, 0), (0, 0), (1, 1))
            result = net.add(pool, net.floats(x))
        case "layer":
            result = net.convolution(net.floats(x), 8, 3)
        case "stored":
            result = net.floats(net.quantize(net.convolution(net.floats(x), 8, 3)))
        case "residual":
            own = net.floats(net.quantize(net.convolution(net.floats(x), 8, 3)))
            both = apply("add", Input(0), Input(1))
            result = net.add(Elementwise(both, "float32"), own, net.floats(y))
        case _:
            name = {"sum": "add", "difference": "sub", "product": "mul"}[form]
            both = apply(name, Input(0), Input(1))
            result = net.add(Elementwise(both, "float32"), net.floats(x), net.floats(y))
    graph = net.graph(net.quantize(result))
    return replace(graph, operators=tuple(_extreme(net, each) for each in graph.operators))


@pytest.mark.quick(40)
@pytest.mark.parametrize("seed", range(400))
@np.errstate(all="ignore")
def test_results_differ_by_one_quantum_at_most(seed: int) -> None:
    net = Network(seed)
    graph = _graph(net)
    assert largest_difference(graph, prepare(graph), net.samples()) <= 1


@pytest.mark.parametrize("scale, converted", [(0.01, False), (4.0, True)])
def test_a_bias_is_rounded_to_coarse_sums_where_that_moves_no_quantum(
    scale: float, converted: bool
) -> None:
    """Sums in whole numbers, biases of 0.4: nothing beside quanta of 4, and 40 of 0.01."""
    x, w = TensorType((1, 2), "int8"), np.asarray([[1, -1], [1, 1]], np.int8)
    operators = (
        Operator("x", Dequantize((1.0,), (0,)), ("q",), ("x",)),
        Operator("w", Dequantize((1.0,), (0,)), ("c",), ("w",)),
        Operator("y", matrix_product((1, 2), (2, 2)).product, ("x", "w"), ("y",)),
        Operator("z", Elementwise(apply("add", Input(0), Input(1)), "float32"), ("y", "b"), ("z",)),
        Operator("r", Quantize((scale,), (0,), "int8"), ("z",), ("r",)),
    )
    bias = np.asarray([0.4, -0.4], np.float32)
    graph = Graph("bias", {"q": x}, ("r",), {"c": w, "b": bias}, operators)
    prepared = integer_products(graph)
    assert any(isinstance(o.kind, Quantize) for o in prepared.operators) is not converted
    inputs = {"q": np.asarray([[0, 0]], np.int8)}
    assert largest_difference(graph, prepared, inputs) <= 1
