# pyright: basic
"""Small ONNX models whose batch, or batch and sequence, is open."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


class Net:
    """A model in the making; weights are random, from a fixed seed."""

    def __init__(self, seed: int = 0) -> None:
        self.random = np.random.default_rng(seed)
        self.nodes: list = []
        self.constants: list = []

    def constant(self, array) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def weights(self, *shape: int) -> str:
        scale = 1 / np.sqrt(np.prod(shape[1:]) if len(shape) > 2 else shape[0])
        return self.constant((self.random.normal(size=shape) * scale).astype(np.float32))

    def __call__(self, operator: str, *inputs: str, **attributes) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [name], f"n{name}", **attributes))
        return name

    def linear(self, x: str, columns: int, rows: int) -> str:
        return self("Add", self("MatMul", x, self.weights(columns, rows)), self.weights(rows))

    def save(self, path: Path, inputs: dict, outputs: dict) -> Path:
        for old, new in zip(outputs, [v[2] for v in outputs.values()], strict=True):
            self.nodes.append(helper.make_node("Identity", [new], [old]))
        values = [helper.make_tensor_value_info(n, t, s) for n, (t, s) in inputs.items()]
        results = [helper.make_tensor_value_info(n, t, s) for n, (t, s, _) in outputs.items()]
        graph = helper.make_graph(self.nodes, "net", values, results, self.constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
        model.ir_version = 8
        onnx.checker.check_model(model, full_check=True)
        onnx.save(model, path)
        return path


def mlp(path: Path) -> Path:
    """Two layers of rows."""
    net = Net(1)
    x = net.linear(net("Relu", net.linear("x", 24, 32)), 32, 10)
    return net.save(
        path,
        {"x": (FLOAT, ["batch", 24])},
        {"y": (FLOAT, ["batch", 10], net("Softmax", x, axis=1))},
    )


def cnn(path: Path) -> Path:
    """Convolutions, pooling, a residual, and a classifier."""
    net = Net(2)
    x = net("Relu", net("Conv", "image", net.weights(16, 3, 3, 3), net.weights(16), pads=[1] * 4))
    x = net("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    y = net("Conv", x, net.weights(16, 16, 3, 3), net.weights(16), pads=[1] * 4)
    x = net("Relu", net("Add", x, y))
    x = net("Flatten", net("GlobalAveragePool", x))
    x = net("Gemm", x, net.weights(16, 10), net.weights(10))
    return net.save(path, {"image": (FLOAT, ["batch", 3, 8, 8])}, {"y": (FLOAT, ["batch", 10], x)})


def lstm(path: Path) -> Path:
    """A layer in both directions over sequences of any length, with the lengths of each of them."""
    net = Net(5)
    weights = net.weights(2, 32, 6), net.weights(2, 32, 8), net.weights(2, 64)
    y, h = (f"lstm{k}" for k in range(2))
    net.nodes.append(
        helper.make_node(
            "LSTM", ["x", *weights, "lengths"], [y, h], "lstm", hidden_size=8,
            direction="bidirectional",
        )
    )  # fmt: skip
    steps = net("Reshape", net("Transpose", y, perm=[0, 2, 1, 3]), net.constant([0, 0, 16]))
    mean = net("ReduceMean", steps, axes=[0], keepdims=0)
    return net.save(
        path,
        {"x": (FLOAT, ["steps", "batch", 6]), "lengths": (TensorProto.INT32, ["batch"])},
        {
            "y": (FLOAT, ["steps", "batch", 4], net.linear(steps, 16, 4)),
            "m": (FLOAT, ["batch", 16], mean),
            "h": (FLOAT, [2, "batch", 8], h),
        },
    )


def scan(path: Path) -> Path:
    """Running sums from the end, of sequences whose batch comes first."""
    body = helper.make_graph(
        [
            helper.make_node("Add", ["state", "part"], ["sum"], "add"),
            helper.make_node("Tanh", ["sum"], ["next"], "tanh"),
            helper.make_node("Identity", ["sum"], ["result"], "copy"),
        ],
        "body",
        [helper.make_tensor_value_info(n, FLOAT, ["batch", 5]) for n in ("state", "part")],
        [helper.make_tensor_value_info(n, FLOAT, ["batch", 5]) for n in ("next", "result")],
    )
    net = Net(6)
    shape = net("Concat", net("Shape", "x", end=1), net.constant(np.array([5])), axis=0)
    start = net("ConstantOfShape", shape)
    last, sums = "last", "sums"
    net.nodes.append(
        helper.make_node(
            "Scan", [start, "x"], [last, sums], "scan", body=body, num_scan_inputs=1,
            scan_input_axes=[1], scan_input_directions=[1], scan_output_axes=[1],
            scan_output_directions=[1],
        )
    )  # fmt: skip
    return net.save(
        path,
        {"x": (FLOAT, ["batch", "steps", 5])},
        {
            "y": (FLOAT, ["batch", "steps", 5], net("Exp", sums)),
            "z": (FLOAT, ["batch", 5], last),
        },
    )


def gru(path: Path) -> Path:
    """A recurrent layer of an open number of steps, then a layer of rows."""
    net = Net(4)
    weights = net.weights(1, 24, 6), net.weights(1, 24, 8), net.weights(1, 48)
    states = net("Squeeze", net("GRU", "x", *weights, hidden_size=8), net.constant(np.array([1])))
    return net.save(
        path,
        {"x": (FLOAT, ["steps", 2, 6])},
        {"y": (FLOAT, ["steps", 2, 5], net.linear(states, 8, 5))},
    )


def bert(path: Path, longest: int = 64, hidden: int = 32, heads: int = 2, layers: int = 2) -> Path:
    """An encoder with a mask, as exporters write it: shapes are computed by the model."""
    net = Net(3)
    size = hidden // heads
    shape = net("Shape", "ids")
    batch = net("Gather", shape, net.constant(np.int64(0)), axis=0)
    length = net("Gather", shape, net.constant(np.int64(1)), axis=0)
    zero, one = (net.constant(np.array([n], np.int64)) for n in (0, 1))

    def joined(*parts) -> str:
        names = [
            net("Unsqueeze", part, zero) if isinstance(part, str) else
            net.constant(np.array([part], np.int64)) for part in parts
        ]  # fmt: skip
        return net("Concat", *names, axis=0)

    positions = net("Slice", net.weights(1, longest, hidden), zero, net("Unsqueeze", length, zero),
                    one)  # fmt: skip
    x = net("Add", net("Gather", net.weights(50, hidden), "ids", axis=0), positions)

    def normalized(x: str) -> str:
        ones, zeros = (net.constant(f(hidden, dtype=np.float32)) for f in (np.ones, np.zeros))
        return net("LayerNormalization", x, ones, zeros, axis=-1)

    x = normalized(x)
    open_mask = net("Unsqueeze", "mask", net.constant(np.array([1, 2], np.int64)))
    hides = net("Sub", net.constant(np.float32(1)), net("Cast", open_mask, to=FLOAT))
    bias = net("Mul", hides, net.constant(np.float32(-10000)))
    for _ in range(layers):
        split = [
            net("Transpose", net("Reshape", net.linear(x, hidden, hidden),
                joined(batch, length, heads, size)), perm=[0, 2, 1, 3])
            for _ in range(3)
        ]  # fmt: skip
        scores = net("MatMul", split[0], net("Transpose", split[1], perm=[0, 1, 3, 2]))
        scores = net("Div", scores, net.constant(np.float32(np.sqrt(size))))
        weights = net("Softmax", net("Add", scores, bias), axis=-1)
        context = net("Transpose", net("MatMul", weights, split[2]), perm=[0, 2, 1, 3])
        context = net("Reshape", context, joined(batch, length, hidden))
        x = normalized(net("Add", x, net.linear(context, hidden, hidden)))
        inner = net.linear(x, hidden, 2 * hidden)
        half = net("Mul", inner, net.constant(np.float32(0.5)))
        erf = net("Erf", net("Mul", inner, net.constant(np.float32(np.sqrt(0.5)))))
        inner = net("Mul", half, net("Add", erf, net.constant(np.float32(1))))
        x = normalized(net("Add", x, net.linear(inner, 2 * hidden, hidden)))
    first = net("Gather", x, net.constant(np.int64(0)), axis=1)
    pooled = net("Tanh", net.linear(first, hidden, hidden))
    mean = net("ReduceMean", x, axes=[1], keepdims=0)
    return net.save(
        path,
        {"ids": (INT64, ["batch", "sequence"]), "mask": (INT64, ["batch", "sequence"])},
        {
            "last": (FLOAT, ["batch", "sequence", hidden], x),
            "pooled": (FLOAT, ["batch", hidden], pooled),
            "mean": (FLOAT, ["batch", hidden], mean),
        },
    )
