"""Under a time limit: what is said to be the best is the best, and ceilings lose nothing."""

from __future__ import annotations

import random

import pytest

from cpembed.cost.search import LimitedSearch, Ranker
from cpembed.driver.named import default_dtypes, hardware_spec
from cpembed.driver.result import SolveResult
from cpembed.driver.solve import solve
from cpembed.embedding.commute import Pairing
from cpembed.embedding.constraint_set import ConstraintSet, Weights, load_constraint_set
from cpembed.embedding.cpsat import SearchLimits, Status
from cpembed.embedding.search import find_embeddings
from cpembed.hw.instruction import Instruction
from cpembed.ir.computation import Computation
from cpembed.steps import silent
from cpembed.transform.derive import LayoutCache
from cpembed.workloads.naming import parse_workload
from tests.unit.cost.test_ranking import costs, make_case

WEIGHTS = (Weights(1, 1), Weights(1, 0), Weights(0, 1), Weights(1, 50))


def limited(
    workload: Computation, instruction: Instruction, constraints: ConstraintSet, top: int = 3
) -> LimitedSearch:
    ranker = Ranker(Pairing(workload, instruction), constraints, top, silent)
    return LimitedSearch(ranker, SearchLimits(seconds=600))


def compare(
    workload: Computation, instruction: Instruction, wide: ConstraintSet
) -> tuple[int, int]:
    """How many embeddings there are, and how many of them ceilings left out."""
    result = find_embeddings(workload, instruction, wide)
    if not 3 < len(result.embeddings) <= 300:
        return 0, 0
    left_out, layouts = 0, LayoutCache()
    for weights in WEIGHTS:
        constraints = ConstraintSet("wide", "", wide.constraints, weights, wide.flatten)
        paid = costs(workload, instruction, result.embeddings, weights, layouts)
        expected = sorted(paid, key=lambda identifier: paid[identifier])
        search = limited(workload, instruction, constraints)
        if not search.applies:
            continue
        below = search.best_below_ceilings(SearchLimits(seconds=600))
        assert below is not None
        best = [item.candidate.embedding.identifier() for item in below.ranking.candidates]
        assert below.proven
        assert not below.search.complete
        assert best == expected[:3]
        scores = sorted(cost[0] for cost in paid.values())
        bounded = search.bounded(SearchLimits())
        assert min(item.objective.floor(item.least) for item in bounded) <= scores[0]
        for ceiling in {scores[0], scores[len(scores) // 2], scores[-1]}:
            admitted: set[str] = set()
            for item in bounded:
                run = item.below(ceiling, silent)(SearchLimits())
                assert run.complete
                admitted |= {embedding.identifier() for embedding in run.embeddings}
            assert {i for i, cost in paid.items() if cost[0] <= ceiling} <= admitted
            left_out += len(result.embeddings) - len(admitted)
    return len(result.embeddings), left_out


@pytest.mark.slow
@pytest.mark.parametrize("block", range(3))
def test_no_ceiling_excludes_what_is_below_it(block: int) -> None:
    compared = [
        compare(*case)
        for seed in range(block * 60, block * 60 + 60)
        if (case := make_case(random.Random(seed))) is not None
    ]
    assert sum(below for below, _ in compared) > 50
    assert sum(left_out for _, left_out in compared) > 20


LARGE = "conv3d n=1 c=64 d=16 h=28 w=28 k=64 t=3 r=3 s=3 pad=1"


def ask(timeout: float | None) -> SolveResult:
    spec = hardware_spec("wmma_f16")
    workload = parse_workload(LARGE.split(), default_dtypes(spec))
    return solve(workload, spec, constraints="complete", top=10, timeout=timeout)


def test_a_low_ceiling_proves_the_best_with_a_small_part_of_the_embeddings() -> None:
    complete = ask(None)
    assert (complete.complete, complete.top_proven) == (True, True)
    spec = hardware_spec("wmma_f16")
    workload = parse_workload(LARGE.split(), default_dtypes(spec))
    search = limited(workload, spec.instruction, load_constraint_set("complete"), top=10)
    below = search.best_below_ceilings(SearchLimits(seconds=600))
    assert below is not None
    assert below.proven
    assert below.search.status is Status.FEASIBLE
    assert len(below.search.embeddings) < complete.count / 10
    expected = [(item.candidate.embedding, item.score) for item in complete.embeddings]
    assert [(i.candidate.embedding, i.score) for i in below.ranking.candidates] == expected


@pytest.mark.quick(1)
@pytest.mark.parametrize("timeout", [0.05, 0.2, 0.5, 1.0])
def test_what_is_said_to_be_the_best_is_the_best(timeout: float) -> None:
    limited, complete = ask(timeout), ask(None)
    assert limited.top_proven or not limited.complete
    assert len(limited.embeddings) <= limited.count <= complete.count
    if limited.top_proven:
        best = [item.candidate.embedding for item in complete.embeddings]
        assert [item.candidate.embedding for item in limited.embeddings] == best


def test_a_search_without_time_proves_nothing() -> None:
    limited = ask(1e-9)
    assert limited.status is Status.UNKNOWN
    assert not limited.complete
    assert not limited.top_proven
