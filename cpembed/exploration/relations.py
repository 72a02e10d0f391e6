"""Relations between the parameters of a space: ``pe_rows == pe_columns``, ``banks * 8 <= rows``.

What a person writes is parsed as an expression of Python and walked: comparisons of sums, products
and whole quotients of parameters and constants, and nothing else.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from cpembed.errors import SpecError
from cpembed.hw.schema import close_match

_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_OPERATIONS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: lambda first, second: first // second,
    ast.Mod: operator.mod,
}
_ALLOWED = (
    "a relation compares (== != < <= > >=) sums, differences, products, // and % of parameters"
)
_LONGEST = 500
"""Characters."""

_LARGEST = 10**30
"""Of a value in between: far beyond any size, and quick to compute with."""


@dataclass(frozen=True)
class Relation:
    """``text`` as it was written; ``names`` are the parameters in it."""

    text: str
    names: frozenset[str]
    tree: ast.expr = field(compare=False, repr=False)

    def holds(self, point: Mapping[str, Any]) -> bool:
        """Raises :class:`SpecError` where it has no value: types that do not compare, a quotient
        by 0."""
        try:
            return bool(_value(self.tree, point))
        except (TypeError, ZeroDivisionError, OverflowError) as error:
            values = ", ".join(f"{name} = {point[name]!r}" for name in sorted(self.names))
            raise SpecError(f"{self.text!r} has no value at {values}: {error}") from None


def read_relation(text: str, parameters: Collection[str]) -> Relation:
    """Raises :class:`SpecError` for what is no relation, and for an unknown parameter."""
    if len(text) > _LONGEST:
        raise SpecError(f"{text!r} is longer than {_LONGEST} characters")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise SpecError(f"{text!r} is no expression; {_ALLOWED}") from None
    if not isinstance(tree, ast.Compare):
        raise SpecError(f"{text!r} compares nothing; {_ALLOWED}")
    if not all(type(op) in _COMPARISONS for op in tree.ops):
        raise SpecError(f"{text!r}: this comparison is not allowed; {_ALLOWED}")
    sides = (tree.left, *tree.comparators)
    names = frozenset[str]().union(*(_names(side, text) for side in sides))
    for name in sorted(names):
        if name not in parameters:
            raise SpecError(f"{text!r}: no parameter {name!r}{close_match(name, parameters)}")
    return Relation(text, names, tree)


def _names(node: ast.AST, text: str) -> set[str]:
    """The parameters in a side of a comparison, all of whose parts are allowed."""
    match node:
        case ast.Name(id=name):
            return {name}
        case ast.Constant(value=int() | float() | str() as value) if not isinstance(value, bool):
            return set()
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATIONS:
            return _names(left, text) | _names(right, text)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _names(operand, text)
        case _:
            part = ast.unparse(node)
            raise SpecError(f"{text!r}: {part!r} is not allowed; {_ALLOWED}")


def _value(node: ast.AST, point: Mapping[str, Any]) -> Any:
    match node:
        case ast.Name(id=name):
            return point[name]
        case ast.Constant(value=value):
            return value
        case ast.Compare(left=left, ops=ops, comparators=others):
            values = [_value(left, point), *(_value(other, point) for other in others)]
            pairs = zip(ops, values, values[1:], strict=False)
            return all(_COMPARISONS[type(op)](first, second) for op, first, second in pairs)
        case ast.BinOp(left=left, op=op, right=right):
            first, second = _value(left, point), _value(right, point)
            if isinstance(first, str) or isinstance(second, str):
                raise TypeError("text is compared, not computed with")
            found = _OPERATIONS[type(op)](first, second)
            if abs(found) > _LARGEST:
                raise OverflowError("a number beyond any size")
            return found
        case ast.UnaryOp(operand=operand):
            return -_value(operand, point)
        case _:
            raise AssertionError("read_relation lets nothing else pass")
