"""Functions of one tensor of eight bits become tables of their 256 values."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from cpembed.codegen.epilogue import BYTES
from cpembed.graph.graph import Graph, Operator
from cpembed.graph.kinds import Dequantize, Elementwise, Quantize, Table
from cpembed.graph.passes.quantization import is_plain, range_of
from cpembed.graph.passes.rewriting import Array, Rewriting


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
