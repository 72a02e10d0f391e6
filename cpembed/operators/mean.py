"""Means, sums and variances of the rows of a matrix."""

from __future__ import annotations

from cpembed.ir.computation import Computation
from cpembed.ir.parser import parse_computation
from cpembed.operators.family import DTYPE, Dtypes, OperatorFamily, Parameter
from cpembed.operators.gemv import COLUMN


def mean(*, m: int, k: int, column: bool = False, dtype: Dtypes = None) -> Computation:
    """``O[m] += A[m,k] * W[k]``; every element of W is ``1/k``.

    The mean as a product: a channel of a batch of images is a row. With integers W holds ones and
    the sum is divided afterwards; other weights give a weighted mean. With ``column`` it is
    ``O[m,n] += A[m,k] * W[k,n]`` with n of extent 1, the form that maps to a matrix unit (AMOS
    2022, "MEN"); see :func:`cpembed.operators.gemv.gemv`.
    """
    return _weighted_sum(MEAN, "A", m, k, column, dtype)


def variance(*, m: int, k: int, column: bool = False, dtype: Dtypes = None) -> Computation:
    """``O[m] += D[m,k] * W[k]``; D are the squared deviations, every element of W is ``1/k``.

    The contraction that AMOS (2022, "VAR") maps to a matrix unit: the squared deviations from the
    row's mean are computed element by element before it, and are its operand. W and ``column`` as
    in :func:`mean`.
    """
    return _weighted_sum(VARIANCE, "D", m, k, column, dtype)


def _weighted_sum(
    family: OperatorFamily, matrix: str, m: int, k: int, column: bool, dtype: Dtypes
) -> Computation:
    family.check_sizes(m=m, k=k)
    a, w, o = family.dtypes(dtype, family.inputs)
    n = ",n" if column else ""
    return parse_computation(
        f"O[m{n}] += {matrix}[m,k] * W[k{n}]",
        {"m": m, **({"n": 1} if column else {}), "k": k},
        name=family.name,
        dtypes={matrix: a, "W": w, "O": o},
    )


def row_sum(*, m: int, k: int, dtype: Dtypes = None) -> Computation:
    """``O[m] += A[m,k]``: the reduction without a multiplication.

    >>> len(row_sum(m=4, k=6).inputs)
    1
    """
    ROW_SUM.check_sizes(m=m, k=k)
    a, o = ROW_SUM.dtypes(dtype, ROW_SUM.inputs)
    return parse_computation(
        "O[m] += A[m,k]", {"m": m, "k": k}, name="row_sum", dtypes={"A": a, "O": o}
    )


_SIZES = (Parameter("m", "rows"), Parameter("k", "elements of a row"))

MEAN = OperatorFamily(
    "mean",
    "mean of rows O[m] += A[m,k] * W[k], each W[k] being 1/k",
    mean,
    (*_SIZES, COLUMN, DTYPE),
)
VARIANCE = OperatorFamily(
    "variance",
    "variance of rows O[m] += D[m,k] * W[k], D the squared deviations, each W[k] being 1/k",
    variance,
    (*_SIZES, COLUMN, DTYPE),
)
ROW_SUM = OperatorFamily(
    "row_sum", "sum of rows O[m] += A[m,k]", row_sum, (*_SIZES, DTYPE), inputs=1
)
