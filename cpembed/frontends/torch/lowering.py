"""Reading of exported programs of PyTorch, from files or from memory, as graphs of kinds."""
# pyright: basic

# What it imports is an extra, which a type checker need not find, and not this package.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import operator
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram, default_decompositions
from torch.export.graph_signature import (
    ConstantArgument,
    InputKind,
    OutputKind,
    TensorArgument,
)

from cpembed.errors import CpembedError, ModelError
from cpembed.frontends import Fallback
from cpembed.frontends.builder import Builder, no_tensor
from cpembed.frontends.open_sizes import OpenModel
from cpembed.frontends.torch import symbols
from cpembed.frontends.torch.archive import PROGRAM, Archive, read_archive
from cpembed.frontends.torch.decompositions import decompositions
from cpembed.frontends.torch.nodes import Lowering, is_known
from cpembed.frontends.torch.operators import HANDLERS
from cpembed.frontends.torch.program import read_program
from cpembed.graph.graph import Graph

_PARAMETERS = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)


# -- exported programs ----------------------------------------------------------------------------


def open_model(path: Path, *, outputs: Sequence[str] = (), fallback: Fallback = None) -> OpenModel:
    """Read a file that ``torch.export.save`` wrote, whose graph is then made at any sizes.

    PyTorch reads no byte of it: this package reads the members that a network needs, and nothing
    of a file is unpickled, evaluated or loaded as code.

    Parameters
    ----------
    path, outputs, fallback
        As :func:`cpembed.frontends.load_model` has them.

    Raises
    ------
    ModelError
        For a file that holds no program.
    """
    archive = read_archive(path)
    place, content = f"{path}: {PROGRAM}", archive.texts[PROGRAM]
    # Of a program without open sizes nothing is read twice.
    inputs = symbols.open_inputs(place, content) if symbols.is_open(content) else {}
    places: dict[str, str] = {}
    for name, sizes in inputs.items():
        for axis, size in enumerate(sizes):
            if isinstance(size, str) and size:
                places.setdefault(size, f"{name}.{axis}")
    # A program's own names of sizes, such as s77, mean nothing to a reader.
    declared = {
        name: tuple(places.get(size, "") if isinstance(size, str) else size for size in sizes)
        for name, sizes in inputs.items()
    }

    def read(shapes: Mapping[str, Sequence[int]]) -> Graph:
        _check_shapes(path, declared, shapes)
        fixed = {
            symbol: shapes[name][axis]
            for name, sizes in inputs.items()
            for axis, symbol in enumerate(sizes)
            if isinstance(symbol, str) and symbol and name in shapes
        }
        if not inputs:
            return _read(archive, outputs, fallback)
        text = symbols.fixed(place, content, fixed)
        fixed_archive = replace(archive, texts={**archive.texts, PROGRAM: text})
        return _read(fixed_archive, outputs, fallback)

    return OpenModel(str(path), declared, read)


def _check_shapes(
    path: Path,
    declared: Mapping[str, tuple[int | str, ...]],
    shapes: Mapping[str, Sequence[int]],
) -> None:
    """Raise :class:`ModelError` for an open size without a number, and for another fixed one."""
    for name, sizes in declared.items():
        open_axes = [
            axis
            for axis, size in enumerate(sizes)
            if isinstance(size, str) and f"{name}:{axis}" not in shapes
        ]
        if open_axes and name not in shapes:
            example = ",".join("1" if isinstance(size, str) else str(size) for size in sizes)
            raise ModelError(
                f"{path}: dimension {open_axes[0]} of input {name} is left open: networks here "
                f"have fixed shapes, or ranges of sizes; give them with shapes= or --shape "
                f"{name}={example}"
            )
        for axis, size in enumerate(sizes):
            if isinstance(size, int) and name in shapes and shapes[name][axis] != size:
                raise ModelError(
                    f"{path}: dimension {axis} of input {name} is {size} in the program, not "
                    f"{shapes[name][axis]}: give {size}, or export it with a Dim there"
                )


def _read(archive: Archive, outputs: Sequence[str], fallback: Fallback) -> Graph:
    """Return the network of an archive whose sizes are fixed."""
    # Registers the operators of quantized models, whose names files hold.
    import torch.ao.quantization.fx._decomposed

    try:
        program, names = read_program(archive)
        return _network(program, archive.path.stem, names, outputs, fallback)
    except CpembedError:
        raise
    except Exception as error:
        # PyTorch raises many kinds of errors for a program that no exporter writes.
        reason = str(error).partition("\n")[0]
        raise ModelError(
            f"{archive.path} is no program that PyTorch {torch.__version__} understands: "
            f"{type(error).__name__}: {reason}"
        ) from error


