"""Remove transpositions: cancel pairs around other operators, absorb them into products."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from cpembed.graph import kinds
from cpembed.graph.graph import Graph, Operator
from cpembed.graph.kinds import Kind, Product, Transpose
from cpembed.graph.kinds.product import with_operand
from cpembed.graph.passes.quantization import is_per_tensor
from cpembed.graph.passes.rewriting import (
    Rewriting,
    only_reader,
    producer_of,
    segments,
    until_unchanged,
)
from cpembed.ir.computation import Computation, Operand


def absorb_transpositions(graph: Graph) -> Graph:
    """Let products of matrices read operands before, and write results after, a transposition.

    Results are equal bit for bit, since only the products' indices change. Products of images are
    left out: their layouts are assigned later, for all operators at once.
    """
    return until_unchanged(graph, _absorb)


def _absorb(rewriting: Rewriting, operator: Operator) -> None:
    graph, product = rewriting.source, operator.kind
    if not isinstance(product, Product) or _has_windows(product):
        return
    kind, inputs = product, list(operator.inputs)
    for position in (0, 1):
        producer = producer_of(graph, inputs[position], Transpose)
        if producer is None:
            continue
        before, transpose = producer
        operand = kind.computation.inputs[position]
        order = _operand_order(operand.shape, graph.types[inputs[position]].shape, transpose.order)
        if order is not None:
            workload = _reordered(kind.computation, operand, order)
            kind, inputs[position] = replace(kind, computation=workload), before.inputs[0]
    reader = only_reader(graph, operator.output)
    outputs = operator.outputs
    # A residual has the axes of the result, which then have to stay.
    has_residual = product.epilogue is not None and product.epilogue.residual is not None
    if reader is not None and isinstance(reader.kind, Transpose) and not has_residual:
        inverse = [reader.kind.order.index(axis) for axis in range(len(reader.kind.order))]
        output = kind.computation.output
        order = _operand_order(output.shape, product.shape, inverse)
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


def _has_windows(product: Product) -> bool:
    """True if an operand is indexed by a sliding window."""
    # Such an index is a sum of iterators.
    indices = (i for access in product.computation.reads for i in access.index)
    return any(index.single_iterator is None for index in indices)


def _operand_order(
    operand: Sequence[int], shape: Sequence[int], order: Sequence[int]
) -> list[int] | None:
    """Return an operand's dimensions in the order of the tensor before a transposition.

    The transposed tensor has ``shape``; its axis k is axis ``order[k]`` of the tensor before. The
    result is None if the axes of one dimension do not stay adjacent.
    """
    blocks = sorted(
        ([order[axis] for axis in segment.inner], segment.outer)
        for segment in segments(operand, shape)
    )
    # Sorted by their first axis before the transposition, blocks have to be in order inside, too.
    flat = [axis for axes, _ in blocks for axis in axes]
    if flat != sorted(flat):
        return None
    single = [dimension for dimension, size in enumerate(operand) if size == 1]
    return single + [dimension for _, dimensions in blocks for dimension in dimensions]


def _reordered(workload: Computation, operand: Operand, order: Sequence[int]) -> Computation:
    """Return the computation with the dimensions of one operand in another order."""
    access = workload.access(operand.name)
    shape = tuple(operand.shape[dimension] for dimension in order)
    index = tuple(access.index[dimension] for dimension in order)
    return with_operand(workload, replace(operand, shape=shape), replace(access, index=index))


def cancel_transpositions(graph: Graph) -> Graph:
    """Remove transpositions, and those back, around operators to which the order is irrelevant.

    Exporters of networks with channels last write such pairs around each convolution. Results are
    equal bit for bit.
    """
    rewriting = Rewriting(graph)
    rewritten: set[str] = set()
    for operator in graph.operators:
        if isinstance(operator.kind, Transpose) and operator.output not in rewritten:
            region = _Region(graph, operator.kind.order)
            # Without a transposition back, nothing would be removed.
            if region.grow(operator) and region.closings:
                region.rewrite(rewriting)
                rewritten |= region.tensors
    return rewriting.graph()


@dataclass
class _Region:
    """Connected operators whose tensors all have the order that transpositions gave them.

    Attributes
    ----------
    order : tuple of int
        Order of the opening transpositions.
    tensors : set of str
        Outputs of the opening transpositions and of the members.
    members : dict from str to Operator
        Operators of the region, by output.
    closings : dict from str to Operator
        Transpositions back, by output.
    """

    graph: Graph
    order: tuple[int, ...]
    tensors: set[str] = field(default_factory=set[str])
    members: dict[str, Operator] = field(default_factory=dict[str, Operator])
    closings: dict[str, Operator] = field(default_factory=dict[str, Operator])

    @property
    def inverse(self) -> tuple[int, ...]:
        """Order of the closing transpositions."""
        return tuple(self.order.index(axis) for axis in range(len(self.order)))

    def grow(self, start: Operator) -> bool:
        """Collect all operators that a transposition reaches; False if one needs its order."""
        waiting = [start.output]
        while waiting:
            tensor = waiting.pop()
            if tensor in self.tensors:
                continue
            self.tensors.add(tensor)
            neighbours = self._neighbours(tensor)
            if neighbours is None:
                return False
            waiting += neighbours
        return True

    def _neighbours(self, tensor: str) -> list[str] | None:
        """Return the tensors next to a tensor; None if an operator needs the order of axes."""
        producer = self.graph.producers.get(tensor)
        if producer is None or tensor in self.graph.outputs:
            return None
        names: list[str] = []
        # A region ends at transpositions to its order and back; any other one needs the order.
        for operator in (producer, *self.graph.readers[tensor]):
            if isinstance(operator.kind, Transpose):
                if operator is producer and operator.kind.order == self.order:
                    continue
                if operator is producer or operator.kind.order != self.inverse:
                    return None
                self.closings[operator.output] = operator
            elif _reordered_kind(operator.kind, self.order) is None:
                return None
            else:
                self.members[operator.output] = operator
                names += [operator.output, *operator.inputs]
        return [name for name in names if not self.graph.is_constant(name)]

    def rewrite(self, rewriting: Rewriting) -> None:
        """Let the members compute in the order of axes before the opening transpositions."""
        names = {name: rewriting.fresh(f"{name} in order") for name in self.members}
        for output, operator in self.members.items():
            inputs = tuple(self._input(rewriting, name, names) for name in operator.inputs)
            kind = _reordered_kind(operator.kind, self.order)
            if kind is not None:
                new = Operator(operator.name, kind, inputs, (names[output],))
                rewriting.replace(operator, new)
        for output, operator in self.closings.items():
            source = operator.inputs[0]
            opening = producer_of(self.graph, source, Transpose)
            equal = names[source] if opening is None else opening[0].inputs[0]
            # An output that is an input, or another output, stays as a copy.
            if not rewriting.redirect(output, equal):
                identity = Transpose(tuple(range(len(self.order))))
                rewriting.replace(operator, replace(operator, kind=identity, inputs=(equal,)))

    def _input(self, rewriting: Rewriting, name: str, names: dict[str, str]) -> str:
        if name in names:
            return names[name]
        if self.graph.is_constant(name):
            array = self.graph.constants[name]
            if array.size == 1:
                return name
            full_rank = array.reshape((1,) * (len(self.order) - array.ndim) + array.shape)
            return rewriting.constant(
                f"{name} in order", np.ascontiguousarray(full_rank.transpose(self.inverse))
            )
        return self.graph.producers[name].inputs[0]


def _reordered_kind(kind: Kind, order: Sequence[int]) -> Kind | None:
    """Return the kind whose effect before a transposition is that of ``kind`` after it.

    Axis k after the transposition is axis ``order[k]`` before it. The result is None if there is no
    such kind.
    """
    rank = len(order)
    match kind:
        case kinds.Elementwise() | kinds.Table():
            return kind
        case kinds.Quantize() | kinds.Dequantize():
            return kind if is_per_tensor(kind) else replace(kind, axis=order[kind.axis % rank])
        case kinds.Concat():
            return kinds.Concat(order[kind.axis % rank])
        # Without the reduced axes, the others would have new numbers.
        case kinds.Reduce(keeps=True):
            return replace(kind, axes=tuple(sorted(order[axis % rank] for axis in kind.axes)))
        case kinds.Pad():
            inverse = [order.index(axis) for axis in range(rank)]
            before, after = (tuple(w[k] for k in inverse) for w in (kind.before, kind.after))
            return replace(kind, before=before, after=after)
        case _:
            return None
