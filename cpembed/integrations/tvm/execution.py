"""Programs in compiled relax modules: the relax code that calls them, and the function it calls.

A compiled module holds each program as a pickle of what it is built from: specification, derived
program, schedule, epilogue. It is trusted, as the module's machine code is.
"""
# pyright: basic

from __future__ import annotations

import pickle
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import tvm
from tvm import ir, relax

from cpembed.integrations.tvm.kernels import Program
from cpembed.targets.capabilities import RelaxEmitter
from cpembed.targets.registry import open_target

EXECUTE = "cpembed.execute"
"""Name under which compiled modules look up :func:`execute`."""

_LOADED = 256
"""Maximum number of programs that are kept ready to run: more than a network has."""


def register() -> None:
    """Register the functions that compiled modules look up when they are loaded."""
    from cpembed.targets.vta import host

    tvm.register_global_func(EXECUTE, execute, override=True)
    host.register()


def emit(builder: Any, program: Program, arguments: Mapping[str, Any], result: Any) -> Any:
    """Return a relax expression for a program: the target's own code, or a call that executes it.

    Parameters
    ----------
    builder
        A ``relax.BlockBuilder``.
    program
        Program to run.
    arguments
        Relax expressions or arrays, by operand.
    result
        Type of the expression.
    """
    target = program.target
    if isinstance(target, RelaxEmitter):
        return target.emit_relax(builder, program.artifact, arguments, result)
    parts = (
        target.spec,
        program.ranked.candidate.program,
        program.schedule,
        program.epilogue,
    )
    recipe = relax.const(np.frombuffer(pickle.dumps(parts), np.uint8))
    names = ir.StringImm(" ".join(arguments))
    values = [
        relax.const(value) if isinstance(value, np.ndarray) else value
        for value in arguments.values()
    ]
    return relax.call_dps_packed(EXECUTE, relax.Tuple([recipe, names, *values]), result)


def execute(recipe: Any, names: str, *tensors: Any) -> None:
    """Run a program.

    Parameters
    ----------
    recipe
        Pickle of the program, as a tensor of bytes.
    names
        Names of the operands, separated by spaces.
    *tensors
        Contents of the operands, then the tensor that takes the result.
    """
    target, program, artifact = _loaded(recipe.numpy().tobytes())
    *inputs, result = tensors
    shapes = {operand.name: operand.shape for operand in program.unfused.inputs}
    arrays = {
        name: np.ascontiguousarray(tensor.numpy()).reshape(shapes[name])
        for name, tensor in zip(names.split(), inputs, strict=True)
    }
    output = target.execute(artifact, arrays).outputs[0]
    result.copyfrom(output.reshape(result.shape))


@lru_cache(maxsize=_LOADED)
def _loaded(data: bytes) -> tuple[Any, Any, Any]:
    """Return the target, the derived program and its artifact."""
    spec, program, schedule, epilogue = pickle.loads(data)
    target = open_target(spec)
    return target, program, target.build(target.lower(program, epilogue), schedule)
