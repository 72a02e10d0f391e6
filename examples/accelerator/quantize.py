"""Quantize a model of floats: ``python quantize.py resnet18.onnx resnet18_int8.onnx``.

Weights and activations become int8 with one symmetric scale a tensor. Ranges come from random
inputs; for results that count, pass your own images to the reader instead.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import onnx
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static


class RandomInputs(CalibrationDataReader):
    """Four batches of random inputs of the model."""

    def __init__(self, path: str) -> None:
        random = np.random.default_rng(0)
        inputs = onnx.load(path).graph.input
        shapes = {i.name: [d.dim_value or 1 for d in i.type.tensor_type.shape.dim] for i in inputs}
        self.batches: list[dict[str, Any]] = [
            {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
            for _ in range(4)
        ]

    def get_next(self) -> dict[str, Any] | None:
        return self.batches.pop() if self.batches else None


if __name__ == "__main__":
    source, target = sys.argv[1:]
    quantize_static(
        source,
        target,
        RandomInputs(source),
        per_channel=False,
        activation_type=QuantType.QInt8,
        weight_type=QuantType.QInt8,
        extra_options={"ActivationSymmetric": True},
    )
