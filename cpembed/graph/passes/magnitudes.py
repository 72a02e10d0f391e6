"""Bounds on the magnitude of tensors: which of them hold no infinity and no NaN."""

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

# Half of the largest float32: numbers below it stay finite however they were rounded.
_LARGEST = float(np.finfo(np.float32).max) / 2

# Kinds whose results are elements of the input, or lie between some.
_MOVEMENT = (Reshape, Transpose, Slice, Gather, Expand, Concat, Resize)

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
    """Return a bound on an expression and all of its parts, from bounds of its inputs."""
    if isinstance(node, Number):
        return abs(float(node.value)) if math.isfinite(node.value) else math.inf
    if not isinstance(node, Apply):
        return inputs[node.number]
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
        case Dequantize(scale, zero_point):
            distance = inputs[0] + max(abs(zero) for zero in zero_point)
            return _finite(distance * _constant_bound(np.asarray(scale)))
        case Pool(ratio=None) | Reduce(operation="max" | "min" | "mean"):
            has_elements = graph.types[operator.inputs[0]].elements > 0
            return inputs[0] if has_elements else math.inf
        case Reduce(operation="sum"):
            return _finite(inputs[0] * graph.types[operator.inputs[0]].elements)
        case Pad(mode="constant", value=value):
            return max(inputs[0], _constant_bound(np.asarray(value)))
        case Pad():
            return inputs[0]
        case Product() as kind:
            return _product_bound(kind, inputs)
        case kind if isinstance(kind, _MOVEMENT):
            return max(inputs[:1] if isinstance(kind, Gather) else inputs)
        case _:
            return math.inf


def _product_bound(kind: Product, inputs: Sequence[float]) -> float:
    workload = kind.computation
    length = workload.macs // max(1, math.prod(workload.output.shape))
    first, second = (b + abs(z) for b, z in zip(inputs, kind.zero_points, strict=False))
    bound = length * (first + abs(kind.padding)) * second
    if kind.epilogue is not None and kind.epilogue.residual is not None:
        return math.inf
    for name, vector in zip(kind.vectors, inputs[2:], strict=False):
        bound = bound + vector if name == BIAS else bound * vector
    return _finite(bound)


def _constant_bound(array: Array) -> float:
    if not array.size:
        return 0.0
    largest = float(np.abs(array.astype(np.float64)).max())
    return _finite(largest) if math.isfinite(largest) else math.inf
