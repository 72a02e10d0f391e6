"""Products as operators of a graph, and normalizations that become part of their weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from cpembed.errors import WorkloadError
from cpembed.frontends.emitter import Emitter
from cpembed.frontends.expressions import X, Y, Z, add, apply, mul
from cpembed.frontends.products import (
    Form,
    convolution,
    matrix_product,
    spread_shape,
    transposed_convolution,
)
from cpembed.graph.kinds import Pad, Slice
from cpembed.graph.kinds.base import Array


def product(
    emitter: Emitter, form: Callable[..., Form], first: str, second: str, **options: Any
) -> str:
    """The product of two tensors, of the type of the first.

    A factor without elements makes a result without any, or of zeros.

    Raises :class:`WorkloadError` for shapes and element types that make no product.
    """
    shapes = emitter.shape(first), emitter.shape(second)
    if 0 in (*shapes[0], *shapes[1]):
        shape = shape_without_elements(form, *shapes, **options)
        return emitter.tensor(np.zeros(shape), emitter.dtype(first))
    made = form(
        *shapes,
        dtypes=(emitter.dtype(first), emitter.dtype(second)),
        varying=not emitter.builder.is_constant(second),
        **options,
    )
    return emitter.cast(emitter.emit(made.product, first, second), emitter.dtype(first))


def shape_without_elements(
    form: Callable[..., Form], first: Sequence[int], second: Sequence[int], **options: Any
) -> tuple[int, ...]:
    """The shape of a product one of whose factors has no elements."""
    if form is matrix_product:
        b = np.zeros(second, np.int8)
        b = np.swapaxes(b, -1, -2) if options.get("transposed") and b.ndim > 1 else b
        try:
            return np.matmul(np.zeros(first, np.int8), b).shape
        except ValueError:
            raise WorkloadError(f"a product of {list(first)} and {list(second)}") from None
    if 0 in (*first[1:], *second):
        raise WorkloadError(f"images {list(first)} under filters {list(second)} without elements")
    return (0, *form((1, *first[1:]), second, **options).shape[1:])


def matmul(emitter: Emitter, a: str, b: str, *, transposed: bool = False) -> str:
    """``numpy.matmul``, in the type of the first; ``transposed``: of the second, the last two axes.

    A constant is the second factor, which can be packed ahead: ``W x`` is the transpose of
    ``x^T W^T``.
    """
    is_constant, rank = emitter.builder.is_constant, len(emitter.shape(b))
    turns = is_constant(a) and not is_constant(b) and not transposed
    if turns and len(emitter.shape(a)) == 2 and rank >= 2:
        order = (*range(rank - 2), rank - 1, rank - 2)
        turned = matmul(emitter, emitter.transposed(b, order), a, transposed=True)
        return emitter.transposed(turned, order)
    return product(emitter, matrix_product, a, b, transposed=transposed)


def convolved(
    emitter: Emitter,
    image: str,
    weights: str,
    *,
    transposed: bool = False,
    strides: Sequence[int],
    **options: Any,
) -> str:
    """A convolution, or a transposed one, with the options of :mod:`cpembed.frontends.products`."""
    if not transposed:
        return product(emitter, convolution, image, weights, strides=strides, **options)
    given = emitter.shape(image)

    def form(spread: Sequence[int], weights: Sequence[int], **others: Any) -> Form:
        before = (spread[0], *given[1:])
        return transposed_convolution(before, weights, strides=strides, **others)

    return product(emitter, form, _spread(emitter, image, strides), weights, **options)


def _spread(emitter: Emitter, image: str, strides: Sequence[int]) -> str:
    """The image with ``stride - 1`` zeros between its pixels."""
    if all(stride == 1 for stride in strides):
        return image
    n, c, *sizes = emitter.shape(image)
    apart = [extent for size in sizes for extent in (size, 1)]
    zeros = [count for stride in strides for count in (0, stride - 1)]
    x = emitter.reshaped(image, (n, c, *apart))
    x = emitter.emit(Pad((0,) * (2 + len(zeros)), (0, 0, *zeros)), x)
    whole = [size * stride for size, stride in zip(sizes, strides, strict=True)]
    x = emitter.reshaped(x, (n, c, *whole))
    stops = spread_shape((n, c, *sizes), strides)
    return emitter.emit(Slice((0,) * len(stops), stops, (1,) * len(stops)), x)


def biased(emitter: Emitter, image: str, bias: str | None) -> str:
    """An image [n, c, …] plus a vector of its channels."""
    if bias is None:
        return image
    vector = emitter.channels(bias, len(emitter.shape(image)))
    return emitter.elementwise(add(X, Y), image, vector)


def scalable(
    emitter: Emitter,
    weights: str,
    bias: str | None,
    write: Callable[[str, str | None], str],
    *,
    axis: int = 0,
    groups: int = 1,
) -> str:
    """The product that ``write`` makes of weights and a bias, noted so that a normalization can
    scale its channels where both are constants of floats.

    ``axis``: of the weights, that of the channels; ``groups``: parts of the first axis of the
    weights, each with channels of its own.
    """
    result = write(weights, bias)
    builder = emitter.builder
    w, b = builder.value(weights), None if bias is None else builder.value(bias)
    if w is None or builder.is_quantized(weights) or (bias is not None and b is None):
        return result
    factors = [1] * (w.ndim + 1)
    factors[0], factors[axis + 1] = groups, -1

    def scaled(scale: Array, shift: Array) -> str:
        apart = w.reshape(groups, w.shape[0] // groups, *w.shape[1:])
        wide = (apart * scale.reshape(factors)).reshape(w.shape)
        moved = shift if b is None else shift + b.reshape(-1) * scale
        return write(emitter.tensor(wide.astype(w.dtype)), emitter.tensor(moved.astype(w.dtype)))

    emitter.scaling[result] = scaled
    return result


def scaled_channels(emitter: Emitter, x: str, scale: Array, shift: Array, alone: bool) -> str:
    """The channels of an image [n, c, …] times a vector, plus a vector. Both become part of the
    product that computes the image, if it is one that :func:`scalable` noted and nothing else reads
    it (``alone``)."""
    rewritten = emitter.scaling.get(x) if alone else None
    if rewritten is not None:
        return rewritten(scale, shift)
    dtype, rank = emitter.dtype(x), len(emitter.shape(x))
    # Compiled code rounds this once; in float32 the definition does too.
    total = apply("fma", X, Y, Z) if dtype == "float32" else add(mul(X, Y), Z)
    vectors = (
        emitter.channels(
            emitter.tensor(vector, "float64" if dtype == "float64" else "float32"), rank
        )
        for vector in (scale, shift)
    )
    return emitter.elementwise(total, x, *vectors)
