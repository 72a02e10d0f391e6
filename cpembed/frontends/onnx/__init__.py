"""ONNX models as graphs: :func:`load`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from cpembed.frontends.onnx.reading import read_model
from cpembed.frontends.onnx.translation import translate
from cpembed.graph.graph import Graph

__all__ = ["load"]


def load(path: Path | str, *, shapes: Mapping[str, Sequence[int]] | None = None) -> Graph:
    """The network in an ONNX file: every operator by the kinds of :mod:`cpembed.graph.kinds`.

    Everything that is the same in every call is computed; quantized operators are written with
    quantization around the operator of floats. ``shapes``: of inputs by name, whose sizes the model
    leaves open.

    Raises :class:`ModelError`, one line: a file that is not a whole model, sizes that are left
    open, operators that are not known.
    """
    return translate(read_model(Path(path)), shapes or {})
