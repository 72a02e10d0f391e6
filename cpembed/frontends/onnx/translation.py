"""Translation of an ONNX model to a graph, node by node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from cpembed.errors import CpembedError, ModelError, WorkloadError
from cpembed.frontends import Fallback
from cpembed.frontends.binding import fitted
from cpembed.frontends.builder import Builder, no_tensor
from cpembed.frontends.emitter import Scaling
from cpembed.frontends.loops import LoopBody
from cpembed.frontends.narrow import IN_BYTES, bytes_of
from cpembed.frontends.onnx.call import BeyondKindsError, Call
from cpembed.frontends.onnx.definitions import definition, is_defined
from cpembed.frontends.onnx.fallback import check_fallback, covers, emit_foreign
from cpembed.frontends.onnx.input_types import bound_arrays, input_types, with_axis_sizes
from cpembed.frontends.onnx.model import Body, Model, ModelInput, Node
from cpembed.frontends.onnx.operators import TRANSLATIONS
from cpembed.graph.graph import Graph
from cpembed.graph.kinds.base import Array

_MOVEMENTS = frozenset(
    {
        "Concat", "Constant", "ConstantOfShape", "Expand", "Flatten", "Gather", "GatherElements",
        "GatherND", "Identity", "If", "Reshape", "Slice", "Split", "Squeeze", "Tile", "Transpose",
        "Unsqueeze",
    }
)  # fmt: skip
"""Operators whose results are elements of their inputs."""
_CONVERSIONS: Mapping[str, frozenset[int]] = {
    "Cast": frozenset({0}),
    "CastLike": frozenset({0, 1}),
    "DequantizeLinear": frozenset({0, 2}),
    "GatherBlockQuantized": frozenset({0, 3}),
    "QuantizeLinear": frozenset({2}),
    "Shape": frozenset({0}),
    "Size": frozenset({0}),
}
"""Inputs of operators that may be of a narrow type, which they convert or whose type they take."""


def translate(
    model: Model,
    shapes: Mapping[str, Sequence[int]],
    fallback: Fallback = None,
    constants: Mapping[str, Any] | None = None,
) -> Graph:
    """Return the graph of a model.

    Parameters
    ----------
    model : Model
    shapes : mapping from str to sequence of int
        Shapes of inputs with open sizes; ``NAME:axis`` stands for one axis of an input.
    fallback : Fallback, optional
        What computes the operators that have no translation.
    constants : mapping from str to value, optional
        Values of inputs that are the same in every call.

    Raises
    ------
    ModelError
        With name and place, for anything without a translation.
    """
    check_fallback(model.name, fallback)
    _check_operators(model, fallback)
    builder = Builder(model.name)
    values: dict[str, str] = {}
    model, shapes = with_axis_sizes(model, shapes)
    arrays = bound_arrays(model, constants or {})
    # The value of an input has a shape, whose sizes other inputs may share.
    shaped = {**{name: array.shape for name, array in arrays.items() if array.shape}, **shapes}
    for name, kind in input_types(model, shaped).items():
        try:
            if name in arrays:
                array = fitted(arrays[name], kind.shape, f"{model.name}: input {name}")
                values[name] = builder.constant(array, name)
            else:
                values[name] = builder.input(name, kind)
        except WorkloadError as error:
            raise ModelError(f"{model.name}: input {name}: {error}") from None
    translator = _Translator(model, builder, fallback)
    declared = {value.name: value.dtype for value in model.body.inputs}
    translator.narrow |= {name: dtype for name, dtype in declared.items() if dtype in IN_BYTES}
    translator.body(model.body, values)
    missing = [name for name in model.body.outputs if name not in values]
    if missing:
        raise ModelError(f"{model.name}: nothing writes the output {missing[0]}")
    return builder.graph({name: values[name] for name in model.body.outputs})


def _check_operators(model: Model, fallback: Fallback) -> None:
    """Count all unknown operators before anything is translated."""
    nodes = [node for body in (model.body, *model.body.branches()) for node in body.nodes]
    nodes.sort(key=lambda node: node.number)
    unknown = [
        node
        for node in nodes
        if node.key not in TRANSLATIONS and not is_defined(node) and not covers(fallback, node)
    ]
    if not unknown:
        return
    # One message names all of them, so that the model is exported anew only once.
    counts = Counter(node.key for node in unknown)
    first = unknown[0]
    rest = [f"{count} of {name}" for name, count in counts.items() if name != first.key]
    also = f"; also unknown: {', '.join(rest)}" if rest else ""
    name = f" {first.name}" if first.name else ""
    raise ModelError(
        f"{model.name}: operator {first.key} of node{name} (number {first.number} of "
        f"{len(nodes)}) is not known, the model has {counts[first.key]}{also}: export it with "
        "other operators, cut it before (--outputs), or run it elsewhere (cpembed network "
        "--fallback onnxruntime)"
    )


class _Translator:
    """Translation of one model's nodes into a builder.

    ``narrow`` are the types of tensors of bytes that hold integers of few bits, whose range
    operators other than movements would not preserve, or the bits of floats.
    """

    def __init__(self, model: Model, builder: Builder, fallback: Fallback) -> None:
        self.model = model
        self.builder = builder
        self.fallback = fallback
        self.scaling: Scaling = {}
        self.narrow: dict[str, str] = {}

    def error(self, text: str) -> ModelError:
        return ModelError(f"{self.model.name}: {text}")

    def body(self, body: Body, values: dict[str, str]) -> None:
        """Translate a graph; ``values`` maps its names to tensors and is extended."""
        for name, array in body.constants.items():
            values[name] = self.builder.constant(bytes_of(array), name)
            if str(array.dtype) in IN_BYTES:
                self.narrow[values[name]] = str(array.dtype)
            self._check_declared(f"constant {name}", name, values[name], body.declared)
        # A branch reads the names around it as well, so that its nodes count as readers of them.
        inner = list(body.branches())
        nodes = [node for graph in (body, *inner) for node in graph.nodes]
        readers = Counter(name for node in nodes for name in {*node.inputs})
        readers.update(name for graph in (body, *inner) for name in graph.outputs)
        for node in body.nodes:
            self._node(node, values, readers)
            for name in filter(values.get, node.outputs):
                # Exporters declare shapes of results that the operators do not have, ranks too.
                self._check_declared(str(node), name, values[name], body.declared, shape=False)

    def _check_declared(
        self,
        writer: str,
        name: str,
        tensor: str,
        declared: Mapping[str, ModelInput],
        *,
        shape: bool = True,
    ) -> None:
        """Reject a tensor that the file declares with another element type, or shape, than it has.

        Parameters
        ----------
        writer : str
            What has the tensor, for the message.
        name, tensor : str
            Name in the model and in the graph.
        declared : mapping
            Declarations of the graph by name.
        shape : bool, default True
            False to compare the element type only.
        """
        if name not in declared:
            return
        computed, declaration = self.builder.types[tensor], declared[name]
        sizes = computed.shape if declaration.sizes is None else declaration.sizes
        same = not shape or (
            len(sizes) == len(computed.shape)
            and all(
                isinstance(size, str) or size in (actual, -1)
                for size, actual in zip(sizes, computed.shape, strict=True)
            )
        )
        dtype = declaration.dtype
        if not same or IN_BYTES.get(dtype, dtype) not in ("", computed.dtype):
            text = f"{dtype} [{', '.join(str(size) or '?' for size in sizes)}]".strip()
            raise self.error(
                f"{writer}: {name} is declared as {text} and is {computed}: correct the "
                "declaration, or leave it out"
            )

    def _node(self, node: Node, values: dict[str, str], readers: Counter[str]) -> None:
        for name in node.inputs:
            if name and name not in values:
                raise self.error(f"{node} reads {name}, which nothing before it writes")

        def branch(body: Body) -> Sequence[str]:
            return unrolled(body, ())

        def unrolled(body: Body, inputs: Sequence[str]) -> Sequence[str]:
            inner = dict(values)
            inner |= zip((value.name for value in body.inputs), inputs, strict=False)
            self.body(body, inner)
            return [inner[name] for name in body.outputs]

        def looped(body: Body, loop: LoopBody, inputs: Sequence[str]) -> Sequence[str]:
            return self._loop_body(body, loop, inputs, values)

        call = Call(
            builder=self.builder,
            scaling=self.scaling,
            node=node,
            inputs=tuple(values[name] if name else None for name in node.inputs),
            readers=tuple(readers[name] for name in node.inputs),
            is_read=tuple(bool(name) and readers[name] > 0 for name in node.outputs),
            run=branch,
            run_loop=looped,
            run_unrolled=unrolled,
            narrow=tuple(self.narrow.get(values.get(name, ""), "") for name in node.inputs),
        )
        # Only tensors that this node adds may take the names of its outputs.
        self.builder.fresh.clear()
        try:
            # Constants are computed as the network would compute them, infinities and NaN included.
            with np.errstate(all="ignore"):
                results = self._translated(call)
        except CpembedError as error:
            # An inner node of a branch or a definition has named its place already.
            if isinstance(error, ModelError) and str(error).startswith(f"{self.model.name}: "):
                raise
            raise self.error(f"{node}: {error}") from error
        except (ValueError, TypeError, IndexError, KeyError, OverflowError, MemoryError,
                ZeroDivisionError, AttributeError) as error:  # fmt: skip
            # In a damaged file attributes and shapes contradict each other.
            reason = " ".join(str(error).split()) or type(error).__name__
            raise self.error(f"{node} does not fit its inputs or attributes: {reason}") from error
        results = [results] if isinstance(results, str) else list(results)
        self._bind(call, results, values, readers)

    def _loop_body(
        self, body: Body, loop: LoopBody, inputs: Sequence[str], values: Mapping[str, str]
    ) -> Sequence[str]:
        """Translate the body of a loop into its own builder; it may read names around the loop."""
        # A library executes a loop, and no library executes another runtime's operators.
        inner = _Translator(self.model, loop.builder, None)
        graphs = (body, *body.branches())
        read = [name for graph in graphs for node in graph.nodes for name in node.inputs]
        read += [name for graph in graphs for name in graph.outputs]
        scope: dict[str, str] = {}
        for name in dict.fromkeys(read):
            if name in values:
                scope[name] = loop.read(values[name])
                if narrow := self.narrow.get(values[name]):
                    inner.narrow[scope[name]] = narrow
        scope |= zip((value.name for value in body.inputs), inputs, strict=False)
        inner.body(body, scope)
        missing = [name for name in body.outputs if name not in scope]
        if missing:
            raise self.error(f"nothing writes {missing[0]}, an output of the body of {loop.name}")
        return [scope[name] for name in body.outputs]

    def _translated(self, call: Call) -> str | Sequence[str]:
        if not covers(self.fallback, call.node):
            return self._in_kinds(call)
        is_known = call.node.key in TRANSLATIONS or is_defined(call.node)
        try:
            return self._in_kinds(call) if is_known else emit_foreign(call, self.fallback)
        except (ModelError, WorkloadError):
            # What was added of it so far is not needed and goes with all else that nothing reads.
            return emit_foreign(call, self.fallback)

    def _in_kinds(self, call: Call) -> str | Sequence[str]:
        translation = TRANSLATIONS.get(call.node.key)
        if translation is None:
            return self._by_definition(call)
        self._check_narrow(call)
        try:
            results = translation(call)
            call.check_read()
        except BeyondKindsError:
            if not is_defined(call.node):
                raise
            with suppress(ModelError, WorkloadError):
                self.builder.fresh.clear()
                return self._by_definition(call)
            # The reason of the operator itself says more than that of one inside its definition.
            raise
        return results

    def _check_narrow(self, call: Call) -> None:
        """Reject a narrow type as an input of an operator that computes with its values."""
        operator = call.node.operator
        places = {k for k, narrow in enumerate(call.narrow) if narrow}
        converted = _CONVERSIONS.get(operator, frozenset[int]())
        if places and not places <= converted and operator not in _MOVEMENTS:
            place = min(places - converted)
            call.reject(
                f"input {place} is of {call.narrow[place]}, which is dequantized, cast or moved "
                "here: use bytes or float32"
            )

    def _by_definition(self, call: Call) -> Sequence[str]:
        """Translate the operators by which the format defines a node."""
        if not is_defined(call.node):
            call.reject("it is not known here: export the model with other operators")
        types = [None if name is None else self.builder.types[name] for name in call.inputs]
        body = definition(call.node, types)
        pairs = zip(body.inputs, call.inputs, strict=False)
        values = {inner.name: tensor for inner, tensor in pairs if tensor is not None}
        self.body(body, values)
        return [values.get(name, "") for name in body.outputs]

    def _narrow_results(self, call: Call) -> str:
        """Return the narrow type of a node's results; empty for other types."""
        if call.makes or call.node.operator not in _MOVEMENTS:
            return next(iter(call.makes), "")
        value: Array | None = call.node.attributes.get("value")
        if isinstance(value, np.ndarray) and str(value.dtype) in IN_BYTES:
            return str(value.dtype)
        return next(filter(None, call.narrow), "")

    def _bind(
        self, call: Call, results: list[str], values: dict[str, str], readers: Counter[str]
    ) -> None:
        """Name a node's results as its outputs are named."""
        node, narrow = call.node, self._narrow_results(call)
        for k, name in enumerate(node.outputs):
            result = results[k] if k < len(results) else ""
            if not name:
                continue
            if not result:
                if readers[name]:
                    raise self.error(
                        f"{node}: its output {k}, {name}, is not computed here: export the model "
                        "without it"
                    )
                continue
            if name in values:
                raise self.error(f"{node} writes {name} again")
            # A tensor that is two outputs keeps its name; the second could not have another one.
            is_single = results.count(result) == 1
            values[name] = self.builder.rename(result, name) if is_single else result
            if narrow:
                self.narrow[values[name]] = narrow
            # A later normalization looks the product up by its new name.
            if result in self.scaling:
                self.scaling[values[name]] = self.scaling[result]


