"""Functions along axes: sums, extrema, softmax, and normalizations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from cpembed.frontends.expressions import X, Y, div, equal, mul, sub, where
from cpembed.frontends.torch.call import Call, Handler, Results, table
from cpembed.graph.kinds import LayerNorm, Reduce, Softmax
from cpembed.graph.kinds.base import Array
from cpembed.ir.scalars import apply


def _axes(call: Call, x: str) -> tuple[int, ...]:
    axes = call.get("dim")
    return call.axes(x, [axes] if isinstance(axes, int) else axes)


def _reduced(call: Call, operation: str, x: str, axes: Sequence[int] | None = None) -> str:
    """Reduce a tensor along the call's axes; a scalar stays as it is."""
    axes = _axes(call, x) if axes is None else axes
    kind = Reduce(operation, tuple(axes), bool(call.get("keepdim")))
    return call.emit(kind, x) if call.shape(x) else x


def _reduction(operation: str) -> Handler:
    return lambda call: _reduced(call, operation, call.cast(call["self"], call.result.dtype))


def _extremum(operation: str) -> Handler:
    return lambda call: call.first_of(_reduced(call, operation, call["self"]))


def _variance(call: Call, *, root: bool = False, with_mean: bool = False) -> Results:
    x, axes = call["self"], _axes(call, call["self"])
    correction = call.get("correction")
    if correction is None:
        correction = 0 if call.get("unbiased") is False else 1
    count = math.prod(call.shape(x)[axis] for axis in axes)
    mean = call.emit(Reduce("mean", axes, True), x) if call.shape(x) else x
    difference = sub(X, Y)
    squares = call.elementwise(mul(difference, difference), x, mean)
    # The second pass, over differences from the mean, loses no digits to cancellation.
    total = _reduced(call, "sum", squares, axes)
    value = div(X, max(0, count - correction))
    result = call.elementwise(apply("sqrt", value) if root else value, total)
    return (result, call.reshaped(mean, call.shape(result))) if with_mean else result


def _norm(call: Call) -> str:
    x, order = call.get("self") or call["x"], call.get("ord")
    order = call.get("p") if order is None else order
    if order is None or order == 2:
        total = _reduced(call, "sum", call.elementwise(mul(X, X), x))
        return call.elementwise(apply("sqrt", X), total)
    if order == 0:
        is_other = where(equal(X, 0), 0.0, 1.0)
        return _reduced(call, "sum", call.elementwise(is_other, x))
    sizes = call.elementwise(apply("abs", X), x)
    if math.isinf(order):
        return _reduced(call, "max" if order > 0 else "min", sizes)
    if order == 1:
        return _reduced(call, "sum", sizes)
    total = _reduced(call, "sum", call.elementwise(apply("pow", X, float(order)), sizes))
    return call.elementwise(apply("pow", X, 1 / order), total)


def _softmax(call: Call, log: bool) -> str:
    x, axis = call.cast(call["self"], call.result.dtype), call["dim"]
    if call.shape(x):
        return call.emit(Softmax(call.axis(x, axis), log), x)
    # A scalar has no axis: it is a vector of one element.
    return call.reshaped(call.emit(Softmax(0, log), call.reshaped(x, (1,))), ())


def _log_sum_exp(call: Call) -> str:
    x = call.cast(call["self"], call.result.dtype)
    if not call.shape(x):
        # The logarithm of the only exponential of a scalar is the scalar, whatever its axes are.
        call.without_effect("dim", "keepdim")
        return x
    return call.log_sum_exp(x, _axes(call, x), call.result.shape)


def _of_booleans(call: Call, operation: str) -> str:
    # Of zeros and ones the maximum says whether any is true, the minimum whether all are.
    x = call.cast(call.cast(call["self"], "bool"), "int32")
    return call.cast(_reduced(call, operation, x), "bool")


# -- normalizations -------------------------------------------------------------------------------

_OF_THE_BATCH = (
    "a batch normalisation by the statistics of the batch itself: call model.eval() before the "
    "export"
)


def _scale_and_shift(call: Call, channels: int) -> tuple[Array, Array]:
    """Return the effect of a batch normalization with constant statistics, in float64."""
    mean, variance = (
        call.constant(call[name], "a statistic of a batch normalisation").astype(np.float64)
        for name in ("running_mean", "running_var")
    )
    weight, bias = (
        np.full(channels, default, np.float64)
        if call[name] is None
        else call.constant(call[name], "a weight of a batch normalisation").astype(np.float64)
        for name, default in (("weight", 1.0), ("bias", 0.0))
    )
    # In float64, so that rewritten weights are rounded only once.
    scale = weight / np.sqrt(variance + call["eps"])
    return scale, bias - mean * scale


def _batch_norm(call: Call) -> Results:
    x = call["input"]
    if call.get("training") or call["running_mean"] is None:
        call.reject(_OF_THE_BATCH)
    scale, shift = _scale_and_shift(call, call.shape(x)[1])
    return call.first_of(call.scaled_channels(x, scale, shift, call.is_only_reader))


def _layer_norm(call: Call) -> Results:
    x, shape = call["input"], tuple(call["normalized_shape"])
    scale, bias = (
        call.tensor(np.full(shape, default, np.float32)) if call[name] is None else call[name]
        for name, default in (("weight", 1), ("bias", 0))
    )
    kind = LayerNorm(call.rank(x) - len(shape), call["eps"])
    return call.first_of(call.emit(kind, x, scale, bias))


def _grouped(call: Call, groups: int) -> str:
    x = call["input"]
    return call.group_normalized(x, groups, call["eps"], call["weight"], call["bias"])


def _group_norm(call: Call) -> Results:
    return call.first_of(_grouped(call, call.get("num_groups") or call["group"]))


def _statistics_of_one(call: Call) -> Results:
    """Emit a batch normalization of a batch of one, as which instance normalization is exported."""
    images, channels = call.shape(call["input"])[:2]
    if images != 1 or not call["training"]:
        call.reject(_OF_THE_BATCH)
    return call.first_of(_grouped(call, channels))


def _instance_norm(call: Call) -> Results:
    if not call["use_input_stats"]:
        return _batch_norm(call)
    # They are updated, and not returned.
    call.without_effect("running_mean", "running_var")
    return _grouped(call, call.shape(call["input"])[1])


HANDLERS: Mapping[str, Handler] = table(
    {
        "sum.default|dim_IntList": _reduction("sum"),
        "mean.default|dim": _reduction("mean"),
        "prod.default|dim_int": _reduction("prod"),
        "amax max": _extremum("max"),
        "amin min": _extremum("min"),
        "var.correction|dim|default": _variance,
        "std.correction|dim|default": partial(_variance, root=True),
        "var_mean.correction|dim|default": partial(_variance, with_mean=True),
        "linalg_vector_norm norm.ScalarOpt_dim|Scalar": _norm,
        "softmax.int _softmax": partial(_softmax, log=False),
        "log_softmax.int _log_softmax": partial(_softmax, log=True),
        "logsumexp": _log_sum_exp,
        "any.default|dim|dims": partial(_of_booleans, operation="max"),
        "all.default|dim|dims": partial(_of_booleans, operation="min"),
        "batch_norm native_batch_norm _native_batch_norm_legit_no_training": _batch_norm,
        "_native_batch_norm_legit.no_stats": _statistics_of_one,
        "layer_norm native_layer_norm": _layer_norm,
        "group_norm native_group_norm": _group_norm,
        "instance_norm": _instance_norm,
    }
)
