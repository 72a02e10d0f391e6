"""Portfolio search finds what a single search finds, in a fixed order; ``domain_bound`` agrees with
brute force."""

from __future__ import annotations

import dataclasses
import random
import threading

import pytest

from cpembed.embedding.checks import flattened_problem
from cpembed.embedding.constraint_set import ConstraintSet, load_constraint_set
from cpembed.embedding.constraints import DomainBound
from cpembed.embedding.cpsat import (
    SearchControl,
    SearchLimits,
    Status,
    StopSignal,
    enumerate_solutions,
)
from cpembed.embedding.embedding import Embedding
from cpembed.embedding.node_map import expand
from cpembed.embedding.portfolio import Asset, asset_count, make_assets, solve_portfolio
from cpembed.embedding.problem import EmbeddingProblem, pair_operands
from cpembed.embedding.projection import project
from cpembed.embedding.proto_writer import CompiledModel
from cpembed.embedding.result import Formulation
from cpembed.embedding.search import post, search
from cpembed.hw.loader import load_hardware_spec
from cpembed.workloads.naming import parse_workload
from tests.brute_force import TooLarge, solutions
from tests.unit.embedding.test_brute_force import make_problem


def bounded(seed: int) -> tuple[EmbeddingProblem, ConstraintSet]:
    rng = random.Random(seed)
    problem, constraints = make_problem(seed)
    bound = DomainBound(
        rng.choice([None, 1, 2, 3, 4]),
        rng.choice([1, 1, 2]),
        rng.choice(["operations", "operands", "all"]),  # type: ignore[arg-type]
    )
    return problem, dataclasses.replace(constraints, constraints=(*constraints.constraints, bound))


def compare_bound(seed: int) -> tuple[int, int] | None:
    """Embeddings with the bound and without it; None where there are too many to enumerate."""
    problem, constraints = bounded(seed)
    try:
        expected = solutions(problem, constraints)
        without = solutions(problem, constraints.without("domain_bound"))
    except TooLarge:
        return None
    for formulation in (Formulation.SCALAR, Formulation.AUTO):
        result = search(problem, constraints, SearchLimits(), formulation=formulation)
        found = [expand(problem, embedding) for embedding in result.embeddings]
        keys = [m.key() for m in (*found, *result.irregular) if m is not None]
        assert result.complete
        assert len(keys) == len(set(keys))
        assert set(keys) == expected
    return len(expected), len(without)


@pytest.mark.parametrize("block", range(2))
def test_domain_bound_agrees_with_brute_force(block: int) -> None:
    counts = [compare_bound(seed) for seed in range(block * 45, block * 45 + 45)]
    compared = [count for count in counts if count is not None]
    assert len(compared) >= 15
    assert any(with_bound for with_bound, _ in compared)
    assert any(with_bound < without for with_bound, without in compared), "it never removed any"


def vta(text: str) -> EmbeddingProblem:
    instruction = load_hardware_spec("vta_1x16x16").instruction
    problem = pair_operands(parse_workload(text.split(), ("int8", "int8", "int32")), instruction)
    assert isinstance(problem, EmbeddingProblem)
    return problem


CONV = "conv2d n=1 c=32 h=8 w=8 k=32 r=3 s=3"


def test_assets_are_counted_by_equation_12() -> None:
    problem, strict = vta(CONV), load_constraint_set("strict")
    assets = make_assets(problem, strict)
    # y and z move; k, p, q and c, r, s could feed them (n has one iteration).
    assert len(assets) == asset_count(3, 3, 1, 1) == 9
    assert len(set(assets)) == 9
    assert all(sorted(asset.axes) == sorted("nkpqcrs") for asset in assets)
    assert {asset.axes[-2:] for asset in assets} == {(a, b) for a in "kpq" for b in "crs"}
    assert len(make_assets(vta("conv2d n=2 c=32 h=8 w=8 k=32 r=3 s=3"), strict)) == 12


@pytest.mark.parametrize("seed", range(12))
def test_the_portfolio_finds_what_one_search_finds(seed: int) -> None:
    problem, constraints = bounded(seed)
    alone = search(problem, constraints, SearchLimits(), formulation=Formulation.SCALAR)
    for presolve in (True, False):
        found = solve_portfolio(problem, constraints, SearchLimits(), presolve=presolve, workers=3)
        assert found.result.complete
        assert found.winner is not None
        assert found.result.status is alone.status

        def key(embedding: object) -> str:
            return str(embedding)

        assert sorted(found.result.embeddings, key=key) == sorted(alone.embeddings, key=key)
        assert len(found.result.irregular) == len(alone.irregular)


def test_all_solutions_come_in_the_same_order_whichever_asset_wins() -> None:
    problem = vta(CONV)
    constraints = load_constraint_set("strict").without("dense", "padding")
    assets = make_assets(problem, constraints)
    answers = [
        solve_portfolio(problem, constraints, SearchLimits(), order).result.embeddings
        for order in ([assets[0]], [assets[-1]], assets)
    ]
    assert len(answers[0]) > 1
    assert answers[0] == answers[1] == answers[2]


