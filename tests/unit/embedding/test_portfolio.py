"""Portfolio search finds what a single search finds, in a fixed order; ``domain_bound`` agrees with
brute force."""

from __future__ import annotations

import dataclasses
import math
import random
import threading
from collections.abc import Iterable

import numpy as np
import pytest

from cpembed.embedding import portfolio
from cpembed.embedding.constraint_set import ConstraintSet, load_constraint_set
from cpembed.embedding.constraints import DomainBound
from cpembed.embedding.cpsat import (
    SearchControl,
    SearchLimits,
    Status,
    StopSignal,
    enumerate_solutions,
)
from cpembed.embedding.domains import coordinate_bounds, padded_extents
from cpembed.embedding.embedding import Embedding
from cpembed.embedding.flatten import flattened_problem
from cpembed.embedding.model_writer import CompiledModel
from cpembed.embedding.node_map import expand
from cpembed.embedding.portfolio import (
    axis_orders,
    decision_orders,
    post,
    solve_portfolio,
    workload_order,
)
from cpembed.embedding.problem import EmbeddingProblem, pair_operands
from cpembed.embedding.projection import project
from cpembed.embedding.result import Formulation
from cpembed.embedding.search import search
from cpembed.errors import InvariantError, SpecError
from cpembed.hw.loader import load_hardware_spec
from cpembed.workloads.naming import parse_workload
from tests.node_maps import TooLarge, solutions
from tests.unit.embedding.test_node_maps import make_problem


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
        without = solutions(problem, constraints.removing("domain_bound"))
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


@pytest.mark.quick(1)
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
SMALL = "conv2d n=1 c=16 h=6 w=6 k=16 r=2 s=2"
LONGER = "conv2d n=1 c=64 h=28 w=28 k=32 r=1 s=1"
"""Its relaxed space takes one order some 0.24 of deterministic time, about the first round."""


def test_orders_are_counted_by_equation_12() -> None:
    problem, strict = vta(CONV), load_constraint_set("strict")
    orders = axis_orders(problem, strict)
    # y and z move; k, p, q and c, r, s could feed them (n has one iteration).
    assert len(orders) == math.perm(3, 1) * math.perm(3, 1) == 9
    assert len(set(orders)) == 9
    assert all(sorted(asset.axes) == sorted("nkpqcrs") for asset in orders)
    assert {asset.axes[-2:] for asset in orders} == {(a, b) for a in "kpq" for b in "crs"}
    assert len(axis_orders(vta("conv2d n=2 c=32 h=8 w=8 k=32 r=3 s=3"), strict)) == 12


def test_every_order_is_searched_with_and_without_the_bound() -> None:
    problem, strict = vta(CONV), load_constraint_set("strict")
    orders = axis_orders(problem, strict)
    assets = decision_orders(problem, strict)
    assert assets[9:] == orders
    assert [asset.axes for asset in assets[:9]] == [order.axes for order in orders]
    assert all(asset.bounded for asset in assets[:9])
    assert len({asset.name for asset in assets}) == 18
    # Any stride may be needed: no domain can be cut.
    assert decision_orders(problem, strict.removing("dense", "padding")) == orders


def test_bounds_are_those_of_equation_11_where_strides_are_known() -> None:
    problem = vta("conv2d n=1 c=512 h=30 w=30 k=512 r=3 s=3")
    bounds = coordinate_bounds(problem, load_constraint_set("strict"))
    # At most 16 steps of stride 1; of 3 kernel rows 2, since 3 does not divide 16.
    assert (bounds["k"], bounds["c"], bounds["p"], bounds["q"]) == (15, 15, 15, 15)
    assert (bounds["n"], bounds["r"], bounds["s"]) == (0, 1, 1)
    bounds = coordinate_bounds(problem, load_constraint_set("relaxed"))
    # 16 sub-images of 512 / 16 channels begin at 0, 32, ... 480; of 28 rows at 0, 2, ... 30.
    assert (bounds["k"], bounds["p"]) == (480, 30)


@pytest.mark.slow
def test_no_embedding_is_beyond_the_bounds() -> None:
    compared = cut = 0
    for seed in range(60):
        problem, constraints = make_problem(seed)
        try:
            expected = solutions(problem, constraints)
        except TooLarge:
            continue
        compared += 1
        bounds = coordinate_bounds(problem, constraints)
        extents = padded_extents(problem, constraints)
        cut += any(bounds[axis] < extent - 1 for axis, extent in extents.items())
        for shape, images in expected:
            points = np.frombuffer(images, np.int64).reshape(shape)
            for axis, image in zip(problem.workload.axes, points, strict=True):
                assert image.max() <= bounds[axis.name], (seed, axis.name)
    assert compared > 30
    assert cut > 10, "hardly any domain was cut"


def texts(embeddings: Iterable[Embedding]) -> list[str]:
    return sorted(str(embedding) for embedding in embeddings)


