"""Matrix multiplications side by side, such as the two products of attention."""

from __future__ import annotations

from cpembed.ir.computation import Computation
from cpembed.operators.family import Dtypes, OperatorFamily, Parameter
from cpembed.operators.gemm import PRODUCT, matrix_product


def batched_gemm(
    *,
    b: int,
    m: int,
    n: int,
    k: int,
    trans_a: bool = False,
    trans_b: bool = False,
    dtype: Dtypes = None,
) -> Computation:
    """``C[b,m,n] += A[b,m,k] * B[b,k,n]``; transposed operands are stored ``A[b,k,m]`` and
    ``B[b,n,k]``.

    Both factors are made while a network runs, so neither can be packed ahead. In attention of
    h heads (Vaswani et al. 2017, 3.2) ``b=h m=t n=t k=d trans_b=1`` are the scores of t tokens, and
    ``b=h m=t n=d k=t`` their sums of values.

    >>> str(batched_gemm(b=2, m=4, n=5, k=6, trans_b=True))
    'C[b, m, n] += (A[b, m, k] * B[b, n, k])'
    """
    extents = {"b": b, "m": m, "n": n, "k": k}
    return matrix_product(
        BATCHED_GEMM, extents, trans_a=trans_a, trans_b=trans_b, dtype=dtype, varying=("B",)
    )


BATCHED_GEMM = OperatorFamily(
    "batched_gemm",
    "matrix multiplications C[b,m,n] += A[b,m,k] * B[b,k,n]",
    batched_gemm,
    (Parameter("b", "products"), *PRODUCT),
)
