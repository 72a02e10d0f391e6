"""Explicit method: every window becomes a row of a matrix (im2col), then one product follows.

Chellapilla, Puri and Simard, "High performance convolutional neural networks for document
processing" (2006). For any convolution: strides, dilations, groups, any number of windows.

>>> import numpy as np
>>> from cpembed.ir.reference import reference
>>> from cpembed.workloads.convolutions import conv2d
>>> layer = conv2d(n=1, c=3, h=6, w=7, k=4, r=3, s=3, pad=1, stride=2)
>>> method = explicit(layer)
>>> str(method.product)
'M[k, x] += (U[k, c] * V[c, x])'
>>> I = np.arange(126, dtype=np.int8).reshape(1, 3, 6, 7)
>>> W = np.ones((4, 3, 3, 3), np.int8)
>>> O = method.computed({"I": I, "W": W}, lambda v, u: u.astype(np.int32) @ v)
>>> bool((O == reference(layer, {"I": I, "W": W})).all())
True
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np

from cpembed.ir.computation import Computation
from cpembed.transform.methods.convolution import (
    Array,
    Convolution,
    Orders,
    Rewritten,
    Window,
    as_convolution,
    product,
    with_zeros,
)


@dataclass(frozen=True)
class Im2col(Rewritten):
    """Convolution as a product of matrices, with an index c over taps and channels.

    With channels last, V is [g, x, c] with x over samples and outputs, and c over taps, then
    channels. Else V is [g, n, c, x] with c over channels, then taps, so that weights and output
    stay as they are. Indices of one group or one sample are left out.
    """

    convolution: Convolution
    product: Computation
    orders: Orders

    @property
    def name(self) -> str:
        return "explicit"

    def image_part(self, image: Array) -> Array:
        conv = self.convolution
        aligned = conv.image_array(image)
        taps = itertools.product(*(range(window.taps) for window in conv.windows))
        rows: list[Array] = []
        for tap in taps:
            row = aligned
            for axis, (window, number) in enumerate(zip(conv.windows, tap, strict=True)):
                row = _read(row, 3 + axis, window, number)
            rows.append(row)
        # The rows are [taps, g, n, c, outputs].
        g, n, c = rows[0].shape[:3]
        stacked = np.stack(rows).reshape(len(rows), g, n, c, -1)
        if self.orders.last:
            v = stacked.transpose(1, 2, 4, 0, 3)
        else:
            v = stacked.transpose(1, 2, 3, 0, 4)
        return v.reshape(self.product.operand("V").shape)

    def weights_part(self, weights: Array) -> Array:
        aligned = self.convolution.weights_array(weights)
        g, k, c = aligned.shape[:3]
        rows = aligned.reshape(g, k, c, -1)
        if self.orders.last:
            rows = rows.transpose(0, 1, 3, 2)
        u = self.orders.weights(rows.reshape(g, k, -1))
        return u.reshape(self.product.operand("U").shape)

    def output_part(self, result: Array) -> Array:
        conv = self.convolution
        g, n, k = (conv.size(part) for part in (conv.groups, conv.samples, conv.filters))
        if self.orders.last:
            moved = result.reshape(g, n, -1, k).swapaxes(2, 3)
        else:
            moved = result.reshape(g, n, k, -1)
        return conv.output_array(moved.reshape(g, n, k, *(w.outputs for w in conv.windows)))


def explicit(workload: Computation, *, channels_last: bool | None = None) -> Im2col:
    """Return the explicit method; ``channels_last`` defaults to the order of the image.

    Raises
    ------
    WorkloadError
        The workload is no convolution.
    """
    conv = as_convolution(workload)
    orders = Orders(conv.channels_last if channels_last is None else channels_last)
    outputs = math.prod(window.outputs for window in conv.windows)
    taps = math.prod(window.taps for window in conv.windows)
    groups, samples = conv.size(conv.groups), conv.size(conv.samples)
    group = "g," if groups > 1 else ""
    sample = "n," if samples > 1 and not orders.last else ""
    extents = {
        "g": groups,
        "n": samples,
        "x": outputs * (samples if orders.last else 1),
        "k": conv.size(conv.filters),
        "c": conv.size(conv.channels) * taps,
    }
    types = {"V": conv.image.dtype, "U": conv.weights.dtype, "M": conv.output.dtype}
    statement = orders.statement(group + sample, group)
    return Im2col(conv, product(statement, extents, f"{workload.name}_im2col", types), orders)


def _read(image: Array, axis: int, window: Window, tap: int) -> Array:
    """Return the elements that the outputs of a window read under a tap."""
    first = window.first + window.dilation * tap
    reach = window.stride * (window.outputs - 1) + 1
    padded = with_zeros(image, axis, -first, reach)
    return padded[(slice(None),) * axis + (slice(None, None, window.stride),)]
