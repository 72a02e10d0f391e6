"""Move elements as integers of eight bits: a quarter of the bytes of floats.

Operators that move elements, or take the largest of some, commute with quantization and
dequantization, which are monotonic functions of single elements.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from cpembed.graph.graph import Graph, Operator
from cpembed.graph.kinds import (
    Concat,
    Dequantize,
    Expand,
    Gather,
    Kind,
    Pad,
    Pool,
    Reduce,
    Reshape,
    Resize,
    Slice,
    Transpose,
)
from cpembed.graph.passes.magnitudes import magnitudes
from cpembed.graph.passes.quantization import (
    byte_quantization,
    float32,
    integer_range,
    is_per_tensor,
    quantized_value,
)
from cpembed.graph.passes.rewriting import Rewriting, only_reader, producer_of, until_unchanged


def move_integers(graph: Graph) -> Graph:
    """Sink dequantizations below movement, and hoist quantizations above it.

    Results are equal bit for bit.
    """
    return until_unchanged(until_unchanged(graph, _sink_dequantize), _hoist_quantize)


def _sink_dequantize(rewriting: Rewriting, operator: Operator) -> None:
    if isinstance(operator.kind, Concat):
        _sink_below_concat(rewriting, operator)
        return
    graph = rewriting.source
    producer = producer_of(graph, operator.inputs[0], Dequantize) if operator.inputs else None
    if producer is None:
        return
    before, dequantize = producer
    integers = before.inputs[0]
    dtype = graph.types[integers].dtype
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
        case Reshape() | Transpose() | Slice() | Gather() | Expand() | Pad():
            return True
        case Resize():
            return kind.mode == "nearest"
        case Reduce():
            return kind.operation in ("max", "min")
        case Pool():
            return kind.operation == "max" and _windows_reach_image(kind)
        case _:
            return False


def _windows_reach_image(kind: Pool) -> bool:
    """True if no window lies in the padding only."""
    sizes = zip(kind.window, kind.dilation, kind.before, kind.after, strict=True)
    return all(max(b, a) <= (w - 1) * d and (d == 1 or max(b, a) == 0) for w, d, b, a in sizes)


def _on_integers(kind: Kind, dequantize: Dequantize, dtype: str) -> Kind | None:
    """Return the kind that moves integers as ``kind`` moves the numbers that they stand for."""
    # A scale of 0 or below would reverse or merge the order of elements.
    if not _selects_elements(kind) or min(dequantize.scale) <= 0:
        return None
    if isinstance(kind, Pad) and kind.mode == "constant":
        if not is_per_tensor(dequantize) or not math.isfinite(kind.value):
            return None
        scale, zero_point = np.float32(dequantize.scale[0]), dequantize.zero_point[0]
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
        case Transpose(order):
            return replace(dequantize, axis=order.index(axis))
        case Reshape(new_shape):
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
    if not (_selects_elements(moved) or isinstance(moved, Concat)):
        return
    if isinstance(moved, Reduce | Pool) and magnitudes(graph)[movement.inputs[0]] == math.inf:
        # The largest of a NaN and a number is NaN, which is stored as 0.
        return
    if isinstance(moved, Pad) and moved.mode == "constant":
        moved = replace(moved, value=quantized_value(float(moved.value), kind))
    count = len(movement.inputs) if isinstance(moved, Concat) else 1
    before: list[Operator] = []
    for name in movement.inputs[:count]:
        new = rewriting.fresh(f"{name} as {kind.dtype}")
        before.append(Operator(operator.name, kind, (name,), (new,)))
    names = (*(o.output for o in before), *movement.inputs[count:])
    rewriting.replace(operator, *before, Operator(movement.name, moved, names, operator.outputs))
