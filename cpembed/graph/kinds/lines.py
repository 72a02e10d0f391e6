"""Operators in which the elements of a line depend on each other: sorted, running, scattered."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cpembed.errors import WorkloadError
from cpembed.graph.kinds.base import Array, Kind, TensorType, axis_of
from cpembed.graph.kinds.reductions import is_float, value_range

_INDICES = ("int32", "int64")


@dataclass(frozen=True)
class Sort(Kind):
    """The first elements of each line along an axis in order, and their indices (int64).

    Attributes
    ----------
    axis : int
    count : int
        Number of elements in the result.
    descending : bool
        True for the largest elements first.

    Notes
    -----
    Elements that are equal, such as zeros of both signs, stay in the order of their indices. NaNs
    are equal to each other and larger than all numbers.
    """

    axis: int
    count: int
    descending: bool = False

    def types(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        shape = list(inputs[0].shape)
        axis = axis_of(self.axis, len(shape))
        if not 0 <= self.count <= shape[axis]:
            raise WorkloadError(f"{self.count} elements of an axis of {shape[axis]}")
        shape[axis] = self.count
        return TensorType(tuple(shape), inputs[0].dtype), TensorType(tuple(shape), "int64")

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        (x,) = inputs
        keys = x.astype(np.float64) if is_float(x) else x
        if self.descending:
            # Reversed before and after, so that equal elements stay in the order of their indices.
            backwards = np.argsort(np.flip(keys, self.axis), self.axis, kind="stable")
            order = x.shape[self.axis] - 1 - np.flip(backwards, self.axis)
        else:
            order = np.argsort(keys, self.axis, kind="stable")
        first = np.take(order, np.arange(self.count), self.axis)
        return np.take_along_axis(x, first, self.axis), first.astype(np.int64)


@dataclass(frozen=True)
class Scan(Kind):
    """Running sum, product, maximum or minimum along an axis.

    Attributes
    ----------
    operation : str
        ``sum``, ``prod``, ``max`` or ``min``.
    axis : int
    exclusive : bool
        True if each result leaves out its last element; the first one is then the neutral element.
    reverse : bool
        True to run from the end of the axis.
    """

    operation: str
    axis: int
    exclusive: bool = False
    reverse: bool = False

    def types(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        axis_of(self.axis, len(inputs[0].shape))
        if inputs[0].dtype == "bool" and self.operation in ("sum", "prod"):
            raise WorkloadError(f"a running {self.operation} of Booleans: convert them to integers")
        return (inputs[0],)

    @np.errstate(all="ignore")
    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        (x,) = inputs
        # Floats are computed in float64 and rounded once; integers wrap in their own type.
        line = np.moveaxis(x.astype(np.float64) if is_float(x) else x, self.axis, 0)
        line = line[::-1] if self.reverse else line
        function = _JOINS["add" if self.operation == "sum" else self.operation]
        result = function.accumulate(line, axis=0, dtype=line.dtype)
        if self.exclusive and len(result):
            result = np.concatenate([np.full_like(result[:1], self._neutral(line)), result[:-1]])
        result = result[::-1] if self.reverse else result
        return (np.ascontiguousarray(np.moveaxis(result, 0, self.axis)).astype(x.dtype),)

    def _neutral(self, line: Array) -> float | int:
        if self.operation in ("max", "min"):
            return value_range(line.dtype)[self.operation == "min"]
        return 1 if self.operation == "prod" else 0

    @property
    def label(self) -> str:
        return f"running {self.operation}"


_JOINS = {
    "add": np.add,
    "mul": np.multiply,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
}


@dataclass(frozen=True)
class Scatter(Kind):
    """Rows of a tensor, some of which others replace or are combined with.

    The inputs are the tensor [n, …], indices [m] of its rows, and m new rows [m, …]. New rows are
    taken in their order. Negative indices count from the end; a row whose index is beyond the
    tensor is left out.

    Attributes
    ----------
    operation : str
        ``set`` to replace a row, or ``add``, ``mul``, ``max`` or ``min`` to combine it with a new
        one. Sums and products of floats are rounded at each step.
    """

    operation: str = "set"

    def types(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        data, indices, rows = inputs
        if not data.shape or len(indices.shape) != 1 or indices.dtype not in _INDICES:
            raise WorkloadError(f"rows at {indices} of {data}: indices are a vector of integers")
        if rows != TensorType((*indices.shape, *data.shape[1:]), data.dtype):
            raise WorkloadError(f"{rows} scattered at {indices} into {data}")
        if self.operation != "set" and data.dtype in ("bfloat16", "float16"):
            raise WorkloadError(f"{self.operation} of {data.dtype}: convert it to float32")
        return (data,)

    @np.errstate(all="ignore")
    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        data, indices, rows = inputs
        count = data.shape[0]
        indices = np.where(indices < 0, indices + count, indices)
        inside = (indices >= 0) & (indices < count)
        indices, rows, result = indices[inside], rows[inside], data.copy()
        if self.operation == "set":
            # The last one of several rows with the same index.
            result[indices] = rows
        else:
            _JOINS[self.operation].at(result, indices, rows)
        return (result,)

    @property
    def label(self) -> str:
        return "scatter" if self.operation == "set" else f"scatter {self.operation}"


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
