"""Compute operators other than products on the integers of quantized tensors.

Operators that move elements, or take the largest of some, commute with quantization and
dequantization, which are monotonic functions of single elements; on bytes they read a quarter of
the memory. Sums, products and means become integer arithmetic that rounds once. Functions of one
tensor of bytes become tables of their 256 values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from cpembed.codegen.epilogue import BYTES
from cpembed.graph import kinds
from cpembed.graph.graph import Graph, Operator
from cpembed.graph.kinds import (
    Apply,
    Dequantize,
    Elementwise,
    Input,
    Kind,
    Number,
    Quantize,
    Scalar,
    Table,
)
from cpembed.graph.passes.element_types import DISTANCE, conversion
from cpembed.graph.passes.epilogue_matching import UNLIMITED, before_clip
from cpembed.graph.passes.expressions import combines_inputs, magnitudes
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
    quantized_value,
)
from cpembed.graph.passes.rewriting import (
    Array,
    Rewriting,
    only_reader,
    producer_of,
    until_unchanged,
)
from cpembed.ir.scalars import apply, substituted


def move_integers(graph: Graph) -> Graph:
    """Sink dequantizations below movement, and hoist quantizations above it, equal bit for bit."""
    return until_unchanged(until_unchanged(graph, _sink_dequantize), _hoist_quantize)


def _sink_dequantize(rewriting: Rewriting, operator: Operator) -> None:
    if isinstance(operator.kind, kinds.Concat):
        _sink_below_concat(rewriting, operator)
        return
    graph = rewriting.source
    producer = producer_of(graph, operator.inputs[0], Dequantize) if operator.inputs else None
    if producer is None:
        return
    before, dequantize = producer
    integers = before.inputs[0]
    dtype = graph.types[integers].dtype
    # The movement comes first, on integers; a dequantization then writes the original output.
    kind = _on_integers(operator.kind, dequantize, dtype)
    after = _with_moved_axis(graph, operator, dequantize)
    if kind is None or after is None:
        return
    name = rewriting.fresh(f"{operator.output} as {dtype}")
    rewriting.replace(
        operator,
        Operator(operator.name, kind, (integers, *operator.inputs[1:]), (name,)),
        Operator(before.name, after, (name,), operator.outputs),
    )


def _sink_below_concat(rewriting: Rewriting, operator: Operator) -> None:
    graph = rewriting.source
    candidates = [producer_of(graph, name, Dequantize) for name in operator.inputs]
    producers = [pair for pair in candidates if pair is not None]
    if len(producers) != len(candidates) or not is_per_tensor(producers[0][1]):
        return
    # One dequantization takes the place of all, so they have to be equal.
    (first, dequantize), integers = producers[0], [before.inputs[0] for before, _ in producers]
    dtypes = {graph.types[name].dtype for name in integers}
    axis = dequantize.axis
    if len(dtypes) > 1 or any(replace(kind, axis=axis) != dequantize for _, kind in producers):
        return
    name = rewriting.fresh(f"{operator.output} as {dtypes.pop()}")
    rewriting.replace(
        operator,
        Operator(operator.name, operator.kind, tuple(integers), (name,)),
        Operator(first.name, dequantize, (name,), operator.outputs),
    )


def _selects_elements(kind: Kind) -> bool:
    """True if each result is an element of the input, or the least or largest of some."""
    match kind:
        case kinds.Reshape() | kinds.Transpose() | kinds.Slice() | kinds.Gather():
            return True
        case kinds.Expand() | kinds.Pad():
            return True
        case kinds.Resize():
            return kind.mode == "nearest"
        case kinds.Reduce():
            return kind.operation in ("max", "min")
        case kinds.Pool():
            return kind.operation == "max" and _windows_reach_image(kind)
        case _:
            return False


def _windows_reach_image(kind: kinds.Pool) -> bool:
    """True if no window lies in the padding only: its maximum would be -infinity, no integer."""
    sizes = zip(kind.window, kind.dilation, kind.before, kind.after, strict=True)
    return all(max(b, a) <= (w - 1) * d and (d == 1 or max(b, a) == 0) for w, d, b, a in sizes)


def _on_integers(kind: Kind, dequantize: Dequantize, dtype: str) -> Kind | None:
    """Return the kind that moves integers as ``kind`` moves their numbers, if there is one."""
    # A scale of 0 or below would reverse or merge the order of elements.
    if not _selects_elements(kind) or min(dequantize.scale) <= 0:
        return None
    if isinstance(kind, kinds.Pad) and kind.mode == "constant":
        if not is_per_tensor(dequantize) or not math.isfinite(kind.value):
            return None
        scale, zero_point = np.float32(dequantize.scale[0]), dequantize.zero_point[0]
        # The padding has to be the number of some integer.
        value = round(float(kind.value) / float(scale)) + zero_point
        low, high = integer_range(dtype)
        stands_for = float(np.float32(value - zero_point) * scale)
        exact = low <= value <= high and stands_for == float32(kind.value)
        return replace(kind, value=value) if exact else None
    return kind


def _with_moved_axis(graph: Graph, operator: Operator, dequantize: Dequantize) -> Dequantize | None:
    """Return the dequantization of the moved tensor, whose scales may belong to another axis."""
    if is_per_tensor(dequantize):
        return dequantize
    shape = graph.types[operator.inputs[0]].shape
    axis = dequantize.axis % len(shape)
    match operator.kind:
        case kinds.Transpose(order):
            return replace(dequantize, axis=order.index(axis))
        # The scales' axis is the one of its size with as many elements outside of it.
        case kinds.Reshape(new_shape):
            outside = math.prod(shape[:axis])
            for new_axis, size in enumerate(new_shape):
                if size == shape[axis] and math.prod(new_shape[:new_axis]) == outside:
                    return replace(dequantize, axis=new_axis)
        case _:
            pass
    return None


def _hoist_quantize(rewriting: Rewriting, operator: Operator) -> None:
    graph, kind = rewriting.source, byte_quantization(operator)
    movement = None if kind is None else graph.producers.get(operator.inputs[0])
    if kind is None or movement is None or not only_reader(graph, operator.inputs[0]):
        return
    moved = movement.kind
    if not (_selects_elements(moved) or isinstance(moved, kinds.Concat)):
        return
    # The largest of a NaN and a number is NaN, which is stored as 0; the integers would hide it.
    takes_extreme = isinstance(moved, kinds.Reduce | kinds.Pool)
    if takes_extreme and magnitudes(graph)[movement.inputs[0]] == math.inf:
        return
    if isinstance(moved, kinds.Pad) and moved.mode == "constant":
        moved = replace(moved, value=quantized_value(float(moved.value), kind))
    count = len(movement.inputs) if isinstance(moved, kinds.Concat) else 1
    before: list[Operator] = []
    for name in movement.inputs[:count]:
        new = rewriting.fresh(f"{name} as {kind.dtype}")
        before.append(Operator(operator.name, kind, (name,), (new,)))
    names = (*(o.output for o in before), *movement.inputs[count:])
    rewriting.replace(operator, *before, Operator(movement.name, moved, names, operator.outputs))


def integer_elementwise(graph: Graph) -> Graph:
    """Compute quantized sums and products of two tensors, and means of one, from the integers.

    Results differ by at most one quantum, since scales are combined and rounded once.
    """
    rewriting = Rewriting(graph)
    for operator in graph.operators:
        kind = byte_quantization(operator)
        if kind is None:
            continue
        # A ReLU between the operator and its quantization becomes bounds of the integers.
        tensor, clip = before_clip(graph, operator.inputs[0])
        before = graph.producers.get(tensor)
        if before is None or only_reader(graph, tensor) is None:
            continue
        if isinstance(before.kind, Elementwise) and before.kind.dtype == "float32":
            _combine(rewriting, operator, before, kind, clip)
        elif isinstance(before.kind, kinds.Pool | kinds.Reduce) and clip == UNLIMITED:
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
    # ``unit`` is the scale of the result.
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
    # Each term in units of the result: its scale by the result's.
    factor_a, factor_b = signs[0] * first.scale / unit, signs[1] * second.scale / unit
    if not are_safe_factors(factor_a, factor_b, sums=True):
        return None
    return apply("fma", a, float32(factor_a), apply("mul", b, float32(factor_b)))


def _requantize_mean(
    rewriting: Rewriting, operator: Operator, before: Operator, kind: Quantize
) -> None:
    """Replace a quantized mean by a pooling of integers that stores them in the new scale."""
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
        steps.append(Operator(before.name, kinds.Reshape(shape), (name,), (new,)))
    if distance:
        new = rewriting.fresh(f"{operator.output} converted")
        table = conversion(source.dtype, kind.dtype)
        steps.append(Operator(before.name, table, (steps[-1].output,), (new,)))
    steps[-1] = replace(steps[-1], outputs=operator.outputs)
    rewriting.replace(operator, *steps)


def _as_pool(operator: Operator, shape: tuple[int, ...]) -> kinds.Pool | None:
    """Return a mean over windows, or over all of the last axes, as pooling."""
    match operator.kind:
        case kinds.Pool(operation="mean", ratio=None) as kind:
            return kind
        case kinds.Reduce(operation="mean", axes=axes):
            # One window as large as the reduced axes, if these are the last ones.
            reduced = sorted(axis % len(shape) for axis in axes)
            count = len(reduced)
            if reduced != list(range(len(shape) - count, len(shape))):
                return None
            ones, zeros = (1,) * count, (0,) * count
            return kinds.Pool("mean", shape[len(shape) - count :], ones, zeros, zeros, ones)
        case _:
            return None


def tabulate(graph: Graph) -> Graph:
    """Look up tensors of bytes that are functions of one such tensor, element by element.

    The function may span several operators (dequantize, transform, quantize). Its entries are their
    results for all 256 values, so the lookup is equal bit for bit. Identities are dropped.
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
            entries = tuple(function.values.tolist())
            table = Table(entries, result.dtype, function.expression)
            if operator.inputs != (function.source,) or operator.kind != table:
                rewriting.replace(
                    operator, replace(operator, kind=table, inputs=(function.source,))
                )
    return rewriting.graph()


