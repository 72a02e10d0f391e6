"""When padding an axis leaves a computation's results alone.

A padded point writes outside the output, and is dropped, or it adds zero: some of its operands are
outside their shape, hence zero, and that makes the value zero whatever the others hold.
"""

from __future__ import annotations

from collections.abc import Collection

from cpembed.ir.computation import Computation
from cpembed.ir.expression import Access, Cast, Constant, Expression, Operation


def is_neutral(computation: Computation, axis: str) -> bool:
    """Whether points beyond the extent of an axis change no result.

    >>> from cpembed.ir.parser import parse_computation
    >>> sizes = {"n": 4, "k": 3}
    >>> [is_neutral(parse_computation(text, sizes), "k") for text in
    ...  ("O[n] += A[n,k] * B[k]", "O[n] += abs(A[n,k] - B[k])", "O[n] max= A[n,k]")]
    [True, True, False]
    """
    if _leaves(computation, computation.store, axis):
        return True
    if computation.reduction != "add":
        return False
    outside = {read.operand for read in computation.reads if _leaves(computation, read, axis)}
    return is_zero(computation.value, outside)


def is_zero(value: Expression, zero: Collection[str]) -> bool:
    """Whether a value is zero for certain where the named operands are."""
    if isinstance(value, Access):
        return value.operand in zero
    if isinstance(value, Constant):
        return value.value == 0
    if isinstance(value, Cast):
        return is_zero(value.arg, zero)
    assert isinstance(value, Operation)
    parts = [is_zero(arg, zero) for arg in value.args]
    if value.op == "mul":
        return any(parts)
    return parts[0] if value.op == "shr" else all(parts)


def _leaves(computation: Computation, access: Access, axis: str) -> bool:
    """Whether an access leaves its operand once the axis exceeds its extent: some dimension is
    indexed by the axis alone, without a remainder, and ends where the axis does."""
    shape = computation.operand(access.operand).shape
    for index, size in zip(access.index, shape, strict=True):
        if index.iterators != (axis,) or len(index.terms) != 1:
            continue
        term = index.terms[0]
        exact = computation.extents[axis] % term.divisor == 0
        if term.modulus is None and term.inner is None and exact:
            # Where the first point beyond the axis reads; later ones are further out.
            beyond = term.coefficient * (computation.extents[axis] // term.divisor)
            beyond += index.constant
            if beyond >= size if term.coefficient > 0 else beyond < 0:
                return True
    return False
