"""When a chain of elementwise operators pays in the kernel of a product."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cpembed.driver.matching import network_units
from cpembed.driver.named import workload
from cpembed.graph.graph import Graph, Operator
from cpembed.graph.kinds import Apply, Elementwise, Input, Product, TensorType
from cpembed.graph.passes.chain_fusion import fuse_chains
from cpembed.network.kernel_cache import Cache
from cpembed.network.layout import CandidateLayouts
from cpembed.network.layout_problem import ExecutionChoices
from cpembed.network.plan import split_epilogues
from cpembed.network.product_kernels import ProductKernels

GEMM = workload("gemm m=64 n=96 k=64 dtype=float32")
SILU = Apply("mul", (Input(0), Apply("sigmoid", (Input(0),))))


def fused(expression: Any) -> Graph:
    inputs = {o.name: TensorType(o.shape, "float32") for o in GEMM.inputs}
    product = Operator("product", Product(GEMM, (64, 96)), tuple(inputs), ("y",))
    after = Operator("after", Elementwise(expression, "float32"), ("y",), ("z",))
    return fuse_chains(Graph("small", inputs, ("z",), {}, (product, after)))


def choices(graph: Graph) -> ExecutionChoices:
    products = ProductKernels(network_units("avx2_f32"), Cache(None))
    return ExecutionChoices(graph, CandidateLayouts(graph), products, 1)


@pytest.mark.parametrize("factor, pays", [(1, True), (2, True), (64, False)])
def test_a_kernel_that_computes_too_much_padding_leaves_the_chain(factor: int, pays: bool) -> None:
    """Twice the functions of a small operator are still less than another call."""
    graph = fused(SILU) if factor > 2 else fused(Apply("max", (Input(0), Input(0))))
    (operator,) = graph.operators
    kernel: Any = SimpleNamespace(computed_results=64 * 96 * factor)
    planned = choices(graph)
    assert planned._chain_pays(operator, [kernel]) == pays  # pyright: ignore[reportPrivateUsage]
    kind = operator.kind
    assert isinstance(kind, Product)
    time = planned._chain_us(kernel, kind)  # pyright: ignore[reportPrivateUsage]
    assert time > 0


def test_a_chain_that_does_not_pay_becomes_an_operator() -> None:
    graph = fused(SILU)
    split = split_epilogues(graph, ["product"])
    kinds = [type(o.kind) for o in split.operators]
    assert kinds == [Product, Elementwise]
    assert split.operators[1].outputs == ("z",)
    assert split.types["y before the chain" if "y" in graph.types else "z before the chain"] == (
        TensorType((64, 96), "float32")
    )
    assert np.prod(split.operators[0].kind.shape) == 64 * 96  # type: ignore[union-attr]
