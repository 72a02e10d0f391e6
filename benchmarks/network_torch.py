"""A quantized ONNX file as a module of PyTorch, in the form that its compiler knows: operators of
floats between ``quantized_decomposed`` ones, which torchao's passes for x86 turn into oneDNN's
integer products.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
import torch.nn.functional as F
from onnx import numpy_helper
from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer

Values = dict[str, Any]
REGISTERED = x86_inductor_quantizer
"""Its import registers the passes."""
_DECOMPOSED = torch.ops.quantized_decomposed
_RANGES = {torch.int8: (-128, 127), torch.uint8: (0, 255)}


class UnknownOperator(Exception):
    """The file has an operator that is not written here; the text names it."""


class OnnxModule(torch.nn.Module):
    """Takes the file's inputs in order and returns its outputs as a tuple."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        graph = onnx.load(path).graph
        self.inputs = [given.name for given in graph.input]
        self.outputs = [given.name for given in graph.output]
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
            raise UnknownOperator(f"{node.op_type} is not written in PyTorch here")
        self.steps.append((node, attributes))

    def _transpose_weights(self) -> None:
        """Products with constant matrices as linear layers, the only form that the passes know."""
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
            given = [values[name] if name else None for name in node.input]
            if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
                numbers = [self.arrays[name] for name in node.input[1:]]
                found = _quantization(node.op_type, given[0], numbers, attributes, values, node)
            elif node.op_type in ("Reshape", "Unsqueeze"):
                sizes = [int(size) for size in self.arrays[node.input[1]]]
                found = OPERATORS[node.op_type]([given[0], sizes], attributes)
            else:
                found = OPERATORS[node.op_type](given, attributes)
            values[node.output[0]] = found
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


def _conv(given: list[Any], a: dict[str, Any]) -> torch.Tensor:
    x, weights, *bias = given
    rank = len(a["kernel_shape"])
    pads = a.get("pads", [0] * 2 * rank)
    if pads[:rank] != pads[rank:]:
        x = _padded(x, pads, 0.0)
        pads = [0] * 2 * rank
    return F.conv2d(x, weights, bias[0] if bias else None, a.get("strides", 1), pads[:rank],
                    a.get("dilations", 1), a.get("group", 1))  # fmt: skip


def _padded(x: torch.Tensor, pads: list[int], value: float) -> torch.Tensor:
    top, left, bottom, right = pads
    return F.pad(x, (left, right, top, bottom), value=value)


def _average(given: list[Any], a: dict[str, Any]) -> torch.Tensor:
    return F.avg_pool2d(
        given[0], a["kernel_shape"], a.get("strides"), a.get("pads", [0, 0])[:2],
        count_include_pad=bool(a.get("count_include_pad", 0)),
    )  # fmt: skip


def _maximum(given: list[Any], a: dict[str, Any]) -> torch.Tensor:
    return F.max_pool2d(given[0], a["kernel_shape"], a.get("strides"), a.get("pads", [0, 0])[:2])


def _gemm(given: list[Any], a: dict[str, Any]) -> torch.Tensor:
    if not a.get("transB", 0):
        raise UnknownOperator("Gemm without transB is not written in PyTorch here")
    return F.linear(*given)


def _gather(given: list[Any], a: dict[str, Any]) -> torch.Tensor:
    table, index = given
    axis = a.get("axis", 0)
    if index.ndim == 0:
        return table.select(axis, int(index))
    return F.embedding(index, table)


def _normalised(given: list[Any], a: dict[str, Any]) -> torch.Tensor:
    x, scale, shift = given
    return F.layer_norm(x, scale.shape, scale, shift, a.get("epsilon", 1e-5))


def _clip(given: list[Any], a: dict[str, Any]) -> torch.Tensor:
    return torch.clamp(given[0], float(given[1]), float(given[2]))


OPERATORS: dict[str, Callable[[list[Any], dict[str, Any]], torch.Tensor]] = {
    "QuantizeLinear": lambda x, a: x[0],
    "DequantizeLinear": lambda x, a: x[0],
    "Conv": _conv,
    "Gemm": _gemm,
    "MatMul": lambda x, a: F.linear(*x) if "linear" in a else torch.matmul(*x),
    "Add": lambda x, a: x[0] + x[1],
    "Sub": lambda x, a: x[0] - x[1],
    "Mul": lambda x, a: x[0] * x[1],
    "Div": lambda x, a: x[0] / x[1],
    "Pow": lambda x, a: torch.pow(x[0], x[1]),
    "Sqrt": lambda x, a: torch.sqrt(x[0]),
    "Erf": lambda x, a: torch.erf(x[0]),
    "Tanh": lambda x, a: torch.tanh(x[0]),
    "Sigmoid": lambda x, a: torch.sigmoid(x[0]),
    "Relu": lambda x, a: F.relu(x[0]),
    "Clip": _clip,
    "Softmax": lambda x, a: torch.softmax(x[0], a.get("axis", -1)),
    "MaxPool": _maximum,
    "AveragePool": _average,
    "GlobalAveragePool": lambda x, a: F.adaptive_avg_pool2d(x[0], 1),
    "ReduceMean": lambda x, a: x[0].mean(a["axes"], keepdim=bool(a.get("keepdims", 1))),
    "Flatten": lambda x, a: torch.flatten(x[0], a.get("axis", 1)),
    "Reshape": lambda x, a: x[0].reshape(x[1]),
    "Transpose": lambda x, a: x[0].permute(a["perm"]),
    "Concat": lambda x, a: torch.cat(x, a["axis"]),
    "Gather": _gather,
    "LayerNormalization": _normalised,
}


def compiled(path: Path, threads: int, inputs: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    """The module, compiled by inductor with weights frozen; a call of it."""
    from torch._inductor import config

    torch.set_num_threads(threads)
    config.freezing = True
    module = OnnxModule(path).eval()
    given = [torch.from_numpy(inputs[name]) for name in module.inputs]
    with torch.no_grad():
        call = torch.compile(torch.export.export(module, tuple(given)).module(), dynamic=False)
        call(*given)

    def run() -> dict[str, Any]:
        with torch.no_grad():
            found = call(*given)
        return {n: t.numpy() for n, t in zip(module.outputs, found, strict=True)}

    return run
