"""Index expressions as text."""

from __future__ import annotations

import itertools

import pytest

from cpembed.ir.index import IndexExpr, IndexTerm

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
        index = IndexExpr.of(terms, constant)
        for x, y in itertools.product(range(7), range(7)):
            values = {"x": x, "y": y}
            assert eval(str(index), {}, values) == index.evaluate(values), index
