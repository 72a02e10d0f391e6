"""Functions of whole rows of a tensor: sums, means, softmax, layer normalisation. In float64,
rounded once: kernels are compared within a tolerance."""

from __future__ import annotations

import itertools
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


@dataclass(frozen=True)
class Pool(Kind):
    """``what``: ``max`` or ``mean``. ``window``, ``strides``, ``before``, ``after`` (padding) and
    ``dilation`` have an element for each of the last axes. Padding is no part of a maximum; of a
    mean it is where ``counts_padding``, as zeros. A mean of integers is computed in float32 and
    rounded; of a quantized tensor, whose 0 is ``zero_point``, padding counts as that. With a
    ``ratio`` of scales (of the input's to the result's) the mean is stored anew, rounded once:
    ``saturate(round((sum - count * zero_point) * (ratio / count)) + stored_zero_point)``, the
    quotient as one float32."""

    what: str
    window: tuple[int, ...]
    strides: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    dilation: tuple[int, ...]
    counts_padding: bool = False
    zero_point: int = 0
    ratio: float | None = None
    stored_zero_point: int = 0

    def types(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        shape, axes = inputs[0].shape, len(self.window)
        if len(shape) < axes:
            raise WorkloadError(f"a window of {axes} axes over a tensor of {len(shape)}")
        sizes = [
            (size + before + after - (dilation * (window - 1) + 1)) // stride + 1
            for size, window, stride, before, after, dilation in zip(
                shape[-axes:], self.window, self.strides, self.before, self.after, self.dilation,
                strict=True,
            )
        ]  # fmt: skip
        if min(sizes) < 1:
            raise WorkloadError(f"a window of {list(self.window)} does not fit {list(shape)}")
        return (TensorType((*shape[:-axes], *sizes), inputs[0].dtype),)

    @np.errstate(all="ignore")
    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        (x,) = inputs
        (result,) = self.types([TensorType.of(x)])
        axes = len(self.window)
        lead = [(0, 0)] * (x.ndim - axes)
        margins = [*lead, *zip(self.before, self.after, strict=True)]
        is_max = self.what == "max"
        least = np.iinfo(x.dtype).min if x.dtype.kind in "iu" else -np.inf
        fill = least if is_max else self.zero_point
        padded = np.pad(x, margins, constant_values=fill)
        inside = np.pad(np.ones(x.shape[-axes:], np.float64), margins[-axes:])
        total = np.full(result.shape, least if is_max else 0, x.dtype if is_max else np.float64)
        count = np.zeros(result.shape[-axes:], np.float64)
        for taps in itertools.product(*map(range, self.window)):
            cut = tuple(
                slice(tap * dilation, tap * dilation + (size - 1) * stride + 1, stride)
                for tap, dilation, size, stride in zip(
                    taps, self.dilation, result.shape[-axes:], self.strides, strict=True
                )
            )
            if is_max:
                total = np.maximum(total, padded[(..., *cut)])
            else:
                here = inside[cut]
                part = padded[(..., *cut)].astype(np.float64)
                total += part if self.counts_padding else part * here
                count += here
        if is_max:
            return (total,)
        count = np.full(count.shape, math.prod(self.window)) if self.counts_padding else count
        if x.dtype.kind == "f":
            return ((total / count).astype(x.dtype),)
        if self.ratio is not None:
            centred = (total - count * self.zero_point).astype(np.float32)
            scaled = np.rint(centred * (self.ratio / count).astype(np.float32))
            limits = np.iinfo(x.dtype)
            stored = np.clip(scaled + self.stored_zero_point, limits.min, limits.max)
            return (stored.astype(x.dtype),)
        mean = total.astype(np.float32) * (np.float32(1) / count.astype(np.float32))
        return (np.rint(mean).astype(x.dtype),)

    @property
    def label(self) -> str:
        return f"{self.what} pool"
