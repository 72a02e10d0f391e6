"""Operators of ONNX Runtime's own domain: fused products and normalizations, channels last.

An operator with channels last is the standard one between two transpositions, which
:func:`~cpembed.graph.passes.transpositions.cancel_transpositions` removes between neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial, reduce

import numpy as np

from cpembed.errors import WorkloadError
from cpembed.frontends import expressions as e
from cpembed.frontends.expressions import X, Y, Z, add, div, mul, sub
from cpembed.frontends.onnx.call import Call, Translation
from cpembed.frontends.onnx.operators import movement, products, quantization
from cpembed.frontends.onnx.operators.elementwise import ACTIVATIONS
from cpembed.frontends.sampling import conjugated, fourier
from cpembed.graph.kinds import Gather, Input, LayerNorm, Reduce, Scalar, Softmax
from cpembed.graph.kinds.base import axis_of
from cpembed.ir.scalars import apply


def _with_channels_last(call: Call, standard: Translation, images: Sequence[int] = (0,)) -> str:
    """Emit a standard operator between transpositions of its images."""
    inputs = tuple(
        call.moved(tensor, -1, 1) if k in images and tensor is not None else tensor
        for k, tensor in enumerate(call.inputs)
    )
    result = standard(replace(call, inputs=inputs))
    return call.moved(result if isinstance(result, str) else result[0], 1, -1)


def _optional_channels_last(call: Call, standard: Translation) -> str:
    if call.flag("channels_last"):
        return _with_channels_last(call, standard)
    result = standard(call)
    return result if isinstance(result, str) else result[0]


# -- products -------------------------------------------------------------------------------------


def _activated(call: Call, x: str) -> str:
    """Emit the activation that the attributes name."""
    name = call.text("activation", "")
    attributes = [call.attribute(f"activation_{letter}") for letter in ("alpha", "beta")]
    call.attribute("activation_gamma")
    call.attribute("activation_axis")
    if not name:
        return x
    if name not in ACTIVATIONS:
        call.reject(f"activation {name} is not known: use {', '.join(ACTIVATIONS)}")
    function, defaults = ACTIVATIONS[name]
    pairs = zip(attributes, defaults, strict=False)
    numbers = (default if number is None else number for number, default in pairs)
    return call.elementwise(function(X, *numbers), x)


def _fused_gemm(call: Call) -> str:
    return _activated(call, products.gemm(call))


def _fused_matmul_activation(call: Call) -> str:
    return _activated(call, products.fused_matmul(call))


def _gemm_fast_gelu(call: Call) -> str:
    x = call.matmul(call.input(0), call.input(1))
    if call.optional(2) is None:
        return call.elementwise(e.gelu_tanh(X), x)
    return call.elementwise(e.gelu_tanh(add(X, Y)), x, call.input(2))


def _distances(call: Call) -> str:
    """Emit the distances of the rows of two matrices."""
    metric = call.text("metric", "sqeuclidean", ("sqeuclidean", "euclidean"))
    (m, k), (n, _) = call.type(0).shape, call.type(1).shape
    a, b = call.reshaped(call.input(0), (m, 1, k)), call.reshaped(call.input(1), (1, n, k))
    # Of differences, not by the squares of the rows, whose sum would cancel.
    squares = call.elementwise(mul(sub(X, Y), sub(X, Y)), a, b)
    total = call.emit(Reduce("sum", (2,), False), squares)
    return total if metric == "sqeuclidean" else call.elementwise(apply("sqrt", X), total)


# -- normalizations -------------------------------------------------------------------------------


def _summed(call: Call, *tensors: str | None) -> str:
    """Emit the sum of those tensors that are there."""
    present = [tensor for tensor in tensors if tensor is not None]
    total: Scalar = reduce(add, map(Input, range(len(present))))
    return call.elementwise(total, *present) if len(present) > 1 else present[0]


def _skip_simplified_normalization(call: Call) -> list[str]:
    """Emit the normalization of a sum by its root mean square; the sum is the fourth result."""
    if any(call.is_read[1:3]):
        call.reject("the mean or the deviation is read: export the model without")
    x = _summed(call, call.input(0), call.optional(1), call.optional(3))
    axes, epsilon = (len(call.shape(x)) - 1,), call.number("epsilon", 1e-12)
    squares = call.emit(Reduce("mean", axes, True), call.elementwise(mul(X, X), x))
    scaled = mul(div(X, apply("sqrt", add(Y, epsilon))), Z)
    return [call.elementwise(scaled, x, squares, call.input(2)), "", "", x]


def _embed_layer_normalization(call: Call) -> list[str]:
    """Emit the normalized sum of the embeddings of words, positions and segments."""
    words = call.input(0)
    batch, length = call.shape(words)
    rows = [call.emit(Gather(0), call.input(2), words)]
    if call.optional(8) is not None:
        rows.append(call.emit(Gather(0), call.input(3), call.input(8)))
    else:
        positions = call.part(call.input(3), 0, 0, length)
        rows.append(call.reshaped(positions, (1, length, call.shape(positions)[1])))
    if call.optional(1) is not None and call.optional(4) is not None:
        rows.append(call.emit(Gather(0), call.input(4), call.input(1)))
    x = _summed(call, *rows)
    kind = LayerNorm(2, call.number("epsilon", 1e-12))
    call.integer("mask_index_type", 0)
    if call.optional(7) is not None:
        # The number of words that the mask leaves; it is 0 without one.
        mask = call.emit(Reduce("sum", (1,), False), call.cast(call.input(7), "int32"))
    else:
        mask = call.tensor(np.zeros(batch), "int32")
    return [call.emit(kind, x, call.input(5), call.input(6)), mask, x]


def _group_norm(call: Call) -> list[str]:
    """Emit a group normalization, of a sum where there is one, and an activation."""
    last = call.flag("channels_last", True)
    x = _summed_images(call)
    total = x
    x = call.moved(x, -1, 1) if last else x
    groups, epsilon = call.integer("groups", 1), call.number("epsilon", 1e-5)
    x = call.group_normalized(x, groups, epsilon, call.input(1), call.input(2))
    if call.integer("activation", 0):
        x = call.elementwise(e.silu(X), x)
    return [call.moved(x, 1, -1) if last else x, total]


def _summed_images(call: Call) -> str:
    x = call.input(0)
    if len(call.inputs) < 4:
        return x
    shape = call.shape(x)
    last = call.flag("channels_last", True)
    skip = call.input(3)
    if len(call.shape(skip)) == 2:
        n, c = call.shape(skip)
        ones = (1,) * (len(shape) - 2)
        skip = call.reshaped(skip, (n, *ones, c) if last else (n, c, *ones))
    x = call.elementwise(add(X, Y), x, skip)
    if call.optional(4) is None:
        return x
    bias = call.input(4) if last else call.channels(call.input(4), len(shape))
    return call.elementwise(add(X, Y), x, bias)


def _bias_softmax(call: Call) -> str:
    """Emit a softmax of a sum, over the axes from one on."""
    shape = call.type(0).shape
    axis = axis_of(call.integer("axis", 1), len(shape))
    bias, sizes = call.input(1), call.type(1).shape
    if not call.flag("is_inner_broadcast", True) and sizes != shape:
        # Batches of the data repeat those of the bias, one after the other.
        repeats = math.prod(shape[:axis]) // max(1, math.prod(sizes[:axis]))
        rows = math.prod(sizes[:axis])
        bias = call.reshaped(bias, (1, rows, *sizes[axis:]))
        bias = call.expanded(bias, (repeats, rows, *sizes[axis:]))
        bias = call.reshaped(bias, shape)
    total = call.elementwise(add(X, Y), call.input(0), bias)
    flat = call.reshaped(total, (math.prod(shape[:axis]), math.prod(shape[axis:])))
    return call.reshaped(call.emit(Softmax(1), flat), shape)


def _bias_split_gelu(call: Call) -> str:
    x = call.elementwise(add(X, Y), call.input(0), call.input(1))
    axis, size = len(call.shape(x)) - 1, call.shape(x)[-1]
    left, right = (call.part(x, axis, k * size // 2, (k + 1) * size // 2) for k in range(2))
    return call.elementwise(mul(X, e.gelu(Y)), left, right)


# -- rotations ------------------------------------------------------------------------------------


def _rotary_embedding(call: Call) -> str:
    """Emit the rotation of pairs of each head's elements by the angles of their positions."""
    x, positions = call.input(0), call.input(1)
    shape = call.shape(x)
    half = call.shape(call.input(2))[1]
    width, heads = call.integer("rotary_embedding_dim", 0), call.integer("num_heads", 0)
    if call.flag("is_packed_batching") or call.number("scale", 1.0) != 1.0:
        call.reject("packed batches and a scale of positions are not read: export without them")
    # [batch, sequence, heads, size], or with the heads before the sequence.
    heads_first = len(shape) == 4
    if not heads_first:
        count = heads if width else shape[2] // (2 * half)
        x = call.reshaped(x, (*shape[:2], count, shape[2] // count))
    batch, length = shape[0], shape[2 if heads_first else 1]
    if call.shape(positions) == (1,):
        steps = call.tensor(np.arange(length)[None])
        positions = call.elementwise(add(X, Y), steps, call.cast(positions, "int64"))
    else:
        positions = call.reshaped(positions, (batch, length))
    sizes = [*call.shape(positions), half]
    sizes.insert(1 if heads_first else 2, 1)
    cosine, sine = (
        call.reshaped(call.emit(Gather(0), call.input(k), positions), sizes) for k in (2, 3)
    )
    result = rotated_pairs(call, x, cosine, sine, 2 * half, call.flag("interleaved"))
    return call.reshaped(result, shape)


def rotated_pairs(
    call: Call, x: str, cosine: str, sine: str, width: int, is_interleaved: bool
) -> str:
    """Emit the rotation of the first elements of each head, in pairs.

    Parameters
    ----------
    call : Call
    x : str
        Tensor whose last axis is a head's elements.
    cosine, sine : str
        Tensors of each pair's angle, which broadcast to the pairs.
    width : int
        Number of elements that are rotated.
    is_interleaved : bool
        Pairs are neighbours; otherwise they are half a ``width`` apart.
    """
    *lead, size = call.shape(x)
    last = len(lead)
    turned = call.part(x, last, 0, width)
    if is_interleaved:
        pairs = call.reshaped(turned, (*lead, width // 2, 2))
        first, second = (
            call.reshaped(call.part(pairs, last + 1, k, k + 1), (*lead, width // 2))
            for k in range(2)
        )
    else:
        half = width // 2
        first, second = (call.part(turned, last, k * half, (k + 1) * half) for k in range(2))
    ends = [
        call.elementwise(operation(mul(X, Z), mul(Y, Input(3))), *tensors, cosine, sine)
        for operation, tensors in ((sub, (first, second)), (add, (second, first)))
    ]
    if is_interleaved:
        parts = [call.reshaped(end, (*lead, width // 2, 1)) for end in ends]
        rotated = call.reshaped(call.joined(parts, last + 1), (*lead, width))
    else:
        rotated = call.joined(ends, last)
    return rotated if width == size else call.joined([rotated, call.part(x, last, width, size)],
                                                     last)  # fmt: skip


def _expand_dims(call: Call) -> str:
    shape = [*call.type().shape]
    shape.insert(axis_of(call.integers(1, "the axis")[0], len(shape) + 1), 1)
    return call.reshaped(call.input(), shape)


def _unfolded(call: Call) -> str:
    """Emit the windows along an axis, as a last axis."""
    shape = call.type().shape
    axis = axis_of(call.integer("dim", -1), len(shape))
    size, step = call.integer("size", 1), call.integer("step", 1)
    if step < 1 or not 0 < size <= shape[axis]:
        raise WorkloadError(f"windows of {size} every {step} of an axis of {shape[axis]}")
    return call.moved(call.windows(call.input(), axis, size, step), axis + 1, -1)


def _real_fourier(call: Call, *, inverse: bool = False) -> str:
    """Emit the transform of real lines, or the real lines of half a transform."""
    if not call.flag("onesided", True) or call.flag("normalized"):
        call.reject("only transforms with onesided 1 and normalized 0 are defined")
    if call.integer("signal_ndim", 1) != 1:
        call.reject("a transform of several axes is not read: transform one after the other")
    x, shape = call.input(), call.type().shape
    if inverse:
        *lead, bins, _ = shape
        size = 2 * (bins - 1)
        lines = conjugated(call, call.reshaped(x, (math.prod(lead), bins, 2)), size)
        result = call.part(fourier(call, lines, inverse=True), 2, 0, 1)
        return call.reshaped(result, (*lead, size))
    *lead, size = shape
    lines = call.padded(call.reshaped(x, (math.prod(lead), size, 1)), (0, 0, 0), (0, 0, 1))
    result = call.part(fourier(call, lines), 1, 0, size // 2 + 1)
    return call.reshaped(result, (*lead, size // 2 + 1, 2))


_STANDARD = {name: movement.TABLE[name] for name in ("GatherND", "Pad", "Range", "Trilu")}
"""Standard operators that the domain has by the same name."""

TABLE: dict[str, Translation] = {
    **{f"com.microsoft.{name}": translation for name, translation in _STANDARD.items()},
    "com.microsoft.NhwcConv": partial(_with_channels_last, standard=products.TABLE["Conv"]),
    "com.microsoft.NhwcFusedConv": partial(
        _with_channels_last, standard=products.TABLE["com.microsoft.FusedConv"], images=(0, 3)
    ),
    "com.microsoft.NhwcMaxPool": partial(_with_channels_last, standard=products.TABLE["MaxPool"]),
    "com.microsoft.QLinearConv": partial(
        _optional_channels_last, standard=quantization.TABLE["QLinearConv"]
    ),
    "com.microsoft.FusedGemm": _fused_gemm,
    "com.microsoft.TransposeMatMul": products.fused_matmul,
    "com.microsoft.FusedMatMulActivation": _fused_matmul_activation,
    "com.microsoft.GemmFastGelu": _gemm_fast_gelu,
    "com.microsoft.CDist": _distances,
    "com.microsoft.SkipSimplifiedLayerNormalization": _skip_simplified_normalization,
    "com.microsoft.EmbedLayerNormalization": _embed_layer_normalization,
    "com.microsoft.GroupNorm": _group_norm,
    "com.microsoft.SkipGroupNorm": _group_norm,
    "com.microsoft.BiasAdd": lambda call: _summed(
        call, call.input(0), call.optional(1), call.optional(2)
    ),
    "com.microsoft.BiasSoftmax": _bias_softmax,
    "com.microsoft.BiasSplitGelu": _bias_split_gelu,
    "com.microsoft.RotaryEmbedding": _rotary_embedding,
    "com.microsoft.ExpandDims": _expand_dims,
    "com.microsoft.UnfoldTensor": _unfolded,
    "com.microsoft.Rfft": _real_fourier,
    "com.microsoft.Irfft": partial(_real_fourier, inverse=True),
}
