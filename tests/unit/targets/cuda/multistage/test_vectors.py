"""Vectors that a layout allows, against the addresses and the bounds of every element."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cpembed.ir.index import IndexExpr, IndexTerm
from cpembed.targets.cuda.lower import vector_length
from cpembed.transform.program import PackedDimension, PackedOperand

EXTENTS = {"z": 16, "o": 3, "x": 4}


def operand(shape: tuple[int, ...], access: tuple[IndexExpr, ...]) -> PackedOperand:
    dimensions = tuple(PackedDimension(f"d{n}", size) for n, size in enumerate(shape))
    source = tuple(IndexExpr.iterator(d.name) for d in dimensions)
    return PackedOperand("A", "float16", shape, dimensions, source, access)


def fits(given: PackedOperand, length: int) -> bool:
    """By enumeration: groups of neighbours that begin at a multiple, inside all or none."""
    grids = np.meshgrid(*(np.arange(extent) for extent in EXTENTS.values()), indexing="ij")
    values = dict(zip(EXTENTS, grids, strict=True))
    shape = grids[0].shape
    places = [np.broadcast_to(index.evaluate(values), shape) for index in given.access]
    address = sum(place * stride for place, stride in zip(places, given.strides, strict=True))
    inside = np.ones(shape, bool)
    for place, size in zip(places, given.shape, strict=True):
        inside &= (place >= 0) & (place < size)
    groups = np.asarray(address).reshape(-1, length, *shape[1:])
    within = inside.reshape(-1, length, *shape[1:])
    first = groups[:, :1]
    steps = np.arange(length).reshape(1, -1, *(1 for _ in shape[1:]))
    neighbours = (groups == first + steps) | ~within
    aligned = (first % length == 0) | ~within[:, :1]
    return bool(neighbours.all() and aligned.all() and (within == within[:, :1]).all())


@st.composite
def operands(draw: st.DrawFn) -> PackedOperand:
    def term() -> IndexTerm:
        name = draw(st.sampled_from(("z", "z", "o", "x")))
        return IndexTerm(
            name,
            draw(st.sampled_from((1, 1, 2, 4, 8, 16))),
            draw(st.sampled_from((1, 1, 2, 4, 8))),
            draw(st.sampled_from((None, None, 2, 4, 8, 3))),
        )

    def index() -> IndexExpr:
        terms = [term() for _ in range(draw(st.integers(0, 2)))]
        return IndexExpr.sum(terms, draw(st.sampled_from((0, 0, -1, -8, 4))))

    shape = tuple(draw(st.sampled_from((3, 8, 16, 48, 64))) for _ in range(2))
    return operand(shape, (index(), index()))


@settings(max_examples=300, deadline=None)
@given(operands())
def test_a_vector_is_one_piece_of_memory(found: PackedOperand) -> None:
    length = vector_length(found, "z", 8)
    assert length in (1, 2, 4, 8)
    assert fits(found, length)


@pytest.mark.parametrize(
    "last, expected",
    [
        (IndexExpr.sum([IndexTerm("z"), IndexTerm("o", 16)]), 8),
        (IndexExpr.sum([IndexTerm("z"), IndexTerm("o", 4)]), 4),
        (IndexExpr.sum([IndexTerm("z", 2)]), 1),
        (IndexExpr.sum([IndexTerm("z"), IndexTerm("x")], -1), 1),
        (IndexExpr.sum([IndexTerm("z", 1, 1, 4)]), 4),
    ],
)
def test_the_longest_vectors_are_found(last: IndexExpr, expected: int) -> None:
    assert vector_length(operand((48, 64), (IndexExpr(), last)), "z", 8) == expected
