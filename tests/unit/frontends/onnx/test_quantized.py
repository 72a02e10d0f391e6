"""Quantized operators beside ONNX Runtime: at most one quantum apart, mostly equal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from onnx import helper

from cpembed.graph.kinds import Dequantize, Product, Quantize
from tests.unit.frontends.onnx.referee import (
    MICROSOFT,
    Array,
    check,
    loaded,
    model_of,
    single,
)

RANDOM = np.random.default_rng(3)


def byte(dtype: str, *shape: int) -> Array:
    """Random bytes. Signed ones have seven bits: on processors without VNNI ONNX Runtime adds two
    products of an unsigned and a signed byte in 16 bits, and saturates."""
    limits = np.iinfo(dtype)
    parts = 2 if limits.min < 0 else 1
    low, high = limits.min // parts, limits.max // parts
    return RANDOM.integers(low, high, shape, dtype=dtype, endpoint=True)


def scale(*shape: int) -> Array:
    return RANDOM.uniform(0.01, 0.05, shape).astype(np.float32)


def zero(dtype: str, *shape: int) -> Array:
    low = 0 if dtype[0] == "u" else -20
    return RANDOM.integers(low, 20, shape).astype(dtype)


def floats(*shape: int) -> Array:
    return RANDOM.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("channels", [False, True])
def test_quantization_and_back(dtype: str, channels: bool, tmp_path: Path) -> None:
    count = (5,) if channels else ()
    s, z = scale(*count), zero(dtype, *count)
    quantize = single("QuantizeLinear", [floats(3, 5, 4), s, z], [1, 2], axis=1)
    check(quantize, {"x0": floats(3, 5, 4)}, tmp_path)
    back = single("DequantizeLinear", [byte(dtype, 3, 5, 4), s, z], [1, 2], axis=1)
    check(back, {"x0": byte(dtype, 3, 5, 4)}, tmp_path)


def test_quantization_with_parameters_that_are_computed(tmp_path: Path) -> None:
    x, s, z = floats(3, 5), scale(), zero("uint8")
    check(single("QuantizeLinear", [x, s, z]), {"x0": x, "x1": s, "x2": z}, tmp_path)
    q = byte("uint8", 3, 5)
    check(single("DequantizeLinear", [q, s, z]), {"x0": q, "x1": s, "x2": z}, tmp_path)


def test_dynamic_quantization(tmp_path: Path) -> None:
    for x in (floats(4, 5), np.abs(floats(4, 5)), np.zeros((2, 2), np.float32)):
        check(single("DynamicQuantizeLinear", [x], outputs=3), {"x0": x}, tmp_path)


@pytest.mark.parametrize("first", ["int8", "uint8"])
@pytest.mark.parametrize("attributes", [
    {}, {"pads": [1, 1, 1, 1], "kernel_shape": [3, 3]},
    {"group": 2, "strides": [2, 1], "pads": [0, 1, 2, 0]},
])  # fmt: skip
def test_qlinear_conv(first: str, attributes: dict[str, Any], tmp_path: Path) -> None:
    group = attributes.get("group", 1)
    inputs = [
        byte(first, 1, 4, 6, 5), scale(), zero(first),
        byte("int8", 6, 4 // group, 3, 3), scale(6), np.zeros(6, np.int8),
        np.float32(0.5), zero(first), RANDOM.integers(-5000, 5000, 6).astype(np.int32),
    ]  # fmt: skip
    model = single("QLinearConv", inputs, range(1, 9), **attributes)
    check(model, {"x0": inputs[0]}, tmp_path, quanta=1)


def test_a_quantized_convolution_keeps_its_integers(tmp_path: Path) -> None:
    """Weights and bias stay integers, of a form with a Dequantize for each operand."""
    inputs = [
        byte("uint8", 1, 4, 6, 5), scale(), zero("uint8"), byte("int8", 6, 4, 3, 3), scale(6),
        np.zeros(6, np.int8), np.float32(0.5), zero("uint8"), np.ones(6, np.int32),
    ]  # fmt: skip
    graph = loaded(single("QLinearConv", inputs, range(1, 9)), tmp_path)
    (product,) = (o for o in graph.operators if isinstance(o.kind, Product))
    made = [graph.producers[name] for name in product.inputs]
    assert all(isinstance(o.kind, Dequantize) for o in made)
    weights = graph.constants[made[1].inputs[0]]
    assert weights.dtype == np.int8
    assert np.array_equal(weights, inputs[3])
    kept = [a for a in graph.constants.values() if a.dtype == np.int32]
    assert [a.shape for a in kept] == [(6, 1, 1)]
    assert isinstance(graph.producers[graph.outputs[0]].kind, Quantize)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_qlinear_matmul(dtype: str, tmp_path: Path) -> None:
    inputs = [
        byte(dtype, 2, 4, 7), scale(), zero(dtype), byte("int8", 7, 5), scale(), np.int8(0),
        np.float32(0.6), zero(dtype),
    ]  # fmt: skip
    check(
        single("QLinearMatMul", inputs, range(1, 8)), {"x0": inputs[0]}, tmp_path, quanta=1
    )  # fmt: skip


def test_qgemm(tmp_path: Path) -> None:
    a, b = byte("uint8", 3, 7), byte("int8", 5, 7)
    c = RANDOM.integers(-500, 500, 5).astype(np.int32)
    inputs = [a, scale(), zero("uint8"), b, scale(), np.int8(0), c, np.float32(0.5), zero("uint8")]
    model = single("QGemm", inputs, range(1, 9), domain=MICROSOFT, transB=1)
    check(model, {"x0": a}, tmp_path, quanta=1)
    model = single("QGemm", inputs[:7], range(1, 7), domain=MICROSOFT, transB=1, alpha=0.5)
    check(model, {"x0": a}, tmp_path, relative=1e-4)


@pytest.mark.parametrize("operator", ["QLinearAdd", "QLinearMul"])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_qlinear_binary(operator: str, dtype: str, tmp_path: Path) -> None:
    a, b = byte(dtype, 3, 5), byte(dtype, 5)
    inputs = [a, scale(), zero(dtype), b, scale(), zero(dtype), scale(), zero(dtype)]
    model = single(operator, inputs, [1, 2, 4, 5, 6, 7], domain=MICROSOFT)
    check(model, {"x0": a, "x3": b}, tmp_path, quanta=1)


@pytest.mark.parametrize("operator, attributes", [
    ("QLinearSigmoid", {}), ("QLinearLeakyRelu", {"alpha": 0.2}),
    ("QLinearGlobalAveragePool", {}),
    ("QLinearAveragePool", {"kernel_shape": [2, 3], "pads": [1, 1, 0, 1]}),
    ("QLinearSoftmax", {"axis": 3, "opset": 13}),
])  # fmt: skip
def test_qlinear_unary(operator: str, attributes: dict[str, Any], tmp_path: Path) -> None:
    x = byte("uint8", 1, 3, 5, 6)
    inputs = [x, scale(), zero("uint8"), np.float32(1 / 256), np.uint8(0)]
    model = single(operator, inputs, [1, 2, 3, 4], domain=MICROSOFT, **attributes)
    check(model, {"x0": x}, tmp_path, quanta=1)


def test_qlinear_concat(tmp_path: Path) -> None:
    a, b = byte("uint8", 1, 3, 4), byte("uint8", 1, 2, 4)
    inputs = [scale(), zero("uint8"), a, scale(), zero("uint8"), b, scale(), zero("uint8")]
    model = single("QLinearConcat", inputs, [0, 1, 3, 4, 6, 7], domain=MICROSOFT, axis=1)
    check(model, {"x2": a, "x5": b}, tmp_path, quanta=1)


@pytest.mark.parametrize("fixed", [True, False])
@pytest.mark.parametrize("attributes", [
    {}, {"pads": [1, 0, 2, 1], "kernel_shape": [3, 3]},
    {"group": 2, "strides": [2, 2], "pads": [1, 1, 1, 1]},
])  # fmt: skip
def test_conv_integer(fixed: bool, attributes: dict[str, Any], tmp_path: Path) -> None:
    """The zero point of the image a constant, or computed while the network runs."""
    x, w = byte("uint8", 2, 4, 6, 5), byte("int8", 6, 4 // attributes.get("group", 1), 3, 3)
    inputs = [x, w, np.asarray(117, np.uint8)]
    model = single("ConvInteger", inputs, [1, 2] if fixed else [1], **attributes)
    given = {"x0": x} if fixed else {"x0": x, "x2": inputs[2]}
    check(model, given, tmp_path)


@pytest.mark.parametrize("constants", [[1, 2, 3], [1, 3], [1, 2], [1], []])
def test_matmul_integer(constants: list[int], tmp_path: Path) -> None:
    """Zero points constant or not, of both factors."""
    a, b = byte("uint8", 2, 4, 7), byte("uint8", 7, 5)
    inputs = [a, b, np.asarray(121, np.uint8), np.asarray(9, np.uint8)]
    model = single("MatMulInteger", inputs, constants)
    check(model, {f"x{k}": a for k, a in enumerate(inputs) if k not in constants}, tmp_path)


def test_matmul_integer_with_a_zero_point_for_each_column(tmp_path: Path) -> None:
    a, b = byte("uint8", 4, 7), byte("int8", 7, 5)
    inputs = [a, b, np.asarray(3, np.uint8), zero("int8", 5)]
    check(single("MatMulInteger", inputs, [1, 2, 3]), {"x0": a}, tmp_path)


def test_a_layer_that_is_quantized_dynamically(tmp_path: Path) -> None:
    """What ONNX Runtime's dynamic quantization makes of MatMul."""
    x = floats(4, 8)
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        helper.make_node("MatMulInteger", ["q", "w", "z", "wz"], ["sums"]),
        helper.make_node("Cast", ["sums"], ["wide"], to=1),
        helper.make_node("Mul", ["s", "ws"], ["scale"]),
        helper.make_node("Mul", ["wide", "scale"], ["y"]),
    ]
    constants = {"w": byte("int8", 8, 5), "wz": np.asarray(0, np.int8), "ws": scale()}
    check(model_of(nodes, {"x": x}, constants, ["y"]), {"x": x}, tmp_path)


