# pyright: basic
"""The networks that are counted.

They are those of AMOS's table 2, in the original papers' form and in that of AMOS's published code,
and others. Counts depend on sizes of the layers only; weights are random.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import onnx

from tests.models.building import ModelBuilder
from tests.models.mobile import MOBILENET_V1
from tests.models.quantization import quantized
from tests.models.registry import MODELS, options


@dataclass(frozen=True)
class Paper:
    """A row of table 2 of AMOS (Zheng et al., ISCA 2022).

    It has the number of all operators, of those that XLA maps to a Tensor Core, and of those that
    AMOS maps.
    """

    operators: int
    xla: int
    amos: int


@dataclass(frozen=True)
class Network:
    """A network, and the model of the registry as which it is quantized (``like``)."""

    title: str
    build: Callable[[], onnx.ModelProto]
    like: str
    paper: Paper | None = None


def separable_stem(image: int = 224, classes: int = 1000, width: int = 32) -> onnx.ModelProto:
    """Return MobileNet-V1 as AMOS's code has it.

    The first convolution is depthwise separable like the 13 others, from 3 channels to 32.

    Parameters
    ----------
    image : int
        Rows and columns of the input.
    classes : int
        Number of classes.
    width : int
        Number of channels for 32 of the original.
    """
    net = ModelBuilder("mobilenet_v1_amos")
    x = net.input("input", (1, 3, image, image))
    for channels, stride in ((32, 2), *MOBILENET_V1):
        x = net.conv(net.depthwise(x, stride=stride), channels * width // 32)
    return net.model(logits=net.classifier(x, classes))


def unprojected(
    sequence: int = 128, layers: int = 12, width: int = 768, heads: int = 12
) -> onnx.ModelProto:
    """Return BERT as AMOS's code has it.

    The encoder works on embedded tokens, with ReLU, and its attention has no output projection;
    there is no embedding and no pooler.

    Parameters
    ----------
    sequence : int
        Number of tokens.
    layers : int
        Number of layers.
    width : int
        Size of a token's vector.
    heads : int
        Number of heads of the attention.
    """
    net = ModelBuilder("bert_base_amos")
    x = net.input("embedded", (1, sequence, width))
    depth = width // heads
    split = net.shape(1, sequence, heads, depth)
    for _ in range(layers):
        query, key, value = (
            net.node("Transpose", net.node("Reshape", net.linear(x, width, width), split), perm=p)
            for p in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
        )
        scores = net.node("Div", net.node("MatMul", query, key), net.scalar(math.sqrt(depth)))
        y = net.node("MatMul", net.node("Softmax", scores, axis=-1), value)
        y = net.node("Transpose", y, perm=[0, 2, 1, 3])
        x = _sum_normalised(net, net.node("Reshape", y, net.shape(1, sequence, width)), x, width)
        y = net.node("Relu", net.linear(x, width, 4 * width))
        x = _sum_normalised(net, net.linear(y, 4 * width, width), x, width)
    return net.model(hidden=x)


def _sum_normalised(net: ModelBuilder, x: str, y: str, width: int) -> str:
    scale, shift = net.constant(1 + net.bias(width)), net.constant(net.bias(width))
    return net.node("LayerNormalization", net.node("Add", x, y), scale, shift, axis=-1)


SHUFFLENET, RESNET_50, MOBILENET, BERT, MI_LSTM = (
    Paper(70, 6, 50),
    Paper(71, 15, 54),
    Paper(30, 7, 29),
    Paper(204, 42, 84),
    Paper(11, 0, 9),
)

NETWORKS = {
    "shufflenet_v1": Network(
        "ShuffleNet-V1, 3 groups", MODELS["shufflenet_v1"], "shufflenet_v1", SHUFFLENET
    ),
    "resnet50": Network("ResNet-50", MODELS["resnet50"], "resnet50", RESNET_50),
    "mobilenet_v1": Network("MobileNet-V1", MODELS["mobilenet_v1"], "mobilenet_v1", MOBILENET),
    "mobilenet_v1_amos": Network(
        "MobileNet-V1, AMOS's form", separable_stem, "mobilenet_v1", MOBILENET
    ),
    "bert_base": Network("BERT-base, 128 tokens", MODELS["bert_base"], "bert_base", BERT),
    "bert_base_amos": Network("BERT-base, AMOS's form", unprojected, "bert_base", BERT),
    "milstm": Network("MI-LSTM, a step", MODELS["milstm"], "milstm", MI_LSTM),
    "resnet18": Network("ResNet-18", MODELS["resnet18"], "resnet18"),
    "mobilenet_v2": Network("MobileNet-V2", MODELS["mobilenet_v2"], "mobilenet_v2"),
    "inception_v3": Network("Inception-v3", MODELS["inception_v3"], "inception_v3"),
    "efficientnet_lite0": Network(
        "EfficientNet-Lite0", MODELS["efficientnet_lite0"], "efficientnet_lite0"
    ),
}


def files(name: str, folder: Path) -> tuple[Path, Path]:
    """Return the float32 model and the quantized one in a folder, written if missing."""
    network = NETWORKS[name]
    float32, int8 = folder / f"{name}.onnx", folder / f"{name}_int8.onnx"
    if not float32.exists():
        onnx.save(network.build(), float32)
    if not int8.exists():
        quantized(float32, int8, **options(network.like))
    return float32, int8
