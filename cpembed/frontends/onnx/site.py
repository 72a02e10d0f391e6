"""One node of a model as its translation sees it: inputs, attributes, what is emitted for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, cast

import numpy as np

from cpembed.errors import ModelError
from cpembed.frontends.emitter import Emitter
from cpembed.frontends.onnx.model import Body, Node
from cpembed.graph.kinds import Kind, TensorType
from cpembed.graph.kinds.base import Array, axis_of

Translation = Callable[["Site"], "str | Sequence[str]"]
"""From a node to the tensors that are its outputs; those at the end that nothing reads may be
missing."""


@dataclass(frozen=True)
class Site(Emitter):
    """``inputs``: of each of the node's inputs, the tensor in the ``builder``'s graph; None for one
    that is left out. ``readers``: how many nodes, and outputs of the model, read each of the node's
    inputs. ``run`` translates the nodes of a branch and returns its outputs. ``attributes_read``
    and ``inputs_read``: what a translation has asked for so far, by name and by number."""

    node: Node
    inputs: tuple[str | None, ...]
    readers: tuple[int, ...]
    wanted: tuple[bool, ...]
    run: Callable[[Body], Sequence[str]]
    attributes_read: set[str] = field(default_factory=set[str])
    inputs_read: set[int] = field(default_factory=set[int])

    def refuse(self, reason: str) -> NoReturn:
        """Raise :class:`ModelError`: what is wrong, and what to do."""
        raise ModelError(reason)

    # Inputs

    def optional(self, k: int) -> str | None:
        self.inputs_read.add(k)
        return self.inputs[k] if k < len(self.inputs) else None

    def input(self, k: int = 0) -> str:
        tensor = self.optional(k)
        if tensor is None:
            self.refuse(f"input {k} is left out: give it")
        return tensor

    def all_inputs(self) -> list[str]:
        return [self.input(k) for k in range(len(self.inputs))]

    def type(self, k: int = 0) -> TensorType:
        return self.builder.types[self.input(k)]

    def rank(self, k: int = 0) -> int:
        return len(self.type(k).shape)

    def constant(self, k: int, what: str) -> Array:
        """An input that has to be the same in every call."""
        value = self.builder.value(self.input(k))
        if value is None:
            self.refuse(f"{what} is computed while the network runs: it has to be a constant")
        return value

    def optional_constant(self, k: int, what: str) -> Array | None:
        return None if self.optional(k) is None else self.constant(k, what)

    def integers(self, k: int, what: str) -> tuple[int, ...]:
        return tuple(int(value) for value in self.constant(k, what).reshape(-1))

    # Attributes

    @property
    def version(self) -> int:
        return self.node.version

    def attribute(self, name: str, default: Any = None) -> Any:
        self.attributes_read.add(name)
        return self.node.attributes.get(name, default)

    def number(self, name: str, default: float) -> float:
        value = self.attribute(name, default)
        if not isinstance(value, int | float):
            self.refuse(f"attribute {name} is no number: give one")
        return value

    def whole(self, name: str, default: int) -> int:
        return int(self.number(name, default))

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.number(name, int(default))
        if value not in (0, 1):
            self.refuse(f"attribute {name} = {value}: give 0 or 1")
        return bool(value)

    def text(self, name: str, default: str, choices: Sequence[str] = ()) -> str:
        """An attribute that is a text; one of the ``choices``, where there are any."""
        value = str(self.attribute(name, default))
        if choices and value not in choices:
            self.refuse(f"{name} {value} is not known: use {', '.join(choices)}")
        return value

    def list_of(self, name: str, default: Sequence[int] | None = None) -> tuple[int, ...] | None:
        value = self.attribute(name, default)
        if value is None:
            return None
        listed = cast("Sequence[object]", value) if isinstance(value, tuple | list) else (None,)
        integers = tuple(v for v in listed if isinstance(v, int))
        if len(integers) != len(listed):
            self.refuse(f"attribute {name} is no list of integers: give one")
        return integers

    def list_or_input(self, name: str, k: int) -> tuple[int, ...] | None:
        """What is an attribute in older versions of an operator and an input in later ones."""
        if self.attribute(name) is not None:
            return self.list_of(name)
        return None if self.optional(k) is None else self.integers(k, name)

    def axis(self, default: int = 0, rank: int | None = None) -> int:
        return axis_of(self.whole("axis", default), self.rank() if rank is None else rank)

    # Emission

    @property
    def label(self) -> str:
        """How the node's operators are called: the node's own name or its output's."""
        return self.node.name or self._first_output

    def emit_all(self, kind: Kind, *inputs: str) -> tuple[str, ...]:
        return self.builder.add_all(
            kind, inputs, self.label, f"{self._first_output}/{type(kind).__name__.lower()}"
        )

    def tensor(self, value: Array | Sequence[Any] | float, dtype: str | None = None) -> str:
        return self.builder.constant(np.asarray(value, dtype), f"{self._first_output}/constant")

    @property
    def _first_output(self) -> str:
        return next(filter(None, self.node.outputs), self.node.operator)
