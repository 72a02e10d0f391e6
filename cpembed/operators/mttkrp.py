"""Matricised tensor times Khatri-Rao product."""

from __future__ import annotations

from cpembed.ir.computation import Computation
from cpembed.ir.parser import parse_computation
from cpembed.operators.family import DTYPE, Dtypes, OperatorFamily, Parameter


def mttkrp(*, i: int, j: int, k: int, l: int, dtype: Dtypes = None) -> Computation:  # noqa: E741
    """``D[i,j] += A[i,k,l] * B[l,j] * C[k,j]``; axes i, j, k, l.

    A product of three factors: an instruction that multiplies two does not embed in it. HASCO
    (2021) splits it in two: ``E[i,k,j] += A[i,k,l] * B[l,j]``, which is a ``ttm``, and
    ``D[i,j] += E[i,k,j] * C[k,j]``.
    """
    MTTKRP.check_sizes(i=i, j=j, k=k, l=l)
    a, b, c, d = MTTKRP.dtypes(dtype, MTTKRP.inputs)
    return parse_computation(
        "D[i,j] += A[i,k,l] * B[l,j] * C[k,j]",
        {"i": i, "j": j, "k": k, "l": l},
        name="mttkrp",
        dtypes={"A": a, "B": b, "C": c, "D": d},
    )


MTTKRP = OperatorFamily(
    "mttkrp",
    "tensor times Khatri-Rao product D[i,j] += A[i,k,l] * B[l,j] * C[k,j]",
    mttkrp,
    (
        Parameter("i", "first dimension of the tensor, rows of D"),
        Parameter("j", "columns of D"),
        Parameter("k", "reduction: second dimension of the tensor"),
        Parameter("l", "reduction: third dimension of the tensor"),
        DTYPE,
    ),
    inputs=3,
)
