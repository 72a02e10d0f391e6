"""From a :class:`Model` to a graph: node by node, each by the translation of its operator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from cpembed.errors import CpembedError, ModelError, WorkloadError
from cpembed.frontends.builder import Builder
from cpembed.frontends.emitter import Scaling
from cpembed.frontends.onnx.functions import definition, is_defined
from cpembed.frontends.onnx.model import FOUR_BITS, Body, Model, ModelInput, Node, in_bytes
from cpembed.frontends.onnx.operators.table import STANDARD_DOMAINS, TRANSLATIONS
from cpembed.frontends.onnx.site import Site
from cpembed.frontends.onnx.unread import refuse_unread
from cpembed.graph.graph import Graph
from cpembed.graph.kinds import TensorType
from cpembed.graph.kinds.base import Array


def translate(model: Model, shapes: Mapping[str, Sequence[int]]) -> Graph:
    """The graph of a model; ``shapes`` of inputs whose sizes it leaves open.

    Raises :class:`ModelError` for what has no translation, by name and place.
    """
    _refuse_unknown(model)
    builder = Builder(model.name)
    values: dict[str, str] = {}
    for name, kind in _input_types(model, shapes).items():
        try:
            values[name] = builder.input(name, kind)
        except WorkloadError as error:
            raise ModelError(f"{model.name}: input {name}: {error}") from None
    run = _Run(model, builder)
    run.narrow |= {given.name for given in model.body.inputs if given.dtype in FOUR_BITS}
    run.body(model.body, values)
    missing = [name for name in model.body.outputs if name not in values]
    if missing:
        raise ModelError(f"{model.name}: nothing writes the output {missing[0]}")
    return builder.graph({name: values[name] for name in model.body.outputs})


def _all_nodes(body: Body) -> Iterator[Node]:
    for node in body.nodes:
        yield node
        for value in node.attributes.values():
            if isinstance(value, Body):
                yield from _all_nodes(value)


def _key(node: Node) -> str:
    return node.operator if node.domain in STANDARD_DOMAINS else f"{node.domain}.{node.operator}"


def _refuse_unknown(model: Model) -> None:
    nodes = list(_all_nodes(model.body))
    unknown = [n for n in nodes if _key(n) not in TRANSLATIONS and not is_defined(n)]
    if not unknown:
        return
    counts = Counter(map(_key, unknown))
    first = unknown[0]
    others = [f"{count} of {name}" for name, count in counts.items() if name != _key(first)]
    also = f"; also unknown: {', '.join(others)}" if others else ""
    named = f" {first.name}" if first.name else ""
    raise ModelError(
        f"{model.name}: operator {_key(first)} of node{named} (number {first.number} of "
        f"{len(nodes)}) is not known, there are {counts[_key(first)]} of it{also}: export the "
        "model with other operators, or cut it before"
    )


def _input_types(model: Model, shapes: Mapping[str, Sequence[int]]) -> dict[str, TensorType]:
    """Of every input, the open sizes set: an open size of one name is the same everywhere."""
    inputs = {given.name: given for given in model.body.inputs}
    for name in shapes:
        if name not in inputs:
            known = ", ".join(inputs) or "none"
            raise ModelError(f"{model.name} has no input {name}: its inputs are {known}")
    sizes: dict[str, int] = {}
    for name, shape in shapes.items():
        _check_shape(model.name, inputs[name], shape)
        for size, given in zip(inputs[name].sizes or (), shape, strict=False):
            if isinstance(size, str) and size and sizes.setdefault(size, int(given)) != given:
                raise ModelError(
                    f"{model.name}: the size {size} is given as {sizes[size]} and as {given}: give "
                    "one"
                )
    return {
        name: TensorType(
            _shape(model.name, given, shapes.get(name), sizes),
            FOUR_BITS.get(given.dtype, given.dtype),
        )
        for name, given in inputs.items()
    }


def _check_shape(model: str, given: ModelInput, shape: Sequence[int]) -> None:
    said = ",".join(map(str, shape))
    if any(size < 0 for size in shape):
        raise ModelError(f"{model}: the shape {said} of input {given.name}: sizes are at least 0")
    if given.sizes is None:
        return
    if len(given.sizes) != len(shape):
        raise ModelError(
            f"{model}: input {given.name} has {len(given.sizes)} dimensions, the shape {said} has "
            f"{len(shape)}"
        )
    for k, (size, asked) in enumerate(zip(given.sizes, shape, strict=True)):
        if not _is_open(size) and size != asked:
            raise ModelError(
                f"{model}: dimension {k} of input {given.name} is {size} in the model, not "
                f"{asked}: give {size}, or export the model anew"
            )


def _is_open(size: int | str) -> bool:
    return isinstance(size, str) or size < 0


def _shape(
    model: str, given: ModelInput, asked: Sequence[int] | None, sizes: Mapping[str, int]
) -> tuple[int, ...]:
    if asked is not None:
        return tuple(int(size) for size in asked)
    if given.sizes is None:
        raise ModelError(
            f"{model}: input {given.name} has no shape: give it with shapes= or --shape "
            f"{given.name}=1,3,224,224"
        )
    example = ",".join(str(1 if _is_open(size) else size) for size in given.sizes)
    found: list[int] = []
    for k, size in enumerate(given.sizes):
        if isinstance(size, str) and size in sizes:
            found.append(sizes[size])
        elif isinstance(size, str) or size < 0:
            named = f" ({size})" if isinstance(size, str) and size else ""
            raise ModelError(
                f"{model}: dimension {k}{named} of input {given.name} is left open: networks here "
                f"have fixed shapes; give them with shapes= or --shape {given.name}={example}"
            )
        else:
            found.append(size)
    return tuple(found)


_MOVES = frozenset(
    {
        "Concat", "Constant", "ConstantOfShape", "Expand", "Flatten", "Gather", "GatherElements",
        "GatherND", "Identity", "If", "Reshape", "Slice", "Split", "Squeeze", "Tile", "Transpose",
        "Unsqueeze",
    }
)  # fmt: skip
"""Operators whose results are elements of their inputs."""
_WIDENS = frozenset({"Cast", "CastLike", "DequantizeLinear", "Shape", "Size"})
"""Operators that take integers of four bits as their first input and make something else of it."""


class _Run:
    """The translation of one model's nodes into a builder. ``narrow``: tensors of bytes that hold
    integers of four bits, which other operators would not keep within these."""

    def __init__(self, model: Model, builder: Builder) -> None:
        self.model = model
        self.builder = builder
        self.scaling: Scaling = {}
        self.narrow: set[str] = set()

    def body(self, body: Body, values: dict[str, str]) -> None:
        """Translate a body's nodes; ``values``: the tensor of each of its names."""
        for name, array in body.constants.items():
            values[name] = self.builder.constant(in_bytes(array), name)
            if str(array.dtype) in FOUR_BITS:
                self.narrow.add(values[name])
            self._check_declared(f"constant {name}", name, values[name], body.declared)
        readers = Counter(name for node in _all_nodes(body) for name in {*node.inputs})
        readers.update(body.outputs)
        readers.update(name for inner in _branches(body) for name in inner.outputs)
        for node in body.nodes:
            self._node(node, values, readers)
            for name in filter(values.get, node.outputs):
                self._check_declared(str(node), name, values[name], body.declared)

    def _check_declared(
        self, writer: str, name: str, tensor: str, declared: Mapping[str, ModelInput]
    ) -> None:
        """Refuse a tensor that the file declares with another type than it has."""
        if name not in declared:
            return
        computed, file = self.builder.types[tensor], declared[name]
        sizes = computed.shape if file.sizes is None else file.sizes
        same = len(sizes) == len(computed.shape) and all(
            isinstance(size, str) or size in (own, -1)
            for size, own in zip(sizes, computed.shape, strict=True)
        )
        if not same or FOUR_BITS.get(file.dtype, file.dtype) not in ("", computed.dtype):
            shown = f"{file.dtype} [{', '.join(str(size) or '?' for size in sizes)}]".strip()
            raise ModelError(
                f"{self.model.name}: {writer}: {name} is declared as {shown} and is {computed}: "
                "correct the declaration, or leave it out"
            )

    def _node(self, node: Node, values: dict[str, str], readers: Counter[str]) -> None:
        for name in node.inputs:
            if name and name not in values:
                raise ModelError(
                    f"{self.model.name}: {node} reads {name}, which nothing before it writes"
                )

        def branch(body: Body) -> Sequence[str]:
            inner = dict(values)
            self.body(body, inner)
            return [inner[name] for name in body.outputs]

        site = Site(
            self.builder,
            self.scaling,
            node,
            tuple(values[name] if name else None for name in node.inputs),
            tuple(readers[name] for name in node.inputs),
            tuple(bool(name) and readers[name] > 0 for name in node.outputs),
            branch,
        )
        self.builder.fresh.clear()
        try:
            with np.errstate(all="ignore"):
                translation = TRANSLATIONS.get(_key(node))
                if translation is None:
                    results = self._defined(site)
                else:
                    self._refuse_narrow(site)
                    results = translation(site)
                    refuse_unread(site)
        except ModelError as error:
            if str(error).startswith(f"{self.model.name}: "):
                raise
            raise ModelError(f"{self.model.name}: {node}: {error}") from error
        except CpembedError as error:
            raise ModelError(f"{self.model.name}: {node}: {error}") from error
        except (ValueError, TypeError, IndexError, KeyError, OverflowError, MemoryError,
                ZeroDivisionError, AttributeError) as error:  # fmt: skip
            # Attributes and shapes that contradict each other, in a damaged file.
            reason = " ".join(str(error).split()) or type(error).__name__
            raise ModelError(
                f"{self.model.name}: {node} does not fit its inputs or attributes: {reason}"
            ) from error
        self._bind(node, [results] if isinstance(results, str) else list(results), values, readers)

    def _refuse_narrow(self, site: Site) -> None:
        """Refuse integers of four bits as inputs of an operator that may leave their range."""
        narrow = [k for k, tensor in enumerate(site.inputs) if tensor in self.narrow]
        widens = site.node.operator in _WIDENS and narrow == [0]
        # The zero point beside them.
        widens = widens or (site.node.operator == "DequantizeLinear" and narrow == [0, 2])
        if narrow and not widens and site.node.operator not in _MOVES:
            site.refuse(
                f"input {narrow[0]} is of integers of four bits, which are dequantized, cast or "
                "moved here: use bytes"
            )

    def _is_narrow(self, node: Node, values: Mapping[str, str]) -> bool:
        """Whether the results of a node are integers of four bits."""
        value: Array | None = node.attributes.get("value")
        made = isinstance(value, np.ndarray) and str(value.dtype) in FOUR_BITS
        moved = any(values.get(name) in self.narrow for name in node.inputs)
        return node.operator in _MOVES and (made or moved)

    def _defined(self, site: Site) -> Sequence[str]:
        """A node by the operators that the format defines it with."""
        if not is_defined(site.node):
            site.refuse("it is not known here: export the model with other operators")
        types = [None if name is None else self.builder.types[name] for name in site.inputs]
        body = definition(site.node, types)
        given = zip(body.inputs, site.inputs, strict=False)
        values = {own.name: name for own, name in given if name is not None}
        self.body(body, values)
        return [values.get(name, "") for name in body.outputs]

    def _bind(
        self, node: Node, results: list[str], values: dict[str, str], readers: Counter[str]
    ) -> None:
        """Call a node's results by the names of its outputs."""
        narrow = self._is_narrow(node, values)
        for k, name in enumerate(node.outputs):
            if k >= len(results) or not results[k]:
                if name and readers[name]:
                    raise ModelError(
                        f"{self.model.name}: {node}: its output {k}, {name}, is not computed here: "
                        "export the model without it"
                    )
                continue
            if not name:
                continue
            if name in values:
                raise ModelError(f"{self.model.name}: {node} writes {name} again")
            once = results.count(results[k]) == 1
            values[name] = self.builder.rename(results[k], name) if once else results[k]
            if narrow:
                self.narrow.add(values[name])
            if results[k] in self.scaling:
                self.scaling[values[name]] = self.scaling[results[k]]


def _branches(body: Body) -> Iterator[Body]:
    for node in body.nodes:
        for value in node.attributes.values():
            if isinstance(value, Body):
                yield value
                yield from _branches(value)
