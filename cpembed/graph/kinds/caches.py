"""State that is passed from call to call: caches of keys and values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cpembed.errors import WorkloadError
from cpembed.graph.kinds.base import Array, Kind, TensorType


@dataclass(frozen=True)
class CacheUpdate(Kind):
    """A cache with some elements of an axis replaced, from a position on that is an input.

    Inputs are the cache, the new elements, which have its shape but for the axis, and the first
    position of each index of axis 0 (int32 or int64). A kernel writes the new elements alone if the
    caller passes one memory for the cache and the result.

    Attributes
    ----------
    axis : int
        Axis of the positions, not 0.
    is_circular : bool
        Positions beyond the axis begin again at 0; otherwise the first one is clamped so that the
        new elements lie on it.
    """

    axis: int
    is_circular: bool = False

    def types(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        cache, update, first = inputs
        if not 0 < self.axis < len(cache.shape):
            raise WorkloadError(f"axis {self.axis} of {cache}: give one behind the first")
        expected = list(cache.shape)
        if len(update.shape) == len(expected):
            expected[self.axis] = min(update.shape[self.axis], expected[self.axis])
        if list(update.shape) != expected or update.dtype != cache.dtype:
            raise WorkloadError(f"{update} is no part of {cache} along axis {self.axis}")
        if first.elements != cache.shape[0] or first.dtype not in ("int32", "int64"):
            raise WorkloadError(f"positions {first} of {cache.shape[0]} caches")
        return (cache,)

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        cache, update, first = inputs
        size, count = cache.shape[self.axis], update.shape[self.axis]
        result = cache.copy()
        for number, position in enumerate(first.reshape(-1)):
            start = int(position)
            if not self.is_circular:
                start = min(max(start, 0), size - count)
            places = [(start + k) % size for k in range(count)]
            # Without axis 0, the positions are on the axis before.
            moved = np.moveaxis(result[number], self.axis - 1, 0)
            moved[places] = np.moveaxis(update[number], self.axis - 1, 0)
        return (result,)

    def rows(self, cache: TensorType) -> tuple[int, int]:
        """Return the number of caches along the axis, and of elements at a position."""
        return math.prod(cache.shape[: self.axis]), math.prod(cache.shape[self.axis + 1 :])
