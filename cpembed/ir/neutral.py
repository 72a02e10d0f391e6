"""When padding an axis leaves a computation's results alone.

A padded point writes outside the output, and is dropped, or it adds zero: some of its operands are
outside their shape, hence zero, and that makes the value zero whatever the others hold.
"""

from __future__ import annotations

from collections.abc import Collection

from cpembed.ir.computation import Assignment, Computation
from cpembed.ir.expression import Access, Cast, Constant, Expression, Operation


def is_neutral(computation: Computation, axis: str) -> bool:
    """Whether points beyond the extent of an axis change no result.

    >>> from cpembed.ir.parser import parse_computation
    >>> sizes = {"n": 4, "k": 3}
    >>> [is_neutral(parse_computation(text, sizes), "k") for text in
    ...  ("O[n] += A[n,k] * B[k]", "O[n] += abs(A[n,k] - B[k])", "O[n] max= A[n,k]")]
    [True, True, False]
    """
    return all(_spares(computation, statement, axis) for statement in computation.statements)


def _spares(computation: Computation, statement: Assignment, axis: str) -> bool:
    if _leaves(computation, statement.store, axis):
        return True
    if statement.reduction != "add":
        return False
    outside = {read for read in statement.reads if _leaves(computation, read, axis)}
    return is_zero(statement.value, outside)


def is_zero(value: Expression, zero: Collection[Access]) -> bool:
    """Whether a value is zero for certain where the given reads are."""
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
