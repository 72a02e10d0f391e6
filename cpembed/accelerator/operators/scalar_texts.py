"""Scalar expressions of graphs in the language of statements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cpembed.accelerator.operators.forms import integer_text, number
from cpembed.ir.scalars import Apply, Input, Number, Scalar

_INFIX: Mapping[str, str] = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
_CALLS = frozenset({"max", "min", "abs", "neg", "exp", "sqrt", "erf", "tanh"})

INEXACT = frozenset({"exp", "erf", "tanh", "sigmoid", "fma", "pow", "round"})
"""Operations that numpy and statements may round differently, by a unit in the last place; numbers
beyond 2^30 are not rounded to their own integers."""


def scalar_text(node: Scalar, inputs: Sequence[str], *, floats: bool) -> str | None:
    """Return the text of an expression; None if the language lacks an operation.

    Parameters
    ----------
    node : Scalar
    inputs : sequence of str
        Text of each input.
    floats : bool
        True for arithmetic in float32, in which constants are floats.
    """
    if isinstance(node, Input):
        return inputs[node.number]
    if isinstance(node, Number):
        if isinstance(node.value, bool) or (not floats and float(node.value) != int(node.value)):
            return None
        return number(float(node.value)) if floats else integer_text(int(node.value))
    arguments: list[str] = []
    for argument in node.arguments:
        text = scalar_text(argument, inputs, floats=floats)
        if text is None:
            return None
        arguments.append(text)
    return _applied(node, arguments, floats)


def _applied(node: Apply, arguments: Sequence[str], floats: bool) -> str | None:
    operation = node.operation
    if operation in _INFIX:
        # The quotient of integers is rounded towards zero, which the language does not have.
        is_quotient_of_integers = operation == "div" and not floats
        infix = f"({arguments[0]} {_INFIX[operation]} {arguments[-1]})"
        return None if is_quotient_of_integers else infix
    if operation in _CALLS:
        return f"{operation}({', '.join(arguments)})"
    match operation, node.arguments:
        case "fma", _:
            return f"(({arguments[0]} * {arguments[1]}) + {arguments[2]})"
        case "round", _ if floats:
            # Beyond 2^24, float32 holds nothing but integers.
            nearest = f"int32(min(max({arguments[0]}, {number(-(2.0**30))}), {number(2.0**30)}))"
            return f"float32({nearest})"
        case "sigmoid", _:
            return f"(1.0 / (1.0 + exp(neg({arguments[0]}))))"
        case "pow", (_, Number(value)) if float(value) == 2.0:
            return f"({arguments[0]} * {arguments[0]})"
        case "pow", (_, Number(value)) if float(value) == 0.5:
            return f"sqrt({arguments[0]})"
        case "shift_right", (_, Number(value)) if not floats and 0 <= value < 32:
            return f"({arguments[0]} >> {int(value)})"
        case _:
            return None


def without_rounding(node: Scalar) -> Scalar:
    """Return an expression that is converted to an integer without its last rounding."""
    while isinstance(node, Apply) and node.operation == "round":
        node = node.arguments[0]
    return node


def inexact_text(inexact: set[str] | frozenset[str]) -> str:
    """Return the deviation of an expression with operations that are rounded differently."""
    if not inexact:
        return ""
    return f"units in the last place of float32 in {', '.join(sorted(inexact))}"
