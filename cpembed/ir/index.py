"""Integer index expressions over named iterators: affine access maps and the digits of a split.

An access map is affine (``2*p + r - 3``). A layout also needs the digits of a mixed-radix number
(``(x // 4) % 16``), so a term is ``coefficient * ((iterator // divisor) % modulus)``; with divisor
1 and no modulus it is the ordinary affine term. One class serves both, so an access can be composed
with a split without leaving the language.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class IndexTerm:
    """``coefficient * ((iterator // divisor) % modulus)``; ``modulus`` None means no remainder.

    A digit of a number that is itself an expression has that in ``inner``, and no iterator.
    """

    iterator: str
    coefficient: int = 1
    divisor: int = 1
    modulus: int | None = None
    inner: IndexExpr | None = None

    @property
    def is_affine(self) -> bool:
        return self.divisor == 1 and self.modulus is None and self.inner is None

    @property
    def iterators(self) -> tuple[str, ...]:
        return (self.iterator,) if self.inner is None else self.inner.iterators

    def evaluate(self, values: Mapping[str, Any]) -> Any:
        value = values[self.iterator] if self.inner is None else self.inner.evaluate(values)
        if self.divisor != 1:
            value = value // self.divisor
        if self.modulus is not None:
            value = value % self.modulus
        return value if self.coefficient == 1 else value * self.coefficient

    def maximum(self, extents: Mapping[str, int]) -> int:
        """Largest value of the digit itself (without the coefficient) for ``0 <= it < extent``."""
        if self.inner is None:
            top = (extents[self.iterator] - 1) // self.divisor
        else:
            top = self.inner.bounds(extents)[1] // self.divisor
        return top if self.modulus is None else min(top, self.modulus - 1)

    def times(self, factor: int, added: int = 0) -> IndexTerm:
        """The same digit with its coefficient multiplied, then added to."""
        coefficient = self.coefficient * factor + added
        return IndexTerm(self.iterator, coefficient, self.divisor, self.modulus, self.inner)

    def text(self) -> str:
        body = self.iterator if self.inner is None else f"({self.inner})"
        if self.divisor != 1:
            body = f"{body}//{self.divisor}"
        if self.modulus is not None:
            body = f"({body})%{self.modulus}" if self.divisor != 1 else f"{body}%{self.modulus}"
        if abs(self.coefficient) == 1:
            return body
        return f"{abs(self.coefficient)}*{body if self.is_affine else f'({body})'}"


@dataclass(frozen=True)
class IndexExpr:
    """A sum of index terms and a constant, with like terms merged.

    Build with :meth:`of`, which merges and keeps the terms in the order of their first appearance.
    Equality is that of the written form: ``p + r`` and ``r + p`` have the same value and differ.

    >>> e = IndexExpr.of([IndexTerm("p", 2), IndexTerm("r")], -1)
    >>> str(e), e.bounds({"p": 4, "r": 3})
    ('2*p + r - 1', (-1, 7))
    >>> e.evaluate({"p": 3, "r": 2})
    7
    """

    terms: tuple[IndexTerm, ...] = ()
    constant: int = 0

    @staticmethod
    def of(terms: Iterable[IndexTerm], constant: int = 0) -> IndexExpr:
        # This runs for every step of every layout: few objects, and lists before generators.
        given = tuple(terms)
        if len(given) == 1:
            (term,) = given
            return IndexExpr(given if term.coefficient and term.modulus != 1 else (), constant)
        merged: dict[tuple[str, int, int | None, IndexExpr | None], IndexTerm] = {}
        for term in given:
            key = (term.iterator, term.divisor, term.modulus, term.inner)
            like = merged.get(key)
            merged[key] = term if like is None else like.times(1, term.coefficient)
        kept = [term for term in merged.values() if term.coefficient and term.modulus != 1]
        return IndexExpr(tuple(kept), constant)

    @staticmethod
    def iterator(name: str) -> IndexExpr:
        return IndexExpr((IndexTerm(name),))

    @property
    def is_affine(self) -> bool:
        return all(term.is_affine for term in self.terms)

    @property
    def iterators(self) -> tuple[str, ...]:
        # Record by hand: a cached_property takes a lock, and layouts ask very many expressions.
        known: tuple[str, ...] | None = self.__dict__.get("_iterators")
        if known is None:
            names = [name for term in self.terms for name in term.iterators]
            known = self.__dict__["_iterators"] = tuple(dict.fromkeys(names))
        return known

    @property
    def single_iterator(self) -> str | None:
        """The iterator when the expression is exactly one iterator (no factor, no offset)."""
        if len(self.terms) == 1 and self.constant == 0:
            term = self.terms[0]
            if term.coefficient == 1 and term.is_affine:
                return term.iterator
        return None

    def coefficient(self, iterator: str) -> int:
        """Affine coefficient of an iterator; 0 where it does not occur."""
        return sum(t.coefficient for t in self.terms if t.iterator == iterator and t.is_affine)

    def evaluate(self, values: Mapping[str, Any]) -> Any:
        """Value for integers, numpy arrays or any objects with ``+ * // %``."""
        total: Any = None
        for term in self.terms:
            value = term.evaluate(values)
            total = value if total is None else total + value
        if total is None:
            return self.constant
        return total + self.constant if self.constant else total

    def bounds(self, extents: Mapping[str, int]) -> tuple[int, int]:
        """Smallest and largest value over ``0 <= iterator < extent``, exact for distinct digits,
        and for a digit of a sum that is subtracted from its own iterator."""
        low = high = self.constant
        terms = self.terms
        if any(term.inner is not None and term.coefficient < 0 for term in terms):
            low, high, terms = self._stepping_back(extents)
        for term in terms:
            reach = term.coefficient * term.maximum(extents)
            low, high = low + min(reach, 0), high + max(reach, 0)
        return low, high

    def _stepping_back(self, extents: Mapping[str, int]) -> tuple[int, int, tuple[IndexTerm, ...]]:
        """The constant with the bounds of what subtracts digits of a sum over one iterator, value
        by value, and the other terms."""
        names = {
            term.iterators[0]
            for term in self.terms
            if term.inner is not None and term.coefficient < 0 and len(term.iterators) == 1
        }
        low = high = self.constant
        for name in sorted(names):
            part = IndexExpr(tuple(t for t in self.terms if t.iterators == (name,)))
            values = [part.evaluate({name: value}) for value in range(extents[name])]
            low, high = low + min(values), high + max(values)
        alone = {(name,) for name in names}
        rest = tuple(term for term in self.terms if term.iterators not in alone)
        return low, high, rest

    def substitute(self, replacements: Mapping[str, IndexExpr]) -> IndexExpr:
        """Replace iterators by expressions, inside digits too."""
        terms: list[IndexTerm] = []
        constant = self.constant
        changed = False
        for term in self.terms:
            if term.inner is None:
                known = term.iterator in replacements
            else:
                known = any(name in replacements for name in term.iterators)
            if not known:
                terms.append(term)
                continue
            changed = True
            if term.inner is not None:
                terms.append(replace(term, inner=term.inner.substitute(replacements)))
                continue
            inner = replacements[term.iterator]
            if not term.is_affine:
                renamed = inner.single_iterator
                if renamed is None:
                    terms.append(replace(term, iterator="", inner=inner))
                else:
                    terms.append(replace(term, iterator=renamed))
                continue
            scale = term.coefficient
            terms += inner.terms if scale == 1 else [t.times(scale) for t in inner.terms]
            constant += term.coefficient * inner.constant
        return IndexExpr.of(terms, constant) if changed else self

    def times(self, factor: int) -> IndexExpr:
        """The expression multiplied by an integer."""
        return IndexExpr.of([term.times(factor) for term in self.terms], self.constant * factor)

    def rename(self, new_name: Callable[[str], str]) -> IndexExpr:
        return IndexExpr.of(
            (
                replace(t, iterator=new_name(t.iterator))
                if t.inner is None
                else replace(t, inner=t.inner.rename(new_name))
                for t in self.terms
            ),
            self.constant,
        )

    def __add__(self, other: IndexExpr | int) -> IndexExpr:
        if isinstance(other, int):
            return IndexExpr(self.terms, self.constant + other)
        return IndexExpr.of((*self.terms, *other.terms), self.constant + other.constant)

    def __str__(self) -> str:
        parts: list[str] = []
        for term in self.terms:
            sign = "-" if term.coefficient < 0 else "+"
            body = term.text()
            if not parts and term.coefficient == -1 and not term.is_affine:
                # A sign in front would bind tighter than // and %.
                body = f"({body})"
            parts += [sign, body]
        if self.constant or not parts:
            parts += ["-" if self.constant < 0 else "+", str(abs(self.constant))]
        text = " ".join(parts)
        return text[2:] if text.startswith("+ ") else "-" + text[2:]
