"""An exported program, built from its description in a file.

Operators are looked up in a table of ATen's, so that a name in a file reaches nothing else. The
type of each result is computed by PyTorch with tensors that have no elements, and compared with
the type in the file.
"""
# pyright: basic

# What it imports is an extra, which a type checker need not find, and not this package.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import functools
import keyword
import math
import operator
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch._export.verifier import load_verifier
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import ExportedProgram, default_decompositions
from torch.export.exported_program import ModuleCallEntry, ModuleCallSignature
from torch.export.graph_signature import (
    ConstantArgument,
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from cpembed.errors import ModelError
from cpembed.frontends.builder import LARGEST_TENSOR
from cpembed.frontends.torch import description as d
from cpembed.frontends.torch.archive import (
    CONSTANTS,
    ELEMENT_TYPES,
    PROGRAM,
    STRIDED,
    WEIGHTS,
    Archive,
    Payloads,
    checked_layout,
)
from cpembed.frontends.torch.decompositions import decompositions
from cpembed.frontends.torch.operators import HANDLERS

_MEMORY_FORMATS = {
    1: torch.contiguous_format,
    2: torch.channels_last,
    3: torch.channels_last_3d,
    4: torch.preserve_format,
}
_MAX_RESULTS = 1 << 16
"""Maximum number of results of an operator that returns a list."""
_NAME = re.compile(r"[A-Za-z_]\w{0,999}", re.ASCII)
_RESERVED_NAMES = frozenset(torch.fx.graph._custom_builtins)
"""Globals of the code that fx generates, such as ``torch``."""
_PARAMETERS = {
    "parameter": (InputKind.PARAMETER, WEIGHTS),
    "buffer": (InputKind.BUFFER, WEIGHTS),
    "tensor_constant": (InputKind.CONSTANT_TENSOR, CONSTANTS),
}
_MUTATIONS = {
    "buffer_mutation": OutputKind.BUFFER_MUTATION,
    "parameter_mutation": OutputKind.PARAMETER_MUTATION,
    "user_input_mutation": OutputKind.USER_INPUT_MUTATION,
}


@functools.cache
def operators() -> Mapping[str, Any]:
    """Return operators by their names in a file."""
    # Those with a handler or a decomposition, and the core of ATen: none of them reads or writes a
    # file, or calls a function of Python's.
    table: dict[str, Any] = {}
    for operation in (*default_decompositions().keys(), *decompositions()):
        table[f"torch.ops.{operation}"] = operation
    for schema in torch._C._dispatch_get_all_op_names():
        space, _, rest = schema.partition("::")
        name, _, overload = rest.partition(".")
        full = f"{space}.{name}.{overload or 'default'}"
        if space not in ("aten", "quantized_decomposed"):
            continue
        is_check = name.startswith("_assert_")
        operation = getattr(getattr(getattr(torch.ops, space), name), overload or "default", None)
        if operation is None:
            continue
        if full in HANDLERS or is_check or torch.Tag.core in operation.tags:
            table[f"torch.ops.{full}"] = operation
    return table


def read_program(archive: Archive) -> tuple[ExportedProgram, Mapping[str, str]]:
    """Build the program that an archive describes.

    Returns the program, and the file's names of its parameters and constants by their names in the
    program. Those become attributes of a module, for which no name from a file is used.

    Raises :class:`ModelError` for a description that is damaged, is of another version, or names
    anything that no network has.
    """
    program = d.decoded(f"{archive.path}: {PROGRAM}", archive.texts[PROGRAM], d.Program)
    if program.schema_version.major != d.SCHEMA:
        raise ModelError(
            f"{archive.path}: the schema has version {program.schema_version.major}, and "
            f"{d.SCHEMA} is read: export and save the model again with PyTorch 2.9 or later"
        )
    reader = _Reader(archive)
    return reader.program(program.graph_module), reader.names


class _Reader:
    """Builder of a program's graph; ``nodes`` are by their names in the file."""

    def __init__(self, archive: Archive) -> None:
        self.path: Path = archive.path
        self.payloads = Payloads(archive)
        self.graph = torch.fx.Graph()
        self.nodes: dict[str, torch.fx.Node] = {}
        self.names: dict[str, str] = {}
        self.parameters: dict[str, torch.Tensor] = {}
        self.types: Mapping[str, d.TensorMeta] = {}
        # Types are computed without data, and by no kernel that would need any.
        self.fake = FakeTensorMode(
            allow_fallback_kernels=False, allow_non_fake_inputs=False, shape_env=ShapeEnv()
        )

    def error(self, text: str) -> ModelError:
        return ModelError(f"{self.path}: {text}")

    def program(self, module: d.Module) -> ExportedProgram:
        graph, signature = module.graph, module.signature
        self.types = graph.tensor_values
        if len(graph.inputs) != len(signature.input_specs):
            raise self.error("is damaged: its inputs and their kinds differ in number")
        if len(graph.outputs) != len(signature.output_specs):
            raise self.error("is damaged: its outputs and their kinds differ in number")
        inputs = [
            self._input(value, spec)
            for value, spec in zip(graph.inputs, signature.input_specs, strict=True)
        ]
        for node in graph.nodes:
            self._call(node)
        returned = [self._argument("an output", value) for value in graph.outputs]
        outputs = [
            self._output(value, spec)
            for value, spec in zip(returned, signature.output_specs, strict=True)
        ]
        node = self.graph.output(tuple(returned))
        node.meta["val"] = tuple(
            v.meta["val"] if isinstance(v, torch.fx.Node) else v for v in returned
        )
        return self._exported(inputs, outputs)

    def _exported(self, inputs: list[InputSpec], outputs: list[OutputSpec]) -> ExportedProgram:
        kinds = InputKind.CONSTANT_TENSOR
        constants = {s.target for s in inputs if s.kind is kinds or s.persistent is False}
        user_inputs = [s.arg for s in inputs if s.kind is InputKind.USER_INPUT]
        returned = [s.arg for s in outputs if s.kind is OutputKind.USER_OUTPUT]
        call = ModuleCallSignature(
            inputs=user_inputs,
            outputs=returned,
            in_spec=pytree.tree_structure((tuple(range(len(user_inputs))), {})),
            out_spec=pytree.tree_structure(tuple(range(len(returned)))),
            forward_arg_names=[arg.name for arg in user_inputs],
        )
        return ExportedProgram(
            root=torch.nn.Module(),
            graph=self.graph,
            graph_signature=ExportGraphSignature(inputs, outputs),
            state_dict={n: t for n, t in self.parameters.items() if n not in constants},
            range_constraints={},
            module_call_graph=[ModuleCallEntry(fqn="", signature=call)],
            constants={n: t for n, t in self.parameters.items() if n in constants},
            verifiers=[load_verifier("TRAINING")],
        )

    # -- inputs and outputs -----------------------------------------------------------------------

    def _input(self, value: d.Union, spec: d.Union) -> InputSpec:
        key, described = d.tagged(f"{self.path}: an input", spec)
        if key == "constant_input":
            number = self._argument(f"the input {described.name}", described.value)
            self._name(described.name)
            node = self.graph.placeholder(described.name)
            self._add(described.name, node, number)
            return InputSpec(
                InputKind.USER_INPUT, ConstantArgument(described.name, number), target=None
            )
        if key not in ("user_input", *_PARAMETERS):
            raise self.error(f"an input is of the kind {key}, which no network has")
        kind, argument = d.tagged(f"{self.path}: an input", value)
        if kind != "as_tensor":
            raise self.error("an input is no tensor: export it as a constant")
        name = self._name(argument.name)
        node = self.graph.placeholder(name)
        if key == "user_input":
            self._add(name, node, self._described(name))
            return InputSpec(InputKind.USER_INPUT, TensorArgument(name), target=None)
        if described.arg.name != name:
            raise self.error(f"is damaged: the input {name} is named {described.arg.name}, too")
        input_kind, folder = _PARAMETERS[key]
        tensor = self.payloads.tensor(described.target, folder)
        if input_kind is InputKind.PARAMETER:
            tensor = torch.nn.Parameter(tensor, requires_grad=False)
        target = f"parameter_{len(self.parameters)}"
        self.parameters[target], self.names[target] = tensor, described.target
        self._add(name, node, self.fake.from_tensor(tensor, static_shapes=True))
        self._check(name, node.meta["val"])
        persistent = True if input_kind is InputKind.BUFFER else None
        return InputSpec(input_kind, TensorArgument(name), target, persistent)

    def _output(self, value: Any, spec: d.Union) -> OutputSpec:
        key, described = d.tagged(f"{self.path}: an output", spec)
        is_node = isinstance(value, torch.fx.Node)
        if key in _MUTATIONS and is_node:
            return OutputSpec(_MUTATIONS[key], TensorArgument(value.name), described.target)
        if key != "user_output":
            raise self.error(f"an output is of the kind {key}, which no network has")
        argument = TensorArgument(value.name) if is_node else ConstantArgument("", value)
        return OutputSpec(OutputKind.USER_OUTPUT, argument, target=None)

    def _described(self, name: str) -> torch.Tensor:
        """Return a tensor without elements of the type in the file."""
        meta = self._meta(name)
        sizes, strides = checked_layout(f"{self.path}: {name}", meta)
        with self.fake:
            return torch.empty_strided(sizes, strides, dtype=ELEMENT_TYPES[meta.dtype])

    def _meta(self, name: str) -> d.TensorMeta:
        if name not in self.types:
            raise self.error(f"is damaged: it does not say what type {name} has")
        return self.types[name]

    # -- nodes ------------------------------------------------------------------------------------

    def _name(self, name: str) -> str:
        """Check that a name is an identifier: fx writes names into the code of a module."""
        if not _NAME.fullmatch(name) or keyword.iskeyword(name) or name in _RESERVED_NAMES:
            raise self.error(f"is damaged: {name!r} is no name of a node")
        return name

    def _add(self, name: str, node: torch.fx.Node, value: Any) -> None:
        if name in self.nodes:
            raise self.error(f"is damaged: two nodes are named {name}")
        node.name = name
        node.meta["val"] = value
        self.nodes[name] = node

    def _call(self, described: d.Node) -> None:
        place = described.name or described.target
        target = operators().get(described.target)
        if target is None:
            raise self.error(f"{place}: {described.target} is no operator that is known")
        arguments = {a.name: self._argument(place, a.arg) for a in described.inputs}
        by_place = {a.name for a in described.inputs if a.kind == 1}
        positional, named = _bound_arguments(target, arguments, by_place)
        if len(positional) + len(named) != len(arguments):
            raise self.error(f"{place}: {described.target} has other arguments")
        node = self.graph.call_function(target, positional, named)
        node.meta["nn_module_stack"] = module_stack(described.metadata.get("nn_module_stack", ""))
        self._check_count(place, target, positional, named)
        value = self._result(place, node)
        self._results(described, node, value)

    def _result(self, place: str, node: torch.fx.Node) -> Any:
        def value(source: torch.fx.Node) -> Any:
            return source.meta["val"]

        arguments = torch.fx.map_arg((node.args, node.kwargs), value)
        try:
            with self.fake, torch.no_grad():
                return node.target(*arguments[0], **arguments[1])
        except Exception as error:
            # PyTorch raises many kinds of errors for arguments that an operator does not take.
            reason = str(error).partition("\n")[0]
            raise self.error(
                f"{place}: {node.target} does not take its arguments: {reason}"
            ) from error

    def _results(self, described: d.Node, node: torch.fx.Node, value: Any) -> None:
        outputs = [d.tagged(f"{self.path}: {described.name}", u) for u in described.outputs]
        if len(outputs) == 1 and outputs[0][0] == "as_tensor":
            name = self._name(outputs[0][1].name)
            self._add(name, node, value)
            self._check(name, value)
            return
        node.meta["val"] = value
        if described.name is not None:
            self._add(self._name(described.name), node, value)
        if not outputs or (len(outputs) == 1 and outputs[0][0] == "as_none"):
            return
        if len(outputs) == 1 and outputs[0][0] == "as_tensors":
            outputs = [("as_tensor", part) for part in outputs[0][1]]
        if not isinstance(value, list | tuple) or len(value) != len(outputs):
            raise self.error(f"{described.name}: {node.target} has another number of results")
        for index, (key, part) in enumerate(outputs):
            if key == "as_none":
                continue
            if key != "as_tensor":
                raise self.error(f"{described.name}: a result is of the kind {key}")
            item = self.graph.call_function(operator.getitem, (node, index))
            item.meta["nn_module_stack"] = node.meta["nn_module_stack"]
            self._add(self._name(part.name), item, value[index])
            self._check(part.name, value[index])

    def _check(self, name: str, value: Any) -> None:
        """Raise :class:`ModelError` for a tensor of another type than the file's."""
        meta = self._meta(name)
        sizes = [d.integer(f"{self.path}: {name}", union) for union in meta.sizes]
        if not isinstance(value, torch.Tensor):
            raise self.error(f"{name} is no tensor")
        computed = [int(size) for size in value.shape]
        if computed != sizes or value.dtype is not ELEMENT_TYPES.get(meta.dtype):
            raise self.error(
                f"is damaged: {name} has the type {value.dtype} {computed}, and the file says "
                f"{ELEMENT_TYPES.get(meta.dtype)} {sizes}"
            )
        if math.prod(sizes) > LARGEST_TENSOR:
            raise self.error(f"{name} has {math.prod(sizes):,} elements: at most 2^31 are taken")

    def _check_count(
        self, place: str, target: Any, positional: tuple[Any, ...], named: Mapping[str, Any]
    ) -> None:
        """Raise :class:`ModelError` before an operator returns an endless list."""
        if not any("[]" in str(r.type) or "List" in str(r.type) for r in target._schema.returns):
            return
        schema = target._schema.arguments
        bound = {a.name: a.default_value for a in schema}
        bound |= dict(zip((a.name for a in schema), positional))  # noqa: B905
        bound |= named
        part = bound.get("split_size") or 1
        source: Any = bound.get("self") or bound.get("input")
        sections = [v for k, v in bound.items() if k in ("chunks", "sections")]
        if isinstance(source, torch.fx.Node) and isinstance(part, int):
            longest = max((int(s) for s in source.meta["val"].shape), default=0)
            sizes = [longest // max(1, part), *(s for s in sections if isinstance(s, int))]
            if (max(sizes) if sections else sizes[0]) > _MAX_RESULTS:
                raise self.error(f"{place}: {target} has more than {_MAX_RESULTS:,} results")

    def _argument(self, place: str, union: d.Union) -> Any:
        return self._value(place, *d.tagged(f"{self.path}: {place}", union))

    def _value(self, place: str, key: str, value: Any) -> Any:
        if isinstance(value, list):
            return [self._value(place, key.removesuffix("s"), part) for part in value]
        match key:
            case "as_none":
                return None
            case "as_tensor" if value.name in self.nodes:
                return self.nodes[value.name]
            case "as_tensor":
                raise self.error(f"{place} reads {value.name[:60]}, which nothing computes")
            case "as_int" | "as_string" | "as_bool":
                return value
            case "as_float":
                return self._number(place, value)
            case "as_sym_int" | "as_sym_float" | "as_sym_bool" | "as_optional_tensor":
                return self._argument(place, value)
            case "as_scalar_type" if value in ELEMENT_TYPES:
                return ELEMENT_TYPES[value]
            case "as_memory_format" if value in _MEMORY_FORMATS:
                return _MEMORY_FORMATS[value]
            case "as_layout" if value == STRIDED:
                return torch.strided
            case "as_device" if value.type == "cpu":
                return torch.device("cpu")
            case "as_device":
                raise self.error(
                    f"{place}: a tensor is put on {value.type[:40]}: export the model on the CPU"
                )
            case _:
                raise self.error(f"{place}: {key} {str(value)[:60]} is not known")

    def _number(self, place: str, value: float | str) -> float:
        special = {"Infinity": math.inf, "-Infinity": -math.inf, "NaN": math.nan}
        if isinstance(value, str) and value not in special:
            raise self.error(f"{place}: {value[:40]!r} is no number")
        return special[value] if isinstance(value, str) else float(value)


def module_stack(text: str) -> dict[str, tuple[str, str]]:
    """Parse the modules around a node, outermost first, from ``key,path,type;…``."""
    stack: dict[str, tuple[str, str]] = {}
    for entry in text.split(";"):
        key, _, rest = entry.partition(",")
        path, _, kind = rest.rpartition(",")
        if key:
            stack[key] = path, kind
    return stack


def _bound_arguments(
    target: Any, arguments: Mapping[str, Any], by_place: set[str]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return positional and named arguments as an operator's schema takes them."""
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for parameter in target._schema.arguments:
        if parameter.name not in arguments:
            continue
        required = not parameter.has_default_value() and not parameter.kwarg_only
        # An argument named `from` cannot be passed by its name.
        at_place = parameter.name in by_place or required or keyword.iskeyword(parameter.name)
        # After a named argument none can be positional.
        if at_place and not parameter.kwarg_only and not named:
            positional.append(arguments[parameter.name])
        else:
            named[parameter.name] = arguments[parameter.name]
    return tuple(positional), named
