"""What becomes of a dimension that several axes index together, some of them mapped.

Its index is taken apart into a sum of parts, each a dimension of its own: the one that shares
elements least. It depends on few values, which the layouts of an enumeration have in common.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from cpembed.ir.index import IndexExpr, IndexTerm
from cpembed.transform.rewrites import Part

Treatment = Literal["in_place", "digit", "axis"]
"""What becomes of a mapped axis in an index with several: read where it is, its digit in a
dimension of its own, or the whole axis in a dimension of its own."""


@dataclass(frozen=True)
class IndexAxis:
    """A workload axis in an index: its coefficient, its coordinate over loops and instruction
    axes, and for a mapped one the instruction axis that it ``feeds`` and the treatments to choose
    from."""

    name: str
    coefficient: int
    coordinate: IndexExpr
    feeds: str | None = None
    treatments: tuple[Treatment, ...] = ("in_place",)


@dataclass(frozen=True)
class Unrolling:
    """Parts of a dimension, the ``shared`` one first where there is one; ``offset`` is added to
    their sum, ``own`` are the axes with a dimension of their own."""

    parts: tuple[Part, ...]
    shared: bool
    offset: int
    own: tuple[str, ...]

    @property
    def elements(self) -> int:
        return math.prod(part.extent for part in self.parts)


@lru_cache(1 << 14)
def smallest_unrolling(
    name: str, axes: tuple[IndexAxis, ...], extents: tuple[tuple[str, int], ...]
) -> Unrolling:
    """The unrolling of dimension ``name`` with the fewest elements. ``axes`` are those of its index
    in order, ``extents`` those of the iterators in their coordinates."""
    plans = itertools.product(*(axis.treatments for axis in axes))
    sizes = dict(extents)
    return min((_unrolling(name, axes, p, sizes) for p in plans), key=lambda u: u.elements)


def _unrolling(
    name: str, axes: Sequence[IndexAxis], plan: Sequence[Treatment], extents: Mapping[str, int]
) -> Unrolling:
    parts: list[Part] = []
    rest: list[IndexTerm] = []
    own: list[str] = []
    for axis, treatment in zip(axes, plan, strict=True):
        if treatment == "axis":
            extent = axis.coordinate.bounds(extents)[1] + 1
            part = Part(f"{name}.{axis.name}", extent, axis.coefficient, axis.coordinate)
            parts.append(part)
            own.append(axis.name)
            continue
        ours = axis.feeds if treatment == "digit" else None
        for term in axis.coordinate.terms:
            moved = term.times(axis.coefficient)
            if ours is None or moved.iterator != ours:
                rest.append(moved)
                continue
            alone = IndexExpr.of([IndexTerm(ours, 1, moved.divisor, moved.modulus)])
            extent = alone.bounds(extents)[1] + 1
            parts.append(Part(f"{axis.name}.i", extent, moved.coefficient, alone, ours))
    shared, step, offset = normalised(IndexExpr.of(rest), extents)
    if shared.terms:
        together = [a.name for a, t in zip(axes, plan, strict=True) if t != "axis"]
        high = shared.bounds(extents)[1]
        parts.insert(0, Part("+".join(together), high + 1, step, shared))
    return Unrolling(tuple(parts), bool(shared.terms), offset, tuple(own))


def normalised(index: IndexExpr, extents: Mapping[str, int]) -> tuple[IndexExpr, int, int]:
    """``(index - constant - low) / step`` from 0 up in steps of 1, with that step and low."""
    terms = IndexExpr.of(index.terms)
    low, _ = terms.bounds(extents)
    step = math.gcd(*(term.coefficient for term in terms.terms)) or 1
    scaled = [replace(term, coefficient=term.coefficient // step) for term in terms.terms]
    return IndexExpr.of(scaled, -(low // step)), step, low
