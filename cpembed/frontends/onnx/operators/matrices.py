"""Products of matrices."""

from __future__ import annotations

import numpy as np

from cpembed.errors import WorkloadError
from cpembed.frontends.expressions import X, Y, add, mul
from cpembed.frontends.onnx.operators.convolution import Affine, remember
from cpembed.frontends.onnx.site import Site, Translation
from cpembed.frontends.products import matrix_product
from cpembed.graph.kinds.base import Array


def product(site: Site, a: str, b: str, *, transposed: bool = False) -> str:
    """``numpy.matmul``, in the type of both; ``transposed``: of the second, the last two axes.

    A constant is the second factor, which can be packed ahead: ``W x`` is the transpose of
    ``x^T W^T``.
    """
    builder = site.builder
    first, second = site.type_of(a), site.type_of(b)
    turns = builder.is_constant(a) and not builder.is_constant(b) and not transposed
    if turns and len(first.shape) == 2 and len(second.shape) >= 2:
        rank = len(second.shape)
        order = (*range(rank - 2), rank - 1, rank - 2)
        turned = product(site, site.transposed(b, order), a, transposed=True)
        return site.transposed(turned, order)
    form = matrix_product(
        first.shape,
        second.shape,
        transposed=transposed,
        dtypes=(first.dtype, second.dtype),
        varying=not builder.is_constant(b),
    )
    sums = site.emit(form.product, a, b)
    return site.cast(sums, first.dtype) if "float" in first.dtype else sums


def matmul(site: Site) -> str:
    return product(site, site.input(0), site.input(1))


def gemm(site: Site) -> str:
    a, b, c = site.input(0), site.input(1), site.optional(2)
    alpha, beta = site.number("alpha", 1.0), site.number("beta", 1.0)
    if not site.rank(0) == site.rank(1) == 2:
        raise WorkloadError(f"a product of {site.type(0)} and {site.type(1)}: give matrices")
    if site.flag("transA"):
        a = site.transposed(a, (1, 0))
    transposed = site.flag("transB")
    result = product(site, a, b, transposed=transposed)
    if alpha != 1.0:
        result = site.elementwise(mul(X, alpha), result)
    if c is not None and beta != 0.0:
        added = Y if beta == 1.0 else mul(Y, beta)
        result = site.elementwise(add(X, added), result, c)
    _remember(site, a, result, transposed, alpha, beta)
    return result


def _remember(site: Site, a: str, result: str, transposed: bool, alpha: float, beta: float) -> None:
    weights, c = site.builder.value(site.input(1)), site.optional(2)
    bias = None if c is None else site.builder.value(c)
    columns = site.type_of(result).shape[1]
    plain = alpha == beta == 1.0 and not site.builder.is_quantized(site.input(1))
    if not plain or weights is None or (c is not None and bias is None):
        return
    if bias is not None and bias.shape not in ((), (1,), (columns,), (1, columns)):
        return
    start = np.zeros(columns, weights.dtype) if bias is None else bias.reshape(-1)

    def rebuild(other: Array, offset: Array) -> str:
        tensor = product(site, a, site.tensor(other), transposed=transposed)
        return site.elementwise(add(X, Y), tensor, site.tensor(offset))

    remember(site, result, Affine(weights, start, 0 if transposed else 1, rebuild))


TABLE: dict[str, Translation] = {"MatMul": matmul, "Gemm": gemm}
