"""ONNX models as graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cpembed.frontends import Fallback
from cpembed.frontends.onnx.model import read_model
from cpembed.frontends.onnx.translation import cut, translate
from cpembed.frontends.open_sizes import OpenModel

__all__ = ["open_model"]


def open_model(
    path: Path,
    outputs: Sequence[str] = (),
    fallback: Fallback = None,
    constants: Mapping[str, Any] | None = None,
) -> OpenModel:
    """Read an ONNX file, whose graph is then translated at any sizes.

    Whatever is the same in every call is computed; quantized operators become operators of floats
    with quantization around them.

    Parameters
    ----------
    path : Path
        The file.
    outputs, fallback, constants
        As for :func:`cpembed.frontends.load_model`.

    Raises
    ------
    ModelError
        For a file that is damaged, and for an output that the model does not have.
    """
    model = cut(read_model(path), outputs)
    inputs = {declared.name: declared.sizes for declared in model.body.inputs}
    return OpenModel(
        model.name, inputs, lambda shapes: translate(model, shapes, fallback, constants)
    )
