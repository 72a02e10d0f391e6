"""The nest of a derived program: its loops, its operands flat, its tasks in blocks of points."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from cpembed.codegen.epilogue import Epilogue, channel_axes
from cpembed.codegen.nest import KernelOperand, Nest, TileLoop
from cpembed.codegen.placement import Placement
from cpembed.errors import LoweringError
from cpembed.ir.computation import AxisKind, Computation
from cpembed.ir.expression import Access, Operation
from cpembed.ir.index import IndexExpr, IndexTerm
from cpembed.transform.program import (
    DerivedProgram,
    Loop,
    Overlap,
    PackedDimension,
    PackedOperand,
)

_MAX_ELEMENTS = 2**31 - 1


def _check_size(operand: PackedOperand) -> None:
    """Flat indices are 32-bit integers."""
    largest = max(operand.elements, math.prod(operand.original_shape))
    if largest > _MAX_ELEMENTS:
        raise LoweringError(
            f"operand {operand.name} has {largest:,} elements and a kernel indexes at most "
            f"{_MAX_ELEMENTS:,}: run a part of the workload; solve and explain take the whole"
        )


def _check_product_sum(workload: Computation) -> None:
    """Kernels exist for ``O += A * B`` with one access to each operand."""
    if len(workload.statements) == 1 and workload.statement.reduction == "add":
        value = workload.statement.value
        factors = value.args if isinstance(value, Operation) and value.op == "mul" else ()
        tensors = {workload.operand(f.operand).tensor for f in factors if isinstance(f, Access)}
        if len(tensors) == 2:
            return
    raise LoweringError(
        f"{workload} is not a product-sum of two operands, of which alone kernels are generated: "
        "solve and explain take it"
    )


def in_order(program: DerivedProgram) -> tuple[PackedOperand, ...]:
    """The operands of the workload in the instruction's order, which is that of a nest's."""
    computation = program.instruction.computation
    return tuple(program.role(o.name) for o in (*computation.inputs, computation.output))


def first_factor(program: DerivedProgram) -> PackedOperand:
    """The operand of the workload in the place of the instruction's first."""
    return in_order(program)[0]


def kernel_nest(
    program: DerivedProgram, epilogue: Epilogue | None = None, *, unpadded: bool = False
) -> Nest:
    """The nest with nothing blocked: one point of the spatial loops is a task.

    The output has the type that the epilogue stores; ``unpadded``, the first factor is read where
    it came, not where it is packed. Raises :class:`LoweringError` where the workload is no
    product-sum, an epilogue's channels are not affine in the loops, or what is read of an unpadded
    factor is not.
    """
    _check_product_sum(program.workload)
    for operand in program.operands:
        _check_size(operand)
    names = _identifiers(program)

    def renamed(loop: Loop) -> Loop:
        return Loop(names[loop.name], loop.extent, loop.kind)

    spatial = [loop for loop in program.loops if loop.kind is AxisKind.SPATIAL]
    reductions = [loop for loop in program.loops if loop.kind is AxisKind.REDUCTION]
    first, second = (program.role(o.name) for o in program.instruction.computation.inputs)
    output = program.role(program.instruction.computation.output.name)
    sums = output.dtype
    if epilogue is not None:
        output = replace(output, dtype=epilogue.dtype)
    overlaps = _walked_by_points(program, (first, second, output))

    def task(loop: Loop) -> TileLoop:
        if loop.name not in overlaps:
            return TileLoop(names[loop.name], loop.extent, origin=loop.name)
        found = overlaps[loop.name]
        return TileLoop(names[loop.name], found.extent, found.block, loop.name, found.block)

    def flat(parameter: str, operand: PackedOperand) -> KernelOperand:
        access = _all_in_points(_flat_access(operand), overlaps.values())
        assert access is not None
        return KernelOperand(
            parameter, operand.dtype, operand.elements, access.rename(lambda name: names[name])
        )

    def placed(parameter: str, dtype: str, place: Placement) -> KernelOperand:
        total = IndexExpr.of([], place.offset)
        for coordinate, stride in zip(_places(output), place.strides, strict=True):
            walked = _all_in_points(coordinate, overlaps.values())
            if walked is None:
                raise LoweringError("the output's elements have no place of their own")
            terms = [term.times(stride) for term in walked.rename(lambda n: names[n]).terms]
            total = total + IndexExpr.of(terms, walked.constant * stride)
        return KernelOperand(parameter, dtype, place.elements, total)

    coordinates = _coordinates(program, first, names, overlaps)
    stored, residual = flat("C", output), None
    if epilogue is not None and (epilogue.placement or epilogue.residual):
        if not output.is_identity:
            raise LoweringError(
                f"{output.name} is stored in a layout of the instruction's, which has no place in "
                "another buffer: take another embedding"
            )
        if epilogue.placement is not None:
            stored = placed("C", output.dtype, epilogue.placement)
        if epilogue.residual is not None:
            at = epilogue.residual.placement
            at = at or Placement.inside(output.original_shape, (0,) * len(output.original_shape),
                                        output.original_shape)  # fmt: skip
            residual = placed("Residual", epilogue.residual.dtype, at)
    return Nest(
        tasks=tuple(task(loop) for loop in spatial),
        reductions=tuple(renamed(loop) for loop in reductions),
        inner=tuple(renamed(loop) for loop in program.instruction_axes),
        operands=(
            _as_it_came(first, coordinates) if unpadded else flat("A", first),
            flat("B", second),
            stored,
        ),
        epilogue=epilogue,
        residual=residual,
        channels=_channels(program, names, overlaps) if epilogue and epilogue.vectors else None,
        sums_dtype=sums,
        halo=tuple(place for place, leaves in coordinates if place and leaves),
        unpadded=unpadded,
    )


