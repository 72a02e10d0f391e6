"""Products with zero padding that a GEMM instruction need not compute.

Of a convolution's tile at the image's border, some output rows see only padding through some filter
rows. Cut into parts, one per filter row (or several that see the same output rows), the tile
multiplies what exists.
"""

from __future__ import annotations

import itertools
import math

from cpembed.ir.index import IndexExpr
from cpembed.targets.vta.regions import Interval, Tile
from cpembed.targets.vta.tiles import TileTensor

MAX_PARTS = 64
"""Of a tile; one that would need more is computed whole."""


def trimmed_tiles(tensor: TileTensor, tile: Tile) -> list[Tile]:
    """Parts of a tile that together have every product with what the tensor holds, in which other
    products are left out as far as boxes can; the tile itself where nothing is to be left out."""
    taken: set[str] = set()
    choices: list[list[dict[str, Interval]]] = []
    for index, size in zip(tensor.access, tensor.shape, strict=True):
        names = set(index.iterators)
        if not index.is_affine or taken & names:
            continue
        parts = _parts(index, size, tile)
        if parts is not None:
            taken |= names
            choices.append(parts)
    if math.prod(map(len, choices)) > MAX_PARTS:
        return [tile]
    found: list[Tile] = []
    for place in itertools.product(*choices):
        part = dict(tile)
        for chosen in place:
            part |= chosen
        found.append(part)
    return found


def _parts(index: IndexExpr, size: int, tile: Tile) -> list[dict[str, Interval]] | None:
    """The parts of one dimension, as intervals of its loops; None where all of it exists or it is
    computed whole.

    The longest loop is cut; of the others each value is looked at, and consecutive values of the
    innermost one that leave the same interval are one part.
    """
    low, high = _bounds(index, tile)
    if low >= 0 and high < size:
        return None
    names = sorted(index.iterators, key=lambda name: tile[name][1])
    cut, others = names[-1], names[:-1]
    step = index.coefficient(cut)
    values = [range(first, first + count) for first, count in (tile[name] for name in others)]
    parts: list[dict[str, Interval]] = []
    for place in itertools.product(*values):
        rest = index.constant + sum(
            index.coefficient(name) * value for name, value in zip(others, place, strict=True)
        )
        inside = _inside(step, rest, size, tile[cut])
        if inside is None:
            continue
        intervals = {name: (value, 1) for name, value in zip(others, place, strict=True)}
        last = parts[-1] if parts else None
        if last is not None and last[cut] == inside and _follows(last, intervals, others):
            first, count = last[others[-1]]
            last[others[-1]] = (first, count + 1)
            continue
        parts.append({**intervals, cut: inside})
        if len(parts) > MAX_PARTS:
            return None
    return parts


def _bounds(index: IndexExpr, tile: Tile) -> tuple[int, int]:
    low = high = index.constant
    for term in index.terms:
        first, count = tile[term.iterator]
        ends = term.coefficient * first, term.coefficient * (first + count - 1)
        low, high = low + min(ends), high + max(ends)
    return low, high


def _inside(step: int, rest: int, size: int, interval: Interval) -> Interval | None:
    """Values ``v`` of an interval with ``0 <= step * v + rest < size``."""
    first, count = interval
    if step > 0:
        low, high = -(rest // step), (size - 1 - rest) // step
    else:
        low, high = -((size - 1 - rest) // -step), rest // -step
    low, high = max(low, first), min(high, first + count - 1)
    return (low, high - low + 1) if low <= high else None


def _follows(last: dict[str, Interval], intervals: dict[str, Interval], names: list[str]) -> bool:
    """Whether intervals continue the last ones along the innermost loop."""
    *outer, inner = names
    first, count = last[inner]
    return intervals[inner][0] == first + count and all(
        last[name] == intervals[name] for name in outer
    )
