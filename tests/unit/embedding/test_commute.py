"""Exchanging operands: other roles, the same result, no duplicates where symmetric."""

from __future__ import annotations

import numpy as np
import pytest

from cpembed.driver.named import default_dtypes
from cpembed.driver.solve import solve
from cpembed.embedding import commute
from cpembed.embedding.commute import Pairing, commuted, is_symmetric
from cpembed.embedding.constraint_set import load_constraint_set
from cpembed.embedding.digit_search import check_embedding
from cpembed.embedding.problem import EmbeddingProblem, LabelMismatch, match_graphs
from cpembed.embedding.search import find_embeddings, search_pairing
from cpembed.hw.instruction import Instruction
from cpembed.hw.loader import load_hardware_spec
from cpembed.ir.computation import Assignment, Computation
from cpembed.ir.interpreter import interpret
from cpembed.ir.reference import random_inputs
from cpembed.transform.derive import derive
from cpembed.transform.proof import require
from cpembed.workloads.convolutions import conv2d
from cpembed.workloads.einsum import dot
from cpembed.workloads.naming import parse_workload
from tests.executed import execute


def test_orders_of_operands_compute_the_same() -> None:
    workload = conv2d(n=1, c=2, h=4, w=4, k=3, r=2, s=2)
    inputs = random_inputs(workload, 1)
    orders = list(commuted(workload))
    assert [tuple(read.operand for read in order.reads) for order in orders] == [
        ("I", "W"),
        ("W", "I"),
    ]
    for order in orders:
        np.testing.assert_array_equal(interpret(order, inputs), interpret(workload, inputs))


def test_weights_can_be_the_first_operand() -> None:
    spec = load_hardware_spec("vta_8x8x8")
    workload = conv2d(n=1, c=8, h=4, w=9, k=8, r=1, s=1)
    constraints = load_constraint_set("complete")
    found = find_embeddings(workload, spec.instruction, constraints)
    assert len({tuple(e.operands.items()) for e in found.embeddings}) == 2
    exchanged = [e for e in found.embeddings if e.operands["A"] == "W"]
    assert {e.family["x"] for e in exchanged} == {("k",)}
    inputs = random_inputs(workload, 2)
    assert found.problem is not None
    for embedding in exchanged[::40]:
        check_embedding(found.problem, constraints, embedding)
        program = derive(workload, spec.instruction, embedding)
        require(program)
        np.testing.assert_array_equal(execute(program, inputs), interpret(workload, inputs))


def test_a_symmetric_instruction_has_no_second_order() -> None:
    spec = load_hardware_spec("dot")
    assert is_symmetric(spec.instruction, {"A": "B", "B": "A", "C": "C"})
    assert not is_symmetric(
        load_hardware_spec("vta_8x8x8").instruction, {"A": "B", "B": "A", "C": "C"}
    )
    names = ("A", "B", "C")
    workload = dot(k=64).with_dtypes(dict(zip(names, default_dtypes(spec), strict=True)))
    once = solve(workload, spec, constraints="relaxed", top=None)
    twice = solve(workload, spec, constraints="complete", top=None)
    assert once.count == twice.count > 0


@pytest.mark.slow
def test_every_rank_reads_each_operand_from_its_own_layout() -> None:
    """Layouts are shared between embeddings, but never between operands in the same role."""
    spec = load_hardware_spec("vta_1x16x16")
    workload = conv2d(n=1, c=3, h=8, w=8, k=16, r=3, s=3)
    result = solve(workload, spec, constraints="complete", top=40)
    assert len({tuple(e.candidate.embedding.operands.items()) for e in result.embeddings}) == 2
    inputs = random_inputs(workload, 4)
    for ranked in result.embeddings[::4]:
        found = execute(ranked.candidate.program, inputs)
        np.testing.assert_array_equal(found, interpret(workload, inputs))


def test_element_types_may_fit_one_order_only() -> None:
    workload = parse_workload(["O[b,i] += A[b,i,j] * X[b,j]", "b=2", "i=16", "j=8"])
    workload = workload.with_dtypes({"A": "int8", "X": "uint8"})
    result = solve(workload, "avx512_vnni", constraints="complete")
    assert result.embeddings[0].candidate.embedding.operands == {"A": "X", "B": "A", "C": "O"}


@pytest.mark.parametrize("name, matched", [("strict", 1), ("complete", 2)])
def test_each_order_is_matched_once(
    monkeypatch: pytest.MonkeyPatch, name: str, matched: int
) -> None:
    orders: list[tuple[Assignment, ...]] = []

    def counted(order: Computation, instruction: Instruction) -> EmbeddingProblem | LabelMismatch:
        orders.append(order.statements)
        return match_graphs(order, instruction)

    monkeypatch.setattr(commute, "match_graphs", counted)
    pairing = Pairing(
        conv2d(n=1, c=8, h=4, w=9, k=8, r=1, s=1), load_hardware_spec("vta_8x8x8").instruction
    )
    constraints = load_constraint_set(name)
    for _ in range(2):
        result = search_pairing(pairing, constraints)
        assert result.problem is not None
        assert pairing.with_roles(result.problem.roles) == result.problem
    assert len(orders) == len(set(orders)) == matched
