"""Scalar expressions of elementwise operators: match and bound them.

A bound on the magnitude of a tensor says that it holds no infinity and no NaN.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from cpembed.codegen.epilogue import BIAS
from cpembed.graph import kinds
from cpembed.graph.graph import Array, Graph, Operator
from cpembed.graph.kinds import Apply, Elementwise, Input, Number, Product, Scalar
from cpembed.ir.scalars import input_numbers, substituted


def operation_count(expression: Scalar) -> int:
    """Return the number of operations of an expression."""
    if isinstance(expression, Apply):
        return 1 + sum(map(operation_count, expression.arguments))
    return 0


def clip_range(expression: Scalar) -> tuple[float, float] | None:
    """Return the bounds of an expression that only clips its input; None for any other one.

    The bounds of a ReLU are (0, inf), those of the input itself (-inf, inf).
    """
    if isinstance(expression, Input):
        return -math.inf, math.inf
    if not isinstance(expression, Apply) or expression.operation not in ("max", "min"):
        return None
    # The number may be either argument.
    operand, bound = expression.arguments
    if isinstance(operand, Number):
        operand, bound = bound, operand
    if not isinstance(bound, Number):
        return None
    # A clip of a clip composes, from the inside out.
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
        and sorted(input_numbers(expression)) == [0, 1]
        and all(isinstance(argument, Input) for argument in expression.arguments)
    )


def number_operand(expression: Scalar, operation: str) -> float | None:
    """Return the number that a commutative operation combines with its only input."""
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
    numbers = sorted(input_numbers(expression))
    names = tuple(dict.fromkeys(tensors[number] for number in numbers))
    positions = {number: names.index(tensors[number]) for number in numbers}
    return substituted(expression, lambda i: Input(positions[i.number])), names


# Half of the largest float32: numbers below it stay finite however they were rounded.
_LARGEST = float(np.finfo(np.float32).max) / 2

# Kinds whose results are elements of the inputs, or between two of them.
_MOVEMENT = (
    *(kinds.Reshape, kinds.Transpose, kinds.Slice, kinds.Gather, kinds.Expand, kinds.Concat),
    kinds.Resize,
)

_BOUNDED_BY_1 = frozenset({"tanh", "sigmoid", "sin", "cos", "erf"})

# Operations whose results exceed their arguments by at most 1.
_PRESERVING = frozenset({"neg", "abs", "round", "floor", "ceil", "max", "min"})


def magnitudes(graph: Graph) -> dict[str, float]:
    """Return a bound on the magnitude of each tensor's elements.

    It is infinite if no bound can be derived, or an element may be NaN.
    """
    bounds = {name: _type_bound(kind.dtype) for name, kind in graph.inputs.items()}
    bounds |= {name: _constant_bound(array) for name, array in graph.constants.items()}
    for operator in graph.operators:
        bound = _operator_bound(graph, operator, [bounds[name] for name in operator.inputs])
        for name in operator.outputs:
            bounds[name] = min(bound, _type_bound(graph.types[name].dtype))
    return bounds


def expression_bound(node: Scalar, inputs: Sequence[float] | Mapping[int, float]) -> float:
    """Return a bound on an expression and all of its parts, from bounds on its inputs."""
    if isinstance(node, Number):
        return abs(float(node.value)) if math.isfinite(node.value) else math.inf
    if not isinstance(node, Apply):
        return inputs[node.number]
    # An infinite part may make the result NaN, even where an operation limits it.
    bounds = [expression_bound(argument, inputs) for argument in node.arguments]
    if math.inf in bounds:
        return math.inf
    match node.operation:
        case "add" | "sub":
            bound = bounds[0] + bounds[1]
        case "mul":
            bound = bounds[0] * bounds[1]
        case "fma":
            bound = bounds[0] * bounds[1] + bounds[2]
        case "div":
            divisor = node.arguments[1]
            nonzero = isinstance(divisor, Number) and divisor.value
            bound = bounds[0] / abs(float(divisor.value)) if nonzero else math.inf  # type: ignore[union-attr]
        case operation if operation in _PRESERVING:
            bound = max(bounds) + 1
        case operation if operation in _BOUNDED_BY_1:
            bound = 1.0
        case _:
            bound = math.inf
    return _finite(bound)


def _finite(bound: float) -> float:
    return bound if bound < _LARGEST else math.inf


def _type_bound(dtype: str) -> float:
    """Return a bound on all elements of a type; infinite for floats."""
    if dtype == "bool":
        return 1.0
    if dtype.startswith(("int", "uint")):
        info = np.iinfo(dtype)
        return float(max(-int(info.min), int(info.max)))
    return math.inf


def _operator_bound(graph: Graph, operator: Operator, inputs: Sequence[float]) -> float:
    match operator.kind:
        case Elementwise(expression):
            return expression_bound(expression, inputs)
        case kinds.Dequantize(scale, zero_point):
            distance = inputs[0] + max(abs(zero) for zero in zero_point)
            return _finite(distance * _constant_bound(np.asarray(scale)))
        case kinds.Pool(ratio=None) | kinds.Reduce(operation="max" | "min" | "mean"):
            # The mean of no elements is NaN, their maximum -infinity.
            has_elements = graph.types[operator.inputs[0]].elements > 0
            return inputs[0] if has_elements else math.inf
        case kinds.Reduce(operation="sum"):
            return _finite(inputs[0] * graph.types[operator.inputs[0]].elements)
        case kinds.Pad(mode="constant", value=value):
            return max(inputs[0], _constant_bound(np.asarray(value)))
        case kinds.Pad():
            return inputs[0]
        case Product() as kind:
            return _product_bound(kind, inputs)
        case kind if isinstance(kind, _MOVEMENT):
            return max(inputs[:1] if isinstance(kind, kinds.Gather) else inputs)
        case _:
            return math.inf


def _product_bound(kind: Product, inputs: Sequence[float]) -> float:
    workload = kind.computation
    length = workload.macs // max(1, math.prod(workload.output.shape))
    first, second = (b + abs(z) for b, z in zip(inputs, kind.zero_points, strict=False))
    bound = length * (first + abs(kind.padding)) * second
    epilogue = kind.epilogue
    if epilogue is not None and (epilogue.residual is not None or epilogue.chain is not None):
        return math.inf
    for name, vector in zip(kind.vectors, inputs[2:], strict=False):
        bound = bound + vector if name == BIAS else bound * vector
    return _finite(bound)


def _constant_bound(array: Array) -> float:
    if not array.size:
        return 0.0
    largest = float(np.abs(array.astype(np.float64)).max())
    return _finite(largest) if math.isfinite(largest) else math.inf
