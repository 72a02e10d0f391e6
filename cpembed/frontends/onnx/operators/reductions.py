"""Functions of rows: sums and their like, softmax, and normalizations."""

from __future__ import annotations

import math

import numpy as np

from cpembed.frontends.expressions import X, Y, add, apply, div, mul, sub, where
from cpembed.frontends.onnx.operators.pooling import whole_image
from cpembed.frontends.onnx.site import Site, Translation
from cpembed.frontends.rows import group_normalized
from cpembed.frontends.rows import log_sum_exp as log_of_sum
from cpembed.graph.kinds import Gather, LayerNorm, Reduce, Scalar, Softmax
from cpembed.graph.kinds.base import axis_of


def _axes(site: Site) -> tuple[int, ...]:
    """Those that are reduced: an attribute in older versions, later an input; all by default."""
    axes = site.list_or_input("axes", 1)
    if not axes:
        return () if site.flag("noop_with_empty_axes") else tuple(range(site.rank()))
    return tuple(sorted({axis_of(axis, site.rank()) for axis in axes}))


def reduced(what: str, before: Scalar | None = None, after: Scalar | None = None) -> Translation:
    """A reduction of an expression, and an expression of its result."""

    def translate(site: Site) -> str:
        x, axes, keeps = site.input(), _axes(site), site.flag("keepdims", True)
        dtype = site.type().dtype
        if before is not None:
            x = site.elementwise(before, x)
        if dtype == "bool":
            x = site.cast(x, "uint8")
        images = axes == tuple(range(2, site.rank())) and site.rank() in (4, 5)
        if axes and what in ("mean", "max") and images and dtype == "float32":
            shape = site.type().shape[:2]
            x = whole_image(site, what, x)
            x = x if keeps else site.reshaped(x, shape)
        elif axes:
            x = site.emit(Reduce(what, axes, keeps), x)
        x = x if dtype != "bool" else site.cast(x, "bool")
        return x if after is None else site.elementwise(after, x)

    return translate


def log_sum_exp(site: Site) -> str:
    shape, axes, keeps = site.type().shape, _axes(site), site.flag("keepdims", True)
    kept = [1 if k in axes else size for k, size in enumerate(shape) if keeps or k not in axes]
    return log_of_sum(site, site.input(), axes, kept)


def index_of(what: str) -> Translation:
    def translate(site: Site) -> str:
        x, axis = site.input(), site.axis()
        keeps = site.flag("keepdims", True)
        if not site.flag("select_last_index"):
            return site.emit(Reduce(what, (axis,), keeps), x)
        size = site.type().shape[axis]
        places = np.arange(size)[::-1].copy()
        turned = site.emit(Gather(axis), x, site.tensor(places))
        index = site.emit(Reduce(what, (axis,), keeps), turned)
        return site.elementwise(sub(size - 1, X), index)

    return translate


def softmax(log: bool) -> Translation:
    def translate(site: Site) -> str:
        if site.version >= 13:
            return site.emit(Softmax(site.axis(-1), log), site.input())
        # Before, the axes from this one on were one.
        axis, shape = site.axis(1), site.type().shape
        rows = math.prod(shape[:axis]), math.prod(shape[axis:])
        if axis == len(shape) - 1:
            return site.emit(Softmax(axis, log), site.input())
        flat = site.reshaped(site.input(), rows)
        return site.reshaped(site.emit(Softmax(1, log), flat), shape)

    return translate


def layer_normalization(site: Site) -> list[str]:
    x, shape, dtype = site.input(0), site.type().shape, site.type().dtype
    axis = site.axis(-1)
    rows = shape[axis:]
    scale = site.expanded(_rows(site, site.input(1), len(rows)), rows)
    bias = site.optional(2)
    if bias is None:
        bias = site.tensor(np.zeros(rows), dtype)
    bias = site.expanded(_rows(site, bias, len(rows)), rows)
    epsilon = site.number("epsilon", 1e-5)
    result = site.emit(LayerNorm(axis, epsilon), x, scale, bias)
    if not any(site.wanted[1:]):
        return [result]
    axes = tuple(range(axis, len(shape)))
    mean = site.emit(Reduce("mean", axes, True), x)
    squared = mul(sub(X, Y), sub(X, Y))
    variance = site.emit(Reduce("mean", axes, True), site.elementwise(squared, x, mean))
    deviation = site.elementwise(div(1.0, apply("sqrt", add(X, epsilon))), variance)
    return [result, mean, deviation]


