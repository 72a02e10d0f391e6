"""Fused axes that an operand has as they are: a window over its neighbouring dimensions.

A channels-last image ``[h, w, c]`` of C channels, read at ``[2*p + r, 2*q + s, c]``, has the fused
axis ``(s, c)`` in place: ``w`` and ``c`` together are one dimension, read at
``2*C*q + (s*C + c)``, where a step of the fused axis is a step in memory. Nothing is unrolled, and
neighbouring windows overlap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cpembed.ir.index import IndexExpr, IndexTerm


def joined_dimensions(
    indices: Sequence[IndexExpr],
    shape: Sequence[int],
    extents: Mapping[str, int],
    members: Sequence[str],
) -> range | None:
    """Positions of the dimensions that hold a fused axis as a window, None where none do.

    The first one is walked by the outermost member, one element a step, and by other axes; each
    other member has the next dimension to itself, whole. ``members`` are outermost first,
    ``extents`` those of the axes.
    """
    places = [n for n, index in enumerate(indices) for m in members if m in index.iterators]
    if len(places) != len(members):
        return None
    first = min(places)
    found = range(first, first + len(members))
    window, *others = (indices[n] for n in found if n < len(indices))
    if len(others) + 1 != len(members) or len(window.terms) < 2 or not window.is_affine:
        return None
    if window.coefficient(members[0]) != 1:
        return None
    whole = all(
        index.single_iterator == member and shape[place] == extents[member]
        for index, member, place in zip(others, members[1:], found[1:], strict=True)
    )
    return found if whole else None


def joined_index(window: IndexExpr, outermost: str, inner: int, fused: str) -> IndexExpr:
    """The index of the joined dimension: that of the outermost member without it, ``inner``
    elements a step, and the fused axis."""
    others = [term.times(inner) for term in window.terms if term.iterator != outermost]
    return IndexExpr.of([*others, IndexTerm(fused)], window.constant * inner)
