"""A normal form of composed indices: sums of digits of variables.

Two indices of one form are equal everywhere. It is what most statements of equality come down to,
and takes no decision procedure: only those that have no form, or different ones, go to isl.
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
    """An index over names that are bound to ``bodies``, over variables where there are none.

    None where a digit is taken of a sum.
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
        elif len(terms) == 1 and not constant and (found := _digit_of_digit(*terms, term)):
            _add(form, found)
        else:
            return None
    return form, total


def _digit_of_digit(inner: Term, outer: Term) -> Term | None:
    """``coefficient * ((inner // divisor) % modulus)`` as one digit of inner's variable; None where
    it is not one."""
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
    """Digits that are always 0 are left out, and moduli that do not bite."""
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
