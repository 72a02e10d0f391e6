"""Operators over several elements: reductions, softmax, layer normalization, pooling.

Floats are computed in float64 and rounded once, so that kernels can be compared within a tolerance.
"""

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
    """True for floating-point elements, bfloat16 included."""
    return array.dtype.kind == "f" or array.dtype.name == "bfloat16"


def value_range(dtype: np.dtype[Any]) -> tuple[float | int, float | int]:
    """Return the least and the largest value of a type, infinities included."""
    if dtype == np.bool_:
        return False, True
    if dtype.kind not in "iu":
        return -math.inf, math.inf
    return int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)


@dataclass(frozen=True)
class Reduce(Kind):
    """Reduction over axes.

    Attributes
    ----------
    operation : str
        ``sum``, ``mean``, ``max``, ``min`` or ``prod``; ``argmax`` and ``argmin`` return the index
        (int64) of the first extreme element along one axis.
    keeps : bool
        True if reduced axes stay with extent 1.

    Notes
    -----
    The maximum of no elements is the least number of the type (-inf), the minimum the largest one,
    and the mean NaN (0 for integers).
    """

    operation: str
    axes: tuple[int, ...]
    keeps: bool

    def types(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        shape = inputs[0].shape
        axes = {axis_of(axis, len(shape)) for axis in self.axes}
        shape_after = [
            1 if k in axes else size for k, size in enumerate(shape) if self.keeps or k not in axes
        ]
        if self.is_index and len(axes) != 1:
            raise WorkloadError(f"{self.operation} along {len(axes)} axes: it is along one")
        if self.is_index and not inputs[0].elements and math.prod(shape_after):
            raise WorkloadError(f"{self.operation} of {inputs[0]}, which has no elements")
        return (TensorType(tuple(shape_after), "int64" if self.is_index else inputs[0].dtype),)

    @property
    def is_index(self) -> bool:
        """True if results are indices of elements."""
        return self.operation in ("argmax", "argmin")

    @np.errstate(all="ignore")
    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        (x,) = inputs
        if self.is_index:
            if not x.size:
                (result,) = self.types([TensorType.of_array(x)])
                return (np.zeros(result.shape, np.int64),)
            index = np.argmax if self.operation == "argmax" else np.argmin
            return (np.asarray(index(x, axis=self.axes[0], keepdims=self.keeps), np.int64),)
        wide = x.astype(np.float64) if is_float(x) or self.operation == "mean" else x
        if self.operation == "mean":
            # numpy's mean warns if there are no elements.
            total = np.sum(wide, axis=self.axes, keepdims=self.keeps)
            count = math.prod(x.shape[axis] for axis in self.axes)
            value = np.divide(total, count)
            if x.dtype.kind in "iu":
                value = np.rint(value) if count else np.zeros_like(value)
        elif self.operation in ("max", "min"):
            lowest, highest = value_range(wide.dtype)
            function, start = (np.max, lowest) if self.operation == "max" else (np.min, highest)
            value = function(wide, axis=self.axes, keepdims=self.keeps, initial=start)
        else:
            function = np.sum if self.operation == "sum" else np.prod
            value = function(wide, axis=self.axes, keepdims=self.keeps)
        return (np.asarray(value).astype(x.dtype),)

    @property
    def label(self) -> str:
        return f"reduce {self.operation}"


@dataclass(frozen=True)
class Softmax(Kind):
    """Softmax ``exp(x - max) / sum(exp(x - max))`` along an axis, or its logarithm if ``log``."""

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
    """Normalization ``(x - mean) / sqrt(variance + epsilon) * scale + bias`` from ``axis`` on.

    The inputs are x, scale and bias; the latter two have the shape of the normalized axes.

    Attributes
    ----------
    axis : int
    epsilon : float
    centres : bool
        False for a root mean square normalization: the mean counts as 0.
    """

    axis: int
    epsilon: float
    centres: bool = True

    def types(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        axis_of(self.axis, len(inputs[0].shape))
        return (inputs[0],)

    @np.errstate(all="ignore")
    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        if not inputs[0].size:
            return (inputs[0],)
        x, scale, bias = (i.astype(np.float64) for i in inputs)
        axes = tuple(range(axis_of(self.axis, x.ndim), x.ndim))
        centred = x - x.mean(axis=axes, keepdims=True) if self.centres else x
        variance = (centred**2).mean(axis=axes, keepdims=True)
        value = centred / np.sqrt(variance + self.epsilon) * scale + bias
        return (value.astype(inputs[0].dtype),)

    @property
    def label(self) -> str:
        return "layer norm" if self.centres else "rms norm"


@dataclass(frozen=True)
class Pool(Kind):
    """Maximum or mean of a window that slides over the last axes.

    Attributes
    ----------
    operation : str
        ``max`` or ``mean``.
    window, strides, before, after, dilation : tuple of int
        One element for each of the last axes; ``before`` and ``after`` are the padding.
    counts_padding : bool
        True if padding counts as zeros in a mean; it never takes part in a maximum.
    zero_point : int
        Integer that stands for 0 in a quantized tensor, and the value of its padding.
    ratio : float, optional
        Input scale divided by result scale. The mean is then requantized, rounded once:
        ``saturate(round((sum - count * zero_point) * (ratio / count)) + stored_zero_point)``, with
        the quotient as one float32. Without it, a mean of integers is computed in float32 and
        rounded.
    stored_zero_point : int
        Zero point of the requantized result.
    """

    operation: str
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
            raise WorkloadError(
                f"a window of {list(self.window)} does not fit {list(shape)}: give the network "
                "larger inputs"
            )
        return (TensorType((*shape[:-axes], *sizes), inputs[0].dtype),)

    @np.errstate(all="ignore")
    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        (x,) = inputs
        (result,) = self.types([TensorType.of_array(x)])
        axes = len(self.window)
        lead = [(0, 0)] * (x.ndim - axes)
        margins = [*lead, *zip(self.before, self.after, strict=True)]
        is_max = self.operation == "max"
        least = np.iinfo(x.dtype).min if x.dtype.kind in "iu" else -np.inf
        # Padding is never the maximum, and stands for 0 in a mean.
        fill = least if is_max else self.zero_point
        padded = np.pad(x, margins, constant_values=fill)
        inside = np.pad(np.ones(x.shape[-axes:], np.float64), margins[-axes:])
        total = np.full(result.shape, least if is_max else 0, x.dtype if is_max else np.float64)
        count = np.zeros(result.shape[-axes:], np.float64)
        # One step per tap of the window, over all windows at once: the elements that it reads are
        # a strided slice of the padded input.
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
                in_image = inside[cut]
                values = padded[(..., *cut)].astype(np.float64)
                total += values if self.counts_padding else values * in_image
                count += in_image
        if is_max:
            return (total,)
        count = np.full(count.shape, math.prod(self.window)) if self.counts_padding else count
        # Sums of integers are exact so far; the rest is rounded as kernels round it.
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
        return f"{self.operation} pool"
