"""Mutants of the programs of random cases: whatever changes a result is rejected.

A mutant is *effective* where it computes something else than its workload, or nothing. Executing
it shows that, so it is known without the proof. The programs have every rewrite, fused axes, and
several statements in ports.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest

from cpembed.cost.ranking import RankedCandidate
from cpembed.driver.solve import solve
from cpembed.errors import CpembedError, WorkloadError
from cpembed.ir.computation import Computation
from cpembed.ir.interpreter import Array, interpret_all
from cpembed.transform.program import DerivedProgram
from cpembed.transform.proof import prove
from tests.cases import make_case
from tests.executed import execute_all
from tests.integration.test_random_cases import exact_inputs
from tests.unit.transform.test_proof import mutate
from tests.unit.transform.test_proof_factored import rewire

LARGEST = 1 << 15
"""Scalar operations of a program that is mutated."""
Ranked = tuple[RankedCandidate, ...]
KINDS = (
    *("split", "pad", "reorder", "fuse", "stencil_unroll", "image_pack", "flatten"),
    *("ports", "statements"),
)


def programs(seeds: range) -> Iterator[tuple[Computation, DerivedProgram]]:
    """Workloads of random cases with some of their programs, as far as these are small."""
    for seed in seeds:
        case = make_case(seed)
        rng = random.Random(seed)

        def some(ranked: Ranked, rng: random.Random = rng) -> Ranked:
            """Any two, and one of those over fused axes, which are seldom among the best."""
            fused = [item for item in ranked if item.candidate.embedding.flattened]
            return (
                *rng.sample(ranked, min(2, len(ranked))),
                *rng.sample(fused, min(1, len(fused))),
            )

        try:
            result = solve(
                case.workload, case.target, constraints=case.constraints, top=40, keep=some
            )
        except WorkloadError:
            continue
        for ranked in result.embeddings:
            if math.prod(ranked.candidate.program.extents.values()) <= LARGEST:
                yield case.workload, ranked.candidate.program


def kinds(program: DerivedProgram) -> set[str]:
    found = {rewrite.name for rewrite in program.rewrites}
    if any("@" in name for name in program.roles.values()):
        found.add("ports")
    if len(program.workload.statements) > 1:
        found.add("statements")
    return found


def computes(program: DerivedProgram, inputs: dict[str, Array], expected: dict[str, Array]) -> bool:
    try:
        found = execute_all(program, inputs)
    except (CpembedError, IndexError, ValueError):
        return False
    return all(np.array_equal(found[name], values) for name, values in expected.items())


def effective_mutants(seeds: range, each: int) -> Counter[str]:
    """Effective mutants by what their programs have; every one of them was rejected."""
    total: Counter[str] = Counter()
    for number, (workload, program) in enumerate(programs(seeds)):
        rng = random.Random(number)
        inputs = exact_inputs(workload, number)
        expected = interpret_all(workload, inputs)
        assert computes(program, inputs, expected)
        for _ in range(each):
            mutant = rng.choice([mutate, rewire])(program, rng)
            if mutant == program or computes(mutant, inputs, expected):
                continue
            proof = prove(mutant)
            assert not proof.holds, mutant
            assert all(words.strip() for words in proof.failed)
            total.update(["all", *kinds(program)])
    return total


def test_what_changes_a_result_is_rejected() -> None:
    total = effective_mutants(range(26, 46), 6)
    assert total["all"] >= 30
    assert all(total[kind] > 0 for kind in ("split", "pad", "reorder", "ports")), total


@pytest.mark.slow
@pytest.mark.parametrize("block", range(4))
def test_two_thousand_mutants_are_rejected(block: int) -> None:
    total = effective_mutants(range(100 + 200 * block, 300 + 200 * block), 10)
    print(dict(total))
    assert total["all"] >= 400
    assert all(total[kind] >= 10 for kind in KINDS), total
