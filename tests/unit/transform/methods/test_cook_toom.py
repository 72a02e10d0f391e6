"""The identity of minimal filtering, in rationals; that a broken one is seen; its code."""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction

import pytest

from cpembed.errors import TransformError
from cpembed.transform.methods.cook_toom import (
    INTEGER_POINTS,
    POINTS,
    CookToom,
    cook_toom,
    is_identity,
    straight_line,
)

SIZES = [(m, r) for m in range(1, 7) for r in range(1, 6) if m + r - 2 <= len(POINTS)]


@pytest.mark.parametrize("outputs, taps", SIZES)
def test_random_rationals_are_filtered_exactly(outputs: int, taps: int) -> None:
    draw = random.Random(outputs * 10 + taps)

    def rational() -> Fraction:
        return Fraction(draw.randint(-999, 999), draw.randint(1, 99))

    form = cook_toom(outputs, taps)
    d = [rational() for _ in range(form.multiplications)]
    g = [rational() for _ in range(taps)]
    products = [
        sum(x * y for x, y in zip(row, g, strict=True))
        * sum(x * y for x, y in zip(inputs_row, d, strict=True))
        for row, inputs_row in zip(form.filter, form.input, strict=True)
    ]
    result = [sum(x * y for x, y in zip(row, products, strict=True)) for row in form.output]
    assert result == [sum(g[j] * d[i + j] for j in range(taps)) for i in range(outputs)]


def test_random_points_filter_too() -> None:
    draw = random.Random(5)
    for _ in range(20):
        outputs, taps = draw.randint(1, 4), draw.randint(1, 4)
        pool = {Fraction(draw.randint(-5, 5), draw.randint(1, 4)) for _ in range(40)}
        points = tuple(draw.sample(sorted(pool), outputs + taps - 2))
        form = cook_toom(outputs, taps, points)
        scaled, factor = form.scaled()
        assert is_identity(form)
        assert is_identity(scaled, factor)
        matrices = (scaled.output, scaled.filter, scaled.input)
        assert all(x.denominator == 1 for matrix in matrices for row in matrix for x in row)


def test_one_wrong_entry_is_seen() -> None:
    form = cook_toom(4, 3)
    for name in ("output", "filter", "input"):
        rows = [list(row) for row in getattr(form, name)]
        for row in rows:
            for place in range(len(row)):
                row[place] += Fraction(1, 1000)
                broken: CookToom = replace(form, **{name: tuple(map(tuple, rows))})
                assert not is_identity(broken)
                row[place] -= Fraction(1, 1000)
    assert not is_identity(replace(form, output=form.output[:-1]))


def test_the_matrices_of_lavin_and_gray() -> None:
    """F(2x2, 3x3) of the paper, 4.1, up to signs of rows that cancel."""
    form = cook_toom(2, 3)
    assert form.output == ((1, 1, 1, 0), (0, 1, -1, 1))
    assert [tuple(map(abs, row)) for row in form.filter] == [
        (1, 0, 0),
        (Fraction(1, 2),) * 3,
        (Fraction(1, 2),) * 3,
        (0, 0, 1),
    ]
    assert cook_toom(4, 3, INTEGER_POINTS).input[0] == (4, 0, -5, 0, 1, 0)


def test_too_few_points_are_refused() -> None:
    with pytest.raises(TransformError, match="needs 11 different points, 9 are given"):
        cook_toom(10, 3)
    with pytest.raises(TransformError, match="different points"):
        cook_toom(2, 3, (Fraction(1), Fraction(1), Fraction(2)))
    with pytest.raises(TransformError, match="at least 1"):
        cook_toom(0, 3)


@pytest.mark.parametrize("outputs, taps", SIZES)
def test_straight_line_code_is_the_matrix(outputs: int, taps: int) -> None:
    form = cook_toom(outputs, taps)
    for matrix in (form.output, form.filter, form.input):
        code = straight_line(matrix)
        rows = _rows_of(code.inputs, code)
        assert rows == [list(row) for row in matrix]
        nonzero = sum(1 for row in matrix for x in row if x)
        assert code.operations <= nonzero


def _rows_of(count: int, code: object) -> list[list[Fraction]]:
    from cpembed.transform.methods.cook_toom import Step, StraightLine

    assert isinstance(code, StraightLine)

    def added(step: Step, values: list[list[Fraction]]) -> list[Fraction]:
        assert step.number == len(values)
        return [sum((x * values[n][k] for x, n in step.terms), Fraction(0)) for k in range(count)]

    basis = [[Fraction(n == k) for k in range(count)] for n in range(count)]
    return [[Fraction(0)] * count if row is None else row for row in code.computed(basis, added)]


def test_common_terms_are_shared() -> None:
    """F(4, 3) of integer points: 12, 10 and 7 operations, where rows have 22, 16 and 14 terms."""
    for points, expected in ((INTEGER_POINTS, [12, 10, 7]), (POINTS, [16, 12, 7])):
        form = cook_toom(4, 3, points)
        counts = [straight_line(m).operations for m in (form.input, form.output, form.filter)]
        assert counts == expected