def _rows(site: Site, tensor: str, rank: int) -> str:
    """Without leading axes of size 1 that a tensor of ``rank`` axes does not have."""
    shape = site.shape(tensor)
    return site.reshaped(tensor, shape[max(0, len(shape) - rank) :])


def instance_normalization(site: Site) -> str:
    x, epsilon = site.input(0), site.number("epsilon", 1e-5)
    return group_normalized(site, x, site.type().shape[1], epsilon, site.input(1), site.input(2))


def group_normalization(site: Site) -> str:
    channels, groups = site.type().shape[1], site.whole("num_groups", 1)
    scale, bias = site.input(1), site.input(2)
    if site.shape(scale) == (groups,) and 0 < groups < channels:
        # Until version 21 a group has one factor.
        wide = (groups, channels // groups)
        scale, bias = (
            site.reshaped(site.expanded(site.reshaped(t, (groups, 1)), wide), (channels,))
            for t in (scale, bias)
        )
    return group_normalized(site, site.input(0), groups, site.number("epsilon", 1e-5), scale, bias)


def rms_normalization(site: Site) -> str:
    x, axes = site.input(0), tuple(range(site.axis(-1), site.rank()))
    squares = site.emit(Reduce("mean", axes, True), site.elementwise(mul(X, X), x))
    root = apply("sqrt", add(Y, site.number("epsilon", 1e-5)))
    return site.elementwise(mul(X, Y), site.elementwise(div(X, root), x, squares), site.input(1))


def mean_variance_normalization(site: Site) -> str:
    axes = [axis_of(axis, site.rank()) for axis in site.list_of("axes", (0, 2, 3)) or ()]
    x = site.input()
    mean = site.emit(Reduce("mean", tuple(axes), True), x)
    centred = site.elementwise(sub(X, Y), x, mean)
    variance = site.emit(Reduce("mean", tuple(axes), True), site.elementwise(mul(X, X), centred))
    return site.elementwise(div(X, add(apply("sqrt", Y), 1e-9)), centred, variance)


def lp_normalization(site: Site) -> str:
    axis, p = site.axis(-1), site.whole("p", 2)
    if p not in (1, 2):
        site.refuse(f"p={p} is not known: use 1 or 2")
    x = site.input()
    parts = site.elementwise(apply("abs", X) if p == 1 else mul(X, X), x)
    total = site.emit(Reduce("sum", (axis,), True), parts)
    norm = Y if p == 1 else apply("sqrt", Y)
    # A row of zeros stays one.
    return site.elementwise(where(apply("equal", Y, 0), 0, div(X, norm)), x, total)


TABLE: dict[str, Translation] = {
    "ReduceSum": reduced("sum"),
    "ReduceMean": reduced("mean"),
    "ReduceMax": reduced("max"),
    "ReduceMin": reduced("min"),
    "ReduceProd": reduced("prod"),
    "ReduceL1": reduced("sum", apply("abs", X)),
    "ReduceL2": reduced("sum", mul(X, X), apply("sqrt", X)),
    "ReduceSumSquare": reduced("sum", mul(X, X)),
    "ReduceLogSum": reduced("sum", None, apply("log", X)),
    "ReduceLogSumExp": log_sum_exp,
    "ArgMax": index_of("argmax"),
    "ArgMin": index_of("argmin"),
    "Softmax": softmax(False),
    "LogSoftmax": softmax(True),
    "LayerNormalization": layer_normalization,
    "InstanceNormalization": instance_normalization,
    "GroupNormalization": group_normalization,
    "RMSNormalization": rms_normalization,
    "SimplifiedLayerNormalization": rms_normalization,
    "MeanVarianceNormalization": mean_variance_normalization,
    "LpNormalization": lp_normalization,
}
