"""Lowering of the nodes of any graph of ATen operators to a graph of kinds.

Each node is written by the handler of its operator. One whose tensors are all constants is computed
at once, by PyTorch itself.
"""
# pyright: basic

# What it imports is an extra, which a type checker need not find, and not this package.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from cpembed.errors import ModelError, WorkloadError
from cpembed.frontends.builder import COMPUTED_BYTES, COMPUTED_SHARE, Builder, zeros_of
from cpembed.frontends.emitter import Scaling
from cpembed.frontends.torch import higher_order
from cpembed.frontends.torch.arrays import as_array, as_tensor
from cpembed.frontends.torch.call import Call
from cpembed.frontends.torch.operators import HANDLERS
from cpembed.graph.graph import Graph, unused_name
from cpembed.graph.kinds import Foreign, TensorType
from cpembed.graph.kinds.base import Array

ELEMENT_TYPES = frozenset({
    "float32", "float64", "bfloat16", "float16", "int8", "uint8", "int16", "int32", "int64", "bool"
})  # fmt: skip
"""Element types of a graph's tensors."""
_CHECKS = ("aten._assert_",)
"""Prefixes of operators that compute nothing."""
_FOLDED_NAMESPACES = ("aten", "prims", "prim")
"""Namespaces of operators that PyTorch computes where all their tensors are constants."""
_UNDEFINED = ("aten.empty", "aten.new_empty", "aten.resize")
"""Prefixes of operators whose results are whatever lies in memory."""


def is_known(target: Any) -> bool:
    """Return True if an operator has a handler, or only checks its arguments."""
    name = str(target)
    is_handled = name in HANDLERS or is_higher_order(target)
    return target is operator.getitem or is_handled or name.startswith(_CHECKS)


def is_higher_order(target: Any) -> bool:
    """Return True if an operator takes functions and is known."""
    is_higher = isinstance(target, torch._ops.HigherOrderOperator)
    return is_higher and str(target) in higher_order.NAMES


def place_of(node: torch.fx.Node) -> str:
    """Return the place of a node: the path of its module, where it is known, and its own name."""
    stack = node.meta.get("nn_module_stack") or {}
    paths = [entry[0] for entry in stack.values() if isinstance(entry, tuple) and entry[0]]
    path = str(paths[-1]) if paths else ""
    for noise in ("L['self'].", "L['self']", "_modules."):
        path = path.replace(noise, "")
    return f"{path}/{node.name}" if path else node.name