def test_a_transposed_quantized_weight_stays_one(tmp_path: Path) -> None:
    """What moves elements of quantized constants moves the integers."""
    w, s = byte("int8", 5, 8), scale(5)
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s"], ["wide"], axis=0),
        helper.make_node("Transpose", ["wide"], ["turned"]),
        helper.make_node("MatMul", ["x", "turned"], ["y"]),
    ]
    model = model_of(nodes, {"x": floats(4, 8)}, {"w": w, "s": s}, ["y"])
    check(model, {"x": floats(4, 8)}, tmp_path)
    graph = loaded(model, tmp_path)
    assert [type(o.kind) for o in graph.operators] == [Dequantize, Product]
    kind = graph.operators[0].kind
    assert isinstance(kind, Dequantize)
    assert kind.axis == 1
    assert np.array_equal(graph.constants[graph.operators[0].inputs[0]], w.T)


@pytest.mark.parametrize("bias", [False, True])
def test_sums_of_integers_as_floats(bias: bool, tmp_path: Path) -> None:
    """ONNX Runtime's operators of layers that are quantized dynamically."""
    a, b, c = byte("uint8", 4, 7), byte("int8", 7, 5), floats(5) if bias else None
    zeros = [np.asarray(120, np.uint8), np.asarray(3, np.int8)]
    inputs = [a, b, scale(), scale(5), *zeros, c]
    model = single("MatMulIntegerToFloat", inputs, [1, 3, 4, 5, 6], domain=MICROSOFT)
    check(model, {"x0": a, "x2": inputs[2]}, tmp_path, relative=1e-5)
    x = floats(4, 7)
    inputs = [x, b, scale(), zeros[1], c]
    model = single("DynamicQuantizeMatMul", inputs, [1, 2, 3, 4], domain=MICROSOFT)
    check(model, {"x0": x}, tmp_path, relative=1e-5)
