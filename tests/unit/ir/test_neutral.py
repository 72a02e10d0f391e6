"""Padding an axis must leave the result alone, or it is not offered."""

from __future__ import annotations

import numpy as np
import pytest

from cpembed.embedding.constraint_set import load_constraint_set
from cpembed.embedding.search import find_embeddings
from cpembed.hw.instruction import Instruction, InstructionAxis, OperandMemory, TileDimension
from cpembed.ir.accesses import is_neutral
from cpembed.ir.interpreter import interpret
from cpembed.ir.parser import parse_computation
from cpembed.ir.reference import random_inputs
from cpembed.transform.derive import derive
from cpembed.transform.proof import prove
from tests.executed import execute

CASES = {
    # expression of the workload, of the instruction, axes whose padding is harmless
    "sum_of_absolute_differences": (
        "O[n] += abs(P[n,d] - Q[d])",
        "C[x] += abs(A[x,z] - B[z])",
        {"n", "d"},
    ),
    "template_matching": (
        "O[p] += abs(P[p+d] - Q[d])",
        "C[x] += abs(A[x,z] - B[z])",
        {"p"},
    ),
    "dot_with_pre_add": (
        "O[n] += (P[n,d] + R[n,d]) * Q[d]",
        "C[x] += (A[x,z] + D[x,z]) * B[z]",
        {"n", "d"},
    ),
    "flipped": ("O[n] += P[n,d] * Q[5-d]", "C[x] += A[x,z] * B[z]", {"n", "d"}),
    "pooling": ("O[n] max= P[n,d] - Q[d]", "C[x] max= A[x,z] - B[z]", {"n"}),
    "requantization": (
        "O[n,d] = min(max((P[n,d] * Q[d]) >> 3, -128), 127)",
        "C[x,z] = min(max((A[x,z] * B[z]) >> 3, -128), 127)",
        {"n", "d"},
    ),
}


def instruction(text: str) -> Instruction:
    computation = parse_computation(text, {"x": 2, "z": 4}, name="instruction")
    memory = {
        operand.name: OperandMemory(
            "m",
            tuple(
                TileDimension(i.single_iterator or "")
                for i in computation.access(operand.name).index
            ),
        )
        for operand in computation.operands
    }
    axes = tuple(InstructionAxis(a.name, a.extent, a.extent) for a in computation.axes)
    dtypes = {operand.name: (operand.dtype,) for operand in computation.operands}
    return Instruction("instruction", axes, computation, dtypes, memory)


@pytest.mark.parametrize("name", CASES)
def test_irregular_scalar_expressions_embed_and_pad_only_where_harmless(name: str) -> None:
    text, unit, harmless = CASES[name]
    sizes = {axis: size for axis, size in (("n", 5), ("p", 5), ("d", 6)) if f"{axis}" in text}
    workload = parse_computation(text, sizes, name=name)
    assert {axis for axis in workload.extents if is_neutral(workload, axis)} == harmless
    found = find_embeddings(workload, instruction(unit), load_constraint_set("relaxed"))
    inputs = random_inputs(workload, 5)
    padded: set[str] = set()
    for embedding in found.embeddings:
        program = derive(workload, instruction(unit), embedding)
        proof = prove(program)
        assert proof.holds, (embedding, proof.failed)
        padded |= {a for a, e in program.padded_extents.items() if e > workload.extents[a]}
        np.testing.assert_array_equal(execute(program, inputs), interpret(workload, inputs))
    assert padded <= harmless
    # d = 6 is no multiple of 4: only where it can be padded does anything embed.
    assert bool(found.embeddings) == ("d" in harmless)


def test_another_scalar_expression_does_not_match() -> None:
    workload = parse_computation("O[n] += P[n,d] * Q[d]", {"n": 4, "d": 4})
    _, unit, _ = CASES["sum_of_absolute_differences"]
    found = find_embeddings(workload, instruction(unit), load_constraint_set("relaxed"))
    assert found.mismatch is not None
    assert "computes" in found.mismatch.reason
