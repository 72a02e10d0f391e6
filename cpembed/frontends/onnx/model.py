"""An ONNX model as plain values: what is in the file, without the library that reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cpembed.graph.kinds.base import Array

FOUR_BITS: Mapping[str, str] = {"int4": "int8", "uint4": "uint8"}
"""Of integers of four bits, the type that holds them."""


def in_bytes(array: Array) -> Array:
    """Integers of four bits as bytes; any other array as it is."""
    return array.astype(FOUR_BITS.get(str(array.dtype), array.dtype), copy=False)


@dataclass(frozen=True)
class Node:
    """``outputs = operator(inputs)``; an input that is left out is the empty name. ``number``: its
    place in the file, from 1; ``version``: of its domain's operators. Attributes are numbers,
    texts, lists of these, arrays, and graphs (:class:`Body`)."""

    number: int
    operator: str
    domain: str
    version: int
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]

    def __str__(self) -> str:
        named = f" {self.name}" if self.name else ""
        return f"{self.operator}{named} (node {self.number})"


@dataclass(frozen=True)
class ModelInput:
    """A tensor as the file declares it.

    ``sizes``: a number, or the name of a size that the model leaves open (empty without one);
    None where not even the number of dimensions is known. ``dtype`` is empty where it is open.
    """

    name: str
    dtype: str
    sizes: tuple[int | str, ...] | None


@dataclass(frozen=True)
class Body:
    """A graph of a model: the model's own, or a branch of one of its operators. ``declared``: what
    the file says of tensors that the graph computes or holds, by name."""

    inputs: tuple[ModelInput, ...]
    outputs: tuple[str, ...]
    constants: Mapping[str, Array]
    nodes: tuple[Node, ...]
    declared: Mapping[str, ModelInput] = field(default_factory=dict[str, ModelInput])


@dataclass(frozen=True)
class Model:
    """``name``: how messages and reports call it."""

    name: str
    body: Body
