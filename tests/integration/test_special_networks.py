"""Compiled networks on special values and on tensors of 0 elements, and one after the other in one
folder."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from cpembed.errors import CpembedError, WorkloadError
from cpembed.frontends.products import matrix_product
from cpembed.graph.graph import Array, Graph, Operator, evaluate
from cpembed.graph.kinds import (
    Apply,
    Concat,
    Dequantize,
    Elementwise,
    Input,
    Kind,
    Number,
    Pad,
    Quantize,
    Reduce,
    Softmax,
    TensorType,
)
from cpembed.network.build import compile_network
from cpembed.network.inputs import special_inputs
from cpembed.network.observation import difference
from cpembed.network.service import NetworkRequest, network

pytest.importorskip("tvm")

TARGET = "avx2_f32"
SPECIAL = np.asarray([math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-40, 0.5, -3.0], np.float32)


def floats(*shape: int) -> TensorType:
    return TensorType(shape, "float32")


def of(expression: Apply, dtype: str = "float32") -> Elementwise:
    return Elementwise(expression, dtype)


def graph(
    inputs: dict[str, TensorType],
    *operators: tuple[Kind, tuple[str, ...], str],
    constants: dict[str, Array] | None = None,
) -> Graph:
    """Operators by their kinds, inputs and output; nothing reads the network's outputs."""
    made = tuple(Operator(f"op {o}", kind, reads, (o,)) for kind, reads, o in operators)
    read = {name for operator in made for name in operator.inputs}
    outputs = tuple(o.output for o in made if o.output not in read)
    return Graph("net", inputs, outputs, constants or {}, made)


def product(weights: Array) -> Graph:
    form = matrix_product((4, 8), (8, 16))
    return graph({"x": floats(4, 8)}, (form.product, ("x", "w"), "y"), constants={"w": weights})


def test_a_network_in_the_folder_of_another_runs_its_own_code(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32)
    weights = [np.full((8, 16), value, np.float32) for value in (1.0, -2.0)]
    first = compile_network(product(weights[0]), TARGET, tmp_path)
    with first.open() as running:
        second = compile_network(product(weights[1]), TARGET, tmp_path)
        with second.open() as other:
            for opened, w in ((running, weights[0]), (other, weights[1])):
                np.testing.assert_allclose(opened.run({"x": x})["y"], x @ w, rtol=1e-5, atol=1e-5)
    with pytest.raises(CpembedError, match="is another library now"):
        first.open()


def test_special_values_are_those_of_the_definitions(tmp_path: Path) -> None:
    x, zero = Input(0), Number(0.0)
    net = graph(
        {"x": floats(8, 8)},
        (of(Apply("not", (Apply("equal", (x, x)),)), "bool"), ("x",), "is nan"),
        (of(Apply("sub", (x, x))), ("x",), "difference"),
        (of(Apply("mul", (x, zero))), ("x",), "nothing"),
        (of(Apply("div", (zero, x))), ("x",), "quotient"),
        (of(Apply("max", (x, zero))), ("x",), "relu"),
        (of(x, "int32"), ("x",), "whole"),  # type: ignore[arg-type]
        (Softmax(1), ("x",), "shares"),
        (Reduce("max", (1,), False), ("x",), "largest"),
        (Quantize((0.1,), (3,), "uint8"), ("x",), "q"),
        (Dequantize((0.1,), (3,)), ("q",), "back"),
        (Pad((0, 1), (0, 1), -math.inf), ("back",), "padded"),
        (Quantize((0.1,), (3,), "uint8"), ("padded",), "again"),
    )
    generator = np.random.default_rng(0)
    array = np.stack([generator.permutation(SPECIAL) for _ in range(8)])
    wanted = evaluate(net, {"x": array})
    with compile_network(net, TARGET, tmp_path).open() as running:
        found = running.run({"x": array})
    for name in net.outputs:
        assert difference(found[name], wanted[name]) <= 1e-6, name


@pytest.mark.slow
def test_what_was_verified_is_said() -> None:
    net = graph(
        {"x": floats(8, 8), "mask": TensorType((8, 8), "bool")},
        (of(Apply("where", (Input(1), Apply("exp", (Input(0),)), Input(0)))), ("x", "mask"), "y"),
    )
    inputs = {"x": np.ones((8, 8), np.float32), "mask": np.ones((8, 8), np.bool_)}
    result = network(net, NetworkRequest(TARGET, times=False), inputs)
    assert result.document["special_inputs"] == ["x"]
    (operator,) = result.document["operators"]
    assert operator["verified"]
    assert operator["verified_with_special_values"]


def test_special_inputs_are_no_indices() -> None:
    from cpembed.graph.kinds import Gather

    net = graph(
        {"x": floats(9, 4), "i": TensorType((40,), "int64"), "n": TensorType((40,), "int64")},
        (of(Apply("add", (Input(0), Number(1))), "int64"), ("i",), "next"),
        (Gather(0), ("x", "next"), "rows"),
        (of(Apply("neg", (Input(0),)), "int64"), ("n",), "minus"),
    )
    inputs = {"x": np.ones((9, 4), np.float32), "i": np.arange(40) % 8, "n": np.arange(40)}
    found = special_inputs(net, inputs)
    assert found["i"] is inputs["i"]
    assert not np.isfinite(found["x"]).all()
    assert found["n"].min() == np.iinfo(np.int64).min


@pytest.mark.slow
def test_an_empty_cache_is_put_before_new_rows(tmp_path: Path) -> None:
    net = graph(
        {"cache": floats(2, 0, 4), "new": floats(2, 3, 4), "mask": floats(0, 4)},
        (Concat(1), ("cache", "new"), "rows"),
        (of(Apply("mul", (Input(0), Number(2.0)))), ("rows",), "twice"),
        (Reduce("max", (1,), True), ("cache",), "none"),
        (Reduce("sum", (0,), False), ("mask",), "sums"),
        (Concat(1), ("cache", "cache"), "still empty"),
    )
    inputs = {
        name: np.random.default_rng(0).normal(size=kind.shape).astype(np.float32)
        for name, kind in net.inputs.items()
    }
    wanted = evaluate(net, inputs)
    with compile_network(net, TARGET, tmp_path).open() as running:
        found = running.run(inputs)
    for name in net.outputs:
        assert difference(found[name], wanted[name]) == 0, name


@pytest.mark.slow
def test_a_network_of_nothing_runs(tmp_path: Path) -> None:
    net = graph({"x": floats(0, 4)}, (Softmax(1), ("x",), "y"))
    with compile_network(net, TARGET, tmp_path).open() as running:
        assert running.run({"x": np.ones((0, 4), np.float32)})["y"].shape == (0, 4)
        with pytest.raises(WorkloadError):
            running.run({"x": np.ones((1, 4), np.float32)})
