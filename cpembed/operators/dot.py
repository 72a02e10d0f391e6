"""Dot product of two vectors."""

from __future__ import annotations

from cpembed.ir.computation import Computation
from cpembed.ir.parser import parse_computation
from cpembed.operators.family import DTYPE, Dtypes, OperatorFamily, Parameter


def dot(*, k: int, dtype: Dtypes = None) -> Computation:
    """``C[] += A[k] * B[k]``; C is a scalar: an operand without dimensions.

    >>> dot(k=4).output.shape
    ()
    """
    DOT.check_sizes(k=k)
    a, b, c = DOT.dtypes(dtype, DOT.inputs)
    return parse_computation(
        "C[] += A[k] * B[k]", {"k": k}, name="dot", dtypes={"A": a, "B": b, "C": c}
    )


DOT = OperatorFamily(
    "dot",
    "dot product C[] += A[k] * B[k]",
    dot,
    (Parameter("k", "reduction"), DTYPE),
)
