"""Scalar expressions of elementwise operators: build, substitute, match."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from cpembed.graph.kinds import Apply, Input, Number, Scalar


def apply(operation: str, *arguments: Scalar | float | int) -> Apply:
    """Return an operation; numbers among the arguments become constants."""
    return Apply(
        operation, tuple(Number(a) if isinstance(a, float | int) else a for a in arguments)
    )


def substituted(expression: Scalar, change: Callable[[Input], Scalar]) -> Scalar:
    """Return an expression with ``change`` applied to each input."""
    if isinstance(expression, Input):
        return change(expression)
    if isinstance(expression, Apply):
        arguments = tuple(substituted(argument, change) for argument in expression.arguments)
        return Apply(expression.operation, arguments)
    return expression


def _inputs_of(expression: Scalar) -> set[int]:
    """Return the positions of the inputs that an expression reads."""
    if isinstance(expression, Input):
        return {expression.number}
    if isinstance(expression, Apply):
        return set[int]().union(*map(_inputs_of, expression.arguments))
    return set()


def operation_count(expression: Scalar) -> int:
    """Return the number of operations of an expression."""
    if isinstance(expression, Apply):
        return 1 + sum(map(operation_count, expression.arguments))
    return 0


def clip_range(expression: Scalar) -> tuple[float, float] | None:
    """Return the bounds of an expression that only clips its input; None for other expressions.

    A ReLU is (0, inf), the input itself (-inf, inf).
    """
    if isinstance(expression, Input):
        return -math.inf, math.inf
    if not isinstance(expression, Apply) or expression.operation not in ("max", "min"):
        return None
    operand, bound = expression.arguments
    if isinstance(operand, Number):
        operand, bound = bound, operand
    if not isinstance(bound, Number):
        return None
    inner = clip_range(operand)
    if inner is None or math.isnan(bound.value):
        return None
    low, high = inner
    if expression.operation == "max":
        return max(low, bound.value), max(high, bound.value)
    return min(low, bound.value), min(high, bound.value)


def composed_clip(inner: tuple[float, float], outer: tuple[float, float]) -> tuple[float, float]:
    """Return the bounds of clipping to ``inner`` and then to ``outer`` bounds.

    >>> composed_clip((0.0, math.inf), (-1.0, 6.0)), composed_clip((5.0, 6.0), (0.0, 1.0))
    ((0.0, 6.0), (1.0, 1.0))
    """
    low, high = (min(max(end, outer[0]), outer[1]) for end in inner)
    return low, high


def combines_inputs(expression: Scalar, operation: str) -> bool:
    """True if an expression is ``operation`` on its two inputs, in either order."""
    return isinstance(expression, Apply) and (
        expression.operation == operation
        and sorted(_inputs_of(expression)) == [0, 1]
        and all(isinstance(argument, Input) for argument in expression.arguments)
    )


def number_operand(expression: Scalar, operation: str) -> float | None:
    """Return the number that a commutative operation combines its only input with."""
    if not isinstance(expression, Apply) or expression.operation != operation:
        return None
    numbers = [a.value for a in expression.arguments if isinstance(a, Number)]
    inputs = [a for a in expression.arguments if isinstance(a, Input)]
    return numbers[0] if len(numbers) == len(inputs) == 1 else None


def is_whole(expression: Scalar) -> bool:
    """True if every value of an expression of floats is provably a whole number."""
    if isinstance(expression, Number):
        return math.isfinite(expression.value) and expression.value == int(expression.value)
    if not isinstance(expression, Apply):
        return False
    if expression.operation == "round":
        return True
    preserves = expression.operation in ("add", "sub", "max", "min")
    return preserves and all(map(is_whole, expression.arguments))


def compacted(expression: Scalar, tensors: Sequence[str]) -> tuple[Scalar, tuple[str, ...]]:
    """Return an expression over the tensors that it reads, each listed once."""
    numbers = sorted(_inputs_of(expression))
    names = tuple(dict.fromkeys(tensors[number] for number in numbers))
    positions = {number: names.index(tensors[number]) for number in numbers}
    return substituted(expression, lambda i: Input(positions[i.number])), names
