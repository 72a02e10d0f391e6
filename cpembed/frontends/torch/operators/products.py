"""Convolutions and products of matrices. A bias is added by an operator of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cpembed.errors import WorkloadError
from cpembed.frontends import expressions as ex
from cpembed.frontends.expressions import X, Y
from cpembed.frontends.products import (
    Form,
    convolution,
    matrix_product,
    spread_shape,
    transposed_convolution,
)
from cpembed.frontends.torch.call import Call, Handler, per_axis
from cpembed.graph.kinds import Pad, Reshape, Slice
from cpembed.graph.kinds.base import Array
from cpembed.ir.dtypes import accumulator


def product(call: Call, form: Callable[..., Form], first: str, second: str, **options: Any) -> str:
    """The product of two tensors, of the type of the first.

    Raises :class:`ModelError` for shapes and element types that make no product.
    """
    dtypes = call.dtype(first), call.dtype(second)
    varying = not call.builder.is_constant(second)
    shapes = call.shape(first), call.shape(second)
    try:
        made = form(*shapes, dtypes=dtypes, varying=varying, **options)
        result = call.add(made.product, first, second)
    except WorkloadError as error:
        raise call.error(str(error)) from error
    return call.cast(result, dtypes[0]) if accumulator(*dtypes) != dtypes[0] else result


def add_bias(call: Call, x: str, bias: str | None, rank: int | None = None) -> str:
    """A vector added to the channels of images of ``rank`` axes, or to the last axis."""
    if bias is None:
        return x
    return call.elementwise(ex.add(X, Y), x, bias if rank is None else call.channels(bias, rank))


def _same_padding(call: Call, axes: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Padding before and after that keeps an image's size."""
    taps = call.shape(call["weight"])[2:]
    whole = [d * (t - 1) for d, t in zip(per_axis(call["dilation"], axes), taps, strict=True)]
    return tuple(w // 2 for w in whole), tuple(w - w // 2 for w in whole)


def _convolve(call: Call, axes: int, transposed: bool) -> str:
    x, bias = call["input"], call["bias"]
    batched = len(call.shape(x)) == axes + 2
    if not batched:
        x = call.reshape(x, (1, *call.shape(x)))
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
        result = _convolution(call, x, weights, options, transposed)
        result = add_bias(call, result, bias, axes + 2)
        return call.reshape(result, call.result.shape)

    groups = call["groups"] if transposed else None
    return _scalable(call, write(weights, bias), weights, bias, write, groups)


def _scalable(
    call: Call,
    result: str,
    weights: str,
    bias: str | None,
    write: Callable[[str, str | None], str],
    groups: int | None = None,
) -> str:
    """The result of a product of constant weights, noted so that a batch normalisation can scale
    its channels. ``groups``: of a transposed convolution, whose filters are the second axis."""
    w = call.value(weights)
    b = None if bias is None else call.value(bias)
    if w is None or call.builder.is_quantized(weights) or (bias is not None and b is None):
        return result
    shape = w.shape

    def scaled(scale: Array, shift: Array) -> str:
        if groups is None:
            wide = w * scale.reshape(-1, *[1] * (len(shape) - 1))
        else:
            apart = w.reshape(groups, shape[0] // groups, *shape[1:])
            taps = [1] * (len(shape) - 2)
            wide = (apart * scale.reshape(groups, 1, shape[1], *taps)).reshape(shape)
        moved = shift if b is None else shift + b * scale
        vectors = (call.constant(a.astype(w.dtype)) for a in (wide, moved))
        return write(*vectors)

    call.notes.scaling[result] = scaled
    return result


def _convolution(
    call: Call, x: str, weights: str, options: Mapping[str, Any], transposed: bool
) -> str:
    if not transposed:
        return product(call, convolution, x, weights, **options)
    image = call.shape(x)
    spread = _spread(call, x, options["strides"])

    def form(_: Any, weights: Any, **others: Any) -> Form:
        return transposed_convolution(image, weights, **others)

    return product(call, form, spread, weights, **options)


def _spread(call: Call, x: str, strides: tuple[int, ...]) -> str:
    """The image with ``stride - 1`` zeros between its pixels."""
    if all(stride == 1 for stride in strides):
        return x
    n, c, *sizes = call.shape(x)
    apart = [extent for size in sizes for extent in (size, 1)]
    none = (0,) * (2 + len(apart))
    after = (0, 0, *(zeros for stride in strides for zeros in (0, stride - 1)))
    x = call.add(Reshape((n, c, *apart)), x)
    x = call.add(Pad(none, after), x)
    whole = [size * stride for size, stride in zip(sizes, strides, strict=True)]
    x = call.add(Reshape((n, c, *whole)), x)
    stops = spread_shape((n, c, *sizes), strides)
    return call.add(Slice((0,) * len(stops), stops, (1,) * len(stops)), x)


def _conv(axes: int) -> Handler:
    return lambda call: _convolve(call, axes, False)


def _transposed_conv(axes: int) -> Handler:
    return lambda call: _convolve(call, axes, True)


def _any_conv(call: Call) -> str:
    return _convolve(call, len(call.shape(call["weight"])) - 2, bool(call["transposed"]))


def _linear(call: Call) -> str:
    x, weight, bias = call["input"], call["weight"], call["bias"]
    if len(call.shape(weight)) == 1:
        return add_bias(call, product(call, matrix_product, x, weight), bias)

    def write(weight: str, bias: str | None) -> str:
        return add_bias(call, product(call, matrix_product, x, weight, transposed=True), bias)

    return _scalable(call, write(weight, bias), weight, bias, write)


def _matmul(first: str, second: str) -> Handler:
    return lambda call: product(call, matrix_product, call[first], call[second])


def _outer(call: Call) -> str:
    a, b = call["self"], call.get("vec2") or call["other"]
    column, row = (*call.shape(a), 1), (1, *call.shape(b))
    return call.elementwise(ex.mul(X, Y), call.reshape(a, column), call.reshape(b, row))


def _added(first: str, second: str) -> Handler:
    """``beta * self + alpha * product``."""

    def handler(call: Call) -> str:
        result = product(call, matrix_product, call[first], call[second])
        alpha, beta = call["alpha"], call["beta"]
        if beta == 0:
            return call.elementwise(ex.mul(X, alpha), result)
        scaled = X if alpha == 1 else ex.mul(X, alpha)
        other = Y if beta == 1 else ex.mul(Y, beta)
        return call.elementwise(ex.add(scaled, other), result, call["self"])

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
