"""Constants are computed ahead, and operators that do nothing, or again what another did, go."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace

import numpy as np

from cpembed.graph.graph import Array, Graph, Operator
from cpembed.graph.kinds import (
    Concat,
    Dequantize,
    Elementwise,
    Expand,
    Input,
    Kind,
    Number,
    Pad,
    Quantize,
    Reshape,
    Slice,
    TensorType,
    Transpose,
)
from cpembed.graph.passes.expressions import compacted, substituted
from cpembed.graph.passes.rewriting import Rewriting, live, producer_of, until_unchanged
from cpembed.ir.dtypes import numpy_dtype

LARGEST_GROWTH = 1 << 16
"""Elements up to which a constant is stored in place of what it is computed from, where that is
smaller."""


def fold(graph: Graph, *, weights: bool = False) -> Graph:
    """The same results with fewer operators: equal bit for bit.

    Constants are computed, but for floats of dequantized weights, from which a product of integers
    is made; ``weights``: these too. Constants of one element become numbers of expressions;
    operators that change nothing are left out, reshapes and transpositions in a row become one,
    and of operators that compute the same one is left. A tensor of 0 elements is a constant, so
    that no operator that is left reads or writes one.
    """
    graph = until_unchanged(_merged(_constants_folded(graph, weights=weights)), _simplify)
    return live(graph, graph.operators, graph.constants)


def _constants_folded(graph: Graph, *, weights: bool = False) -> Graph:
    """Operators of constants alone are evaluated; of weights, with ``weights``, also what makes
    floats of integers."""
    empty = {name: _zeros(kind) for name, kind in graph.types.items() if not kind.elements}
    known = {**graph.constants, **empty}
    kept: list[Operator] = []
    for operator in (_without_empty(each, empty) for each in graph.operators):
        if all(name in empty for name in operator.outputs):
            continue
        is_weights = isinstance(operator.kind, Dequantize) and not weights
        ready = all(name in known for name in operator.inputs)
        if not ready or (is_weights and known[operator.inputs[0]].size > 1):
            kept.append(operator)
            continue
        given = [known[name] for name in operator.inputs]
        results = operator.kind.evaluate(given)
        grown = sum(r.nbytes for r in results) - sum(g.nbytes for g in given)
        if isinstance(operator.kind, Expand) and grown > LARGEST_GROWTH:
            kept.append(operator)
            continue
        known |= zip(operator.outputs, results, strict=True)
    if tuple(kept) == graph.operators:
        return graph
    return live(graph, kept, {n: a for n, a in known.items() if n not in graph.inputs})


def _without_empty(operator: Operator, empty: Container[str]) -> Operator:
    """A concatenation of what has elements, any other operator as it is."""
    if not isinstance(operator.kind, Concat):
        return operator
    return replace(operator, inputs=tuple(name for name in operator.inputs if name not in empty))


def _zeros(kind: TensorType) -> Array:
    return np.zeros(kind.shape, numpy_dtype(kind.dtype) if kind.dtype != "bool" else np.bool_)


def _merged(graph: Graph) -> Graph:
    """Of operators with equal kinds and inputs one is left."""
    rewriting = Rewriting(graph)
    seen: dict[tuple[Kind, tuple[str, ...]], Operator] = {}
    for operator in graph.operators:
        inputs = tuple(map(rewriting.name_of, operator.inputs))
        first = seen.setdefault((operator.kind, inputs), operator)
        if first is not operator and len(operator.outputs) == 1:
            rewriting.equal(operator.output, first.output)
    return rewriting.graph()


def _simplify(rewriting: Rewriting, operator: Operator) -> None:
    """The operator in its shortest form, or left out."""
    graph = rewriting.source
    same = _unchanged(graph, operator)
    if same is not None and rewriting.equal(operator.output, same):
        return
    match operator.kind:
        case Elementwise() as kind:
            simpler = _with_numbers(graph, operator, kind)
        case Reshape() | Transpose():
            simpler = _composed(graph, operator)
        case _:
            simpler = operator
    if simpler != operator:
        rewriting.replace(operator, simpler)


def _unchanged(graph: Graph, operator: Operator) -> str | None:
    """The tensor that an operator's only output is equal to."""
    if len(operator.outputs) != 1 or not operator.inputs:
        return None
    name = operator.inputs[0]
    before, after = graph.types[name], graph.types[operator.output]
    match operator.kind:
        case Quantize() as kind:
            return _on_grid(graph, name, kind)
        case Elementwise(Input(0)):
            same = len(operator.inputs) == 1
        case Transpose(order):
            same = order == tuple(range(len(order)))
        case Slice(starts, _, steps):
            same = not any(starts) and all(step == 1 for step in steps)
        case Pad(start, end):
            same = not any(start) and not any(end)
        case Concat():
            same = len(operator.inputs) == 1
        case Reshape() | Expand():
            same = True
        case _:
            same = False
    return name if same and before == after else None


def _on_grid(graph: Graph, name: str, kind: Quantize) -> str | None:
    """The integers that a tensor was made of, where it is quantized as they were: a quotient of a
    product by its factor is within one ulp of the integer."""
    found = producer_of(graph, name, Dequantize)
    if found is None:
        return None
    operator, back = found
    same_axis = kind.axis == back.axis or len(kind.scale) == len(kind.zero_point) == 1
    same = same_axis and (kind.scale, kind.zero_point) == (back.scale, back.zero_point)
    integers = operator.inputs[0]
    same = same and graph.types[integers].dtype == kind.dtype
    return integers if same and np.iinfo(kind.dtype).bits <= 16 else None


def _with_numbers(graph: Graph, operator: Operator, kind: Elementwise) -> Operator:
    """Constants of one element as numbers, inputs that are read each once."""
    types = [graph.types[name] for name in operator.inputs]
    computing = kind.computes_in([t.dtype for t in types])
    shape = graph.types[operator.output].shape

    def number(node: Input) -> Input | Number:
        given = graph.constants.get(operator.inputs[node.number])
        if given is None or given.size != 1:
            return node
        return Number((given if given.dtype == np.bool_ else given.astype(computing)).item())

    expression, names = compacted(substituted(kind.expression, number), operator.inputs)
    shapes = [graph.types[name].shape for name in names]
    if not names or np.broadcast_shapes(*shapes) != shape:
        return operator
    found = replace(kind, expression=expression, computing=None)
    if found.computes_in([graph.types[name].dtype for name in names]) != computing:
        found = replace(found, computing=computing)
    return replace(operator, kind=found, inputs=names)


def _composed(graph: Graph, operator: Operator) -> Operator:
    """A reshape of a reshape, a transposition of a transposition."""
    before = graph.producers.get(operator.inputs[0])
    if before is None or type(before.kind) is not type(operator.kind):
        return operator
    kind = operator.kind
    if isinstance(kind, Transpose) and isinstance(before.kind, Transpose):
        kind = Transpose(_permuted(before.kind.order, kind.order))
    return replace(operator, kind=kind, inputs=before.inputs)


def _permuted(first: Sequence[int], second: Sequence[int]) -> tuple[int, ...]:
    return tuple(first[axis] for axis in second)
