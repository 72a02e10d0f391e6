"""Matrix multiplication."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from cpembed.ir.computation import Computation
from cpembed.ir.parser import parse_computation
from cpembed.operators.family import DTYPE, Dtypes, OperatorFamily, Parameter, ParameterKind


def matrix_product(
    family: OperatorFamily,
    extents: Mapping[str, int],
    *,
    trans_a: bool,
    trans_b: bool,
    dtype: Dtypes,
    varying: Collection[str] = (),
) -> Computation:
    """``C[..,m,n] += A[..,m,k] * B[..,k,n]``: axes other than m, n and k number products side by
    side. ``varying``: as for :func:`~cpembed.ir.parser.parse_computation`."""
    family.check_sizes(**extents)
    batch = "".join(f"{axis}," for axis in extents if axis not in "mnk")
    left, right = "k,m" if trans_a else "m,k", "n,k" if trans_b else "k,n"
    return parse_computation(
        f"C[{batch}m,n] += A[{batch}{left}] * B[{batch}{right}]",
        extents,
        name=family.name,
        dtypes=dict(zip("ABC", family.dtypes(dtype, family.inputs), strict=True)),
        varying=varying,
    )


PRODUCT = (
    Parameter("m", "rows of C"),
    Parameter("n", "columns of C"),
    Parameter("k", "reduction"),
    Parameter("trans_a", "1: A is stored with k before m", ParameterKind.FLAG, "0"),
    Parameter("trans_b", "1: B is stored with n before k", ParameterKind.FLAG, "0"),
    DTYPE,
)
"""What every matrix product takes."""


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
    extents = {"m": m, "n": n, "k": k}
    return matrix_product(GEMM, extents, trans_a=trans_a, trans_b=trans_b, dtype=dtype)


GEMM = OperatorFamily("gemm", "matrix multiplication C[m,n] += A[m,k] * B[k,n]", gemm, PRODUCT)
