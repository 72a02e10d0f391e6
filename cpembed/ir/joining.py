"""Fused axes that exist in an operand's memory already: windows over neighbouring dimensions.

A channels-last image ``[h, w, c]`` of C channels, read at ``[2*p + r, 2*q + s, c]``, has the fused
axis ``(s, c)`` in place: ``w`` and ``c`` together are one dimension, read at
``2*C*q + (s*C + c)``, where a step of the fused axis is a step in memory. Nothing is unrolled, and
neighbouring windows overlap.

It also has ``(p, q)`` in place, with a gap: ``h`` and ``w`` jointly are one dimension of rows of W
columns, read at ``W*(p + r) + q + s`` if steps are 1, and a step of p is W points of the fused
axis, more than q has. Windows that begin in the gap run over the end of a row, and their results
are discarded. If windows begin two rows apart, even and odd rows make an image each (*phases*).
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
    """Find the neighbouring dimensions that hold a fused axis as a window.

    The outermost member and further axes walk the first of these dimensions, the member in steps of
    one element. Each inner member walks all of one of the next dimensions, and nothing else does.

    >>> indices = [IndexExpr.iterator("q") + IndexExpr.iterator("s"), IndexExpr.iterator("c")]
    >>> joined_dimensions(indices, (10, 4), {"q": 8, "s": 3, "c": 4}, ("s", "c"))
    range(0, 2)

    Parameters
    ----------
    indices : sequence of IndexExpr
        Index of the operand in each dimension.
    shape : sequence of int
        Shape of the operand.
    extents : mapping of str to int
        Extents of the axes.
    members : sequence of str
        Axes that are fused, outermost first.

    Returns
    -------
    range or None
        Positions of the dimensions; None if the operand does not hold the fused axis.
    """
    positions = [n for n, index in enumerate(indices) for m in members if m in index.iterators]
    if len(positions) != len(members):
        return None
    first = min(positions)
    dimensions = range(first, first + len(members))
    window, *inner = (indices[n] for n in dimensions if n < len(indices))
    if len(inner) + 1 != len(members) or len(window.terms) < 2 or not window.is_affine:
        return None
    if window.coefficient(members[0]) != 1:
        return None
    complete = all(
        index.single_iterator == member and shape[position] == extents[member]
        for index, member, position in zip(inner, members[1:], dimensions[1:], strict=True)
    )
    return dimensions if complete else None


def joined_index(
    indices: Sequence[IndexExpr],
    shape: Sequence[int],
    members: Sequence[str],
    fused: str,
    step: int = 1,
) -> IndexExpr:
    """Index neighbouring dimensions as a single one that the fused axis walks.

    Parameters
    ----------
    indices, shape
        Indices and sizes of the neighbouring dimensions, outermost first.
    members : sequence of str
        Axes that are fused; terms of other axes are kept.
    fused : str
        Name of the fused axis.
    step : int
        Elements that a step of the fused axis moves by.
    """
    strides = [math.prod(shape[n + 1 :]) for n in range(len(shape))]
    terms = [
        term.times(stride)
        for index, stride in zip(indices, strides, strict=True)
        for term in index.terms
        if term.iterator not in members
    ]
    constant = sum(index.constant * stride for index, stride in zip(indices, strides, strict=True))
    return IndexExpr.of([*terms, IndexTerm(fused, step)], constant)


@dataclass(frozen=True)
class JoinedRows:
    """Two neighbouring dimensions, rows and columns, that hold a fused axis with a gap.

    Attributes
    ----------
    first : int
        Position of the dimension of rows.
    phases : int
        Distance in rows of neighbouring windows: row ``phases * y + phase`` is row y of its phase.
    before, after : int
        Columns of zeros that the second dimension needs at its two ends.
    pitch : int
        Points of the fused axis per row.
    step : int
        Columns per point of the fused axis.
    """

    first: int
    phases: int
    before: int
    after: int
    pitch: int
    step: int

    @staticmethod
    def find(
        indices: Sequence[IndexExpr],
        shape: Sequence[int],
        extents: Mapping[str, int],
        members: Sequence[str],
    ) -> JoinedRows | None:
        """Find the rows that two fused axes walk; parameters as of :func:`joined_dimensions`.

        None unless each member walks one of two neighbouring dimensions, forwards.
        """
        if len(members) != 2:
            return None
        positions = [
            [n for n, index in enumerate(indices) if member in index.iterators]
            for member in members
        ]
        if [len(p) for p in positions] != [1, 1] or positions[1][0] != positions[0][0] + 1:
            return None
        (first,), (second,) = positions
        row, column = indices[first], indices[second]
        phases, step = row.coefficient(members[0]), column.coefficient(members[1])
        if not (row.is_affine and column.is_affine) or phases <= 0 or step <= 0:
            return None
        low, high = column.bounds(extents)
        before = max(0, -low)
        width = before + max(shape[second], high + 1)
        width += -width % step
        return JoinedRows(
            first=first,
            phases=phases,
            before=before,
            after=width - before - shape[second],
            pitch=width // step,
            step=step,
        )
