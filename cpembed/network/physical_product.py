"""Products whose computations are indexed as memory is, for tensors in given layouts.

A halo makes a padded convolution an unpadded one, channels in blocks are two axes, and dimensions
follow their order in memory; so embeddings are searched for code that reads and writes memory as it
is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cpembed.codegen.epilogue import Placement
from cpembed.errors import LoweringError
from cpembed.graph.kinds.product import Product
from cpembed.ir.computation import Axis, Computation, Operand, changed_accesses
from cpembed.ir.expression import Access
from cpembed.ir.index import IndexExpr, IndexTerm
from cpembed.network.layout import Layout


@dataclass(frozen=True)
class PhysicalProduct:
    """Product on tensors in layouts.

    ``output`` and ``residual`` are the positions of the result, and of what is added, in their
    buffers.
    """

    computation: Computation
    output: Placement
    residual: Placement | None = None

    @property
    def is_padded(self) -> bool:
        """True if padding is read that is not in memory."""
        return any(operand.zero_outside for operand in self.computation.inputs)


def physical_product(
    product: Product, first: Layout, output: Layout, residual: Layout | None = None
) -> PhysicalProduct:
    """Return a product on tensors in layouts; the second factor stays row-major.

    Parameters
    ----------
    product : Product
    first, output : Layout
    residual : Layout, optional

    Raises
    ------
    LoweringError
        If padding other than 0 is not in memory, or a layout does not suit the computation
        (channels in
        blocks that are groups).
    """
    workload = product.computation
    name = workload.inputs[0].name
    workload = _in_memory(workload, name, first)
    if product.padding and workload.operand(name).zero_outside:
        raise LoweringError("padding that is not 0 has to be in memory")
    workload = _in_memory(workload, workload.output.name, output.without_halo)
    if residual is not None and (residual.order, residual.block) != (output.order, output.block):
        raise LoweringError("a residual lies in another order than the output")
    placement = _placement(workload.output.shape, output)
    residual_placement = None if residual is None else _placement(workload.output.shape, residual)
    return PhysicalProduct(workload, placement, residual_placement)


def dimensions_of(shape: Sequence[int], split: Sequence[int]) -> list[list[int]]:
    """Return, for each axis of a tensor, the dimensions of an operand that is a reshape of it.

    Unit dimensions belong to an axis of one element, or to the axis before them.

    >>> dimensions_of((1, 12, 8), (1, 3, 4, 8)), dimensions_of((1, 12, 8), (12, 8))
    ([[0], [1, 2], [3]], [[], [0], [1]])
    """
    groups: list[list[int]] = []
    position = 0
    for size in shape:
        dimensions: list[int] = []
        product = 1
        while position < len(split) and (
            product < size or (not dimensions and split[position] == size)
        ):
            product *= split[position]
            dimensions.append(position)
            position += 1
        if product != size:
            raise LoweringError(f"{list(split)} is no split of {list(shape)}")
        groups.append(dimensions)
    if any(size != 1 for size in split[position:]):
        raise LoweringError(f"{list(split)} is no split of {list(shape)}")
    if groups:
        groups[-1].extend(range(position, len(split)))
    return groups


def _in_memory(workload: Computation, name: str, layout: Layout) -> Computation:
    """Return the computation with one operand indexed as it lies in memory."""
    plain = Layout.plain(layout.shape)
    if layout == plain:
        return workload
    operand, access = workload.operand(name), workload.access(name)
    groups = dimensions_of(layout.shape, operand.shape)
    if layout.block > 1:
        workload = _blocked(workload, name, groups[1], layout.block)
        operand, access = workload.operand(name), workload.access(name)
        inner = groups[1][0] + 1
        groups = [[d + (d >= inner) for d in group] for group in groups]
        order = [d for axis in layout.order for d in groups[axis]] + [inner]
    else:
        order = [d for axis in layout.order for d in groups[axis]]
    shape, index = list(operand.shape), list(access.index)
    for axis, halo in enumerate(layout.halo):
        if halo:
            (dimension,) = groups[axis]
            shape[dimension] += 2 * halo
            index[dimension] = index[dimension] + IndexExpr.sum([], halo)
    moved = Access(name, tuple(index[d] for d in order))
    return _replaced(workload, replace(operand, shape=tuple(shape[d] for d in order)), moved)


def _replaced(workload: Computation, operand: Operand, access: Access) -> Computation:
    """Return the computation with another shape of, and access to, one operand.

    It stays padded only if the access leaves the shape.
    """
    bounds = (i.bounds(workload.extents) for i in access.index)
    outside = any(
        low < 0 or high >= size
        for (low, high), size in zip(bounds, operand.shape, strict=True)
    )  # fmt: skip
    # Which elements are zeros that were inserted, the tensor's own layout says.
    operand = replace(operand, zero_outside=operand.zero_outside and outside, spread=())

    def change(old: Access) -> Access:
        return access if old.operand == operand.name else old

    def swapped(old: Operand) -> Operand:
        return operand if old.name == operand.name else old

    return replace(
        workload,
        inputs=tuple(swapped(o) for o in workload.inputs),
        outputs=tuple(swapped(o) for o in workload.outputs),
        statements=changed_accesses(workload.statements, change),
    )


def _blocked(workload: Computation, name: str, group: list[int], block: int) -> Computation:
    """Split the channel axis of an operand into blocks, in every operand that has it."""
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
    """Return the position of an output, whose shape has no halo, inside a buffer with its halo."""
    if not layout.has_halo:
        return Placement.inside(shape, (0,) * len(shape), shape)
    inner = layout.without_halo.physical_shape
    groups = dimensions_of(inner, shape)
    outer, before = list(shape), [0] * len(shape)
    halos = [layout.halo[axis] for axis in layout.order] + [0] * (layout.block > 1)
    for dimensions, halo in zip(groups, halos, strict=True):
        if halo:
            split = [d for d in dimensions if shape[d] > 1] or dimensions[:1]
            (dimension,) = split
            outer[dimension] += 2 * halo
            before[dimension] = halo
    placed = Placement.inside(outer, before, shape)
    assert placed.elements == math.prod(layout.physical_shape)
    return placed
