"""Models of other frameworks as graphs (:mod:`cpembed.graph`), one package a framework."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cpembed.errors import ModelError
from cpembed.graph.graph import Graph

SUFFIXES = {".onnx": "an ONNX model", ".pt2": "a program of torch.export.save"}
"""Suffixes of the files that are read, with their contents."""


def load_model(
    path: Path | str,
    shapes: Mapping[str, Sequence[int]] | None = None,
    constants: Mapping[str, Any] | None = None,
) -> Graph:
    """Read the network in a file; the suffix names the framework.

    Parameters
    ----------
    path : Path or str
        The file.
    shapes : mapping, optional
        Shapes of inputs whose sizes an ONNX model leaves open, by the inputs' names; ``NAME:axis``
        stands for one axis.
    constants : mapping, optional
        Values of inputs that are the same in every call: numbers, nested lists, arrays, or paths
        of ``.npy`` files. They are folded, and branches that they decide disappear.

    Raises
    ------
    ModelError
        For another suffix than :data:`SUFFIXES`, and for a file that cannot be read.
    """
    path = Path(path)
    match path.suffix.lower():
        case ".onnx":
            from cpembed.frontends.onnx import load

            return load(path, shapes=shapes, constants=constants)
        case ".pt2":
            from cpembed.frontends.torch import load as load_exported

            if shapes:
                raise ModelError(
                    f"{path}: shapes of inputs are given for ONNX models; an exported program has "
                    "fixed ones: export it again with the shapes that it should have"
                )
            from cpembed.frontends.binding import bind_inputs

            return bind_inputs(load_exported(path), constants or {})
        case suffix:
            names = " or ".join(f"{end} ({contents})" for end, contents in SUFFIXES.items())
            raise ModelError(f"{path}: the suffix {suffix!r} is no model's: name a file {names}")