def test_the_first_solution_is_the_same_in_every_run() -> None:
    problem = vta(CONV)
    constraints = load_constraint_set("strict").without("dense", "padding")
    runs = [
        solve_portfolio(problem, constraints, SearchLimits(solutions=1), workers=workers)
        for workers in (1, 2, 4, 4, 4)
    ]
    assert len({run.winner for run in runs}) == 1
    assert all(run.result.embeddings == runs[0].result.embeddings for run in runs)
    assert len(runs[0].result.embeddings) == 1
    assert runs[0].result.status is Status.FEASIBLE
    assert not runs[0].result.complete


def test_efforts_add_up() -> None:
    found = solve_portfolio(
        vta(CONV), load_constraint_set("strict"), SearchLimits(), presolve=False
    )
    assert found.winner in [effort.asset for effort in found.efforts]
    branches = [effort.statistics.branches for effort in found.efforts]
    assert found.result.statistics.branches == sum(branches) > 0


def test_infeasible_is_an_answer() -> None:
    found = solve_portfolio(
        vta("conv2d n=1 c=3 h=8 w=8 k=32 r=3 s=3"), load_constraint_set("strict"), SearchLimits()
    )
    assert found.result.status is Status.INFEASIBLE
    assert found.result.complete
    assert found.winner is not None


def test_a_portfolio_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one asset"):
        solve_portfolio(vta(CONV), load_constraint_set("strict"), SearchLimits(), [])


def test_an_asset_in_the_workloads_order_searches_like_the_default() -> None:
    problem, constraints = vta(CONV), load_constraint_set("strict")
    names = tuple(axis.name for axis in problem.workload.axes)
    control = SearchControl(presolve=False)
    plain = enumerate_solutions(
        post(problem, constraints).build(), lambda _: None, SearchLimits(), control
    )
    found = solve_portfolio(
        problem, constraints, SearchLimits(), [Asset("own", names)], presolve=False
    )
    assert found.result.statistics.branches == plain[2].branches


def hard() -> CompiledModel:
    """A model whose enumeration would take very long."""
    constraints = load_constraint_set("strict").without(
        "hyper_rectangle", "dense", "linear_access", "padding"
    )
    return post(vta("conv2d n=4 c=64 h=32 w=32 k=64 r=3 s=3"), constraints).build()


def test_a_search_is_stopped_from_another_thread() -> None:
    stop = StopSignal()
    threading.Timer(0.3, stop.stop).start()
    status, complete, _ = enumerate_solutions(
        hard(),
        lambda _: None,
        SearchLimits(seconds=30),
        SearchControl(stop=stop),
    )
    assert not complete
    assert status in (Status.FEASIBLE, Status.UNKNOWN)


def test_a_search_that_starts_after_the_signal_ends_at_once() -> None:
    stop = StopSignal()
    stop.stop()
    _, complete, statistics = enumerate_solutions(
        hard(),
        lambda _: None,
        SearchLimits(seconds=30),
        SearchControl(stop=stop),
    )
    assert not complete
    assert statistics.seconds < 10


@pytest.mark.parametrize("bound", [DomainBound(6), DomainBound(6, images="operands")])
def test_domain_bound_keeps_what_holds_on_fused_and_meeting_digits(bound: DomainBound) -> None:
    """Too large for brute force: the digit model's solutions without the bound are the truth."""
    whole = vta("conv2d n=2 c=6 h=8 w=8 k=16 r=3 s=3")
    problem = pair_operands(whole.workload, project(whole.instruction, ("z",)))
    assert isinstance(problem, EmbeddingProblem)
    free = load_constraint_set("complete")
    every = search(problem, free, SearchLimits())
    bounded_set = dataclasses.replace(free, constraints=(*free.constraints, bound))
    kept = search(problem, bounded_set, SearchLimits())
    assert every.formulation is kept.formulation is Formulation.DIGITS

    def held(embedding: Embedding) -> bool:
        flat = flattened_problem(problem, embedding.flattened)
        node_map = expand(flat, embedding)
        assert node_map is not None
        return bound.holds(flat, node_map)

    expected = {e.identifier() for e in every.embeddings if held(e)}
    assert any(e.flattened for e in every.embeddings)
    assert {e.identifier() for e in kept.embeddings} == expected
    assert 0 < len(expected) < len(every.embeddings)


def test_the_time_limit_is_that_of_all_assets_together() -> None:
    constraints = load_constraint_set("strict").without(
        "hyper_rectangle", "dense", "linear_access", "padding"
    )
    problem = vta("conv2d n=4 c=64 h=32 w=32 k=64 r=3 s=3")
    found = solve_portfolio(problem, constraints, SearchLimits(seconds=0.3), workers=1)
    assert found.winner is None
    assert not found.result.complete
    assert len(make_assets(problem, constraints)) == 12
    assert found.result.seconds.model + found.result.seconds.solve < 3
