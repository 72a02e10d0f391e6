"""Index expressions as TVMScript, over iterators that stand for expressions themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cpembed.ir.index import IndexExpr, IndexTerm
from cpembed.transform.program import Loop


def quotient(number: str, divisor: int) -> str:
    """Of a number that is not negative, which costs less than rounding down."""
    return number if divisor == 1 else f"T.truncdiv({number}, {divisor})"


def remainder(number: str, modulus: int) -> str:
    """Of a number that is not negative."""
    return "0" if modulus == 1 else f"T.truncmod({number}, {modulus})"


def written(index: IndexExpr, values: Mapping[str, str], extents: Mapping[str, int]) -> str:
    """An index with its iterators, none of them negative, replaced.

    >>> from cpembed.ir.index import IndexTerm
    >>> index = IndexExpr.of([IndexTerm("p", 2), IndexTerm("r", 1, 3)], -1)
    >>> written(index, {"p": "y", "r": "x + 1"}, {"p": 4, "r": 9})
    '(y) * 2 + T.truncdiv(x + 1, 3) + -1'
    """
    parts = [_term(term, values, extents) for term in index.terms]
    if index.constant or not parts:
        parts.append(str(index.constant))
    return " + ".join(parts)


def _term(term: IndexTerm, values: Mapping[str, str], extents: Mapping[str, int]) -> str:
    if term.inner is None:
        value, negative = values[term.iterator], False
    else:
        value = written(term.inner, values, extents)
        negative = term.inner.bounds(extents)[0] < 0
    if negative:
        value = value if term.divisor == 1 else f"({value}) // {term.divisor}"
        value = value if term.modulus is None else f"({value}) % {term.modulus}"
    else:
        value = quotient(value, term.divisor)
        value = value if term.modulus is None else remainder(value, term.modulus)
    return value if term.coefficient == 1 else f"({value}) * {term.coefficient}"


def digits(number: str, loops: Sequence[Loop]) -> dict[str, str]:
    """The values of loops, outermost first, at a number that counts them all.

    The outermost one goes on beyond its extent where the number does.
    """
    found: dict[str, str] = {}
    inner = 1
    for place, loop in reversed(list(enumerate(loops))):
        value = quotient(number, inner)
        found[loop.name] = remainder(value, loop.extent) if place else value
        inner *= loop.extent
    return found
