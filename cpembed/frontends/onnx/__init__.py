"""ONNX models as graphs: :func:`load`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cpembed.frontends.onnx.model import read_model
from cpembed.frontends.onnx.translation import translate
from cpembed.frontends.open_sizes import OpenModel
from cpembed.graph.graph import Graph

__all__ = ["load", "open_model"]


def open_model(path: Path, constants: Mapping[str, Any] | None = None) -> OpenModel:
    """Read an ONNX file, whose graph is then translated at any sizes.

    Parameters
    ----------
    path : Path
        The file.
    constants : mapping, optional
        Values of inputs that are the same in every call, as for :func:`load`.

    Raises
    ------
    ModelError
        For a file that is damaged.
    """
    model = read_model(path)
    inputs = {declared.name: declared.sizes for declared in model.body.inputs}
    return OpenModel(model.name, inputs, lambda shapes: translate(model, shapes, constants))


def load(
    path: Path | str,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    constants: Mapping[str, Any] | None = None,
) -> Graph:
    """Read the network in an ONNX file, written in the kinds of :mod:`cpembed.graph.kinds`.

    Whatever is the same in every call is computed; quantized operators become operators of floats
    with quantization around them.

    Parameters
    ----------
    path : Path or str
        The file.
    shapes : mapping, optional
        Shapes of inputs whose sizes the model leaves open, by the inputs' names; ``NAME:axis``
        stands for one axis.
    constants : mapping, optional
        Values of inputs that are the same in every call: numbers, nested lists, arrays, or paths
        of ``.npy`` files.

    Raises
    ------
    ModelError
        In one line: for a file that is damaged, for open sizes, and for unknown operators.
    """
    return translate(read_model(Path(path)), shapes or {}, constants)
