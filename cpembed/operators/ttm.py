"""Tensor times matrix."""

from __future__ import annotations

from cpembed.ir.computation import Computation
from cpembed.ir.parser import parse_computation
from cpembed.operators.family import DTYPE, Dtypes, OperatorFamily, Parameter


def ttm(*, i: int, j: int, k: int, l: int, dtype: Dtypes = None) -> Computation:  # noqa: E741
    """``C[i,j,k] += A[i,j,l] * B[l,k]``; axes i, j, k, l.

    A tensor of three dimensions is multiplied by a matrix along its last: a workload of HASCO
    (2021).
    """
    TTM.check_sizes(i=i, j=j, k=k, l=l)
    a, b, c = TTM.dtypes(dtype, TTM.inputs)
    return parse_computation(
        "C[i,j,k] += A[i,j,l] * B[l,k]",
        {"i": i, "j": j, "k": k, "l": l},
        name="ttm",
        dtypes={"A": a, "B": b, "C": c},
    )


TTM = OperatorFamily(
    "ttm",
    "tensor times matrix C[i,j,k] += A[i,j,l] * B[l,k]",
    ttm,
    (
        Parameter("i", "first dimension of the tensor"),
        Parameter("j", "second dimension of the tensor"),
        Parameter("k", "columns of the matrix"),
        Parameter("l", "reduction: last dimension of the tensor, rows of the matrix"),
        DTYPE,
    ),
)
