"""What the host does for a network on an accelerator: all of it is listed, with a time."""

from __future__ import annotations

import json

import numpy as np
import pytest

from cpembed.codegen.epilogue import Epilogue, Residual
from cpembed.graph.graph import Graph, Operator
from cpembed.graph.kinds import Elementwise, Product, TensorType
from cpembed.hw.loader import load_hardware_spec
from cpembed.ir.scalars import Input, apply
from cpembed.network.host_work import epilogue_on_host, host_target, product_on_host
from cpembed.network.stepwise import run_stepwise
from cpembed.network.stepwise_document import stepwise_document
from cpembed.report.network import report
from cpembed.steps import silent
from cpembed.targets.registry import open_target
from cpembed.workloads.einsum import gemm
from tests.unit.targets.scratchpad.executor.running import needs_compiler

SUMS = gemm(m=32, n=32, k=32)
SCALED = Epilogue("int8", scale=True, bias=True, relu=True)


def network() -> Graph:
    """A quantized product, another of floats, which the target does not multiply, and a ReLU."""
    rng = np.random.default_rng(0)
    square = TensorType((32, 32), "int8")
    constants = {
        "w": rng.integers(-8, 8, (32, 32)).astype(np.int8),
        "b": rng.integers(-99, 99, 32).astype(np.int32),
        "s": np.full(32, 0.01, np.float32),
        "v": rng.normal(size=(32, 32)).astype(np.float32),
    }
    relu, widened = (
        Elementwise(apply("max", Input(0), 0.0), "float32"),
        Elementwise(Input(0), "float32"),
    )
    floats = Product(gemm(m=32, n=32, k=32, dtype="float32"), (32, 32))
    operators = (
        Operator("scaled", Product(SUMS, (32, 32), epilogue=SCALED), ("x", "w", "b", "s"), ("q",)),
        Operator("sums", Product(SUMS, (32, 32)), ("q", "w"), ("sums",)),
        Operator("widened", widened, ("q",), ("f",)),
        Operator("floats", floats, ("f", "v"), ("g",)),
        Operator("relu", relu, ("g",), ("y",)),
    )
    return Graph("net", {"x": square}, ("sums", "y"), constants, operators)


@needs_compiler
def test_every_step_of_the_host_is_listed_with_its_time() -> None:
    graph = network()
    x = np.random.default_rng(1).integers(-8, 8, (32, 32)).astype(np.int8)
    target = load_hardware_spec("gemmini_16x16")
    document = stepwise_document(run_stepwise(graph, target, {"x": x}, progress=silent))
    json.dumps(document)
    host = {o["name"]: [step["work"] for step in o["host"]] for o in document["operators"]}
    assert host == {
        "scaled": ["bias, scale, ReLU, results in int8"],
        "sums": [],
        "widened": ["copy"],
        "floats": ["the product"],
        "relu": ["max"],
    }
    times = [step["estimated_us"] for o in document["operators"] for step in o["host"]]
    assert min(times) > 0
    assert document["totals"]["host_us"] == pytest.approx(sum(times))
    text = "\n".join(str(block) for block in report(document))
    assert "3 operators and steps after 1 product" in text
    for name, works in host.items():
        assert all(work in text for work in works), name


@needs_compiler
def test_a_product_that_leaves_the_unit_idle_says_why() -> None:
    rows = Product(gemm(m=1, n=32, k=32), (1, 32))
    weights = {"w": np.ones((32, 32), np.int8)}
    operators = (Operator("row", rows, ("x", "w"), ("y",)),)
    graph = Graph("net", {"x": TensorType((1, 32), "int8")}, ("y",), weights, operators)
    x, target = np.ones((1, 32), np.int8), load_hardware_spec("gemmini_16x16")
    document = stepwise_document(run_stepwise(graph, target, {"x": x}, progress=silent))
    text = "\n".join(str(block) for block in report(document))
    assert "row: 6.2% of gemmini_16x16 is used: m of 1 takes 16 places of x" in text


def test_estimates_grow_with_the_work() -> None:
    host = host_target(open_target(load_hardware_spec("gemmini_16x16")))

    def us(epilogue: Epilogue, size: int = 512) -> float:
        product = Product(gemm(m=size, n=size, k=8), (size, size), epilogue=epilogue)
        return sum(each.us for each in epilogue_on_host(product, host))

    assert us(SCALED, 1024) > us(SCALED) > 0
    assert us(Epilogue("int8", scale=True, residual=Residual("int8"))) > us(
        Epilogue("int8", scale=True)
    )
    assert epilogue_on_host(Product(SUMS, (32, 32)), host) == ()


def test_zero_points_and_padding_are_work_too() -> None:
    host = host_target(open_target(load_hardware_spec("gemmini_16x16")))
    product = Product(SUMS, (32, 32), zero_points=(3, 0), padding=2)
    works = product_on_host(product, TensorType((32, 32), "int8"), host)
    assert [each.work for each in works] == [
        "padding by 2 in memory",
        "the part of the zero points in the sums",
    ]
    assert all(each.us > 0 for each in works)
