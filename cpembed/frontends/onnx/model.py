"""An ONNX model as plain values: what is in the file, without the library that reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cpembed.graph.kinds.base import Array


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
    """``sizes``: a number, or the name of a size that the model leaves open (empty without one);
    None where not even the number of dimensions is known."""

    name: str
    dtype: str
    sizes: tuple[int | str, ...] | None


@dataclass(frozen=True)
class Body:
    """A graph of a model: the model's own, or a branch of one of its operators."""

    inputs: tuple[ModelInput, ...]
    outputs: tuple[str, ...]
    constants: Mapping[str, Array]
    nodes: tuple[Node, ...]


@dataclass(frozen=True)
class Model:
    """``name``: how messages and reports call it."""

    name: str
    body: Body
