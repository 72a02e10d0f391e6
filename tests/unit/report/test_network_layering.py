"""Pictures of graphs: nobody on top of another, edges downwards, few crossings."""

from __future__ import annotations

import itertools
import random

import pytest

from cpembed.report.network_page.layering import Placed, Sizes, layers_of, place, spread

SIZES = Sizes(100, 40, 20, 30, 10)


def random_edges(seed: int) -> tuple[int, list[tuple[int, int]]]:
    rng = random.Random(seed)
    count = rng.randint(2, 24)
    pairs = list(itertools.combinations(range(count), 2))
    return count, rng.sample(pairs, min(len(pairs), rng.randint(1, 2 * count)))


def overlapping(placed: Placed) -> list[tuple[int, int]]:
    """Pairs of nodes whose boxes touch."""
    return [
        (a, b)
        for (a, (x, y)), (b, (u, v)) in itertools.combinations(enumerate(placed.centres), 2)
        if abs(x - u) < SIZES.width and abs(y - v) < SIZES.height
    ]


@pytest.mark.parametrize("seed", range(30))
def test_nodes_lie_apart_inside_the_picture_below_what_they_read(seed: int) -> None:
    count, edges = random_edges(seed)
    placed = place(count, edges, SIZES)
    assert not overlapping(placed)
    for x, y in placed.centres:
        assert SIZES.width / 2 - 1e-6 <= x <= placed.width - SIZES.width / 2 + 1e-6
        assert SIZES.height / 2 <= y <= placed.height - SIZES.height / 2
    for (source, target), path in zip(edges, placed.paths, strict=True):
        assert (path[0], path[-1]) == (placed.centres[source], placed.centres[target])
        heights = [y for _, y in path]
        assert heights == sorted(set(heights))


@pytest.mark.parametrize("seed", range(30))
def test_edges_pass_beside_nodes(seed: int) -> None:
    count, edges = random_edges(seed)
    placed = place(count, edges, SIZES)
    for path in placed.paths:
        for x, y in path[1:-1]:
            for u, v in placed.centres:
                assert abs(x - u) > SIZES.width / 2 or y != v


@pytest.mark.parametrize("seed", range(30))
def test_layers_are_the_longest_ways(seed: int) -> None:
    """Against all ways, of those nodes that read something."""
    count, edges = random_edges(seed)
    layers = layers_of(count, edges)
    longest = dict.fromkeys(range(count), 0)
    for node in range(count):
        for source, target in edges:
            if target == node:
                longest[node] = max(longest[node], longest[source] + 1)
    read = {target for _, target in edges}
    assert all(layers[node] == longest[node] for node in read)
    assert all(layers[source] < layers[target] for source, target in edges)


def crossings(placed: Placed) -> int:
    """Of pieces of edges between the same layers, pair by pair."""
    pieces = [piece for path in placed.paths for piece in itertools.pairwise(path)]
    return sum(
        (a[0] - c[0]) * (b[0] - d[0]) < -1e-6
        for (a, b), (c, d) in itertools.combinations(pieces, 2)
        if a[1] == c[1]
    )


def test_branches_that_need_not_cross_do_not() -> None:
    """Two ladders whose rungs are given in an order that crosses."""
    edges = [(0, 2), (0, 1), (1, 4), (2, 3), (3, 5), (4, 5), (0, 5)]
    placed = place(6, edges, SIZES)
    assert crossings(placed) == 0
    assert placed.centres[1][1] == placed.centres[2][1]


def test_a_chain_with_short_cuts_is_one_line() -> None:
    """As residual networks are: however long, the picture grows no wider."""
    for blocks in (2, 40):
        count = 3 * blocks + 1
        edges = [(n, n + 1) for n in range(count - 1)] + [(3 * b, 3 * b + 3) for b in range(blocks)]
        placed = place(count, edges, SIZES)
        assert len({round(x, 3) for x, _ in placed.centres}) == 1
        assert placed.width <= 2 * SIZES.width


def test_long_edges_are_straight_where_nothing_is_in_the_way() -> None:
    edges = [(n, n + 1) for n in range(9)] + [(0, 9)]
    passing = place(10, edges, SIZES).paths[-1][1:-1]
    assert len({round(x, 3) for x, _ in passing}) == 1


@pytest.mark.parametrize("seed", range(40))
def test_no_other_places_are_nearer_to_the_wanted(seed: int) -> None:
    """Moving any run of neighbours by a little makes the sum of squares larger, or breaks a
    distance; it is convex, so that no other places are better."""
    rng = random.Random(seed)
    count = rng.randint(1, 7)
    wanted = [rng.uniform(-50, 50) for _ in range(count)]
    weights = [rng.choice([1.0, 4.0]) for _ in range(count)]
    apart = [rng.uniform(1, 30) for _ in range(count - 1)]
    found = spread(wanted, weights, apart)

    def cost(places: list[float]) -> float:
        return sum(w * (p - x) ** 2 for w, p, x in zip(weights, places, wanted, strict=True))

    def allowed(places: list[float]) -> bool:
        steps = itertools.pairwise(places)
        return all(b - a >= d - 1e-9 for (a, b), d in zip(steps, apart, strict=True))

    assert allowed(found)
    for first in range(count):
        for last in range(first, count):
            for step in (-0.01, 0.01):
                moved = list(found)
                for k in range(first, last + 1):
                    moved[k] += step
                assert not allowed(moved) or cost(moved) >= cost(found) - 1e-9


def test_nothing_and_one_node() -> None:
    assert place(0, [], SIZES) == Placed((), (), 0.0, 0.0)
    alone = place(1, [], SIZES)
    assert (alone.width, alone.height) == (100, 40)
