"""Convolutions, and the batch normalization that is folded into them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import numpy as np

from cpembed.frontends.expressions import X, Y, Z, add, apply, div, mul, sub
from cpembed.frontends.onnx.operators.windows import window
from cpembed.frontends.onnx.site import Site, Translation
from cpembed.frontends.products import convolution, spread_shape, transposed_convolution
from cpembed.graph.kinds import Elementwise, Input, Pad, Slice
from cpembed.graph.kinds.base import Array


@dataclass(frozen=True)
class Affine:
    """A product with constant weights that a factor for each channel can be folded into:
    ``rebuild(weights, bias)`` is the result with other ones. ``axis`` of the weights: channels."""

    weights: Array
    bias: Array
    axis: int
    rebuild: Callable[[Array, Array], str]


def remember(site: Site, tensor: str, affine: Affine) -> None:
    """For a normalization that follows."""
    site.memory[tensor] = affine


def conv(site: Site) -> str:
    check_taps(site, site.input(1))
    bias = site.optional(2)
    return convolved(site, site.input(0), site.input(1), bias)


def check_taps(site: Site, weights: str) -> None:
    """Refuse a window that is not that of the weights."""
    taps, own = site.list_of("kernel_shape"), site.type_of(weights).shape[2:]
    if taps is not None and taps != own:
        site.refuse(f"kernel_shape {list(taps)} is not that of the weights, {list(own)}")


def convolved(site: Site, image: str, weights: str, bias: str | None) -> str:
    """A convolution of floats by the node's attributes, with its bias."""
    kernel = site.type_of(weights)
    result = _biased(site, image_product(site, image, weights), bias)
    values, vector = site.builder.value(weights), bias and site.builder.value(bias)
    plain = not site.builder.is_quantized(weights)
    if plain and values is not None and (bias is None or vector is not None):
        zeros = np.zeros(kernel.shape[0], kernel.dtype)

        def rebuild(other: Array, offset: Array) -> str:
            tensor = image_product(site, image, site.tensor(other))
            return _biased(site, tensor, site.tensor(offset))

        start = zeros if vector is None else cast(Array, vector)
        remember(site, result, Affine(values, start, 0, rebuild))
    return result


def _biased(site: Site, sums: str, bias: str | None) -> str:
    if bias is None:
        return sums
    shaped = site.channels(bias, len(site.type_of(sums).shape))
    return site.elementwise(add(X, Y), sums, shaped)


def image_product(site: Site, image: str, weights: str) -> str:
    """The sums of a convolution by the node's attributes, in the type of both."""
    given, kernel = site.type_of(image), site.type_of(weights)
    moving = window(site, kernel.shape[2:], given.shape[2:])
    form = convolution(
        given.shape,
        kernel.shape,
        strides=moving.strides,
        before=moving.before,
        after=moving.after,
        dilations=moving.dilations,
        groups=site.whole("group", 1),
        dtypes=(given.dtype, kernel.dtype),
        varying=not site.builder.is_constant(weights),
    )
    sums = site.emit(form.product, image, weights)
    floats = given.dtype.endswith(("float16", "float32", "float64"))
    return site.cast(sums, given.dtype) if floats else sums


def conv_transpose(site: Site) -> str:
    image, weights, bias = site.input(0), site.input(1), site.optional(2)
    check_taps(site, weights)
    result = _biased(site, _transposed(site, image, weights), bias)
    values, vector = site.builder.value(weights), bias and site.builder.value(bias)
    groups = site.whole("group", 1)
    plain = not site.builder.is_quantized(weights) and groups == 1
    if plain and values is not None and (bias is None or vector is not None):
        zeros = np.zeros(values.shape[1], values.dtype)

        def rebuild(other: Array, offset: Array) -> str:
            return _biased(site, _transposed(site, image, site.tensor(other)), site.tensor(offset))

        start = zeros if vector is None else cast(Array, vector)
        remember(site, result, Affine(values, start, 1, rebuild))
    return result


