"""Compute elementwise operators on quantized tensors from the integers, or look them up.

Sums, products and means of quantized tensors become integer arithmetic that rounds once; functions
of one tensor of eight bits become tables of their 256 values.
"""

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
from cpembed.graph.passes.epilogue_matching import UNLIMITED, before_clip
from cpembed.graph.passes.expressions import apply, combines_inputs
from cpembed.graph.passes.quantization import (
    Quantized,
    are_safe_factors,
    byte_quantization,
    clipped,
    dequantized,
    float32,
    integer_range,
    is_per_tensor,
    offset,
    quantized_clip,
)
from cpembed.graph.passes.rewriting import Array, Rewriting, only_reader


def integer_elementwise(graph: Graph) -> Graph:
    """Compute quantized sums and products of two tensors, and means of one, from the integers.

    Results differ by at most one quantum, since scales are combined.
    """
    rewriting = Rewriting(graph)
    for operator in graph.operators:
        kind = byte_quantization(operator)
        if kind is None:
            continue
        tensor, clip = before_clip(graph, operator.inputs[0])
        before = graph.producers.get(tensor)
        if before is None or only_reader(graph, tensor) is None:
            continue
        if isinstance(before.kind, Elementwise) and before.kind.dtype == "float32":
            _combine(rewriting, operator, before, kind, clip)
        elif isinstance(before.kind, Pool | Reduce) and clip == UNLIMITED:
            _requantize_mean(rewriting, operator, before, kind)
    return rewriting.graph()


def _combine(
    rewriting: Rewriting,
    operator: Operator,
    before: Operator,
    kind: Quantize,
    clip: tuple[float, float],
) -> None:
    """Replace a quantized sum, difference or product by integer arithmetic."""
    graph = rewriting.source
    assert isinstance(before.kind, Elementwise)
    if len(before.inputs) != 2:
        return
    first, second = (dequantized(graph, name) for name in before.inputs)
    if first is None or second is None:
        return
    value = _combined(before.kind.expression, first, second, float32(kind.scale[0]))
    if value is None:
        return
    zero_point, rounded = kind.zero_point[0], apply("round", value)
    if (bounds := quantized_clip(clip, kind)) is not None:
        low, high = bounds
        rounded = clipped(rounded, (low - zero_point, high - zero_point))
    new = Elementwise(offset(rounded, zero_point), kind.dtype, "float32")
    inputs = (first.tensor, second.tensor)
    rewriting.replace(operator, Operator(before.name, new, inputs, operator.outputs))


def _combined(
    expression: Scalar, first: Quantized, second: Quantized, unit: float
) -> Scalar | None:
    """Return a sum, difference or product of two quantized tensors in units of the result."""
    a = offset(Input(0), -first.zero_point)
    b = offset(Input(1), -second.zero_point)
    if combines_inputs(expression, "mul"):
        scale = first.scale * second.scale / unit
        return apply("mul", apply("mul", a, b), float32(scale)) if are_safe_factors(scale) else None
    if combines_inputs(expression, "add"):
        signs = 1.0, 1.0
    elif combines_inputs(expression, "sub"):
        signs = (1.0, -1.0) if expression == apply("sub", Input(0), Input(1)) else (-1.0, 1.0)
    else:
        return None
    factor_a, factor_b = signs[0] * first.scale / unit, signs[1] * second.scale / unit
    if not are_safe_factors(factor_a, factor_b, sums=True):
        return None
    return apply("fma", a, float32(factor_a), apply("mul", b, float32(factor_b)))


def _requantize_mean(
    rewriting: Rewriting, operator: Operator, before: Operator, kind: Quantize
) -> None:
    """Replace a quantized mean by a pooling of integers that stores the new scale."""
    graph = rewriting.source
    source = dequantized(graph, before.inputs[0])
    pool = None if source is None else _as_pool(before, graph.types[source.tensor].shape)
    if source is None or pool is None:
        return
    ratio = source.scale / float32(kind.scale[0])
    if not are_safe_factors(ratio):
        return
    distance = DISTANCE.get((kind.dtype, source.dtype), 0)
    stored_zero = kind.zero_point[0] + distance
    pool = replace(pool, zero_point=source.zero_point, ratio=ratio, stored_zero_point=stored_zero)
    # Pooling keeps the element type of its input, so another type is converted to afterwards.
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
    """Return a mean over windows, or over all of the last axes, as pooling."""
    match operator.kind:
        case Pool(operation="mean", ratio=None) as kind:
            return kind
        case Reduce(operation="mean", axes=axes):
            reduced = sorted(axis % len(shape) for axis in axes)
            count = len(reduced)
            if reduced != list(range(len(shape) - count, len(shape))):
                return None
            ones, zeros = (1,) * count, (0,) * count
            return Pool("mean", shape[len(shape) - count :], ones, zeros, zeros, ones)
        case _:
            return None


def tabulate(graph: Graph) -> Graph:
    """Look up tensors of eight bits that are functions of one such tensor, element by element.

    The function may span several operators (dequantize, transform, quantize). Its entries are what
    these make of all 256 values: equal bit for bit. Identities are dropped.
    """
    rewriting = Rewriting(graph)
    functions: dict[str, _Function] = {}
    for operator in graph.operators:
        function = _function(graph, operator, functions)
        if function is None:
            continue
        functions[operator.output] = function
        result = graph.types[operator.output]
        is_identity = result == graph.types[function.source] and function.is_identity
        if is_identity and rewriting.redirect(operator.output, function.source):
            continue
        if result.dtype in BYTES:
            table = Table(tuple(function.values.tolist()), result.dtype)
            if operator.inputs != (function.source,) or operator.kind != table:
                rewriting.replace(
                    operator, replace(operator, kind=table, inputs=(function.source,))
                )
    return rewriting.graph()


@dataclass(frozen=True)
class _Function:
    """Results for each of the 256 values of the tensor ``source``, in ascending order."""

    source: str
    values: Array

    @property
    def is_identity(self) -> bool:
        dtype = str(self.values.dtype)
        return dtype in BYTES and np.array_equal(self.values, _every_value(dtype))


def _every_value(dtype: str) -> Array:
    """Return all integers of a type of eight bits in ascending order."""
    low, high = integer_range(dtype)
    return np.arange(low, high + 1).astype(dtype)


def _function(
    graph: Graph, operator: Operator, functions: dict[str, _Function]
) -> _Function | None:
    """Return an operator's result as a function of one tensor, composed with earlier functions."""
    match operator.kind:
        case Elementwise() | Table():
            pass
        case Quantize() | Dequantize() as kind if is_per_tensor(kind):
            pass
        case _:
            return None
    inputs: list[_Function] = []
    for name in operator.inputs:
        if name in functions:
            inputs.append(functions[name])
        elif graph.types[name].dtype in BYTES and not graph.is_constant(name):
            inputs.append(_Function(name, _every_value(graph.types[name].dtype)))
        else:
            return None
    sources = {function.source for function in inputs}
    if len(sources) != 1:
        return None
    (values,) = operator.kind.evaluate([function.values for function in inputs])
    return _Function(sources.pop(), values)
