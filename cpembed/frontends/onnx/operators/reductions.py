"""Functions along axes: sums and their like, softmax, and normalizations."""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from cpembed.frontends.expressions import X, Y, Z, add, div, equal, mul, sub, where
from cpembed.frontends.onnx.call import Call, Translation
from cpembed.frontends.onnx.operators.products import pooled_image
from cpembed.graph.kinds import Gather, LayerNorm, Reduce, Scalar, Softmax
from cpembed.graph.kinds.base import axis_of
from cpembed.ir.scalars import apply


def _axes(call: Call) -> tuple[int, ...]:
    """Return the reduced axes: an attribute in older versions, later an input; all by default."""
    axes, nothing = call.list_or_input("axes", 1), call.flag("noop_with_empty_axes")
    if not axes:
        return () if nothing else tuple(range(call.rank()))
    return tuple(sorted({axis_of(axis, call.rank()) for axis in axes}))


def _reduced(
    call: Call, operation: str, before: Scalar | None = None, after: Scalar | None = None
) -> str:
    """Emit a reduction between expressions of its input and of its result."""
    x, axes, keeps = call.input(), _axes(call), call.flag("keepdims", True)
    shape, dtype = call.type().shape, call.type().dtype
    if before is not None:
        x = call.elementwise(before, x)
    if dtype == "bool":
        x = call.cast(x, "uint8")
    is_image = axes == tuple(range(2, len(shape))) and len(shape) in (4, 5)
    if axes and operation in ("mean", "max") and is_image and dtype == "float32":
        x = pooled_image(call, operation, x)
        x = x if keeps else call.reshaped(x, shape[:2])
    elif axes:
        x = call.emit(Reduce(operation, axes, keeps), x)
    x = x if dtype != "bool" else call.cast(x, "bool")
    return x if after is None else call.elementwise(after, x)


def _log_sum_exp(call: Call) -> str:
    shape, axes, keeps = call.type().shape, _axes(call), call.flag("keepdims", True)
    sizes = [1 if k in axes else size for k, size in enumerate(shape) if keeps or k not in axes]
    return call.log_sum_exp(call.input(), axes, sizes)


def _index_of(call: Call, operation: str) -> str:
    """Return the translation of ``argmax`` or ``argmin``."""
    x, axis = call.input(), call.axis()
    kind = Reduce(operation, (axis,), call.flag("keepdims", True))
    if not call.flag("select_last_index"):
        return call.emit(kind, x)
    size = call.type().shape[axis]
    # The first index of the reversed axis is the last one of the axis.
    turned = call.emit(Gather(axis), x, call.tensor(np.arange(size)[::-1].copy()))
    return call.elementwise(sub(size - 1, X), call.emit(kind, turned))


def _softmax(call: Call, log: bool) -> str:
    axis, shape = call.axis(-1 if call.version >= 13 else 1), call.type().shape
    if call.version >= 13 or axis == len(shape) - 1:
        return call.emit(Softmax(axis, log), call.input())
    # Before version 13 the axes from this one on count as one.
    rows = math.prod(shape[:axis]), math.prod(shape[axis:])
    flat = call.reshaped(call.input(), rows)
    return call.reshaped(call.emit(Softmax(1, log), flat), shape)


# -- normalizations -------------------------------------------------------------------------------


def _layer_normalization(call: Call) -> list[str]:
    x, shape, dtype = call.input(0), call.type().shape, call.type().dtype
    axis, epsilon = call.axis(-1), call.number("epsilon", 1e-5)
    rows = shape[axis:]

    def expanded(tensor: str) -> str:
        # Leading axes of size 1 that the rows do not have are dropped.
        sizes = call.shape(tensor)
        tensor = call.reshaped(tensor, sizes[max(0, len(sizes) - len(rows)) :])
        return call.expanded(tensor, rows)

    scale = expanded(call.input(1))
    bias = expanded(call.optional(2) or call.tensor(np.zeros(rows), dtype))
    result = call.emit(LayerNorm(axis, epsilon), x, scale, bias)
    if not any(call.is_read[1:]):
        return [result]
    kind = Reduce("mean", tuple(range(axis, len(shape))), True)
    mean, squared = call.emit(kind, x), mul(sub(X, Y), sub(X, Y))
    variance = call.emit(kind, call.elementwise(squared, x, mean))
    deviation = call.elementwise(div(1.0, apply("sqrt", add(X, epsilon))), variance)
    return [result, mean, deviation]