def type_of(name: str, value: Any) -> TensorType:
    """Return the type of a tensor of PyTorch.

    Raises :class:`ModelError`, which begins with the ``name``, for open sizes and other element
    types than :data:`ELEMENT_TYPES`.
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
    """Return a copy of the elements of a tensor."""
    return np.array(as_array(tensor.cpu()))


def _parts(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else [value]


@dataclass
class Lowering:
    """Lowering of the nodes of one graph.

    Attributes
    ----------
    builder : Builder
        Graph in the making.
    values : dict
        Values of the nodes by name: tensors of the builder, tuples of these, and numbers.
    tensors : dict
        Constants among them as PyTorch's tensors, by the node's name, or by its name and the index
        of the result.
    scaling, dynamic : dict
        As :class:`~cpembed.frontends.torch.call.Call` has them.
    falls_back : bool
        True if PyTorch computes operators without a handler, in the process that calls the network.
    """

    builder: Builder
    values: dict[str, Any] = field(default_factory=dict)
    tensors: dict[Any, torch.Tensor] = field(default_factory=dict)
    scaling: Scaling = field(default_factory=dict)
    dynamic: dict[str, tuple[str, str]] = field(default_factory=dict)
    falls_back: bool = False
    _computed_bytes: int = -COMPUTED_BYTES

    def input(self, node: torch.fx.Node, name: str) -> None:
        """Add a placeholder as an input of the network."""
        kind = type_of(f"{self.builder.name}: input {name}", node.meta["val"])
        self.values[node.name] = self.builder.input(name, kind)

    def constant(self, node: torch.fx.Node, tensor: torch.Tensor, name: str) -> None:
        """Add a placeholder or an attribute as a constant."""
        type_of(f"{self.builder.name}: {name}", tensor)
        self.tensors[node.name] = tensor.detach()
        self._computed_bytes -= COMPUTED_SHARE * tensor.numel() * tensor.itemsize
        self.values[node.name] = self.builder.constant(array_of(tensor), name)

    def run(self, nodes: Sequence[torch.fx.Node]) -> None:
        """Lower every call in its order.

        Raises :class:`ModelError` with name, place and number of the first unknown operator.
        """
        # Checks of arguments have no users: they go with all else that nothing reads.
        calls = [node for node in nodes if node.op == "call_function" and node.users]
        for node in calls:
            if node.target is operator.getitem:
                source, index = node.args
                self.values[node.name] = self.values[source.name][index]
                if (source.name, index) in self.tensors:
                    self.tensors[node.name] = self.tensors[source.name, index]
            elif is_higher_order(node.target):
                self._write_higher_order(node)
            elif self._is_constant(node):
                self._compute(node)
            elif str(node.target) in HANDLERS:
                self._write_or_leave(node)
            elif self.falls_back:
                self._leave(node)
            else:
                raise self._unknown(node, calls)

    def graph(self, outputs: Iterable[tuple[str, Any]]) -> Graph:
        """Return the network of some values, each with the name that it should have as an output.

        Raises :class:`ModelError` for a value that is no tensor.
        """
        tensors: dict[str, str] = {}
        for name, value in outputs:
            tensor = self.values[value.name] if isinstance(value, torch.fx.Node) else value
            if not isinstance(tensor, str):
                raise ModelError(
                    f"{self.builder.name}: the output {value} is no tensor that a network "
                    "computes: return tensors only"
                )
            tensors[unused_name(name, tensors)] = tensor
        return self.builder.graph(tensors)

    def _write(self, node: torch.fx.Node) -> None:
        call = self._call(node)
        if call.results and not any(kind is None or kind.elements for kind in call.results):
            # Results without elements are constants, whatever computes them.
            empty = tuple(
                self.builder.constant(zeros_of(kind), call.place)
                for kind in call.results
                if kind is not None
            )
            is_list = isinstance(node.meta["val"], list | tuple)
            self.values[node.name] = empty if is_list else empty[0]
            return
        try:
            self.values[node.name] = HANDLERS[str(node.target)](call)
            call.check_read()
        except WorkloadError as error:
            call.reject(str(error))

    def _write_or_leave(self, node: torch.fx.Node) -> None:
        """Write a call in kinds, or leave one whose arguments are not known to PyTorch."""
        try:
            self._write(node)
        except ModelError:
            if not self.falls_back:
                raise
            self._leave(node)

    def _leave(self, node: torch.fx.Node) -> None:
        """Add a call as an operator that PyTorch computes."""
        tensors = [
            source for source in node.all_input_nodes if isinstance(self.values[source.name], str)
        ]
        place = place_of(node)
        parts = _parts(node.meta["val"])
        types = tuple(type_of(f"{self.builder.name}: {place}", part) for part in parts)

        def run(arrays: Sequence[Array]) -> Sequence[Array]:
            values = dict(zip(tensors, map(as_tensor, arrays)))  # noqa: B905
            args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: values[n])
            return [array_of(part) for part in _parts(node.target(*args, **kwargs))]

        kind = Foreign(str(node.target), types, "torch", run)
        names = [self.values[source.name] for source in tensors]
        results = self.builder.add_all(kind, names, place)
        is_list = isinstance(node.meta["val"], list | tuple)
        self.values[node.name] = results if is_list else results[0]

    def _write_higher_order(self, node: torch.fx.Node) -> None:
        place, module = place_of(node), node.graph.owning_module

        def argument(value: Any) -> Any:
            if isinstance(value, torch.fx.Node) and value.op == "get_attr":
                return getattr(module, str(value.target))
            if isinstance(value, list | tuple):
                return [*map(argument, value)]
            return self._argument(value)

        arguments = [argument(value) for value in (*node.args, *node.kwargs.values())]
        try:
            self.values[node.name] = higher_order.lowered(
                node, arguments, self.builder, place, _written
            )
        except WorkloadError as error:
            raise ModelError(f"{self.builder.name}: {place}: {error}") from error

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
        results = tuple(
            type_of(f"{self.builder.name}: {place}", value)
            if isinstance(value, torch.Tensor)
            else None
            for value in _parts(node.meta["val"])
        )
        return Call(
            builder=self.builder,
            scaling=self.scaling,
            operator=str(node.target),
            place=place,
            arguments={name: self._argument(value) for name, value in arguments.items()},
            results=results,
            dynamic=self.dynamic,
            is_only_reader=first is not None and len(first.users) == 1,
            defaults=defaults,
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
        # An operator without inputs is a constant, which PyTorch computes.
        unknown = Counter(
            str(call.target) for call in calls if call.all_input_nodes and not is_known(call.target)
        )
        target = str(node.target)
        count = unknown.pop(target, 0)
        more = f"; neither are {', '.join(unknown)}" if unknown else ""
        times = "once" if count == 1 else f"{count} times"
        return ModelError(
            f"{self.builder.name}: {place_of(node)}: the operator {target} ({times} in the model) "
            f"is not known{more}: write it with other operators"
        )

    # -- constants --------------------------------------------------------------------------------

    def _is_constant(self, node: torch.fx.Node) -> bool:
        """Return True if all tensors of a node are constants and PyTorch can compute it now."""
        target = node.target
        return (
            getattr(target, "namespace", "") in _FOLDED_NAMESPACES
            and all(source.name in self.tensors for source in node.all_input_nodes)
            and torch.Tag.nondeterministic_seeded not in target.tags
            and not str(target).startswith(_UNDEFINED)
        )

    def _compute(self, node: torch.fx.Node) -> None:
        place = place_of(node)
        # The sizes are checked before anything is computed.
        for value in _parts(node.meta["val"]):
            if isinstance(value, torch.Tensor):
                self._computed_bytes += value.numel() * value.itemsize
        if self._computed_bytes > 0:
            raise ModelError(
                f"{self.builder.name}: {place} ({node.target}): constants that are computed have "
                f"more than {COMPUTED_BYTES:,} bytes and {COMPUTED_SHARE} times the "
                "parameters': make them parameters"
            )
        arguments = torch.fx.map_arg(
            (node.args, node.kwargs), lambda source: self.tensors[source.name]
        )
        with torch.no_grad():
            value = node.target(*arguments[0], **arguments[1])

        def constant(key: Any, part: Any) -> Any:
            if not isinstance(part, torch.Tensor):
                return part
            type_of(f"{self.builder.name}: {place}", part)
            self.tensors[key] = part
            return self.builder.constant(array_of(part), place)

        if isinstance(value, list | tuple):
            parts = (constant((node.name, k), part) for k, part in enumerate(value))
            self.values[node.name] = tuple(parts)
        else:
            self.values[node.name] = constant(node.name, value)


def _written(builder: Builder, module: torch.fx.GraphModule, inputs: Sequence[str]) -> list[str]:
    """Write a graph inside another one, which may be the body of a loop."""
    lowering, nodes = Lowering(builder), list(module.graph.nodes)
    placeholders = [node for node in nodes if node.op == "placeholder"]
    lowering.values |= {
        node.name: tensor for node, tensor in zip(placeholders, inputs, strict=True)
    }
    lowering.run(nodes)
    outputs = nodes[-1].args[0]
    return [lowering.values[node.name] for node in _parts(outputs)]
