"""Relax code of a program on any target: operands as they are go in, the result comes out."""
# pyright: basic

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Any

import numpy as np
from tvm import ir, relax

from cpembed.integrations.tvm.choice import Program
from cpembed.integrations.tvm.execution import EXECUTE
from cpembed.targets.capabilities import RelaxEmitter


def emit(builder: Any, program: Program, arguments: Mapping[str, Any], result: Any) -> Any:
    """An expression of type ``result`` for a program on relax expressions or arrays, by operand,
    with a ``relax.BlockBuilder``: as the target emits it, else a call that executes it."""
    target = program.target
    if isinstance(target, RelaxEmitter):
        return target.emit_relax(builder, program.artifact, arguments, result)
    recipe = relax.const(np.frombuffer(_recipe(program), np.uint8))
    names = ir.StringImm(" ".join(arguments))
    given = [
        relax.const(value) if isinstance(value, np.ndarray) else value
        for value in arguments.values()
    ]
    return relax.call_dps_packed(EXECUTE, relax.Tuple([recipe, names, *given]), result)


def _recipe(program: Program) -> bytes:
    """What another process builds the program from."""
    candidate = program.ranked.candidate
    return pickle.dumps(
        (program.target.spec, candidate.program, program.schedule, program.epilogue)
    )
