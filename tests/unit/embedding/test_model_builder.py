"""Tuples that must differ, where 64 bits hold the number of each and where they do not."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from cpembed.embedding.cpsat import SearchLimits, enumerate_solutions
from cpembed.embedding.model_builder import ModelBuilder
from cpembed.embedding.model_writer import Ids
from cpembed.errors import SpecError


def different(rows: int, columns: int, farthest: int) -> tuple[ModelBuilder, Ids]:
    """Tuples of coordinates that are 0 or ``farthest``."""
    builder = ModelBuilder()
    tuples = builder.variables((rows, columns), 0, farthest)
    for variable in tuples.ravel().tolist():
        builder.restrict(variable, [0, farthest])
    builder.all_different(tuples)
    return builder, tuples


@pytest.mark.parametrize("farthest", [1, 2**20, 2**29, 2**30 - 1])
def test_all_solutions_whatever_the_range(farthest: int) -> None:
    builder, tuples = different(3, 2, farthest)
    found: list[Ids] = []

    def receive(values: Ids) -> bool:
        found.append(values[tuples].copy())
        return True

    _, complete, _ = enumerate_solutions(builder.build(), receive, SearchLimits())
    places = list(itertools.product((0, farthest), repeat=2))
    assert complete
    assert sorted(tuple(map(tuple, values.tolist())) for values in found) == sorted(
        itertools.permutations(places, 3)
    )


def test_tuples_that_no_number_tells_apart_are_refused() -> None:
    builder, _ = different(2, 2, 2**31)
    with pytest.raises(SpecError, match="beyond 64 bits"):
        builder.build()
    many, _ = different(300, 2, 2**29)
    with pytest.raises(SpecError, match="beyond 64 bits"):
        many.build()


def test_domains_of_a_model_are_added_up() -> None:
    """What CP-SAT demands: the ranges of all sums together stay below 64 bits."""
    builder, _ = different(200, 2, 2**27)
    assert np.size(builder.build().representative) == 400
