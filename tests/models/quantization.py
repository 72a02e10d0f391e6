"""Static quantization by ONNX Runtime's own tool: pairs of QuantizeLinear and DequantizeLinear."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]

MEAN = np.array([0.485, 0.456, 0.406], np.float32).reshape(3, 1, 1)
DEVIATION = np.array([0.229, 0.224, 0.225], np.float32).reshape(3, 1, 1)
"""Of ImageNet's pixels, which networks of images are trained on."""


def quantized(
    path_in: str | Path | onnx.ModelProto,
    path_out: str | Path,
    *,
    signed: bool = False,
    per_channel: bool = True,
    only: Iterable[str] | None = None,
    unquantized_results: Iterable[str] = (),
    calibration: Iterable[Mapping[str, NDArray[Any]]] | None = None,
) -> Path:
    """Write a model with int8 weights and uint8 activations (``signed``: int8, symmetric).

    ``only``: the operators that are quantized, all that the tool knows by default;
    ``unquantized_results``: those of them whose results stay float32; ``calibration``: inputs by
    which the ranges of activations are found, :func:`samples` by default.
    """
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static

    class Reader(CalibrationDataReader):
        def __init__(self, feeds: Iterator[Mapping[str, NDArray[Any]]]) -> None:
            self.feeds = feeds

        def get_next(self) -> dict[str, NDArray[Any]] | None:
            feed = next(self.feeds, None)
            return None if feed is None else dict(feed)

    if calibration is None:
        given = path_in if isinstance(path_in, onnx.ModelProto) else onnx.load(path_in)
        calibration = samples(given)
    with _quiet():
        quantize_static(
            path_in,
            path_out,
            Reader(iter(calibration)),
            per_channel=per_channel,
            activation_type=QuantType.QInt8 if signed else QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            op_types_to_quantize=None if only is None else list(only),
            extra_options={
                "ActivationSymmetric": signed,
                "OpTypesToExcludeOutputQuantization": list(unquantized_results),
            },
        )
    return Path(path_out)


@contextmanager
def _quiet() -> Iterator[None]:
    """The tool asks at every call for a step before it that these models do not need."""
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)
    try:
        yield
    finally:
        root.setLevel(level)


def samples(model: onnx.ModelProto, count: int = 4, seed: int = 0) -> list[Arrays]:
    """Inputs for a model: photographs where it takes images and scikit-learn has them, tokens
    within the embedding's table, otherwise standard normal numbers."""
    random = np.random.default_rng(seed)
    return [
        {given.name: _sample(model, given, k, random) for given in model.graph.input}
        for k in range(count)
    ]


def _sample(
    model: onnx.ModelProto, given: onnx.ValueInfoProto, k: int, random: np.random.Generator
) -> NDArray[Any]:
    shape = tuple(size.dim_value for size in given.type.tensor_type.shape.dim)
    dtype = onnx.helper.tensor_dtype_to_np_dtype(given.type.tensor_type.elem_type)
    if np.issubdtype(dtype, np.integer):
        if "mask" in given.name:
            return np.ones(shape, dtype)
        return random.integers(0, _vocabulary(model, given.name), shape).astype(dtype)
    if len(shape) == 4 and shape[1] == 3:
        pictures = photographs()
        if pictures:
            return normalised(cropped(pictures[k % len(pictures)], shape[2], k))[None].astype(dtype)
    return random.standard_normal(shape).astype(dtype)


def photographs() -> list[NDArray[np.uint8]]:
    """The two of scikit-learn, each (height, width, 3); none where it is not installed."""
    try:
        from sklearn.datasets import load_sample_images
    except ImportError:
        return []
    return list(load_sample_images().images)


def cropped(picture: NDArray[np.uint8], size: int, k: int = 0) -> NDArray[np.uint8]:
    """A square part of a picture, another for each k, brought to ``size`` by the nearest pixels."""
    height, width, _ = picture.shape
    edge = int(min(height, width) * (1.0, 0.8, 0.6)[k % 3])
    top, left = ((length - edge) * (k % 4) // 3 for length in (height, width))
    steps = (np.arange(size) * edge) // size
    return picture[top + steps][:, left + steps]


def normalised(picture: NDArray[np.uint8]) -> NDArray[np.float32]:
    """(3, height, width), as networks of images are fed."""
    return (picture.transpose(2, 0, 1).astype(np.float32) / 255 - MEAN) / DEVIATION


def _vocabulary(model: onnx.ModelProto, tokens: str) -> int:
    """Rows of the table that ``tokens`` are looked up in."""
    sizes = {constant.name: constant.dims for constant in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Gather" and node.input[1] == tokens and node.input[0] in sizes:
            return sizes[node.input[0]][0]
    return 2
