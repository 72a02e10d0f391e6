"""Residual networks (He et al. 2016) of 18 to 152 layers, and a tiny one.

``resnet50`` has its strides in the 3x3 convolutions, as networks are trained today (also called
v1b); ``resnet50_v1``, ``resnet101_v1`` and ``resnet152_v1`` in the first 1x1 ones, as published.
"""

from __future__ import annotations

import onnx

from tests.models.building import ModelBuilder

RESIDUAL_GAIN = 0.3
"""Variance of what a block adds to its input: without normalisation each doubling would add up."""


def resnet18(
    image: int = 224, classes: int = 1000, width: int = 64, seed: int = 0
) -> onnx.ModelProto:
    return _resnet("resnet18", _basic_block, (2, 2, 2, 2), image, classes, width, seed)


def resnet50(
    image: int = 224, classes: int = 1000, width: int = 64, seed: int = 0
) -> onnx.ModelProto:
    return _resnet("resnet50", _bottleneck, (3, 4, 6, 3), image, classes, width, seed)


def resnet50_v1(
    image: int = 224, classes: int = 1000, width: int = 64, seed: int = 0
) -> onnx.ModelProto:
    return _resnet("resnet50_v1", _bottleneck_v1, (3, 4, 6, 3), image, classes, width, seed)


def resnet101_v1(
    image: int = 224, classes: int = 1000, width: int = 64, seed: int = 0
) -> onnx.ModelProto:
    return _resnet("resnet101_v1", _bottleneck_v1, (3, 4, 23, 3), image, classes, width, seed)


def resnet152_v1(
    image: int = 224, classes: int = 1000, width: int = 64, seed: int = 0
) -> onnx.ModelProto:
    return _resnet("resnet152_v1", _bottleneck_v1, (3, 8, 36, 3), image, classes, width, seed)


def tiny(image: int = 16, classes: int = 10, width: int = 16, seed: int = 0) -> onnx.ModelProto:
    """Each of a residual network's operators once or twice."""
    net = ModelBuilder("tiny", seed)
    x = net.conv(net.input("input", (1, 3, image, image)), width, 3, stride=2)
    x = net.pool(x, "Max", 3, 2, 1)
    x = _basic_block(net, x, width, 1)
    x = _basic_block(net, x, 2 * width, 2)
    return net.model(logits=net.classifier(x, classes))


def _resnet(
    name: str, block, repeats: tuple[int, ...], image: int, classes: int, width: int, seed: int
) -> onnx.ModelProto:  # fmt: skip
    net = ModelBuilder(name, seed)
    x = net.conv(net.input("input", (1, 3, image, image)), width, 7, stride=2)
    x = net.pool(x, "Max", 3, 2, 1)
    for stage, count in enumerate(repeats):
        for k in range(count):
            x = block(net, x, width << stage, 2 if stage and not k else 1)
    return net.model(logits=net.classifier(x, classes))


def _basic_block(net: ModelBuilder, x: str, channels: int, stride: int) -> str:
    y = net.conv(x, channels, 3, stride=stride)
    y = net.conv(y, channels, 3, gain=RESIDUAL_GAIN, act=None)
    return _joined(net, x, y, stride)


def _bottleneck(net: ModelBuilder, x: str, channels: int, stride: int) -> str:
    return _bottleneck_of_strides(net, x, channels, 1, stride)


def _bottleneck_v1(net: ModelBuilder, x: str, channels: int, stride: int) -> str:
    return _bottleneck_of_strides(net, x, channels, stride, 1)


def _bottleneck_of_strides(
    net: ModelBuilder, x: str, channels: int, first: int, second: int
) -> str:
    y = net.conv(x, channels, stride=first)
    y = net.conv(y, channels, 3, stride=second)
    y = net.conv(y, 4 * channels, gain=RESIDUAL_GAIN, act=None)
    return _joined(net, x, y, first * second)


def _joined(net: ModelBuilder, x: str, y: str, stride: int) -> str:
    """The block's input, projected where its size changes, and its result, added."""
    if stride != 1 or net.channels[x] != net.channels[y]:
        x = net.conv(x, net.channels[y], stride=stride, gain=1.0, act=None)
    return net.node("Relu", net.node("Add", y, x))
