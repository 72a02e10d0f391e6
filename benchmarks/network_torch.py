"""A quantized ONNX file as a module of PyTorch, in the form that its compiler knows.

Operators of floats stand between ``quantized_decomposed`` ones, which torchao's passes for x86 turn
into oneDNN's integer products.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from torch.nn import functional
from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer

Values = dict[str, Any]
REGISTERED = x86_inductor_quantizer
"""Module whose import registers the passes."""
_DECOMPOSED = torch.ops.quantized_decomposed
_RANGES = {torch.int8: (-128, 127), torch.uint8: (0, 255)}


class UnknownOperatorError(Exception):
    """The file has an operator that is not written here; the text names it."""


class OnnxModule(torch.nn.Module):
    """A module that takes the file's inputs in order and returns its outputs as a tuple."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        graph = onnx.load(path).graph
        self.inputs = [value.name for value in graph.input]
        self.outputs = [value.name for value in graph.output]
        self.arrays = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
        self.steps: list[tuple[onnx.NodeProto, dict[str, Any]]] = []
        for node in graph.node:
            self._add(node, {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute})
        self._transpose_weights()
        for name, array in self.arrays.items():
            self.register_buffer(_buffer(name), torch.from_numpy(np.array(array)))

    def _add(self, node: onnx.NodeProto, attributes: dict[str, Any]) -> None:
        constant = node.input and node.input[0] in self.arrays
        if node.op_type == "DequantizeLinear" and constant:
            array, scale = (self.arrays[name] for name in node.input[:2])
            if array.dtype == np.int32:  # a bias: what it stands for
                self.arrays[node.output[0]] = (array * scale).astype(np.float32)
                return
        if node.op_type not in OPERATORS:
            raise UnknownOperatorError(f"{node.op_type} is not written in PyTorch here")
        self.steps.append((node, attributes))

    def _transpose_weights(self) -> None:
        """Write products with constant matrices as linear layers, the form that the passes know."""
        writers = {node.output[0]: (node, a) for node, a in self.steps}
        readers = [name for node, _ in self.steps for name in node.input]
        for node, attributes in self.steps:
            if node.op_type != "MatMul" or node.input[1] not in writers:
                continue
            writer, about = writers[node.input[1]]
            stored = self.arrays.get(writer.input[0])
            if stored is None or stored.ndim != 2 or readers.count(node.input[1]) > 1:
                continue
            self.arrays[writer.input[0]] = np.ascontiguousarray(stored.T)
            about["axis"] = 0
            attributes["linear"] = True

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values: Values = dict(zip(self.inputs, inputs, strict=True))
        values |= {name: getattr(self, _buffer(name)) for name in self.arrays}
        for node, attributes in self.steps:
            arguments = [values[name] if name else None for name in node.input]
            if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
                numbers = [self.arrays[name] for name in node.input[1:]]
                result = _quantization(
                    node.op_type, arguments[0], numbers, attributes, values, node
                )
            elif node.op_type in ("Reshape", "Unsqueeze"):
                sizes = [int(size) for size in self.arrays[node.input[1]]]
                result = OPERATORS[node.op_type]([arguments[0], sizes], attributes)
            else:
                result = OPERATORS[node.op_type](arguments, attributes)
            values[node.output[0]] = result
        return tuple(values[name] for name in self.outputs)


def _buffer(name: str) -> str:
    return "c_" + "".join(c if c.isalnum() else f"_{ord(c)}_" for c in name)


def _quantization(
    kind: str, x: torch.Tensor, numbers: list[Any], attributes: dict[str, Any], values: Values,
    node: onnx.NodeProto,
) -> torch.Tensor:  # fmt: skip
    scale, zero = numbers
    dtype = torch.from_numpy(np.array(zero)).dtype
    low, high = _RANGES[dtype]
    if scale.ndim and scale.size > 1:
        axis = attributes.get("axis", 1)
        scales, zeros = (values[name] for name in node.input[1:])
        return _DECOMPOSED.dequantize_per_channel(x, scales, zeros, axis, low, high, dtype)
    numbers = [float(scale.reshape(())), int(zero.reshape(())), low, high, dtype]
    if kind == "QuantizeLinear":
        return _DECOMPOSED.quantize_per_tensor(x, *numbers)
    return _DECOMPOSED.dequantize_per_tensor(x, *numbers)


def _conv(arguments: list[Any], attributes: dict[str, Any]) -> torch.Tensor:
    x, weights, *bias = arguments
    rank = len(attributes["kernel_shape"])
    pads = attributes.get("pads", [0] * 2 * rank)
    if pads[:rank] != pads[rank:]:
        x = _padded(x, pads, 0.0)
        pads = [0] * 2 * rank
    return functional.conv2d(
        x,
        weights,
        bias[0] if bias else None,
        attributes.get("strides", 1),
        pads[:rank],
        attributes.get("dilations", 1),
        attributes.get("group", 1),
    )


