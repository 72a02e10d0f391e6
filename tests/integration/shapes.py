"""Small models that nobody tuned anything for: shapes, layouts and names that occur elsewhere."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto

from tests.models.building import ModelBuilder

Outputs = dict[str, str]


def unet(b: ModelBuilder) -> Outputs:
    x = b.input("x", (1, 3, 16, 16))
    a = b.conv(x, 16, 3)
    c = b.conv(b.pool(a, "Max", 2, 2), 32, 3)
    d = b.conv(b.pool(c, "Max", 2, 2), 32, 3)
    weights = b.constant(b.weights(32, 32, 2, 2, summed=128))
    up = b.node("ConvTranspose", d, weights, strides=[2, 2])
    e = b.conv(b.concat(up, c), 16, 3)
    scales = b.constant(np.array([1, 1, 2, 2], np.float32))
    up = b.node("Resize", e, "", scales, mode="nearest", nearest_mode="floor",
                coordinate_transformation_mode="asymmetric")  # fmt: skip
    b.channels[up] = 16
    return {"y": b.conv(b.concat(up, a), 2, 1, act=None)}


def squeeze_and_excitation(b: ModelBuilder) -> Outputs:
    a = b.conv(b.input("x", (1, 3, 10, 10)), 24, 3)
    scale = b.conv(b.conv(b.node("GlobalAveragePool", a), 6), 24, act=None)
    scaled = b.node("Mul", a, b.node("Sigmoid", scale))
    return {"y": b.classifier(b.node("HardSwish", b.conv(scaled, 16, act=None)), 7)}


def audio(b: ModelBuilder) -> Outputs:
    """One-dimensional convolutions; one adds what it reads."""

    def conv(x: str, depth: int, channels: int, k: int, **more: int) -> str:
        pad, groups = more.get("pad", 0), more.get("groups", 1)
        weights = b.constant(b.weights(channels, depth // groups, k, summed=depth * k // groups))
        y = b.node("Conv", x, weights, b.constant(b.bias(channels)), kernel_shape=[k],
                   strides=[more.get("stride", 1)], pads=[pad, pad], group=groups,
                   dilations=[more.get("dilation", 1)])  # fmt: skip
        return b.node("Relu", y)

    a = conv(b.input("wave", (1, 1, 160)), 1, 16, 9, stride=2, pad=4)
    c = conv(a, 16, 24, 5, stride=2, pad=2)
    d = b.node("Add", c, conv(c, 24, 24, 3, pad=2, dilation=2))
    e = conv(conv(d, 24, 24, 3, pad=1, groups=24), 24, 13, 1)
    return {"y": b.node("ReduceMean", e, axes=[2], keepdims=0)}


def volume(b: ModelBuilder) -> Outputs:
    x = b.input("x", (1, 2, 4, 6, 6))
    weights = b.constant(b.weights(16, 2, 3, 3, 3, summed=54))
    a = b.node("Relu", b.node("Conv", x, weights, kernel_shape=[3] * 3, pads=[1] * 6))
    m = b.node("MaxPool", a, kernel_shape=[2] * 3, strides=[1] * 3)
    weights = b.constant(b.weights(5, 16, 1, 1, 1, summed=16))
    return {"y": b.node("Conv", m, weights, kernel_shape=[1] * 3)}


def odd_groups(b: ModelBuilder) -> Outputs:
    a = b.conv(b.input("x", (1, 9, 9, 9)), 15, 3, groups=3)
    c = b.conv(b.conv(a, 21, 3, groups=3), 14, groups=7)
    return {"y": b.conv(b.depthwise(c, stride=2), 10, 3, groups=2, act=None)}


def primes(b: ModelBuilder) -> Outputs:
    a = b.conv(b.conv(b.input("x", (1, 3, 7, 7)), 7, 3), 13, 3)
    s = b.node("Relu", b.node("Add", a, b.conv(b.conv(a, 37), 13, 3, act=None)))
    b.channels[s] = 13
    return {"y": b.classifier(b.conv(s, 11, 3, stride=2), 3)}


def asymmetric(b: ModelBuilder) -> Outputs:
    a = b.conv(b.input("x", (1, 3, 11, 13)), 16, 3, pads=(0, 0, 1, 1), stride=2)
    c = b.conv(b.conv(a, 16, 3, pads=(2, 0, 0, 1)), 13, (1, 5), pads=(0, 3, 0, 1))
    return {"y": b.conv(c, 16, (3, 1))}


def several_paddings(b: ModelBuilder) -> Outputs:
    a = b.conv(b.input("x", (1, 8, 9, 9)), 16)
    y = [b.conv(a, 16, pads=0), b.conv(a, 16, 3), b.conv(a, 16, 5), b.conv(a, 16, (1, 7))]
    return {"y": b.concat(*y, b.pool(a, "Max", 3, 1, 1), b.pool(a, "Average", 3, 1, 1))}


def batch(b: ModelBuilder) -> Outputs:
    c = b.conv(b.conv(b.input("x", (3, 3, 9, 9)), 16, 3), 32, 3, stride=2)
    s = b.node("Add", b.conv(b.depthwise(c), 32, act=None), c)
    return {"y": b.classifier(s, 5)}


def read_outputs(b: ModelBuilder) -> Outputs:
    """Two inputs, outputs that other operators read, one that is an input."""
    a = b.conv(b.input("left/image:0", (1, 3, 8, 8)), 16, 3)
    c = b.conv(b.input("right/image:0", (1, 4, 8, 8)), 16, 3)
    s = b.node("Add", a, c)
    b.channels[s] = 16
    return {"a/out:0": a, "a out 0": s, "späť": b.conv(s, 8, 3), "same": "left/image:0"}


def images_and_matrices(b: ModelBuilder) -> Outputs:
    """Tensors that convolutions read as images and products as matrices."""
    a = b.conv(b.input("x", (1, 16, 4, 4)), 16, 3)
    rows = b.node("Transpose", b.node("Reshape", a, b.shape(1, 16, 16)), perm=[0, 2, 1])
    columns = b.node("Transpose", b.linear(rows, 16, 16), perm=[0, 2, 1])
    s = b.node("Add", a, b.node("Reshape", columns, b.shape(1, 16, 4, 4)))
    b.channels[s] = 16
    product = b.node("MatMul", s, b.constant(b.weights(4, 4, summed=4)))
    y = b.node("Concat", product, b.node("Softmax", s, axis=1), b.conv(s, 8), axis=1)
    return {"y": y, "z": b.node("ReduceMax", s, axes=[1], keepdims=0)}


def batched(b: ModelBuilder) -> Outputs:
    """Products of what varies; rows of 2, 4 and 6 elements."""
    x, y = b.input("x", (2, 3, 5, 7)), b.input("y", (2, 3, 7, 4))
    constant = b.constant(b.weights(3, 7, 2, summed=7))
    z = b.input("z", (7, 6))
    return {name: b.node("MatMul", x, other) for name, other in zip("abc", (y, z, constant))}  # noqa: B905


def normalized(b: ModelBuilder) -> Outputs:
    """What is broadcast to an image has its channels alone."""
    a = b.conv(b.input("x", (1, 3, 8, 8)), 16, 3, act=None)
    ones = b.constant(np.ones(16, np.float32))
    n = b.node("InstanceNormalization", a, ones, b.constant(b.bias(16)))
    b.channels[n] = 16
    return {"y": b.conv(n, 8, 3)}


def embedding(b: ModelBuilder) -> Outputs:
    tokens = b.input("tokens", (1, 6), TensorProto.INT64)
    e = b.node("Gather", b.constant(b.weights(20, 16, summed=4)), tokens)
    weights = b.constant(b.weights(24, 16, 3, summed=48))
    c = b.node("Conv", b.node("Transpose", e, perm=[0, 2, 1]), weights, pads=[1, 1])
    return {"y": b.node("ReduceMax", c, axes=[2], keepdims=0)}


def many_parts(b: ModelBuilder) -> Outputs:
    """A concatenation of more images than there could be combinations of layouts for."""
    parts = [b.conv(b.input("x", (1, 4, 5, 5)), 4, 3)]
    for _ in range(20):
        parts.append(b.conv(parts[-1], 4, 3))
    return {"y": b.concat(*parts)}


SHAPES: dict[str, Callable[[ModelBuilder], Outputs]] = {
    function.__name__: function
    for function in (
        unet,
        squeeze_and_excitation,
        audio,
        volume,
        odd_groups,
        primes,
        asymmetric,
        several_paddings,
        batch,
        read_outputs,
        images_and_matrices,
        batched,
        normalized,
        embedding,
        many_parts,
    )
}


def made(name: str) -> onnx.ModelProto:
    builder = ModelBuilder(name)
    outputs = SHAPES[name](builder)
    taken = set(outputs.values()) & {given.name for given in builder.inputs}
    copies = {x: builder.node("Identity", x) for x in taken}
    return builder.model(**{name: copies.get(x, x) for name, x in outputs.items()})