def _walked_by_points(
    program: DerivedProgram, operands: Sequence[PackedOperand]
) -> dict[str, Overlap]:
    """Loops over overlapping tiles of the output that walk the points of their axis; the others,
    of which an operand is packed tile by tile, count tiles."""
    found: dict[str, Overlap] = {}
    for overlap in program.overlaps:
        if overlap.kind is AxisKind.SPATIAL:
            walked = [in_points(_flat_access(operand), overlap) for operand in operands]
            if all(access is not None for access in walked):
                found[overlap.loop] = overlap
    return found


def _all_in_points(access: IndexExpr, overlaps: Iterable[Overlap]) -> IndexExpr | None:
    """:func:`in_points` of all."""
    found: IndexExpr | None = access
    for overlap in overlaps:
        found = None if found is None else in_points(found, overlap)
    return found


def _coordinates(
    program: DerivedProgram,
    factor: PackedOperand,
    names: Mapping[str, str],
    by_points: Mapping[str, Overlap],
) -> list[tuple[KernelOperand | None, bool]]:
    """Of each original dimension of a factor, the coordinate of what is read, None where that is
    not affine in the iterators, and whether it can lie outside."""
    found: list[tuple[KernelOperand | None, bool]] = []
    for coordinate, size in zip(_places(factor), factor.original_shape, strict=True):
        low, high = coordinate.bounds(program.extents)
        walked = _all_in_points(coordinate, by_points.values())
        operand: KernelOperand | None = None
        if walked is not None and walked.is_affine:
            access = walked.rename(lambda name: names[name])
            operand = KernelOperand("", factor.dtype, size, access)
        found.append((operand, low < 0 or high >= size))
    return found


def _as_it_came(
    factor: PackedOperand, coordinates: Sequence[tuple[KernelOperand | None, bool]]
) -> KernelOperand:
    access, stride = IndexExpr(), 1
    for coordinate, _ in reversed(coordinates):
        if coordinate is None:
            raise LoweringError(f"{factor.name} is read in another order than it came in")
        terms = [term.times(stride) for term in coordinate.access.terms]
        access = access + IndexExpr.of(terms, coordinate.access.constant * stride)
        stride *= coordinate.elements
    return KernelOperand("A", factor.dtype, stride, access)


def _places(operand: PackedOperand) -> list[IndexExpr]:
    """The original coordinates of what is accessed, over the iterators."""
    places = dict(zip((d.name for d in operand.dimensions), operand.access, strict=True))
    return [source.substitute(places) for source in operand.source]


def vector_operand(program: DerivedProgram, name: str, dtype: str) -> PackedOperand:
    """A vector of an epilogue, with an element for each channel, row-major over
    :func:`~cpembed.codegen.epilogue.channel_axes`, which are padded as the program pads them."""
    original, members = program.unfused, program.member_digits
    axes = channel_axes(original)
    coordinates = [members.get(axis, IndexExpr.iterator(axis)) for axis in axes]
    access = tuple(coordinate.substitute(program.axis_map) for coordinate in coordinates)
    padded = [coordinate.bounds(program.extents)[1] + 1 for coordinate in access]
    return PackedOperand(
        name,
        dtype,
        tuple(original.extents[axis] for axis in axes),
        tuple(PackedDimension(axis, extent) for axis, extent in zip(axes, padded, strict=True)),
        tuple(IndexExpr.iterator(axis) for axis in axes),
        access,
    )


def _channels(
    program: DerivedProgram, names: Mapping[str, str], by_points: Mapping[str, Overlap]
) -> KernelOperand:
    vector = vector_operand(program, "Channel", "float32")
    by_tiles = IndexExpr()
    for coordinate, stride in zip(vector.access, vector.strides, strict=True):
        by_tiles = by_tiles + coordinate.times(stride)
    index = _all_in_points(by_tiles, by_points.values())
    over_tiles = {(overlap.loop,) for overlap in program.overlaps}
    if index is None or any(
        term.inner is not None and term.iterators not in over_tiles for term in index.terms
    ):
        raise LoweringError(
            "the channels of this embedding are digits of a fused axis: a bias or a scale needs "
            "another embedding"
        )
    access = index.rename(lambda name: names[name])
    return KernelOperand(vector.name, vector.dtype, vector.elements, access)


def in_points(access: IndexExpr, overlap: Overlap) -> IndexExpr | None:
    """An access whose tiles overlap, over the point at which a tile begins instead of its number;
    None where tiles lie at no constant distance by their points.

    The last tile begins where it has to; so may every other tile, of a block that ends at the
    extent.
    """
    loop, start = overlap.loop, overlap.start()
    if loop not in access.iterators:
        return access
    step, rest = divmod(access.coefficient(loop), overlap.block)
    turned = [term.times(-step) for term in start.terms]
    fixed = IndexExpr.of([*access.terms, *turned], access.constant)
    if rest or loop in fixed.iterators:
        return None
    return fixed + IndexExpr.of([IndexTerm(loop, step)])


def lane_name(lane: str) -> str:
    """Identifier of an instruction axis inside a kernel."""
    return f"lane_{lane}"


def _flat_access(operand: PackedOperand) -> IndexExpr:
    """The packed access as one index into the flat buffer."""
    total = IndexExpr()
    for index, stride in zip(operand.access, operand.strides, strict=True):
        scaled = [term.times(stride) for term in index.terms]
        total = total + IndexExpr.of(scaled, index.constant * stride)
    return total


def _identifiers(program: DerivedProgram) -> dict[str, str]:
    """A valid identifier per iterator: names of loops are free text (``q.o``)."""
    names = {loop.name: f"loop_{number}" for number, loop in enumerate(program.loops)}
    names.update({lane.name: lane_name(lane.name) for lane in program.instruction_axes})
    return names
