"""Write a small residual network of int8 as an ONNX file: ``python network.py small.onnx``.

Weights are random. Every tensor between operators is quantized symmetrically with one scale, as an
accelerator whose store unit has one factor needs it.
"""

from __future__ import annotations

import sys

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

RANDOM = np.random.default_rng(0)
NODES: list[onnx.NodeProto] = []
CONSTANTS: list[onnx.TensorProto] = []


def constant(array: np.ndarray) -> str:
    """Add a constant and return its name."""
    name = f"constant{len(CONSTANTS)}"
    CONSTANTS.append(numpy_helper.from_array(array, name))
    return name


def node(kind: str, *inputs: str, **attributes: object) -> str:
    """Add an operator and return the name of its result."""
    name = f"{kind.lower()}{len(NODES)}"
    NODES.append(helper.make_node(kind, inputs, [name], name=name, **attributes))
    return name


def quantized(x: str, scale: float) -> str:
    """Add a pair of quantization and dequantization."""
    numbers = constant(np.float32(scale)), constant(np.int8(0))
    return node("DequantizeLinear", node("QuantizeLinear", x, *numbers), *numbers)


def convolution(x: str, depth: int, channels: int, size: int, stride: int = 1) -> str:
    """Add a convolution with weights of int8 and a bias of int32."""
    weights = RANDOM.integers(-90, 90, (channels, depth, size, size)).astype(np.int8)
    scale = np.float32(1 / (60 * np.sqrt(depth * size * size)))
    bias = RANDOM.integers(-200, 200, channels).astype(np.int32)
    filters = node("DequantizeLinear", constant(weights), constant(scale), constant(np.int8(0)))
    offsets = node(
        "DequantizeLinear",
        constant(bias),
        constant(scale * np.float32(0.05)),
        constant(np.int32(0)),
    )
    pads, strides = [size // 2] * 4, [stride] * 2
    return node("Conv", x, filters, offsets, kernel_shape=[size] * 2, pads=pads, strides=strides)


def network() -> onnx.ModelProto:
    """Return a convolution, max pooling, a residual block and a 1x1 convolution."""
    x = quantized("image", 0.05)
    x = quantized(node("Relu", convolution(x, 16, 32, 3, stride=2)), 0.05)
    pooled = node("MaxPool", x, kernel_shape=[3] * 2, pads=[1] * 4, strides=[2] * 2)
    x = quantized(pooled, 0.05)
    y = quantized(node("Relu", convolution(x, 32, 32, 3)), 0.05)
    y = quantized(convolution(y, 32, 32, 3), 0.05)
    x = quantized(node("Relu", node("Add", x, y)), 0.05)
    x = quantized(convolution(x, 32, 16, 1), 0.05)
    graph = helper.make_graph(
        NODES,
        "small",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 16, 32, 32])],
        [helper.make_tensor_value_info(x, TensorProto.FLOAT, [1, 16, 8, 8])],
        CONSTANTS,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


if __name__ == "__main__":
    onnx.save(network(), sys.argv[1])
