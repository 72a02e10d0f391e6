"""Convolutions, and the batch normalization that is folded into them."""

from __future__ import annotations

from typing import Any

import numpy as np

from cpembed.frontends.convolutions import biased, convolved, scalable, scaled_channels
from cpembed.frontends.expressions import X, Y, Z, add, apply, div, mul, sub
from cpembed.frontends.onnx.operators.windows import window
from cpembed.frontends.onnx.site import Site, Translation
from cpembed.graph.kinds import Input, TensorType


def conv(site: Site) -> str:
    check_taps(site, site.input(1))
    bias = site.optional(2)
    return convolved_floats(site, site.input(0), site.input(1), bias)


def check_taps(site: Site, weights: str) -> None:
    """Refuse a window that is not that of the weights."""
    taps, own = site.list_of("kernel_shape"), site.shape(weights)[2:]
    if taps is not None and taps != own:
        site.refuse(f"kernel_shape {list(taps)} is not that of the weights, {list(own)}")


def options(site: Site, image: TensorType, weights: TensorType) -> dict[str, Any]:
    """Of a convolution, by the node's attributes."""
    moving = window(site, weights.shape[2:], image.shape[2:])
    return {
        "strides": moving.strides,
        "before": moving.before,
        "after": moving.after,
        "dilations": moving.dilations,
        "groups": site.whole("group", 1),
    }


def convolved_floats(site: Site, image: str, weights: str, bias: str | None) -> str:
    """A convolution of floats by the node's attributes, with its bias."""
    given = options(site, site.type_of(image), site.type_of(weights))

    def write(weights: str, bias: str | None) -> str:
        return biased(site, convolved(site, image, weights, **given), bias)

    return scalable(site, weights, bias, write)


def conv_transpose(site: Site) -> str:
    image, weights, bias = site.input(0), site.input(1), site.optional(2)
    check_taps(site, weights)
    given = _transposed_options(site, site.type_of(image), site.type_of(weights))

    def write(weights: str, bias: str | None) -> str:
        return biased(site, convolved(site, image, weights, transposed=True, **given), bias)

    return scalable(site, weights, bias, write, axis=1, groups=given["groups"])


def _transposed_options(site: Site, image: TensorType, weights: TensorType) -> dict[str, Any]:
    shape, taps = image.shape[2:], weights.shape[2:]
    axes = len(taps)
    moving = window(site, taps, shape)
    beyond = site.list_of("output_padding", (0,) * axes) or ()
    before, after = [*moving.before], [*moving.after]
    for k, more in enumerate(beyond):
        if not 0 <= more < max(moving.strides[k], moving.dilations[k]):
            site.refuse(f"output_padding {list(beyond)} is not below the stride or the dilation")
    wanted = site.list_of("output_shape")
    automatic = site.text("auto_pad", "NOTSET")
    if automatic != "NOTSET" and any(site.list_of("pads") or ()):
        site.refuse(f"pads beside auto_pad {automatic}: give one of them")
    if wanted is not None and len(wanted) != axes:
        site.refuse(f"output_shape {list(wanted)} does not name the {axes} sizes of an image")
    if wanted is None and automatic.startswith("SAME"):
        wanted = tuple(size * stride for size, stride in zip(shape, moving.strides, strict=True))
    if wanted is not None:
        for k, size in enumerate(wanted):
            whole = moving.strides[k] * (shape[k] - 1) + beyond[k] + moving.reach(k)
            total = whole - size
            # What is wanted beyond what the filters write is padding of the output.
            most = (
                0 if automatic.startswith("SAME") else max(moving.strides[k], moving.dilations[k])
            )
            if total < 0 and -total >= most:
                site.refuse(f"an image axis of {size}, where filters write {whole}: give pads")
            half = max(0, total) // 2
            upper = automatic == "SAME_UPPER"
            before[k] = half if upper else max(0, total) - half
            after[k] = total - before[k]
    found = options(site, image, weights)
    return {**found, "before": before, "after": after, "output_padding": beyond}


def batch_normalization(site: Site) -> str:
    """Folded into the product before it where nothing else reads that."""
    if site.flag("training_mode") or any(site.wanted[1:]):
        site.refuse("statistics of batches are made in training: export the model for inference")
    x, epsilon = site.input(0), site.number("epsilon", 1e-5)
    if not all(site.builder.is_constant(site.input(k)) for k in range(1, 5)):
        return _normalized(site, epsilon)
    scale, bias, mean, variance = (
        site.constant(k, "a parameter").astype(np.float64) for k in range(1, 5)
    )
    factor = scale / np.sqrt(variance + epsilon)
    offset = bias - mean * factor
    return scaled_channels(site, x, factor, offset, site.readers[0] == 1)


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
