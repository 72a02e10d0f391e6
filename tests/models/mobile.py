"""Networks of depthwise and grouped convolutions: MobileNet-V1 (Howard et al. 2017), MobileNet-V2
(Sandler et al. 2018), EfficientNet-Lite0 (Tan and Le 2019, without squeeze-and-excitation) and
ShuffleNet-V1 of three groups (Zhang et al. 2018)."""

from __future__ import annotations

import onnx

from tests.models.building import ModelBuilder

MOBILENET_V1 = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5,
                (1024, 2), (1024, 1))  # fmt: skip
"""Channels and stride of each depthwise separable convolution, the stem having 32 channels."""
MOBILENET_V2 = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1),
                (6, 160, 3, 2), (6, 320, 1, 1))  # fmt: skip
"""Expansion, channels, repeats, stride."""
EFFICIENTNET = ((1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3),
                (6, 112, 3, 1, 5), (6, 192, 4, 2, 5), (6, 320, 1, 1, 3))  # fmt: skip
"""The same, and the size of the depthwise kernel."""
RESIDUAL_GAIN = 0.5


def mobilenet_v1(
    image: int = 224, classes: int = 1000, width: int = 32, seed: int = 0
) -> onnx.ModelProto:
    net = ModelBuilder("mobilenet_v1", seed)
    x = net.conv(net.input("input", (1, 3, image, image)), width, 3, stride=2)
    for channels, stride in MOBILENET_V1:
        x = net.conv(net.depthwise(x, stride=stride), channels * width // 32)
    return net.model(logits=net.classifier(x, classes))


def mobilenet_v2(
    image: int = 224, classes: int = 1000, width: int = 32, seed: int = 0
) -> onnx.ModelProto:
    net = ModelBuilder("mobilenet_v2", seed)
    x = net.conv(net.input("input", (1, 3, image, image)), width, 3, stride=2, act="relu6")
    for expansion, channels, repeats, stride in MOBILENET_V2:
        for k in range(repeats):
            x = _inverted(net, x, expansion, channels * width // 32, 1 if k else stride, 3)
    x = net.conv(x, 1280 * width // 32, act="relu6")
    return net.model(logits=net.classifier(x, classes))


def efficientnet_lite0(
    image: int = 224, classes: int = 1000, width: int = 32, seed: int = 0
) -> onnx.ModelProto:
    """Padded as TensorFlow pads: where an odd row is left over, it is at the end."""
    net = ModelBuilder("efficientnet_lite0", seed)
    x = net.input("input", (1, 3, image, image))
    x = net.conv(x, width, 3, stride=2, pads=_same(image, 3, 2), act="relu6")
    size = -(-image // 2)
    for expansion, channels, repeats, first, kernel in EFFICIENTNET:
        for k in range(repeats):
            stride = 1 if k else first
            pads = _same(size, kernel, stride)
            x = _inverted(net, x, expansion, channels * width // 32, stride, kernel, pads)
            size = -(-size // stride)
    x = net.conv(x, 1280 * width // 32, act="relu6")
    return net.model(logits=net.classifier(x, classes))


def shufflenet_v1(
    image: int = 224, classes: int = 1000, width: int = 240, seed: int = 0, groups: int = 3
) -> onnx.ModelProto:
    """``width``: channels of the first stage, a multiple of 60 for three groups."""
    net = ModelBuilder("shufflenet_v1", seed)
    x = net.conv(net.input("input", (1, 3, image, image)), 24 * width // 240, 3, stride=2)
    x = net.pool(x, "Max", 3, 2, 1)
    size = -(-image // 4)
    for stage, repeats in enumerate((4, 8, 4)):
        size = -(-size // 2)
        for k in range(repeats):
            grouped = 1 if stage == k == 0 else groups
            x = _shuffle_unit(net, x, width << stage, size, k == 0, (grouped, groups))
    return net.model(logits=net.classifier(x, classes))


def _inverted(
    net: ModelBuilder, x: str, expansion: int, channels: int, stride: int, kernel: int,
    pads: tuple[int, int, int, int] | None = None,
) -> str:  # fmt: skip
    """An inverted residual: expanded, depthwise, projected without activation."""
    y = net.conv(x, net.channels[x] * expansion, act="relu6") if expansion > 1 else x
    y = net.depthwise(y, kernel, stride=stride, pads=pads, act="relu6")
    joined = stride == 1 and net.channels[x] == channels
    y = net.conv(y, channels, gain=RESIDUAL_GAIN if joined else 1.0, act=None)
    return net.node("Add", y, x) if joined else y


def _same(size: int, kernel: int, stride: int) -> tuple[int, int, int, int]:
    """TensorFlow's padding of a square image."""
    total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
    before, after = total // 2, total - total // 2
    return before, before, after, after


def _shuffle_unit(
    net: ModelBuilder, x: str, channels: int, size: int, halving: bool, groups: tuple[int, int]
) -> str:  # fmt: skip
    """``size``: of the result; ``groups``: of the first and the last convolution."""
    kept = channels - net.channels[x] if halving else channels
    middle = channels // 4
    stride = 2 if halving else 1
    y = net.conv(x, middle, groups=groups[0])
    if groups[0] > 1:
        y = _shuffled(net, y, groups[0], size * stride)
    y = net.depthwise(y, stride=stride, act=None)
    y = net.conv(y, kept, groups=groups[1], gain=RESIDUAL_GAIN, act=None)
    if halving:
        return net.node("Relu", net.concat(net.pool(x, "Average", 3, 2, 1), y))
    return net.node("Relu", net.node("Add", x, y))


def _shuffled(net: ModelBuilder, x: str, groups: int, size: int) -> str:
    channels = net.channels[x]
    y = net.node("Reshape", x, net.shape(1, groups, channels // groups, size, size))
    y = net.node("Transpose", y, perm=[0, 2, 1, 3, 4])
    y = net.node("Reshape", y, net.shape(1, channels, size, size))
    net.channels[y] = channels
    return y