def cut(model: Model, outputs: Sequence[str]) -> Model:
    """Return the part of a model that computes some tensors, which become its outputs.

    Inputs that nothing reads any more are left out.

    Parameters
    ----------
    model : Model
    outputs : sequence of str
        Names of tensors: the model's outputs or any others. None leaves the model as it is.

    Raises
    ------
    ModelError
        For a name that no tensor has.
    """
    if not outputs:
        return model
    body = model.body
    inputs = [value.name for value in body.inputs]
    written = [name for node in body.nodes for name in node.outputs if name]
    names = {*inputs, *body.constants, *written}
    for name in outputs:
        if name not in names:
            raise ModelError(no_tensor(model.name, name, written))
    needed, nodes = {*outputs}, list[Node]()
    for node in reversed(body.nodes):
        if needed.intersection(node.outputs):
            needed.update(tensors_read(node))
            nodes.append(node)
    rest = replace(
        body,
        inputs=tuple(value for value in body.inputs if value.name in needed),
        outputs=tuple(dict.fromkeys(outputs)),
        nodes=tuple(reversed(nodes)),
    )
    return replace(model, body=rest)


def tensors_read(node: Node) -> Iterator[str]:
    """Yield the tensors that a node reads, in its branches too."""
    yield from filter(None, node.inputs)
    for value in node.attributes.values():
        if isinstance(value, Body):
            yield from _outer(value)


def _outer(body: Body) -> Iterator[str]:
    """Yield the tensors outside a branch that it reads."""
    inner = {*body.constants, *(value.name for value in body.inputs)}
    inner |= {name for node in body.nodes for name in node.outputs}
    for node in body.nodes:
        yield from (name for name in tensors_read(node) if name not in inner)
    yield from (name for name in body.outputs if name not in inner)