@dataclass(frozen=True)
class _Function:
    """Results for each of the 256 values of the tensor ``source``, in ascending order.

    ``expression`` computes them in float32, before a result of bytes is rounded and saturated; None
    where operators are no such expression.
    """

    source: str
    values: Array
    expression: Scalar | None

    @property
    def is_identity(self) -> bool:
        """True if each result is the value itself."""
        dtype = str(self.values.dtype)
        return dtype in BYTES and np.array_equal(self.values, _every_value(dtype))


def _every_value(dtype: str) -> Array:
    """Return all integers of a byte type in ascending order."""
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
            inputs.append(_Function(name, _every_value(graph.types[name].dtype), Input(0)))
        else:
            return None
    # Functions of two tensors would need 65,536 entries.
    sources = {function.source for function in inputs}
    if len(sources) != 1:
        return None
    (values,) = operator.kind.evaluate([function.values for function in inputs])
    expression = _composed(operator.kind, [function.expression for function in inputs])
    return _Function(sources.pop(), values, expression)


def _composed(kind: Kind, inputs: Sequence[Scalar | None]) -> Scalar | None:
    """Return the expression of a kind's result over those of its inputs."""
    arguments = [argument for argument in inputs if argument is not None]
    if len(arguments) < len(inputs):
        return None
    match kind:
        case Dequantize(scale=(scale,), zero_point=(zero,)):
            # Positive numbers are constants of statements, negative ones differences.
            operation = "sub" if zero > 0 else "add"
            distance = Number(float(abs(zero)))
            centred = Apply(operation, (arguments[0], distance)) if zero else arguments[0]
            return Apply("mul", (centred, Number(scale)))
        case Quantize(scale=(scale,), zero_point=(0,)):
            return Apply("div", (arguments[0], Number(scale)))
        case Elementwise(expression, "float32"):
            return substituted(expression, lambda operand: arguments[operand.number])
        case _:
            return None
