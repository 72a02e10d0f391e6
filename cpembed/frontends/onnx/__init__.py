"""ONNX models as graphs: :func:`load`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cpembed.frontends import Fallback
from cpembed.frontends.onnx.model import read_model
from cpembed.frontends.onnx.translation import cut, translate
from cpembed.frontends.open_sizes import OpenModel
from cpembed.graph.graph import Graph

__all__ = ["load", "open_model"]


def open_model(
    path: Path,
    outputs: Sequence[str] = (),
    fallback: Fallback = None,
    constants: Mapping[str, Any] | None = None,
) -> OpenModel:
    """Read an ONNX file, whose graph is then translated at any sizes.

    Parameters
    ----------
    path : Path
        The file.
    outputs, fallback, constants
        As for :func:`load`.

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


def load(
    path: Path | str,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    outputs: Sequence[str] = (),
    fallback: Fallback = None,
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
    outputs : sequence of str, default those of the model
        Tensors to compute, intermediate ones too. Operators that none of them needs are not read.
    fallback : str or mapping, optional
        What computes the operators that are not read: ``onnxruntime``, or a function of inputs and
        attributes for each of them by its name. Such a network runs in Python only.
    constants : mapping, optional
        Values of inputs that are the same in every call: numbers, nested lists, arrays, or paths
        of ``.npy`` files.

    Raises
    ------
    ModelError
        In one line: for a file that is damaged, for open sizes, for unknown operators, and for an
        output that the model does not have.
    """
    model = cut(read_model(Path(path)), outputs)
    return translate(model, shapes or {}, fallback, constants)
