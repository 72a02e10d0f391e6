"""Fused axes that an operand has as they are: a window over its neighbouring dimensions.

A channels-last image ``[h, w, c]`` of C channels, read at ``[2*p + r, 2*q + s, c]``, has the fused
axis ``(s, c)`` in place: ``w`` and ``c`` together are one dimension, read at
``2*C*q + (s*C + c)``, where a step of the fused axis is a step in memory. Nothing is unrolled, and
neighbouring windows overlap.

It has ``(p, q)`` in place too, with a gap: ``h`` and ``w`` together are one dimension of rows of W
columns, read at ``W*(p + r) + q + s`` where steps are 1, and p counts W points of the fused axis,
more than q has. Windows that begin in the gap run over the end of a row, and their results are of
no use. Where windows are two rows apart, even rows and odd ones make an image each (*phases*).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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


def joined_index(
    indices: Sequence[IndexExpr],
    shape: Sequence[int],
    members: Sequence[str],
    fused: str,
    step: int = 1,
) -> IndexExpr:
    """The index of neighbouring dimensions as one: what axes other than the members walk of them,
    and the fused axis in steps of ``step`` elements."""
    inner = [math.prod(shape[n + 1 :]) for n in range(len(shape))]
    others = [
        term.times(size)
        for index, size in zip(indices, inner, strict=True)
        for term in index.terms
        if term.iterator not in members
    ]
    constant = sum(index.constant * size for index, size in zip(indices, inner, strict=True))
    return IndexExpr.of([*others, IndexTerm(fused, step)], constant)


@dataclass(frozen=True)
class JoinedRows:
    """Two neighbouring dimensions, the first at position ``first``, that hold a fused axis of two
    members with a gap.

    Windows begin ``phases`` rows apart: row ``phases * y + phase`` is row y of its phase.
    ``before`` and ``after`` are columns of zeros that the second dimension needs at its ends;
    ``pitch`` points of the fused axis make a row, each ``step`` columns.
    """

    first: int
    phases: int
    before: int
    after: int
    pitch: int
    step: int

    @staticmethod
    def of(
        indices: Sequence[IndexExpr],
        shape: Sequence[int],
        extents: Mapping[str, int],
        members: Sequence[str],
    ) -> JoinedRows | None:
        """None where the members do not walk two neighbouring dimensions, forwards, each one of
        them."""
        if len(members) != 2:
            return None
        places = [[n for n, i in enumerate(indices) if member in i.iterators] for member in members]
        if [len(found) for found in places] != [1, 1] or places[1][0] != places[0][0] + 1:
            return None
        (first,), (second,) = places
        row, column = indices[first], indices[second]
        phases, step = row.coefficient(members[0]), column.coefficient(members[1])
        if not (row.is_affine and column.is_affine) or phases <= 0 or step <= 0:
            return None
        low, high = column.bounds(extents)
        before = max(0, -low)
        width = before + max(shape[second], high + 1)
        width += -width % step
        after = width - before - shape[second]
        return JoinedRows(first, phases, before, after, width // step, step)
