"""Matrix-vector multiplication."""

from __future__ import annotations

from cpembed.ir.computation import Computation
from cpembed.ir.parser import parse_computation
from cpembed.operators.family import DTYPE, Dtypes, OperatorFamily, Parameter, ParameterKind

COLUMN = Parameter(
    "column", "1: vectors are matrices of one column, an axis n", ParameterKind.FLAG, "0"
)


def gemv(
    *, m: int, k: int, trans_a: bool = False, column: bool = False, dtype: Dtypes = None
) -> Computation:
    """``C[m] += A[m,k] * B[k]``; a transposed matrix is stored ``A[k,m]``.

    With ``column`` the vectors are matrices of one column, ``C[m,n] += A[m,k] * B[k,n]`` with n of
    extent 1: a unit that multiplies matrices then takes the product, mostly padding, which is how
    AMOS (2022, "GMV") maps it to one. In memory nothing differs.

    >>> str(gemv(m=4, k=6, trans_a=True))
    'C[m] += (A[k, m] * B[k])'
    """
    GEMV.check_sizes(m=m, k=k)
    a, b, c = GEMV.dtypes(dtype, GEMV.inputs)
    n = ",n" if column else ""
    return parse_computation(
        f"C[m{n}] += A[{'k,m' if trans_a else 'm,k'}] * B[k{n}]",
        {"m": m, **({"n": 1} if column else {}), "k": k},
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
        COLUMN,
        DTYPE,
    ),
)
