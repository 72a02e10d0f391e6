"""Programs of ``torch.export`` as graphs."""
# pyright: basic

# What it imports is an extra, which a type checker need not find, and not this package.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import operator
import warnings
from collections.abc import Mapping
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
from cpembed.frontends.builder import Builder
from cpembed.frontends.torch.archive import read_archive
from cpembed.frontends.torch.lowering import Lowering, is_known, outputs_by_name
from cpembed.frontends.torch.operators import HANDLERS
from cpembed.frontends.torch.program import read_program
from cpembed.graph.graph import Graph

_HELD = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)


def load(path: Path | str) -> Graph:
    """The network of a file that ``torch.export.save`` wrote.

    PyTorch reads no byte of it: the members that a network needs are read here, and nothing of a
    file is unpickled, evaluated or loaded as code.

    Raises :class:`ModelError` for a file that is none, and as :func:`from_exported` does.
    """
    # Registers the operators of quantized models, of which files hold the names.
    import torch.ao.quantization.fx._decomposed

    path = Path(path)
    archive = read_archive(path)
    try:
        program, names = read_program(archive)
        return _network(program, path.stem, names)
    except CpembedError:
        raise
    except Exception as error:
        # Whatever PyTorch raises for a program that no exporter writes.
        said = str(error).partition("\n")[0]
        raise ModelError(
            f"{path} is no program that PyTorch {torch.__version__} understands: "
            f"{type(error).__name__}: {said}"
        ) from error


def from_exported(program: ExportedProgram, *, name: str = "model") -> Graph:
    """The network of an exported program: parameters and buffers are constants, inputs and outputs
    have the program's names.

    Raises :class:`ModelError`, which says where, for an operator that is not known or is used in a
    way that is not, for sizes that are left open, and for a program that changes its buffers.
    """
    _check_targets(program, name)
    return _network(program, name, {})


def _network(program: ExportedProgram, name: str, names: Mapping[str, str]) -> Graph:
    """``names``: of parameters and constants in the model, where a program calls them otherwise."""
    program = decomposed(program)
    signature = program.graph_signature
    _check_state(program, name)
    builder = Builder(name)
    lowering = Lowering(builder)
    placeholders = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    for spec in signature.input_specs:
        node = placeholders[spec.arg.name]
        if spec.kind in _HELD:
            if node.users:
                target = str(spec.target)
                lowering.constant(node, _held(program, target), names.get(target, target))
        elif isinstance(spec.arg, TensorArgument):
            lowering.input(node, spec.arg.name)
        elif isinstance(spec.arg, ConstantArgument):
            lowering.values[node.name] = spec.arg.value
        elif node.users:
            raise ModelError(
                f"{name}: the input {spec.arg.name} is no tensor: export it as a constant"
            )
    nodes = list(program.graph.nodes)
    lowering.run(nodes)
    returned = [
        (spec.arg.name, value)
        for spec, value in zip(signature.output_specs, nodes[-1].args[0], strict=True)
        if spec.kind is OutputKind.USER_OUTPUT and isinstance(spec.arg, TensorArgument)
    ]
    output_names, values = [n for n, _ in returned], [v for _, v in returned]
    return builder.graph(outputs_by_name(lowering, output_names, values))


def decomposed(program: ExportedProgram) -> ExportedProgram:
    """The program with operators that are not known written with others, as far as PyTorch can,
    and without operators that change their arguments."""
    targets = [node.target for node in program.graph.nodes if node.op == "call_function"]
    if all(map(is_known, targets)):
        return program
    table = default_decompositions()
    for target in list(table.keys()):
        if str(target) in HANDLERS:
            table.pop(target)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return program.run_decompositions(table)


def _held(program: ExportedProgram, target: str) -> torch.Tensor:
    for table in (program.state_dict, program.constants):
        if target in table:
            return _dense(table[target], target)
    raise ModelError(f"the program holds no tensor {target}: save it with torch.export.save")


def _dense(value: Any, target: str) -> torch.Tensor:
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        raise ModelError(f"{target} is no dense tensor: convert it before the export")
    return value


def _check_targets(program: ExportedProgram, name: str) -> None:
    """Raise :class:`ModelError` for a call of what is no operator: a file can name any function."""
    operators = torch._ops.OpOverload, torch._ops.HigherOrderOperator
    for node in program.graph.nodes:
        known = isinstance(node.target, operators) or node.target is operator.getitem
        if node.op == "call_function" and not known:
            raise ModelError(f"{name}: {node.name} calls {node.target}, which is no operator")


def _check_state(program: ExportedProgram, name: str) -> None:
    """Raise :class:`ModelError` for a program that changes what it holds or is given."""
    signature = program.graph_signature
    changed: Mapping[str, str] = {
        **signature.buffers_to_mutate,
        **signature.user_inputs_to_mutate,
    }
    for target in changed.values():
        raise ModelError(
            f"{name}: the program changes {target}: a network computes its outputs and nothing "
            "else; return the new value as an output"
        )
