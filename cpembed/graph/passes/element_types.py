"""The integers of eight bits that a target multiplies: signed or unsigned.

A tensor of int8 with zero point z stands for the same numbers as one of uint8, every element
larger by 128, with zero point z + 128.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from cpembed.codegen.epilogue import BYTES
from cpembed.graph.graph import Graph, Operator
from cpembed.graph.kinds import (
    Elementwise,
    Kind,
    Product,
    Table,
)
from cpembed.graph.passes.quantization import range_of
from cpembed.graph.passes.rewriting import Array, Rewriting
from cpembed.graph.passes.shifts import DISTANCE, moved_inputs, moves_elements, shifted
from cpembed.ir.dtypes import is_integer


def element_types(graph: Graph, first: str, second: str) -> Graph:
    """The same results, equal bit for bit (of means of integers, at most one quantum), of products
    whose operands are of the types ``first`` and ``second``.

    Tensors that belong together, since operators between them move elements, change together.
    Inputs and outputs of the network keep their types: they are converted by tables, and so is
    what an operator writes or reads that cannot change, and what two products want differently.
    """
    if not {first, second} <= {*BYTES}:
        return graph
    wanted = _wanted(graph, first, second)
    change = _Change(graph, wanted, (first, second))
    for operator in graph.operators:
        change.convert(operator)
    return change.rewriting.graph()


def converted(array: Array, dtype: str) -> Array:
    """Integers of eight bits of one type as those of another."""
    distance = DISTANCE.get((str(array.dtype), dtype), 0)
    return (array.astype(np.int16) + distance).astype(dtype)


def conversion(dtype: str, wanted: str) -> Table:
    """The operator that does the same."""
    low, high = range_of(dtype)
    distance = DISTANCE.get((dtype, wanted), 0)
    return Table(tuple(range(low + distance, high + distance + 1)), wanted)


class _Groups:
    """Tensors that have one type, by union and find."""

    def __init__(self) -> None:
        self._above: dict[str, str] = {}

    def find(self, name: str) -> str:
        while (above := self._above.get(name, name)) != name:
            self._above[name] = self._above.get(above, above)
            name = above
        return name

    def join(self, names: Iterable[str]) -> None:
        ends = [self.find(name) for name in names]
        for end in ends[1:]:
            self._above[end] = ends[0]


def _wanted(graph: Graph, first: str, second: str) -> dict[str, str]:
    """The type that each tensor of integers of eight bits is to have: that of a first operand where
    it is one anywhere, otherwise that of a second operand; others stay what they are. Tensors that
    a product adds have its result's type."""
    groups, votes = _Groups(), dict[str, str]()
    for operator in graph.operators:
        if moves_elements(operator.kind):
            groups.join([*moved_inputs(operator.kind, operator.inputs), *operator.outputs])
        elif _adds_bytes(operator.kind) and operator.output not in graph.outputs:
            groups.join([operator.inputs[-1], operator.output])
    products = [operator for operator in graph.operators if _is_integral(operator.kind)]
    for operator in products:
        votes[groups.find(operator.inputs[0])] = first
    for operator in products:
        if not graph.is_constant(operator.inputs[1]):
            votes.setdefault(groups.find(operator.inputs[1]), second)
    return {
        name: votes.get(groups.find(name), kind.dtype)
        for name, kind in graph.types.items()
        if kind.dtype in BYTES
    }


def _adds_bytes(kind: Kind) -> bool:
    epilogue = kind.epilogue if isinstance(kind, Product) else None
    return epilogue is not None and epilogue.residual is not None and epilogue.dtype in BYTES


def _is_integral(kind: Kind) -> bool:
    if not isinstance(kind, Product):
        return False
    workload = kind.computation
    return is_integer(workload.output.dtype) and all(o.dtype in BYTES for o in workload.inputs)


class _Change:
    """``wanted``: the type that tensors are to have; ``operands``: those of products."""

    def __init__(self, graph: Graph, wanted: dict[str, str], operands: tuple[str, str]) -> None:
        self.graph, self.wanted, self.operands = graph, wanted, operands
        self.rewriting = Rewriting(graph)
        self._versions: dict[tuple[str, str], str] = {}

    def convert(self, operator: Operator) -> None:
        """Let an operator read and write what is wanted, or convert what it reads."""
        own = [self._own(name) for name in operator.inputs]
        reads = [
            self.wanted.get(name, dtype) for name, dtype in zip(operator.inputs, own, strict=True)
        ]
        if _is_integral(operator.kind):
            reads[:2] = self.operands
        result = operator.outputs[0]
        writes = self.wanted.get(result, self._own(result))
        distances = [DISTANCE.get(pair, 0) for pair in zip(own, reads, strict=True)]
        kind = operator.kind
        if isinstance(kind, Elementwise):
            kind = replace(kind, computing=kind.computes_in(own))
        kind = shifted(kind, distances, DISTANCE.get((self._own(result), writes), 0))
        if kind is None:
            kind, reads, writes = operator.kind, own, self._own(result)
        before: list[Operator] = []
        inputs = tuple(
            self._version(name, dtype, before)
            for name, dtype in zip(operator.inputs, reads, strict=True)
        )
        outputs, after = operator.outputs, list[Operator]()
        if result in self.graph.outputs and writes != self._own(result):
            outputs = (self.rewriting.fresh(f"{result} as {writes}"),)
            after = [
                Operator(operator.name, conversion(writes, self._own(result)), outputs, (result,))
            ]
            self._versions[result, self._own(result)] = result
        for name in operator.outputs[1:]:
            self._versions[name, self._own(name)] = name
        self._versions[result, writes] = outputs[0]
        new = replace(operator, kind=kind, inputs=inputs, outputs=outputs)
        if before or after or new != operator:
            self.rewriting.replace(operator, *before, new, *after)

    def _own(self, name: str) -> str:
        return self.graph.types[name].dtype

    def _version(self, name: str, dtype: str, before: list[Operator]) -> str:
        """A tensor as integers of a type; the operator that makes them is added to ``before``."""
        if self._own(name) not in BYTES:
            return name
        if (name, dtype) in self._versions:
            return self._versions[name, dtype]
        if name in self.graph.constants:
            array = self.graph.constants[name]
            new = name
            if dtype != self._own(name):
                new = self.rewriting.constant(f"{name} as {dtype}", converted(array, dtype))
        elif dtype == self._own(name) and name not in self.graph.producers:
            new = name
        else:
            other = next(t for t in BYTES if t != dtype)
            source = self._versions.get((name, other), name)
            new = self.rewriting.fresh(f"{name} as {dtype}")
            before.append(Operator(new, conversion(other, dtype), (source,), (new,)))
        self._versions[name, dtype] = new
        return new
