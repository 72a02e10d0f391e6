"""Assignments of random problems against all combinations of options."""

from __future__ import annotations

import math
import re

import pytest

from cpembed.errors import LoweringError
from cpembed.network.assignment import REDUCTIONS, Bounds, Problem, Reductions, assign, evaluate
from cpembed.network.assignment.formulation import prune_options
from tests.unit.network.assignment.problems import brute_force, priced, random_problem

NOTHING = Bounds(joined=0, result=0, total=0)
METHODS = {
    "reductions alone": REDUCTIONS,
    "reductions in part": Reductions(NOTHING, Bounds(joined=16, result=6, total=200)),
    "pruning, then the solver": Reductions(NOTHING, NOTHING),
    "the solver alone": None,
}
BATCH = 20


@pytest.mark.quick(8)
@pytest.mark.parametrize("batch", range(50))
@pytest.mark.parametrize("method", METHODS)
def test_the_best_of_all_combinations_is_found(method: str, batch: int) -> None:
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        check(random_problem(seed), method, f"seed {seed}")


def check(problem: Problem, method: str, where: str) -> None:
    best = brute_force(problem)
    try:
        found = assign(problem, reductions=METHODS[method])
    except LoweringError:
        assert best == math.inf, where
        return
    numbers = [found.options[node.name] for node in problem.nodes]
    assert found.cost == pytest.approx(priced(problem, numbers), abs=1e-9), where
    assert found.cost == pytest.approx(best, rel=1e-5, abs=1e-9), where
    assert found.bound <= found.cost, where
    assert found.bound == pytest.approx(best, rel=1e-5, abs=1e-9), where
    assert found.proven, where
    paid = [problem.tensor_of[c.tensor].conversion[c.source, c.target] for c in found.conversions]
    operators = sum(node.options[k].cost for node, k in zip(problem.nodes, numbers, strict=True))
    assert found.cost == pytest.approx(operators + sum(paid), abs=1e-9), where
    assert all(found.written[c.tensor] == c.source for c in found.conversions), where
    if method == "reductions alone":
        assert found.solver_entries == 0, where


@pytest.mark.quick(8)
@pytest.mark.parametrize("batch", range(50))
def test_pruning_keeps_a_best_assignment(batch: int) -> None:
    dropped = 0
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        problem = random_problem(seed)
        kept = prune_options(problem)
        dropped += sum(len(node.options) for node in problem.nodes) - sum(map(len, kept))
        assert all(kept)
        assert brute_force(problem, kept) == pytest.approx(brute_force(problem)), seed
    assert dropped > 0


def test_an_evaluation_is_what_the_definition_says() -> None:
    for seed in range(200):
        problem = random_problem(seed)
        options = [seed % len(node.options) for node in problem.nodes]
        assert evaluate(problem, options).cost == pytest.approx(priced(problem, options)), seed


def test_an_error_names_a_conversion_that_is_missing() -> None:
    named = 0
    for seed in range(200):
        problem = random_problem(seed)
        if brute_force(problem) < math.inf:
            continue
        with pytest.raises(LoweringError) as error:
            assign(problem)
        found = re.match(r"tensor (\w+): written as (\w) and needed as (\w)", str(error.value))
        assert found is not None
        tensor = problem.tensor_of[found[1]]
        pair = tensor.layouts.index(found[2]), tensor.layouts.index(found[3])
        assert tensor.conversion_cost(*pair) == math.inf, seed
        named += 1
    assert named > 10
