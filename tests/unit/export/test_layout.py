"""Plans of a workspace: no two pieces that live together share a byte, and none is wasted where
brute force does without."""

from __future__ import annotations

import itertools
import random

import pytest

from cpembed.export.layout import ALIGNMENT, Piece, aligned, least_bytes, plan_memory


def disjoint(pieces: list[Piece], places: dict[str, int]) -> bool:
    """By looking at every byte of every step."""
    for step in range(max((piece.last for piece in pieces), default=0) + 1):
        taken: set[int] = set()
        for piece in pieces:
            if piece.first <= step <= piece.last:
                own = set(range(places[piece.name], places[piece.name] + piece.bytes))
                if own & taken:
                    return False
                taken |= own
    return True


def fewest(pieces: list[Piece]) -> int:
    """Of all orders in which pieces are put as low as they can: one of them is best (a best plan
    whose pieces cannot sink is found in the order of its places)."""
    best = None
    for order in itertools.permutations(pieces):
        places: dict[str, int] = {}
        for number, piece in enumerate(order):
            others = [other for other in order[:number] if other.meets(piece)]
            at = 0
            while any(
                at < places[other.name] + aligned(other.bytes)
                and places[other.name] < at + aligned(piece.bytes)
                for other in others
            ):
                at += ALIGNMENT
            places[piece.name] = at
        end = max(places[piece.name] + aligned(piece.bytes) for piece in pieces)
        best = end if best is None else min(best, end)
    return best or 0


def random_pieces(seed: int, most: int = 6) -> list[Piece]:
    generator = random.Random(seed)
    steps = generator.randint(1, 6)
    found: list[Piece] = []
    for number in range(generator.randint(1, most)):
        first = generator.randrange(steps)
        size = generator.randint(1, 5 * ALIGNMENT)
        found.append(Piece(f"p{number}", size, first, generator.randrange(first, steps)))
    return found


@pytest.mark.parametrize("seed", range(60))
def test_pieces_that_live_together_are_apart_and_aligned(seed: int) -> None:
    pieces = random_pieces(seed, most=12)
    for seconds in (0.0, 1.0):
        plan = plan_memory(pieces, seconds)
        assert disjoint(pieces, dict(plan.places))
        assert all(place % ALIGNMENT == 0 for place in plan.places.values())
        ends = [plan.places[piece.name] + piece.bytes for piece in pieces]
        assert max(ends) <= plan.bytes
        assert plan.least <= plan.bytes


@pytest.mark.parametrize("seed", range(20))
def test_a_plan_takes_as_few_bytes_as_brute_force(seed: int) -> None:
    pieces = random_pieces(100 + seed, most=6)
    assert plan_memory(pieces).bytes == fewest(pieces)


def test_the_search_finds_what_the_largest_first_misses() -> None:
    found = 0
    for seed in range(200):
        pieces = random_pieces(1000 + seed, most=8)
        first, searched = plan_memory(pieces, 0), plan_memory(pieces)
        assert searched.bytes <= first.bytes
        found += searched.bytes < first.bytes
    assert found


def test_nothing_needs_nothing() -> None:
    plan = plan_memory([])
    assert (plan.bytes, plan.least, dict(plan.places)) == (0, 0, {})


def test_the_least_is_what_lives_at_one_step() -> None:
    pieces = [Piece("a", 64, 0, 1), Piece("b", 65, 1, 2), Piece("c", 1, 2, 3)]
    assert least_bytes(pieces) == 64 + 128
