"""Integer index expressions over named iterators: affine access maps and the digits of a split.

An access map is affine (``2*p + r - 3``). A layout also needs the digits of a mixed-radix number
(``(x // 4) % 16``), so a term is ``coefficient * ((iterator // divisor) % modulus)``; with divisor
1 and no modulus it is the ordinary affine term. One class serves both, so an access can be composed
with a split without leaving the language.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class IndexTerm:
    """A term ``coefficient * ((iterator // divisor) % modulus)``; no remainder if modulus is None.

    The digit of an expression has that expression in ``inner`` instead of an iterator.

    >>> IndexTerm("x", 2, divisor=4, modulus=16).text()
    '2*((x//4)%16)'
    """

    iterator: str
    coefficient: int = 1
    divisor: int = 1
    modulus: int | None = None
    inner: IndexExpr | None = None

    @staticmethod
    def digit(
        inner: IndexExpr, *, coefficient: int = 1, divisor: int = 1, modulus: int | None = None
    ) -> IndexTerm:
        """Make the digit ``coefficient * ((inner // divisor) % modulus)`` of an expression."""
        return IndexTerm("", coefficient, divisor, modulus, inner)

    @property
    def is_affine(self) -> bool:
        """True for a multiple of the iterator itself, not of one of its digits."""
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

    def bounds(self, extents: Mapping[str, int]) -> tuple[int, int]:
        """Bound the digit, without the coefficient, over ``0 <= iterator < extent``."""
        low, high = (
            (0, extents[self.iterator] - 1) if self.inner is None else self.inner.bounds(extents)
        )
        low, high = low // self.divisor, high // self.divisor
        if self.modulus is None:
            return low, high
        # Numbers of one period keep their order; all remainders may occur in others.
        if low // self.modulus == high // self.modulus:
            return low % self.modulus, high % self.modulus
        return 0, self.modulus - 1

    def is_zero(self, extents: Mapping[str, int]) -> bool:
        """Return True if the digit is always 0: it moves nothing."""
        return self.bounds(extents) == (0, 0)

    def times(self, factor: int, added: int = 0) -> IndexTerm:
        """Multiply the coefficient by a factor, then add to it."""
        # Layouts scale very many terms: the constructor is quicker than `replace`.
        coefficient = self.coefficient * factor + added
        return IndexTerm(self.iterator, coefficient, self.divisor, self.modulus, self.inner)

    def rename(self, new_name: Callable[[str], str]) -> IndexTerm:
        """Rename every iterator."""
        # As in `times`, the constructor is quicker than `replace`.
        inner = None if self.inner is None else self.inner.rename(new_name)
        name = self.iterator if inner is not None else new_name(self.iterator)
        return IndexTerm(name, self.coefficient, self.divisor, self.modulus, inner)

    def text(self) -> str:
        """Write the term without its sign."""
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

    Build with :meth:`sum`, which keeps the order of first appearance. Equality is that of the
    written form: ``p + r`` and ``r + p`` have equal values and are different.

    >>> e = IndexExpr.sum([IndexTerm("p", 2), IndexTerm("r")], -1)
    >>> str(e), e.bounds({"p": 4, "r": 3})
    ('2*p + r - 1', (-1, 7))
    >>> e.evaluate({"p": 3, "r": 2})
    7
    """

    terms: tuple[IndexTerm, ...] = ()
    constant: int = 0

    def __hash__(self) -> int:
        # Cached by hand: expressions are parts of the keys of many caches.
        cached: int | None = self.__dict__.get("_hash")
        if cached is None:
            cached = self.__dict__["_hash"] = hash((self.terms, self.constant))
        return cached

    def __getstate__(self) -> dict[str, Any]:
        # Texts have other hashes in other processes.
        return {"terms": self.terms, "constant": self.constant}

    @staticmethod
    def sum(terms: Iterable[IndexTerm], constant: int = 0) -> IndexExpr:
        """Add terms and a constant, merge like terms and drop those that are zero."""
        # This runs for every step of every layout: few objects, and lists instead of generators.
        terms = tuple(terms)
        if len(terms) == 1:
            (term,) = terms
            return IndexExpr(terms if term.coefficient and term.modulus != 1 else (), constant)
        # Terms of equal digits are like terms. A digit modulo 1 is always 0.
        merged: dict[tuple[str, int, int | None, IndexExpr | None], IndexTerm] = {}
        for term in terms:
            key = (term.iterator, term.divisor, term.modulus, term.inner)
            like = merged.get(key)
            merged[key] = term if like is None else like.times(1, term.coefficient)
        nonzero = [term for term in merged.values() if term.coefficient and term.modulus != 1]
        return IndexExpr(tuple(nonzero), constant)

    @staticmethod
    def iterator(name: str) -> IndexExpr:
        """Make the expression of a single iterator."""
        return IndexExpr((IndexTerm(name),))

    @property
    def is_affine(self) -> bool:
        """True if no term is a digit."""
        return all(term.is_affine for term in self.terms)

    @property
    def iterators(self) -> tuple[str, ...]:
        """Iterators of all terms, in order of first appearance."""
        # Cached by hand: layouts ask very many expressions, and a cached_property takes a lock.
        cached: tuple[str, ...] | None = self.__dict__.get("_iterators")
        if cached is None:
            names = [name for term in self.terms for name in term.iterators]
            cached = self.__dict__["_iterators"] = tuple(dict.fromkeys(names))
        return cached

    @property
    def single_iterator(self) -> str | None:
        """The iterator if the expression is nothing but one (no factor, no offset), else None."""
        if len(self.terms) == 1 and self.constant == 0:
            term = self.terms[0]
            if term.coefficient == 1 and term.is_affine:
                return term.iterator
        return None

    def coefficient(self, iterator: str) -> int:
        """Affine coefficient of an iterator; 0 if it does not occur."""
        return sum(t.coefficient for t in self.terms if t.iterator == iterator and t.is_affine)

    def evaluate(self, values: Mapping[str, Any]) -> Any:
        """Evaluate on integers, numpy arrays or any objects with ``+ * // %``, by iterator."""
        total: Any = None
        for term in self.terms:
            value = term.evaluate(values)
            total = value if total is None else total + value
        if total is None:
            return self.constant
        return total + self.constant if self.constant else total

    def bounds(self, extents: Mapping[str, int]) -> tuple[int, int]:
        """Smallest and largest value over ``0 <= iterator < extent``.

        The bounds are exact if all digits are distinct, and also where a digit of a sum is
        subtracted from the iterator of that sum; otherwise the range may be too large.
        """
        # Terms of one iterator depend on each other: x - (x + 1) % 4 is never below -1, though the
        # bounds of its terms add up to -3. Such differences are enumerated: layouts in place, whose
        # last block moves back, are made of them and need exact bounds.
        low = high = self.constant
        terms = self.terms
        if any(term.inner is not None and term.coefficient < 0 for term in terms):
            low, high, terms = self._enumerated_bounds(extents)
        for term in terms:
            ends = [term.coefficient * end for end in term.bounds(extents)]
            low, high = low + min(ends), high + max(ends)
        return low, high

    def _enumerated_bounds(
        self, extents: Mapping[str, int]
    ) -> tuple[int, int, tuple[IndexTerm, ...]]:
        """Bound the terms of each iterator from which a digit of its sum is subtracted.

        The values of such an iterator are enumerated. Returns the constant plus these bounds, and
        the remaining terms.
        """
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
        enumerated = {(name,) for name in names}
        rest = tuple(term for term in self.terms if term.iterators not in enumerated)
        return low, high, rest

    def substitute(self, replacements: Mapping[str, IndexExpr]) -> IndexExpr:
        """Replace iterators by expressions, also inside digits.

        >>> IndexExpr.sum([IndexTerm("x", 2)], 1).substitute(
        ...     {"x": IndexExpr.sum([IndexTerm("a", 4), IndexTerm("b")])}
        ... ).bounds({"a": 2, "b": 4})
        (1, 15)
        """
        terms: list[IndexTerm] = []
        constant = self.constant
        changed = False
        for term in self.terms:
            if term.inner is None:
                is_kept = term.iterator not in replacements
            else:
                is_kept = replacements.keys().isdisjoint(term.inner.iterators)
            if is_kept:
                terms.append(term)
                continue
            changed = True
            if term.inner is not None:
                digit = replace(term, inner=term.inner.substitute(replacements))
                if digit.iterators:
                    terms.append(digit)
                else:
                    constant += digit.evaluate({})
                continue
            inner = replacements[term.iterator]
            if not term.is_affine:
                # The digit of a sum does not distribute over its terms, which may carry.
                renamed = inner.single_iterator
                if renamed is None:
                    terms.append(replace(term, iterator="", inner=inner))
                else:
                    terms.append(replace(term, iterator=renamed))
                continue
            scale = term.coefficient
            terms += inner.terms if scale == 1 else [t.times(scale) for t in inner.terms]
            constant += term.coefficient * inner.constant
        return IndexExpr.sum(terms, constant) if changed else self

    def times(self, factor: int) -> IndexExpr:
        """Multiply by an integer."""
        return IndexExpr.sum([term.times(factor) for term in self.terms], self.constant * factor)

    def rename(self, new_name: Callable[[str], str]) -> IndexExpr:
        """Rename every iterator."""
        return IndexExpr.sum([term.rename(new_name) for term in self.terms], self.constant)

    def __add__(self, addend: IndexExpr | int) -> IndexExpr:
        if isinstance(addend, int):
            return IndexExpr(self.terms, self.constant + addend)
        return IndexExpr.sum((*self.terms, *addend.terms), self.constant + addend.constant)

    def __str__(self) -> str:
        parts: list[str] = []
        for term in self.terms:
            sign = "-" if term.coefficient < 0 else "+"
            body = term.text()
            if not parts and term.coefficient == -1 and not term.is_affine:
                # A leading sign would bind tighter than // and %.
                body = f"({body})"
            parts += [sign, body]
        if self.constant or not parts:
            parts += ["-" if self.constant < 0 else "+", str(abs(self.constant))]
        text = " ".join(parts)
        return text[2:] if text.startswith("+ ") else "-" + text[2:]


def row_major_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the distance in elements of neighbours along each dimension of a dense array."""
    return tuple(math.prod(shape[k + 1 :]) for k in range(len(shape)))


def flat_index(indices: Sequence[IndexExpr], strides: Sequence[int]) -> IndexExpr:
    """Return the index into a flat buffer of an element that has an index in each dimension.

    >>> str(flat_index([IndexExpr.iterator("x"), IndexExpr((), 2)], row_major_strides((3, 5))))
    '5*x + 2'
    """
    pairs = list(zip(indices, strides, strict=True))
    terms = [term.times(stride) for index, stride in pairs for term in index.terms]
    return IndexExpr.sum(terms, sum(index.constant * stride for index, stride in pairs))
