"""Writing ONNX models with random weights: nodes by function calls."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

OPSET = 17
"""The first operator set with LayerNormalization."""
IR_VERSION = 8
"""The oldest that has this operator set, so that every runtime reads the files."""

Pads = int | tuple[int, int, int, int]


class ModelBuilder:
    """Collects nodes and weights; every method that adds a node returns the name of its result.

    Weights are He-initialised: normally distributed, of variance ``gain`` / (elements summed), so
    that activations keep their magnitude through ReLUs; biases take the place of batch
    normalisation's shift.
    """

    def __init__(self, name: str, seed: int = 0) -> None:
        self.name = name
        self.random = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.channels: dict[str, int] = {}
        """Of the tensors that convolutions read and write: their second axis."""

    def input(self, name: str, shape: Sequence[int], element: int = TensorProto.FLOAT) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, element, list(shape)))
        if len(shape) == 4:
            self.channels[name] = shape[1]
        return name

    def constant(self, array: NDArray[Any], name: str = "") -> str:
        name = name or f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array, order="C"), name))
        return name

    def scalar(self, value: float) -> str:
        return self.constant(np.asarray(value, np.float32))

    def shape(self, *sizes: int) -> str:
        return self.constant(np.asarray(sizes, np.int64))

    def node(self, kind: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        """A node; of several outputs the first is returned, the k-th has ``_k`` appended."""
        name = f"{kind}_{len(self.nodes)}"
        names = [name, *(f"{name}_{k}" for k in range(1, outputs))]
        self.nodes.append(helper.make_node(kind, inputs, names, name=name, **attributes))
        if inputs and inputs[0] in self.channels:
            self.channels[name] = self.channels[inputs[0]]
        return name

    def weights(self, *shape: int, summed: int, gain: float = 2.0) -> NDArray[np.float32]:
        drawn = self.random.standard_normal(shape, np.float32)
        return drawn * np.float32(math.sqrt(gain / summed))

    def bias(self, channels: int) -> NDArray[np.float32]:
        return self.random.standard_normal(channels, np.float32) * np.float32(0.1)

    def conv(
        self,
        x: str,
        channels: int,
        kernel: int | tuple[int, int] = 1,
        *,
        stride: int = 1,
        pads: Pads | None = None,
        groups: int = 1,
        gain: float = 2.0,
        act: str | None = "relu",
    ) -> str:
        """A convolution with bias, and its activation; ``pads`` keep the size by default."""
        height, width = (kernel, kernel) if isinstance(kernel, int) else kernel
        if pads is None:
            pads = (height // 2, width // 2, height // 2, width // 2)
        elif isinstance(pads, int):
            pads = (pads,) * 4
        depth = self.channels[x] // groups
        weights = self.weights(channels, depth, height, width, summed=depth * height * width,
                               gain=gain)  # fmt: skip
        y = self.node(
            "Conv", x, self.constant(weights), self.constant(self.bias(channels)),
            kernel_shape=[height, width], strides=[stride, stride], pads=list(pads), group=groups,
        )  # fmt: skip
        self.channels[y] = channels
        return self.activation(y, act)

    def depthwise(self, x: str, kernel: int = 3, *, act: str | None = "relu", **more: Any) -> str:
        channels = self.channels[x]
        return self.conv(x, channels, kernel, groups=channels, act=act, **more)

    def activation(self, x: str, act: str | None) -> str:
        if act is None:
            return x
        if act == "relu6":
            return self.node("Clip", x, self.scalar(0.0), self.scalar(6.0))
        return self.node(act.capitalize(), x)

    def pool(self, x: str, kind: str, kernel: int, stride: int, pads: int = 0, **more: Any) -> str:
        """``kind``: Max or Average."""
        return self.node(
            f"{kind}Pool", x, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[pads] * 4,
            **more,
        )  # fmt: skip

    def concat(self, *parts: str) -> str:
        """Along the channels."""
        y = self.node("Concat", *parts, axis=1)
        self.channels[y] = sum(self.channels[part] for part in parts)
        return y

    def classifier(self, x: str, classes: int) -> str:
        """Global average pooling and a fully connected layer."""
        depth = self.channels[x]
        flat = self.node("Flatten", self.node("GlobalAveragePool", x), axis=1)
        weights = self.weights(classes, depth, summed=depth, gain=1.0)
        return self.node(
            "Gemm", flat, self.constant(weights), self.constant(self.bias(classes)), transB=1
        )

    def linear(self, x: str, depth: int, width: int, *, gain: float = 1.0) -> str:
        """``x @ weights + bias`` along the last axis, as two nodes."""
        weights = self.constant(self.weights(depth, width, summed=depth, gain=gain))
        return self.node("Add", self.node("MatMul", x, weights), self.constant(self.bias(width)))

    def model(self, **outputs: str) -> onnx.ModelProto:
        """The model, checked and with the shapes of all tensors; ``outputs``: what each output's
        name stands for."""
        for name, source in outputs.items():
            self.nodes.append(helper.make_node("Identity", [source], [name], name=name))
        results = [helper.make_empty_tensor_value_info(name) for name in outputs]
        graph = helper.make_graph(self.nodes, self.name, self.inputs, results, self.constants)
        _without_identities(graph, outputs)
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name="cpembed",
        )
        model = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
        onnx.checker.check_model(model)
        return model


def _without_identities(graph: onnx.GraphProto, outputs: dict[str, str]) -> None:
    """Let the nodes that write the outputs write them under the outputs' names."""
    renamed = {source: name for name, source in outputs.items()}
    kept = [node for node in graph.node if node.name not in outputs]
    for node in kept:
        node.input[:] = [renamed.get(name, name) for name in node.input]
        node.output[:] = [renamed.get(name, name) for name in node.output]
    del graph.node[:]
    graph.node.extend(kept)
