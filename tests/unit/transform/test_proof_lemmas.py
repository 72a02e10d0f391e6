"""Each lemma decides what enumeration of its box decides, on random goals."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from cpembed.transform.proof import lemmas


def random_goal(rng: random.Random, names: str, extents: dict[str, int]) -> lemmas.Plain:
    terms = tuple(
        (name, extents[name], rng.choice([-1, 1, 2, 3]), rng.choice([1, 2]), rng.choice([None, 2]))
        for name in rng.sample(names, rng.randint(1, len(names)))
    )
    return terms, rng.choice([0, 0, -1, 1])


def values(goal: lemmas.Goal, point: dict[str, int]) -> int:
    (terms, constant), bindings = goal
    known = {name: values((body, ()), point) for name, body in bindings} or point
    digits = ((known[str(name)] // d, c, m) for name, _, c, d, m in terms)
    return constant + sum(c * (v if m is None else v % m) for v, c, m in digits)


def expected(lemma: lemmas.Lemma, found: np.ndarray, sizes: tuple[int, ...]) -> bool:
    """The lemma by enumeration; one row of ``found`` per point, one column per goal."""
    within = [(column >= 0) & (column < size) for column, size in zip(found.T, sizes, strict=False)]
    distinct = len(np.unique(found, axis=0)) == len(found)
    full = bool(np.all(within)) and len(np.unique(found, axis=0)) == np.prod(sizes)
    if lemma is lemmas.inside:
        return bool(within[0].all())
    if lemma is lemmas.equal:
        guard = (found[:, 2] >= 0) & (found[:, 2] < sizes[0])
        return bool((found[:, 0] == found[:, 1])[guard].all())
    if lemma is lemmas.excluded:
        return not (~within[0] & within[1]).any()
    if lemma is lemmas.injective:
        return distinct
    return full if lemma is lemmas.onto else full and distinct


LEMMAS = {
    lemmas.inside: (1, 1),
    lemmas.equal: (3, 1),
    lemmas.excluded: (2, 2),
    lemmas.injective: (2, 0),
    lemmas.onto: (2, 2),
    lemmas.bijective: (2, 2),
}


def random_question(
    lemma: lemmas.Lemma, rng: random.Random
) -> tuple[tuple[lemmas.Goal, ...], np.ndarray, tuple[int, ...]]:
    """Goals for a lemma, their values on every point, and sizes; half of them nearly true."""
    extents = {name: rng.randint(1, 4) for name in "abc"}
    goals: list[lemmas.Goal] = []
    goal_count, size_count = LEMMAS[lemma]
    easy = rng.random() < 0.5
    for name in "ab" if easy and goal_count == 2 else "a" * goal_count:
        index = random_goal(rng, name if easy else "ab", extents)
        if easy and rng.random() < 0.5:
            index = ((name, extents[name], 1, 1, None),), 0
        bound = tuple((term[0], random_goal(rng, "abc", extents)) for term in index[0])
        goals.append((index, bound if not easy and rng.random() < 0.5 else ()))
    if easy and lemma is lemmas.equal:
        (terms, constant), _ = goals[0]
        goals[1] = ((tuple(reversed(terms)), constant), ())
    indices = [e for index, bound in goals for e in [body for _, body in bound] or [index]]
    used = sorted({str(term[0]) for index in indices for term in index[0]})
    points = itertools.product(*(range(extents[name]) for name in used))
    grid = [dict(zip(used, point, strict=True)) for point in points]
    found = np.array([[values(goal, point) for goal in goals] for point in grid])
    sizes = [rng.randint(1, 6) for _ in range(size_count)]
    if easy:
        sizes = [max(1, int(top) + 1) for top in found.max(axis=0)][:size_count]
    return tuple(goals), found, tuple(sizes)


@pytest.mark.quick(1)
@pytest.mark.parametrize("lemma", LEMMAS, ids=lambda lemma: lemma.__name__)
def test_lemmas_equal_enumeration(lemma: lemmas.Lemma) -> None:
    rng = random.Random(lemma.__name__)
    counts = {True: 0, False: 0}
    for _ in range(400):
        goals, found, sizes = random_question(lemma, rng)
        verdict = lemmas.holds(lemma, goals, sizes)
        assert verdict == expected(lemma, found, sizes), (goals, sizes)
        counts[verdict] += 1
    assert min(counts.values()) > 10, counts
