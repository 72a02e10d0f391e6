"""Constants of an instruction set's file: sizes that are written once, such as the array's.

``[constants]`` names numbers. Any string of the file, and any key, may contain ``$NAME`` or
``$(EXPRESSION)`` of them; a string that is nothing else becomes the number itself.

>>> tables = {"constants": {"dim": 16}, "rows": "$(4*dim)", "lanes": ["e%$dim"]}
>>> with_constants(tables, "file.toml")
{'rows': 64, 'lanes': ['e%16']}
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, cast

from cpembed.errors import SpecError
from cpembed.hw.schema import close_match, joined, spec_error

KEY = "constants"
"""Name of the table."""

Number = int | float

_REFERENCE = re.compile(r"\$(?:\(([^()]*(?:\([^()]*\)[^()]*)*)\)|([A-Za-z_]\w*))")

_OPERATORS: Mapping[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Div: lambda a, b: a / b,
}

_MOST = 2**53
"""Maximum size of a number: a larger one is no size of anything here."""


def with_constants(tables: Mapping[str, Any], place: str) -> Mapping[str, Any]:
    """Return tables with numbers in place of the names of constants.

    Parameters
    ----------
    tables : mapping
        Contents of a file. Without ``constants``, they are returned as they are.
    place : str
        Path of the file, for messages.

    Raises
    ------
    SpecError
        For a constant that is no number, and for an expression with an unknown name.
    """
    if KEY not in tables:
        return tables
    constants = tables[KEY]
    problem = "must be a table of numbers, as in [constants] dim = 16"
    if not isinstance(constants, dict):
        raise spec_error(place, (KEY,), problem)
    for name, value in cast(dict[str, Any], constants).items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise spec_error(place, (KEY, name), f"{value!r} is no number: {problem}")
    values = cast(dict[str, Number], constants)
    used = set[str]()

    def replaced(value: Any, key: tuple[str, ...]) -> Any:
        if isinstance(value, str):
            try:
                return _text(value, values, used)
            except SpecError as error:
                raise spec_error(place, key, str(error)) from None
        if isinstance(value, list):
            return [replaced(each, key) for each in cast(list[Any], value)]
        if isinstance(value, dict):
            items = cast(dict[str, Any], value).items()
            return {str(replaced(n, key)): replaced(each, (*key, n)) for n, each in items}
        return value

    contents = {name: replaced(value, (name,)) for name, value in tables.items() if name != KEY}
    for name in values:
        if name not in used:
            near = close_match(name, used)
            raise spec_error(place, (KEY, name), f"nothing uses ${name}{near}: leave it out")
    return contents


def _text(text: str, values: Mapping[str, Number], used: set[str]) -> str | Number:
    """Return a string with numbers in place of references, or the number that it is.

    Names of constants are added to ``used``.
    """
    for match in _REFERENCE.finditer(text):
        used.update(name for name in values if name in re.findall(r"\w+", match[0]))
    reference = _REFERENCE.fullmatch(text)
    if reference is not None:
        return _value(reference[1] or reference[2], values)
    return _REFERENCE.sub(lambda match: str(_value(match[1] or match[2], values)), text)


def _value(text: str, values: Mapping[str, Number]) -> Number:
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        result = _evaluated(tree, values)
    except ZeroDivisionError:
        raise SpecError(f"${text}: divides by zero; use another number") from None
    except OverflowError:
        result = math.inf
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise SpecError(
            f"${text}: is no expression; use numbers, names of constants, + - * / // and ()"
        ) from None
    # Written so that it refuses what is no number too.
    if not abs(result) <= _MOST:
        raise SpecError(f"${text} is beyond all sizes; allowed: up to 2**53")
    return result


def _evaluated(node: ast.expr, values: Mapping[str, Number]) -> Number:
    match node:
        case ast.Constant(int() | float() as number) if not isinstance(number, bool):
            return number
        case ast.Name(name):
            if name not in values:
                near = close_match(name, values)
                raise SpecError(f"there is no constant {name!r}{near}; allowed: {joined(values)}")
            return values[name]
        case ast.BinOp(left, kind, right) if type(kind) in _OPERATORS:
            return _OPERATORS[type(kind)](_evaluated(left, values), _evaluated(right, values))
        case _:
            raise ValueError(ast.dump(node))
