"""Fronts and hypervolumes beside brute force."""

from __future__ import annotations

import itertools
import random

import pytest

from cpembed.exploration.objectives import Vector, front, hypervolume, worst


def points(seed: int, count: int, objectives: int) -> list[Vector]:
    """On a small grid, so that there are equal ones."""
    source = random.Random(seed)
    return [tuple(float(source.randint(1, 8)) for _ in range(objectives)) for _ in range(count)]


@pytest.mark.parametrize("seed", range(20))
def test_the_front_is_what_nothing_dominates(seed: int) -> None:
    vectors = points(seed, 30, 1 + seed % 4)
    expected = [
        n
        for n, v in enumerate(vectors)
        if not any(w != v and all(a <= b for a, b in zip(w, v, strict=True)) for w in vectors)
        and v not in vectors[:n]
    ]
    assert front(vectors) == expected


@pytest.mark.parametrize("seed", range(20))
def test_a_hypervolume_is_the_share_of_the_cells_that_are_dominated(seed: int) -> None:
    objectives = 1 + seed % 3
    vectors = points(seed, 6, objectives)
    reference = tuple(float(5 + n) for n in range(objectives))
    cells = list(itertools.product(*(range(int(size)) for size in reference)))
    # A cell is dominated where its corner at the origin is.
    dominated = sum(
        any(all(v <= c for v, c in zip(vector, cell, strict=True)) for vector in vectors)
        for cell in cells
    )
    assert hypervolume(vectors, reference) == pytest.approx(dominated / len(cells))


def test_nothing_has_no_volume() -> None:
    assert hypervolume([], (1.0, 1.0)) == 0
    assert hypervolume([(1.0, 0.5)], (1.0, 1.0)) == 0


def test_the_worst_is_by_objective() -> None:
    assert worst([(1.0, 5.0), (3.0, 2.0)]) == (3.0, 5.0)
