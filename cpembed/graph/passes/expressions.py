"""Scalar expressions of elementwise operators: writing them, changing them, recognising forms."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from cpembed.graph.kinds import Apply, Input, Number, Scalar


def apply(operation: str, *arguments: Scalar | float | int) -> Apply:
    """An operation; numbers may be written as they are."""
    return Apply(
        operation, tuple(Number(a) if isinstance(a, float | int) else a for a in arguments)
    )


def substituted(expression: Scalar, change: Callable[[Input], Scalar]) -> Scalar:
    """An expression with each input replaced."""
    if isinstance(expression, Input):
        return change(expression)
    if isinstance(expression, Apply):
        arguments = tuple(substituted(argument, change) for argument in expression.arguments)
        return Apply(expression.operation, arguments)
    return expression


def inputs_of(expression: Scalar) -> set[int]:
    """Numbers of the inputs that an expression reads."""
    if isinstance(expression, Input):
        return {expression.number}
    if isinstance(expression, Apply):
        return set[int]().union(*map(inputs_of, expression.arguments))
    return set()


def size_of(expression: Scalar) -> int:
    """Operations of an expression."""
    if isinstance(expression, Apply):
        return 1 + sum(map(size_of, expression.arguments))
    return 0


def limits(expression: Scalar) -> tuple[float, float] | None:
    """The numbers between which an expression keeps its only input, which it does not change
    otherwise: a ReLU is (0, inf); None for other expressions."""
    if isinstance(expression, Input):
        return -math.inf, math.inf
    if not isinstance(expression, Apply) or expression.operation not in ("max", "min"):
        return None
    first, second = expression.arguments
    if isinstance(first, Number):
        first, second = second, first
    if not isinstance(second, Number):
        return None
    inner = limits(first)
    if inner is None or math.isnan(second.value):
        return None
    low, high = inner
    if expression.operation == "max":
        return max(low, second.value), max(high, second.value)
    return min(low, second.value), min(high, second.value)


def limited(inner: tuple[float, float], outer: tuple[float, float]) -> tuple[float, float]:
    """Limits of what is kept between ``inner`` ones and then between ``outer`` ones.

    >>> limited((0.0, math.inf), (-1.0, 6.0)), limited((5.0, 6.0), (0.0, 1.0))
    ((0.0, 6.0), (1.0, 1.0))
    """
    low, high = (min(max(end, outer[0]), outer[1]) for end in inner)
    return low, high


def both_inputs(expression: Scalar, operation: str) -> bool:
    """Whether an expression is an operation of its two inputs, in either order."""
    return isinstance(expression, Apply) and (
        expression.operation == operation
        and sorted(inputs_of(expression)) == [0, 1]
        and all(isinstance(argument, Input) for argument in expression.arguments)
    )


def with_number(expression: Scalar, operation: str) -> float | None:
    """The number that a commutative operation combines its only input with."""
    if not isinstance(expression, Apply) or expression.operation != operation:
        return None
    numbers = [a.value for a in expression.arguments if isinstance(a, Number)]
    inputs = [a for a in expression.arguments if isinstance(a, Input)]
    return numbers[0] if len(numbers) == len(inputs) == 1 else None


def is_whole(expression: Scalar) -> bool:
    """Whether all values of an expression of floats are known to be whole numbers."""
    if isinstance(expression, Number):
        return math.isfinite(expression.value) and expression.value == int(expression.value)
    if not isinstance(expression, Apply):
        return False
    if expression.operation == "round":
        return True
    steps = expression.operation in ("add", "sub", "max", "min")
    return steps and all(map(is_whole, expression.arguments))


def compacted(expression: Scalar, tensors: Sequence[str]) -> tuple[Scalar, tuple[str, ...]]:
    """The expression over the tensors that it reads, each once."""
    numbers = sorted(inputs_of(expression))
    names = tuple(dict.fromkeys(tensors[number] for number in numbers))
    places = {number: names.index(tensors[number]) for number in numbers}
    return substituted(expression, lambda i: Input(places[i.number])), names
