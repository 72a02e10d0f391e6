"""Sizes that an exported program leaves open: which they are, and the program at fixed ones.

A file states the size of each tensor, and each number that a program computes from sizes, as an
expression of symbols. With sizes for these all of them are numbers, and the program is one that was
exported without open sizes. Nothing of an expression is executed: it is parsed, and has the few
functions of sympy that are listed below.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import msgspec

from cpembed.errors import ModelError
from cpembed.frontends.torch import description as d

Json = dict[str, Any]

_LONGEST_EXPRESSION = 10_000
"""Maximum number of characters of an expression."""
_LARGEST_NUMBER = 1 << 62

Value = int | float


def _power(base: Value, exponent: Value) -> Value:
    if not 0 <= exponent <= _LARGEST_EXPONENT:
        raise ValueError("an exponent is too large")
    return base**exponent


_BINARY: Mapping[str, Callable[[Value, Value], Value]] = {
    "Pow": _power,
    "FloorDiv": lambda a, b: a // b,
    "CleanDiv": lambda a, b: a // b,
    "CeilDiv": lambda a, b: -(-a // b),
    "Mod": lambda a, b: a % b,
    "PythonMod": lambda a, b: a % b,
    "IntTrueDiv": lambda a, b: a / b,
    "FloatTrueDiv": lambda a, b: a / b,
}
_UNARY: Mapping[str, Callable[[Value], Value]] = {
    "Integer": lambda n: n,
    "ToFloat": float,
    "TruncToInt": int,
    "FloorToInt": math.floor,
    "CeilToInt": math.ceil,
}
_NARY: Mapping[str, Callable[[list[Value]], Value]] = {
    "Add": sum,
    "Mul": math.prod,
    "Max": max,
    "Min": min,
}
_LARGEST_EXPONENT = 8


def evaluated(place: str, text: str, sizes: Mapping[str, int]) -> Value:
    """Return the value of an expression.

    Parameters
    ----------
    place : str
        Beginning of error messages.
    text : str
        The expression, in the form of sympy's ``srepr``.
    sizes : mapping from str to int
        Values of symbols.

    Raises
    ------
    ModelError
        For a symbol without a size, which depends on data, and for another function.
    """
    if len(text) > _LONGEST_EXPRESSION:
        raise ModelError(f"{place} is damaged: a size has an expression of {len(text):,} letters")
    try:
        return _value(ast.parse(text, mode="eval").body, sizes)
    except KeyError as error:
        raise ModelError(
            f"{place}: the size {error.args[0]} depends on data, and not on the shapes of inputs: "
            "export the model without it"
        ) from None
    except (SyntaxError, ValueError, TypeError, ArithmeticError, RecursionError, MemoryError):
        raise ModelError(f"{place}: the size {text[:60]!r} is no expression that is read") from None


def _value(node: ast.expr, sizes: Mapping[str, int]) -> Value:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand, sizes)
    name, call = _called(node)
    if name == "Symbol":
        return sizes[_text(call)]
    if name == "Float":
        return float(_text(call))
    arguments = [_value(argument, sizes) for argument in call.args]
    if name in _NARY and arguments:
        value = _NARY[name](arguments)
    elif name in _UNARY and len(arguments) == 1:
        value = _UNARY[name](arguments[0])
    elif name in _BINARY and len(arguments) == 2:
        value = _BINARY[name](arguments[0], arguments[1])
    else:
        raise ValueError("a function that is not read")
    if abs(value) > _LARGEST_NUMBER:
        raise ValueError("a number is too large")
    return value


def _called(node: ast.expr) -> tuple[str, ast.Call]:
    """Return a call with the name of its function; raise :class:`ValueError` for anything else."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id, node
    raise ValueError("no call of a function")


def _text(call: ast.Call) -> str:
    """Return the text that is a call's first argument."""
    first = call.args[0] if call.args else None
    if not isinstance(first, ast.Constant) or not isinstance(first.value, str):
        raise ValueError("no text")
    return first.value


def is_open(content: bytes) -> bool:
    """True if the JSON of a program has a size that is an expression."""
    return b'"as_expr"' in content


def _document(place: str, content: bytes) -> Json:
    document = d.decoded(place, content, dict[str, Any])
    graph = document.get("graph_module", {})
    if not isinstance(graph, dict) or not isinstance(cast("Json", graph).get("graph"), dict):
        raise ModelError(f"{place} is damaged: it has no graph")
    return document


