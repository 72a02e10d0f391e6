"""What every front end writes a model's operators with: kinds that are added to a graph in the
making, and those that are used so often that they have a method."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cpembed.frontends.builder import Builder
from cpembed.frontends.expressions import X, apply, truncated
from cpembed.graph.kinds import (
    Elementwise,
    Expand,
    Kind,
    Reshape,
    Scalar,
    Slice,
    TensorType,
    Transpose,
)
from cpembed.graph.kinds.base import Array

Scaling = dict[str, Callable[[Array, Array], str]]
"""By the result of a product with constant weights: the same product with its channels times a
vector, plus a vector."""


@dataclass(frozen=True)
class Emitter(ABC):
    """One operator of a model, as the functions that write it in kinds see it. ``builder``: of the
    graph; ``scaling``: what operators leave for a batch normalization that follows."""

    builder: Builder
    scaling: Scaling

    @abstractmethod
    def emit_all(self, kind: Kind, *inputs: str) -> tuple[str, ...]:
        """The tensors that a new operator computes."""

    @abstractmethod
    def tensor(self, value: Array | Sequence[Any] | float, dtype: str | None = None) -> str:
        """A new constant."""

    def emit(self, kind: Kind, *inputs: str) -> str:
        """The only tensor that a new operator computes."""
        (output,) = self.emit_all(kind, *inputs)
        return output

    def type_of(self, tensor: str) -> TensorType:
        return self.builder.types[tensor]

    def shape(self, tensor: str) -> tuple[int, ...]:
        return self.builder.types[tensor].shape

    def dtype(self, tensor: str) -> str:
        return self.builder.types[tensor].dtype

    def elementwise(self, expression: Scalar, *inputs: str, dtype: str | None = None) -> str:
        """An expression of inputs; the result has the type of the first where none is named."""
        return self.emit(Elementwise(expression, dtype or self.dtype(inputs[0])), *inputs)

    def reshaped(self, tensor: str, shape: Sequence[int]) -> str:
        shape = tuple(int(size) for size in shape)
        return tensor if shape == self.shape(tensor) else self.emit(Reshape(shape), tensor)

    def transposed(self, tensor: str, order: Sequence[int]) -> str:
        order = tuple(order)
        return tensor if order == tuple(range(len(order))) else self.emit(Transpose(order), tensor)

    def expanded(self, tensor: str, shape: Sequence[int]) -> str:
        shape = tuple(shape)
        return tensor if shape == self.shape(tensor) else self.emit(Expand(shape), tensor)

    def part(self, tensor: str, axis: int, start: int, stop: int, step: int = 1) -> str:
        """Of one axis the elements from ``start`` to before ``stop``."""
        shape = self.shape(tensor)
        if (start, stop, step) == (0, shape[axis], 1):
            return tensor
        starts, stops, steps = [0] * len(shape), [*shape], [1] * len(shape)
        starts[axis], stops[axis], steps[axis] = start, stop, step
        return self.emit(Slice(tuple(starts), tuple(stops), tuple(steps)), tensor)

    def cast(self, tensor: str, dtype: str) -> str:
        """To another element type; floats to integers towards zero."""
        have = self.dtype(tensor)
        if have == dtype:
            return tensor
        if dtype == "bool":
            expression = apply("not", apply("equal", X, 0))
        else:
            expression = truncated(X) if is_float(have) and not is_float(dtype) else X
        return self.elementwise(expression, tensor, dtype=dtype)

    def channels(self, vector: str, rank: int) -> str:
        """A vector of an element a channel, of shape [c, 1 …], which broadcasts over images of
        ``rank`` axes, [n, c, …]."""
        (size,) = self.shape(vector) or (1,)
        return self.reshaped(vector, (size, *(1,) * (rank - 2)))


def is_float(dtype: str) -> bool:
    return dtype == "bfloat16" or np.dtype(dtype).kind == "f"
