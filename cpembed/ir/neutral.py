"""Axes whose padding does not change a computation's results.

A padded point writes outside the output, where it is dropped, or it adds zero: some of its operands
are read outside their shape, hence zero, and make the value zero whatever the remaining ones hold.
"""

from __future__ import annotations

from collections.abc import Collection

from cpembed.ir.computation import Assignment, Computation
from cpembed.ir.expression import Access, Cast, Constant, Expression, Operation


def is_neutral(computation: Computation, axis: str) -> bool:
    """True if points beyond the extent of an axis change no result.

    >>> from cpembed.ir.parser import parse_computation
    >>> sizes = {"n": 4, "k": 3}
    >>> [is_neutral(parse_computation(text, sizes), "k") for text in
    ...  ("O[n] += A[n,k] * B[k]", "O[n] += abs(A[n,k] - B[k])", "O[n] max= A[n,k]")]
    [True, True, False]
    """
    return all(_preserves(computation, statement, axis) for statement in computation.statements)


def _preserves(computation: Computation, statement: Assignment, axis: str) -> bool:
    if _leaves(computation, statement.store, axis):
        return True
    if statement.reduction != "add":
        return False
    outside = {read for read in statement.reads if _leaves(computation, read, axis)}
    return is_zero(statement.value, outside)


def is_zero(value: Expression, zero: Collection[Access]) -> bool:
    """True if a value is certainly zero when all these reads are."""
    if isinstance(value, Access):
        return value in zero
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
    """True if an access leaves its operand as soon as the axis exceeds its extent.

    Some dimension then is indexed by this axis alone, without a remainder, and ends with the axis.
    """
    shape = computation.operand(access.operand).shape
    for index, size in zip(access.index, shape, strict=True):
        if index.iterators != (axis,) or len(index.terms) != 1:
            continue
        term = index.terms[0]
        exact = computation.extents[axis] % term.divisor == 0
        if term.modulus is None and term.inner is None and exact:
            # Later points are even further out, so the first one beyond the axis decides.
            position = term.coefficient * (computation.extents[axis] // term.divisor)
            position += index.constant
            if position >= size if term.coefficient > 0 else position < 0:
                return True
    return False
