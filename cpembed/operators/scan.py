"""Prefix sums as a matrix product."""

from __future__ import annotations

from cpembed.ir.computation import Computation
from cpembed.ir.parser import parse_computation
from cpembed.operators.family import DTYPE, Dtypes, OperatorFamily, Parameter


def scan(*, m: int, n: int, k: int, dtype: Dtypes = None) -> Computation:
    """``C[m,n] += A[m,k] * B[k,n]``; ``B[k,n]`` is 1 where ``k <= n``, else 0.

    The form of AMOS (2022, "SCN") and of scans on matrix units (Dakkak et al. 2019): column n of C
    is the sum of the columns of A up to n. A scan of whole rows has ``n = k``; smaller n stops it
    early, larger n repeats the last column. B is an operand as any other: whoever runs the
    operator fills it.
    """
    SCAN.check_sizes(m=m, n=n, k=k)
    a, b, c = SCAN.dtypes(dtype, SCAN.inputs)
    return parse_computation(
        "C[m,n] += A[m,k] * B[k,n]",
        {"m": m, "n": n, "k": k},
        name="scan",
        dtypes={"A": a, "B": b, "C": c},
    )


SCAN = OperatorFamily(
    "scan",
    "prefix sums of rows C[m,n] += A[m,k] * B[k,n], B[k,n] being 1 for k <= n, else 0",
    scan,
    (
        Parameter("m", "rows"),
        Parameter("n", "prefix sums of a row"),
        Parameter("k", "elements of a row"),
        DTYPE,
    ),
)
