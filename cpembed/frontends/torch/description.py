"""Types of the JSON in which ``torch.export.save`` describes a program, checked while decoding.

The names are those of PyTorch's ``torch/_export/serde/schema.py`` (version 8). Parts that a network
has no use for are not declared and so not decoded: call graphs, ranges of sizes, guards.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from cpembed.errors import ModelError

SCHEMA = 8
"""Major version of PyTorch's schema."""
MOST_VALUES = 1 << 23
"""Maximum number of values in a text, counted by brackets and commas.

Each becomes an object of some 100 bytes. A program of 100,000 operators has some six million.
"""

Union = dict[str, msgspec.Raw]
"""A value in an object whose only key names its type."""


class Named(msgspec.Struct):
    """A tensor, by the name of the node that computes it."""

    name: str


class Device(msgspec.Struct):
    """A device, such as ``cpu``."""

    type: str


class TensorMeta(msgspec.Struct):
    """A tensor's element type, in PyTorch's numbers, its sizes, and its place in a storage."""

    dtype: int
    sizes: list[Union]
    device: Device
    strides: list[Union]
    storage_offset: Union
    layout: int


class Payload(msgspec.Struct):
    """A parameter, buffer or constant: the member that holds it, and its type."""

    path_name: str
    use_pickle: bool
    tensor_meta: TensorMeta | None


class PayloadIndex(msgspec.Struct):
    """Payloads by the names that a program's inputs have."""

    config: dict[str, Payload]


class Argument(msgspec.Struct):
    """An argument of an operator; the ``kind`` is 1 for a positional one and 2 for a named one."""

    name: str
    arg: Union
    kind: int | None = None


class Node(msgspec.Struct):
    """A call of an operator."""

    target: str
    inputs: list[Argument]
    outputs: list[Union]
    metadata: dict[str, str]
    name: str | None = None


class Graph(msgspec.Struct):
    """The calls of a program, and the types of their results."""

    inputs: list[Union]
    outputs: list[Union]
    nodes: list[Node]
    tensor_values: dict[str, TensorMeta]


class Signature(msgspec.Struct):
    """Kinds of the inputs and outputs of a program."""

    input_specs: list[Union]
    output_specs: list[Union]


class Module(msgspec.Struct):
    """A graph with its signature."""

    graph: Graph
    signature: Signature


class Version(msgspec.Struct):
    """The version of the schema."""

    major: int


class Program(msgspec.Struct):
    """An exported program."""

    graph_module: Module
    schema_version: Version


class TensorSpec(msgspec.Struct):
    """An input or output that is a tensor of the model.

    It is a parameter, a buffer, a constant, or the new value of one of these or of an input.
    """

    arg: Named
    parameter_name: str | None = None
    buffer_name: str | None = None
    tensor_constant_name: str | None = None
    user_input_name: str | None = None

    @property
    def target(self) -> str:
        """Name of the tensor in the model."""
        names = (self.parameter_name, self.buffer_name, self.tensor_constant_name)
        return next(filter(None, (*names, self.user_input_name)), "")


class UserSpec(msgspec.Struct):
    """An input or output of the model's own."""

    arg: Union


class ConstantSpec(msgspec.Struct):
    """An input that was a number, a text or None at the export."""

    name: str
    value: Union


_VALUES = {"tensor": Named, "int": int, "float": float | str, "string": str, "bool": bool}
_TENSORS = (
    *("parameter", "buffer", "tensor_constant"),
    *("parameter_mutation", "buffer_mutation", "user_input_mutation"),
)
_TYPES: Mapping[str, Any] = {
    **{f"as_{name}": kind for name, kind in _VALUES.items()},
    **{f"as_{name}s": list[kind] for name, kind in _VALUES.items()},
    **{f"as_{name}": Union for name in ("sym_int", "sym_float", "sym_bool", "optional_tensor")},
    **{f"as_sym_{name}s": list[Union] for name in ("int", "float", "bool")},
    "as_optional_tensors": list[Union],
    "as_none": bool,
    "as_name": str,
    "as_scalar_type": int,
    "as_memory_format": int,
    "as_layout": int,
    "as_device": Device,
    "user_input": UserSpec,
    "user_output": UserSpec,
    "constant_input": ConstantSpec,
    **dict.fromkeys(_TENSORS, TensorSpec),
}
"""Types of a union's values by their keys; graphs and objects of Python are left out."""


def decoded(place: str, content: bytes, kind: Any) -> Any:
    """Decode JSON into one of the types above.

    Parameters
    ----------
    place : str
        Beginning of error messages.
    content : bytes
        The JSON.
    kind : type
        The expected type.

    Raises
    ------
    ModelError
        For JSON that is damaged, has another type, or has more than :data:`MOST_VALUES` values.
    """
    # Counted before the values become objects.
    values = sum(map(content.count, (b"{", b"[", b",")))
    if values > MOST_VALUES:
        raise ModelError(f"{place} has more than {MOST_VALUES:,} values: split the model in parts")
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ModelError(f"{place} is damaged: {error}") from error


def tagged(place: str, union: Union) -> tuple[str, Any]:
    """Return the key and the value of a union.

    Raises :class:`ModelError` for a size that is an expression, and for a value that no network
    has.
    """
    if len(union) != 1:
        raise ModelError(f"{place} is damaged: a value has {len(union)} types")
    ((key, raw),) = union.items()
    if key in ("as_expr", "as_name"):
        raise ModelError(
            f"{place} has no fixed size or number ({bytes(raw).decode(errors='replace')[:60]}): "
            "export the model without dynamic_shapes"
        )
    if key not in _TYPES:
        raise ModelError(f"{place} holds a value {key!r}, which no network has")
    return key, decoded(place, bytes(raw), _TYPES[key])


def integer(place: str, union: Union) -> int:
    """Return a fixed size, stride or offset.

    Raises :class:`ModelError` for one that is an expression or negative.
    """
    key, value = tagged(place, union)
    if key != "as_int" or value < 0:
        raise ModelError(f"{place} is damaged: {key} {value!r} is no size")
    return value
