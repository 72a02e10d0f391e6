"""Convolutions, products of matrices, attention, and pooling.

A bias is added by an operator of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

from cpembed.frontends.attention import Scores, attention
from cpembed.frontends.emitter import is_float
from cpembed.frontends.expressions import X, Y, add, mul
from cpembed.frontends.products import Window
from cpembed.frontends.torch.call import Call, Handler, Results, per_axis, table
from cpembed.graph.kinds import Reduce

# -- convolutions ---------------------------------------------------------------------------------


def _convolution(call: Call, axes: int, transposed: bool) -> str:
    x, weights, bias = call["input"], call["weight"], call["bias"]
    if call.rank(x) != axes + 2:
        # An image without a batch axis is a batch of one.
        x = call.reshaped(x, (1, *call.shape(x)))
    dilations, padding = per_axis(call["dilation"], axes), call["padding"]
    if padding == "same":
        taps = call.shape(weights)[2:]
        # An odd pixel of padding lies after the image.
        totals = [d * (t - 1) for d, t in zip(dilations, taps, strict=True)]
        before, after = tuple(t // 2 for t in totals), tuple(t - t // 2 for t in totals)
    else:
        before = after = (0,) * axes if padding == "valid" else per_axis(padding, axes)
    window = Window(
        taps=call.shape(weights)[2:],
        strides=per_axis(call["stride"], axes),
        dilations=dilations,
        before=before,
        after=after,
    )
    options: dict[str, Any] = {"groups": call["groups"], "shape": call.result.shape}
    if transposed:
        options["output_padding"] = per_axis(call["output_padding"], axes)
    return call.convolved(x, weights, bias, window, transposed=transposed, **options)


def _any_convolution(call: Call) -> str:
    return _convolution(call, call.rank(call["weight"]) - 2, bool(call["transposed"]))


def _conv(axes: int, transposed: bool = False) -> Handler:
    return lambda call: _convolution(call, axes, transposed)


# -- products of matrices -------------------------------------------------------------------------


def _linear(call: Call) -> str:
    x, weight, bias = call["input"], call["weight"], call["bias"]
    is_matrix = call.rank(weight) > 1

    def write(weight: str, bias: str | None) -> str:
        result = call.matmul(x, weight, transposed=is_matrix)
        return result if bias is None else call.elementwise(add(X, Y), result, bias)

    return call.scalable(weight, bias, write) if is_matrix else write(weight, bias)


def _matmul(first: str, second: str) -> Handler:
    return lambda call: call.matmul(call[first], call[second])


def _outer(call: Call) -> str:
    a, b = call["self"], call.get("vec2") or call["other"]
    column, row = (*call.shape(a), 1), (1, *call.shape(b))
    return call.elementwise(mul(X, Y), call.reshaped(a, column), call.reshaped(b, row))


def _product_added(call: Call, first: str, second: str) -> str:
    """Emit ``beta * self + alpha * product``."""
    result, added = call.matmul(call[first], call[second]), call["self"]
    alpha, beta = call["alpha"], call["beta"]
    if beta == 0:
        return call.elementwise(mul(X, alpha), result)
    product = X if alpha == 1 else mul(X, alpha)
    addend = Y if beta == 1 else mul(Y, beta)
    return call.elementwise(add(product, addend), result, added)


# -- attention ------------------------------------------------------------------------------------


def _attention(call: Call) -> Results:
    """Emit attention as two products of matrices around a softmax."""
    query, key, value = call["query"], call["key"], call["value"]
    if call["dropout_p"]:
        call.reject("weights are dropped at random: call model.eval() before the export")
    # Grouped queries: several heads of queries share one of keys and values.
    call.get("enable_gqa")
    scale = call["scale"]
    scale = 1 / math.sqrt(call.shape(query)[-1]) if scale is None else scale
    mask = call.get("attn_mask")
    scores = Scores(scale, causal=0 if call.get("is_causal") else None, mask=mask)
    # Where a mask leaves nothing of a row, PyTorch's weights are zeros.
    result = attention(call, query, key, value, scores, zero_rows=mask is not None)
    return call.first_of(result)


# -- pooling --------------------------------------------------------------------------------------


def _check_mean(call: Call) -> None:
    """Reject a mean of integers, which PyTorch rounds towards zero."""
    if not is_float(call.dtype(call["self"])):
        call.reject("means of integers are not known: convert the image to float32")


def _pooled(call: Call, operation: str, axes: int, counts_padding: bool = False) -> str:
    taps = per_axis(call["kernel_size"], axes)
    padding = per_axis(call["padding"], axes)
    strides = per_axis(call["stride"], axes, taps)
    dilations = per_axis(call.get("dilation") or 1, axes)
    window = Window(taps=taps, strides=strides, dilations=dilations, before=padding, after=padding)
    ceil_mode = bool(call["ceil_mode"])
    return call.pooled(
        operation, call["self"], window, ceil_mode=ceil_mode, counts_padding=counts_padding
    )


def _max_pool(axes: int) -> Handler:
    return lambda call: call.first_of(_pooled(call, "max", axes))


def _average_pool(call: Call, axes: int) -> str:
    _check_mean(call)
    divisor = call.get("divisor_override")
    counts = bool(call["count_include_pad"])
    if divisor is None:
        padded = any(per_axis(call["padding"], axes))
        return _pooled(call, "mean", axes, counts and padded)
    if call["ceil_mode"]:
        call.reject("divisor_override together with ceil_mode: leave one of them out")
    # A mean over all taps, padding included, times their number is the sum.
    mean = _pooled(call, "mean", axes, True)
    count = math.prod(per_axis(call["kernel_size"], axes))
    return call.elementwise(mul(X, count / divisor), mean)


def _adaptive(call: Call, operation: str, axes: int) -> Results:
    """Emit pooling to one element an axis, or with equal windows."""
    x = call["self"]
    if operation == "mean":
        _check_mean(call)
    rank, sizes, results = call.rank(x), call.shape(x)[-axes:], call.result.shape[-axes:]
    if all(size == 1 for size in results):
        kind = Reduce(operation, tuple(range(rank - axes, rank)), True)
        return call.first_of(call.emit(kind, x))
    for size, result in zip(sizes, results, strict=True):
        if size % result:
            call.reject(
                f"adaptive pooling of an axis of {size} to {result}, whose windows are not "
                f"all alike: choose a size that divides {size}"
            )
    taps = tuple(s // r for s, r in zip(sizes, results, strict=True))
    ones, zeros = (1,) * axes, (0,) * axes
    window = Window(taps=taps, strides=taps, dilations=ones, before=zeros, after=zeros)
    return call.first_of(call.pooled(operation, x, window))


HANDLERS: Mapping[str, Handler] = table(
    {
        "conv1d.default|padding": _conv(1),
        "conv2d.default|padding": _conv(2),
        "conv3d.default|padding": _conv(3),
        "conv_transpose1d": _conv(1, transposed=True),
        "conv_transpose2d.input": _conv(2, transposed=True),
        "conv_transpose3d.input": _conv(3, transposed=True),
        "convolution": _any_convolution,
        "linear": _linear,
        "matmul": _matmul("self", "other"),
        "mm bmm": _matmul("self", "mat2"),
        "mv": _matmul("self", "vec"),
        "dot": _matmul("self", "tensor"),
        "outer": _outer,
        "addmm": partial(_product_added, first="mat1", second="mat2"),
        "addmv": partial(_product_added, first="mat", second="vec"),
        "baddbmm": partial(_product_added, first="batch1", second="batch2"),
        "scaled_dot_product_attention _scaled_dot_product_flash_attention_for_cpu": _attention,
        **{f"max_pool{n}d max_pool{n}d_with_indices": _max_pool(n) for n in (1, 2, 3)},
        **{f"avg_pool{n}d": partial(_average_pool, axes=n) for n in (1, 2, 3)},
        **{
            f"adaptive_avg_pool{n}d": partial(_adaptive, operation="mean", axes=n)
            for n in (1, 2, 3)
        },
        **{
            f"adaptive_max_pool{n}d": partial(_adaptive, operation="max", axes=n) for n in (1, 2, 3)
        },
        "_adaptive_avg_pool2d": partial(_adaptive, operation="mean", axes=2),
        "_adaptive_avg_pool3d": partial(_adaptive, operation="mean", axes=3),
    }
)
