"""Transpositions beside products are indices of these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cpembed.graph.graph import Graph, Operator
from cpembed.graph.kinds import Product, Transpose
from cpembed.graph.passes.dimensions import segments
from cpembed.graph.passes.rewriting import Rewriting, only_reader, producer_of, until_unchanged
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
