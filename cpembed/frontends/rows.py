"""Functions along axes of a tensor that are written with several kinds."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from cpembed.errors import WorkloadError
from cpembed.frontends.builder import LARGEST_CONSTANT
from cpembed.frontends.convolutions import matmul
from cpembed.frontends.emitter import Emitter, is_float
from cpembed.frontends.expressions import X, Y, add, apply, mul, sub
from cpembed.graph.kinds import LayerNorm, Reduce


def log_sum_exp(emitter: Emitter, x: str, axes: Sequence[int], shape: Sequence[int]) -> str:
    """Over axes, the result of a shape. The largest is taken out, so that nothing overflows."""
    if not axes:
        return x
    largest = emitter.emit(Reduce("max", tuple(axes), True), x)
    # Of infinities nothing is taken out: their difference would be no number.
    finite = apply("less", apply("abs", X), math.inf)
    largest = emitter.elementwise(apply("where", finite, X, 0.0), largest)
    powers = emitter.elementwise(apply("exp", sub(X, Y)), x, largest)
    total = emitter.emit(Reduce("sum", tuple(axes), True), powers)
    result = emitter.elementwise(add(apply("log", X), Y), total, largest)
    return emitter.reshaped(result, shape)


def cumulative_sum(
    emitter: Emitter, x: str, axis: int, *, exclusive: bool = False, reverse: bool = False
) -> str:
    """A product with a triangle of ones along the axis. ``exclusive``: without the element itself;
    ``reverse``: from the end.

    Raises :class:`WorkloadError` where the triangle would be too large a constant.
    """
    shape, dtype = emitter.shape(x), emitter.dtype(x)
    size, rank = shape[axis], len(shape)
    wide = dtype if is_float(dtype) or dtype == "int32" else "int64"
    if size * size * 8 > LARGEST_CONSTANT:
        longest = math.isqrt(LARGEST_CONSTANT // 8)
        raise WorkloadError(f"sums along {size} elements: give at most {longest}")
    before = np.tri(size, size, -1 if exclusive else 0, np.int8)
    triangle = emitter.cast(emitter.tensor(before if reverse else before.T), wide)
    order = [*(k for k in range(rank) if k != axis), axis]
    sums = matmul(emitter, emitter.transposed(emitter.cast(x, wide), order), triangle)
    sums = emitter.transposed(sums, [order.index(k) for k in range(rank)])
    return emitter.cast(sums, dtype)


def group_normalized(
    emitter: Emitter, x: str, groups: int, epsilon: float, scale: str | None, bias: str | None
) -> str:
    """Of images [n, c, …], each group of channels of each image by itself; then the channels times
    ``scale`` plus ``bias``.

    Raises :class:`WorkloadError` for groups that are not whole.
    """
    shape = emitter.shape(x)
    if 0 in shape:
        return x
    if groups < 1 or shape[1] % groups:
        raise WorkloadError(f"{shape[1]} channels in {groups} groups: the groups have to be whole")
    size = math.prod(shape[1:]) // groups
    one, zero = (emitter.tensor(np.full(size, value, np.float32)) for value in (1, 0))
    rows = emitter.reshaped(x, (shape[0], groups, size))
    x = emitter.reshaped(emitter.emit(LayerNorm(2, epsilon), rows, one, zero), shape)
    if scale is not None:
        x = emitter.elementwise(mul(X, Y), x, emitter.channels(scale, len(shape)))
    if bias is not None:
        x = emitter.elementwise(add(X, Y), x, emitter.channels(bias, len(shape)))
    return x
