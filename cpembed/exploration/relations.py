"""Relations and expressions over parameters of a space, as a person writes them.

>>> names = {"axes.x", 'memories."on.chip".banks'}
>>> relation = read_relation('axes.x * 2 <= memories."on.chip".banks', names)
>>> relation.holds({"axes.x": 2, 'memories."on.chip".banks': 4})
True
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from cpembed.errors import SpecError
from cpembed.exploration.described.keys import read_key
from cpembed.hw.schema import close_match, key_path

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
    ast.Div: lambda first, second: first / second,
    ast.FloorDiv: lambda first, second: first // second,
    ast.Mod: operator.mod,
}
_VALUES = "sums, differences, products, /, // and % of parameters"
_ALLOWED = f"a relation compares (== != < <= > >=) {_VALUES}"
_ALLOWED_EXPRESSION = f"an expression has {_VALUES} and of numbers"

MAX_RELATION_LENGTH = 500
"""Maximum number of characters of a relation, so that parsing it takes no time."""

_MAX_VALUE = 10**30
"""Maximum intermediate value: far beyond any size, and quick to compute with."""

# A text in quotes, which is left alone, or the key of a specification: parts with dots or positions
# between them, of which Python has no names.
_PART = r'(?:\.(?:\w+|"[^"\n]*")|\[\d+\])'
_TOKEN = re.compile(rf"""(?P<text>"[^"\n]*"|'[^'\n]*')|(?P<key>[A-Za-z_]\w*{_PART}+)""")
_PLACEHOLDER = "key_%d_"


@dataclass(frozen=True)
class Expression:
    """A number that follows from parameters, as in ``2 * pe_rows``.

    ``text`` is as it was written, ``names`` are the parameters in it.
    """

    text: str
    names: frozenset[str]
    tree: ast.expr = field(compare=False, repr=False)

    def value(self, point: Mapping[str, Any]) -> Any:
        """Return the value at a point.

        Raises :class:`SpecError` where it has none: types that do not compare, a quotient by 0.
        """
        try:
            return _value(self.tree, point)
        except (TypeError, ZeroDivisionError, OverflowError) as error:
            values = ", ".join(f"{name} = {point[name]!r}" for name in sorted(self.names))
            raise SpecError(f"{self.text!r} has no value at {values}: {error}") from None


@dataclass(frozen=True)
class Relation(Expression):
    """A relation between parameters of a space, as in ``pe_rows == pe_columns``.

    It compares sums, products and quotients of parameters and constants.
    """

    def holds(self, point: Mapping[str, Any]) -> bool:
        """True if a point satisfies the relation; raise as :meth:`value`."""
        return bool(self.value(point))


def read_relation(text: str, parameters: Collection[str]) -> Relation:
    """Parse a relation between some parameters.

    Raises :class:`SpecError` for a text that is no relation or has an unknown parameter.
    """
    tree = _parsed(text, _ALLOWED)
    if not isinstance(tree, ast.Compare):
        raise SpecError(f"{text!r} compares nothing; {_ALLOWED}")
    if not all(type(op) in _COMPARISONS for op in tree.ops):
        raise SpecError(f"{text!r}: this comparison is not allowed; {_ALLOWED}")
    sides = (tree.left, *tree.comparators)
    names = frozenset[str]().union(*(_names(side, text) for side in sides))
    _require_known(names, text, parameters)
    return Relation(text, names, tree)


def read_expression(text: str, parameters: Collection[str]) -> Expression:
    """Parse an expression over some parameters.

    >>> read_expression("2 * rows", {"rows"}).value({"rows": 8})
    16

    Raises :class:`SpecError` for a text that is no expression or has an unknown parameter.
    """
    tree = _parsed(text, _ALLOWED_EXPRESSION)
    if isinstance(tree, ast.Compare):
        raise SpecError(f"{text!r} is a relation; {_ALLOWED_EXPRESSION}")
    names = frozenset(_names(tree, text))
    _require_known(names, text, parameters)
    return Expression(text, names, tree)


def names_in(text: str) -> frozenset[str]:
    """Return the names in a relation or an expression; none if it is neither."""
    try:
        tree = _parsed(text, _ALLOWED)
    except SpecError:
        return frozenset()
    return frozenset(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))


def _require_known(names: frozenset[str], text: str, parameters: Collection[str]) -> None:
    for name in sorted(names):
        if name not in parameters:
            raise SpecError(f"{text!r}: no parameter {name!r}{close_match(name, parameters)}")


def _parsed(text: str, allowed: str) -> ast.expr:
    """Parse a text of anybody; keys of specifications become names."""
    if len(text) > MAX_RELATION_LENGTH:
        raise SpecError(f"{text!r} is longer than {MAX_RELATION_LENGTH} characters")
    keys: list[str] = []

    def place(match: re.Match[str]) -> str:
        if match["key"] is None:
            return match[0]
        keys.append(key_path(read_key(match["key"])))
        return _PLACEHOLDER % (len(keys) - 1)

    # Spaces come from anybody: the text is parsed as an expression of Python and its tree walked
    # below, but Python evaluates nothing of it.
    try:
        tree = ast.parse(_TOKEN.sub(place, text.strip()), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise SpecError(f"{text!r} is no expression; {allowed}") from None
    names = {_PLACEHOLDER % number: key for number, key in enumerate(keys)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            node.id = names.get(node.id, node.id)
    return tree


def _names(node: ast.AST, text: str) -> set[str]:
    """Return the parameters in a side of a comparison, all of whose parts are allowed."""
    match node:
        case ast.Name(id=name):
            return {name}
        # True and False are integers of Python, but no values of parameters.
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
        case ast.Compare(left=left, ops=ops, comparators=rest):
            values = [_value(side, point) for side in (left, *rest)]
            pairs = zip(ops, values, values[1:], strict=False)
            return all(_COMPARISONS[type(op)](first, second) for op, first, second in pairs)
        case ast.BinOp(left=left, op=op, right=right):
            first, second = _value(left, point), _value(right, point)
            if isinstance(first, str) or isinstance(second, str):
                raise TypeError("text is compared, not computed with")
            value = _OPERATIONS[type(op)](first, second)
            # A product of products of a long relation would otherwise take any time and memory.
            if abs(value) > _MAX_VALUE:
                raise OverflowError("a number beyond any size")
            return value
        case ast.UnaryOp(operand=operand):
            return -_value(operand, point)
        case _:
            raise AssertionError("read_relation lets nothing else pass")