@pytest.mark.parametrize("seed", range(12))
def test_every_asset_finds_what_the_digits_or_brute_force_find(seed: int) -> None:
    problem, constraints = bounded(seed)
    alone = search(problem, constraints, SearchLimits(), formulation=Formulation.AUTO)
    assets = decision_orders(problem, constraints)
    portfolios = [(assets, True), (assets, False), *(([asset], True) for asset in assets)]
    for chosen, presolve in portfolios:
        found = solve_portfolio(
            problem, constraints, SearchLimits(), chosen, presolve=presolve, workers=3
        )
        assert found.complete
        assert found.effort.winner is not None
        assert found.status is alone.status
        assert texts(found.embeddings) == texts(alone.embeddings)
        assert len(found.irregular) == len(alone.irregular)


@pytest.mark.slow
@pytest.mark.parametrize("constraints", ["strict", "in_place_padded", "relaxed"])
def test_the_answer_depends_on_neither_workers_nor_seed_nor_winner(constraints: str) -> None:
    problem, chosen = vta(SMALL), load_constraint_set(constraints)
    digits = search(problem, chosen, SearchLimits(), formulation=Formulation.DIGITS)
    assets, first = decision_orders(problem, chosen), workload_order(problem)
    assert len(assets) >= 9
    answers = [
        solve_portfolio(problem, chosen, SearchLimits(seed=seed), some, first=way, workers=workers)
        for some, way, workers, seed in [
            (assets, None, 1, 0),
            (assets, None, 2, 1),
            (assets, None, 4, 7),
            (assets, first, 1, 3),
            (assets, first, 4, 3),
            ([assets[-1]], None, 1, 0),
            ([first], None, 1, 12),
        ]
    ]
    assert texts(answers[0].embeddings) == texts(digits.embeddings)
    assert all(answer.embeddings == answers[0].embeddings for answer in answers)
    assert all(answer.complete and answer.effort.winner for answer in answers)
    assert len(digits.embeddings) >= 1


def test_all_solutions_come_in_the_same_order_whichever_asset_wins() -> None:
    problem = vta(CONV)
    constraints = load_constraint_set("strict").removing("dense", "padding")
    assets = decision_orders(problem, constraints)
    answers = [
        solve_portfolio(problem, constraints, SearchLimits(), order).embeddings
        for order in ([assets[0]], [assets[-1]], assets)
    ]
    assert len(answers[0]) > 1
    assert answers[0] == answers[1] == answers[2]


@pytest.mark.slow
def test_the_first_solution_is_the_same_in_every_run() -> None:
    problem = vta(CONV)
    constraints = load_constraint_set("strict").removing("dense", "padding")
    assets, one = decision_orders(problem, constraints), SearchLimits(solutions=1)
    for first in (None, workload_order(problem)):
        runs = [
            solve_portfolio(problem, constraints, one, assets, first=first, workers=workers)
            for workers in (1, 2, 4, 4, 4)
        ]
        assert len({run.effort.winner for run in runs}) == 1
        assert all(run.embeddings == runs[0].embeddings for run in runs)
        assert len(runs[0].embeddings) == 1
        assert runs[0].status is Status.FEASIBLE
        assert not runs[0].complete


def test_efforts_add_up() -> None:
    problem, strict = vta(CONV), load_constraint_set("strict")
    assets = decision_orders(problem, strict)
    effort = solve_portfolio(problem, strict, SearchLimits(), assets, presolve=False).effort
    assert effort.winner in [asset.name for asset in effort.orders]
    branches = [asset.statistics.branches for asset in effort.orders]
    document = effort.to_json()
    assert document["branches"] == effort.total.branches == sum(branches) > 0
    assert [asset["branches"] for asset in document["assets"]] == branches
    winner = next(asset for asset in document["assets"] if asset["name"] == document["asset"])
    assert winner["status"] == "optimal"
    assert document["formulation"] == "scalar"


def test_a_problem_that_one_order_answers_is_given_to_no_other() -> None:
    problem, strict = vta(CONV), load_constraint_set("strict")
    assets, first = decision_orders(problem, strict), workload_order(problem)
    found = solve_portfolio(problem, strict, SearchLimits(), assets, first=first, workers=4)
    assert [asset.name for asset in found.effort.orders] == [first.name] == [found.effort.winner]


