"""Convolutions, products of matrices, attention, and pooling.

A bias is added by an operator of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from cpembed.frontends import expressions as e
from cpembed.frontends.attention import Scores, attention
from cpembed.frontends.expressions import X, Y, add, mul
from cpembed.frontends.grouped import Weights, grouped_product
from cpembed.frontends.indexed import maxima_with_places, overlapped, unpooled
from cpembed.frontends.products import Window, matrix_product
from cpembed.frontends.sampling import along_axis, grid_sampled
from cpembed.frontends.torch.call import Call, Handler, Results, per_axis, table
from cpembed.graph.kinds import Gather, Reduce
from cpembed.graph.kinds.base import Array
from cpembed.ir.dtypes import is_integer
from cpembed.ir.index import row_major_strides
from cpembed.ir.scalars import apply

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
    transposed = bool(call["transposed"])
    if not transposed:
        # PyTorch reads it for transposed convolutions alone.
        call.without_effect("output_padding")
    return _convolution(call, call.rank(call["weight"]) - 2, transposed)


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


def _integer_product(call: Call) -> str:
    """Emit a product of matrices of int8, whose sums have 32 bits."""
    first, second = call["self"], call["mat2"]
    return call.emit(call.form_of(matrix_product, first, second).product, first, second)


def _weight_only_product(call: Call) -> str:
    """Emit a product with rows of int8, each with a scale, which stay bytes."""
    weights = call.constant(call["mat2"], "the matrix of int8")
    scales = call.constant(call["scales"], "the scales").astype(np.float32).reshape(-1, 1)
    # Codes are bytes without a sign.
    codes = (weights.astype(np.int16) + 128).astype(np.uint8)
    zeros = np.full(scales.shape, 128, np.uint8)
    return grouped_product(call, call["self"], Weights(codes, scales, zeros, 8, codes.shape[1]))


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
    if is_integer(call.dtype(call["self"])):
        call.reject("means of integers are not known: convert the image to float32")


def _window(call: Call, axes: int) -> Window:
    taps = per_axis(call["kernel_size"], axes)
    padding = per_axis(call["padding"], axes)
    strides = per_axis(call["stride"], axes, taps)
    dilations = per_axis(call.get("dilation") or 1, axes)
    return Window(taps=taps, strides=strides, dilations=dilations, before=padding, after=padding)


def _pooled(call: Call, operation: str, axes: int, counts_padding: bool = False) -> str:
    window = _window(call, axes)
    ceil_mode = bool(call["ceil_mode"])
    return call.pooled(
        operation, call["self"], window, ceil_mode=ceil_mode, counts_padding=counts_padding
    )


def _max_pool(axes: int) -> Handler:
    return lambda call: _maxima(call, axes)


def _maxima(call: Call, axes: int) -> Results:
    """Emit a maximum pooling, and the numbers of the maxima in their images if the call has them.

    Nothing is computed of the numbers unless they are read.
    """
    values = _pooled(call, "max", axes)
    if len(call.results) == 1:
        return values
    x, image = call["self"], call.shape(call["self"])[-axes:]
    window = _window(call, axes)
    window = window.rounded_up(image) if call["ceil_mode"] else window
    numbers = np.arange(math.prod(image)).reshape(image)
    return values, maxima_with_places(call, x, window, numbers)[1]


def _unpool(call: Call, axes: int) -> str:
    x, places = call["self"], call["indices"]
    # Stride and padding have their effect in the size of the result.
    call.without_effect("stride", "padding")
    shape, result = call.shape(x), call.result.shape
    lead = (1,) * (axes + 2 - len(shape))
    x, places = (call.reshaped(t, (*lead, *shape)) for t in (x, places))
    return call.reshaped(unpooled(call, x, places, result[-axes:]), result)


def _columns_to_image(call: Call) -> str:
    x, sizes = call["self"], call["output_size"]
    shape, window = call.shape(x), _window(call, len(sizes))
    x = call.reshaped(x, (*(1,) * (3 - len(shape)), *shape))
    return call.reshaped(overlapped(call, x, sizes, window), call.result.shape)


def _grid_sampler(call: Call) -> str:
    mode = ("linear", "nearest", "cubic")[int(call["interpolation_mode"])]
    padding = ("zeros", "border", "reflection")[int(call["padding_mode"])]
    return grid_sampled(call, call["input"], call["grid"], mode, padding, call["align_corners"])


def _distances(call: Call) -> str:
    """Emit the distances of all rows of two tensors."""
    a, b, p = call["x1"], call["x2"], call["p"]
    call.without_effect("compute_mode")
    first = call.reshaped(a, (*call.shape(a)[:-1], 1, call.shape(a)[-1]))
    second = call.reshaped(b, (*call.shape(b)[:-2], 1, *call.shape(b)[-2:]))
    size = apply("abs", e.sub(X, Y))
    return _norm_of(call, call.elementwise(size, first, second), p)


def _norm_of(call: Call, sizes: str, p: float) -> str:
    """Emit the norm of magnitudes along the last axis."""
    last = (call.rank(sizes) - 1,)
    if p == math.inf:
        return call.emit(Reduce("max", last, False), sizes)
    if p == 0:
        sizes = call.elementwise(e.where(e.equal(X, 0), 0.0, 1.0), sizes)
        return call.emit(Reduce("sum", last, False), sizes)
    if p == 1:
        return call.emit(Reduce("sum", last, False), sizes)
    powers = mul(X, X) if p == 2 else apply("pow", X, float(p))
    total = call.emit(Reduce("sum", last, False), call.elementwise(powers, sizes))
    return call.elementwise(apply("sqrt", X) if p == 2 else apply("pow", X, 1 / p), total)


def _pair_distances(call: Call) -> str:
    """Emit the distances of each two rows of a tensor, the first of which comes first."""
    x, p = call["self"], call["p"]
    first, second = np.triu_indices(call.shape(x)[0], 1)
    rows = [call.emit(Gather(0), x, call.tensor(k.astype(np.int64))) for k in (first, second)]
    return _norm_of(call, call.elementwise(apply("abs", e.sub(X, Y)), *rows), p)


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
    """Emit pooling to a number of windows along each axis, which may overlap by one element."""
    x = call["self"]
    if operation == "mean":
        _check_mean(call)
    rank, sizes, results = call.rank(x), call.shape(x)[-axes:], call.result.shape[-axes:]
    if operation == "max" and len(call.results) > 1:
        return _adaptive_maxima(call, axes)
    if all(size == 1 for size in results):
        kind = Reduce(operation, tuple(range(rank - axes, rank)), True)
        return call.emit(kind, x)
    if all(size % result == 0 for size, result in zip(sizes, results, strict=True)):
        taps = tuple(s // r for s, r in zip(sizes, results, strict=True))
        ones, zeros = (1,) * axes, (0,) * axes
        window = Window(taps=taps, strides=taps, dilations=ones, before=zeros, after=zeros)
        return call.pooled(operation, x, window)
    # Windows of several sizes are means along one axis after the other: constant matrices.
    for axis, (size, result) in enumerate(zip(sizes, results, strict=True), rank - axes):
        x = along_axis(call, x, axis, _means_of_windows(size, result))
    return x


def _windows(size: int, result: int) -> list[range]:
    """Return the elements of each window of an adaptive pooling."""
    return [range(k * size // result, -(-(k + 1) * size // result)) for k in range(result)]


def _means_of_windows(size: int, result: int) -> Array:
    matrix = np.zeros((result, size))
    for row, window in zip(matrix, _windows(size, result), strict=True):
        row[window.start : window.stop] = 1 / len(window)
    return matrix


def _adaptive_maxima(call: Call, axes: int) -> Results:
    """Emit the maxima of windows, and their numbers in the image."""
    x = call["self"]
    shape, results = call.shape(x), call.result.shape[-axes:]
    image, lead = shape[-axes:], shape[:-axes]
    # Each window repeats its last element until it is as long as the longest.
    tables: list[Array] = []
    for size, result in zip(image, results, strict=True):
        windows = _windows(size, result)
        longest = max(map(len, windows))
        tables.append(
            np.asarray([[w[min(k, len(w) - 1)] for k in range(longest)] for w in windows])
        )
    numbers = np.zeros((1,) * 2 * axes, np.int64)
    for k, (places, step) in enumerate(zip(tables, row_major_strides(image), strict=True)):
        cut = [1] * 2 * axes
        cut[k], cut[axes + k] = places.shape
        numbers = numbers + places.reshape(cut) * step
    count = math.prod(results)
    numbers = numbers.reshape(count, -1)
    flat = call.reshaped(x, (*lead, math.prod(image)))
    windows = call.emit(Gather(len(lead)), flat, call.tensor(numbers))
    last = (len(lead) + 1,)
    values = call.emit(Reduce("max", last, False), windows)
    best = call.emit(Reduce("argmax", last, False), windows)
    first = call.tensor(np.arange(count) * numbers.shape[1])
    places = call.flat_gather(call.tensor(numbers), call.elementwise(add(X, Y), best, first))
    shapes = (*lead, *results)
    return call.reshaped(values, shapes), call.reshaped(places, shapes)


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
        "_int_mm": _integer_product,
        "_weight_int8pack_mm": _weight_only_product,
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
        **{f"max_unpool{n}d": partial(_unpool, axes=n) for n in (2, 3)},
        "col2im": _columns_to_image,
        "grid_sampler grid_sampler_2d grid_sampler_3d": _grid_sampler,
        "cdist _cdist_forward": _distances,
        "pdist _pdist_forward": _pair_distances,
        "_adaptive_avg_pool2d": partial(_adaptive, operation="mean", axes=2),
        "_adaptive_avg_pool3d": partial(_adaptive, operation="mean", axes=3),
    }
)
