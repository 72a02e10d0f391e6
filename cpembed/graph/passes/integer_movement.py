"""Elements are moved as integers of eight bits: a quarter of the bytes of floats.

What moves elements, or takes the largest of some, does the same to integers as to the numbers they
stand for, so that it changes places with the operators that make one of the other.
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
    float32,
    is_plain,
    quantizing,
    range_of,
    stored,
)
from cpembed.graph.passes.rewriting import Rewriting, only_reader, producer_of, until_unchanged


def movements(graph: Graph) -> Graph:
    """The same results, equal bit for bit.

    Movements of dequantized tensors are made before these are dequantized, and movements of what is
    quantized at once, after that.
    """
    return until_unchanged(until_unchanged(graph, _lower), _raise)


def _lower(rewriting: Rewriting, operator: Operator) -> None:
    """Dequantization after the movement of its result."""
    if isinstance(operator.kind, Concat):
        _lower_concat(rewriting, operator)
        return
    graph = rewriting.source
    found = producer_of(graph, operator.inputs[0], Dequantize) if operator.inputs else None
    if found is None:
        return
    before, back = found
    integers = before.inputs[0]
    dtype = graph.types[integers].dtype
    moved = _of_integers(operator.kind, back, dtype, graph.types[integers].shape)
    after = _moved_axis(graph, operator, back)
    if moved is None or after is None:
        return
    name = rewriting.fresh(f"{operator.output} as {dtype}")
    rewriting.replace(
        operator,
        Operator(operator.name, moved, (integers, *operator.inputs[1:]), (name,)),
        Operator(before.name, after, (name,), operator.outputs),
    )


def _lower_concat(rewriting: Rewriting, operator: Operator) -> None:
    graph = rewriting.source
    found = [producer_of(graph, name, Dequantize) for name in operator.inputs]
    made = [pair for pair in found if pair is not None]
    if len(made) != len(found) or not is_plain(made[0][1]):
        return
    (first, back), integers = made[0], [before.inputs[0] for before, _ in made]
    dtypes = {graph.types[name].dtype for name in integers}
    if len(dtypes) > 1 or any(replace(kind, axis=back.axis) != back for _, kind in made):
        return
    name = rewriting.fresh(f"{operator.output} as {dtypes.pop()}")
    rewriting.replace(
        operator,
        Operator(operator.name, operator.kind, tuple(integers), (name,)),
        Operator(first.name, back, (name,), operator.outputs),
    )


def _moves(kind: Kind) -> bool:
    """Whether every element of the result is one of the input, or the least or largest of some."""
    match kind:
        case Reshape() | Transpose() | Slice() | Gather() | Expand():
            return True
        case Resize():
            return kind.mode == "nearest"
        case Pad():
            return True
        case Reduce():
            return kind.operation in ("max", "min")
        case Pool():
            return kind.operation == "max" and _reaches_inside(kind)
        case _:
            return False


def _reaches_inside(kind: Pool) -> bool:
    """Whether each window has an element that is no padding."""
    parts = zip(kind.window, kind.dilation, kind.before, kind.after, strict=True)
    return all(max(b, a) <= (w - 1) * d and (d == 1 or max(b, a) == 0) for w, d, b, a in parts)


def _of_integers(kind: Kind, back: Dequantize, dtype: str, shape: tuple[int, ...]) -> Kind | None:
    """The kind that moves the integers as another moves the numbers they stand for."""
    if not _moves(kind) or min(back.scale) <= 0:
        return None
    if isinstance(kind, Pad) and kind.mode == "constant":
        if not is_plain(back):
            return None
        if not math.isfinite(kind.value):
            return None
        scale, zero = np.float32(back.scale[0]), back.zero_point[0]
        value = round(float(kind.value) / float(scale)) + zero
        low, high = range_of(dtype)
        exact = low <= value <= high and float(np.float32(value - zero) * scale) == float32(
            kind.value
        )
        return replace(kind, value=value) if exact else None
    return kind


def _moved_axis(graph: Graph, operator: Operator, back: Dequantize) -> Dequantize | None:
    """Dequantization of the moved tensor: the axis of the scales may be another."""
    if is_plain(back):
        return back
    shape = graph.types[operator.inputs[0]].shape
    axis = back.axis % len(shape)
    match operator.kind:
        case Transpose(order):
            return replace(back, axis=order.index(axis))
        case Reshape(after):
            before = math.prod(shape[:axis])
            for place, size in enumerate(after):
                if size == shape[axis] and math.prod(after[:place]) == before:
                    return replace(back, axis=place)
        case _:
            pass
    return None


def _raise(rewriting: Rewriting, operator: Operator) -> None:
    """Quantization before the movement whose result is quantized at once."""
    graph, kind = rewriting.source, quantizing(operator)
    moving = None if kind is None else graph.producers.get(operator.inputs[0])
    if kind is None or moving is None or not only_reader(graph, operator.inputs[0]):
        return
    moved = moving.kind
    if not (_moves(moved) or isinstance(moved, Concat)):
        return
    if isinstance(moved, Reduce | Pool) and magnitudes(graph)[moving.inputs[0]] == math.inf:
        # The largest of a NaN and a number is a NaN, which is stored as 0.
        return
    if isinstance(moved, Pad) and moved.mode == "constant":
        moved = replace(moved, value=stored(float(moved.value), kind))
    count = len(moving.inputs) if isinstance(moved, Concat) else 1
    before: list[Operator] = []
    for name in moving.inputs[:count]:
        new = rewriting.fresh(f"{name} as {kind.dtype}")
        before.append(Operator(operator.name, kind, (name,), (new,)))
    names = (*(o.output for o in before), *moving.inputs[count:])
    rewriting.replace(operator, *before, Operator(moving.name, moved, names, operator.outputs))
