"""Operators on integers of eight bits whose elements are all larger, or smaller, by 128."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from cpembed.codegen.epilogue import BYTES, Epilogue
from cpembed.graph.kinds import (
    Apply,
    Concat,
    Dequantize,
    Elementwise,
    Expand,
    Gather,
    Input,
    Kind,
    Number,
    Pad,
    Pool,
    Product,
    Quantize,
    Reduce,
    Reshape,
    Resize,
    Scalar,
    Slice,
    Table,
    Transpose,
)
from cpembed.graph.passes.expressions import apply, is_whole, substituted

T = TypeVar("T")

DISTANCE = {("int8", "uint8"): 128, ("uint8", "int8"): -128}
"""By how much elements grow from one type to the other."""

_OTHER = {"int8": "uint8", "uint8": "int8"}


def shifted(kind: Kind, inputs: Sequence[int], result: int) -> Kind | None:
    """The kind that does the same on ``inputs`` whose elements are larger by so much each (128,
    -128 or 0), to a ``result`` whose elements are; None where there is none. An elementwise kind
    says in what it computes."""
    if not any(inputs) and not result:
        return kind
    match kind:
        case Quantize():
            dtype = _OTHER[kind.dtype]
            return replace(kind, zero_point=_all(kind.zero_point, result), dtype=dtype)
        case Dequantize():
            return replace(kind, zero_point=_all(kind.zero_point, inputs[0]))
        case Table() if result:
            entries = tuple(entry + result for entry in kind.entries)
            return replace(kind, entries=entries, dtype=_OTHER[kind.dtype])
        case Table():
            return kind
        case Product():
            return _product(kind, inputs, result)
        case Elementwise():
            return _elementwise(kind, inputs, result)
        case _:
            alike = all(distance == result for distance in moved_inputs(kind, inputs))
            return _moving(kind, result) if alike else None


def moves_elements(kind: Kind) -> bool:
    """Whether the elements of the result are those of the inputs, or extremes or means of them."""
    return _moving(kind, 0) is not None


def moved_inputs(kind: Kind, inputs: Sequence[T]) -> Sequence[T]:
    """Of what belongs to the inputs of such a kind, that of those whose elements it moves."""
    return inputs if isinstance(kind, Concat) else inputs[:1]


def storing_as(epilogue: Epilogue, dtype: str) -> Epilogue:
    """An epilogue that rounds to the same numbers around its zero point, on the way to another
    type of eight bits."""
    distance = DISTANCE.get((epilogue.dtype, dtype), 0)
    if not distance:
        return epilogue
    clip = _moved_limits(epilogue.range, distance)
    return replace(epilogue, dtype=dtype, zero_point=epilogue.zero_point + distance, clip=clip)


def _all(numbers: Sequence[int], distance: int) -> tuple[int, ...]:
    return tuple(number + distance for number in numbers)


def _moving(kind: Kind, distance: int) -> Kind | None:
    match kind:
        case Concat() | Reshape() | Transpose() | Slice() | Gather() | Expand():
            return kind
        case Resize(mode="nearest"):
            return kind
        case Reduce(what="max" | "min" | "mean"):
            return kind
        case Pad(mode="constant"):
            return replace(kind, value=kind.value + distance)
        case Pad():
            return kind
        case Pool(what="max"):
            return kind
        case Pool(ratio=None):
            return replace(kind, zero_point=kind.zero_point + distance)
        case Pool():
            stored = kind.stored_zero_point + distance
            return replace(kind, zero_point=kind.zero_point + distance, stored_zero_point=stored)
        case _:
            return None


def _product(kind: Product, inputs: Sequence[int], result: int) -> Product | None:
    workload, epilogue = kind.computation, kind.epilogue
    dtypes = {
        operand.name: _OTHER[operand.dtype]
        for operand, distance in zip(workload.inputs, inputs, strict=False)
        if distance
    }
    a, b = (zero + moved for zero, moved in zip(kind.zero_points, inputs, strict=False))
    if result or any(inputs[2:]):
        epilogue = None if epilogue is None else _epilogue(epilogue, inputs[-1], result)
        if epilogue is None:
            return None
    return replace(
        kind, computation=workload.with_dtypes(dtypes), zero_points=(a, b), epilogue=epilogue
    )


def _epilogue(epilogue: Epilogue, other: int, result: int) -> Epilogue | None:
    if not epilogue.scale or epilogue.dtype not in BYTES:
        return None
    residual = epilogue.residual
    if residual is not None:
        residual = replace(
            residual,
            dtype=_OTHER[residual.dtype] if other else residual.dtype,
            zero_point=residual.zero_point + other,
            stored_zero_point=residual.stored_zero_point + result,
            clip=_moved_limits(residual.clip, result),
        )
    return replace(
        epilogue,
        dtype=_OTHER[epilogue.dtype] if result else epilogue.dtype,
        clip=_moved_limits(epilogue.clip, result),
        zero_point=epilogue.zero_point + result,
        residual=residual,
    )


def _moved_limits(clip: tuple[int, int] | None, distance: int) -> tuple[int, int] | None:
    return None if clip is None else (clip[0] + distance, clip[1] + distance)


def _elementwise(kind: Elementwise, inputs: Sequence[int], result: int) -> Elementwise | None:
    bytes_read = frozenset(number for number, distance in enumerate(inputs) if distance)

    def moved(node: Input) -> Scalar:
        distance = inputs[node.number]
        return apply("sub", node, distance) if distance else node

    expression = _joined(substituted(kind.expression, moved), bytes_read)
    if not result:
        return replace(kind, expression=expression)
    floats = (kind.computing or "").startswith("float")
    whole = _whole(expression) if floats else expression
    expression = _joined(apply("add", whole, result), bytes_read)
    return replace(kind, expression=expression, dtype=_OTHER[kind.dtype])


def _whole(expression: Scalar) -> Scalar:
    """A result that is rounded before it is moved."""
    return expression if is_whole(expression) else apply("round", expression)


def _joined(expression: Scalar, bytes_read: frozenset[int]) -> Scalar:
    """Whole numbers that are added or subtracted one after the other as one: exact for inputs of
    eight bits and for what was rounded."""
    if not isinstance(expression, Apply):
        return expression
    arguments = tuple(_joined(argument, bytes_read) for argument in expression.arguments)
    expression = Apply(expression.operation, arguments)
    inner, last = arguments[0], arguments[-1]
    if not (_is_step(expression) and isinstance(inner, Apply) and _is_step(inner)):
        return expression
    start, number = inner.arguments
    exact = isinstance(start, Input) and start.number in bytes_read
    if not isinstance(number, Number) or not isinstance(last, Number):
        return expression
    if not exact and not (isinstance(start, Apply) and is_whole(start)):
        return expression
    total = _signed(expression, last) + _signed(inner, number)
    if not total:
        return start
    return apply("add", start, total) if total > 0 else apply("sub", start, -total)


def _is_step(expression: Apply) -> bool:
    """Whether a whole number is added or subtracted."""
    if expression.operation not in ("add", "sub"):
        return False
    number = expression.arguments[1]
    return isinstance(number, Number) and is_whole(number)


def _signed(expression: Apply, number: Number) -> float | int:
    return number.value if expression.operation == "add" else -number.value
