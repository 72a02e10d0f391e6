"""Nest of a derived program: flat operands, and one point of the spatial loops a task."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from cpembed.codegen.epilogue import Epilogue, channel_axes
from cpembed.codegen.nest import KernelOperand, Nest, TileLoop
from cpembed.codegen.placement import Placement
from cpembed.errors import LoweringError
from cpembed.ir.computation import AxisKind, Computation
from cpembed.ir.expression import Access, Operation
from cpembed.ir.index import IndexExpr, IndexTerm, flat_index
from cpembed.transform.program import (
    DerivedProgram,
    Loop,
    Overlap,
    PackedDimension,
    PackedOperand,
)

# Flat indices are 32-bit integers.
_MAX_ELEMENTS = 2**31 - 1
"""Maximum number of elements of an operand."""


def _check_size(operand: PackedOperand) -> None:
    largest = max(operand.elements, math.prod(operand.original_shape))
    if largest > _MAX_ELEMENTS:
        raise LoweringError(
            f"operand {operand.name} has {largest:,} elements and a kernel indexes at most "
            f"{_MAX_ELEMENTS:,}: run a part of the workload; solve and explain take the whole"
        )


def _check_product_sum(workload: Computation) -> None:
    """Raise unless the workload is ``O += A * B`` with one access to each operand."""
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
    """Return the workload's operands in the instruction's order, which is that of a nest."""
    computation = program.instruction.computation
    return tuple(program.role(o.name) for o in (*computation.inputs, computation.output))


def first_factor(program: DerivedProgram) -> PackedOperand:
    """Return the workload's operand that takes the place of the instruction's first."""
    return in_order(program)[0]


def kernel_nest(
    program: DerivedProgram, epilogue: Epilogue | None = None, *, unpadded: bool = False
) -> Nest:
    """Return the nest of a program without any tiling: a task is one point of the spatial loops.

    Parameters
    ----------
    program : DerivedProgram
        Program of a product-sum.
    epilogue : Epilogue, optional
        Steps after the sums; sets the output's type.
    unpadded : bool
        Read the first factor in its original layout instead of the packed one.

    Raises
    ------
    LoweringError
        The workload is no product-sum, the epilogue's channels are not affine in the loops, or
        the reads of an unpadded factor are not.
    """
    _check_product_sum(program.workload)
    for operand in program.operands:
        _check_size(operand)
    first, second, output = in_order(program)
    # Accumulators keep the workload's type; only what is stored changes.
    sums = output.dtype
    if epilogue is not None:
        output = replace(output, dtype=epilogue.dtype)
    iterators = _Iterators(program, (first, second, output))
    coordinates = _coordinates(iterators, first)
    result, residual = iterators.flat("C", output), None
    if epilogue is not None and epilogue.second is not None:
        raise LoweringError("kernels of processors store one output: leave the second one out")
    if epilogue is not None and (epilogue.placement or epilogue.residual):
        # A place has a stride for each original dimension, and none for packed ones.
        if not output.is_identity:
            raise LoweringError(
                f"{output.name} is stored in a layout of the instruction's, which has no place in "
                "another buffer: take another embedding"
            )
        if epilogue.placement is not None:
            result = iterators.placed("C", output, epilogue.placement)
        if epilogue.residual is not None:
            shape = output.original_shape
            place = epilogue.residual.placement
            place = place or Placement.inside(shape, (0,) * len(shape), shape)
            addend = replace(output, dtype=epilogue.residual.dtype)
            residual = iterators.placed("Residual", addend, place)
    loops, spatial = program.loops, AxisKind.SPATIAL
    factor = _unpacked(first, coordinates) if unpadded else iterators.flat("A", first)
    return Nest(
        tasks=tuple(iterators.task(loop) for loop in loops if loop.kind is spatial),
        reductions=tuple(iterators.loop(loop) for loop in loops if loop.kind is not spatial),
        inner=tuple(map(iterators.loop, program.instruction_axes)),
        operands=(factor, iterators.flat("B", second), result),
        epilogue=epilogue,
        residual=residual,
        channels=_channels(iterators) if epilogue and epilogue.vectors else None,
        sums_dtype=sums,
        halo=tuple(coordinate for coordinate, leaves in coordinates if coordinate and leaves),
        unpadded=unpadded,
    )


class _Iterators:
    """Iterators of a program in its nest: their names, and those that walk points, not tiles."""

    def __init__(self, program: DerivedProgram, operands: Sequence[PackedOperand]) -> None:
        self.program = program
        # Names of a program's loops are free text (`q.o`), those of a kernel are identifiers.
        self.names = {loop.name: f"loop_{number}" for number, loop in enumerate(program.loops)}
        self.names |= {lane.name: lane_name(lane.name) for lane in program.instruction_axes}
        # Loops over overlapping tiles that can walk the points of their axis. The others, for which
        # an operand is packed tile by tile, count tiles.
        accesses = [flat_index(operand.access, operand.strides) for operand in operands]
        self.overlaps = {
            overlap.loop: overlap
            for overlap in program.overlaps
            if overlap.kind is AxisKind.SPATIAL
            and all(in_points(access, overlap) is not None for access in accesses)
        }

    def loop(self, loop: Loop) -> Loop:
        return replace(loop, name=self.names[loop.name])

    def task(self, loop: Loop) -> TileLoop:
        overlap, name = self.overlaps.get(loop.name), self.names[loop.name]
        if overlap is None:
            return TileLoop(name, loop.extent, origin=loop.name)
        block = overlap.block
        return TileLoop(name, overlap.extent, tile=block, origin=loop.name, unit=block)

    def over_points(self, index: IndexExpr) -> IndexExpr | None:
        """Apply :func:`in_points` for all overlaps; None if one fails."""
        by_points: IndexExpr | None = index
        for overlap in self.overlaps.values():
            by_points = None if by_points is None else in_points(by_points, overlap)
        return by_points

    def renamed(self, index: IndexExpr) -> IndexExpr:
        return index.rename(self.names.__getitem__)

    def flat(self, parameter: str, operand: PackedOperand) -> KernelOperand:
        access = self.over_points(flat_index(operand.access, operand.strides))
        assert access is not None
        return KernelOperand(parameter, operand.dtype, operand.elements, self.renamed(access))

    def placed(self, parameter: str, output: PackedOperand, place: Placement) -> KernelOperand:
        """Return an output, or a residual like it, in its place in a larger buffer."""
        coordinates: list[IndexExpr] = []
        for coordinate in _original_coordinates(output):
            by_points = self.over_points(coordinate)
            if by_points is None:
                raise LoweringError("the output's elements have no place of their own")
            coordinates.append(self.renamed(by_points))
        # By original coordinates, since strides of the larger buffer are those of its dimensions.
        index = IndexExpr((), place.offset) + flat_index(coordinates, place.strides)
        return KernelOperand(parameter, output.dtype, place.elements, index)


def _coordinates(
    iterators: _Iterators, factor: PackedOperand
) -> list[tuple[KernelOperand | None, bool]]:
    """Return the coordinate read of each original dimension, and whether it can lie outside.

    The coordinate is None if it is not affine in the iterators.
    """
    coordinates: list[tuple[KernelOperand | None, bool]] = []
    for index, size in zip(_original_coordinates(factor), factor.original_shape, strict=True):
        low, high = index.bounds(iterators.program.extents)
        by_points = iterators.over_points(index)
        operand: KernelOperand | None = None
        if by_points is not None and by_points.is_affine:
            operand = KernelOperand("", factor.dtype, size, iterators.renamed(by_points))
        coordinates.append((operand, low < 0 or high >= size))
    return coordinates


def _unpacked(
    factor: PackedOperand, coordinates: Sequence[tuple[KernelOperand | None, bool]]
) -> KernelOperand:
    """Return a factor in its original layout."""
    access, stride = IndexExpr(), 1
    for coordinate, _ in reversed(coordinates):
        if coordinate is None:
            raise LoweringError(f"{factor.name} is read in another order than it came in")
        access = access + coordinate.access.times(stride)
        stride *= coordinate.elements
    return KernelOperand("A", factor.dtype, stride, access)


def _original_coordinates(operand: PackedOperand) -> list[IndexExpr]:
    """Return the original coordinates of the accessed element, over the iterators."""
    packed = dict(zip((d.name for d in operand.dimensions), operand.access, strict=True))
    return [source.substitute(packed) for source in operand.source]


def vector_operand(program: DerivedProgram, name: str, dtype: str) -> PackedOperand:
    """Return a vector of an epilogue as a packed operand with an element per channel.

    Parameters
    ----------
    program : DerivedProgram
        Program whose output has the channels.
    name, dtype : str
        Name and element type of the vector.
    """
    original, members = program.unfused, program.member_digits
    axes = channel_axes(original)
    coordinates = [members.get(axis, IndexExpr.iterator(axis)) for axis in axes]
    access = tuple(coordinate.substitute(program.axis_map) for coordinate in coordinates)
    # Padded as the program's axes are: kernels load the vector's elements of padded channels too.
    padded = [coordinate.bounds(program.extents)[1] + 1 for coordinate in access]
    return PackedOperand(
        name=name,
        dtype=dtype,
        original_shape=tuple(original.extents[axis] for axis in axes),
        dimensions=tuple(map(PackedDimension, axes, padded)),
        source=tuple(IndexExpr.iterator(axis) for axis in axes),
        access=access,
    )


def _channels(iterators: _Iterators) -> KernelOperand:
    vector = vector_operand(iterators.program, "Channel", "float32")
    index = iterators.over_points(flat_index(vector.access, vector.strides))
    over_tiles = {(overlap.loop,) for overlap in iterators.program.overlaps}
    # Digits of a sum have no constant stride, by which kernels load vectors of channels.
    if index is None or any(
        term.inner is not None and term.iterators not in over_tiles for term in index.terms
    ):
        raise LoweringError(
            "the channels of this embedding are digits of a fused axis: a bias or a scale needs "
            "another embedding"
        )
    return KernelOperand(vector.name, vector.dtype, vector.elements, iterators.renamed(index))


def in_points(access: IndexExpr, overlap: Overlap) -> IndexExpr | None:
    """Return an access over the point at which an overlapping tile begins instead of its number.

    None if tiles lie at no constant distance by their points.
    """
    loop, start = overlap.loop, overlap.start()
    if loop not in access.iterators:
        return access
    # The access is step * start(number) + rest if subtracting that leaves nothing of the number.
    # Over points, any tile can be moved back, not only the last one.
    step, rest = divmod(access.coefficient(loop), overlap.block)
    negated = [term.times(-step) for term in start.terms]
    fixed = IndexExpr.sum([*access.terms, *negated], access.constant)
    if rest or loop in fixed.iterators:
        return None
    return fixed + IndexExpr.sum([IndexTerm(loop, step)])


def lane_name(lane: str) -> str:
    """Return the identifier of an instruction axis inside a kernel."""
    return f"lane_{lane}"
