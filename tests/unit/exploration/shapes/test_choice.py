"""Dominance and the choice of K shapes, against all sets."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from cpembed.embedding.constraint_set import load_constraint_set
from cpembed.exploration.shapes import choice
from cpembed.exploration.shapes.choice import (
    Budget,
    Costs,
    SetChoice,
    best_one,
    best_sets,
    best_two,
    cost_of,
    drop_redundant,
    greedy,
    sets_within,
    undominated,
)
from cpembed.exploration.shapes.finding import choose_undominated
from cpembed.exploration.shapes.question import Question
from cpembed.exploration.shapes.shape import Scope
from cpembed.time_limit import Clock


@st.composite
def costs(draw: st.DrawFn, layers: int = 5, shapes: int = 9, largest: int = 12) -> Costs:
    """Small integers, so that there are ties and dominated shapes; some pairs do not fit."""
    rows = draw(st.integers(1, layers))
    columns = draw(st.integers(1, shapes))
    value = st.integers(1, largest) | st.just(math.inf)
    values = draw(st.lists(value, min_size=rows * columns, max_size=rows * columns))
    return np.array(values, np.float64).reshape(rows, columns)


def numbers(found: Costs) -> NDArray[np.int64]:
    return np.arange(found.shape[1], dtype=np.int64)


def all_sets(found: Costs, count: int) -> list[tuple[int, ...]]:
    return [
        chosen
        for size in range(1, count + 1)
        for chosen in itertools.combinations(range(found.shape[1]), size)
        if math.isfinite(cost_of(found, chosen))
    ]


def assert_best(found: Costs, answer: SetChoice, sets: list[tuple[int, ...]]) -> None:
    """The best of the sets and the best of those that do not hold it."""
    if not sets:
        assert not answer.sets
        return
    least = min(cost_of(found, chosen) for chosen in sets)
    best = answer.sets[0]
    assert answer.proven
    assert answer.costs[0] == least == cost_of(found, best)
    assert best in sets
    others = [chosen for chosen in sets if not set(best) <= set(chosen)]
    assert len(answer.sets) == 1 + bool(others)
    if others:
        assert answer.costs[1] == min(cost_of(found, chosen) for chosen in others)
        assert answer.costs[1] == cost_of(found, answer.sets[1])
        assert answer.runner_up_proven


@given(costs())
def test_one_and_two_are_the_best_of_all_sets(found: Costs) -> None:
    assert_best(found, best_one(found), all_sets(found, 1))
    assert_best(found, best_two(found), all_sets(found, 2))


@settings(max_examples=40, deadline=None)
@given(costs(shapes=7), st.integers(1, 4))
def test_medians_are_the_best_of_all_sets(found: Costs, count: int) -> None:
    assert_best(found, best_sets(found, count), all_sets(found, count))


@settings(max_examples=30, deadline=None)
@given(costs(shapes=7), st.integers(1, 3), st.integers(3, 12))
def test_medians_keep_a_budget(found: Costs, count: int, most: int) -> None:
    sizes = [1 + (7 * n + 3) % 5 for n in range(found.shape[1])]
    within = [s for s in all_sets(found, count) if sum(sizes[n] for n in s) <= most]
    assert_best(found, best_sets(found, count, budget=Budget(sizes, most)), within)


@given(costs(layers=9, shapes=12, largest=4), st.integers(1, 3))
def test_dominance_never_removes_the_best(found: Costs, count: int) -> None:
    kept = undominated(found, numbers(found))
    every = [cost_of(found, chosen) for chosen in all_sets(found, count)]
    left = [cost_of(found[:, kept], chosen) for chosen in all_sets(found[:, kept], count)]
    assert min(every, default=math.inf) == min(left, default=math.inf)


@given(costs(layers=9, shapes=12, largest=4))
def test_dominance_keeps_exactly_what_nothing_dominates(found: Costs) -> None:
    kept = set(undominated(found, numbers(found)).tolist())
    for n in range(found.shape[1]):
        better = {
            m
            for m in range(found.shape[1])
            if m != n
            and (found[:, m] <= found[:, n]).all()
            and ((found[:, m] < found[:, n]).any() or m < n)
        }
        assert (n in kept) == (not better)


@pytest.mark.parametrize("layers", [2, 7, 12])
def test_dominance_over_many_layers_keeps_what_nothing_dominates(layers: int) -> None:
    """Layers that differ little: most shapes are told apart by few of them."""
    rng = np.random.default_rng(3)
    for _ in range(20):
        found = rng.choice([1.0, 1.0, 2.0], (layers, 40))
        columns = np.unique(found, axis=1)
        kept = {tuple(row) for row in found[:, undominated(found, numbers(found))].T.tolist()}
        expected = {
            tuple(one)
            for one in columns.T.tolist()
            if not any((other <= one).all() and (other < one).any() for other in columns.T)
        }
        assert kept == expected


def asked(count: int, most: int | None = None, within: float | None = None) -> Question:
    constraints = load_constraint_set("in_place_padded")
    return Question(Scope(8), count, constraints, total_macs=most, within=within)


def sizes_of(found: Costs) -> NDArray[np.int64]:
    return np.array([1 + (7 * n + 3) % 5 for n in range(found.shape[1])], np.int64)


@settings(max_examples=60, deadline=None)
@given(costs(layers=4, shapes=8, largest=5), st.integers(1, 3), st.none() | st.integers(3, 9))
def test_the_runner_up_is_that_of_all_shapes(found: Costs, count: int, most: int | None) -> None:
    """Of those too that the best dominates."""
    sizes = sizes_of(found)
    answer, columns, _ = choose_undominated(asked(count, most), found, sizes, Clock(None))
    sets = tuple(tuple(sorted(int(columns[n]) for n in chosen)) for chosen in answer.sets)
    within = [s for s in all_sets(found, count) if most is None or sizes[list(s)].sum() <= most]
    assert_best(found, replace(answer, sets=sets), within)


@settings(max_examples=60, deadline=None)
@given(
    costs(layers=4, shapes=8, largest=9),
    st.integers(1, 3),
    st.sampled_from([0.0, 10.0, 50.0, 100.0]),
    st.none() | st.integers(3, 9),
)
def test_all_sets_that_cost_little_more_are_listed(
    found: Costs, count: int, percent: float, most: int | None
) -> None:
    """Each of whose shapes is needed."""
    sizes = sizes_of(found)
    every = {
        s: cost_of(found, s)
        for s in all_sets(found, count)
        if drop_redundant(found, s) == s and (most is None or sizes[list(s)].sum() <= most)
    }
    best = min(every.values(), default=None)
    if best is None:
        return
    near = asked(count, most, percent).near(found, sizes, best, Clock(None))
    assert near.complete
    assert dict(near.sets) == {s: c for s, c in every.items() if c * 100 <= best * (100 + percent)}
    assert [cost for _, cost in near.sets] == sorted(cost for _, cost in near.sets)


def test_too_many_sets_are_not_said_to_be_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "MAX_SETS", 5)
    near = sets_within(np.ones((1, 9)), 1, 2.0, Clock(None))
    assert (len(near.sets), near.complete) == (5, False)


def test_equal_shapes_are_one_and_the_preferred_stays() -> None:
    found = np.array([[3.0, 3.0, 4.0], [5.0, 5.0, 4.0]])
    assert undominated(found, np.array([9, 7, 1])).tolist() == [2, 1]


@given(costs(), st.integers(1, 4))
def test_what_is_not_needed_is_dropped(found: Costs, count: int) -> None:
    chosen = tuple(range(min(count, found.shape[1])))
    kept = drop_redundant(found, chosen)
    assert set(kept) <= set(chosen)
    assert cost_of(found, kept) == cost_of(found, chosen)
    for number in kept if len(kept) > 1 else ():
        rest = [n for n in kept if n != number]
        assert cost_of(found, rest) > cost_of(found, kept)


@given(costs(), st.integers(1, 3))
def test_the_greedy_start_is_a_set(found: Costs, count: int) -> None:
    start = greedy(found, count)
    if start is not None:
        assert start in all_sets(found, count)


@pytest.mark.slow
def test_a_stopped_search_says_how_far_the_best_can_be() -> None:
    rng = np.random.default_rng(1)
    found = rng.integers(1, 10_000, (60, 300)).astype(np.float64)
    answer = best_sets(found, 5, seconds=0.05)
    assert answer.sets
    assert found.min(axis=1).sum() <= answer.bound <= answer.costs[0]
    assert answer.costs[0] == cost_of(found, answer.sets[0])


@pytest.mark.slow
def test_three_of_many_equal_all_triples() -> None:
    rng = np.random.default_rng(2)
    for _ in range(5):
        found = rng.integers(1, 1000, (20, 45)).astype(np.float64)
        triples = np.array(list(itertools.combinations(range(45), 3)))
        least = found[:, triples].min(axis=2).sum(axis=0).min()
        assert best_sets(found, 3).costs[0] == least
