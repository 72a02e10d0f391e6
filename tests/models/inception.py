"""Inception-v3 (Szegedy et al. 2016) and Inception-BN (Ioffe and Szegedy 2015), without their
auxiliary classifiers."""

from __future__ import annotations

import onnx

from tests.models.building import ModelBuilder


def inception_v3(
    image: int = 299, classes: int = 1000, width: int = 32, seed: int = 0
) -> onnx.ModelProto:
    """``width``: channels of the stem's first convolution; the others in proportion."""
    net = ModelBuilder("inception_v3", seed)

    def conv(x: str, channels: int, kernel: int | tuple[int, int] = 1, stride: int = 1,
             pads: int | None = None) -> str:  # fmt: skip
        return net.conv(x, max(1, channels * width // 32), kernel, stride=stride, pads=pads)

    def averaged(x: str, channels: int) -> str:
        return conv(net.pool(x, "Average", 3, 1, 1, count_include_pad=1), channels)

    def chain(x: str, channels: int, *kernels: int) -> str:
        """Convolutions of a row or a column, by turns."""
        for k, size in enumerate(kernels):
            x = conv(x, channels, (size, 1) if k % 2 == 0 else (1, size))
        return x

    def five(x: str, pooled: int) -> str:
        """35 x 35 in the original size."""
        double = conv(conv(conv(x, 64), 96, 3), 96, 3)
        return net.concat(conv(x, 64), conv(conv(x, 48), 64, 5), double, averaged(x, pooled))

    def seven(x: str, middle: int) -> str:
        """17 x 17 in the original size."""
        single = conv(conv(conv(x, middle), middle, (1, 7)), 192, (7, 1))
        double = conv(chain(conv(x, middle), middle, 7, 7, 7), 192, (1, 7))
        return net.concat(conv(x, 192), single, double, averaged(x, 192))

    def three(x: str) -> str:
        """8 x 8 in the original size."""
        single = conv(x, 384)
        double = conv(conv(x, 448), 384, 3)
        split = [conv(y, 384, kernel) for y in (single, double) for kernel in ((1, 3), (3, 1))]
        return net.concat(conv(x, 320), *split, averaged(x, 192))

    x = conv(net.input("input", (1, 3, image, image)), 32, 3, 2, 0)
    x = conv(conv(x, 32, 3, 1, 0), 64, 3)
    x = conv(conv(net.pool(x, "Max", 3, 2), 80), 192, 3, 1, 0)
    x = net.pool(x, "Max", 3, 2)
    for pooled in (32, 64, 64):
        x = five(x, pooled)
    halved = conv(conv(conv(x, 64), 96, 3), 96, 3, 2, 0)
    x = net.concat(conv(x, 384, 3, 2, 0), halved, net.pool(x, "Max", 3, 2))
    for middle in (128, 160, 160, 192):
        x = seven(x, middle)
    long = conv(conv(conv(conv(x, 192), 192, (1, 7)), 192, (7, 1)), 192, 3, 2, 0)
    x = net.concat(conv(conv(x, 192), 320, 3, 2, 0), long, net.pool(x, "Max", 3, 2))
    x = three(three(x))
    return net.model(logits=net.classifier(x, classes))


INCEPTION_BN = (
    (64, 64, 64, 64, 96, 32, "Average"), (64, 64, 96, 64, 96, 64, "Average"), (128, 160, 64, 96),
    (224, 64, 96, 96, 128, 128, "Average"), (192, 96, 128, 96, 128, 128, "Average"),
    (160, 128, 160, 128, 160, 128, "Average"), (96, 128, 192, 160, 192, 128, "Average"),
    (128, 192, 192, 256), (352, 192, 320, 160, 224, 128, "Average"),
    (352, 192, 320, 192, 224, 128, "Max"),
)  # fmt: skip
"""Channels of each block: 1x1; reduced and 3x3; reduced and two 3x3; behind the pooling. A block of
four halves the image: reduced and 3x3; reduced and two 3x3; the pooled input."""


def inception_bn(
    image: int = 224, classes: int = 1000, width: int = 64, seed: int = 0
) -> onnx.ModelProto:
    """``width``: channels of the stem's first convolution; the others in proportion.

    The stem's pools are not padded, as in MXNet's network of this name: 55 and 27 pixels follow.
    """
    net = ModelBuilder("inception_bn", seed)

    def conv(x: str, channels: int, kernel: int = 1, stride: int = 1) -> str:
        return net.conv(x, max(1, channels * width // 64), kernel, stride=stride)

    def halved(x: str, single: int, tripled: int, reduced: int, double: int) -> str:
        left = conv(conv(x, single), tripled, 3, 2)
        right = conv(conv(conv(x, reduced), double, 3), double, 3, 2)
        return net.concat(left, right, net.pool(x, "Max", 3, 2, 1))

    def block(x: str, one: int, single: int, tripled: int, reduced: int, double: int,
              pooled: int, kind: str) -> str:  # fmt: skip
        more = {"count_include_pad": 1} if kind == "Average" else {}
        return net.concat(
            conv(x, one),
            conv(conv(x, single), tripled, 3),
            conv(conv(conv(x, reduced), double, 3), double, 3),
            conv(net.pool(x, kind, 3, 1, 1, **more), pooled),
        )

    x = conv(net.input("input", (1, 3, image, image)), 64, 7, 2)
    x = conv(conv(net.pool(x, "Max", 3, 2), 64), 192, 3)
    x = net.pool(x, "Max", 3, 2)
    for sizes in INCEPTION_BN:
        x = halved(x, *sizes) if len(sizes) == 4 else block(x, *sizes)
    return net.model(logits=net.classifier(x, classes))
