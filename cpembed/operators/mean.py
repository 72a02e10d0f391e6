"""Means, sums and variances of the rows of a matrix."""

from __future__ import annotations

from cpembed.ir.computation import Computation
from cpembed.ir.parser import parse_computation
from cpembed.operators.family import DTYPE, Dtypes, OperatorFamily, Parameter


def mean(*, m: int, k: int, dtype: Dtypes = None) -> Computation:
    """``O[m] += A[m,k] * W[k]``; every element of W is ``1/k``.

    The mean as a product, the form in which it maps to a matrix unit (AMOS 2022, "MEN"): a channel
    of a batch of images is a row. With integers W holds ones and the sum is divided afterwards;
    other weights give a weighted mean.
    """
    MEAN.check_sizes(m=m, k=k)
    a, w, o = MEAN.dtypes(dtype, MEAN.inputs)
    return parse_computation(
        "O[m] += A[m,k] * W[k]", {"m": m, "k": k}, name="mean", dtypes={"A": a, "W": w, "O": o}
    )


def variance(*, m: int, k: int, dtype: Dtypes = None) -> Computation:
    """``O[m] += D[m,k] * W[k]``; D are the squared deviations, every element of W is ``1/k``.

    The contraction that AMOS (2022, "VAR") maps to a matrix unit: the squared deviations from the
    row's mean are computed element by element before it, and are its operand. W as in
    :func:`mean`.
    """
    VARIANCE.check_sizes(m=m, k=k)
    d, w, o = VARIANCE.dtypes(dtype, VARIANCE.inputs)
    return parse_computation(
        "O[m] += D[m,k] * W[k]",
        {"m": m, "k": k},
        name="variance",
        dtypes={"D": d, "W": w, "O": o},
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


_MATRIX = (Parameter("m", "rows"), Parameter("k", "elements of a row"), DTYPE)

MEAN = OperatorFamily(
    "mean", "mean of rows O[m] += A[m,k] * W[k], each W[k] being 1/k", mean, _MATRIX
)
VARIANCE = OperatorFamily(
    "variance",
    "variance of rows O[m] += D[m,k] * W[k], D the squared deviations, each W[k] being 1/k",
    variance,
    _MATRIX,
)
ROW_SUM = OperatorFamily("row_sum", "sum of rows O[m] += A[m,k]", row_sum, _MATRIX, inputs=1)
