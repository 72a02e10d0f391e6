"""Bind inputs of a network to constants, and name the sizes that a model leaves open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from cpembed.errors import ModelError
from cpembed.files import read_regular
from cpembed.graph.graph import Graph
from cpembed.graph.kinds import TensorType
from cpembed.graph.kinds.base import Array
from cpembed.ir.dtypes import numpy_dtype

_LARGEST_FILE = 1 << 30
"""Maximum size in bytes of a file of values."""


def bound_array(value: Any, dtype: str, label: str) -> Array:
    """Return a value of an input as an array of the input's element type.

    Floats are rounded to shorter floats; any other value has to be representable.

    Parameters
    ----------
    value : number, nested sequence of numbers, array, or Path
        A path names a ``.npy`` file.
    dtype : str
        Element type of the input.
    label : str
        Place for messages, such as ``m.onnx: input sr``.

    Raises
    ------
    ModelError
        If the file is no array, or the type cannot represent the value.
    """
    array = _file_array(value, label) if isinstance(value, Path) else _as_array(value, label)
    target = numpy_dtype(dtype)
    rounds = target.kind not in "iub" and array.dtype.kind in "iuf"
    # Other conversions than those of numbers to floats would change the value.
    with np.errstate(all="ignore"):
        converted = array.astype(target)
        same = rounds or np.array_equal(converted.astype(array.dtype), array)
    numbers = array.dtype.kind in ("b" if dtype == "bool" else "iuf") or rounds
    if dtype == "bool" and array.dtype.kind in "iu":
        numbers = bool(np.isin(array, (0, 1)).all())
    if array.dtype.kind == "f" and target.kind in "iu":
        numbers = False
    if not (same and numbers):
        raise ModelError(
            f"{label}: {_text(array)} is {array.dtype}, the model has {dtype}: give {dtype}"
        )
    return converted


def _as_array(value: Any, label: str) -> Array:
    try:
        array = np.asarray(value)
    except ValueError:
        array = np.asarray(None)
    if array.dtype.kind not in "iufb" and array.dtype.name != "bfloat16":
        raise ModelError(
            f"{label}: {value!r} is no number, list of numbers, or .npy file: give such as 16000, "
            "[1,2,3] or values.npy"
        )
    # An empty list has no type of its own.
    return array if array.size else array.astype(np.int64)


def _file_array(path: Path, label: str) -> Array:
    import io

    try:
        content = read_regular(path, _LARGEST_FILE)
        # Pickles, which numpy would load for arrays of objects, could run code.
        loaded: Any = np.load(io.BytesIO(content), allow_pickle=False)
    except OSError as error:
        reason = error.strerror or " ".join(str(error).split())
        raise ModelError(f"{label}: {path} cannot be read: {reason}") from None
    except Exception as error:  # numpy raises anything for a damaged file.
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ModelError(f"{label}: {path} is no .npy file: {reason}") from None
    if not isinstance(loaded, np.ndarray):
        raise ModelError(f"{label}: {path} holds several arrays: give a .npy file")
    return _as_array(loaded, label)


def _text(array: Array) -> str:
    return str(array.item()) if array.size == 1 else f"an array {list(array.shape)}"


def fitted(array: Array, shape: Sequence[int], label: str) -> Array:
    """Return an array in the shape of its input; a single number fits every shape of one element.

    Parameters
    ----------
    array : ndarray
    shape : sequence of int
        Shape of the input.
    label : str
        Place for messages.

    Raises
    ------
    ModelError
        For another shape.
    """
    kind = TensorType(tuple(shape), str(array.dtype))
    if array.shape == kind.shape:
        return array
    if not array.shape and kind.elements == 1:
        return array.reshape(kind.shape)
    raise ModelError(
        f"{label}: the value has the shape {list(array.shape)}, the model has {list(shape)}: give "
        "a value of that shape"
    )


def bind_inputs(graph: Graph, values: Mapping[str, Any]) -> Graph:
    """Return a graph of which some inputs are constants.

    Parameters
    ----------
    graph : Graph
    values : mapping from str to value
        See :func:`bound_array`.

    Raises
    ------
    ModelError
        For an unknown input, and for a value of another type or shape.
    """
    constants: dict[str, Array] = {}
    for name, value in values.items():
        if name not in graph.inputs:
            names = ", ".join(graph.inputs) or "none"
            raise ModelError(f"{graph.name} has no input {name}: its inputs are {names}")
        label, kind = f"{graph.name}: input {name}", graph.inputs[name]
        constants[name] = fitted(bound_array(value, kind.dtype, label), kind.shape, label)
    inputs = {name: kind for name, kind in graph.inputs.items() if name not in constants}
    return replace(graph, inputs=inputs, constants={**graph.constants, **constants})
