"""Matrix-vector multiplication."""

from __future__ import annotations

from cpembed.ir.computation import Computation
from cpembed.ir.parser import parse_computation
from cpembed.operators.family import DTYPE, Dtypes, OperatorFamily, Parameter, ParameterKind


def gemv(*, m: int, k: int, trans_a: bool = False, dtype: Dtypes = None) -> Computation:
    """``C[m] += A[m,k] * B[k]``; a transposed matrix is stored ``A[k,m]``.

    >>> str(gemv(m=4, k=6, trans_a=True))
    'C[m] += (A[k, m] * B[k])'
    """
    GEMV.check_sizes(m=m, k=k)
    a, b, c = GEMV.dtypes(dtype, GEMV.inputs)
    return parse_computation(
        f"C[m] += A[{'k,m' if trans_a else 'm,k'}] * B[k]",
        {"m": m, "k": k},
        name="gemv",
        dtypes={"A": a, "B": b, "C": c},
    )


GEMV = OperatorFamily(
    "gemv",
    "matrix-vector multiplication C[m] += A[m,k] * B[k]",
    gemv,
    (
        Parameter("m", "rows"),
        Parameter("k", "reduction"),
        Parameter("trans_a", "1: A is stored [k,m]", ParameterKind.FLAG, "0"),
        DTYPE,
    ),
)
