"""How large the numbers of a tensor can be: which tensors hold no infinity and no NaN."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from cpembed.codegen.epilogue import BIAS
from cpembed.graph.graph import Array, Graph, Operator
from cpembed.graph.kinds import (
    Apply,
    Concat,
    Dequantize,
    Elementwise,
    Expand,
    Gather,
    Number,
    Pad,
    Pool,
    Product,
    Reduce,
    Reshape,
    Resize,
    Scalar,
    Slice,
    Transpose,
)

_LARGEST = float(np.finfo(np.float32).max) / 2
"""What is below it is finite, however it was rounded."""

_MOVED = (Reshape, Transpose, Slice, Gather, Expand, Concat, Resize)
"""Kinds whose results are elements of the input, or lie between some."""

_BOUNDED = frozenset({"tanh", "sigmoid", "sin", "cos", "erf"})
"""Operations whose results are between -1 and 1."""

_KEEPING = frozenset({"neg", "abs", "round", "floor", "ceil", "max", "min"})
"""Operations whose results are no larger than what they are given, and a step of 1."""


def magnitudes(graph: Graph) -> dict[str, float]:
    """A bound of the magnitude of every tensor's elements, infinite where none is known, and where
    an element may be no number."""
    bounds = {name: _of_type(kind.dtype) for name, kind in graph.inputs.items()}
    bounds |= {name: _of_constant(array) for name, array in graph.constants.items()}
    for operator in graph.operators:
        bound = _of_operator(graph, operator, [bounds[name] for name in operator.inputs])
        for name in operator.outputs:
            bounds[name] = min(bound, _of_type(graph.types[name].dtype))
    return bounds


def of_expression(node: Scalar, inputs: Sequence[float] | Mapping[int, float]) -> float:
    """A bound of an expression's magnitude, and of those of all its parts, from its inputs'."""
    if isinstance(node, Number):
        return abs(float(node.value)) if math.isfinite(node.value) else math.inf
    if not isinstance(node, Apply):
        return inputs[node.number]
    given = [of_expression(argument, inputs) for argument in node.arguments]
    if math.inf in given:
        return math.inf
    match node.operation:
        case "add" | "sub":
            bound = given[0] + given[1]
        case "mul":
            bound = given[0] * given[1]
        case "fma":
            bound = given[0] * given[1] + given[2]
        case "div":
            divisor = node.arguments[1]
            nonzero = isinstance(divisor, Number) and divisor.value
            bound = given[0] / abs(float(divisor.value)) if nonzero else math.inf  # type: ignore[union-attr]
        case operation if operation in _KEEPING:
            bound = max(given) + 1
        case operation if operation in _BOUNDED:
            bound = 1.0
        case _:
            bound = math.inf
    return _finite(bound)


def _finite(bound: float) -> float:
    return bound if bound < _LARGEST else math.inf


def _of_type(dtype: str) -> float:
    if dtype == "bool":
        return 1.0
    if dtype.startswith(("int", "uint")):
        limits = np.iinfo(dtype)
        return float(max(-int(limits.min), int(limits.max)))
    return math.inf


def _of_operator(graph: Graph, operator: Operator, given: Sequence[float]) -> float:
    match operator.kind:
        case Elementwise(expression):
            return of_expression(expression, given)
        case Dequantize(scale, zero_point):
            distance = given[0] + max(abs(zero) for zero in zero_point)
            return _finite(distance * _of_constant(np.asarray(scale)))
        case Pool(ratio=None) | Reduce(operation="max" | "min" | "mean"):
            full = graph.types[operator.inputs[0]].elements > 0
            return given[0] if full else math.inf
        case Reduce(operation="sum"):
            return _finite(given[0] * graph.types[operator.inputs[0]].elements)
        case Pad(mode="constant", value=value):
            return max(given[0], _of_constant(np.asarray(value)))
        case Pad():
            return given[0]
        case Product() as kind:
            return _of_product(kind, given)
        case kind if isinstance(kind, _MOVED):
            return max(given[:1] if isinstance(kind, Gather) else given)
        case _:
            return math.inf


def _of_product(kind: Product, given: Sequence[float]) -> float:
    workload = kind.computation
    depth = workload.macs // max(1, math.prod(workload.output.shape))
    first, second = (g + abs(z) for g, z in zip(given, kind.zero_points, strict=False))
    bound = depth * (first + abs(kind.padding)) * second
    if kind.epilogue is not None and kind.epilogue.residual is not None:
        return math.inf
    for name, vector in zip(kind.vectors, given[2:], strict=False):
        bound = bound + vector if name == BIAS else bound * vector
    return _finite(bound)


def _of_constant(array: Array) -> float:
    if not array.size:
        return 0.0
    largest = float(np.abs(array.astype(np.float64)).max())
    return _finite(largest) if math.isfinite(largest) else math.inf
