"""Shapes that another shape is at least as good as on every layer: none of them is needed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_FEW = 6
"""Layers that are compared first: most shapes are worse than the dominating one on one of them."""


def undominated(costs: NDArray[np.float64], preferred: NDArray[np.int64]) -> NDArray[np.int64]:
    """The shapes (columns) that no other is as good as on every layer (row), ascending by what
    ``costs`` sum to; of equal ones the one with the least ``preferred`` number.

    For each shape that is left out there is one that is kept, and at most as expensive on every
    layer: no choice of K shapes is better than the best one of those that are kept.
    """
    count = costs.shape[1]
    if not costs.size:
        return np.arange(min(count, 1), dtype=np.int64)
    # Infinite costs do not order sums: how many there are comes first.
    missing = np.isinf(costs).sum(axis=0)
    sums = np.where(np.isinf(costs), 0.0, costs).sum(axis=0)
    left = np.lexsort((preferred, sums, missing))
    kept: list[int] = []
    spread = np.argsort(-_variation(costs))
    ordered = np.ascontiguousarray(costs[spread][:, left])
    while len(left):
        head = ordered[:, 0]
        kept.append(int(left[0]))
        first = (ordered[:_FEW] < head[:_FEW, None]).any(axis=0)
        unsure = np.flatnonzero(~first)
        better = (ordered[_FEW:, unsure] < head[_FEW:, None]).any(axis=0)
        stays = np.array(first, np.bool_)
        stays[unsure[better]] = True
        left, ordered = left[stays], ordered[:, stays]
    return np.array(kept, np.int64)


def undominated_without(
    costs: NDArray[np.float64],
    preferred: NDArray[np.int64],
    kept: NDArray[np.int64],
    left_out: int,
) -> NDArray[np.int64]:
    """The shapes that no other is as good as on every layer, where one is left out of all of them;
    ``kept`` are those where it is not.

    The best choice without this shape is among them: it may need shapes that only this one
    dominates.
    """
    others = kept[kept != left_out]
    only = np.flatnonzero((costs >= costs[:, left_out : left_out + 1]).all(axis=0))
    columns = np.union1d(others, only[only != left_out])
    found: NDArray[np.int64] = columns[undominated(costs[:, columns], preferred[columns])]
    return found


def _variation(costs: NDArray[np.float64]) -> NDArray[np.float64]:
    """How many times the best shape's cost the mean shape has on each layer."""
    finite = np.isfinite(costs)
    mean = np.where(finite, costs, 0.0).sum(axis=1) / np.maximum(finite.sum(axis=1), 1)
    least = costs.min(axis=1)
    usable = np.isfinite(least) & (least > 0)
    return np.where(usable, mean / np.where(usable, least, 1.0), 0.0)
