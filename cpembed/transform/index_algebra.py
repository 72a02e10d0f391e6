"""Exact division, digits and fusion of index expressions, for rewrites that split and fuse.

All functions are exact or raise :class:`TransformError`; the isl proof checks the result again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from cpembed.errors import TransformError
from cpembed.ir.index import IndexExpr, IndexTerm


def divide(
    index: IndexExpr, factor: int, extents: Mapping[str, int]
) -> tuple[IndexExpr, IndexExpr]:
    """Return ``(index // factor, index % factor)`` for ``0 <= iterator < extent``.

    >>> e = IndexExpr.sum([IndexTerm("c", 16), IndexTerm("z")])
    >>> [str(part) for part in divide(e, 16, {"c": 4, "z": 16})]
    ['c', 'z']
    >>> [str(part) for part in divide(e, 4, {"c": 4, "z": 16})]
    ['4*c + z//4', 'z%4']

    Parameters
    ----------
    index, factor : IndexExpr, int
        Dividend and divisor.
    extents : mapping of str to int
        Extents of the iterators.

    Raises
    ------
    TransformError
        If the terms do not split into multiples of the factor and a remainder below it.
    """
    quotient: list[IndexTerm] = []
    rest: list[IndexTerm] = []
    for term in index.terms:
        multiples, remainder = _divide_term(term, factor, extents)
        quotient += multiples
        rest += remainder
    constant, offset = divmod(index.constant, factor)
    remainder_expr = IndexExpr.sum(rest, offset)
    low, high = remainder_expr.bounds(extents)
    if low < 0 or high >= factor:
        raise TransformError(f"{index} does not split by {factor}: {remainder_expr} exceeds it")
    return (
        simplify(IndexExpr.sum(quotient, constant), extents),
        simplify(remainder_expr, extents),
    )


def _divide_term(
    term: IndexTerm, factor: int, extents: Mapping[str, int]
) -> tuple[list[IndexTerm], list[IndexTerm]]:
    """Return the terms of the quotient and of the remainder, which gets terms that do not split."""
    coefficient = term.coefficient
    if coefficient % factor == 0:
        return [replace(term, coefficient=coefficient // factor)], []
    low, high = term.bounds(extents)
    fits = coefficient > 0 and low >= 0 and coefficient * high < factor
    if fits or coefficient < 0 or factor % coefficient:
        return [], [term]
    # coefficient * d with factor = coefficient * step: d = step * (d // step) + d % step.
    step = factor // coefficient
    if term.modulus is not None and term.modulus % step:
        return [], [term]
    modulus = None if term.modulus is None else term.modulus // step
    outer = replace(term, coefficient=1, divisor=term.divisor * step, modulus=modulus)
    inner = replace(term, modulus=step)
    return [outer], [inner]


def simplify(index: IndexExpr, extents: Mapping[str, int]) -> IndexExpr:
    """Drop moduli without effect and terms that are always 0, and join neighbouring digits.

    >>> low, high = IndexTerm("x", 1, 1, 4), IndexTerm("x", 4, 4)
    >>> str(simplify(IndexExpr.sum([high, low]), {"x": 64}))
    'x'
    """
    terms = [_simplify_term(term, extents) for term in index.terms]
    terms = [term for term in terms if not term.is_zero(extents)]
    # Each join leaves one term less, and may be the lower half of another one.
    while (pair := next(_neighbours(terms), None)) is not None:
        low, high, modulus = pair
        terms.remove(low)
        terms.remove(high)
        joined = None if high.modulus is None else modulus * high.modulus
        terms.append(_simplify_term(replace(low, modulus=joined), extents))
    return IndexExpr.sum(terms, index.constant)


def _simplify_term(term: IndexTerm, extents: Mapping[str, int]) -> IndexTerm:
    if term.modulus is None:
        return term
    quotient = replace(term, modulus=None)
    low, high = quotient.bounds(extents)
    return quotient if low >= 0 and high < term.modulus else term


def _neighbours(terms: list[IndexTerm]) -> Iterator[tuple[IndexTerm, IndexTerm, int]]:
    """Yield pairs of neighbouring digits of one number, low and high, with the low one's modulus.

    ``w*((x//d) % m) + w*m*((x//(d*m)) % k)`` is ``w*((x//d) % (m*k))``.
    """
    for low in terms:
        if (modulus := low.modulus) is None:
            continue
        for high in terms:
            if (
                (high.iterator, high.inner) == (low.iterator, low.inner)
                and high.divisor == low.divisor * modulus
                and high.coefficient == low.coefficient * modulus
            ):
                yield low, high, modulus


def substitute_split(index: IndexExpr, name: str, factor: int, outer: str, inner: str) -> IndexExpr:
    """Replace an iterator by ``factor * outer + inner`` with ``0 <= inner < factor``.

    Parameters
    ----------
    index, name : IndexExpr, str
        Index, and its iterator to replace.
    factor : int
        Extent of the inner iterator.
    outer, inner : str
        Iterators that replace it.
    """
    if name not in index.iterators:
        return index
    terms: list[IndexTerm] = []
    for term in index.terms:
        if name not in term.iterators:
            terms.append(term)
        elif term.inner is None:
            terms += _split_digit(term, factor, outer, inner)
        else:
            split = substitute_split(term.inner, name, factor, outer, inner)
            terms.append(replace(term, inner=split))
    return IndexExpr.sum(terms, index.constant)


def _split_digit(term: IndexTerm, factor: int, outer: str, inner: str) -> list[IndexTerm]:
    """Write ``coefficient * (((factor*outer + inner) // divisor) % modulus)`` as terms."""
    c, divisor, modulus = term.coefficient, term.divisor, term.modulus
    # The digit lies in the outer part alone, since inner < factor.
    if divisor % factor == 0:
        return [IndexTerm(outer, c, divisor // factor, modulus)]
    # It begins in the inner part, which has `step` of its values.
    if factor % divisor == 0:
        step = factor // divisor
        if modulus is None:
            return [IndexTerm(outer, c * step), IndexTerm(inner, c, divisor)]
        if step % modulus == 0:
            return [IndexTerm(inner, c, divisor, modulus)]
        if modulus % step == 0:
            return [IndexTerm(outer, c * step, 1, modulus // step), IndexTerm(inner, c, divisor)]
    # The factor cuts through the digit, which stays a digit of the sum.
    total = IndexExpr((IndexTerm(outer, factor), IndexTerm(inner)))
    return [replace(term, iterator="", inner=total)]


def shifted(index: IndexExpr, name: str, amount: int) -> IndexExpr:
    """Replace an iterator by the sum of itself and a constant.

    >>> e = IndexExpr.sum([IndexTerm("x", 1, 3)])
    >>> [str(shifted(e, "x", amount)) for amount in (-6, -5)]
    ['x//3 - 2', '(x - 5)//3']

    Parameters
    ----------
    index, name : IndexExpr, str
        Index, and its iterator to shift.
    amount : int
        Constant to add.
    """
    if not amount or name not in index.iterators:
        return index
    terms: list[IndexTerm] = []
    constant = index.constant
    for term in index.terms:
        if name not in term.iterators:
            terms.append(term)
        elif term.inner is not None:
            terms.append(replace(term, inner=shifted(term.inner, name, amount)))
        elif amount % (term.divisor * (term.modulus or 1)) == 0:
            # A multiple of the digit's period adds a constant, or nothing if there is a modulus.
            terms.append(term)
            constant += 0 if term.modulus else term.coefficient * (amount // term.divisor)
        else:
            inner = IndexExpr((IndexTerm(name),), amount)
            terms.append(replace(term, iterator="", inner=inner))
    return IndexExpr.sum(terms, constant)


def substitute_digit(
    index: IndexExpr, name: str, fused: str, weight: int, extent: int, *, outermost: bool
) -> IndexExpr:
    """Replace an iterator by the digit ``(fused // weight) % extent`` of a fused one.

    Parameters
    ----------
    index : IndexExpr
        Index that is changed.
    name, fused : str
        Iterator to replace, and the fused iterator.
    weight, extent, outermost : int, int, bool
        Weight of the digit, number of its values, and True for the outermost, which needs no
        modulus.

    Raises
    ------
    TransformError
        If a digit of the iterator is not a digit of the fused iterator.
    """
    if name not in index.iterators:
        return index
    terms: list[IndexTerm] = []
    for term in index.terms:
        if name not in term.iterators:
            terms.append(term)
            continue
        if term.inner is not None:
            digit = substitute_digit(term.inner, name, fused, weight, extent, outermost=outermost)
            terms.append(replace(term, inner=digit))
            continue
        modulus = term.modulus
        if not outermost:
            # ((fused // weight) % extent) // divisor is a digit of `fused` only if the divisor
            # divides the extent, and modulo m only if m divides the values that are left.
            rest, remainder = divmod(extent, term.divisor)
            if remainder or (modulus is not None and rest % modulus):
                raise TransformError(f"digit {term.text()} cannot be part of a fused dimension")
            modulus = rest if modulus is None else modulus
        terms.append(IndexTerm(fused, term.coefficient, term.divisor * weight, modulus))
    return IndexExpr.sum(terms, index.constant)
