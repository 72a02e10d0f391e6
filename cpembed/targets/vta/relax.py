"""VTA programs inside TVM's modules: relax code that calls them, and their execution.

A compiled module holds each program as the bytes of a saved one (``docs/vta.md``), weights in its
memory, and calls :data:`EXECUTE` with the inputs of a run.
"""
# pyright: basic

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import relax

from cpembed.codegen.packing import Direction
from cpembed.targets.vta.checker import check
from cpembed.targets.vta.container import load_program, save_program
from cpembed.targets.vta.lower import LoweredVta, copy_source
from cpembed.targets.vta.program import VtaProgram
from cpembed.targets.vta.simulator import simulate, written
from cpembed.targets.vta.tail import Exact, Truncated
from cpembed.transform.program import PackedOperand

EXECUTE = "cpembed.vta.execute"
"""Name under which compiled modules look :func:`execute` up."""

_MAX_LOADED = 256
"""Maximum number of programs to keep in memory: more than a network has."""


def register() -> None:
    """Register :func:`execute`, which compiled modules look up when they are loaded."""
    tvm.register_global_func(EXECUTE, execute, override=True)


def saved(program: VtaProgram) -> np.ndarray:
    """Return the bytes of a saved program."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "program.zip"
        save_program(program, path)
        return np.frombuffer(path.read_bytes(), np.uint8)


def execute(program: Any, names: str, *tensors: Any) -> None:
    """Run a saved program, as a compiled module does.

    Parameters
    ----------
    program
        Bytes of the saved program, as a tensor.
    names
        Names of its inputs, separated by spaces.
    tensors
        Packed inputs in the order of their names, then the tensor for the packed result. A result
        of int32 is combined from the four planes of bytes that the program stores.
    """
    loaded = _loaded(program.numpy().tobytes())
    *inputs, result = tensors
    dram = loaded.dram.copy()
    for name, tensor in zip(names.split(), inputs, strict=True):
        target = loaded.tensor(name, dram)
        target[...] = np.from_dlpack(tensor).reshape(target.shape)
    dram = simulate(loaded, dram=dram, checked=False)
    stored = [loaded.tensor(name, dram) for name in written(loaded)]
    tail = Exact() if result.dtype == "int32" else Truncated()
    result.copyfrom(tail.combine(stored).reshape(result.shape))


@lru_cache(maxsize=_MAX_LOADED)
def _loaded(data: bytes) -> VtaProgram:
    """Return a program after checking it, once for all runs."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "program.zip"
        path.write_bytes(data)
        program = load_program(path)
    check(program)
    return program


_OPAQUE = 8
"""``relay::kOpaque``: the pattern of a function that is fused with nothing."""


def emit(builder: Any, lowered: LoweredVta, arguments: Mapping[str, Any], result: Any) -> Any:
    """Return a relax expression that packs the inputs, runs a program and unpacks its result.

    Parameters
    ----------
    builder
        The ``relax.BlockBuilder`` of the module.
    lowered
        Program of the operator.
    arguments
        Inputs by name. Arrays are packed immediately and travel in the program's memory; relax
        expressions are packed when the module runs, by generated TensorIR functions.
    result
        Type of the expression.
    """
    program = lowered.empty_image()
    varying: dict[str, Any] = {}
    for tensor in lowered.nest.inputs:
        argument = arguments[tensor.name]
        if isinstance(argument, np.ndarray):
            array = argument.reshape(tensor.packed.original_shape)
            program.tensor(tensor.name)[...] = lowered.pack(tensor.name, array)
        else:
            varying[tensor.name] = _copied(builder, tensor.packed, Direction.PACK, argument)
    stored = lowered.stored
    names = tvm.ir.StringImm(" ".join(varying))
    passed = relax.Tuple([relax.const(saved(program)), names, *varying.values()])
    packed = relax.call_dps_packed(EXECUTE, passed, _flat(stored.elements, stored.dtype))
    image = builder.emit(packed)
    return relax.op.reshape(_copied(builder, stored, Direction.UNPACK, image), result.shape)


def _copied(builder: Any, operand: PackedOperand, direction: Direction, value: Any) -> Any:
    """Return the expression of an operand's elements in the layout that ``direction`` leads to,
    flat as ``value`` is.
    """
    original = int(np.prod(operand.original_shape))
    packs = direction is Direction.PACK
    flat = builder.emit(relax.op.reshape(value, (original,))) if packs else value
    name = f"{direction.value}_{operand.name}".replace(".", "_")
    function = builder.add_func(_function(operand, direction), name)
    size = operand.elements if packs else original
    return builder.emit(relax.call_tir(function, relax.Tuple([flat]), _flat(size, operand.dtype)))


def _flat(elements: int, dtype: str) -> relax.TensorType:
    shape: list[Any] = [elements]
    return relax.TensorType(shape, dtype)


def _function(operand: PackedOperand, direction: Direction) -> Any:
    function = tvm.script.from_source(copy_source(operand, direction)).without_attr("global_symbol")
    return function.with_attrs({"op_pattern": _OPAQUE, "tirx.is_scheduled": True})
