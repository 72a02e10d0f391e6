"""Fused axes that an operand has as they are."""

from __future__ import annotations

import numpy as np
import pytest

from cpembed.ir.accesses import JoinedRows, joined_dimensions, joined_index
from cpembed.ir.index import IndexExpr, IndexTerm

EXTENTS = {"p": 4, "q": 5, "r": 2, "s": 3, "c": 6, "d": 2}


def index(constant: int = 0, **coefficients: int) -> IndexExpr:
    return IndexExpr.sum([IndexTerm(name, c) for name, c in coefficients.items()], constant)


IMAGE = (index(p=2, r=1), index(-1, q=2, s=1), index(c=1))
SHAPE = (9, 11, 6)


@pytest.mark.parametrize(
    "indices, shape, members, found",
    [
        (IMAGE, SHAPE, ("s", "c"), range(1, 3)),
        (IMAGE, SHAPE, ("c", "s"), None),
        (IMAGE, SHAPE, ("r", "s"), None),
        (IMAGE, SHAPE, ("r", "c"), None),
        (IMAGE, SHAPE, ("s", "d"), None),
        (IMAGE, (9, 11, 7), ("s", "c"), None),
        ((*IMAGE[:2], index(c=1, d=6)), (9, 11, 12), ("s", "c"), None),
        ((*IMAGE[:2], index(c=1), index(d=1)), (9, 11, 6, 2), ("s", "c", "d"), range(1, 4)),
        ((index(q=2, s=2), index(c=1)), (15, 6), ("s", "c"), None),
        ((index(s=1), index(c=1)), (3, 6), ("s", "c"), None),
        ((index(q=1, s=1), index(c=1), index(s=1)), (7, 6, 3), ("s", "c"), None),
        ((index(c=1), index(q=1, s=1)), (6, 7), ("s", "c"), None),
    ],
)
def test_a_window_over_whole_neighbours_is_joined(
    indices: tuple[IndexExpr, ...],
    shape: tuple[int, ...],
    members: tuple[str, ...],
    found: range | None,
) -> None:
    assert joined_dimensions(indices, shape, EXTENTS, members) == found


def test_the_joined_index_is_the_place_in_the_joined_dimensions() -> None:
    window, channel = IMAGE[1:]
    joined = joined_index(IMAGE[1:], SHAPE[1:], ("s", "c"), "s c")
    grid = dict(zip("qsc", np.indices([EXTENTS[a] for a in "qsc"]), strict=True))
    fused = grid["s"] * EXTENTS["c"] + grid["c"]
    place = window.evaluate(grid) * EXTENTS["c"] + channel.evaluate(grid)
    np.testing.assert_array_equal(joined.evaluate({**grid, "s c": fused}), place)


def test_the_joined_index_of_rows_is_the_place_in_them() -> None:
    """Windows two rows and two columns apart, on rows of twelve columns."""
    row, column = index(p=2, r=1), index(q=2, s=1)
    joined = joined_index((row, column), (9, 12), ("p", "q"), "p q", step=2)
    grid = dict(zip("pqrs", np.indices([EXTENTS[a] for a in "pqrs"]), strict=True))
    fused = grid["p"] * 12 + grid["q"]
    place = row.evaluate(grid) * 12 + column.evaluate(grid)
    np.testing.assert_array_equal(joined.evaluate({**grid, "p q": fused}), place)


@pytest.mark.parametrize(
    "indices, members, found",
    [
        # Eleven columns, one of padding on the left: twelve, two a step.
        (IMAGE, ("p", "q"), JoinedRows(0, 2, 1, 0, 6, 2)),
        (IMAGE, ("q", "p"), None),
        (IMAGE, ("p", "r"), None),
        (IMAGE, ("p", "c"), None),
        (IMAGE, ("p", "q", "c"), None),
        ((index(p=1), index(c=1), index(q=1)), ("p", "q"), None),
        ((index(p=1, q=1), index(q=1), index(c=1)), ("p", "q"), None),
        ((index(p=-1), index(q=1), index(c=1)), ("p", "q"), None),
        # Read past the end: two columns more.
        ((index(p=1, r=1), index(q=3), index(c=1)), ("p", "q"), JoinedRows(0, 1, 0, 4, 5, 3)),
        ((index(c=1), index(p=1), index(q=1)), ("p", "q"), JoinedRows(1, 1, 0, 0, 6, 1)),
    ],
)
def test_rows_with_a_gap(
    indices: tuple[IndexExpr, ...], members: tuple[str, ...], found: JoinedRows | None
) -> None:
    assert JoinedRows.find(indices, SHAPE, EXTENTS, members) == found
