"""Indices of one normal form are equal everywhere; digits of digits are digits."""

from __future__ import annotations

import itertools
import random

import pytest

from cpembed.transform.proof.lemmas import Plain, Term, normal_form

SIZES = (1, 2, 3, 4, 6, 8, 12)


def digit(value: int, divisor: int, modulus: int | None) -> int:
    return value // divisor if modulus is None else value // divisor % modulus


def value(index: Plain, variables: dict[object, int]) -> int:
    terms, constant = index
    return constant + sum(c * digit(variables[name], d, m) for name, _, c, d, m in terms)


def random_index(rng: random.Random, extents: dict[str, int], most: int) -> Plain:
    terms: list[Term] = []
    for name in rng.sample(sorted(extents), rng.randint(0, most)):
        modulus = rng.choice([None, 2, 3, 4, 8])
        divisor = rng.choice([1, 1, 2, 3, 4])
        terms.append((name, extents[name], rng.choice([1, 1, 1, -2, 3]), divisor, modulus))
    return tuple(terms), rng.choice([0, 0, 0, 5])


def test_a_form_has_the_value_of_the_composition() -> None:
    rng = random.Random(7)
    formed = 0
    for _ in range(2_000):
        extents = {name: rng.choice(SIZES) for name in "uv"}
        names = dict.fromkeys("xyz", 99)
        bodies = {name: random_index(rng, extents, 2) for name in names}
        index = random_index(rng, names, 3)
        form = normal_form(index, bodies)
        if form is None:
            continue
        formed += 1
        coefficients, constant = form
        for point in itertools.product(*map(range, extents.values())):
            variables: dict[object, int] = dict(zip(extents, point, strict=True))
            bound: dict[object, int] = {n: value(body, variables) for n, body in bodies.items()}
            total = constant + sum(
                c * digit(variables[name], d, m) for (name, d, m), c in coefficients.items()
            )
            assert total == value(index, bound), (index, bodies)
    assert formed > 500


@pytest.mark.parametrize(
    "inner, outer, found",
    [
        ((1, None), (4, 8), (4, 8)),
        ((4, 8), (2, None), (8, 4)),
        ((2, 12), (3, 2), (6, 2)),
        ((2, 12), (3, 8), (6, 4)),
        ((2, 12), (5, None), None),
        ((2, 12), (1, 5), None),
    ],
)
def test_digit_of_a_digit(
    inner: tuple[int, int | None],
    outer: tuple[int, int | None],
    found: tuple[int, int | None] | None,
) -> None:
    body: Plain = ((("v", 1_000, 1, *inner),), 0)
    form = normal_form(((("x", 1_000, 1, *outer),), 0), {"x": body})
    assert form == (None if found is None else ({("v", *found): 1}, 0))


def test_digits_that_are_zero_and_moduli_that_do_not_bite_are_left_out() -> None:
    one: Plain = ((("v", 4, 3, 1, 8), ("w", 1, 5, 1, None), ("u", 9, 1, 1, 1)), 2)
    assert normal_form(one, {}) == ({("v", 1, None): 3}, 2)
