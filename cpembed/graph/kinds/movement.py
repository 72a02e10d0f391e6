"""Operators that only move elements: results are elements of the input, or padding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cpembed.errors import WorkloadError
from cpembed.graph.kinds.base import Array, Kind, TensorType, axis_of
from cpembed.ir.dtypes import numpy_dtype


@dataclass(frozen=True)
class Reshape(Kind):
    """The same elements in row-major order, in another shape."""

    shape: tuple[int, ...]

    def types(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        if inputs[0].elements != math.prod(self.shape):
            raise WorkloadError(f"{inputs[0]} cannot be reshaped to {list(self.shape)}")
        return (TensorType(self.shape, inputs[0].dtype),)

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (inputs[0].reshape(self.shape),)


@dataclass(frozen=True)
class Bitcast(Kind):
    """The bits of each element as an element of another type of the same size."""

    dtype: str

    def types(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        sizes = [numpy_dtype(dtype).itemsize for dtype in (inputs[0].dtype, self.dtype)]
        if sizes[0] != sizes[1] or self.dtype == "bool":
            raise WorkloadError(f"the bits of {inputs[0].dtype} as those of {self.dtype}")
        return (TensorType(inputs[0].shape, self.dtype),)

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (inputs[0].copy().view(numpy_dtype(self.dtype)),)


@dataclass(frozen=True)
class Transpose(Kind):
    """Permutation of axes: axis k of the result is axis ``order[k]`` of the input."""

    order: tuple[int, ...]

    def types(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        shape = inputs[0].shape
        if sorted(self.order) != list(range(len(shape))):
            raise WorkloadError(f"{list(self.order)} is no order of {len(shape)} axes")
        return (TensorType(tuple(shape[axis] for axis in self.order), inputs[0].dtype),)

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (np.ascontiguousarray(inputs[0].transpose(self.order)),)


@dataclass(frozen=True)
class Concat(Kind):
    """Concatenation of the inputs along an axis."""

    axis: int

    def types(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        first = inputs[0]
        axis = axis_of(self.axis, len(first.shape))
        for following in inputs[1:]:
            compatible = len(following.shape) == len(first.shape) and all(
                a == b for k, (a, b) in enumerate(zip(first.shape, following.shape, strict=True))
                if k != axis
            )  # fmt: skip
            if not compatible or following.dtype != first.dtype:
                raise WorkloadError(
                    f"{first} and {following} cannot follow each other on axis {axis}"
                )
        shape = list(first.shape)
        shape[axis] = sum(i.shape[axis] for i in inputs)
        return (TensorType(tuple(shape), first.dtype),)

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (np.concatenate(inputs, self.axis),)


@dataclass(frozen=True)
class Slice(Kind):
    """Range of each axis from ``starts`` to before ``stops`` by ``steps``.

    Each tuple has one element per axis. Ranges lie within the shape; a step may be negative, and
    ``stops`` may then be -1.
    """

    starts: tuple[int, ...]
    stops: tuple[int, ...]
    steps: tuple[int, ...]

    def _ranges(self, shape: Sequence[int]) -> list[range]:
        if len(shape) != len(self.starts):
            raise WorkloadError(f"a slice of {len(self.starts)} axes of {list(shape)}")
        parts = zip(self.starts, self.stops, self.steps, strict=True)
        ranges = [range(start, stop, step) for start, stop, step in parts]
        for part, size in zip(ranges, shape, strict=True):
            # Empty ranges select nothing, wherever they are.
            if len(part) and not (0 <= part[0] < size and 0 <= part[-1] < size):
                raise WorkloadError(f"a slice {part} of an axis of {size}")
        return ranges

    def types(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        shape = tuple(len(part) for part in self._ranges(inputs[0].shape))
        return (TensorType(shape, inputs[0].dtype),)

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        ranges = self._ranges(inputs[0].shape)
        return (np.ascontiguousarray(inputs[0][np.ix_(*ranges)]),)


@dataclass(frozen=True)
class Pad(Kind):
    """Padding of each axis; ``mode`` is ``constant``, ``edge`` or ``reflect`` as in numpy.

    ``before`` and ``after`` have the number of new elements per axis.
    """

    before: tuple[int, ...]
    after: tuple[int, ...]
    value: float | int = 0
    mode: str = "constant"

    def types(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        shape = inputs[0].shape
        if not len(shape) == len(self.before) == len(self.after):
            raise WorkloadError(f"padding of {len(self.before)} axes of {list(shape)}")
        if self.mode != "constant" and not inputs[0].elements:
            raise WorkloadError(f"{self.mode} padding of {inputs[0]}, which has no elements")
        sizes = [b + s + a for b, s, a in zip(self.before, shape, self.after, strict=True)]
        return (TensorType(tuple(sizes), inputs[0].dtype),)

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        widths = list(zip(self.before, self.after, strict=True))
        if self.mode == "constant":
            return (np.pad(inputs[0], widths, constant_values=self.value),)
        mode = "edge" if self.mode == "edge" else "reflect"
        return (np.pad(inputs[0], widths, mode=mode),)


@dataclass(frozen=True)
class Gather(Kind):
    """Elements of the first input along an axis, at the indices in the second input.

    Negative indices count from the end.
    """

    axis: int

    def types(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        data, indices = inputs
        axis = axis_of(self.axis, len(data.shape))
        shape = (*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :])
        return (TensorType(shape, data.dtype),)

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        data, indices = inputs
        size = data.shape[self.axis]
        if indices.size and not (-size <= indices.min() and indices.max() < size):
            raise WorkloadError(f"an index beyond the {size} of axis {self.axis}")
        return (np.take(data, indices, self.axis),)


@dataclass(frozen=True)
class Expand(Kind):
    """Broadcast to a shape, as numpy does it."""

    shape: tuple[int, ...]

    def types(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        try:
            shape = np.broadcast_shapes(inputs[0].shape, self.shape)
        except ValueError:
            raise WorkloadError(f"{inputs[0]} does not broadcast to {list(self.shape)}") from None
        return (TensorType(tuple(shape), inputs[0].dtype),)

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        (result,) = self.types([TensorType.of_array(inputs[0])])
        return (np.ascontiguousarray(np.broadcast_to(inputs[0], result.shape)),)


@dataclass(frozen=True)
class Resize(Kind):
    """Interpolation to other sizes of the last axes.

    Attributes
    ----------
    sizes : tuple of int
        New sizes of the last axes.
    mode : str
        ``nearest`` or ``linear``.
    coordinates : str
        ONNX's coordinate_transformation_mode: ``half_pixel``, ``asymmetric`` or ``align_corners``.
    nearest : str
        Rounding of a coordinate to an index: ``round_prefer_floor`` or ``floor``.
    """

    sizes: tuple[int, ...]
    mode: str = "nearest"
    coordinates: str = "half_pixel"
    nearest: str = "round_prefer_floor"

    def types(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        shape = inputs[0].shape
        for size, result in zip(shape[-len(self.sizes) :], self.sizes, strict=True):
            if result and not size:
                raise WorkloadError(f"{inputs[0]}, which has no elements, cannot be resized")
        return (TensorType((*shape[: -len(self.sizes)], *self.sizes), inputs[0].dtype),)

    def places(self, size: int, result: int) -> Array:
        """Return the coordinate, on an axis of ``size``, that each of ``result`` elements reads."""
        # Each is one quotient of integers, rounded once, so that midpoints are exact.
        at = np.arange(result, dtype=np.int64)
        if self.coordinates == "align_corners":
            return at * (size - 1) / max(1, result - 1)
        if self.coordinates == "asymmetric":
            return at * size / result
        return ((2 * at + 1) * size - result) / (2 * result)

    def indices(self, size: int, result: int) -> Array:
        """Return the index that each element reads in mode ``nearest``."""
        places = self.places(size, result)
        rounded = np.floor(places) if self.nearest == "floor" else np.ceil(places - 0.5)
        return np.clip(rounded, 0, size - 1).astype(np.int64)

    def neighbours(self, size: int, result: int) -> tuple[Array, Array, Array]:
        """Return the indices between which each element is in mode ``linear``, and how far.

        The distance is from the first of them.
        """
        places = np.clip(self.places(size, result), 0, size - 1)
        low = np.floor(places).astype(np.int64)
        return low, np.minimum(low + 1, size - 1), places - low

    @np.errstate(all="ignore")
    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        value = inputs[0]
        (resized,) = self.types([TensorType.of_array(value)])
        if not resized.elements:
            return (np.zeros(resized.shape, value.dtype),)
        # Axis by axis, as kernels do it; only the result of the last one is rounded to the type.
        for k, result in enumerate(self.sizes):
            axis = value.ndim - len(self.sizes) + k
            size = value.shape[axis]
            if self.mode == "nearest":
                value = np.take(value, self.indices(size, result), axis)
                continue
            low, high, distance = self.neighbours(size, result)
            weight = distance.reshape([-1 if d == axis else 1 for d in range(value.ndim)])
            a, b = (np.take(value, i, axis).astype(np.float64) for i in (low, high))
            value = a * (1 - weight) + b * weight
        return (value.astype(inputs[0].dtype),)
