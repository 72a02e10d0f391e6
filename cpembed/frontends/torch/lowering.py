"""From a graph of ATen operators to a graph of kinds, node by node.

A node whose tensors are all constants is computed at once, by PyTorch itself.
"""
# pyright: basic

# What it imports is an extra, which a type checker need not find, and not this package.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import torch

from cpembed.errors import ModelError, WorkloadError
from cpembed.frontends.builder import Builder
from cpembed.frontends.emitter import Scaling
from cpembed.frontends.torch.call import Call
from cpembed.frontends.torch.operators import HANDLERS
from cpembed.graph.graph import unused_name
from cpembed.graph.kinds import TensorType
from cpembed.graph.kinds.base import Array
from cpembed.ir.dtypes import numpy_dtype

ELEMENT_TYPES = frozenset(
    (
        "float32",
        "float64",
        "bfloat16",
        "float16",
        "int8",
        "uint8",
        "int16",
        "int32",
        "int64",
        "bool",
    )
)
"""Of tensors of a graph."""
_CHECKS = ("aten._assert_",)
"""Beginnings of the names of operators that compute nothing."""
_COMPUTED_AT_ONCE = ("aten", "prims", "prim")
"""Namespaces of operators that PyTorch computes where all their tensors are constants."""
_UNDEFINED = ("aten.empty", "aten.new_empty", "aten.resize")
"""Beginnings of the names of operators whose results are whatever lies in memory."""
_COMPUTED_BYTES, _COMPUTED_SHARE = 1 << 28, 4
"""Constants that are computed have these bytes together, and so many times those of the model's
parameters: a small file makes no large ones."""


def is_known(target: Any) -> bool:
    """Whether an operator is written in kinds, or only checks what is known."""
    name = str(target)
    return target is operator.getitem or name in HANDLERS or name.startswith(_CHECKS)


def place_of(node: torch.fx.Node) -> str:
    """Where a node stands: the path of its module, where it is known, and its own name."""
    stack = node.meta.get("nn_module_stack") or {}
    paths = [entry[0] for entry in stack.values() if isinstance(entry, tuple) and entry[0]]
    path = str(paths[-1]) if paths else ""
    for noise in ("L['self'].", "L['self']", "_modules."):
        path = path.replace(noise, "")
    return f"{path}/{node.name}" if path else node.name


def type_of(name: str, value: Any) -> TensorType:
    """The type of a tensor that PyTorch describes.

    Raises :class:`ModelError` for sizes that are left open, and element types that no tensor of a
    graph has.
    """
    dtype = str(value.dtype).removeprefix("torch.")
    if dtype not in ELEMENT_TYPES:
        raise ModelError(
            f"{name} is of {dtype}: a network holds {', '.join(sorted(ELEMENT_TYPES))}"
        )
    for axis, size in enumerate(value.shape):
        if not isinstance(size, int):
            raise ModelError(
                f"{name}: axis {axis} has no fixed size ({size}): export the model without "
                "dynamic_shapes"
            )
    return TensorType(tuple(int(size) for size in value.shape), dtype)


def array_of(tensor: torch.Tensor) -> Array:
    """The elements of a tensor."""
    plain = tensor.detach().cpu().contiguous()
    if plain.dtype is torch.bfloat16:
        return plain.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return np.array(plain.numpy())


