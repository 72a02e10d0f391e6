"""The digit model and the scalar model have the same solutions wherever both can run."""

from __future__ import annotations

import pytest

from cpembed.embedding.constraint_set import load_constraint_set
from cpembed.embedding.cpsat import SearchLimits
from cpembed.embedding.digit_search import check_embedding, digit_model_obstacle
from cpembed.embedding.node_map import expand
from cpembed.embedding.problem import EmbeddingProblem, pair_operands
from cpembed.embedding.result import Formulation
from cpembed.embedding.search import search
from cpembed.hw.loader import load_hardware_spec
from cpembed.workloads.convolutions import conv2d
from tests.unit.embedding.test_node_maps import make_problem


def keys(problem: EmbeddingProblem, constraints: object, formulation: Formulation) -> list[object]:
    result = search(problem, constraints, SearchLimits(), formulation=formulation)  # type: ignore[arg-type]
    assert result.complete
    assert not result.irregular
    for embedding in result.embeddings:
        check_embedding(problem, constraints, embedding)  # type: ignore[arg-type]
    return [expand(problem, e).key() for e in result.embeddings]  # type: ignore[union-attr]


@pytest.mark.quick(1)
@pytest.mark.parametrize("block", range(10))
def test_random_problems_have_the_same_embeddings(block: int) -> None:
    compared = found = 0
    for seed in range(10_000 + block * 60, 10_000 + block * 60 + 60):
        problem, constraints = make_problem(seed)
        if digit_model_obstacle(problem, constraints) is not None:
            continue
        scalar = keys(problem, constraints, Formulation.SCALAR)
        digits = keys(problem, constraints, Formulation.DIGITS)
        assert len(digits) == len(set(digits)), "a solution was listed twice"
        assert set(digits) == set(scalar), seed
        compared += 1
        found += len(digits)
    assert compared > 20
    assert found > 5


@pytest.mark.quick(10)
@pytest.mark.parametrize("name", ["strict", "strict_padded", "in_place", "in_place_padded"])
@pytest.mark.parametrize("target", ["vta_1x16x16", "vta_8x8x8", "avx512_vnni", "wmma_f16"])
def test_shipped_sets_have_the_same_embeddings(target: str, name: str) -> None:
    spec = load_hardware_spec(target)
    dtypes = spec.instruction.dtypes
    workload = conv2d(n=1, c=16, h=9, w=18, k=16, r=3, s=3, stride=2, pad=1)
    workload = workload.with_dtypes({o: dtypes[t][0] for o, t in zip("IWO", "ABC", strict=True)})
    problem = pair_operands(workload, spec.instruction)
    assert isinstance(problem, EmbeddingProblem)
    constraints = load_constraint_set(name)
    scalar = keys(problem, constraints, Formulation.SCALAR)
    assert set(keys(problem, constraints, Formulation.DIGITS)) == set(scalar)
