"""Ranges of integer values: whether a sum fits the type of its output, computed exactly.

>>> from cpembed.ir.parser import parse_computation
>>> product = parse_computation("C[m,n] += A[m,k] * B[k,n]", {"m": 4, "n": 4, "k": 131_072})
>>> value_range(product, product.statement), result_range(product, product.statement)
((-16256, 16384), (-2130706432, 2147483648))
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from cpembed.ir.computation import Assignment, AxisKind, Computation
from cpembed.ir.dtypes import dtype_info, is_integer
from cpembed.ir.expression import Access, Cast, Constant, Expression, Operation

Range = tuple[int, int]
"""Smallest and largest value."""


def value_range(computation: Computation, statement: Assignment) -> Range | None:
    """Return the range of a statement's value at one point; None if floats are part of it.

    It is attained where no operand is read twice, and never too small.
    """
    dtypes = {operand.name: operand.dtype for operand in computation.operands}
    outside = {operand.name for operand in computation.operands if operand.zero_outside}
    ranges: dict[str, Range] = {}
    for name, dtype in dtypes.items():
        if is_integer(dtype):
            low, high = dtype_info(dtype).integer_range
            ranges[name] = (min(low, 0), max(high, 0)) if name in outside else (low, high)
    return expression_range(statement.value, ranges)


def result_range(computation: Computation, statement: Assignment) -> Range | None:
    """Return the range of a statement's results before they are stored, in exact arithmetic.

    None if floats are part of it, or if zeros inserted between elements make the number of
    products of a sum depend on the place.
    """
    values = value_range(computation, statement)
    if values is None or any(operand.spread for operand in computation.inputs):
        return None
    if statement.reduction != "add":
        return values
    points = math.prod(a.extent for a in computation.axes if a.kind is AxisKind.REDUCTION)
    return points * values[0], points * values[1]


def overflowing(computation: Computation) -> tuple[tuple[Assignment, Range], ...]:
    """Return the statements whose results an output's type does not hold, with their ranges."""
    statements: list[tuple[Assignment, Range]] = []
    for statement in computation.statements:
        output = dtype_info(computation.operand(statement.store.operand).dtype)
        results = result_range(computation, statement)
        if results is None or not output.is_integer:
            continue
        low, high = output.integer_range
        if results[0] < low or results[1] > high:
            statements.append((statement, results))
    return tuple(statements)


def typed_range(expression: Expression, dtypes: Mapping[str, str]) -> Range | None:
    """Return the range of an expression of operands of some types; None for floats.

    >>> from cpembed.ir.grammar import parse_body
    >>> value = parse_body("C[x] += A[x,z] * B[z]").statements[0].value
    >>> typed_range(value, {"A": "int8", "B": "uint8"})
    (-32640, 32385)
    """
    types = {name: dtype_info(dtype) for name, dtype in dtypes.items()}
    return expression_range(
        expression, {name: t.integer_range for name, t in types.items() if t.is_integer}
    )


def expression_range(node: Expression, ranges: Mapping[str, Range]) -> Range | None:
    """Return the range of an expression, from those of its operands of integers; None for floats.

    Operations without a range have none either.
    """
    match node:
        case Access():
            return ranges.get(node.operand)
        case Constant():
            return (node.value, node.value) if isinstance(node.value, int) else None
        case Cast():
            return _converted(node, expression_range(node.arg, ranges))
        case Operation():
            parts = [expression_range(arg, ranges) for arg in node.args]
            integers = [part for part in parts if part is not None]
            return _applied(node, integers) if len(integers) == len(parts) else None


def _converted(node: Cast, values: Range | None) -> Range | None:
    if not is_integer(node.dtype):
        return None
    low, high = dtype_info(node.dtype).integer_range
    if values is not None and low <= values[0] and values[1] <= high:
        return values
    if values is not None and node.saturate:
        return min(max(values[0], low), high), min(max(values[1], low), high)
    # Wrapped values, and floats that are converted, may be any of the type.
    return low, high


def _applied(node: Operation, parts: list[Range]) -> Range | None:
    (low, high), *second_part = parts
    match node.op, second_part:
        case "add", [(second, last)]:
            return low + second, high + last
        case "sub", [(second, last)]:
            return low - last, high - second
        case "mul", [(second, last)]:
            if node.args[0] == node.args[1]:
                squares = low * low, high * high
                return (0 if low <= 0 <= high else min(squares)), max(squares)
            products = low * second, low * last, high * second, high * last
            return min(products), max(products)
        case "max", [(second, last)]:
            return max(low, second), max(high, last)
        case "min", [(second, last)]:
            return min(low, second), min(high, last)
        case "neg", []:
            return -high, -low
        case "abs", []:
            return (0 if low <= 0 <= high else min(abs(low), abs(high))), max(abs(low), abs(high))
        case "shr", [(second, last)]:
            # A shift by 64 and more bits, or by a negative number, leaves the sign.
            counts = {min(max(second, 0), 63), min(max(last, 0), 63)}
            counts |= set() if second >= 0 and last < 64 else {63}
            shifted = [value >> count for value in (low, high) for count in counts]
            return min(shifted), max(shifted)
        case _:
            return None