def from_exported(program: ExportedProgram, *, name: str = "model") -> Graph:
    """Return the network of an exported program.

    See :func:`cpembed.frontends.torch.from_exported`.
    """
    operators = torch._ops.OpOverload, torch._ops.HigherOrderOperator
    for node in program.graph.nodes:
        is_operator = isinstance(node.target, operators) or node.target is operator.getitem
        if node.op == "call_function" and not is_operator:
            # A program can name any function of Python.
            raise ModelError(f"{name}: {node.name} calls {node.target}, which is no operator")
    return _network(program, name, {})


def _network(
    program: ExportedProgram,
    name: str,
    names: Mapping[str, str],
    outputs: Sequence[str] = (),
    fallback: Fallback = None,
) -> Graph:
    """Lower a program, or the part of it that computes some nodes.

    ``names`` maps its parameters to the model's names where these differ.
    """
    if fallback not in (None, "torch"):
        raise ModelError(f"{name}: an exported program has the fallback torch, and no other")
    program = decomposed(program, name)
    needed = _needed_nodes(program, name, outputs)
    signature = program.graph_signature
    for target in (
        *signature.buffers_to_mutate.values(),
        *signature.user_inputs_to_mutate.values(),
    ):
        raise ModelError(
            f"{name}: the program changes {target}: a network computes its outputs and nothing "
            "else; return the new value as an output"
        )
    builder = Builder(name)
    lowering = Lowering(builder, falls_back=fallback is not None)
    placeholders = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    for spec in signature.input_specs:
        node = placeholders[spec.arg.name]
        if node not in needed:
            continue
        if spec.kind in _PARAMETERS:
            if node.users:
                target = str(spec.target)
                lowering.constant(node, _parameter(program, target), names.get(target, target))
        elif isinstance(spec.arg, TensorArgument):
            lowering.input(node, spec.arg.name)
        elif isinstance(spec.arg, ConstantArgument):
            lowering.values[node.name] = spec.arg.value
        elif node.users:
            raise ModelError(
                f"{name}: the input {spec.arg.name} is no tensor: export it as a constant"
            )
    nodes = list(program.graph.nodes)
    lowering.run([node for node in nodes if node in needed])
    if outputs:
        return lowering.graph((name, lowering.values[name]) for name in outputs)
    return lowering.graph(
        (spec.arg.name, value)
        for spec, value in zip(signature.output_specs, nodes[-1].args[0], strict=True)
        if spec.kind is OutputKind.USER_OUTPUT and isinstance(spec.arg, TensorArgument)
    )


def _needed_nodes(
    program: ExportedProgram, name: str, outputs: Sequence[str]
) -> set[torch.fx.Node]:
    """Return the nodes that some of them depend on; all of them if no outputs are named."""
    nodes = list(program.graph.nodes)
    if not outputs:
        return {*nodes}
    by_name = {node.name: node for node in nodes if node.op != "output"}
    for output in outputs:
        if output not in by_name:
            raise ModelError(no_tensor(name, output, list(by_name)))
    needed = {by_name[output] for output in outputs}
    for node in reversed(nodes):
        if node in needed:
            needed.update(node.all_input_nodes)
    return needed


def decomposed(program: ExportedProgram, name: str) -> ExportedProgram:
    """Replace unknown operators, and those that change their arguments, as far as PyTorch can.

    Raises :class:`ModelError` where PyTorch's replacement has results of other element types.
    """
    # Bodies of loops and branches are modules inside.
    modules = [m for m in program.graph_module.modules() if isinstance(m, torch.fx.GraphModule)]
    nodes = [node for module in modules for node in module.graph.nodes]
    if all(is_known(node.target) for node in nodes if node.op == "call_function"):
        return program
    # Decomposed, a known operator would lose what its handler knows, such as that it is a product.
    table: Any = {**decompositions(), **default_decompositions()}
    for target in list(table.keys()):
        if str(target) in HANDLERS:
            table.pop(target)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        replaced = program.run_decompositions(table)
    types = zip(_output_types(program), _output_types(replaced), strict=True)
    for number, (before, after) in enumerate(types):
        # Products of integers by a fraction, for example, are decomposed into those of floats.
        if before != after:
            raise ModelError(
                f"{name}: output {number} is {before}, but {after} where PyTorch decomposes the "
                "program: convert its inputs to the type of the result"
            )
    return replaced


def _output_types(program: ExportedProgram) -> list[str]:
    """Return the element types of the outputs that are tensors."""
    values = list(program.graph.nodes)[-1].args[0]
    return [
        str(value.meta["val"].dtype).removeprefix("torch.")
        for spec, value in zip(program.graph_signature.output_specs, values, strict=True)
        if spec.kind is OutputKind.USER_OUTPUT and isinstance(spec.arg, TensorArgument)
    ]


def _parameter(program: ExportedProgram, target: str) -> torch.Tensor:
    for table in (program.state_dict, program.constants):
        if target in table:
            value = table[target]
            if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
                raise ModelError(f"{target} is no dense tensor: convert it before the export")
            return value
    raise ModelError(f"the program holds no tensor {target}: save it with torch.export.save")
