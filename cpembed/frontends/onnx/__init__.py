"""ONNX models as graphs: :func:`load`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from cpembed.frontends import Fallback
from cpembed.frontends.onnx.cutting import cut
from cpembed.frontends.onnx.model import read_model
from cpembed.frontends.onnx.translation import translate
from cpembed.graph.graph import Graph

__all__ = ["load"]


def load(
    path: Path | str,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    outputs: Sequence[str] = (),
    fallback: Fallback = None,
) -> Graph:
    """Read the network in an ONNX file, written in the kinds of :mod:`cpembed.graph.kinds`.

    Whatever is the same in every call is computed; quantized operators become operators of floats
    with quantization around them.

    Parameters
    ----------
    path : Path or str
        The file.
    shapes : mapping, optional
        Shapes of inputs whose sizes the model leaves open, by the inputs' names.
    outputs : sequence of str, default those of the model
        Tensors to compute, intermediate ones too. Operators that none of them needs are not read.

    fallback : str or mapping, optional
        What computes the operators that are not read: ``onnxruntime``, or a function of inputs and
        attributes for each of them by its name. Such a network runs in Python only.

    Raises
    ------
    ModelError
        In one line: for a file that is damaged, for open sizes, for unknown operators, and for an
        output that the model does not have.
    """
    return translate(cut(read_model(Path(path)), outputs), shapes or {}, fallback)
