"""Vector scaled by a number, added to another vector."""

from __future__ import annotations

from cpembed.ir.computation import Computation
from cpembed.ir.parser import parse_computation
from cpembed.operators.family import DTYPE, Dtypes, OperatorFamily, Parameter


def axpy(*, m: int, dtype: Dtypes = None) -> Computation:
    """``C[m] += A[] * B[m]``; A is a scalar: an operand without dimensions.

    No axis is a reduction, yet the result is added to C. As every computation it starts from
    zero: a caller who has a C adds the product to it.

    >>> [axis.kind.value for axis in axpy(m=4).axes], axpy(m=4).statement.reduction
    (['spatial'], 'add')
    """
    AXPY.check_sizes(m=m)
    a, b, c = AXPY.dtypes(dtype, AXPY.inputs)
    return parse_computation(
        "C[m] += A[] * B[m]", {"m": m}, name="axpy", dtypes={"A": a, "B": b, "C": c}
    )


AXPY = OperatorFamily(
    "axpy",
    "scaled vector C[m] += A[] * B[m]",
    axpy,
    (Parameter("m", "elements"), DTYPE),
)
