"""The loop nest of a contraction kernel, on flat packed buffers.

A kernel runs *tasks*: points of the spatial loops, a loop taken in blocks of several points where
it is register-blocked. A task initialises its accumulators, adds over the reduction loops and
stores. All that is inside a task (register-block steps, lanes) is an *inner* loop.

Buffers are flat, so an access is one affine expression however the layout spreads a lane over
dimensions: a row lane inside a compound dimension is only a stride.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from cpembed.backends.epilogue import Epilogue, channel_axes
from cpembed.errors import LoweringError
from cpembed.ir.computation import AxisKind, Computation
from cpembed.ir.expression import Access, Operation
from cpembed.ir.index import IndexExpr, IndexTerm
from cpembed.transform.program import DerivedProgram, Loop, Overlap, PackedOperand

_MAX_ELEMENTS = 2**31 - 1


@dataclass(frozen=True)
class TaskLoop:
    """A spatial loop around the tasks, ``block`` points to a task; ``origin`` is its name in the
    program.

    Where the block does not divide the extent the last block is moved back to end at the extent:
    it computes some points twice, with the same result, and needs no code of its own. Or so many
    blocks as ``shorter`` says, the last ones, have a point less. Of a loop over overlapping tiles
    (:class:`~cpembed.transform.program.Overlap`) the points are those of the axis, ``unit`` of
    which make a tile.
    """

    name: str
    extent: int
    block: int = 1
    origin: str = ""
    unit: int = 1
    shorter: int = 0

    @property
    def steps(self) -> int:
        """What a block can hold at most: tiles, or points that are none."""
        return self.extent // self.unit

    def blocks_of(self, steps: int) -> int:
        """How many blocks of so many steps there are."""
        return -(-self.extent // (steps * self.unit))

    @property
    def count(self) -> int:
        return -(-self.extent // self.block)

    @property
    def points(self) -> int:
        """That are computed, some of them twice."""
        return self.count * self.block - self.shorter

    def start(self, number: int) -> int:
        """Where a block begins."""
        whole = number * self.block
        if self.shorter:
            return min(whole, number * (self.block - 1) + self.count - self.shorter)
        return min(whole, max(0, self.extent - self.block))

    def start_text(self, number: str) -> str:
        """The same in a kernel's text."""
        whole = number if self.block == 1 else f"{number} * {self.block}"
        if self.shorter:
            after = f"{number} * {self.block - 1} + {self.count - self.shorter}"
            return f"T.min({whole}, {after})"
        return f"T.min({whole}, {self.extent - self.block})" if self.repeats else whole

    @property
    def repeats(self) -> bool:
        """Whether points are computed twice."""
        return self.points > self.extent

    @property
    def step(self) -> str:
        """Name of the inner loop over the points of a block."""
        return f"{self.name}_step"


class Borders(Enum):
    """Which products with zero padding a kernel leaves out (:mod:`~cpembed.backends.margins`)."""

    WHOLE = "steps of the reductions in which a task sees nothing else"
    POINTS = "those, and in each step the points of a block that see nothing else"
    EVERY = "those, all of them known when the kernel is compiled"


@dataclass(frozen=True)
class KernelOperand:
    """A packed operand as the kernel sees it: flat, with one index expression."""

    parameter: str
    dtype: str
    elements: int
    access: IndexExpr

    def stride(self, loop: str) -> int:
        """Elements from one step of a loop to the next."""
        return self.access.coefficient(loop)


@dataclass(frozen=True)
class Nest:
    """Loops of a contraction kernel and the accesses of its operands over them.

    ``operands`` are the two factors in the instruction's order and the output, which ``sums`` are
    stored to; with an ``epilogue`` their types differ, and ``channels`` are the vectors that it
    takes, by the index of an element. ``margins`` are coordinates of the first factor that leave
    its original dimensions, of ``elements`` each, where it holds padding; ``borders`` says what is
    left out there. ``unpadded``: it holds none but lies as it came, and what is outside of it must
    not be read.
    """

    tasks: tuple[TaskLoop, ...]
    reductions: tuple[Loop, ...]
    inner: tuple[Loop, ...]
    operands: tuple[KernelOperand, KernelOperand, KernelOperand]
    epilogue: Epilogue | None = None
    channels: KernelOperand | None = None
    sums_dtype: str = ""
    margins: tuple[KernelOperand, ...] = ()
    borders: Borders = Borders.WHOLE
    unpadded: bool = False

    @property
    def sums(self) -> str:
        """Type of the accumulators."""
        return self.sums_dtype or self.operands[2].dtype

    @property
    def accessed(self) -> tuple[KernelOperand, ...]:
        """Everything that the loops index."""
        return self.operands if self.channels is None else (*self.operands, self.channels)

    def changed(self, change: Callable[[KernelOperand], KernelOperand], **others: Any) -> Nest:
        """The nest with everything that the loops index changed, and other fields replaced."""
        first, second, output = (change(operand) for operand in self.operands)
        channels = None if self.channels is None else change(self.channels)
        margins = tuple(change(margin) for margin in self.margins)
        kept = {"operands": (first, second, output), "channels": channels, "margins": margins}
        return replace(self, **(kept | others))

    @property
    def task_count(self) -> int:
        return math.prod(loop.count for loop in self.tasks)

    @property
    def steps(self) -> tuple[Loop, ...]:
        """The points of a block."""
        names = {task.step for task in self.tasks}
        return tuple(loop for loop in self.inner if loop.name in names)

    @property
    def spatial_inner(self) -> tuple[Loop, ...]:
        return tuple(loop for loop in self.inner if loop.kind is AxisKind.SPATIAL)

    @property
    def accumulators(self) -> int:
        """Output elements of a task."""
        return math.prod(loop.extent for loop in self.spatial_inner)

    @property
    def accumulator_access(self) -> IndexExpr:
        """Accumulators are dense, row-major over the spatial inner loops."""
        terms: list[IndexTerm] = []
        stride = 1
        for loop in reversed(self.spatial_inner):
            terms.append(IndexTerm(loop.name, stride))
            stride *= loop.extent
        return IndexExpr.of(reversed(terms))

    def inner_loop(self, name: str) -> Loop:
        for loop in self.inner:
            if loop.name == name:
                return loop
        raise KeyError(name)


