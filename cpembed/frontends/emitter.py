"""Interface by which a front end adds the operators of a model to a graph in the making."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Self

import numpy as np

from cpembed.errors import WorkloadError
from cpembed.frontends.builder import Builder
from cpembed.frontends.expressions import X, Y, add, differ, less, mul, truncated, where
from cpembed.graph.kinds import (
    Concat,
    Elementwise,
    Expand,
    Gather,
    Kind,
    Pad,
    Reshape,
    Scalar,
    Slice,
    TensorType,
    Transpose,
)
from cpembed.graph.kinds.base import Array
from cpembed.ir.dtypes import is_integer
from cpembed.ir.index import row_major_strides

Scaling = dict[str, Callable[[Array, Array], str]]
"""Rewriters of products with constant weights, by the product's result: each emits the product
again with its channels scaled by one vector and shifted by another."""


_LARGEST_WRAP = 1 << 20
"""Maximum number of elements of circular padding, each of which has an index in a constant."""


@dataclass(frozen=True)
class Emitter(ABC):
    """One operator of a model while it is written in kinds of the graph.

    ``scaling`` holds the products that a later batch normalization may absorb.
    """

    builder: Builder
    scaling: Scaling

    @abstractmethod
    def emit_all(self, kind: Kind, *inputs: str) -> tuple[str, ...]:
        """Add an operator and return the tensors that it computes."""

    @abstractmethod
    def tensor(self, value: Array | Sequence[Any] | float, dtype: str | None = None) -> str:
        """Add a constant."""

    @abstractmethod
    def reject(self, reason: str) -> NoReturn:
        """Raise :class:`ModelError`; the reason says what is wrong and the remedy."""
        raise NotImplementedError

    @abstractmethod
    def inside(self, builder: Builder) -> Self:
        """Return an emitter that writes to the body of a loop."""

    def emit(self, kind: Kind, *inputs: str) -> str:
        """Add an operator of one result."""
        (output,) = self.emit_all(kind, *inputs)
        return output

    def type_of(self, tensor: str) -> TensorType:
        return self.builder.types[tensor]

    def shape(self, tensor: str) -> tuple[int, ...]:
        return self.builder.types[tensor].shape

    def dtype(self, tensor: str) -> str:
        return self.builder.types[tensor].dtype

    def elementwise(self, expression: Scalar, *inputs: str, dtype: str | None = None) -> str:
        """Add an expression of inputs that broadcast, by default in the type of the first."""
        return self.emit(Elementwise(expression, dtype or self.dtype(inputs[0])), *inputs)

    def reshaped(self, tensor: str, shape: Sequence[int]) -> str:
        shape = tuple(int(size) for size in shape)
        return tensor if shape == self.shape(tensor) else self.emit(Reshape(shape), tensor)

    def transposed(self, tensor: str, order: Sequence[int]) -> str:
        order = tuple(order)
        return tensor if order == tuple(range(len(order))) else self.emit(Transpose(order), tensor)

    def moved(self, tensor: str, source: int, target: int) -> str:
        """Move an axis to another place; each is counted from the front, or from the end."""
        order = [*range(len(self.shape(tensor)))]
        target %= len(order)
        order.insert(target, order.pop(source))
        return self.transposed(tensor, order)

    def windows(self, x: str, axis: int, size: int, step: int) -> str:
        """Gather the windows of an axis: an axis of them and one of their elements replace it."""
        starts = np.arange((self.shape(x)[axis] - size) // step + 1) * step
        return self.emit(Gather(axis), x, self.tensor(starts[:, None] + np.arange(size)))

    def expanded(self, tensor: str, shape: Sequence[int]) -> str:
        shape = tuple(shape)
        return tensor if shape == self.shape(tensor) else self.emit(Expand(shape), tensor)

    def part(self, tensor: str, axis: int, start: int, stop: int, step: int = 1) -> str:
        """Slice one axis to the indices from ``start`` to before ``stop``."""
        shape = self.shape(tensor)
        if (start, stop, step) == (0, shape[axis], 1):
            return tensor
        starts, stops, steps = [0] * len(shape), [*shape], [1] * len(shape)
        starts[axis], stops[axis], steps[axis] = start, stop, step
        return self.emit(Slice(tuple(starts), tuple(stops), tuple(steps)), tensor)

    def cast(self, tensor: str, dtype: str) -> str:
        """Convert to another element type; floats become integers by truncation."""
        current = self.dtype(tensor)
        if current == dtype:
            return tensor
        # Any number but 0 is true, also one that truncation would make 0.
        if dtype == "bool":
            expression = differ(X, 0)
        else:
            expression = truncated(X) if is_integer(dtype) and not is_integer(current) else X
        return self.elementwise(expression, tensor, dtype=dtype)

    def channels(self, vector: str, rank: int) -> str:
        """Reshape a vector [c] to [c, 1, …], which broadcasts over images [n, c, …] of a rank."""
        (size,) = self.shape(vector) or (1,)
        return self.reshaped(vector, (size, *(1,) * (rank - 2)))

    def padded(
        self,
        x: str,
        before: Sequence[int],
        after: Sequence[int],
        mode: str = "constant",
        value: float = 0,
    ) -> str:
        """Pad a tensor, or crop it where a width is negative.

        Parameters
        ----------
        x : str
            The tensor.
        before, after : sequence of int
            Number of elements at both ends of each axis.
        mode : str
            A mode of :class:`Pad`, or ``wrap`` for the elements at the other end.
        value : float
            Value of the padding in the mode ``constant``.

        Raises
        ------
        WorkloadError
            For a reflection of more elements than there are, and for padding of no elements.
        """
        # What is cropped must not be there to be reflected or repeated.
        for axis, (low, high) in enumerate(zip(before, after, strict=True)):
            x = self.part(x, axis, max(0, -low), self.shape(x)[axis] - max(0, -high))
        before, after = (tuple(max(0, n) for n in widths) for widths in (before, after))
        if not any((*before, *after)):
            return x
        sizes = self.shape(x)
        widths = list(zip(sizes, before, after, strict=True))
        if mode != "constant" and any((b or a) and not size for size, b, a in widths):
            raise WorkloadError(f"{mode} padding of {self.type_of(x)}, which has no elements")
        if mode == "wrap":
            return self._wrapped(x, before, after)
        if mode == "reflect" and any(max(b, a) >= size for size, b, a in widths if b or a):
            raise WorkloadError(f"a reflection of more than {list(sizes)} has")
        if self.dtype(x).startswith(("int", "uint", "bool")):
            # Models give the value as a float, whatever the type of the tensor.
            value = int(value)
        return self.emit(Pad(before, after, value, mode), x)

    def _wrapped(self, x: str, before: Sequence[int], after: Sequence[int]) -> str:
        if max((*before, *after)) > _LARGEST_WRAP:
            raise WorkloadError("padding is below a million")
        for axis, (low, high) in enumerate(zip(before, after, strict=True)):
            if low or high:
                size = self.shape(x)[axis]
                x = self.emit(Gather(axis), x, self.tensor(np.arange(-low, size + high) % size))
        return x

    def repeated(self, x: str, counts: Sequence[int]) -> str:
        """Repeat the axes as ``numpy.tile`` does; the counts are aligned with the last axes."""
        shape = self.shape(x)
        rank = max(len(counts), len(shape))
        shape = (*(1,) * (rank - len(shape)), *shape)
        counts = (*(1,) * (rank - len(counts)), *counts)
        # Each axis gets one of length 1 before it, which is expanded to the count.
        x = self.reshaped(x, [size for extent in shape for size in (1, extent)])
        x = self.expanded(x, [size for pair in zip(counts, shape, strict=True) for size in pair])
        return self.reshaped(x, [count * size for count, size in zip(counts, shape, strict=True)])

    def joined(self, tensors: Sequence[str], axis: int) -> str:
        """Concatenate tensors along an axis; a single one is returned as it is."""
        return tensors[0] if len(tensors) == 1 else self.emit(Concat(axis), *tensors)

    def blocks_to_pixels(self, x: str, block: int, *, blocks_first: bool = False) -> str:
        """Rearrange channels into blocks of pixels.

        Parameters
        ----------
        x : str
            Tensor [*lead, c * block², h, w].
        block : int
            Pixels of a block along both image axes.
        blocks_first : bool
            Whether the channels are ordered by their pixel of the block first.

        Returns
        -------
        str
            Tensor [*lead, c, h * block, w * block].
        """
        # Channels are split into a channel and the two coordinates in a block, which then follow
        # the coordinates of the block.
        *lead, c, h, w = self.shape(x)
        n, c = len(lead), c // block**2
        if blocks_first:
            parts, order = (block, block, c, h, w), (n + 2, n + 3, n, n + 4, n + 1)
        else:
            parts, order = (c, block, block, h, w), (n, n + 3, n + 1, n + 4, n + 2)
        x = self.transposed(self.reshaped(x, (*lead, *parts)), (*range(n), *order))
        return self.reshaped(x, (*lead, c, h * block, w * block))

    def pixels_to_blocks(self, x: str, block: int, *, blocks_first: bool = False) -> str:
        """Rearrange blocks of pixels into channels: the inverse of :meth:`blocks_to_pixels`."""
        *lead, c, h, w = self.shape(x)
        n = len(lead)
        order = (n + 2, n + 4, n, n + 1, n + 3) if blocks_first else (n, n + 2, n + 4, n + 1, n + 3)
        x = self.reshaped(x, (*lead, c, h // block, block, w // block, block))
        x = self.transposed(x, (*range(n), *order))
        return self.reshaped(x, (*lead, c * block**2, h // block, w // block))

    def check_indices(self, index: str, size: int) -> None:
        """Check constant indices of an axis of ``size`` elements; negative ones count from the end.

        Raises :class:`WorkloadError` for one beyond the axis.
        """
        value = self.builder.value(index)
        if value is not None and value.size and not -size <= value.min() <= value.max() < size:
            raise WorkloadError(f"indices from {value.min()} to {value.max()} of an axis of {size}")

    def from_front(self, index: str, size: int) -> str:
        """Convert indices of an axis of ``size`` elements to int64, all counted from the front."""
        index64 = self.cast(index, "int64")
        return self.elementwise(where(less(X, 0), add(X, size), X), index64)

    def flat_gather(self, x: str, places: str) -> str:
        """Gather elements by their numbers in row-major order, in the shape of ``places``."""
        return self.emit(Gather(0), self.reshaped(x, (math.prod(self.shape(x)),)), places)

    def gathered_elements(self, x: str, index: str, axis: int) -> str:
        """Gather along one axis as ``numpy.take_along_axis`` does.

        Raises :class:`WorkloadError` for indices of another rank or beyond the axis.
        """
        shape, index_shape = self.shape(x), self.shape(index)
        if len(index_shape) != len(shape):
            raise WorkloadError(f"indices {list(index_shape)} of a tensor {list(shape)}")
        self.check_indices(index, shape[axis])
        # What the other axes add to an element's number is known now.
        rest = numbers_beside(axis, index_shape, shape)
        index = self.from_front(index, shape[axis])
        number = add(mul(X, row_major_strides(shape)[axis]), Y)
        places = self.elementwise(number, index, self.tensor(rest))
        return self.flat_gather(x, places)


def numbers_beside(axis: int, index_shape: Sequence[int], shape: Sequence[int]) -> Array:
    """Return what the coordinates beside an axis add to an element's row-major number.

    Parameters
    ----------
    axis : int
        Axis of the indices.
    index_shape, shape : sequence of int
        Shape of the indices, which is that of the result, and of the indexed tensor.
    """
    numbers = np.zeros(index_shape, np.int64)
    for k, coordinates in enumerate(np.indices(index_shape, sparse=True)):
        if k != axis:
            numbers += coordinates * row_major_strides(shape)[k]
    return numbers
