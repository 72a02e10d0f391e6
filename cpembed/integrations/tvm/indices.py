"""TensorIR index expressions and the conditions of padded reads, as the package's own."""
# pyright: basic

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tvm import ir, tirx

from cpembed.errors import WorkloadError
from cpembed.ir.index import IndexExpr, IndexTerm


def read_index(node: Any, iterators: Mapping[Any, str], extents: Mapping[str, int]) -> IndexExpr:
    """A sum of iterators and their digits (``i // 4 % 3``) with factors.

    An iterator of one value is left out beside others. Raises :class:`WorkloadError` for any other
    expression.
    """
    index = _read(node, iterators)
    terms = [term for term in index.terms if extents[term.iterator] > 1]
    return IndexExpr(tuple(terms), index.constant) if terms else index


def _read(node: Any, iterators: Mapping[Any, str]) -> IndexExpr:
    if isinstance(node, tirx.IntImm):
        return IndexExpr((), int(node.value))
    if isinstance(node, tirx.Var) and node in iterators:
        return IndexExpr.iterator(iterators[node])
    if isinstance(node, tirx.Cast):
        return _read(node.value, iterators)
    if isinstance(node, tirx.Add):
        return _read(node.a, iterators) + _read(node.b, iterators)
    if isinstance(node, tirx.Sub):
        return _read(node.a, iterators) + _scaled(_read(node.b, iterators), -1)
    if isinstance(node, tirx.Mul):
        for factor, other in ((node.a, node.b), (node.b, node.a)):
            if isinstance(factor, tirx.IntImm):
                return _scaled(_read(other, iterators), int(factor.value))
    if isinstance(node, tirx.FloorDiv | tirx.FloorMod) and isinstance(node.b, tirx.IntImm):
        inner = _read(node.a, iterators)
        if len(inner.terms) == 1 and not inner.constant and inner.terms[0].coefficient == 1:
            return _digit(inner.terms[0], isinstance(node, tirx.FloorDiv), int(node.b.value))
    raise WorkloadError(f"index {node} is not affine in the loops")


def _scaled(index: IndexExpr, factor: int) -> IndexExpr:
    return IndexExpr.of((term.times(factor) for term in index.terms), index.constant * factor)


def _digit(term: IndexTerm, is_quotient: bool, number: int) -> IndexExpr:
    """A quotient or a remainder of a digit, which is a digit where the numbers nest."""
    modulus = term.modulus
    if modulus is not None and modulus % number:
        raise WorkloadError(f"index {term.text()} is cut at {number}, which does not divide it")
    if is_quotient:
        left = None if modulus is None else modulus // number
        term = replace(term, divisor=term.divisor * number, modulus=left)
    else:
        term = replace(term, modulus=number)
    return IndexExpr.of([term])


def read_window(node: Any) -> tuple[list[Any], Any] | None:
    """Of a read that is zero where conditions fail, expressions that are not negative where they
    hold, and the read; None for any other expression."""
    branches = _branches(node)
    if branches is None:
        return None
    condition, value, otherwise = branches
    is_zero = isinstance(otherwise, tirx.IntImm | tirx.FloatImm) and otherwise.value == 0
    if not is_zero or not isinstance(value, ir.TensorLoad):
        return None
    margins = _margins(condition)
    return None if margins is None else (margins, value)


def is_conditional(node: Any) -> bool:
    """Whether an expression has a condition."""
    return _branches(node) is not None


def _branches(node: Any) -> tuple[Any, Any, Any] | None:
    """Condition, value where it holds, value where it does not."""
    if isinstance(node, tirx.Select):
        return node.condition, node.true_value, node.false_value
    if isinstance(node, ir.Call) and getattr(node.op, "name", None) == "prim.if_then_else":
        condition, value, otherwise = node.args
        return condition, value, otherwise
    return None


def _margins(condition: Any) -> list[Any] | None:
    if isinstance(condition, tirx.And):
        left, right = (_margins(getattr(condition, side)) for side in "ab")
        return None if left is None or right is None else left + right
    for kind, least, greatest, gap in (
        (tirx.LE, "a", "b", 0),
        (tirx.LT, "a", "b", 1),
        (tirx.GE, "b", "a", 0),
        (tirx.GT, "b", "a", 1),
    ):
        if isinstance(condition, kind):
            return [getattr(condition, greatest) - getattr(condition, least) - gap]
    return None
