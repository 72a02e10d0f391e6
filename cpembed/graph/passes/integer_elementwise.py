"""Sums, products and means of quantized tensors are computed from the integers, rounded once."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from cpembed.codegen.epilogue import BYTES
from cpembed.graph.graph import Graph, Operator
from cpembed.graph.kinds import (
    Dequantize,
    Elementwise,
    Input,
    Pool,
    Quantize,
    Reduce,
    Reshape,
    Scalar,
    Table,
)
from cpembed.graph.passes.element_types import DISTANCE, conversion
from cpembed.graph.passes.epilogue_matching import UNLIMITED, before_limits
from cpembed.graph.passes.expressions import apply, both_inputs
from cpembed.graph.passes.quantization import (
    Quantized,
    are_factors,
    clipped,
    dequantized,
    float32,
    is_plain,
    moved,
    quantizing,
    range_of,
    stored_limits,
)
from cpembed.graph.passes.rewriting import Array, Rewriting, only_reader


def integer_elementwise(graph: Graph) -> Graph:
    """Sums and products of two dequantized tensors, and means of one, that are limited and
    quantized are computed from the integers at once: results differ by at most one quantum, since
    scales are combined."""
    rewriting = Rewriting(graph)
    for operator in graph.operators:
        kind = quantizing(operator)
        if kind is not None:
            _convert(rewriting, operator, kind)
    return rewriting.graph()


def _convert(rewriting: Rewriting, operator: Operator, kind: Quantize) -> None:
    graph = rewriting.source
    tensor, clip = before_limits(graph, operator.inputs[0])
    before = graph.producers.get(tensor)
    if before is None or only_reader(graph, tensor) is None:
        return
    match before.kind:
        case Elementwise(dtype="float32") as inner:
            _combine(rewriting, operator, before, inner, kind, clip)
        case Pool() | Reduce() if clip == UNLIMITED:
            _mean(rewriting, operator, before, kind)
        case _:
            pass


def _combine(
    rewriting: Rewriting,
    operator: Operator,
    before: Operator,
    inner: Elementwise,
    kind: Quantize,
    clip: tuple[float, float],
) -> None:
    """A sum, a difference or a product."""
    graph = rewriting.source
    if len(before.inputs) != 2:
        return
    first, second = (dequantized(graph, name) for name in before.inputs)
    if first is None or second is None:
        return
    value = _combined(inner.expression, first, second, float32(kind.scale[0]))
    if value is None:
        return
    zero, whole = kind.zero_point[0], apply("round", value)
    if (ends := stored_limits(clip, kind)) is not None:
        whole = clipped(whole, *(end - zero for end in ends))
    new = Elementwise(moved(whole, zero), kind.dtype, "float32")
    inputs = (first.tensor, second.tensor)
    rewriting.replace(operator, Operator(before.name, new, inputs, operator.outputs))


def _combined(
    expression: Scalar, first: Quantized, second: Quantized, unit: float
) -> Scalar | None:
    """A sum, a difference or a product of two tensors in units of a third, from their integers."""
    a = moved(Input(0), -first.zero_point)
    b = moved(Input(1), -second.zero_point)
    if both_inputs(expression, "mul"):
        scale = first.scale * second.scale / unit
        return apply("mul", apply("mul", a, b), float32(scale)) if are_factors(scale) else None
    if both_inputs(expression, "add"):
        signs = 1.0, 1.0
    elif both_inputs(expression, "sub"):
        signs = (1.0, -1.0) if expression == apply("sub", Input(0), Input(1)) else (-1.0, 1.0)
    else:
        return None
    one, other = signs[0] * first.scale / unit, signs[1] * second.scale / unit
    if not are_factors(one, other, sums=True):
        return None
    return apply("fma", a, float32(one), apply("mul", b, float32(other)))


def _mean(rewriting: Rewriting, operator: Operator, before: Operator, kind: Quantize) -> None:
    """A mean of a window, stored anew with the scale of the result."""
    graph = rewriting.source
    source = dequantized(graph, before.inputs[0])
    pool = None if source is None else _as_pool(before, graph.types[source.tensor].shape)
    if source is None or pool is None:
        return
    ratio = source.scale / float32(kind.scale[0])
    if not are_factors(ratio):
        return
    distance = DISTANCE.get((kind.dtype, source.dtype), 0)
    stored_zero = kind.zero_point[0] + distance
    pool = replace(pool, zero_point=source.zero_point, ratio=ratio, stored_zero_point=stored_zero)
    # Pools keep the element type of what they read.
    name = rewriting.fresh(f"{operator.output} mean")
    shape = graph.types[operator.output].shape
    steps = [Operator(before.name, pool, (source.tensor,), (name,))]
    pooled = pool.types([graph.types[source.tensor]])[0].shape
    if pooled != shape:
        new = rewriting.fresh(f"{operator.output} reshaped")
        steps.append(Operator(before.name, Reshape(shape), (name,), (new,)))
    if distance:
        new = rewriting.fresh(f"{operator.output} converted")
        table = conversion(source.dtype, kind.dtype)
        steps.append(Operator(before.name, table, (steps[-1].output,), (new,)))
    steps[-1] = replace(steps[-1], outputs=operator.outputs)
    rewriting.replace(operator, *steps)


def _as_pool(operator: Operator, shape: tuple[int, ...]) -> Pool | None:
    """A mean over windows, or over all of the last axes, as pooling."""
    match operator.kind:
        case Pool(operation="mean", ratio=None) as kind:
            return kind
        case Reduce(operation="mean", axes=axes):
            places = sorted(axis % len(shape) for axis in axes)
            count = len(places)
            if places != list(range(len(shape) - count, len(shape))):
                return None
            ones, none = (1,) * count, (0,) * count
            return Pool("mean", shape[len(shape) - count :], ones, none, none, ones)
        case _:
            return None


def tables(graph: Graph) -> Graph:
    """Where a tensor of eight bits is computed, element by element, from one of the same shape
    alone (dequantized, transformed, quantized, in however many operators), it is looked up.

    The entries are what the operators themselves make of all 256 values: equal bit for bit. A
    table that changes nothing is left out. Only what is stored in eight bits is looked up.
    """
    rewriting = Rewriting(graph)
    known: dict[str, _Function] = {}
    for operator in graph.operators:
        function = _function(graph, operator, known)
        if function is None:
            continue
        known[operator.output] = function
        kind = graph.types[operator.output]
        same = kind == graph.types[function.source] and function.is_identity
        if same and rewriting.equal(operator.output, function.source):
            continue
        if kind.dtype in BYTES:
            entries = tuple(function.values.tolist())
            table = Table(entries, kind.dtype)
            if operator.inputs != (function.source,) or operator.kind != table:
                new = replace(operator, kind=table, inputs=(function.source,))
                rewriting.replace(operator, new)
    return rewriting.graph()


@dataclass(frozen=True)
class _Function:
    """What each of the 256 values of the tensor ``source`` becomes, from the least on."""

    source: str
    values: Array

    @property
    def is_identity(self) -> bool:
        dtype = str(self.values.dtype)
        return dtype in BYTES and np.array_equal(self.values, every_value(dtype))


def every_value(dtype: str) -> Array:
    """All integers of a type of eight bits, from the least on."""
    low, high = range_of(dtype)
    return np.arange(low, high + 1).astype(dtype)


def _function(graph: Graph, operator: Operator, known: dict[str, _Function]) -> _Function | None:
    """What an operator computes, as a function of one tensor, whatever that was computed from."""
    match operator.kind:
        case Elementwise() | Table():
            pass
        case Quantize() | Dequantize() as kind if is_plain(kind):
            pass
        case _:
            return None
    given = [_input(graph, name, known) for name in operator.inputs]
    functions = [g for g in given if isinstance(g, _Function)]
    sources = {f.source for f in functions}
    if len(functions) != len(given) or len(sources) != 1:
        return None
    source = sources.pop()
    (values,) = operator.kind.evaluate([f.values for f in functions])
    return _Function(source, values)


def _input(graph: Graph, name: str, known: dict[str, _Function]) -> _Function | None:
    if name in known:
        return known[name]
    kind = graph.types[name]
    if kind.dtype not in BYTES or graph.is_constant(name):
        return None
    return _Function(name, every_value(kind.dtype))