@pytest.mark.slow
def test_a_problem_that_takes_longer_is_given_to_the_portfolio(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(portfolio, "_FIRST_WORK", 0.1)
    problem, relaxed = vta(LONGER), load_constraint_set("relaxed")
    assets, first = decision_orders(problem, relaxed), workload_order(problem)
    found = solve_portfolio(problem, relaxed, SearchLimits(), assets, first=first, workers=2)
    assert found.complete
    assert found.effort.winner != first.name
    assert [asset.name for asset in found.effort.orders][:2] == [first.name, assets[0].name]
    assert found.effort.orders[0].status in (Status.UNKNOWN, Status.FEASIBLE)
    digits = search(problem, relaxed, SearchLimits(), formulation=Formulation.DIGITS)
    assert texts(found.embeddings) == texts(digits.embeddings)
    # All solutions on one core: several orders would take turns for nothing.
    alone = solve_portfolio(problem, relaxed, SearchLimits(), assets, first=first, workers=1)
    assert [asset.name for asset in alone.effort.orders] == [first.name]
    assert alone.embeddings == found.embeddings


@pytest.mark.slow
def test_an_asset_that_loses_solutions_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(portfolio, "_FIRST_WORK", 0.1)
    problem, relaxed = vta(LONGER), load_constraint_set("relaxed")
    monkeypatch.setattr(portfolio, "coordinate_bounds", lambda *_: {"k": 0, "n": 0})
    first = workload_order(problem)
    wrong = [dataclasses.replace(first, name=name, bounded=True) for name in ("wrong", "too")]
    with pytest.raises(InvariantError, match="missed a solution"):
        solve_portfolio(problem, relaxed, SearchLimits(), wrong, first=first, workers=2)


def test_infeasible_is_an_answer() -> None:
    problem, strict = vta("conv2d n=1 c=3 h=8 w=8 k=32 r=3 s=3"), load_constraint_set("strict")
    found = solve_portfolio(problem, strict, SearchLimits(), decision_orders(problem, strict))
    assert found.status is Status.INFEASIBLE
    assert found.complete
    assert found.effort.winner is not None


def test_a_portfolio_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one decision order"):
        solve_portfolio(vta(CONV), load_constraint_set("strict"), SearchLimits(), [])


def test_an_asset_in_the_workloads_order_searches_like_the_default() -> None:
    problem, constraints = vta(CONV), load_constraint_set("strict")
    control = SearchControl(presolve=False)
    plain = enumerate_solutions(
        post(problem, constraints).build(), lambda _: True, SearchLimits(), control
    )
    own = [workload_order(problem)]
    found = solve_portfolio(problem, constraints, SearchLimits(), own, presolve=False)
    assert found.effort.total.branches == plain[2].branches


def test_which_search_is_asked_for_decides_the_model_and_the_assets() -> None:
    problem, strict = vta(CONV), load_constraint_set("strict")
    found = {
        formulation: search(problem, strict, SearchLimits(), formulation=formulation).effort
        for formulation in Formulation
    }
    assert found[Formulation.AUTO].formulation is Formulation.DIGITS
    assert found[Formulation.DIGITS].winner == "outputs_first"
    assert found[Formulation.SCALAR].formulation is Formulation.SCALAR
    assert [asset.name for asset in found[Formulation.SCALAR].orders] == ["workload"]
    assert found[Formulation.PORTFOLIO].formulation is Formulation.SCALAR
    assert found[Formulation.PORTFOLIO].orders[0].name == "q,s bounded"


def test_auto_is_the_scalar_model_where_digits_cannot_say_it() -> None:
    problem, loose = vta(SMALL), load_constraint_set("strict").removing("fixed_origin")
    assert search(problem, loose, SearchLimits()).effort.formulation is Formulation.SCALAR
    with pytest.raises(SpecError, match=r"the digit model .* lacks fixed_origin.* auto"):
        search(problem, loose, SearchLimits(), formulation=Formulation.DIGITS)


@pytest.mark.parametrize("formulation", [Formulation.SCALAR, Formulation.PORTFOLIO])
def test_the_scalar_model_refuses_to_fuse_axes(formulation: Formulation) -> None:
    flattened = load_constraint_set("flattened")
    with pytest.raises(SpecError, match=r"the scalar model .* flatten"):
        search(vta(SMALL), flattened, SearchLimits(), formulation=formulation)


def hard() -> CompiledModel:
    """A model whose enumeration would take very long."""
    constraints = load_constraint_set("strict").removing(
        "hyper_rectangle", "dense", "linear_access", "padding"
    )
    return post(vta("conv2d n=4 c=64 h=32 w=32 k=64 r=3 s=3"), constraints).build()


def test_a_search_is_stopped_from_another_thread() -> None:
    stop = StopSignal()
    threading.Timer(0.3, stop.stop).start()
    status, complete, _ = enumerate_solutions(
        hard(),
        lambda _: True,
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
        lambda _: True,
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
    assert every.effort.formulation is kept.effort.formulation is Formulation.DIGITS

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
    constraints = load_constraint_set("strict").removing(
        "hyper_rectangle", "dense", "linear_access", "padding"
    )
    problem = vta("conv2d n=4 c=64 h=32 w=32 k=64 r=3 s=3")
    assets = decision_orders(problem, constraints)
    assert len(assets) == 12
    found = solve_portfolio(problem, constraints, SearchLimits(seconds=0.3), assets, workers=1)
    assert found.effort.winner is None
    assert not found.complete
    assert found.seconds.model + found.seconds.solve < 3
    # Those that were still waiting for a core never start.
    assert 1 <= len(found.effort.orders) < len(assets)


@pytest.mark.slow
def test_what_a_stopped_search_found_is_kept() -> None:
    problem, relaxed = vta(LONGER), load_constraint_set("relaxed")
    found = solve_portfolio(
        problem, relaxed, SearchLimits(seconds=1.2), [workload_order(problem)], presolve=False
    )
    if found.effort.winner is None and found.embeddings:
        assert found.status is Status.FEASIBLE
        assert not found.complete
    every = search(problem, relaxed, SearchLimits(), formulation=Formulation.DIGITS)
    assert set(texts(found.embeddings)) <= set(texts(every.embeddings))
