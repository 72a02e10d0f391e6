"""Programs of tests by name, both mechanisms of the proof, and the executor's verdict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cpembed.accelerator.executor import execute
from cpembed.accelerator.program import (
    Issue,
    Loop,
    Node,
    Program,
)
from cpembed.accelerator.proof import ProgramProof, prove
from cpembed.errors import BackendUnavailable, ExecutionFault
from tests.unit.accelerator.proof_programs import (
    Product,
    chain,
    convolution,
    pooling,
)

PROGRAMS: dict[str, Callable[[], Program]] = {
    "product": Product(20, 24, 17).program,
    "requantized": Product(40, 33, 50, (2, 1, 2), with_bias=True, is_requantized=True).program,
    "panel": Product(40, 33, 50, (2, 2, 1), 1, keeps_a=True).program,
    "chain": chain,
    "convolution": convolution,
    "pooling": pooling,
}


def by_isl(program: Program) -> ProgramProof:
    return prove(program)


def by_enumeration(program: Program) -> ProgramProof:
    return prove(program, isl_seconds=0)


def results_are_right(program: Program, seed: int = 0) -> bool:
    """Execute a program, and compare its outputs with the specification's; False for a fault."""
    generator = np.random.default_rng(seed)
    specification = program.specification
    assert specification is not None
    arrays: dict[str, Any] = dict(specification.constants)
    for name in specification.inputs:
        arrays[name] = generator.integers(-128, 128, program.tensors[name].shape).astype(np.int8)
    buffers = {
        name: program.tensors[name].buffer(array)
        for name, array in arrays.items()
        if name in program.tensors
    }
    expected = specification.evaluate(arrays)
    try:
        run = execute(program, buffers, seed)
    except ExecutionFault:
        return False
    except BackendUnavailable:
        pytest.skip("no C++ compiler")
    return all(
        np.array_equal(program.tensors[name].array(run.buffers[name]), expected[name])
        for name in specification.outputs
    )


def changed_issue(program: Program, note: str, change: Callable[[Issue], Issue | None]) -> Program:
    """Return a program in which an instruction of the text is changed, or removed."""

    def rewrite(body: tuple[Node, ...]) -> tuple[Node, ...]:
        nodes: list[Node] = []
        for node in body:
            if isinstance(node, Loop):
                nodes.append(replace(node, body=rewrite(node.body)))
            elif node.note == note:
                new = change(node)
                nodes += [] if new is None else [new]
            else:
                nodes.append(node)
        return tuple(nodes)

    return replace(program, body=rewrite(program.body))
