"""Products of integers with sums of 32 bits: ConvInteger and MatMulInteger.

Zero points that are constants are the product's own. One that is computed while the network runs is
allowed for afterwards: of ``sum (x - z) w`` it takes ``z * sum w`` away, the sum over the weights
that lie inside the image.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cpembed.frontends.convolutions import shape_without_elements
from cpembed.frontends.expressions import X, Y, Z, add, mul, sub
from cpembed.frontends.onnx.operators.convolution import options
from cpembed.frontends.onnx.site import Site, Translation
from cpembed.frontends.products import Form, convolution, matrix_product
from cpembed.graph.kinds import Reduce


def _zero(site: Site, tensor: str | None) -> tuple[int, str | None]:
    """A zero point: a number, or a tensor where it is computed in every call."""
    if tensor is None:
        return 0, None
    value = site.builder.value(tensor)
    if value is None:
        return 0, tensor
    values = {int(v) for v in value.reshape(-1)}
    return (values.pop(), None) if len(values) == 1 else (0, None)


def _centred(site: Site, weights: str, zero: str | None, axis: int) -> str:
    """Weights whose zero points differ from channel to channel, less these: as 16 bits."""
    value = None if zero is None else site.builder.value(zero)
    if value is None or len({int(v) for v in value.reshape(-1)}) == 1:
        return weights
    rank = len(site.shape(weights))
    shape = [1] * rank
    shape[axis] = -1
    zeros = value if value.ndim > 1 else value.reshape(shape)
    return site.elementwise(sub(X, Y), weights, site.tensor(zeros), dtype="int16")


def _sums(site: Site, form: Form, first: str, second: str, zeros: tuple[int, int]) -> str:
    return site.emit(replace(form.product, zero_points=zeros), first, second)


def conv_integer(site: Site) -> str:
    x, w = site.input(0), site.input(1)
    (zx, moving_x), (zw, moving_w) = _zero(site, site.optional(2)), _zero(site, site.optional(3))
    if moving_w is not None:
        site.refuse("the weights' zero point is computed while the network runs: make it constant")
    w = _centred(site, w, site.optional(3), 0)
    given, kernel = site.type_of(x), site.type_of(w)
    form = convolution(
        given.shape,
        kernel.shape,
        dtypes=(given.dtype, kernel.dtype),
        varying=not site.builder.is_constant(w),
        **options(site, given, kernel),
    )
    sums = _sums(site, form, x, w, (zx, zw))
    if moving_x is None:
        return sums
    weights = site.builder.value(w)
    if weights is None:
        site.refuse("the filter and the image's zero point are computed while the network runs")
    kind = replace(form.product, zero_points=(0, zw))
    (inside,) = kind.evaluate([np.ones(given.shape, given.dtype), weights])
    one = inside[tuple(slice(None) if axis == 1 else slice(1) for axis in range(inside.ndim))]
    inside = one if (inside == one).all() else inside[:1]
    zero = site.reshaped(moving_x, ())
    return site.elementwise(sub(X, mul(Y, Z)), sums, zero, site.tensor(inside), dtype="int32")


def matmul_integer(site: Site) -> str:
    return sums_of(site, (site.input(0), site.input(1)), (site.optional(2), site.optional(3)))


def sums_of(site: Site, factors: tuple[str, str], zeros: tuple[str | None, str | None]) -> str:
    """The product of two matrices of integers, less their zero points."""
    (za, moving_a), (zb, moving_b) = (_zero(site, zero) for zero in zeros)
    a, b = factors
    if 0 in (*site.shape(a), *site.shape(b)):
        shape = shape_without_elements(matrix_product, site.shape(a), site.shape(b))
        return site.tensor(np.zeros(shape), "int32")
    a = _centred(site, a, zeros[0], max(0, len(site.shape(a)) - 2))
    b = _centred(site, b, zeros[1], len(site.shape(b)) - 1)
    first, second = site.type_of(a), site.type_of(b)
    form = matrix_product(
        first.shape,
        second.shape,
        dtypes=(first.dtype, second.dtype),
        varying=not site.builder.is_constant(b),
    )
    result = _sums(site, form, a, b, (za, zb))
    if moving_a is None and moving_b is None:
        return result
    for moving in (moving_a, moving_b):
        if moving is not None and site.type_of(moving).elements != 1:
            site.refuse("zero points of rows are computed while the network runs: use one")
    # sum (a - za)(b - zb), of which a zero point that is a number is in the product already.
    depth = first.shape[-1]
    rows = _row_sums(site, a, -1, za)
    columns = _row_sums(site, b, -2, zb)
    if moving_a is not None:
        zero = site.reshaped(moving_a, ())
        result = site.elementwise(sub(X, mul(Y, Z)), result, zero, columns, dtype="int32")
    if moving_b is not None:
        zero = site.reshaped(moving_b, ())
        result = site.elementwise(sub(X, mul(Y, Z)), result, zero, rows, dtype="int32")
    if moving_a is not None and moving_b is not None:
        one, other = site.reshaped(moving_a, ()), site.reshaped(moving_b, ())
        both = mul(mul(Y, Z), depth)
        result = site.elementwise(add(X, both), result, one, other, dtype="int32")
    return result


def _row_sums(site: Site, tensor: str, axis: int, zero: int) -> str:
    """Sums of a matrix's elements, less the zero point, along one of the last two axes."""
    rank = len(site.shape(tensor))
    wide = site.elementwise(sub(X, zero), tensor, dtype="int32")
    return site.emit(Reduce("sum", (rank + axis if rank > 1 else 0,), rank > 1), wide)


TABLE: dict[str, Translation] = {
    "ConvInteger": conv_integer,
    "MatMulInteger": matmul_integer,
}
