"""Recognize layer normalization and softmax in means, differences and quotients."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cpembed.graph.graph import Graph, Operator
from cpembed.graph.kinds import Apply, Elementwise, Input, LayerNorm, Reduce, Softmax
from cpembed.graph.passes.expressions import apply, combines_inputs, number_operand
from cpembed.graph.passes.rewriting import Rewriting, only_reader, producer_of


def recognize_normalizations(graph: Graph) -> Graph:
    """Replace the operators of a normalization by one.

    Recognized are ``(x - mean) / sqrt(mean((x - mean)^2) + epsilon) * scale + bias`` over the last
    axes, and ``exp(x - max) / sum(exp(x - max))``. Both are computed in wider floats and rounded
    once, so results differ by roundings.
    """
    rewriting = Rewriting(graph)
    for operator in graph.operators:
        match operator.kind:
            case Elementwise(dtype="float32") as kind:
                if kind.expression != apply("div", Input(0), Input(1)):
                    continue
            case _:
                continue
        # Both end in a quotient; a layer normalization may go on with its scale and bias.
        norm = _layer_norm(graph, operator)
        if norm is not None:
            rewriting.replace(norm.last, _as_operator(rewriting, norm))
            continue
        softmax = _softmax(graph, operator)
        if softmax is not None:
            source, axis = softmax
            new = Operator(operator.name, Softmax(axis), (source,), operator.outputs)
            rewriting.replace(operator, new)
    return rewriting.graph()


@dataclass(frozen=True)
class _LayerNorm:
    """Layer normalization up to the operator ``last``; ``scale`` and ``bias`` are constants."""

    source: str
    axis: int
    epsilon: float
    last: Operator
    scale: str | None = None
    bias: str | None = None


def _operation(graph: Graph, tensor: str, operation: str) -> tuple[Operator, Apply] | None:
    """Return the operator that writes a tensor of floats by one operation, and its expression."""
    producer = producer_of(graph, tensor, Elementwise)
    if producer is None:
        return None
    operator, kind = producer
    expression = kind.expression
    if not isinstance(expression, Apply) or kind.dtype != "float32":
        return None
    return (operator, expression) if expression.operation == operation else None


def _layer_norm(graph: Graph, quotient: Operator) -> _LayerNorm | None:
    centred, deviation = quotient.inputs
    centring = _operation(graph, centred, "sub")
    root = _operation(graph, deviation, "sqrt")
    if centring is None or root is None:
        return None
    difference, expression = centring
    mean = _mean(graph, difference.inputs[-1])
    total = _operation(graph, root[0].inputs[0], "add")
    if expression != apply("sub", Input(0), Input(1)) or mean is None or total is None:
        return None
    epsilon = number_operand(total[1], "add")
    variance = _mean(graph, total[0].inputs[0])
    source, axis = difference.inputs[0], mean[1]
    if epsilon is None or variance is None or mean != (source, axis) or variance[1] != axis:
        return None
    if not _is_square(graph, variance[0], centred):
        return None
    # Scale and bias follow in this order; either may be missing.
    shape = graph.types[source].shape[axis:]
    last, names = quotient, list[str | None]()
    for operation in ("mul", "add"):
        constant = _constant_operand(graph, last, operation, shape)
        names.append(None if constant is None else constant[0])
        last = last if constant is None else constant[1]
    return _LayerNorm(source, axis, epsilon, last, scale=names[0], bias=names[1])


def _mean(graph: Graph, tensor: str) -> tuple[str, int] | None:
    """Return the tensor whose last axes were averaged, and the first of these axes."""
    producer = producer_of(graph, tensor, Reduce)
    if producer is None or producer[1].operation != "mean" or not producer[1].keeps:
        return None
    source = producer[0].inputs[0]
    rank = len(graph.types[source].shape)
    axes = sorted(axis % rank for axis in producer[1].axes)
    return (source, axes[0]) if axes == list(range(axes[0], rank)) else None


def _is_square(graph: Graph, tensor: str, base: str) -> bool:
    producer = producer_of(graph, tensor, Elementwise)
    if producer is None or {*producer[0].inputs} != {base}:
        return False
    expression = producer[1].expression
    if not isinstance(expression, Apply):
        return False
    is_product = expression.operation == "mul" and all(
        isinstance(argument, Input) for argument in expression.arguments
    )
    return is_product or expression == apply("pow", Input(0), 2.0)


def _constant_operand(
    graph: Graph, operator: Operator, operation: str, shape: tuple[int, ...]
) -> tuple[str, Operator] | None:
    """Return a constant of ``shape`` that an operator's result is combined with, and the reader."""
    reader = only_reader(graph, operator.output)
    if reader is None or not isinstance(reader.kind, Elementwise) or len(reader.inputs) != 2:
        return None
    if not combines_inputs(reader.kind.expression, operation) or reader.kind.dtype != "float32":
        return None
    # The constant has the shape of the normalized axes, possibly with unit axes before them.
    partners = [name for name in reader.inputs if name != operator.output]
    if len(partners) != 1 or partners[0] not in graph.constants:
        return None
    actual = graph.constants[partners[0]].shape
    fits = actual[len(actual) - len(shape) :] == shape and all(
        size == 1 for size in actual[: len(actual) - len(shape)]
    )
    same_type = graph.types[reader.output] == graph.types[operator.output]
    return (partners[0], reader) if fits and same_type else None


def _as_operator(rewriting: Rewriting, norm: _LayerNorm) -> Operator:
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
    """Return the input and the axis of a softmax that ends in a quotient."""
    powers, total = quotient.inputs
    summation = producer_of(graph, total, Reduce)
    power = _operation(graph, powers, "exp")
    if summation is None or power is None or summation[0].inputs != (powers,):
        return None
    kind = summation[1]
    if kind.operation != "sum" or not kind.keeps or len(kind.axes) != 1:
        return None
    shifted = power[0].inputs[0]
    difference = _operation(graph, shifted, "sub")
    if difference is None or difference[1] != apply("sub", Input(0), Input(1)):
        return None
    # Without the maximum, the powers of large numbers would be infinite: that form is kept, since
    # its results differ.
    maximum = producer_of(graph, difference[0].inputs[-1], Reduce)
    rank = len(graph.types[shifted].shape)
    if (
        maximum is not None
        and maximum[1].operation == "max"
        and maximum[0].inputs[0] == difference[0].inputs[0]
        and [axis % rank for axis in maximum[1].axes] == [kind.axes[0] % rank]
    ):
        return difference[0].inputs[0], kind.axes[0]
    return None