def open_inputs(place: str, content: bytes) -> dict[str, tuple[int | str, ...]]:
    """Return the sizes of each input of a program: a number, or the name of a symbol.

    A size that is another expression has an empty name.

    Raises :class:`ModelError` for a description that is damaged.
    """
    document = _document(place, content)
    module: Json = document["graph_module"]
    graph: Json = module["graph"]
    inputs: dict[str, tuple[int | str, ...]] = {}
    try:
        specs = module["signature"]["input_specs"]
        for value, spec in zip(graph["inputs"], specs, strict=True):
            if "user_input" in spec and "as_tensor" in value:
                name = value["as_tensor"]["name"]
                sizes = graph["tensor_values"][name]["sizes"]
                inputs[name] = tuple(_size(size) for size in sizes)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise ModelError(f"{place} is damaged: it does not say what its inputs are") from None
    return inputs


def _size(union: Json) -> int | str:
    if "as_int" in union:
        return int(union["as_int"])
    text = str(union["as_expr"]["expr_str"])[:_LONGEST_EXPRESSION]
    try:
        name, call = _called(ast.parse(text, mode="eval").body)
        return _text(call) if name == "Symbol" else ""
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""


def fixed(place: str, content: bytes, sizes: Mapping[str, int]) -> bytes:
    """Return the JSON of a program at some sizes, in which every size is a number.

    Parameters
    ----------
    place : str
        Beginning of error messages.
    content : bytes
        JSON of the program.
    sizes : mapping from str to int
        Sizes of its symbols.

    Raises
    ------
    ModelError
        For a size outside the range for which the program was exported, for one that depends on
        data, and for a description that is damaged.
    """
    document = _document(place, content)
    _check_ranges(place, document.get("range_constraints"), sizes)
    graph: Json = document["graph_module"]["graph"]
    values: Json = {**graph.get("sym_int_values", {}), **graph.get("sym_float_values", {})}
    names = {name: _substituted(place, union, sizes, {}) for name, union in values.items()}
    booleans = {*graph.get("sym_bool_values", {})}
    try:
        graph["nodes"] = [node for node in graph["nodes"] if not _is_arithmetic(node, booleans)]
        document["graph_module"]["graph"] = _substituted(place, graph, sizes, names)
    except RecursionError:
        raise ModelError(f"{place} is damaged: its values are nested too deeply") from None
    return msgspec.json.encode(document)


def _check_ranges(place: str, ranges: object, sizes: Mapping[str, int]) -> None:
    """Raise :class:`ModelError` for a size for which a program was not exported."""
    by_symbol: Json = cast("Json", ranges) if isinstance(ranges, dict) else {}
    for symbol, size in sizes.items():
        entry: Any = by_symbol.get(symbol)
        limits: Json = cast("Json", entry) if isinstance(entry, dict) else {}
        low: Any = limits.get("min_val")
        high: Any = limits.get("max_val")
        if (isinstance(low, int) and size < low) or (isinstance(high, int) and size > high):
            raise ModelError(
                f"{place}: a size is {size}, and the program was exported for {low} to "
                f"{'any' if high is None else high}: give one of these, or export it with another "
                "Dim"
            )


_NUMBERS = {"as_sym_int", "as_sym_float", "as_sym_bool"}
"""Keys of results that are numbers or Booleans."""


def _is_arithmetic(node: Json, booleans: set[str]) -> bool:
    """True for a node that computes a number or a Boolean from sizes, or asserts one."""
    outputs: Sequence[Json] = node["outputs"]
    if outputs:
        return all({*union} <= _NUMBERS for union in outputs)
    arguments: list[Json] = [argument["arg"] for argument in node["inputs"]]
    names = [
        union["as_sym_bool"].get("as_name")
        for union in arguments
        if isinstance(union.get("as_sym_bool"), dict)
    ]
    return any(name in booleans for name in names)


def _substituted(place: str, item: Any, sizes: Mapping[str, int], names: Json) -> Any:
    """Return a value in which expressions of sizes, and names of them, are numbers."""
    if isinstance(item, list):
        return [_substituted(place, e, sizes, names) for e in cast("list[Any]", item)]
    if not isinstance(item, dict):
        return item
    union = cast("Json", item)
    if {*union} == {"as_expr"} and isinstance(union["as_expr"], dict):
        expression = cast("Json", union["as_expr"])
        value = evaluated(place, str(expression.get("expr_str")), sizes)
        return {"as_int": value} if isinstance(value, int) else {"as_float": value}
    if {*union} == {"as_name"} and union["as_name"] in names:
        return names[union["as_name"]]
    return {key: _substituted(place, e, sizes, names) for key, e in union.items()}
