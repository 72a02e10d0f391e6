"""Transpositions beside products are indices of these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from cpembed.graph.graph import Graph, Operator
from cpembed.graph.kinds import (
    Concat,
    Dequantize,
    Elementwise,
    Kind,
    Pad,
    Product,
    Quantize,
    Reduce,
    Table,
    Transpose,
)
from cpembed.graph.passes.quantization import is_plain
from cpembed.graph.passes.rewriting import (
    Rewriting,
    only_reader,
    producer_of,
    segments,
    until_unchanged,
)
from cpembed.ir.computation import Computation, Operand, changed_accesses
from cpembed.ir.expression import Access


def transpositions(graph: Graph) -> Graph:
    """Products read what is transposed for them, and write what is only transposed after them, in
    the other order of the dimensions: equal bit for bit.

    Images are left as they are: their layout is chosen later, for all operators together.
    """
    return until_unchanged(graph, _absorb)


def _is_of_matrices(product: Product) -> bool:
    """Whether no index is a window that moves."""
    indices = (i for access in product.computation.reads for i in access.index)
    return all(index.single_iterator is not None for index in indices)


def _absorb(rewriting: Rewriting, operator: Operator) -> None:
    graph, product = rewriting.source, operator.kind
    if not isinstance(product, Product) or not _is_of_matrices(product):
        return
    kind, inputs = product, list(operator.inputs)
    for which in (0, 1):
        found = producer_of(graph, inputs[which], Transpose)
        if found is None:
            continue
        before, moving = found
        operand = kind.computation.inputs[which]
        shape = graph.types[inputs[which]].shape
        order = _order(operand.shape, shape, moving.order)
        if order is not None:
            workload = _reordered(kind.computation, operand, order)
            kind, inputs[which] = replace(kind, computation=workload), before.inputs[0]
    reader = only_reader(graph, operator.output)
    outputs = operator.outputs
    has_residual = product.epilogue is not None and product.epilogue.residual is not None
    if reader is not None and isinstance(reader.kind, Transpose) and not has_residual:
        inverse = [reader.kind.order.index(axis) for axis in range(len(reader.kind.order))]
        output = kind.computation.output
        order = _order(output.shape, product.shape, inverse)
        if order is not None:
            workload = _reordered(kind.computation, output, order)
            kind = replace(kind, computation=workload, shape=graph.types[reader.output].shape)
            outputs = reader.outputs
    if kind == product:
        return
    new = Operator(operator.name, kind, tuple(inputs), outputs)
    if outputs == operator.outputs:
        rewriting.replace(operator, new)
    elif reader is not None:
        rewriting.replace(reader, new)


def _order(operand: Sequence[int], shape: Sequence[int], order: Sequence[int]) -> list[int] | None:
    """The dimensions of an operand in the order in which they lie in the tensor that is transposed
    to ``shape``: axis k of that is axis ``order[k]`` of the other. None where they do not stay
    together."""
    blocks: list[tuple[list[int], tuple[int, ...]]] = []
    for segment in segments(operand, shape):
        places = [order[axis] for axis in segment.inner]
        blocks.append((places, segment.outer))
    blocks.sort()
    flat = [place for places, _ in blocks for place in places]
    if flat != sorted(flat):
        return None
    single = [dimension for dimension, size in enumerate(operand) if size == 1]
    return single + [dimension for _, dimensions in blocks for dimension in dimensions]


def _reordered(workload: Computation, operand: Operand, order: Sequence[int]) -> Computation:
    """The computation with the dimensions of an operand in another order."""

    def change(access: Access) -> Access:
        if access.operand != operand.name:
            return access
        return replace(access, index=tuple(access.index[place] for place in order))

    def swapped(other: Operand) -> Operand:
        shape = tuple(operand.shape[place] for place in order)
        return replace(operand, shape=shape) if other.name == operand.name else other

    return replace(
        workload,
        inputs=tuple(map(swapped, workload.inputs)),
        outputs=tuple(map(swapped, workload.outputs)),
        statements=changed_accesses(workload.statements, change),
    )


def image_orders(graph: Graph) -> Graph:
    """Operators that do not mind the order of the axes, between transpositions to another order and
    transpositions back, are done without these: equal bit for bit.

    Exporters of networks whose channels come last write so around each convolution.
    """
    rewriting = Rewriting(graph)
    seen: set[str] = set()
    for operator in graph.operators:
        if isinstance(operator.kind, Transpose) and operator.output not in seen:
            region = _Region(graph, operator.kind.order)
            if region.grow(operator) and region.closings:
                region.rewrite(rewriting)
                seen |= region.tensors
    return rewriting.graph()


@dataclass
class _Region:
    """Operators whose tensors all have the ``order`` that transpositions gave them.

    ``tensors``: the outputs of these transpositions and of the operators; ``closings``: the
    transpositions back.
    """

    graph: Graph
    order: tuple[int, ...]
    tensors: set[str] = field(default_factory=set[str])
    members: dict[str, Operator] = field(default_factory=dict[str, Operator])
    closings: dict[str, Operator] = field(default_factory=dict[str, Operator])

    @property
    def back(self) -> tuple[int, ...]:
        return tuple(self.order.index(axis) for axis in range(len(self.order)))

    def grow(self, start: Operator) -> bool:
        """All that the transposition reaches; False where that is not closed."""
        waiting = [start.output]
        while waiting:
            tensor = waiting.pop()
            if tensor in self.tensors:
                continue
            self.tensors.add(tensor)
            found = self._around(tensor)
            if found is None:
                return False
            waiting += found
        return True

    def _around(self, tensor: str) -> list[str] | None:
        """Tensors of the operators that write and read a tensor of the region; None where one of
        them minds the order."""
        producer = self.graph.producers.get(tensor)
        if producer is None or tensor in self.graph.outputs:
            return None
        found: list[str] = []
        for operator in (producer, *self.graph.readers[tensor]):
            if isinstance(operator.kind, Transpose):
                if operator is producer and operator.kind.order == self.order:
                    continue
                if operator is producer or operator.kind.order != self.back:
                    return None
                self.closings[operator.output] = operator
            elif reordered(operator.kind, self.order) is None:
                return None
            else:
                self.members[operator.output] = operator
                found += [operator.output, *operator.inputs]
        return [name for name in found if not self.graph.is_constant(name)]

    def rewrite(self, rewriting: Rewriting) -> None:
        names = {name: rewriting.fresh(f"{name} in order") for name in self.members}
        for output, operator in self.members.items():
            inputs = tuple(self._input(rewriting, name, names) for name in operator.inputs)
            kind = reordered(operator.kind, self.order)
            if kind is not None:
                new = Operator(operator.name, kind, inputs, (names[output],))
                rewriting.replace(operator, new)
        for output, operator in self.closings.items():
            source = operator.inputs[0]
            before = producer_of(self.graph, source, Transpose)
            same = names[source] if before is None else before[0].inputs[0]
            if not rewriting.equal(output, same):
                everything = tuple(range(len(self.order)))
                rewriting.replace(
                    operator, replace(operator, kind=Transpose(everything), inputs=(same,))
                )

    def _input(self, rewriting: Rewriting, name: str, names: dict[str, str]) -> str:
        if name in names:
            return names[name]
        if self.graph.is_constant(name):
            array = self.graph.constants[name]
            if array.size == 1:
                return name
            whole = array.reshape((1,) * (len(self.order) - array.ndim) + array.shape)
            return rewriting.constant(
                f"{name} in order", np.ascontiguousarray(whole.transpose(self.back))
            )
        return self.graph.producers[name].inputs[0]


def reordered(kind: Kind, order: Sequence[int]) -> Kind | None:
    """The kind that does the same before a transposition; None where there is none: axis k after
    it is axis ``order[k]`` before it."""
    rank = len(order)
    match kind:
        case Elementwise() | Table():
            return kind
        case Quantize() | Dequantize():
            return kind if is_plain(kind) else replace(kind, axis=order[kind.axis % rank])
        case Concat():
            return Concat(order[kind.axis % rank])
        case Reduce(keeps=True):
            return replace(kind, axes=tuple(sorted(order[axis % rank] for axis in kind.axes)))
        case Pad():
            places = [order.index(axis) for axis in range(rank)]
            before, after = (tuple(w[k] for k in places) for w in (kind.before, kind.after))
            return replace(kind, before=before, after=after)
        case _:
            return None