@dataclass
class Lowering:
    """``values`` of nodes by their names: tensors by their names in the builder, tuples of them,
    numbers. ``tensors``: the constants among them as PyTorch's."""

    builder: Builder
    values: dict[str, Any] = field(default_factory=dict)
    tensors: dict[Any, torch.Tensor] = field(default_factory=dict)
    scaling: Scaling = field(default_factory=dict)
    dynamic: dict[str, tuple[str, str]] = field(default_factory=dict)
    computed_bytes: int = -_COMPUTED_BYTES

    def input(self, node: torch.fx.Node, name: str) -> None:
        """A placeholder that is an input of the network."""
        kind = type_of(f"{self.builder.name}: input {name}", node.meta["val"])
        self.values[node.name] = self.builder.input(name, kind)

    def constant(self, node: torch.fx.Node, tensor: torch.Tensor, name: str) -> None:
        """A placeholder, or an attribute, that is a parameter."""
        type_of(f"{self.builder.name}: {name}", tensor)
        self.tensors[node.name] = tensor.detach()
        self.computed_bytes -= _COMPUTED_SHARE * tensor.numel() * tensor.itemsize
        self.values[node.name] = self.builder.constant(array_of(tensor), name)

    def run(self, nodes: Sequence[torch.fx.Node]) -> None:
        """Every call in its order.

        Raises :class:`ModelError` for operators that are not known: the first one's name and place,
        and how many there are of it.
        """
        calls = [node for node in nodes if node.op == "call_function" and node.users]
        for node in calls:
            if node.target is operator.getitem:
                source, index = node.args
                self.values[node.name] = self.values[source.name][index]
                if (source.name, index) in self.tensors:
                    self.tensors[node.name] = self.tensors[source.name, index]
            elif not self._computed(node):
                self._written(node, calls)

    def output(self, value: Any) -> str:
        """The tensor of a value that the network returns."""
        found = self.values[value.name] if isinstance(value, torch.fx.Node) else value
        if not isinstance(found, str):
            raise ModelError(
                f"{self.builder.name}: the output {value} is no tensor that a network computes: "
                "return tensors only"
            )
        return found

    # -- one node ---------------------------------------------------------------------------------

    def _written(self, node: torch.fx.Node, calls: Sequence[torch.fx.Node]) -> None:
        handler = HANDLERS.get(str(node.target))
        if handler is None:
            raise self._unknown(node, calls)
        call = self._call(node)
        if call.results and not any(kind is None or kind.elements for kind in call.results):
            found = self._empty(call)
            is_list = isinstance(node.meta["val"], list | tuple)
            self.values[node.name] = found if is_list else found[0]
            return
        try:
            self.values[node.name] = handler(call)
            call.check_read()
        except WorkloadError as error:
            raise call.error(str(error)) from error

    def _empty(self, call: Call) -> tuple[str, ...]:
        """Results without elements, which are constants whatever computes them."""
        return tuple(
            self.builder.constant(np.zeros(kind.shape, numpy_dtype(kind.dtype)), call.place)
            for kind in call.results
            if kind is not None
        )

    def _call(self, node: torch.fx.Node) -> Call:
        schema = node.target._schema.arguments
        defaults = {
            a.name: self._argument(a.default_value) for a in schema if a.has_default_value()
        }
        arguments = dict(defaults)
        arguments |= {argument.name: value for argument, value in zip(schema, node.args)}  # noqa: B905
        arguments |= node.kwargs
        place = place_of(node)
        first = next(iter(node.all_input_nodes), None)
        results = node.meta["val"]
        kinds = tuple(
            type_of(f"{self.builder.name}: {place}", value)
            if isinstance(value, torch.Tensor)
            else None
            for value in (results if isinstance(results, list | tuple) else [results])
        )
        return Call(
            self.builder,
            self.scaling,
            self.dynamic,
            str(node.target),
            place,
            {name: self._argument(value) for name, value in arguments.items()},
            kinds,
            first is not None and len(first.users) == 1,
            defaults,
        )

    def _argument(self, value: Any) -> Any:
        match value:
            case torch.fx.Node():
                return self.values[value.name]
            case torch.dtype():
                return str(value).removeprefix("torch.")
            case list() | tuple():
                return [self._argument(part) for part in value]
            case _:
                return value

    def _unknown(self, node: torch.fx.Node, calls: Sequence[torch.fx.Node]) -> ModelError:
        # Without inputs it is a constant, which PyTorch computes.
        read = [n for n in calls if n.all_input_nodes]
        unknown = Counter(str(n.target) for n in read if not is_known(n.target))
        target = str(node.target)
        count = unknown[target]
        others = [name for name in unknown if name != target]
        more = f"; neither are {', '.join(others)}" if others else ""
        times = "once" if count == 1 else f"{count} times"
        return ModelError(
            f"{self.builder.name}: {place_of(node)}: the operator {target} ({times} in the model) "
            f"is not known{more}: write it with other operators"
        )

    # -- constants --------------------------------------------------------------------------------

    def _computed(self, node: torch.fx.Node) -> bool:
        """Whether all of a node's tensors are constants, so that its value is one now."""
        target = node.target
        if getattr(target, "namespace", "") not in _COMPUTED_AT_ONCE:
            return False
        if any(source.name not in self.tensors for source in node.all_input_nodes):
            return False
        if torch.Tag.nondeterministic_seeded in target.tags:
            return False
        if str(target).startswith(_UNDEFINED):
            return False
        self._count(node)

        def tensor(source: torch.fx.Node) -> torch.Tensor:
            return self.tensors[source.name]

        arguments = torch.fx.map_arg(node.args, tensor), torch.fx.map_arg(node.kwargs, tensor)
        with torch.no_grad():
            value = target(*arguments[0], **arguments[1])
        if isinstance(value, list | tuple):
            self.values[node.name] = tuple(
                self._kept((node.name, k), part, node) for k, part in enumerate(value)
            )
        else:
            self.values[node.name] = self._kept(node.name, value, node)
        return True

    def _count(self, node: torch.fx.Node) -> None:
        """Raise :class:`ModelError` for a constant that is too large to be computed."""
        results = node.meta["val"]
        for value in results if isinstance(results, list | tuple) else [results]:
            if isinstance(value, torch.Tensor):
                self.computed_bytes += value.numel() * value.itemsize
        if self.computed_bytes > 0:
            raise ModelError(
                f"{self.builder.name}: {place_of(node)} ({node.target}): constants that are "
                f"computed have more than {_COMPUTED_BYTES:,} bytes and {_COMPUTED_SHARE} times "
                "the parameters': make them parameters"
            )

    def _kept(self, key: Any, value: Any, node: torch.fx.Node) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        place = place_of(node)
        type_of(f"{self.builder.name}: {place}", value)
        self.tensors[key] = value
        return self.builder.constant(array_of(value), place)


def outputs_by_name(
    lowering: Lowering, names: Sequence[str], values: Sequence[Any]
) -> Mapping[str, str]:
    """The tensors that a network returns, by names that no two of them have."""
    found: dict[str, str] = {}
    for name, value in zip(names, values, strict=True):
        found[unused_name(name, found)] = lowering.output(value)
    return found