def _transposed(site: Site, image: str, weights: str) -> str:
    given, kernel = site.type_of(image), site.type_of(weights)
    shape, taps = given.shape[2:], kernel.shape[2:]
    axes = len(taps)
    moving = window(site, taps, shape)
    beyond = site.list_of("output_padding", (0,) * axes) or ()
    before, after = [*moving.before], [*moving.after]
    wanted = site.list_of("output_shape")
    automatic = site.text("auto_pad", "NOTSET")
    if wanted is None and automatic.startswith("SAME"):
        wanted = tuple(size * stride for size, stride in zip(shape, moving.strides, strict=True))
    if wanted is not None:
        wanted = wanted[-axes:]
        for k, size in enumerate(wanted):
            whole = moving.strides[k] * (shape[k] - 1) + beyond[k] + moving.reach(k)
            total = whole - size
            half = max(0, total) // 2
            upper = automatic == "SAME_UPPER"
            before[k] = half if upper else max(0, total) - half
            after[k] = total - before[k]
    form = transposed_convolution(
        given.shape,
        kernel.shape,
        strides=moving.strides,
        before=before,
        after=after,
        dilations=moving.dilations,
        output_padding=beyond,
        groups=site.whole("group", 1),
        dtypes=(given.dtype, kernel.dtype),
        varying=not site.builder.is_constant(weights),
    )
    spread = _spread(site, image, moving.strides)
    return site.cast(site.emit(form.product, spread, weights), given.dtype)


def _spread(site: Site, image: str, strides: tuple[int, ...]) -> str:
    """The image with ``stride - 1`` zeros between its pixels."""
    if all(stride == 1 for stride in strides):
        return image
    shape = site.type_of(image).shape
    lead = shape[:2]
    apart = [size for n in shape[2:] for size in (n, 1)]
    more = [size for stride in strides for size in (0, stride - 1)]
    tensor = site.reshaped(image, (*lead, *apart))
    none = (0,) * (2 + len(more))
    tensor = site.emit(Pad(none, (0, 0, *more)), tensor)
    sizes = [n * stride for n, stride in zip(shape[2:], strides, strict=True)]
    tensor = site.reshaped(tensor, (*lead, *sizes))
    stops = spread_shape(shape, strides)
    return site.emit(Slice((0,) * len(stops), stops, (1,) * len(stops)), tensor)


def batch_normalization(site: Site) -> str:
    """Folded into the product before it where nothing else reads that."""
    if site.flag("training_mode") or any(site.wanted[1:]):
        site.refuse("statistics of batches are made in training: export the model for inference")
    x = site.input(0)
    rank = site.rank()
    epsilon = site.number("epsilon", 1e-5)
    if not all(site.builder.is_constant(site.input(k)) for k in range(1, 5)):
        return _normalized(site, epsilon)
    scale, bias, mean, variance = (
        site.constant(k, "a parameter").astype(np.float64) for k in range(1, 5)
    )
    factor = scale / np.sqrt(variance + epsilon)
    offset = bias - mean * factor
    affine = site.memory.get(x)
    if isinstance(affine, Affine) and site.readers[0] == 1:
        shape = [1] * affine.weights.ndim
        shape[affine.axis] = -1
        dtype = affine.weights.dtype
        weights = (affine.weights * factor.reshape(shape)).astype(dtype)
        return affine.rebuild(weights, (affine.bias * factor + offset).astype(dtype))
    dtype = site.type().dtype
    a, b = (site.channels(site.tensor(v.astype(dtype)), rank) for v in (factor, offset))
    return site.emit(Elementwise(add(mul(X, Y), Z), dtype), x, a, b)


def _normalized(site: Site, epsilon: float) -> str:
    """With parameters that are computed while the network runs."""
    rank = site.rank()
    scale, bias, mean, variance = (site.channels(site.input(k), rank) for k in range(1, 5))
    factor = site.elementwise(
        div(X, apply("sqrt", add(Y, epsilon))), scale, variance, dtype=site.type().dtype
    )
    expression = add(mul(sub(X, Y), Z), Input(3))
    return site.elementwise(expression, site.input(), mean, factor, bias)


TABLE: dict[str, Translation] = {
    "Conv": conv,
    "ConvTranspose": conv_transpose,
    "BatchNormalization": batch_normalization,
}
