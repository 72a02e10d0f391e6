"""Tile sizes that are compared, by loop."""

from __future__ import annotations

import math
from functools import cache


@cache
def cuts(extent: int) -> list[int]:
    """Return the sizes of an extent's parts for every number of parts, ascending.

    >>> cuts(7)
    [1, 2, 3, 4, 7]
    """
    sizes, size = [extent], extent
    while size > 1:
        count = -(-extent // (size - 1))
        size = -(-extent // count)
        sizes.append(size)
    return sizes[::-1]


def thinned(options: list[list[int]], limit: int) -> list[list[int]]:
    """Return fewer options of each loop, with at most ``limit`` combinations.

    Sizes that are no divisors are dropped first, then sizes between close neighbours, which leaves
    a geometric series with the smallest and the largest.
    """
    remaining = list(options)
    for place in sorted(range(len(remaining)), key=lambda n: -len(remaining[n])):
        if math.prod(map(len, remaining)) <= limit:
            return remaining
        divisors = [size for size in remaining[place] if remaining[place][-1] % size == 0]
        if len(divisors) > 3:
            remaining[place] = divisors
    while math.prod(map(len, remaining)) > limit:
        place = max(range(len(remaining)), key=lambda n: len(remaining[n]))
        if len(remaining[place]) <= 1:
            break
        remaining[place] = _drop_size(remaining[place])
    return remaining


def _drop_size(sizes: list[int]) -> list[int]:
    """Drop the size whose neighbours are closest to each other; of two, the larger."""
    if len(sizes) == 2:
        return sizes[:1]
    gaps = [sizes[n + 1] / sizes[n - 1] for n in range(1, len(sizes) - 1)]
    drop = 1 + gaps.index(min(gaps))
    return sizes[:drop] + sizes[drop + 1 :]
