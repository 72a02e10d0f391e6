"""Every builder by its name, with sizes for quick tests.

``MODELS["resnet18"]()`` is a model; ``python -m tests.models resnet18 --int8 -o FILE`` writes one.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx

from tests.models.inception import inception_bn, inception_v3
from tests.models.language import bert_base, milstm, transformer
from tests.models.mobile import efficientnet_lite0, mobilenet_v1, mobilenet_v2, shufflenet_v1
from tests.models.quantization import quantized, samples
from tests.models.residual import (
    resnet18,
    resnet50,
    resnet50_v1,
    resnet101_v1,
    resnet152_v1,
    tiny,
)

__all__ = ["MODELS", "TINY", "quantized", "samples", "write", "write_int8"]

MODELS: dict[str, Callable[..., onnx.ModelProto]] = {
    "resnet18": resnet18,
    "resnet50": resnet50,
    "resnet50_v1": resnet50_v1,
    "resnet101_v1": resnet101_v1,
    "resnet152_v1": resnet152_v1,
    "mobilenet_v1": mobilenet_v1,
    "mobilenet_v2": mobilenet_v2,
    "efficientnet_lite0": efficientnet_lite0,
    "shufflenet_v1": shufflenet_v1,
    "inception_bn": inception_bn,
    "inception_v3": inception_v3,
    "bert_base": bert_base,
    "transformer": transformer,
    "milstm": milstm,
    "tiny": tiny,
}

TINY: dict[str, dict[str, int]] = {
    "resnet18": {"image": 32, "classes": 10, "width": 8},
    "resnet50": {"image": 32, "classes": 10, "width": 4},
    "resnet50_v1": {"image": 32, "classes": 10, "width": 4},
    "resnet101_v1": {"image": 32, "classes": 10, "width": 4},
    "resnet152_v1": {"image": 32, "classes": 10, "width": 4},
    "mobilenet_v1": {"image": 32, "classes": 10, "width": 8},
    "mobilenet_v2": {"image": 32, "classes": 10, "width": 8},
    "efficientnet_lite0": {"image": 32, "classes": 10, "width": 8},
    "shufflenet_v1": {"image": 32, "classes": 10, "width": 60},
    "inception_bn": {"image": 64, "classes": 10, "width": 4},
    "inception_v3": {"image": 75, "classes": 10, "width": 4},
    "bert_base": {"sequence": 8, "layers": 2, "width": 32, "heads": 4, "vocabulary": 50},
    "transformer": {"sequence": 8, "layers": 1, "width": 32, "heads": 2, "vocabulary": 50},
    "milstm": {"features": 16, "width": 32},
    "tiny": {},
}
"""Sizes for quick tests: every operator of the model, a few thousand weights."""

PRODUCTS_ONLY = ("bert_base", "transformer", "milstm")
"""Models in which the products alone are quantized, and their sums stay float32: what is between
them loses too much in eight bits."""


def write(name: str, path: str | Path, **sizes: Any) -> Path:
    """Write a model of :data:`MODELS`."""
    onnx.save(MODELS[name](**sizes), path)
    return Path(path)


def write_int8(name: str, path: str | Path, *, signed: bool = False, **sizes: Any) -> Path:
    """Write a model of :data:`MODELS` and quantize it; the float32 model is not kept."""
    whole = Path(path).with_suffix(".float.onnx")
    try:
        return quantized(write(name, whole, **sizes), path, signed=signed, **options(name))
    finally:
        whole.unlink(missing_ok=True)


def options(name: str) -> dict[str, Any]:
    """How a model of :data:`MODELS` is quantized."""
    if name in PRODUCTS_ONLY:
        return {"only": ("MatMul",), "unquantized_results": ("MatMul",)}
    return {}
