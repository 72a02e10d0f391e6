"""Networks of floats with activations, compiled, against their definition operator by operator."""

from __future__ import annotations

import numpy as np
import pytest

from cpembed.graph.kinds import Apply, Input, Product, Quantize
from cpembed.graph.passes import prepare
from cpembed.ir.scalars import apply
from cpembed.network.service import NetworkRequest, network
from tests.random_networks import HARD_SWISH, SILU, UNARY, Network

pytest.importorskip("tvm")

TARGET = "avx2_f32"
ADD, MUL = (apply(operation, Input(0), Input(1)) for operation in ("add", "mul"))
GELU = apply(
    "mul",
    apply("mul", Input(0), 0.5),
    apply("add", Apply("erf", (apply("mul", Input(0), 0.70710678),)), 1.0),
)
PRELU = apply("where", apply("less", Input(0), 0.0), MUL, Input(0))


def check(net: Network, *outputs: str, chains: int, target: str = TARGET) -> None:
    graph = net.graph(*outputs)
    kinds = [o.kind for o in prepare(graph).operators]
    epilogues = [k.epilogue for k in kinds if isinstance(k, Product)]
    assert sum(e is not None and e.chain is not None for e in epilogues) == chains
    result = network(graph, NetworkRequest(target, times=False), net.samples())
    operators = result.document["operators"]
    assert all(operator["verified"] for operator in operators), operators
    assert all(operator["verified_with_special_values"] is not False for operator in operators)


def test_a_mobile_block_with_residuals(tmp_path: object) -> None:
    """Convolutions, depthwise with a halo, activations, a residual after and before, bytes."""
    net = Network(1)
    x = net.input((1, 16, 9, 9), "float32")
    y = net.elementwise(HARD_SWISH, net.convolution(x, 32, 3))
    z = net.elementwise(SILU, net.elementwise(ADD, net.convolution(y, 32, 3), y))
    slope = net.constant(net.array((32, 1, 1), "float32"))
    u = net.elementwise(PRELU, net.convolution(z, 32, 1), slope)
    v = net.elementwise(ADD, net.elementwise(GELU, net.convolution(u, 32, 3)), z)
    check(net, net.add(Quantize((0.05,), (9,), "uint8"), v), chains=4)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_random_layers(seed: int) -> None:
    net = Network(seed)
    x = net.input((2, 8, 7, 6), "float32")
    for _ in range(3):
        y = net.convolution(x, int(net.one_of((8, 13, 32))), int(net.one_of((1, 3))))
        x = net.elementwise(net.one_of((*UNARY[2:], GELU)), y)
    check(net, x, chains=3)


@pytest.mark.slow
def test_products_of_matrices() -> None:
    net = Network(2)
    x = net.input((7, 48), "float32")
    y = net.elementwise(GELU, net.linear(x, 40))
    z = net.elementwise(SILU, net.elementwise(ADD, net.linear(y, 48), x))
    check(net, z, chains=2)


@pytest.mark.slow
def test_short_floats() -> None:
    net = Network(3)
    x = net.input((1, 16, 6, 6), "float32")
    y = net.elementwise(SILU, net.convolution(x, 32, 3))
    check(net, net.elementwise(GELU, net.convolution(y, 16, 1)), chains=2, target="avx2_bf16_fma")
    assert np.isfinite(net.values[y]).all()