def _skip_layer_normalization(call: Call) -> list[str]:
    """Emit the layer normalization of a sum, which is the fourth result."""
    if any(call.is_read[1:3]):
        call.reject("the mean or the deviation is read: export the model without")
    tensors = [call.input(0), call.input(1)]
    if (bias := call.optional(4)) is not None:
        tensors.append(bias)
    total = add(X, Y) if bias is None else add(add(X, Y), Z)
    x = call.elementwise(total, *tensors)
    shift = call.optional(3) or call.tensor(np.zeros(call.type(2).shape), "float32")
    kind = LayerNorm(call.rank() - 1, call.number("epsilon", 1e-12))
    return [call.emit(kind, x, call.input(2), shift), "", "", x]


def _instance_normalization(call: Call) -> str:
    groups, epsilon = call.type().shape[1], call.number("epsilon", 1e-5)
    return call.group_normalized(call.input(0), groups, epsilon, call.input(1), call.input(2))


def _group_normalization(call: Call) -> str:
    channels, groups = call.type().shape[1], call.integer("num_groups", 1)
    scale, bias = call.input(1), call.input(2)
    if call.shape(scale) == (groups,) and 0 < groups < channels:
        # Until version 21 a group has one factor.
        shape = (groups, channels // groups)
        scale, bias = (
            call.reshaped(call.expanded(call.reshaped(t, (groups, 1)), shape), (channels,))
            for t in (scale, bias)
        )
    epsilon = call.number("epsilon", 1e-5)
    return call.group_normalized(call.input(0), groups, epsilon, scale, bias)


def _rms_normalization(call: Call) -> str:
    x, axes = call.input(0), tuple(range(call.axis(-1), call.rank()))
    squares = call.emit(Reduce("mean", axes, True), call.elementwise(mul(X, X), x))
    root = apply("sqrt", add(Y, call.number("epsilon", 1e-5)))
    return call.elementwise(mul(X, Y), call.elementwise(div(X, root), x, squares), call.input(1))


def _mean_variance_normalization(call: Call) -> str:
    axes = [axis_of(axis, call.rank()) for axis in call.list_of("axes", (0, 2, 3))]
    kind = Reduce("mean", tuple(axes), True)
    centred = call.elementwise(sub(X, Y), call.input(), call.emit(kind, call.input()))
    variance = call.emit(kind, call.elementwise(mul(X, X), centred))
    return call.elementwise(div(X, add(apply("sqrt", Y), 1e-9)), centred, variance)


def _lp_normalization(call: Call) -> str:
    axis, p = call.axis(-1), call.integer("p", 2)
    if p not in (1, 2):
        call.reject(f"p={p} is not known: use 1 or 2")
    x = call.input()
    terms = call.elementwise(apply("abs", X) if p == 1 else mul(X, X), x)
    total = call.emit(Reduce("sum", (axis,), True), terms)
    norm = Y if p == 1 else apply("sqrt", Y)
    # A row of zeros stays one.
    return call.elementwise(where(equal(Y, 0), 0, div(X, norm)), x, total)


TABLE: dict[str, Translation] = {
    "ReduceSum": partial(_reduced, operation="sum"),
    "ReduceMean": partial(_reduced, operation="mean"),
    "ReduceMax": partial(_reduced, operation="max"),
    "ReduceMin": partial(_reduced, operation="min"),
    "ReduceProd": partial(_reduced, operation="prod"),
    "ReduceL1": partial(_reduced, operation="sum", before=apply("abs", X)),
    "ReduceL2": partial(_reduced, operation="sum", before=mul(X, X), after=apply("sqrt", X)),
    "ReduceSumSquare": partial(_reduced, operation="sum", before=mul(X, X)),
    "ReduceLogSum": partial(_reduced, operation="sum", after=apply("log", X)),
    "ReduceLogSumExp": _log_sum_exp,
    "ArgMax": partial(_index_of, operation="argmax"),
    "ArgMin": partial(_index_of, operation="argmin"),
    "Softmax": partial(_softmax, log=False),
    "LogSoftmax": partial(_softmax, log=True),
    "LayerNormalization": _layer_normalization,
    "com.microsoft.SkipLayerNormalization": _skip_layer_normalization,
    "InstanceNormalization": _instance_normalization,
    "GroupNormalization": _group_normalization,
    "RMSNormalization": _rms_normalization,
    "SimplifiedLayerNormalization": _rms_normalization,
    "MeanVarianceNormalization": _mean_variance_normalization,
    "LpNormalization": _lp_normalization,
}
