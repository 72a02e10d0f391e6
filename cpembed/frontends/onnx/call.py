"""A node of an ONNX model while it is translated, and a check that all of it was read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, NoReturn, Self, cast

import numpy as np

from cpembed.errors import ModelError
from cpembed.frontends.builder import Builder
from cpembed.frontends.composites import Composites
from cpembed.frontends.loops import LoopBody
from cpembed.frontends.onnx.model import Body, Node
from cpembed.graph.kinds import Kind, TensorType
from cpembed.graph.kinds.base import Array, axis_of

_LONGEST_VALUE = 60
"""Maximum number of letters of an attribute's value in a message."""
Translation = Callable[["Call"], "str | Sequence[str]"]
"""A function that emits a node and returns the tensors that are its outputs.

Trailing ones that nothing reads may be missing.
"""

_INERT_ATTRIBUTES: dict[str, frozenset[str]] = {
    # They concern floats of eight bits.
    "Cast": frozenset({"saturate", "round_mode"}),
    "CastLike": frozenset({"saturate", "round_mode"}),
    "QuantizeLinear": frozenset({"saturate"}),
    # They matter in training alone, which is rejected.
    "Dropout": frozenset({"ratio", "seed"}),
    # It orders the indices, which are rejected.
    "MaxPool": frozenset({"storage_order"}),
    # They concern running means, which training computes. Before version 7 a model in training has
    # further outputs, which are rejected.
    "BatchNormalization": frozenset({"momentum", "is_test"}),
}
"""Attributes that change no result of the operators that are read, by operator."""
_INERT_INPUTS: dict[str, frozenset[int]] = {
    # The ratio of elements that training drops.
    "Dropout": frozenset({1}),
    # The region of tf_crop_and_resize, which other coordinates ignore.
    "Resize": frozenset({1}),
}
_MEMORY_ATTRIBUTES = frozenset({"consumed_inputs"})
"""Attributes of the format's first version, which name inputs whose memory may be reused."""


class BeyondKindsError(ModelError):
    """A valid form of an operator that its translation does not have."""


