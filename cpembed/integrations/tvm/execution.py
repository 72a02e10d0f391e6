"""Running programs out of compiled modules, which call :data:`EXECUTE` with the inputs of a run.

A compiled module holds each program as what it is built from: specification, derived program,
schedule. As its machine code, that is trusted.
"""
# pyright: basic

from __future__ import annotations

import pickle
from functools import lru_cache
from typing import Any

import numpy as np
import tvm

from cpembed.targets.registry import open_target

EXECUTE = "cpembed.execute"
"""Name of :func:`execute` where compiled modules look for it."""

_LOADED = 256
"""Programs that are kept ready to run: more than a network has."""


def register() -> None:
    """Let compiled modules find what they call, which they need when they are loaded."""
    from cpembed.targets.vta import relax

    tvm.register_global_func(EXECUTE, execute, override=True)
    relax.register()


def execute(recipe: Any, names: str, *tensors: Any) -> None:
    """Run a program: ``names`` are those of its operands, of which ``tensors`` are the contents,
    and the last tensor takes the result."""
    target, program, artifact = _loaded(recipe.numpy().tobytes())
    *inputs, result = tensors
    shapes = {operand.name: operand.shape for operand in program.unfused.inputs}
    arrays = {
        name: np.ascontiguousarray(tensor.numpy()).reshape(shapes[name])
        for name, tensor in zip(names.split(), inputs, strict=True)
    }
    found = target.execute(artifact, arrays).outputs[0]
    result.copyfrom(found.reshape(result.shape))


@lru_cache(maxsize=_LOADED)
def _loaded(data: bytes) -> tuple[Any, Any, Any]:
    """The target, the derived program, and what is built of them."""
    spec, program, schedule, epilogue = pickle.loads(data)
    target = open_target(spec)
    return target, program, target.build(target.lower(program, epilogue), schedule)
