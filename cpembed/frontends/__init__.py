"""Models of other frameworks as graphs (:mod:`cpembed.graph`), one package a framework."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cpembed.errors import ModelError
from cpembed.frontends.binding import bind_inputs
from cpembed.frontends.open_sizes import OpenModel, Request
from cpembed.graph.family import Family
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
    shapes: Request | None = None,
    outputs: Sequence[str] = (),
    fallback: Fallback = None,
    constants: Mapping[str, Any] | None = None,
) -> Graph:
    """Read the network in a file; the suffix names the framework.

    Parameters
    ----------
    path : Path or str
        The file.
    shapes : mapping, optional
        Shapes of inputs whose sizes the model leaves open, by the inputs' names, and sizes by the
        names of open dimensions; ``NAME:axis`` stands for one axis of an input.
    outputs : sequence of str, default those of the model
        Tensors to compute, intermediate ones too. Operators that none of them needs are not read.
    fallback : str or mapping, optional
        What computes the operators that are not read: ``onnxruntime`` for an ONNX model, ``torch``
        for an exported program, or a function of inputs and attributes for each of an ONNX model's
        operators, by its name. Such a network runs in Python only.
    constants : mapping, optional
        Values of inputs that are the same in every call: numbers, nested lists, arrays, or paths
        of ``.npy`` files. They are folded, and branches that they decide disappear.

    Raises
    ------
    ModelError
        For another suffix than :data:`SUFFIXES`, for a file that cannot be read, and for a range of
        sizes, of which :func:`load_network` makes a family.
    """
    return open_model(Path(path), outputs, fallback, constants).fixed(shapes or {})


def load_network(
    path: Path | str,
    shapes: Request | None = None,
    outputs: Sequence[str] = (),
    fallback: Fallback = None,
    constants: Mapping[str, Any] | None = None,
) -> Graph | Family:
    """Read the network in a file: a graph, or a family of graphs if a size is a range.

    Parameters
    ----------
    path : Path or str
        The file.
    shapes : mapping, optional
        As for :func:`load_model`. A size may be a range, such as ``range(1, 17)``.
    outputs, fallback, constants
        As for :func:`load_model`.

    Raises
    ------
    ModelError
        As :func:`load_model` does.
    """
    return open_model(Path(path), outputs, fallback, constants).at(shapes or {})


def open_model(
    path: Path,
    outputs: Sequence[str] = (),
    fallback: Fallback = None,
    constants: Mapping[str, Any] | None = None,
) -> OpenModel:
    """Read a file whose graph is then made at any sizes; arguments as for :func:`load_model`."""
    match path.suffix.lower():
        case ".onnx":
            from cpembed.frontends.onnx import open_model as open_onnx

            return open_onnx(path, outputs, fallback, constants)
        case ".pt2":
            from cpembed.frontends.torch import open_model as open_exported

            model = open_exported(path, outputs, fallback)

            def read(sizes: Mapping[str, Sequence[int]]) -> Graph:
                return bind_inputs(model.read(sizes), constants or {})

            return replace(model, read=read)
        case suffix:
            names = " or ".join(f"{end} ({contents})" for end, contents in SUFFIXES.items())
            raise ModelError(f"{path}: the suffix {suffix!r} is no model's: name a file {names}")