def check_size(operand: PackedOperand) -> None:
    """Flat indices are 32-bit integers."""
    largest = max(operand.elements, math.prod(operand.original_shape))
    if largest > _MAX_ELEMENTS:
        raise LoweringError(
            f"operand {operand.name} has {largest:,} elements and a kernel indexes at most "
            f"{_MAX_ELEMENTS:,}: run a part of the workload; solve and explain take the whole"
        )


def check_product_sum(workload: Computation) -> None:
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


def first_factor(program: DerivedProgram) -> PackedOperand:
    """The operand of the workload in the place of the instruction's first."""
    return program.role(program.instruction.computation.inputs[0].name)


def kernel_nest(
    program: DerivedProgram, epilogue: Epilogue | None = None, *, unpadded: bool = False
) -> Nest:
    """The nest with nothing blocked: one point of the spatial loops is a task.

    The output has the type that the epilogue stores; ``unpadded``, the first factor is read where
    it came, not where it is packed. Raises :class:`LoweringError` where the workload is no
    product-sum, an epilogue's channels are not affine in the loops, or what is read of an unpadded
    factor is not.
    """
    check_product_sum(program.workload)
    for operand in program.operands:
        check_size(operand)
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

    def task(loop: Loop) -> TaskLoop:
        if loop.name not in overlaps:
            return TaskLoop(names[loop.name], loop.extent, origin=loop.name)
        found = overlaps[loop.name]
        return TaskLoop(names[loop.name], found.extent, found.block, loop.name, found.block)

    def flat(parameter: str, operand: PackedOperand) -> KernelOperand:
        access = _all_in_points(flat_access(operand), overlaps.values())
        assert access is not None
        return KernelOperand(
            parameter, operand.dtype, operand.elements, access.rename(lambda name: names[name])
        )

    coordinates = _coordinates(program, first, names, overlaps)
    return Nest(
        tasks=tuple(task(loop) for loop in spatial),
        reductions=tuple(renamed(loop) for loop in reductions),
        inner=tuple(renamed(loop) for loop in program.lanes),
        operands=(
            _as_it_came(first, coordinates) if unpadded else flat("A", first),
            flat("B", second),
            flat("C", output),
        ),
        epilogue=epilogue,
        channels=_channels(program, names, overlaps) if epilogue and epilogue.vectors else None,
        sums_dtype=sums,
        margins=tuple(margin for margin, leaves in coordinates if margin and leaves),
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
            walked = [in_points(flat_access(operand), overlap) for operand in operands]
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
    places = dict(zip((d.name for d in factor.dimensions), factor.access, strict=True))
    found: list[tuple[KernelOperand | None, bool]] = []
    for source, size in zip(factor.source, factor.original_shape, strict=True):
        coordinate = source.substitute(places)
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


def channel_index(program: DerivedProgram) -> tuple[IndexExpr, tuple[int, ...]]:
    """An output element's channel over loops and lanes, and the extents, padding included, of the
    axes that make it, outermost first."""
    original = program.unfused
    members = program.member_digits
    total = IndexExpr()
    extents: list[int] = []
    for axis in channel_axes(original):
        coordinate = members.get(axis, IndexExpr.iterator(axis)).substitute(program.axis_map)
        extents.append(coordinate.bounds(program.extents)[1] + 1)
        total = IndexExpr.of([t.times(extents[-1]) for t in total.terms])
        total = total + coordinate
    return total, tuple(extents)


def _channels(
    program: DerivedProgram, names: Mapping[str, str], by_points: Mapping[str, Overlap]
) -> KernelOperand:
    by_tiles, extents = channel_index(program)
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
    return KernelOperand("Channel", "float32", math.prod(extents), access)


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


def flat_access(operand: PackedOperand) -> IndexExpr:
    """The packed access as one index into the flat buffer."""
    total = IndexExpr()
    for index, stride in zip(operand.access, operand.strides, strict=True):
        scaled = [term.times(stride) for term in index.terms]
        total = total + IndexExpr.of(scaled, index.constant * stride)
    return total


def _identifiers(program: DerivedProgram) -> dict[str, str]:
    """A valid identifier per iterator: names of loops are free text (``q.o``)."""
    names = {loop.name: f"loop_{number}" for number, loop in enumerate(program.loops)}
    names.update({lane.name: lane_name(lane.name) for lane in program.lanes})
    return names
