"""Convolutions, the batch normalization that their weights absorb, and pooling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from cpembed.errors import WorkloadError
from cpembed.frontends import expressions as e
from cpembed.frontends.expressions import X, Y, Z, add, apply, div, mul, sub
from cpembed.frontends.onnx.call import Call, Translation
from cpembed.frontends.products import Window
from cpembed.graph.kinds import Input

_LARGEST = 1 << 20
"""Maximum stride, dilation, size and padding of a window: beyond it a file is damaged."""


def _window(call: Call, taps: Sequence[int], image: Sequence[int]) -> Window:
    """Read the window of an operator from its attributes; the taps and the image's sizes are one a
    pooled or convolved axis.
    """
    axes = len(taps)
    strides = call.list_of("strides", (1,) * axes) or ()
    dilations = call.list_of("dilations", (1,) * axes) or ()
    pads = call.list_of("pads", (0,) * 2 * axes) or ()
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
    window = _window(call, call.shape(weights)[2:], call.shape(image)[2:])
    return {"window": window, "groups": call.integer("group", 1)}


def _check_taps(call: Call, weights: str) -> None:
    taps, expected = call.list_of("kernel_shape"), call.shape(weights)[2:]
    if taps is not None and taps != expected:
        call.reject(f"kernel_shape {list(taps)} is not that of the weights, {list(expected)}")


def conv(call: Call) -> str:
    _check_taps(call, call.input(1))
    image, weights, bias = call.input(0), call.input(1), call.optional(2)
    return call.convolved(image, weights, bias, **convolution_options(call, image, weights))


def fused_conv(call: Call) -> str:
    """Emit a convolution, a tensor that is added, and an activation."""
    image, weights, bias = call.input(0), call.input(1), call.optional(2)
    options = convolution_options(call, image, weights)
    result = call.convolved(image, weights, bias, **options)
    if call.optional(3) is not None:
        result = call.elementwise(add(X, Y), result, call.input(3))
    a, b = (*(call.attribute("activation_params") or ()), 0.0, 0.0)[:2]
    activations = {
        "": X,
        "Relu": e.relu(X),
        "Tanh": apply("tanh", X),
        "Sigmoid": apply("sigmoid", X),
        "LeakyRelu": e.leaky_relu(X, a),
        "Clip": e.clip(X, a, b),
        "HardSigmoid": e.hard_sigmoid(X, a, b),
    }
    name = call.text("activation", "")
    if name not in activations:
        call.reject(f"activation {name} is not known: use Relu, Clip or Sigmoid")
    return call.elementwise(activations[name], result) if name else result


def conv_transpose(call: Call) -> str:
    image, weights, bias = call.input(0), call.input(1), call.optional(2)
    _check_taps(call, weights)
    options = _transposed_options(call, image, weights)
    return call.convolved(image, weights, bias, transposed=True, **options)


def _transposed_options(call: Call, image: str, weights: str) -> dict[str, Any]:
    sizes, taps = call.shape(image)[2:], call.shape(weights)[2:]
    axes = len(taps)
    moving = _window(call, taps, sizes)
    steps = [max(pair) for pair in zip(moving.strides, moving.dilations, strict=True)]
    output_padding = call.list_of("output_padding", (0,) * axes) or ()
    if not all(0 <= n < steps[k] for k, n in enumerate(output_padding)):
        call.reject(
            f"output_padding {list(output_padding)} is not below the stride or the dilation"
        )
    output_shape = call.list_of("output_shape")
    automatic = call.text("auto_pad", "NOTSET")
    if automatic != "NOTSET" and any(call.list_of("pads") or ()):
        call.reject(f"pads beside auto_pad {automatic}: give one of them")
    if output_shape is not None and len(output_shape) != axes:
        call.reject(f"output_shape {list(output_shape)} does not name the {axes} sizes of an image")
    is_same = automatic.startswith("SAME")
    if output_shape is None and is_same:
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


def batch_normalization(call: Call) -> str:
    """Emit a batch normalization, in the weights of the product before it if nothing else reads
    that.
    """
    if call.flag("training_mode") or any(call.is_read[1:]):
        call.reject("statistics of batches are made in training: export the model for inference")
    epsilon = call.number("epsilon", 1e-5)
    if not all(call.builder.is_constant(call.input(k)) for k in range(1, 5)):
        return _normalized(call, epsilon)
    scale, bias, mean, variance = (
        call.constant(k, "a parameter").astype(np.float64) for k in range(1, 5)
    )
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
    taps = call.list_of("kernel_shape")
    if taps is None or len(taps) != call.rank() - 2:
        call.reject("kernel_shape does not name a size for each image axis")
    moving = _window(call, taps, call.type().shape[2:])
    reaches = (moving.reach(axis) for axis in range(len(taps)))
    if any(max(pads) >= r for r, *pads in zip(reaches, moving.before, moving.after, strict=True)):
        call.reject("a window lies in the padding alone: pad less than a window's size")
    counts = operation == "mean" and call.flag("count_include_pad")
    return call.pooled(
        operation, x, moving, ceil_mode=call.flag("ceil_mode"), counts_padding=counts
    )


def max_pool(call: Call) -> str:
    if any(call.is_read[1:]):
        call.reject("the indices of the maxima are read: export the model without them")
    return pooled(call, "max", call.input())


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


def local_response(call: Call) -> str:
    """Emit ``x / (bias + alpha * mean of squares) ** beta`` over a window of channels, which is
    padded with zeros.
    """
    size = call.integer("size", 1)
    alpha, beta = call.number("alpha", 1e-4), call.number("beta", 0.75)
    bias, shape = call.number("bias", 1.0), call.type().shape
    if size < 1 or len(shape) < 2:
        raise WorkloadError(f"a window of {size} channels of {call.type()}")
    if 0 in shape:
        return call.input()
    rows = (shape[0], 1, shape[1], math.prod(shape[2:]))
    squares = call.reshaped(call.elementwise(mul(X, X), call.input()), rows)
    before = (size - 1) // 2
    after, ones = (size - 1 - before, 0), (1, 1)
    window = Window(taps=(size, 1), strides=ones, dilations=ones, before=(before, 0), after=after)
    pool = window.pool("mean", counts_padding=True)
    means = call.reshaped(call.emit(pool, squares), shape)
    below = apply("pow", add(bias, mul(Y, alpha)), beta)
    return call.elementwise(div(X, below), call.input(), means)


TABLE: dict[str, Translation] = {
    "Conv": conv,
    "com.microsoft.FusedConv": fused_conv,
    "ConvTranspose": conv_transpose,
    "BatchNormalization": batch_normalization,
    "MaxPool": max_pool,
    "AveragePool": lambda call: pooled(call, "mean", call.input()),
    "GlobalMaxPool": lambda call: pooled_image(call, "max", call.input()),
    "GlobalAveragePool": lambda call: pooled_image(call, "mean", call.input()),
    "LRN": local_response,
}
