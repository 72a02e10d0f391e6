"""Layer normalization and softmax that are written as means, differences and quotients."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cpembed.graph.graph import Graph, Operator
from cpembed.graph.kinds import Apply, Elementwise, Input, LayerNorm, Reduce, Softmax
from cpembed.graph.passes.expressions import apply, both_inputs, with_number
from cpembed.graph.passes.rewriting import Rewriting, only_reader, producer_of


def normalizations(graph: Graph) -> Graph:
    """``(x - mean) / sqrt(mean((x - mean)^2) + epsilon) * scale + bias`` over the last axes becomes
    one operator, and so does ``exp(x - max) / sum(exp(x - max))``; without the maximum the powers
    of large numbers are infinite, and it stays what it is.

    Both are then computed in wider floats and rounded once: results differ by roundings.
    """
    rewriting = Rewriting(graph)
    for operator in graph.operators:
        if not _is_quotient(operator):
            continue
        norm = _norm(graph, operator)
        if norm is not None:
            rewriting.replace(norm.last, _normalized(rewriting, norm))
            continue
        found = _softmax(graph, operator)
        if found is not None:
            source, axis = found
            new = Operator(operator.name, Softmax(axis), (source,), operator.outputs)
            rewriting.replace(operator, new)
    return rewriting.graph()


@dataclass(frozen=True)
class _Norm:
    """A layer normalization up to the operator ``last``; ``scale`` and ``bias`` are constants."""

    source: str
    axis: int
    epsilon: float
    last: Operator
    scale: str | None = None
    bias: str | None = None


def _is_quotient(operator: Operator) -> bool:
    match operator.kind:
        case Elementwise(dtype="float32") as kind:
            return kind.expression == apply("div", Input(0), Input(1))
        case _:
            return False


def _applied(graph: Graph, tensor: str, operation: str) -> tuple[Operator, Apply] | None:
    """The operator that writes a tensor of floats, and its expression: one operation."""
    found = producer_of(graph, tensor, Elementwise)
    if found is None:
        return None
    operator, kind = found
    expression = kind.expression
    if not isinstance(expression, Apply) or kind.dtype != "float32":
        return None
    return (operator, expression) if expression.operation == operation else None


def _norm(graph: Graph, quotient: Operator) -> _Norm | None:
    centred, deviation = quotient.inputs
    found = _applied(graph, centred, "sub")
    root = _applied(graph, deviation, "sqrt")
    if found is None or root is None:
        return None
    difference, expression = found
    mean = _mean(graph, difference.inputs[-1])
    summed = _applied(graph, root[0].inputs[0], "add")
    if expression != apply("sub", Input(0), Input(1)) or mean is None or summed is None:
        return None
    epsilon = with_number(summed[1], "add")
    variance = _mean(graph, summed[0].inputs[0])
    source, axis = difference.inputs[0], mean[1]
    if epsilon is None or variance is None or mean != (source, axis) or variance[1] != axis:
        return None
    if not _is_square(graph, variance[0], centred):
        return None
    shape = graph.types[source].shape[axis:]
    norm = _Norm(source, axis, epsilon, quotient)
    scale = _constant_after(graph, norm.last, "mul", shape)
    if scale is not None:
        norm = _Norm(source, axis, epsilon, scale[1], scale[0])
    bias = _constant_after(graph, norm.last, "add", shape)
    if bias is not None:
        norm = _Norm(source, axis, epsilon, bias[1], norm.scale, bias[0])
    return norm


def _mean(graph: Graph, tensor: str) -> tuple[str, int] | None:
    """The tensor of whose last axes, from which on, another is the mean."""
    found = producer_of(graph, tensor, Reduce)
    if found is None or found[1].operation != "mean" or not found[1].keeps:
        return None
    source = found[0].inputs[0]
    rank = len(graph.types[source].shape)
    axes = sorted(axis % rank for axis in found[1].axes)
    return (source, axes[0]) if axes == list(range(axes[0], rank)) else None


def _is_square(graph: Graph, tensor: str, of: str) -> bool:
    found = producer_of(graph, tensor, Elementwise)
    if found is None or {*found[0].inputs} != {of}:
        return False
    kind = found[1].expression
    if not isinstance(kind, Apply):
        return False
    twice = kind.operation == "mul" and all(isinstance(a, Input) for a in kind.arguments)
    return twice or kind == apply("pow", Input(0), 2.0)


def _constant_after(
    graph: Graph, operator: Operator, operation: str, shape: tuple[int, ...]
) -> tuple[str, Operator] | None:
    """A constant of the normalized axes' shape that the result is combined with, and where."""
    reader = only_reader(graph, operator.output)
    if reader is None or not isinstance(reader.kind, Elementwise) or len(reader.inputs) != 2:
        return None
    if not both_inputs(reader.kind.expression, operation) or reader.kind.dtype != "float32":
        return None
    others = [name for name in reader.inputs if name != operator.output]
    if len(others) != 1 or others[0] not in graph.constants:
        return None
    found = graph.constants[others[0]].shape
    fits = found[len(found) - len(shape) :] == shape and all(
        size == 1 for size in found[: len(found) - len(shape)]
    )
    same = graph.types[reader.output] == graph.types[operator.output]
    return (others[0], reader) if fits and same else None


def _normalized(rewriting: Rewriting, norm: _Norm) -> Operator:
    graph = rewriting.source
    shape = graph.types[norm.source].shape[norm.axis :]
    names: list[str] = []
    for name, neutral in ((norm.scale, 1.0), (norm.bias, 0.0)):
        array = np.full(shape, neutral, np.float32)
        if name is not None:
            array = graph.constants[name].reshape(shape)
        names.append(rewriting.constant(name or f"{norm.last.name} {neutral:g}", array))
    kind = LayerNorm(norm.axis, norm.epsilon)
    return Operator(norm.last.name, kind, (norm.source, *names), norm.last.outputs)


def _softmax(graph: Graph, quotient: Operator) -> tuple[str, int] | None:
    powers, total = quotient.inputs
    found = producer_of(graph, total, Reduce)
    power = _applied(graph, powers, "exp")
    if found is None or power is None or found[0].inputs != (powers,):
        return None
    kind = found[1]
    if kind.operation != "sum" or not kind.keeps or len(kind.axes) != 1:
        return None
    source = power[0].inputs[0]
    difference = _applied(graph, source, "sub")
    if difference is None or difference[1] != apply("sub", Input(0), Input(1)):
        return None
    largest = producer_of(graph, difference[0].inputs[-1], Reduce)
    rank = len(graph.types[source].shape)
    if (
        largest is not None
        and largest[1].operation == "max"
        and largest[0].inputs[0] == difference[0].inputs[0]
        and [axis % rank for axis in largest[1].axes] == [kind.axes[0] % rank]
    ):
        return difference[0].inputs[0], kind.axes[0]
    return None