@dataclass(frozen=True, kw_only=True)
class Call(Composites):
    """A node as its translation sees it.

    Attributes
    ----------
    node : Node
        The node of the model.
    inputs : tuple
        Tensors of the graph; None for an input that is left out.
    readers : tuple of int
        Number of nodes and outputs of the model that read each input.
    is_read : tuple of bool
        Whether anything reads each of the node's outputs.
    run : callable
        Translates a branch and returns the tensors of its outputs.
    run_loop : callable
        Translates the body of a loop, whose inputs are tensors of the loop's builder.
    run_unrolled : callable
        Translates a graph whose inputs are tensors of this builder.
    narrow : tuple of str
        Narrow type that each input of bytes holds; empty for other inputs.
    makes : set of str
        Narrow type of the results, if the translation makes one.
    attributes_read, inputs_read : set
        Attributes by name and inputs by number that the translation has read so far.
    """

    node: Node
    inputs: tuple[str | None, ...]
    readers: tuple[int, ...]
    is_read: tuple[bool, ...]
    run: Callable[[Body], Sequence[str]]
    run_loop: Callable[[Body, LoopBody, Sequence[str]], Sequence[str]]
    run_unrolled: Callable[[Body, Sequence[str]], Sequence[str]]
    narrow: tuple[str, ...] = ()
    makes: set[str] = field(default_factory=set[str])
    attributes_read: set[str] = field(default_factory=set[str])
    inputs_read: set[int] = field(default_factory=set[int])

    def reject(self, reason: str) -> NoReturn:
        raise ModelError(reason)

    def leave_to_definition(self, reason: str) -> NoReturn:
        """Reject a valid form that no kind has: the format's definition is tried instead."""
        raise BeyondKindsError(reason)

    # -- inputs -----------------------------------------------------------------------------------

    def optional(self, k: int) -> str | None:
        self.inputs_read.add(k)
        return self.inputs[k] if k < len(self.inputs) else None

    def input(self, k: int = 0) -> str:
        tensor = self.optional(k)
        if tensor is None:
            self.reject(f"input {k} is left out: give it")
        return tensor

    def all_inputs(self) -> list[str]:
        return [self.input(k) for k in range(len(self.inputs))]

    def all_inputs_from(self, first: int) -> list[str]:
        return [self.input(k) for k in range(first, len(self.inputs))]

    def type(self, k: int = 0) -> TensorType:
        return self.builder.types[self.input(k)]

    def rank(self, k: int = 0) -> int:
        return len(self.type(k).shape)

    def constant(self, k: int, label: str) -> Array:
        """Return the elements of an input that has to be constant."""
        value = self.builder.value(self.input(k))
        if value is None:
            self.reject(f"{label} is computed while the network runs: it has to be a constant")
        return value

    def optional_constant(self, k: int, label: str) -> Array | None:
        return None if self.optional(k) is None else self.constant(k, label)

    def integers(self, k: int, label: str) -> tuple[int, ...]:
        """Return the elements of a constant input as integers."""
        return tuple(int(value) for value in self.constant(k, label).reshape(-1))

    # -- attributes -------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        return self.node.version

    def attribute(self, name: str, default: Any = None) -> Any:
        self.attributes_read.add(name)
        return self.node.attributes.get(name, default)

    def number(self, name: str, default: float) -> float:
        value = self.attribute(name, default)
        if not isinstance(value, int | float):
            self.reject(f"attribute {name} is no number: give one")
        return value

    def integer(self, name: str, default: int) -> int:
        return int(self.number(name, default))

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.number(name, int(default))
        if value not in (0, 1):
            self.reject(f"attribute {name} = {value}: give 0 or 1")
        return bool(value)

    def text(self, name: str, default: str, choices: Sequence[str] = ()) -> str:
        """Return an attribute that is a text, one of the choices if there are any."""
        value = str(self.attribute(name, default))
        if choices and value not in choices:
            self.reject(f"{name} {value} is not known: use {', '.join(choices)}")
        return value

    def list_of(self, name: str, default: Sequence[int] = ()) -> tuple[int, ...]:
        """Return an attribute that is a list of integers."""
        value = self.attribute(name, default)
        items = cast("Sequence[object]", value) if isinstance(value, tuple | list) else (None,)
        integers = tuple(v for v in items if isinstance(v, int))
        if len(integers) != len(items):
            self.reject(f"attribute {name} is no list of integers: give one")
        return integers

    def optional_list(self, name: str) -> tuple[int, ...] | None:
        """Return an attribute that is a list of integers; None if the node does not have it."""
        return None if self.attribute(name) is None else self.list_of(name)

    def list_or_input(self, name: str, k: int) -> tuple[int, ...] | None:
        """Return integers that older versions have as an attribute and later ones as an input."""
        integers = self.optional_list(name)
        if integers is not None or self.optional(k) is None:
            return integers
        return self.integers(k, name)

    def narrow_input(self, k: int) -> str:
        """Return the narrow type that an input of bytes holds; empty for another one."""
        return self.narrow[k] if k < len(self.narrow) else ""

    def axis(self, default: int = 0, rank: int | None = None) -> int:
        return axis_of(self.integer("axis", default), self.rank() if rank is None else rank)

    # -- emission ---------------------------------------------------------------------------------

    @property
    def place_name(self) -> str:
        """The node's name, or that of its first output."""
        return self.node.name or self._first_output

    def inside(self, builder: Builder) -> Self:
        node = replace(self.node, name="step")
        return replace(self, builder=builder, scaling={}, node=node)

    def emit_all(self, kind: Kind, *inputs: str) -> tuple[str, ...]:
        label = self.place_name
        stem = f"{self._first_output}/{type(kind).__name__.lower()}"
        return self.builder.add_all(kind, inputs, label, stem)

    def tensor(self, value: Array | Sequence[Any] | float, dtype: str | None = None) -> str:
        return self.builder.constant(np.asarray(value, dtype), f"{self._first_output}/constant")

    @property
    def _first_output(self) -> str:
        return next(filter(None, self.node.outputs), self.node.operator)

    # -- check ------------------------------------------------------------------------------------

    def check_read(self) -> None:
        """Reject a node of which the translation ignored an attribute or an input.

        An attribute with the format's default value may be ignored.
        """
        for name in self._unread_attributes():
            value = self.node.attributes[name]
            text = "an array" if isinstance(value, np.ndarray) else str(value)
            text = text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}…"
            self.leave_to_definition(
                f"attribute {name} = {text} is not read: export the model without it"
            )
        read = self.inputs_read | _INERT_INPUTS.get(self.node.operator, frozenset())
        for k, tensor in enumerate(self.inputs):
            if tensor is not None and k not in read:
                name = self.node.inputs[k]
                self.leave_to_definition(
                    f"input {k}, {name}, is not read: export the model without it"
                )

    def _unread_attributes(self) -> Iterator[str]:
        node = self.node
        inert = _MEMORY_ATTRIBUTES | _INERT_ATTRIBUTES.get(node.operator, frozenset())
        defaults = _defaults(node.operator, node.version, node.domain)
        for name, value in node.attributes.items():
            if name not in self.attributes_read | inert and not isinstance(value, Body):
                default = defaults.get(name)
                if default is None or not np.array_equal(np.asarray(default), np.asarray(value)):
                    yield name


@cache
def _defaults(operator: str, version: int, domain: str) -> dict[str, Any]:
    """Return the format's default values of attributes; empty for operators of other domains."""
    import onnx

    try:
        # Operators of other domains have no schema, and so no defaults.
        schema = onnx.defs.get_schema(operator, version, "" if domain == "ai.onnx" else domain)
    except Exception:
        return {}
    defaults: dict[str, Any] = {}
    for name, attribute in schema.attributes.items():
        if attribute.default_value.name:
            value = onnx.helper.get_attribute_value(attribute.default_value)
            defaults[name] = value.decode() if isinstance(value, bytes) else value
    return defaults
