"""Random operators on random instructions, from the workload to the numbers: nothing crashes, every
result is proven, and what is small enough to run computes the operator bit for bit."""

from __future__ import annotations

import json
import math
from collections import Counter

import numpy as np
import pytest

from cpembed.cost.ranking import RankedCandidate
from cpembed.driver.result import SolveResult, embedding_json
from cpembed.driver.solve import solve
from cpembed.embedding.cpsat import Status
from cpembed.embedding.embedding import Embedding
from cpembed.errors import WorkloadError
from cpembed.ir.interpreter import Array, interpret_all
from tests.cases import Case, make_case
from tests.executed import execute_all
from tests.running import exact_inputs

TOP = 3
LARGEST_RUN = 1 << 17
"""Scalar operations of a program, padding included, up to which it is executed."""


def check_case(case: Case) -> Counter[str]:
    """What a case turned out to be, after everything about it was checked."""
    try:
        result = solve(case.workload, case.target, constraints=case.constraints, top=TOP)
    except WorkloadError as error:
        if "leave dtype= out" not in str(error):
            raise  # only element types may be refused
        return Counter(["refused"])
    assert result.complete
    assert all("along a diagonal" in reason for reason in result.not_derivable)
    assert not result.irregular
    json.dumps(result.to_json())
    if result.conflict is not None:
        check_infeasible(result)
        return Counter(["infeasible"])
    assert result.status is Status.OPTIMAL
    ranked_all = len(result.embeddings) + len(result.not_derivable) == result.count
    assert ranked_all or len(result.embeddings) == TOP
    assert [r.rank for r in result.embeddings] == list(range(1, len(result.embeddings) + 1))
    scores = [ranked.score for ranked in result.embeddings]
    assert scores == sorted(scores)
    found = Counter(["feasible", *(["diagonal"] if result.not_derivable else [])])
    for ranked in result.embeddings:
        check_round_trip(ranked)
        found.update(traits(ranked))
    found.update(executed(case, result))
    return found


def check_infeasible(result: SolveResult) -> None:
    assert result.status is Status.INFEASIBLE
    assert result.count == 0
    assert not result.embeddings
    assert result.conflict is not None
    assert result.conflict.constraints
    assert result.conflict.words
    assert all(words.strip() for words in result.conflict.words)


def check_round_trip(ranked: RankedCandidate) -> None:
    """What is printed reads back as the same embedding; a candidate begins at the origin."""
    embedding = ranked.candidate.embedding
    assert not any(embedding.origin.values())
    document = json.loads(json.dumps(embedding_json(ranked)))
    again = Embedding.from_json(document)
    assert again.to_json() == embedding.to_json()
    assert again.identifier() == document["id"]


def executed(case: Case, result: SolveResult) -> Counter[str]:
    """Run the programs that are small enough; how many were."""
    inputs = exact_inputs(case.workload, case.seed)
    expected: dict[str, Array] | None = None
    found: Counter[str] = Counter()
    for ranked in result.embeddings:
        program = ranked.candidate.program
        if math.prod(program.extents.values()) > LARGEST_RUN:
            continue
        expected = interpret_all(case.workload, inputs) if expected is None else expected
        values = execute_all(program, inputs)
        assert values.keys() == expected.keys()
        for name, array in values.items():
            assert array.dtype == expected[name].dtype
            np.testing.assert_array_equal(array, expected[name])
        found["executed"] += 1
    return found


def traits(ranked: RankedCandidate) -> set[str]:
    """What is special about a result: its rewrites, digits, and roles."""
    embedding, program = ranked.candidate.embedding, ranked.candidate.program
    digits = [digit for digits in embedding.digits.values() for digit in digits]
    found = {rewrite.name for rewrite in program.rewrites}
    if any(digit.stride > 1 for digit in digits):
        found.add("strided digit")
    if any(len(some) > 1 for some in embedding.digits.values()):
        found.add("several digits")
    if any("@" in name for name in program.roles.values()):
        found.add("ports")
    if embedding.extents != program.instruction.extents:
        found.add("shorter axis")
    return found


def check_cases(seeds: range) -> Counter[str]:
    total: Counter[str] = Counter()
    for seed in seeds:
        case = make_case(seed)
        try:
            total.update(check_case(case))
        except Exception as error:
            error.add_note(str(case))
            raise
    return total


EVERYTHING = {
    # What a block of 500 cases must contain at least.
    "feasible": 120,
    "infeasible": 120,
    "refused": 5,
    "executed": 200,
    "split": 200,
    "pad": 150,
    "reorder": 150,
    "fuse": 15,
    "stencil_unroll": 15,
    "image_pack": 15,
    "flatten": 2,
    "strided digit": 20,
    "several digits": 15,
    "shorter axis": 20,
    "ports": 15,
}


def test_random_cases_end_to_end() -> None:
    total = check_cases(range(150, 190))
    assert total["feasible"] + total["infeasible"] + total["refused"] == 40
    for trait, least in EVERYTHING.items():
        assert total[trait] >= least // 30, (trait, total)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(20))
def test_ten_thousand_random_cases_end_to_end(block: int) -> None:
    total = check_cases(range(1_000 + 500 * block, 1_500 + 500 * block))
    print(dict(total))
    assert total["feasible"] + total["infeasible"] + total["refused"] == 500
    for trait, least in EVERYTHING.items():
        assert total[trait] >= least, (trait, total)
