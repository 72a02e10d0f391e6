"""Activations of neural networks."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cpembed.frontends import expressions as ex
from cpembed.frontends.expressions import apply
from cpembed.frontends.torch.call import Call, Handler
from cpembed.frontends.torch.operators.pointwise import activated, write
from cpembed.graph.kinds import Scalar


def _hardtanh(call: Call) -> str:
    low, high = call.get("min_val"), call.get("max_val")
    return activated(call, lambda x: ex.clip(x, low, high))


def _elu(call: Call) -> str:
    alpha, scale, inside = call["alpha"], call["scale"], call["input_scale"]

    def expression(x: Scalar) -> Scalar:
        scaled = x if inside == 1 else ex.mul(x, inside)
        grown = ex.mul(ex.exp_minus_one(scaled), alpha * scale)
        return ex.where(ex.less(x, 0), grown, x if scale == 1 else ex.mul(x, scale))

    return activated(call, expression)


def _gelu(call: Call) -> str:
    make = ex.gelu_tanh if call["approximate"] == "tanh" else ex.gelu
    return activated(call, make)


def _softplus(call: Call) -> str:
    beta, threshold = call["beta"], call["threshold"]

    def expression(x: Scalar) -> Scalar:
        scaled = x if beta == 1 else ex.mul(x, beta)
        value = ex.softplus(scaled)
        value = value if beta == 1 else ex.div(value, beta)
        return ex.where(ex.less(threshold, scaled), x, value)

    return activated(call, expression)


def _prelu(call: Call) -> str:
    x, slope = call["self"], call["weight"]
    if call.shape(slope) != () and len(call.shape(slope)) == 1:
        slope = call.channels(slope, max(2, len(call.shape(x))))
    return write(call, call.result.dtype, ex.leaky_relu, x, slope)


def _threshold(call: Call) -> str:
    limit, value = call["threshold"], call["value"]

    def expression(x: Scalar) -> Scalar:
        return ex.where(ex.less(limit, x), x, value)

    return activated(call, expression)


def _log_sigmoid(x: Scalar) -> Scalar:
    return apply("neg", ex.softplus(apply("neg", x)))


def _leaky_relu(call: Call) -> str:
    return activated(call, lambda x: ex.leaky_relu(x, call["negative_slope"]))


def _of(make: Callable[[Scalar], Scalar]) -> Handler:
    return lambda call: activated(call, make)


_FUNCTIONS: Mapping[str, Callable[[Scalar], Scalar]] = {
    "relu": ex.relu,
    "relu6": lambda x: ex.clip(x, 0, 6),
    "silu": ex.silu,
    "mish": ex.mish,
    "selu": ex.selu,
    "log_sigmoid": _log_sigmoid,
    "hardswish": lambda x: ex.div(ex.mul(x, ex.clip(ex.add(x, 3.0), 0.0, 6.0)), 6.0),
    "hardsigmoid": lambda x: ex.div(ex.clip(ex.add(x, 3.0), 0.0, 6.0), 6.0),
}

OPERATORS: Mapping[str, Handler] = {
    **{f"aten.{name}.default": _of(make) for name, make in _FUNCTIONS.items()},
    "aten.hardtanh.default": _hardtanh,
    "aten.elu.default": _elu,
    "aten.gelu.default": _gelu,
    "aten.softplus.default": _softplus,
    "aten.prelu.default": _prelu,
    "aten._prelu_kernel.default": _prelu,
    "aten.threshold.default": _threshold,
    "aten.leaky_relu.default": _leaky_relu,
}
