"""Recognize normalizations of layers and softmax in means, differences and quotients."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from cpembed.graph.graph import Graph, Operator
from cpembed.graph.kinds import Apply, Elementwise, Input, LayerNorm, Reduce, Softmax
from cpembed.graph.passes.expressions import combines_inputs, number_operand
from cpembed.graph.passes.rewriting import Rewriting, only_reader, producer_of
from cpembed.ir.scalars import apply

_ROOT = Apply("sqrt", (Input(0),))


def recognize_normalizations(graph: Graph) -> Graph:
    """Replace the operators of a normalization by one.

    Recognized are ``(x - mean) / sqrt(mean((x - mean)^2) + epsilon) * scale + bias`` over the last
    axes, the same with a mean of 0 (also as a product with a reciprocal root), and
    ``exp(x - max) / sum(exp(x - max))``. They are computed in wider floats and rounded once, so
    results differ by roundings.
    """
    rewriting = Rewriting(graph)
    for operator in graph.operators:
        match operator.kind:
            case Elementwise(dtype="float32") as kind if len(operator.inputs) == 2:
                pass
            case _:
                continue
        # All end in a quotient or a product; a normalization of layers may go on with its scale and
        # bias. That by the root mean square is a part of the other.
        is_quotient = kind.expression == apply("div", Input(0), Input(1))
        norm = _layer_norm(graph, operator) if is_quotient else None
        norm = norm or _rms_norm(graph, operator, kind)
        if norm is not None:
            rewriting.replace(norm.last, _as_operator(rewriting, norm))
            continue
        if not is_quotient:
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
    centres: bool = True


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
    return _with_constants(graph, _LayerNorm(source, axis, epsilon, quotient))


def _with_constants(graph: Graph, norm: _LayerNorm) -> _LayerNorm:
    """Return a normalization with the scale and the bias that follow, in this order, if any."""
    shape = graph.types[norm.source].shape[norm.axis :]
    last, names = norm.last, list[str | None]()
    for operation in ("mul", "add"):
        constant = _constant_operand(graph, last, operation, shape)
        names.append(None if constant is None else constant[0])
        last = last if constant is None else constant[1]
    return replace(norm, last=last, scale=names[0], bias=names[1])


def _rms_norm(graph: Graph, operator: Operator, kind: Elementwise) -> _LayerNorm | None:
    """Match a quotient by the root of a mean of squares, or a product with its reciprocal."""
    first, second = operator.inputs
    if kind.expression == apply("div", Input(0), Input(1)):
        pairs = [(first, _root_argument(graph, second))]
    elif combines_inputs(kind.expression, "mul"):
        pairs = [
            (source, _reciprocal_root_argument(graph, factor))
            for source, factor in ((first, second), (second, first))
        ]
    else:
        return None
    for source, total in pairs:
        added = None if total is None else _operation(graph, total, "add")
        epsilon = None if added is None else number_operand(added[1], "add")
        variance = None if added is None else _mean(graph, added[0].inputs[0])
        if epsilon is None or variance is None or not _is_square(graph, variance[0], source):
            continue
        if graph.types[source].shape == graph.types[operator.output].shape:
            norm = _LayerNorm(source, variance[1], epsilon, operator, centres=False)
            return _with_constants(graph, norm)
    return None


def _root_argument(graph: Graph, tensor: str) -> str | None:
    root = _operation(graph, tensor, "sqrt")
    return root[0].inputs[0] if root is not None and root[1] == _ROOT else None


def _reciprocal_root_argument(graph: Graph, tensor: str) -> str | None:
    """Return the tensor whose reciprocal root another one is."""
    for operation in ("div", "pow"):
        producer = _operation(graph, tensor, operation)
        if producer is None:
            continue
        if producer[1] in (apply("div", 1.0, _ROOT), apply("pow", Input(0), -0.5)):
            return producer[0].inputs[0]
        if producer[1] == apply("div", 1.0, Input(0)):
            return _root_argument(graph, producer[0].inputs[0])
    return None


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
    kind = LayerNorm(norm.axis, norm.epsilon, norm.centres)
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
