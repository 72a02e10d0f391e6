"""Convolutions and the batch normalization that their weights absorb, pooling, matrix products.

Einsum multiplies its factors two at a time.
"""

from __future__ import annotations

import math
import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from cpembed.errors import WorkloadError
from cpembed.frontends import expressions as e
from cpembed.frontends.expressions import X, Y, Z, add, div, mul, sub
from cpembed.frontends.indexed import maxima_with_places
from cpembed.frontends.onnx.call import Call, Translation
from cpembed.frontends.onnx.operators.elementwise import ACTIVATIONS
from cpembed.frontends.products import Window
from cpembed.graph.kinds import Input, Product, Reduce
from cpembed.ir.dtypes import accumulator
from cpembed.ir.parser import parse_computation
from cpembed.ir.scalars import apply

_LARGEST = 1 << 20
"""Maximum stride, dilation, size and padding of a window: beyond it a file is damaged."""


def window_of(call: Call, taps: Sequence[int], image: Sequence[int]) -> Window:
    """Read the window of an operator from its attributes.

    Parameters
    ----------
    call : Call
        The node.
    taps, image : sequence of int
        Sizes of the window and of the image, one number a pooled or convolved axis.
    """
    axes = len(taps)
    strides = call.list_of("strides", (1,) * axes)
    dilations = call.list_of("dilations", (1,) * axes)
    pads = call.list_of("pads", (0,) * 2 * axes)
    if len(strides) != axes or len(dilations) != axes or len(pads) != 2 * axes:
        call.reject(f"strides, dilations or pads are not of {axes} image axes")
    if min((*strides, *dilations, *taps), default=1) < 1:
        call.reject("strides, dilations and windows are at least 1")
    if min(pads, default=0) < 0:
        call.reject(f"pads {list(pads)}: windows are padded by 0 or more; cut with Slice before")
    if max((*strides, *dilations, *taps, *pads), default=1) > _LARGEST:
        call.reject("strides, dilations, windows and pads are below a million")
    padded = Window(
        taps=tuple(taps), strides=strides, dilations=dilations, before=pads[:axes],
        after=pads[axes:],
    )  # fmt: skip
    match call.text("auto_pad", "NOTSET"):
        case "NOTSET" | "":
            return padded
        case "VALID":
            return replace(padded, before=(0,) * axes, after=(0,) * axes)
        case "SAME_UPPER" | "SAME_LOWER" as mode:
            # As many results as steps fit the image, whatever the taps: the missing pixels are
            # padded, and an odd one lies after (upper) or before the image.
            totals = [
                max(0, (-(-size // strides[k]) - 1) * strides[k] + padded.reach(k) - size)
                for k, size in enumerate(image)
            ]
            halves = [tuple(t // 2 for t in totals), tuple(t - t // 2 for t in totals)]
            before, after = halves if mode == "SAME_UPPER" else halves[::-1]
            return replace(padded, before=before, after=after)
        case mode:
            call.reject(f"auto_pad {mode} is not known: use NOTSET, VALID or SAME_UPPER")


# -- convolutions ---------------------------------------------------------------------------------


def convolution_options(call: Call, image: str, weights: str) -> dict[str, Any]:
    """Read the options of a convolution from the attributes.

    Parameters
    ----------
    call : Call
        The node.
    image, weights : str
        Tensors [n, channels, sizes] and [filters, channels of a group, taps].

    Returns
    -------
    dict
        Keywords of :func:`~cpembed.frontends.products.convolution`.
    """
    _check_taps(call, weights)
    window = window_of(call, call.shape(weights)[2:], call.shape(image)[2:])
    return {"window": window, "groups": call.integer("group", 1)}


def _check_taps(call: Call, weights: str) -> None:
    taps, expected = call.optional_list("kernel_shape"), call.shape(weights)[2:]
    if taps is not None and taps != expected:
        call.reject(f"kernel_shape {list(taps)} is not that of the weights, {list(expected)}")


def _conv(call: Call) -> str:
    image, weights, bias = call.input(0), call.input(1), call.optional(2)
    return call.convolved(image, weights, bias, **convolution_options(call, image, weights))


def _fused_conv(call: Call) -> str:
    """Emit a convolution, a tensor that is added, and an activation."""
    result = _conv(call)
    if call.optional(3) is not None:
        result = call.elementwise(add(X, Y), result, call.input(3))
    name = call.text("activation", "")
    numbers = (*(call.attribute("activation_params") or ()), 0.0, 0.0)
    if not name:
        return result
    if name not in _FUSED_ACTIVATIONS:
        call.reject(f"activation {name} is not known: use Relu, Clip or Sigmoid")
    function, defaults = _FUSED_ACTIVATIONS[name]
    return call.elementwise(function(X, *numbers[: len(defaults)]), result)


_FUSED_ACTIVATIONS = {
    "Clip": (e.clip, (0.0, 0.0)),
    **{n: ACTIVATIONS[n] for n in ("Relu", "Tanh", "Sigmoid", "LeakyRelu", "HardSigmoid")},
}


def _conv_transpose(call: Call) -> str:
    image, weights, bias = call.input(0), call.input(1), call.optional(2)
    _check_taps(call, weights)
    options = _transposed_options(call, image, weights)
    return call.convolved(image, weights, bias, transposed=True, **options)


def _transposed_options(call: Call, image: str, weights: str) -> dict[str, Any]:
    sizes, taps = call.shape(image)[2:], call.shape(weights)[2:]
    axes = len(taps)
    moving = window_of(call, taps, sizes)
    steps = [max(pair) for pair in zip(moving.strides, moving.dilations, strict=True)]
    output_padding = call.list_of("output_padding", (0,) * axes)
    if not all(0 <= n < steps[k] for k, n in enumerate(output_padding)):
        call.reject(
            f"output_padding {list(output_padding)} is not below the stride or the dilation"
        )
    output_shape = call.optional_list("output_shape")
    automatic = call.text("auto_pad", "NOTSET")
    if automatic != "NOTSET" and any(call.list_of("pads")):
        call.reject(f"pads beside auto_pad {automatic}: give one of them")
    if output_shape is not None and len(output_shape) != axes:
        call.reject(f"output_shape {list(output_shape)} does not name the {axes} sizes of an image")
    is_same = automatic.startswith("SAME")
    if output_shape is None and is_same:
        # SAME makes the result as many times larger as the stride is.
        output_shape = tuple(n * stride for n, stride in zip(sizes, moving.strides, strict=True))
    before, after = [*moving.before], [*moving.after]
    for k, size in enumerate(output_shape or ()):
        written = moving.strides[k] * (sizes[k] - 1) + output_padding[k] + moving.reach(k)
        total = written - size
        # A larger output than the filters write is padded, by less than a step.
        if total < 0 and -total >= (0 if is_same else steps[k]):
            call.reject(f"an image axis of {size}, where filters write {written}: give pads")
        half = max(0, total) // 2
        before[k] = half if automatic == "SAME_UPPER" else max(0, total) - half
        after[k] = total - before[k]
    moving = replace(moving, before=before, after=after)
    groups = call.integer("group", 1)
    return {"window": moving, "groups": groups, "output_padding": output_padding}


def _batch_normalization(call: Call) -> str:
    """Emit a batch normalization, if possible in the weights of the product before it."""
    if call.flag("training_mode") or any(call.is_read[1:]):
        call.reject("statistics of batches are made in training: export the model for inference")
    epsilon = call.number("epsilon", 1e-5)
    if not all(call.builder.is_constant(call.input(k)) for k in range(1, 5)):
        return _normalized(call, epsilon)
    scale, bias, mean, variance = (
        call.constant(k, "a parameter").astype(np.float64) for k in range(1, 5)
    )
    # (x - mean) / sqrt(variance + epsilon) * scale + bias is one factor and one summand a channel.
    factor = scale / np.sqrt(variance + epsilon)
    return call.scaled_channels(call.input(0), factor, bias - mean * factor, call.readers[0] == 1)


def _normalized(call: Call, epsilon: float) -> str:
    """Emit a batch normalization whose parameters are computed while the network runs."""
    rank = call.rank()
    scale, bias, mean, variance = (call.channels(call.input(k), rank) for k in range(1, 5))
    root = apply("sqrt", add(Y, epsilon))
    factor = call.elementwise(div(X, root), scale, variance, dtype=call.type().dtype)
    expression = add(mul(sub(X, Y), Z), Input(3))
    return call.elementwise(expression, call.input(), mean, factor, bias)


# -- pooling --------------------------------------------------------------------------------------


def pooled(call: Call, operation: str, x: str) -> str:
    """Emit pooling with the node's attributes.

    Parameters
    ----------
    call : Call
        The node.
    operation : str
        ``max`` or ``mean``.
    x : str
        Tensor [n, c, …].
    """
    window = pooling_window(call)
    counts = operation == "mean" and call.flag("count_include_pad")
    return call.pooled(
        operation, x, window, ceil_mode=call.flag("ceil_mode"), counts_padding=counts
    )


def pooling_window(call: Call) -> Window:
    """Read the window of a pooling from the attributes, without ``ceil_mode``."""
    taps = call.optional_list("kernel_shape")
    if taps is None or len(taps) != call.rank() - 2:
        call.reject("kernel_shape does not name a size for each image axis")
    moving = window_of(call, taps, call.type().shape[2:])
    reaches = (moving.reach(axis) for axis in range(len(taps)))
    # The maximum of no pixel is minus infinity, their mean a division by 0.
    if any(max(pads) >= r for r, *pads in zip(reaches, moving.before, moving.after, strict=True)):
        call.reject("a window lies in the padding alone: pad less than a window's size")
    return moving


def _max_pool(call: Call) -> list[str]:
    if not any(call.is_read[1:]):
        return [pooled(call, "max", call.input())]
    window, shape = pooling_window(call), call.type().shape
    image = shape[2:]
    if call.flag("ceil_mode"):
        window = window.rounded_up(image)
    # Numbers count over the tensor, rows or columns first.
    order = "F" if call.flag("storage_order") else "C"
    numbers = np.arange(math.prod(image)).reshape(image, order=order)
    values, places = maxima_with_places(call, call.input(), window, numbers)
    ones = (1,) * len(image)
    first = np.arange(math.prod(shape[:2])).reshape(*shape[:2], *ones) * math.prod(image)
    return [values, call.elementwise(add(X, Y), places, call.tensor(first))]


def pooled_image(call: Call, operation: str, x: str) -> str:
    """Emit pooling with one window, as large as the image.

    Parameters
    ----------
    call : Call
        The node.
    operation : str
        ``max`` or ``mean``.
    x : str
        Tensor [n, c, …].
    """
    if len(call.shape(x)) < 3 or 0 in call.shape(x)[2:]:
        call.reject(f"{call.type_of(x)} is no image: give at least three dimensions, and pixels")
    taps = call.shape(x)[2:]
    ones, zeros = (1,) * len(taps), (0,) * len(taps)
    window = Window(taps=taps, strides=ones, dilations=ones, before=zeros, after=zeros)
    return call.emit(window.pool(operation), x)


def _local_response(call: Call) -> str:
    """Emit ``x / (bias + alpha * mean of squares) ** beta`` over a window of channels."""
    size = call.integer("size", 1)
    alpha, beta = call.number("alpha", 1e-4), call.number("beta", 0.75)
    bias, shape = call.number("bias", 1.0), call.type().shape
    if size < 1 or len(shape) < 2:
        raise WorkloadError(f"a window of {size} channels of {call.type()}")
    if 0 in shape:
        return call.input()
    rows = (shape[0], 1, shape[1], math.prod(shape[2:]))
    # A mean pooling along the channels, as rows of an image, counts the zeros of the padding.
    squares = call.reshaped(call.elementwise(mul(X, X), call.input()), rows)
    before = (size - 1) // 2
    after, ones = (size - 1 - before, 0), (1, 1)
    window = Window(taps=(size, 1), strides=ones, dilations=ones, before=(before, 0), after=after)
    pool = window.pool("mean", counts_padding=True)
    means = call.reshaped(call.emit(pool, squares), shape)
    below = apply("pow", add(bias, mul(Y, alpha)), beta)
    return call.elementwise(div(X, below), call.input(), means)


def scaled(call: Call, tensor: str) -> str:
    """Multiply a tensor by the attribute ``alpha``."""
    alpha = call.number("alpha", 1.0)
    return tensor if alpha == 1.0 else call.elementwise(mul(X, alpha), tensor)


def fused_matmul(call: Call) -> str:
    """Emit a product of matrices, in which each factor may be transposed in two ways."""
    a, b = (_batches_last(call, k, f"transBatch{'AB'[k]}") for k in range(2))
    rank = len(call.shape(a))
    if call.flag("transA"):
        a = call.transposed(a, (*range(rank - 2), rank - 1, rank - 2))
    return scaled(call, call.matmul(a, b, transposed=call.flag("transB")))


def _batches_last(call: Call, k: int, flag: str) -> str:
    """Return a factor; where the flag is set its first axis is moved before the last."""
    rank = call.rank(k)
    if not call.flag(flag):
        return call.input(k)
    return call.transposed(call.input(k), (*range(1, rank - 1), 0, rank - 1))


def gemm(call: Call) -> str:
    """Emit a product of matrices and a sum, both scaled."""
    a, c = call.input(0), call.optional(2)
    beta = call.number("beta", 1.0)
    if not call.rank(0) == call.rank(1) == 2:
        raise WorkloadError(f"a product of {call.type(0)} and {call.type(1)}: give matrices")
    if call.flag("transA"):
        a = call.transposed(a, (1, 0))
    transposed = call.flag("transB")

    def write(b: str, c: str | None) -> str:
        result = scaled(call, call.matmul(a, b, transposed=transposed))
        if c is None or beta == 0.0:
            return result
        return call.elementwise(add(X, Y if beta == 1.0 else mul(Y, beta)), result, c)

    columns = call.type(1).shape[0 if transposed else 1]
    # A later normalization can rewrite a bias of one number a column, with the weights.
    by_column = c is None or call.shape(c) in ((), (1,), (columns,), (1, columns))
    if call.number("alpha", 1.0) == beta == 1.0 and by_column:
        return call.scalable(call.input(1), c, write, axis=0 if transposed else 1)
    return write(call.input(1), c)


# -- einsum ---------------------------------------------------------------------------------------

Factor = tuple[str, str]
"""A tensor and the letters of its axes."""


def _einsum(call: Call) -> str:
    tensors = call.all_inputs()
    shapes = [call.shape(tensor) for tensor in tensors]
    letters, result = _letters(call.text("equation", ""), [len(shape) for shape in shapes])
    sizes: dict[str, int] = {}
    for names, shape in zip(letters, shapes, strict=True):
        for name, size in zip(names, shape, strict=True):
            if sizes.setdefault(name, size) != size:
                raise WorkloadError(f"axis {name} is of {sizes[name]} and of {size}")
    if 0 in sizes.values():
        return call.tensor(np.zeros([sizes[name] for name in result]), call.dtype(tensors[0]))
    factors = list(zip(tensors, letters, strict=True))
    # What is summed before a product makes it smaller.
    total = _summed(call, factors[0], {*result, *"".join(letters[1:])})
    for k, factor in enumerate(factors[1:], 1):
        needed = {*result, *"".join(letters[k + 1 :])}
        total = _multiplied(call, total, factor, needed, result, sizes)
    tensor, names = total
    return call.transposed(tensor, [names.index(name) for name in result])


def _letters(equation: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """Return a letter for each axis, of each factor and of the result."""
    text = re.sub(r"\s", "", equation)
    left, arrow, result = text.partition("->")
    factors = left.split(",")
    if len(factors) != len(ranks):
        raise WorkloadError(f"equation {equation!r} is of {len(factors)} factors, not {len(ranks)}")
    # Axes of an ellipsis get letters that the equation does not use, aligned at the last one.
    free = [letter for letter in string.ascii_lowercase if letter not in text]
    unnamed = [rank - len(f.replace("...", "")) for f, rank in zip(factors, ranks, strict=True)]
    count = max((n for n, f in zip(unnamed, factors, strict=True) if "..." in f), default=0)
    if count > len(free):
        raise WorkloadError(f"equation {equation!r} has too many axes")
    ellipsis = "".join(free[:count])
    parts: list[str] = []
    for factor, n, rank in zip(factors, unnamed, ranks, strict=True):
        part = factor.replace("...", ellipsis[count - n :] if n else "")
        if len(part) != rank or (rank and not part.isalpha()):
            raise WorkloadError(f"{factor} of equation {equation!r} does not name {rank} axes")
        if len({*part}) != len(part):
            raise WorkloadError(f"{factor} of equation {equation!r} takes a diagonal")
        parts.append(part)
    if arrow:
        result = result.replace("...", ellipsis)
    else:
        # Without an arrow the result has the axes that occur once, in alphabetical order, after
        # those of the ellipsis.
        every = "".join(parts)
        single = (x for x in {*every} - {*ellipsis} if every.count(x) == 1)
        result = ellipsis + "".join(sorted(single))
    if len({*result}) != len(result) or not {*result} <= {*"".join(parts)}:
        raise WorkloadError(f"the result of equation {equation!r} is none of its factors'")
    return parts, result


def _summed(call: Call, factor: Factor, needed: set[str]) -> Factor:
    """Sum a factor over the axes that nothing else has."""
    tensor, names = factor
    axes = tuple(k for k, name in enumerate(names) if name not in needed)
    if axes:
        tensor = call.emit(Reduce("sum", axes, False), tensor)
    return tensor, "".join(name for name in names if name in needed)


def _multiplied(
    call: Call,
    first: Factor,
    second: Factor,
    needed: set[str],
    result: str,
    sizes: Mapping[str, int],
) -> Factor:
    """Multiply two factors and sum over the axes that nothing else has."""
    # Only a second factor that is constant is packed ahead.
    if call.builder.is_constant(first[0]) and not call.builder.is_constant(second[0]):
        first, second = second, first
    both = {*first[1], *second[1]}
    remaining = [name for name in result if name in both]
    remaining += sorted(name for name in both if name in needed and name not in remaining)
    # Iterators are lower case, so that a capital letter is doubled.
    axis = {letter: letter if letter.islower() else letter.lower() * 2 for letter in both}

    def indices(names: Sequence[str]) -> str:
        return ", ".join(axis[name] for name in names)

    reduced = [name for name in first[1] + second[1] if name not in remaining]
    dtypes = [call.dtype(tensor) for tensor, _ in (first, second)]
    computation = parse_computation(
        f"C[{indices(remaining)}] += A[{indices(first[1])}] * B[{indices(second[1])}]",
        {axis[name]: sizes[name] for name in [*remaining, *dict.fromkeys(reduced)]},
        name="einsum",
        dtypes={"A": dtypes[0], "B": dtypes[1], "C": accumulator(*dtypes)},
        varying=() if call.builder.is_constant(second[0]) else ("B",),
    )
    product = call.emit(
        Product(computation, tuple(sizes[name] for name in remaining)), first[0], second[0]
    )
    return call.cast(product, dtypes[0]) if "float" in dtypes[0] else product, "".join(remaining)


TABLE: dict[str, Translation] = {
    "Conv": _conv,
    "com.microsoft.FusedConv": _fused_conv,
    "ConvTranspose": _conv_transpose,
    "BatchNormalization": _batch_normalization,
    "MaxPool": _max_pool,
    "AveragePool": lambda call: pooled(call, "mean", call.input()),
    "GlobalMaxPool": lambda call: pooled_image(call, "max", call.input()),
    "GlobalAveragePool": lambda call: pooled_image(call, "mean", call.input()),
    "LRN": _local_response,
    "MatMul": lambda call: call.matmul(call.input(0), call.input(1)),
    "Gemm": gemm,
    "com.microsoft.FusedMatMul": fused_matmul,
    "Einsum": _einsum,
}
