"""Matrix multiplications side by side, such as the two products of attention."""

from __future__ import annotations

from cpembed.ir.computation import Computation
from cpembed.ir.parser import parse_computation
from cpembed.operators.family import DTYPE, Dtypes, OperatorFamily, Parameter, ParameterKind


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
    BATCHED_GEMM.check_sizes(b=b, m=m, n=n, k=k)
    types = dict(zip("ABC", BATCHED_GEMM.dtypes(dtype, 2), strict=True))
    left, right = "k,m" if trans_a else "m,k", "n,k" if trans_b else "k,n"
    return parse_computation(
        f"C[b,m,n] += A[b,{left}] * B[b,{right}]",
        {"b": b, "m": m, "n": n, "k": k},
        name="batched_gemm",
        dtypes=types,
        varying=("B",),
    )


BATCHED_GEMM = OperatorFamily(
    "batched_gemm",
    "matrix multiplications C[b,m,n] += A[b,m,k] * B[b,k,n]",
    batched_gemm,
    (
        Parameter("b", "products"),
        Parameter("m", "rows of C"),
        Parameter("n", "columns of C"),
        Parameter("k", "reduction"),
        Parameter("trans_a", "1: A is stored [b,k,m]", ParameterKind.FLAG, "0"),
        Parameter("trans_b", "1: B is stored [b,n,k]", ParameterKind.FLAG, "0"),
        DTYPE,
    ),
)
