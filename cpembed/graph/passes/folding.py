"""Fold constants, simplify operators, and remove those that change nothing or repeat another."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

import numpy as np

from cpembed.graph import kinds
from cpembed.graph.graph import Array, Graph, Operator
from cpembed.graph.kinds import Elementwise, Expand, Input, Kind, Number, Quantize, TensorType
from cpembed.graph.passes.expressions import compacted
from cpembed.graph.passes.rewriting import Rewriting, live, producer_of, until_unchanged
from cpembed.ir.dtypes import numpy_dtype
from cpembed.ir.scalars import substituted

# Maximum number of bytes by which folding a broadcast may enlarge the constants: larger broadcasts
# are left to the operators that read them.
_MAX_GROWTH = 1 << 16


def fold(graph: Graph, *, weights: bool = False) -> Graph:
    """Return a graph with the same results, bit for bit, and fewer operators.

    Operators of constants are evaluated, constants of one element become numbers of expressions,
    consecutive reshapes or transpositions are composed, operators that change nothing or repeat
    another are removed. Tensors of 0 elements become constants, so that none is left to compute.

    Parameters
    ----------
    graph : Graph
    weights : bool, default False
        Fold dequantizations of weights too. They have to stay until products are converted, since
        :mod:`~cpembed.graph.passes.integer_products` looks for the integers.
    """
    graph = until_unchanged(_deduplicated(_constants_folded(graph, weights=weights)), _simplify)
    return live(graph, graph.operators, graph.constants)


def _constants_folded(graph: Graph, *, weights: bool = False) -> Graph:
    empty = {name: _zeros(kind) for name, kind in graph.types.items() if not kind.elements}
    constants = {**graph.constants, **empty}
    remaining: list[Operator] = []
    for operator in (_without_empty(each, empty) for each in graph.operators):
        if all(name in empty for name in operator.outputs):
            continue
        dequantizes = isinstance(operator.kind, kinds.Dequantize | kinds.BlockDequantize)
        is_weights = dequantizes and not weights
        ready = all(name in constants for name in operator.inputs)
        if not ready or (is_weights and constants[operator.inputs[0]].size > 1):
            remaining.append(operator)
            continue
        inputs = [constants[name] for name in operator.inputs]
        results = operator.kind.evaluate(inputs)
        growth = sum(r.nbytes for r in results) - sum(i.nbytes for i in inputs)
        if isinstance(operator.kind, Expand) and growth > _MAX_GROWTH:
            remaining.append(operator)
            continue
        constants |= zip(operator.outputs, results, strict=True)
    if tuple(remaining) == graph.operators:
        return graph
    return live(graph, remaining, {n: a for n, a in constants.items() if n not in graph.inputs})


def _without_empty(operator: Operator, empty: Container[str]) -> Operator:
    """Drop the empty inputs of a concatenation; other operators are returned as they are."""
    if not isinstance(operator.kind, kinds.Concat):
        return operator
    return replace(operator, inputs=tuple(name for name in operator.inputs if name not in empty))


def _zeros(kind: TensorType) -> Array:
    return np.zeros(kind.shape, numpy_dtype(kind.dtype))


def _deduplicated(graph: Graph) -> Graph:
    """Keep one of several operators with equal kinds and inputs."""
    rewriting = Rewriting(graph)
    earliest: dict[tuple[Kind, tuple[str, ...]], Operator] = {}
    for operator in graph.operators:
        inputs = tuple(map(rewriting.name_of, operator.inputs))
        first = earliest.setdefault((operator.kind, inputs), operator)
        if first is not operator and len(operator.outputs) == 1:
            rewriting.redirect(operator.output, first.output)
    return rewriting.graph()


def _simplify(rewriting: Rewriting, operator: Operator) -> None:
    graph = rewriting.source
    equal = _equal_input(graph, operator)
    if equal is not None and rewriting.redirect(operator.output, equal):
        return
    match operator.kind:
        case Elementwise() as kind:
            simpler = _with_numbers(graph, operator, kind)
        case kinds.Reshape() | kinds.Transpose():
            simpler = _composed(graph, operator)
        case _:
            simpler = operator
    if simpler != operator:
        rewriting.replace(operator, simpler)


def _equal_input(graph: Graph, operator: Operator) -> str | None:
    """Return an earlier tensor that an operator's only output is equal to, if there is one."""
    if len(operator.outputs) != 1 or not operator.inputs:
        return None
    name = operator.inputs[0]
    before, after = graph.types[name], graph.types[operator.output]
    match operator.kind:
        case Quantize() as kind:
            return _original_integers(graph, name, kind)
        case Elementwise(Input(0)):
            unchanged = len(operator.inputs) == 1
        case kinds.Transpose(order):
            unchanged = order == tuple(range(len(order)))
        case kinds.Slice(starts, _, steps):
            unchanged = not any(starts) and all(step == 1 for step in steps)
        case kinds.Pad(start, end):
            unchanged = not any(start) and not any(end)
        case kinds.Concat():
            unchanged = len(operator.inputs) == 1
        # Nothing changes if the shape stays, which is compared below.
        case kinds.Reshape() | Expand():
            unchanged = True
        case _:
            unchanged = False
    return name if unchanged and before == after else None


def _original_integers(graph: Graph, name: str, kind: Quantize) -> str | None:
    """Return the integers that a tensor was dequantized from, if it is quantized as they were."""
    producer = producer_of(graph, name, kinds.Dequantize)
    if producer is None:
        return None
    operator, back = producer
    same_axis = kind.axis == back.axis or len(kind.scale) == len(kind.zero_point) == 1
    restores = same_axis and (kind.scale, kind.zero_point) == (back.scale, back.zero_point)
    integers = operator.inputs[0]
    restores = restores and graph.types[integers].dtype == kind.dtype
    # A product divided by its factor is within one ulp of the integer, so rounding restores
    # integers of up to 16 bits.
    return integers if restores and np.iinfo(kind.dtype).bits <= 16 else None


def _with_numbers(graph: Graph, operator: Operator, kind: Elementwise) -> Operator:
    """Substitute numbers for constants of one element, and list each input once."""
    types = [graph.types[name] for name in operator.inputs]
    computing = kind.computes_in([t.dtype for t in types])
    shape = graph.types[operator.output].shape

    def number(node: Input) -> Input | Number:
        array = graph.constants.get(operator.inputs[node.number])
        if array is None or array.size != 1:
            return node
        return Number((array if array.dtype == np.bool_ else array.astype(computing)).item())

    expression, names = compacted(substituted(kind.expression, number), operator.inputs)
    shapes = [graph.types[name].shape for name in names]
    # A constant may have given the result its shape; and an operator of numbers only is folded.
    if not names or np.broadcast_shapes(*shapes) != shape:
        return operator
    simpler = replace(kind, expression=expression, computing=None)
    if simpler.computes_in([graph.types[name].dtype for name in names]) != computing:
        simpler = replace(simpler, computing=computing)
    return replace(operator, kind=simpler, inputs=names)


def _composed(graph: Graph, operator: Operator) -> Operator:
    """Compose a reshape with a reshape, or a transposition with a transposition, before it."""
    before = graph.producers.get(operator.inputs[0])
    if before is None or type(before.kind) is not type(operator.kind):
        return operator
    kind = operator.kind
    if isinstance(kind, kinds.Transpose) and isinstance(before.kind, kinds.Transpose):
        kind = kinds.Transpose(tuple(before.kind.order[axis] for axis in kind.order))
    return replace(operator, kind=kind, inputs=before.inputs)
