"""Operations of expressions on vectors, counted from what their kernels write."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import cache

from cpembed.codegen.approximations import APPROXIMATIONS
from cpembed.codegen.values import Bind
from cpembed.ir.scalars import Apply, Number, Scalar

WIDTH = 8
"""Elements of 32 bits in the vectors that times of operations are given for."""

# Operations of a vector division, a square root, and of a function that a library computes for one
# element after the other.
DIVISION, ROOT, _LIBRARY_CALL = 5.0, 6.0, 60.0


def expression_operations(node: Scalar) -> float:
    """Return the operations per vector of an expression of floats; equal parts count once."""
    parts: set[Apply] = set()

    def collect(part: Scalar) -> None:
        if isinstance(part, Apply) and part not in parts:
            parts.add(part)
            for argument in part.arguments:
                collect(argument)

    collect(node)
    return sum(map(_operations_of, parts))


def _operations_of(part: Apply) -> float:
    operation = part.operation
    if operation in APPROXIMATIONS:
        return function_operations(operation)
    if operation == "pow":
        exponent = part.arguments[1]
        if not isinstance(exponent, Number):
            return WIDTH * _LIBRARY_CALL
        is_product = math.isfinite(exponent.value) and exponent.value == int(exponent.value)
        return 2.0 * math.log2(2 + abs(exponent.value)) if is_product else ROOT
    if operation == "rem":
        return WIDTH * _LIBRARY_CALL
    return {"div": DIVISION, "sqrt": ROOT, "not": 0.5, "and": 0.5, "or": 0.5}.get(operation, 1.0)


@cache
def function_operations(name: str) -> float:
    """Return the operations per vector of a function that a polynomial approximates."""
    return text_operations(lambda bind: APPROXIMATIONS[name](bind, "x"))


def text_operations(write: Callable[[Bind], str]) -> float:
    """Return the operations per vector of the values that a function writes."""
    texts: list[str] = []

    def bind(value: str) -> str:
        texts.append(value)
        return "v"

    texts.append(write(bind))
    text = " ".join(texts)
    # Operators between spaces, and calls but for constants.
    count = len(re.findall(r" [-+*<]=? ", text))
    count += len(re.findall(r"T\.(?!float32|float64|int32|let)[a-z_]+\(", text))
    count += int(DIVISION) * text.count(" / ")
    # Half of the vectors hold elements of twice the size.
    return float(count * (2 if "float64" in text else 1))
