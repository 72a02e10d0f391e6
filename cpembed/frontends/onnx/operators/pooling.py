"""Pooling, and the normalization over neighbouring channels, which is written with it."""

from __future__ import annotations

import math

from cpembed.errors import WorkloadError
from cpembed.frontends.expressions import X, Y, add, apply, div, mul
from cpembed.frontends.onnx.operators.windows import window
from cpembed.frontends.onnx.site import Site, Translation
from cpembed.frontends.windows import Window, pooled
from cpembed.graph.kinds import Pool


def _taps(site: Site) -> tuple[int, ...]:
    taps = site.list_of("kernel_shape")
    if taps is None or len(taps) != site.rank() - 2:
        site.refuse("kernel_shape does not name a size for each image axis")
    return taps


def _moving(site: Site) -> Window:
    """The node's window, each of whose places has a pixel of the image."""
    moving = window(site, _taps(site), site.type().shape[2:])
    reaches = (moving.reach(axis) for axis in range(len(moving.taps)))
    if any(max(pads) >= r for r, *pads in zip(reaches, moving.before, moving.after, strict=True)):
        site.refuse("a window lies in the padding alone: pad less than a window's size")
    return moving


def max_pool(site: Site) -> str:
    if any(site.wanted[1:]):
        site.refuse("the indices of the maxima are asked for: export the model without them")
    moving = _moving(site)
    return pooled(site, "max", site.input(), moving, ceil_mode=site.flag("ceil_mode"))


def average_pool(site: Site) -> str:
    return averaged(site, site.input())


def averaged(site: Site, x: str) -> str:
    """Average pooling of a tensor by the node's attributes."""
    moving = _moving(site)
    ceil_mode, counts = site.flag("ceil_mode"), site.flag("count_include_pad")
    return pooled(site, "mean", x, moving, ceil_mode=ceil_mode, counts_padding=counts)


def global_pool(what: str) -> Translation:
    def translate(site: Site) -> str:
        return whole_image(site, what, site.input())

    return translate


def whole_image(site: Site, what: str, x: str) -> str:
    """The mean or maximum of each channel, as pooling with one window."""
    if len(site.shape(x)) < 3 or 0 in site.shape(x)[2:]:
        site.refuse(f"{site.type_of(x)} is no image: give at least three dimensions, and pixels")
    taps = site.shape(x)[2:]
    ones, zeros = (1,) * len(taps), (0,) * len(taps)
    return site.emit(Pool(what, taps, ones, zeros, zeros, ones), x)


def local_response(site: Site) -> str:
    """``x / (bias + alpha * mean of squares) ** beta`` over a window of channels, outside of which
    are zeros."""
    size = site.whole("size", 1)
    alpha, beta = site.number("alpha", 1e-4), site.number("beta", 0.75)
    bias, shape = site.number("bias", 1.0), site.type().shape
    if size < 1 or len(shape) < 2:
        raise WorkloadError(f"a window of {size} channels of {site.type()}")
    if 0 in shape:
        return site.input()
    rows = (shape[0], 1, shape[1], math.prod(shape[2:]))
    squares = site.reshaped(site.elementwise(mul(X, X), site.input()), rows)
    before = (size - 1) // 2
    pool = Pool("mean", (size, 1), (1, 1), (before, 0), (size - 1 - before, 0), (1, 1), True)
    means = site.reshaped(site.emit(pool, squares), shape)
    below = apply("pow", add(bias, mul(Y, alpha)), beta)
    return site.elementwise(div(X, below), site.input(), means)


TABLE: dict[str, Translation] = {
    "MaxPool": max_pool,
    "AveragePool": average_pool,
    "GlobalMaxPool": global_pool("max"),
    "GlobalAveragePool": global_pool("mean"),
    "LRN": local_response,
}
