"""Expressions of results as text: ``gelu(x) * 0.5 + residual``.

The language is that of the graph's expressions (:mod:`cpembed.frontends.expressions`), written as
Python's: numbers, ``x``, ``residual``, ``+ - * /``, comparisons and functions. Nothing is executed.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping

import numpy as np

from cpembed.codegen.epilogue import RESIDUAL_INPUT, SecondResult
from cpembed.errors import WorkloadError
from cpembed.frontends import expressions as e
from cpembed.ir.scalars import Input, Number, Scalar, apply

MAX_LENGTH = 1000
"""Maximum number of characters of an expression."""

_LARGEST = float(np.finfo(np.float32).max)

INPUTS = {"x": Input(0), "residual": Input(RESIDUAL_INPUT)}
"""Inputs by name: the result after bias, scale and ReLU, and an element of another tensor."""

_BINARY: Mapping[type[ast.operator], str] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "div",
}
_COMPARISONS: Mapping[type[ast.cmpop], str] = {
    ast.Lt: "less",
    ast.LtE: "less_equal",
    ast.Eq: "equal",
}


def _relu6(x: Scalar) -> Scalar:
    return e.clip(x, 0, 6)


def _clip(x: Scalar, low: Scalar, high: Scalar) -> Scalar:
    return apply("min", apply("max", x, low), high)


FUNCTIONS: Mapping[str, tuple[int, Callable[..., Scalar]]] = {
    **{name: (1, e.function(name)) for name in e.PLAIN},
    **{
        name: (1, getattr(e, name))
        for name in (
            *("relu", "gelu", "gelu_tanh", "silu", "elu", "selu", "celu", "mish"),
            *("softplus", "softsign", "hard_sigmoid", "hard_swish", "sign"),
        )
    },
    "relu6": (1, _relu6),
    "leaky_relu": (2, e.leaky_relu),
    "max": (2, e.function("max")),
    "min": (2, e.function("min")),
    "where": (3, e.where),
    "clip": (3, _clip),
}
"""Number of arguments and expression of each function."""


def parse_expression(text: str) -> Scalar:
    """Parse an expression.

    Raises :class:`WorkloadError` for text that is none.

    >>> parse_expression("relu(x + residual)")  # doctest: +ELLIPSIS
    Apply(operation='max', arguments=(Apply(operation='add', ...
    """
    if len(text) > MAX_LENGTH:
        raise WorkloadError(f"an expression of results has at most {MAX_LENGTH} characters")
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError) as error:
        raise WorkloadError(f"{text!r} is no expression: write one such as gelu(x)") from error
    return _scalar(tree.body, text)


def _scalar(node: ast.expr, text: str) -> Scalar:
    # A Boolean is an integer to isinstance.
    if isinstance(node, ast.Constant) and not isinstance(node.value, bool):
        value = node.value
        if isinstance(value, int | float):
            # Compared before the conversion, which integers may be too large for.
            if value > _LARGEST:
                raise WorkloadError(
                    f"a number of {text!r} is beyond float32, in which expressions are computed: "
                    f"use numbers up to {_LARGEST:.6g}"
                )
            return Number(float(value))
    if isinstance(node, ast.Name) and node.id in INPUTS:
        return INPUTS[node.id]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        operand = _scalar(node.operand, text)
        return Number(-operand.value) if isinstance(operand, Number) else apply("neg", operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        operands = (_scalar(operand, text) for operand in (node.left, node.right))
        return apply(_BINARY[type(node.op)], *operands)
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARISONS:
        operands = (_scalar(operand, text) for operand in (node.left, node.comparators[0]))
        return apply(_COMPARISONS[type(node.ops[0])], *operands)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        return _called(node.func.id, [_scalar(argument, text) for argument in node.args])
    part = ast.get_source_segment(text.strip(), node) or text
    raise WorkloadError(
        f"{part!r} is no part of an expression: use numbers, {', '.join(INPUTS)}, + - * / < <= == "
        f"and {', '.join(FUNCTIONS)}"
    )


def _called(name: str, arguments: list[Scalar]) -> Scalar:
    if name not in FUNCTIONS:
        raise WorkloadError(f"there is no function {name}: use {', '.join(FUNCTIONS)}")
    count, function = FUNCTIONS[name]
    if len(arguments) != count:
        noun = "argument" if count == 1 else "arguments"
        raise WorkloadError(f"{name} takes {count} {noun}, not {len(arguments)}")
    return function(*arguments)


def parse_second(text: str) -> SecondResult:
    """Parse a second output, ``DTYPE=EXPRESSION``.

    Raises :class:`WorkloadError` for text that is none.

    >>> parse_second("float16=x")
    SecondResult(dtype='float16', expression=Input(number=0))
    """
    dtype, equals, expression = text.partition("=")
    if not equals:
        raise WorkloadError(f"{text!r} is no second output: write one such as float16=x")
    return SecondResult(dtype.strip(), parse_expression(expression))
