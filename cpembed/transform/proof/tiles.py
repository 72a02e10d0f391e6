"""The isl proof of a cut into tiles, parts and points: every point of an axis is taken once.

A tile of an axis is cut into equal parts, one for each row or column of a mesh; the last tile is a
smaller one of its own, filled up to whole granules. What follows them is only beyond the axis.
"""

from __future__ import annotations

from functools import lru_cache

import islpy as isl


@lru_cache(maxsize=65536)
def covers_once(extent: int, tile: int, granule: int, parts: int) -> bool:
    """Whether tiles of so many points, of which each of ``parts`` holds an equal number in whole
    granules, one part after the other, reach every point of ``[0, extent)`` exactly once, and
    none beyond the last granule.

    >>> covers_once(100, 32, 8, 4), covers_once(100, 30, 8, 4)
    (True, False)
    """
    count = -(-extent // tile)
    last = extent - (count - 1) * tile
    pieces = [
        _piece(0, count - 1, tile, _held(tile, granule, parts), parts),
        _piece(count - 1, count, tile, _held(last, granule, parts), parts),
    ]
    reached = isl.UnionMap(pieces[0]).union(isl.UnionMap(pieces[1]))
    image = reached.range()
    whole = isl.UnionSet(f"{{ [x] : 0 <= x < {extent} }}")
    room = -(-extent // granule) * granule
    inside = isl.UnionSet(f"{{ [x] : 0 <= x < {room} }}")
    return bool(reached.is_injective() and whole.is_subset(image) and image.is_subset(inside))


def _held(points: int, granule: int, parts: int) -> int:
    return -(-points // granule) * (granule // parts)


def _piece(first: int, end: int, tile: int, held: int, parts: int) -> str:
    """Point of tile t, part p, place l."""
    return (
        f"{{ [t, p, l] -> [{tile}t + {held}p + l] : {first} <= t < {end} and 0 <= p < {parts} "
        f"and 0 <= l < {held} }}"
    )
