"""Index expressions as text."""

from __future__ import annotations

import itertools
import random

import pytest

from cpembed.errors import TransformError
from cpembed.ir.index import IndexExpr, IndexTerm
from cpembed.transform.index_algebra import divide, simplify

TERMS = [
    IndexTerm("x", coefficient, divisor, modulus, inner)
    for coefficient in (-3, -1, 1, 2)
    for divisor in (1, 4)
    for modulus in (None, 5)
    for inner in (None, IndexExpr((IndexTerm("x", 2), IndexTerm("y", -1)), 3))
]


@pytest.mark.parametrize("first", TERMS, ids=str)
def test_the_text_of_an_index_is_an_expression_of_its_value(first: IndexTerm) -> None:
    """As Python and TVMScript read it: kernels are written with it."""
    other = IndexTerm("y", -1, 2)
    for terms, constant in itertools.product([(first,), (first, other), (other, first)], (0, -2)):
        index = IndexExpr.sum(terms, constant)
        for x, y in itertools.product(range(7), range(7)):
            values = {"x": x, "y": y}
            assert eval(str(index), {}, values) == index.evaluate(values), index


BOUNDS = {"x": 5, "y": 4}
STEPPING_BACK = [
    # A block that moves back over the one before: x of 4 and a last one that begins at 3.
    IndexExpr.sum(
        [
            IndexTerm("x", 4),
            IndexTerm("", -1, 4, None, IndexExpr((IndexTerm("x"),))),
            IndexTerm("y"),
        ]
    ),
    IndexExpr.sum([IndexTerm("", -3, 4, None, IndexExpr((IndexTerm("x", 2),), 3)), IndexTerm("x")]),
]


@pytest.mark.parametrize("index", STEPPING_BACK, ids=str)
def test_bounds_are_those_of_all_values_where_a_digit_is_subtracted(index: IndexExpr) -> None:
    values = [
        index.evaluate({"x": x, "y": y})
        for x, y in itertools.product(range(BOUNDS["x"]), range(BOUNDS["y"]))
    ]
    assert index.bounds(BOUNDS) == (min(values), max(values))


@pytest.mark.parametrize("first", TERMS, ids=str)
def test_bounds_hold_every_value(first: IndexTerm) -> None:
    """Digits of sums over several iterators too, beside digits that step back."""
    back = IndexTerm("", -1, 2, None, IndexExpr((IndexTerm("x"),), 1))
    back_y = IndexTerm("", -2, 3, None, IndexExpr((IndexTerm("y"),), 1))
    for terms in ([first], [first, back], [first, back, back_y]):
        index = IndexExpr.sum(terms, -2)
        low, high = index.bounds(BOUNDS)
        for x, y in itertools.product(range(BOUNDS["x"]), range(BOUNDS["y"])):
            assert low <= index.evaluate({"x": x, "y": y}) <= high, index


def random_index(draw: random.Random, depth: int) -> IndexExpr:
    """Return a sum of digits, some of them of sums that may be negative."""
    terms: list[IndexTerm] = []
    for _ in range(draw.randint(1, 3)):
        inner = random_index(draw, depth - 1) if depth and draw.random() < 0.6 else None
        terms.append(
            IndexTerm(
                "" if inner is not None else draw.choice("xy"),
                draw.choice((-3, -1, 1, 2, 4)),
                draw.choice((1, 2, 3)),
                draw.choice((None, None, 2, 4)),
                inner,
            )
        )
    return IndexExpr.sum(terms, draw.randint(-4, 4))


@pytest.mark.parametrize("seed", range(300))
def test_bounds_and_simplification_of_nested_digits(seed: int) -> None:
    index = random_index(random.Random(seed), 2)
    low, high = index.bounds(BOUNDS)
    simple = simplify(index, BOUNDS)
    for x, y in itertools.product(range(BOUNDS["x"]), range(BOUNDS["y"])):
        values = {"x": x, "y": y}
        assert low <= index.evaluate(values) <= high
        assert simple.evaluate(values) == index.evaluate(values)
    for factor in (2, 3, 4):
        try:
            quotient, remainder = divide(index, factor, BOUNDS)
        except TransformError:
            continue
        for x, y in itertools.product(range(BOUNDS["x"]), range(BOUNDS["y"])):
            values = {"x": x, "y": y}
            assert quotient.evaluate(values) == index.evaluate(values) // factor
            assert remainder.evaluate(values) == index.evaluate(values) % factor
