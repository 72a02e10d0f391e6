"""Two shapes of the same elements in row-major order, dimension beside dimension."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Segment:
    """Neighbouring dimensions of one shape, and of the other, that hold the same elements."""

    outer: tuple[int, ...]
    inner: tuple[int, ...]


def segments(outer: Sequence[int], inner: Sequence[int]) -> list[Segment]:
    """The shortest segments, in their order; dimensions of one element are in none.

    >>> segments((12, 128, 64), (1, 12, 128, 64))[0]
    Segment(outer=(0,), inner=(1,))
    >>> segments((6, 4), (2, 3, 4)), segments((2, 3), (6, 1))
    ([Segment(outer=(0,), inner=(0, 1)), Segment(outer=(1,), inner=(2,))], \
[Segment(outer=(0, 1), inner=(0,))])
    """
    left, right = ([k for k, size in enumerate(shape) if size > 1] for shape in (outer, inner))
    found: list[Segment] = []
    while left and right:
        firsts, seconds = [left.pop(0)], [right.pop(0)]
        a, b = outer[firsts[0]], inner[seconds[0]]
        while a != b:
            if a < b:
                firsts.append(left.pop(0))
                a *= outer[firsts[-1]]
            else:
                seconds.append(right.pop(0))
                b *= inner[seconds[-1]]
        found.append(Segment(tuple(firsts), tuple(seconds)))
    return found


def broadcastable(
    outer: Sequence[int], kept: Sequence[bool], inner: Sequence[int]
) -> tuple[int, ...] | None:
    """Of a tensor that has, of the shape ``outer``, the dimensions that are ``kept``, the shape in
    which it broadcasts to ``inner``; None where a dimension of that is kept in part.

    >>> broadcastable((12, 128, 64), (True, True, False), (1, 12, 128, 64))
    (1, 12, 128, 1)
    """
    shape = [1] * len(inner)
    for segment in segments(outer, inner):
        stays = {kept[place] for place in segment.outer}
        if len(stays) > 1:
            return None
        if stays.pop():
            for place in segment.inner:
                shape[place] = inner[place]
    return tuple(shape)
