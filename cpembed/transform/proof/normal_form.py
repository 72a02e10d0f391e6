"""A normal form of composed indices: sums of digits of variables.

Two indices of the same form are equal everywhere. This settles most statements of equality without
a decision procedure: only indices without a form, or with different ones, go to isl.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping

Term = tuple[Hashable, int, int, int, int | None]
"""Variable, its extent, coefficient, divisor, modulus: an index term with its variable's box."""
Plain = tuple[tuple[Term, ...], int]
"""An index expression as a plain value: its terms and its constant."""
Digit = tuple[Hashable, int, int | None]
"""Variable, divisor, modulus."""
Form = tuple[dict[Digit, int], int]
"""Coefficient of each digit, none of them 0, and the constant."""


def normal_form(index: Plain, bodies: Mapping[Hashable, Plain]) -> Form | None:
    """Return the form of an index over names bound to ``bodies``, or over variables without any.

    The result is None if the index has a digit of a sum.
    """
    form: dict[Digit, int] = {}
    total = index[1]
    for term in index[0]:
        name, _, coefficient, divisor, modulus = term
        if not bodies:
            _add(form, term)
            continue
        terms, constant = bodies[name]
        if divisor == 1 and modulus is None:
            total += coefficient * constant
            for inner in terms:
                _add(form, (*inner[:2], coefficient * inner[2], *inner[3:]))
        elif not terms:
            digit = constant // divisor
            total += coefficient * (digit if modulus is None else digit % modulus)
        elif len(terms) == 1 and not constant and (composed := _digit_of_digit(*terms, term)):
            _add(form, composed)
        else:
            return None
    return form, total


def _digit_of_digit(inner: Term, outer: Term) -> Term | None:
    """Compose ``coefficient * ((inner // divisor) % modulus)`` to a digit of inner's variable.

    The result is None if it is not a single digit.
    """
    name, extent, factor, low, size = inner
    _, _, coefficient, divisor, modulus = outer
    if factor != 1:
        return None
    if size is not None:
        # (v % size) // divisor == (v // divisor) % (size // divisor)
        if size % divisor:
            return None
        size //= divisor
        if modulus is None or modulus % size == 0:
            modulus = size
        elif size % modulus:
            return None
    return name, extent, coefficient, low * divisor, modulus


def _add(form: dict[Digit, int], term: Term) -> None:
    """Add a term to a form, without digits that are always 0 and moduli without effect."""
    name, extent, coefficient, divisor, modulus = term
    top = (extent - 1) // divisor
    if modulus is not None and top < modulus:
        modulus = None
    if not top or modulus == 1:
        return
    digit = name, divisor, modulus
    total = form.get(digit, 0) + coefficient
    if total:
        form[digit] = total
    else:
        form.pop(digit, None)
