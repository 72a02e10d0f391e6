"""How far a vector reaches in memory: elements that consecutive steps of an axis read at once."""

from __future__ import annotations

from dataclasses import dataclass

from cpembed.ir.index import IndexExpr, IndexTerm
from cpembed.transform.program import PackedOperand


@dataclass(frozen=True)
class Movement:
    """Of an index within an aligned group of steps of an axis: by how much each step moves it, 0 or
    1, and whether the group begins at a multiple of its length."""

    step: int
    aligned: bool


def vector_length(operand: PackedOperand, axis: str, longest: int) -> int:
    """The largest power of two, up to ``longest``, of steps along an axis that are neighbours in
    the operand's memory, begin at a multiple of it, and are inside the operand all or none."""
    length = longest
    while length > 1:
        if _fits(operand, axis, length):
            return length
        length //= 2
    return 1


def _fits(operand: PackedOperand, axis: str, length: int) -> bool:
    *outer, last = operand.access
    if operand.shape[-1] % length:
        return False
    moved = movement(last, axis, length)
    if moved is None or moved.step != 1 or not moved.aligned:
        return False
    others = [movement(index, axis, length) for index in outer]
    return all(other is not None and other.step == 0 for other in others)


def movement(index: IndexExpr, axis: str, length: int) -> Movement | None:
    """None where steps of the axis move the index in another way, or not alike in each group."""
    step, aligned = 0, index.constant % length == 0
    for term in index.terms:
        found = _of_term(term, axis, length)
        if found is None:
            return None
        step += found.step
        aligned = aligned and found.aligned
    return Movement(step, aligned) if step in (0, 1) else None


def _of_term(term: IndexTerm, axis: str, length: int) -> Movement | None:
    whole = term.coefficient % length == 0
    if axis not in term.iterators:
        return Movement(0, whole)
    if term.inner is not None:
        inner = movement(term.inner, axis, length)
        if inner is None:
            return None
        if inner.step == 0:
            return Movement(0, whole)
        if not inner.aligned:
            return None
    if term.divisor % length == 0:
        # All of a group has the same digit.
        return Movement(0, whole)
    walks = term.divisor == 1 and (term.modulus is None or term.modulus % length == 0)
    return Movement(1, True) if walks and term.coefficient == 1 else None
