"""Pooling: the largest or the mean of a window that moves over the last axes of a tensor."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cpembed.errors import WorkloadError
from cpembed.graph.kinds.base import Array, Kind, TensorType


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