def _padded(x: torch.Tensor, pads: list[int], value: float) -> torch.Tensor:
    top, left, bottom, right = pads
    return functional.pad(x, (left, right, top, bottom), value=value)


def _average(arguments: list[Any], attributes: dict[str, Any]) -> torch.Tensor:
    return functional.avg_pool2d(
        arguments[0],
        attributes["kernel_shape"],
        attributes.get("strides"),
        attributes.get("pads", [0, 0])[:2],
        count_include_pad=bool(attributes.get("count_include_pad", 0)),
    )


def _maximum(arguments: list[Any], attributes: dict[str, Any]) -> torch.Tensor:
    return functional.max_pool2d(
        arguments[0],
        attributes["kernel_shape"],
        attributes.get("strides"),
        attributes.get("pads", [0, 0])[:2],
    )


def _gemm(arguments: list[Any], attributes: dict[str, Any]) -> torch.Tensor:
    if not attributes.get("transB", 0):
        raise UnknownOperatorError("Gemm without transB is not written in PyTorch here")
    return functional.linear(*arguments)


def _gather(arguments: list[Any], attributes: dict[str, Any]) -> torch.Tensor:
    table, index = arguments
    axis = attributes.get("axis", 0)
    if index.ndim == 0:
        return table.select(axis, int(index))
    return functional.embedding(index, table)


def _normalised(arguments: list[Any], attributes: dict[str, Any]) -> torch.Tensor:
    x, scale, shift = arguments
    return functional.layer_norm(x, scale.shape, scale, shift, attributes.get("epsilon", 1e-5))


def _clip(arguments: list[Any], attributes: dict[str, Any]) -> torch.Tensor:
    return torch.clamp(arguments[0], float(arguments[1]), float(arguments[2]))


OPERATORS: dict[str, Callable[[list[Any], dict[str, Any]], torch.Tensor]] = {
    "QuantizeLinear": lambda x, a: x[0],
    "DequantizeLinear": lambda x, a: x[0],
    "Conv": _conv,
    "Gemm": _gemm,
    "MatMul": lambda x, a: functional.linear(*x) if "linear" in a else torch.matmul(*x),
    "Add": lambda x, a: x[0] + x[1],
    "Sub": lambda x, a: x[0] - x[1],
    "Mul": lambda x, a: x[0] * x[1],
    "Div": lambda x, a: x[0] / x[1],
    "Pow": lambda x, a: torch.pow(x[0], x[1]),
    "Sqrt": lambda x, a: torch.sqrt(x[0]),
    "Erf": lambda x, a: torch.erf(x[0]),
    "Tanh": lambda x, a: torch.tanh(x[0]),
    "Sigmoid": lambda x, a: torch.sigmoid(x[0]),
    "Relu": lambda x, a: functional.relu(x[0]),
    "Clip": _clip,
    "Softmax": lambda x, a: torch.softmax(x[0], a.get("axis", -1)),
    "MaxPool": _maximum,
    "AveragePool": _average,
    "GlobalAveragePool": lambda x, a: functional.adaptive_avg_pool2d(x[0], 1),
    "ReduceMean": lambda x, a: x[0].mean(a["axes"], keepdim=bool(a.get("keepdims", 1))),
    "Flatten": lambda x, a: torch.flatten(x[0], a.get("axis", 1)),
    "Reshape": lambda x, a: x[0].reshape(x[1]),
    "Transpose": lambda x, a: x[0].permute(a["perm"]),
    "Concat": lambda x, a: torch.cat(x, a["axis"]),
    "Gather": _gather,
    "LayerNormalization": _normalised,
}


def compiled(path: Path, threads: int, inputs: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    """Return a call of the module, compiled by inductor with frozen weights.

    Parameters
    ----------
    path : Path
        File of the network.
    threads : int
        Number of threads.
    inputs : dict of str to array
        Inputs by name.
    """
    from torch._inductor import config

    torch.set_num_threads(threads)
    config.freezing = True
    module = OnnxModule(path).eval()
    tensors = [torch.from_numpy(inputs[name]) for name in module.inputs]
    with torch.no_grad():
        call = torch.compile(torch.export.export(module, tuple(tensors)).module(), dynamic=False)
        call(*tensors)

    def run() -> dict[str, Any]:
        with torch.no_grad():
            results = call(*tensors)
        return {n: t.numpy() for n, t in zip(module.outputs, results, strict=True)}

    return run
