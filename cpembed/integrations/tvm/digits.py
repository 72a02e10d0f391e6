"""Index expressions with digits made affine: axes are split where a digit cuts them, and dimensions
where an index is a number of several digits.

A grouped convolution reads channel ``k // 4 * 8 + c`` for its filter ``k``: with k split into a
group and a filter within it the index is affine, and with the channels split into groups and
channels within them it is two plain indices. Both splits change names, not where an element lies.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cpembed.errors import WorkloadError
from cpembed.ir.index import IndexExpr, IndexTerm


@dataclass(frozen=True)
class Part:
    """A digit of an axis: ``(axis // weight) % extent``, an axis of its own."""

    name: str
    weight: int
    extent: int


def split_axes(
    extents: Mapping[str, int], indices: Iterable[IndexExpr]
) -> dict[str, tuple[Part, ...]]:
    """The parts of each axis, outermost first, such that all digits in the indices are whole parts.

    Raises :class:`WorkloadError` where digits of an axis do not nest: ``i // 4`` beside ``i // 6``.

    >>> third = IndexExpr.of([IndexTerm("i", 5, divisor=3)])
    >>> [(part.name, part.weight, part.extent) for part in split_axes({"i": 12}, [third])["i"]]
    [('i0', 3, 4), ('i1', 1, 3)]
    """
    cuts: dict[str, set[int]] = {name: {1, extent} for name, extent in extents.items()}
    for term in (term for index in indices for term in index.terms):
        end = term.divisor * (term.modulus or 1)
        cuts[term.iterator] |= {cut for cut in (term.divisor, end) if cut < extents[term.iterator]}
    taken = set(extents)
    parts: dict[str, tuple[Part, ...]] = {}
    for name, found in cuts.items():
        edges = sorted(found)
        pairs = list(itertools.pairwise(edges)) or [(1, 1)]
        for low, high in pairs:
            if high % low:
                raise WorkloadError(f"axis {name} is cut at {low} and at {high}: no multiple")
        names = [name] if len(pairs) == 1 else _names(name, len(pairs), taken)
        parts[name] = tuple(
            Part(part, low, high // low)
            for part, (low, high) in zip(names, reversed(pairs), strict=True)
        )
    return parts


def _names(axis: str, count: int, taken: set[str]) -> list[str]:
    while any(f"{axis}{number}" in taken for number in range(count)):
        axis += "_"
    names = [f"{axis}{number}" for number in range(count)]
    taken.update(names)
    return names


def in_parts(index: IndexExpr, parts: Mapping[str, tuple[Part, ...]]) -> IndexExpr:
    """The index over the parts of its axes: affine."""
    terms: list[IndexTerm] = []
    for term in index.terms:
        for part in parts[term.iterator]:
            inside = term.modulus is None or part.weight < term.divisor * term.modulus
            if part.weight >= term.divisor and inside:
                scale = term.coefficient * (part.weight // term.divisor)
                terms.append(IndexTerm(part.name, scale))
    return IndexExpr.of(terms, index.constant)


def dimensions_of(
    index: IndexExpr, extents: Mapping[str, int], size: int
) -> tuple[tuple[IndexExpr, int], ...]:
    """The dimensions, with their sizes, that an index walks in a dimension of a size: one for each
    digit where it is a number of several digits that takes every value once, else the one itself.

    >>> group = IndexExpr.of([IndexTerm("g", 8), IndexTerm("c")])
    >>> [(str(i), size) for i, size in dimensions_of(group, {"g": 2, "c": 8}, 16)]
    [('g', 2), ('c', 8)]
    """
    whole = ((index, size),)
    terms = sorted(index.terms, key=lambda term: -term.coefficient)
    if len(terms) < 2 or index.constant:
        return whole
    weight = 1
    for term in reversed(terms):
        if term.coefficient != weight:
            return whole
        weight *= extents[term.iterator]
    if weight != size:
        return whole
    return tuple((IndexExpr.iterator(t.iterator), extents[t.iterator]) for t in terms)
