"""Models of other frameworks as graphs (:mod:`cpembed.graph`): one package a framework, and the
choice among them by the file's name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from cpembed.errors import ModelError
from cpembed.graph.graph import Graph

SUFFIXES = {".onnx": "an ONNX model", ".pt2": "a program of torch.export.save"}
"""Of the files that are read, and what they hold."""


def load_model(path: Path | str, shapes: Mapping[str, Sequence[int]] | None = None) -> Graph:
    """The network in a file.

    ``shapes``: of inputs by name, whose sizes the model leaves open.

    Raises :class:`ModelError` for a file that is none of :data:`SUFFIXES` or is not understood.
    """
    path = Path(path)
    match path.suffix.lower():
        case ".onnx":
            from cpembed.frontends.onnx import load

            return load(path, shapes=shapes)
        case ".pt2":
            from cpembed.frontends.torch import load as load_exported

            if shapes:
                raise ModelError(
                    f"{path}: shapes of inputs are given for ONNX models; an exported program has "
                    "its own: export it with the shapes that are wanted"
                )
            return load_exported(path)
        case suffix:
            known = " or ".join(f"{ending} ({what})" for ending, what in SUFFIXES.items())
            raise ModelError(f"{path}: the suffix {suffix!r} is no model's: name a file {known}")
