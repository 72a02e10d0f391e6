"""Convolutions and products of matrices. A bias is added by an operator of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cpembed.frontends import expressions as ex
from cpembed.frontends.convolutions import biased, convolved, matmul, scalable
from cpembed.frontends.expressions import X, Y
from cpembed.frontends.torch.call import Call, Handler, per_axis


def _same_padding(call: Call, axes: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Padding before and after that keeps an image's size."""
    taps = call.shape(call["weight"])[2:]
    whole = [d * (t - 1) for d, t in zip(per_axis(call["dilation"], axes), taps, strict=True)]
    return tuple(w // 2 for w in whole), tuple(w - w // 2 for w in whole)


def _convolve(call: Call, axes: int, transposed: bool) -> str:
    x, bias = call["input"], call["bias"]
    batched = len(call.shape(x)) == axes + 2
    if not batched:
        x = call.reshaped(x, (1, *call.shape(x)))
    weights = call["weight"]
    padding = call["padding"]
    if padding == "same":
        before, after = _same_padding(call, axes)
    else:
        before = after = (0,) * axes if padding == "valid" else per_axis(padding, axes)
    options: dict[str, Any] = {
        "strides": per_axis(call["stride"], axes),
        "before": before,
        "after": after,
        "dilations": per_axis(call["dilation"], axes),
        "groups": call["groups"],
    }
    if transposed:
        options["output_padding"] = per_axis(call["output_padding"], axes)

    def write(weights: str, bias: str | None) -> str:
        result = convolved(call, x, weights, transposed=transposed, **options)
        return call.reshaped(biased(call, result, bias), call.result.shape)

    if transposed:
        return scalable(call, weights, bias, write, axis=1, groups=call["groups"])
    return scalable(call, weights, bias, write)


def _conv(axes: int) -> Handler:
    return lambda call: _convolve(call, axes, False)


def _transposed_conv(axes: int) -> Handler:
    return lambda call: _convolve(call, axes, True)


def _any_conv(call: Call) -> str:
    return _convolve(call, len(call.shape(call["weight"])) - 2, bool(call["transposed"]))


def _linear(call: Call) -> str:
    x, weight, bias = call["input"], call["weight"], call["bias"]

    def write(weight: str, bias: str | None) -> str:
        result = matmul(call, x, weight, transposed=len(call.shape(weight)) > 1)
        return result if bias is None else call.elementwise(ex.add(X, Y), result, bias)

    if len(call.shape(weight)) == 1:
        return write(weight, bias)
    return scalable(call, weight, bias, write)


def _matmul(first: str, second: str) -> Handler:
    return lambda call: matmul(call, call[first], call[second])


def _outer(call: Call) -> str:
    a, b = call["self"], call.get("vec2") or call["other"]
    column, row = (*call.shape(a), 1), (1, *call.shape(b))
    return call.elementwise(ex.mul(X, Y), call.reshaped(a, column), call.reshaped(b, row))


def _added(first: str, second: str) -> Handler:
    """``beta * self + alpha * product``."""

    def handler(call: Call) -> str:
        result, added = matmul(call, call[first], call[second]), call["self"]
        alpha, beta = call["alpha"], call["beta"]
        if beta == 0:
            return call.elementwise(ex.mul(X, alpha), result)
        scaled = X if alpha == 1 else ex.mul(X, alpha)
        other = Y if beta == 1 else ex.mul(Y, beta)
        return call.elementwise(ex.add(scaled, other), result, added)

    return handler


OPERATORS: Mapping[str, Handler] = {
    **{
        f"aten.conv{n}d.{overload}": _conv(n)
        for n in (1, 2, 3)
        for overload in ("default", "padding")
    },
    "aten.conv_transpose1d.default": _transposed_conv(1),
    "aten.conv_transpose2d.input": _transposed_conv(2),
    "aten.conv_transpose3d.input": _transposed_conv(3),
    "aten.convolution.default": _any_conv,
    "aten.linear.default": _linear,
    "aten.matmul.default": _matmul("self", "other"),
    "aten.mm.default": _matmul("self", "mat2"),
    "aten.bmm.default": _matmul("self", "mat2"),
    "aten.mv.default": _matmul("self", "vec"),
    "aten.dot.default": _matmul("self", "tensor"),
    "aten.outer.default": _outer,
    "aten.addmm.default": _added("mat1", "mat2"),
    "aten.addmv.default": _added("mat", "vec"),
    "aten.baddbmm.default": _added("batch1", "batch2"),
}
