"""Matrix multiplication."""

from __future__ import annotations

from cpembed.ir.computation import Computation
from cpembed.ir.parser import parse_computation
from cpembed.operators.family import DTYPE, Dtypes, OperatorFamily, Parameter, ParameterKind


def gemm(
    *,
    m: int,
    n: int,
    k: int,
    trans_a: bool = False,
    trans_b: bool = False,
    dtype: Dtypes = None,
) -> Computation:
    """``C[m,n] += A[m,k] * B[k,n]``; transposed operands are stored ``A[k,m]`` and ``B[n,k]``.

    >>> str(gemm(m=4, n=5, k=6, trans_b=True))
    'C[m, n] += (A[m, k] * B[n, k])'
    """
    GEMM.check_sizes(m=m, n=n, k=k)
    a, b, c = GEMM.dtypes(dtype, 2)
    return parse_computation(
        f"C[m,n] += A[{'k,m' if trans_a else 'm,k'}] * B[{'n,k' if trans_b else 'k,n'}]",
        {"m": m, "n": n, "k": k},
        name="gemm",
        dtypes={"A": a, "B": b, "C": c},
    )


GEMM = OperatorFamily(
    "gemm",
    "matrix multiplication C[m,n] += A[m,k] * B[k,n]",
    gemm,
    (
        Parameter("m", "rows of C"),
        Parameter("n", "columns of C"),
        Parameter("k", "reduction"),
        Parameter("trans_a", "1: A is stored [k,m]", ParameterKind.FLAG, "0"),
        Parameter("trans_b", "1: B is stored [n,k]", ParameterKind.FLAG, "0"),
        DTYPE,
    ),
)
