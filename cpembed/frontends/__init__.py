"""Models of other frameworks as graphs (:mod:`cpembed.graph`), one package a framework."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cpembed.errors import ModelError
from cpembed.graph.graph import Array, Graph

Callback = Callable[[Sequence[Array], Mapping[str, Any]], "Array | Sequence[Array]"]
"""Function of an operator's inputs and attributes, which returns its outputs."""

Fallback = str | Mapping[str, Callback] | None
"""Name of a runtime, or functions by operators as ``Domain.Operator`` or ``Operator``; None for no
fallback."""

SUFFIXES = {".onnx": "an ONNX model", ".pt2": "a program of torch.export.save"}
"""Suffixes of the files that are read, with their contents."""


def load_model(
    path: Path | str,
    shapes: Mapping[str, Sequence[int]] | None = None,
    outputs: Sequence[str] = (),
    fallback: Fallback = None,
) -> Graph:
    """Read the network in a file; the suffix names the framework.

    Parameters
    ----------
    path : Path or str
        The file.
    shapes : mapping, optional
        Shapes of inputs whose sizes an ONNX model leaves open, by the inputs' names.
    outputs : sequence of str, default those of the model
        Tensors to compute, intermediate ones too. Operators that none of them needs are not read.
    fallback : str or mapping, optional
        What computes the operators that are not read: ``onnxruntime`` for an ONNX model, ``torch``
        for an exported program, or a function of inputs and attributes for each of an ONNX model's
        operators, by its name. Such a network runs in Python only.

    Raises
    ------
    ModelError
        For another suffix than :data:`SUFFIXES`, and for a file that cannot be read.
    """
    path = Path(path)
    match path.suffix.lower():
        case ".onnx":
            from cpembed.frontends.onnx import load

            return load(path, shapes=shapes, outputs=outputs, fallback=fallback)
        case ".pt2":
            from cpembed.frontends.torch import load as load_exported

            if shapes:
                raise ModelError(
                    f"{path}: shapes of inputs are given for ONNX models; an exported program has "
                    "fixed ones: export it again with the shapes that it should have"
                )
            return load_exported(path, outputs=outputs, fallback=fallback)
        case suffix:
            names = " or ".join(f"{end} ({contents})" for end, contents in SUFFIXES.items())
            raise ModelError(f"{path}: the suffix {suffix!r} is no model's: name a file {names}")
