"""Functions of whole rows of a tensor: sums, means, softmax, layer normalisation. In float64,
rounded once: kernels are compared within a tolerance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cpembed.errors import WorkloadError
from cpembed.graph.kinds.base import Array, Kind, TensorType, axis_of


def is_float(array: Array) -> bool:
    """Whether elements are floats, bfloat16 included."""
    return array.dtype.kind == "f" or array.dtype.name == "bfloat16"


def least_of(dtype: np.dtype[Any]) -> float | int:
    """What is no larger than any number of a type."""
    if dtype == np.bool_:
        return False
    return int(np.iinfo(dtype).min) if dtype.kind in "iu" else -math.inf


def largest_of(dtype: np.dtype[Any]) -> float | int:
    """What is no smaller than any number of a type."""
    if dtype == np.bool_:
        return True
    return int(np.iinfo(dtype).max) if dtype.kind in "iu" else math.inf


@dataclass(frozen=True)
class Reduce(Kind):
    """``what``: sum, mean, max, min or prod over ``axes``, which stay with extent 1 where ``keeps``
    says so; argmax or argmin: along one axis the index (int64) of the first such element.

    Of no elements the maximum is the least number of the type (-inf) and the minimum the largest,
    the mean of floats is NaN, of integers 0."""

    what: str
    axes: tuple[int, ...]
    keeps: bool

    def types(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        shape = inputs[0].shape
        axes = {axis_of(axis, len(shape)) for axis in self.axes}
        kept = [
            1 if k in axes else size for k, size in enumerate(shape) if self.keeps or k not in axes
        ]
        if self.is_index and len(axes) != 1:
            raise WorkloadError(f"{self.what} along {len(axes)} axes: it is along one")
        if self.is_index and not inputs[0].elements and math.prod(kept):
            raise WorkloadError(f"{self.what} of {inputs[0]}, which has no elements")
        return (TensorType(tuple(kept), "int64" if self.is_index else inputs[0].dtype),)

    @property
    def is_index(self) -> bool:
        return self.what in ("argmax", "argmin")

    @np.errstate(all="ignore")
    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        (x,) = inputs
        if self.is_index:
            if not x.size:
                (kind,) = self.types([TensorType.of(x)])
                return (np.zeros(kind.shape, np.int64),)
            index = np.argmax if self.what == "argmax" else np.argmin
            return (np.asarray(index(x, axis=self.axes[0], keepdims=self.keeps), np.int64),)
        wide = x.astype(np.float64) if is_float(x) or self.what == "mean" else x
        if self.what == "mean":
            # By the sum: numpy warns of a mean of no elements.
            total = np.sum(wide, axis=self.axes, keepdims=self.keeps)
            count = math.prod(x.shape[axis] for axis in self.axes)
            value = np.divide(total, count)
            if x.dtype.kind in "iu":
                value = np.rint(value) if count else np.zeros_like(value)
        elif self.what in ("max", "min"):
            function = np.max if self.what == "max" else np.min
            start = least_of(wide.dtype) if self.what == "max" else largest_of(wide.dtype)
            value = function(wide, axis=self.axes, keepdims=self.keeps, initial=start)
        else:
            function = np.sum if self.what == "sum" else np.prod
            value = function(wide, axis=self.axes, keepdims=self.keeps)
        return (np.asarray(value).astype(x.dtype),)

    @property
    def label(self) -> str:
        return f"reduce {self.what}"


@dataclass(frozen=True)
class Softmax(Kind):
    """``exp(x - max) / sum(exp(x - max))`` along an axis; ``log``: its logarithm."""

    axis: int
    log: bool = False

    def types(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        axis_of(self.axis, len(inputs[0].shape))
        return (inputs[0],)

    @np.errstate(all="ignore")
    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        (x,) = inputs
        if not x.size:
            return (x,)
        wide = x.astype(np.float64)
        shifted = wide - wide.max(axis=self.axis, keepdims=True)
        total = np.exp(shifted).sum(axis=self.axis, keepdims=True)
        value = shifted - np.log(total) if self.log else np.exp(shifted) / total
        return (value.astype(x.dtype),)


@dataclass(frozen=True)
class LayerNorm(Kind):
    """``(x - mean) / sqrt(variance + epsilon) * scale + bias`` over the axes from ``axis`` on; the
    inputs are x, the scale and the bias, of those axes' shape."""

    axis: int
    epsilon: float

    def types(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        axis_of(self.axis, len(inputs[0].shape))
        return (inputs[0],)

    @np.errstate(all="ignore")
    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        if not inputs[0].size:
            return (inputs[0],)
        x, scale, bias = (i.astype(np.float64) for i in inputs)
        axes = tuple(range(axis_of(self.axis, x.ndim), x.ndim))
        centred = x - x.mean(axis=axes, keepdims=True)
        variance = (centred**2).mean(axis=axes, keepdims=True)
        value = centred / np.sqrt(variance + self.epsilon) * scale + bias
        return (value.astype(inputs[0].dtype),)

    @property
    def label(self) -> str:
        return "layer norm"
