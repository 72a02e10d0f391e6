"""Rewrite a product for tensors in given layouts, with operands indexed as they lie in memory.

A halo makes a padded convolution an unpadded one, channels in blocks become two axes, and
dimensions follow their order in memory. Embeddings that are searched for the result read and write
memory as it is, so the estimate of a layout contains the packing that it needs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from cpembed.codegen.epilogue import Epilogue
from cpembed.codegen.placement import Placement
from cpembed.errors import LoweringError
from cpembed.graph.graph import Graph, Operator
from cpembed.graph.kinds.product import Product, with_operand
from cpembed.ir.computation import Axis, Computation, Operand, changed_accesses
from cpembed.ir.expression import Access
from cpembed.ir.index import IndexExpr, IndexTerm
from cpembed.network.layout import Layout, dimensions_of, is_convolution


@dataclass(frozen=True)
class PhysicalProduct:
    """Product on tensors in layouts.

    Attributes
    ----------
    output, residual : Placement
        Position of the result, and of the residual that is added, inside their buffers.
    """

    computation: Computation
    output: Placement
    residual: Placement | None = None

    def epilogue(self, product: Product, *, places: bool) -> Epilogue | None:
        """Return the product's epilogue with the positions of its output and addend.

        Parameters
        ----------
        product : Product
        places : bool
            The kernel stores inside a larger buffer.
        """
        epilogue = product.epilogue
        if places:
            epilogue = replace(epilogue or Epilogue(product.dtype), placement=self.output)
        if epilogue is not None and epilogue.residual is not None:
            placed = replace(epilogue.residual, placement=self.residual)
            epilogue = replace(epilogue, residual=placed)
        return epilogue


# The same combinations of layouts are asked for when kernels are searched, compared and planned.
@lru_cache(1 << 12)
def physical_product(
    product: Product, first: Layout, output: Layout, residual: Layout | None = None
) -> PhysicalProduct:
    """Return a product on tensors in layouts; the second factor stays row-major.

    Parameters
    ----------
    product : Product
    first, output : Layout
        Layouts of the first operand and of the result.
    residual : Layout, optional
        Layout of the tensor that the epilogue adds, if any.

    Raises
    ------
    LoweringError
        If padding other than 0 is not in memory, or a layout does not suit the computation
        (channels in blocks that are groups).
    """
    workload = product.computation
    name = workload.inputs[0].name
    workload = _in_memory(workload, name, first)
    # Kernels pad with zeros only; the zero point of an integer image has to come from its halo.
    if product.padding and workload.operand(name).zero_outside:
        raise LoweringError("padding that is not 0 has to be in memory")
    # The result's halo is no part of the computation: the epilogue stores inside a larger buffer.
    workload = _in_memory(workload, workload.output.name, output.without_halo)
    if residual is not None and (residual.order, residual.block) != (output.order, output.block):
        raise LoweringError("a residual lies in another order than the output")
    placement = _placement(workload.output.shape, output)
    residual_placement = None if residual is None else _placement(workload.output.shape, residual)
    return PhysicalProduct(workload, placement, residual_placement)


def _in_memory(workload: Computation, name: str, layout: Layout) -> Computation:
    """Return the computation with one operand indexed as it lies in memory."""
    if layout == Layout.plain(layout.shape):
        return workload
    operand, access = workload.operand(name), workload.access(name)
    groups = dimensions_of(layout.shape, operand.shape)
    if layout.block > 1:
        workload = _blocked(workload, name, groups[1], layout.block)
        operand, access = workload.operand(name), workload.access(name)
        # The split put the position inside a block behind the channels, moving later dimensions.
        inner = groups[1][0] + 1
        groups = [[d + (d >= inner) for d in group] for group in groups]
        order = [d for axis in layout.order for d in groups[axis]] + [inner]
    else:
        order = [d for axis in layout.order for d in groups[axis]]
    shape, index = list(operand.shape), list(access.index)
    for axis, halo in enumerate(layout.halo):
        if halo:
            dimension = _extended_dimension(groups[axis], operand.shape)
            shape[dimension] += 2 * halo
            index[dimension] = index[dimension] + IndexExpr.sum([], halo)
    shape, index = [shape[d] for d in order], [index[d] for d in order]
    bounds = (i.bounds(workload.extents) for i in index)
    outside = any(low < 0 or high >= size for (low, high), size in zip(bounds, shape, strict=True))
    # With a halo no access leaves the shape, and nothing is padded any more. Zeros that were
    # inserted between elements are stated for the shape of the tensor, not for that of memory.
    padded = operand.zero_outside and outside
    operand = replace(operand, shape=tuple(shape), zero_outside=padded, spread=())
    return with_operand(workload, operand, Access(name, tuple(index)))


def _extended_dimension(dimensions: Sequence[int], shape: Sequence[int]) -> int:
    """Return the dimension of an axis that a halo extends."""
    # Dimensions of one element may belong to the axis too, such as the channel of each group.
    (dimension,) = [d for d in dimensions if shape[d] > 1] or dimensions[:1]
    return dimension


def _blocked(workload: Computation, name: str, group: list[int], block: int) -> Computation:
    """Split the channel axis of an operand into blocks, in every operand that is indexed by it.

    ``group`` holds the dimensions of the channels.
    """
    if len(group) != 1:
        raise LoweringError("groups of channels do not lie in blocks")
    axis = workload.access(name).index[group[0]].single_iterator
    if axis is None or workload.extents[axis] % block:
        raise LoweringError(f"{name} has no channels in blocks of {block}")
    inside = f"{axis}i"
    while inside in workload.extents:
        inside += "i"
    axes: list[Axis] = []
    for old in workload.axes:
        if old.name == axis:
            axes += [replace(old, extent=old.extent // block), Axis(inside, block, old.kind)]
        else:
            axes.append(old)
    # The iterator of the blocks keeps the axis's name; a second one counts inside a block. Channels
    # that are not indexed by the axis alone, such as those of a group, cannot be split.
    operands: dict[str, Operand] = {}
    accesses: dict[str, Access] = {}
    for operand in workload.operands:
        shape: list[int] = []
        index: list[IndexExpr] = []
        for size, expression in zip(
            operand.shape, workload.access(operand.name).index, strict=True
        ):
            if axis not in expression.iterators:
                shape.append(size)
                index.append(expression)
                continue
            if expression != IndexExpr.sum([IndexTerm(axis)]) or size % block:
                raise LoweringError(f"channels of {operand.name} are no whole blocks of {block}")
            shape += [size // block, block]
            index += [expression, IndexExpr.sum([IndexTerm(inside)])]
        operands[operand.name] = replace(operand, shape=tuple(shape))
        accesses[operand.name] = Access(operand.name, tuple(index))
    return Computation(
        name=workload.name,
        axes=tuple(axes),
        inputs=tuple(operands[o.name] for o in workload.inputs),
        outputs=tuple(operands[o.name] for o in workload.outputs),
        statements=changed_accesses(workload.statements, lambda old: accesses[old.operand]),
    )


def _placement(shape: Sequence[int], layout: Layout) -> Placement:
    """Return the position of a result of a shape without halo inside a buffer with the halo."""
    if not layout.has_halo:
        return Placement.inside(shape, (0,) * len(shape), shape)
    inner = layout.without_halo.physical_shape
    groups = dimensions_of(inner, shape)
    outer, before = list(shape), [0] * len(shape)
    halos = [layout.halo[axis] for axis in layout.order] + [0] * (layout.block > 1)
    for dimensions, halo in zip(groups, halos, strict=True):
        if halo:
            dimension = _extended_dimension(dimensions, shape)
            outer[dimension] += 2 * halo
            before[dimension] = halo
    placed = Placement.inside(outer, before, shape)
    assert placed.elements == math.prod(layout.physical_shape)
    return placed


def channels_last(graph: Graph, operator: Operator, workload: Computation) -> Computation:
    """Return the computation of a convolution on images, and weights, with the channels innermost.

    Other products stay as they are. It is the computation that the operator's family makes of
    ``layout=NHWC``, or ``NWC`` and ``NDHWC``.

    Parameters
    ----------
    graph : Graph
    operator : Operator
        Product of the graph.
    workload : Computation
        Its computation, which may have padding in memory.
    """
    if not (isinstance(operator.kind, Product) and is_convolution(operator)):
        return workload
    image, weights = workload.inputs[0], workload.inputs[1]
    output = workload.output
    for operand, tensor in ((image, operator.inputs[0]), (output, operator.outputs[0])):
        # Groups are two dimensions of an operand and one of its tensor, whatever is padded.
        original = operator.kind.computation.operand(operand.name)
        groups = dimensions_of(graph.types[tensor].shape, original.shape)
        order = [d for group in (groups[0], *groups[2:], groups[1]) for d in group]
        workload = _reordered(workload, operand, order)
    # Filters first, then the window, then the channels that are summed.
    stored = {name for index in workload.access(output.name).index for name in index.iterators}
    window = {
        name
        for index in workload.access(image.name).index
        for name in index.iterators
        if len(index.iterators) > 1
    } - stored

    def rank(dimension: int) -> int:
        names = set(workload.access(weights.name).index[dimension].iterators)
        return 0 if names & stored else 1 if names & window else 2

    order = sorted(range(len(weights.shape)), key=lambda d: (rank(d), d))
    return _reordered(workload, weights, order)


def _reordered(workload: Computation, operand: Operand, order: Sequence[int]) -> Computation:
    """Return the computation with other dimensions of one operand's memory innermost."""
    index = workload.access(operand.name).index
    spread = tuple(operand.spread[d] for d in order) if operand.spread else ()
    changed = replace(operand, shape=tuple(operand.shape[d] for d in order), spread=spread)
    access = Access(operand.name, tuple(index[d] for d in order))
    return with_operand(workload, changed, access)
