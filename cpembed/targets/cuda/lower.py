"""A derived program as a batched matrix product of instruction tiles, in the terms of a GPU.

Every embedding has this form: the outer loops that move only the first factor and the result count
rows of tiles, those that move only the second factor and the result count columns, reductions count
the depth, and the others are the batch. A tile's place in memory follows from the indices of the
derived program, so nothing below this file knows of convolutions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from cpembed.codegen.epilogue import Epilogue
from cpembed.codegen.program_nest import vector_operand
from cpembed.errors import LoweringError
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import AxisKind
from cpembed.ir.dtypes import size_bytes
from cpembed.ir.index import IndexExpr
from cpembed.targets.cuda.instructions import TensorCoreInstruction, instruction_of
from cpembed.targets.cuda.vectors import vector_length
from cpembed.transform.program import DerivedProgram, Loop, PackedDimension, PackedOperand

ACCESS_BYTES = 16
"""The widest access of a thread."""

_MAX_ELEMENTS = 2**31 - 1


@dataclass(frozen=True)
class Stored:
    """An operand as it lies in global memory.

    ``layout`` says where each element is; its coordinates may lie outside in the dimensions
    ``checked``. Vectors of ``length`` elements along the instruction axis ``along`` are accessed at
    once.
    """

    layout: PackedOperand
    checked: tuple[int, ...]
    along: str
    length: int

    @property
    def needs_packing(self) -> bool:
        return not self.layout.is_identity

    @cached_property
    def address(self) -> IndexExpr:
        """Of an element, over loops and instruction axes."""
        total = IndexExpr()
        for index, stride in zip(self.layout.access, self.layout.strides, strict=True):
            total = total + index.times(stride)
        return total


@dataclass(frozen=True)
class TiledProduct:
    """``C[b, m, n] += A[b, m, k] * B[b, k, n]`` over tiles of an instruction.

    Loops of each kind are given outermost first; ``axes`` are the instruction's rows, columns and
    depth. ``first`` and ``second`` hold the ways in which a factor can lie in memory, the one that
    moves the least before the kernel first.
    """

    program: DerivedProgram
    instruction: TensorCoreInstruction
    epilogue: Epilogue | None
    batch: tuple[Loop, ...]
    rows: tuple[Loop, ...]
    columns: tuple[Loop, ...]
    depth: tuple[Loop, ...]
    axes: tuple[str, str, str]
    first: tuple[Stored, ...]
    second: tuple[Stored, ...]
    output: Stored

    @cached_property
    def tiles(self) -> tuple[int, int, int, int]:
        """How many tiles there are: in the batch, rows, columns and depth."""
        batch, rows, columns, depth = (
            math.prod(loop.extent for loop in loops)
            for loops in (self.batch, self.rows, self.columns, self.depth)
        )
        return batch, rows, columns, depth

    @property
    def sums(self) -> str:
        """The element type of the sums."""
        return self.output.layout.dtype

    @property
    def stored_dtype(self) -> str:
        return self.sums if self.epilogue is None else self.epilogue.dtype

    @cached_property
    def channels(self) -> IndexExpr | None:
        """The number of a result's channel, over loops and axes; None without vectors."""
        if self.epilogue is None or not self.epilogue.vectors:
            return None
        vector = vector_operand(self.program, "Channel", "float32")
        total, stride = IndexExpr(), 1
        for index, size in reversed(list(zip(vector.access, vector.original_shape, strict=True))):
            total = index.times(stride) + total
            stride *= size
        return total

    @property
    def channel_count(self) -> int:
        return math.prod(vector_operand(self.program, "Channel", "float32").original_shape)


def lower(
    program: DerivedProgram, spec: HardwareSpec, epilogue: Epilogue | None = None
) -> TiledProduct:
    """Raises :class:`LoweringError` for a program that is no sum of products of two operands, or
    that stores elements twice."""
    workload = program.workload
    if len(workload.statements) != 1 or len(workload.inputs) != 2 or program.overlaps:
        raise LoweringError(
            f"{workload.name} is no sum of products of two operands: solve and explain take it"
        )
    if epilogue is not None and epilogue.placement is not None:
        raise LoweringError("results of Tensor Core kernels are stored in a buffer of their own")
    computation = program.instruction.computation
    first, second, output = (
        program.role(o.name) for o in (*computation.inputs, computation.output)
    )
    for operand in (first, second, output):
        _check_size(operand)
    rows, columns, depth, batch = _by_kind(program, first, second)
    axes = _axes(program)
    weights = workload.inputs[1].name
    ways = [
        _ways(operand, program, axes[2], ahead=operand.name == weights)
        for operand in (first, second)
    ]
    stored = _output(output, program, axes, epilogue)
    image = ways[1] if first.name == weights else ways[0]
    return TiledProduct(
        program,
        instruction_of(spec, {operand.name: operand.dtype for operand in (first, second, output)},
                       program.roles),
        epilogue,
        tuple(batch),
        _by_stride(rows, stored),
        _by_stride(columns, stored),
        _by_stride(depth, image[0]),
        axes,
        ways[0],
        ways[1],
        stored,
    )  # fmt: skip


def _check_size(operand: PackedOperand) -> None:
    largest = max(operand.elements, math.prod(operand.original_shape))
    if largest > _MAX_ELEMENTS:
        raise LoweringError(
            f"operand {operand.name} has {largest:,} elements and a kernel indexes at most "
            f"{_MAX_ELEMENTS:,}: run a part of the workload; solve and explain take the whole"
        )


def _moving(operand: PackedOperand) -> set[str]:
    return {name for index in operand.access for name in index.iterators}


def _by_kind(
    program: DerivedProgram, first: PackedOperand, second: PackedOperand
) -> tuple[list[Loop], list[Loop], list[Loop], list[Loop]]:
    """The loops of rows, columns, depth and batch; those of one step are none of them."""
    rows, columns, depth, batch = list[Loop](), list[Loop](), list[Loop](), list[Loop]()
    one, other = _moving(first), _moving(second)
    for loop in program.loops:
        if loop.extent == 1:
            continue
        if loop.kind is AxisKind.REDUCTION:
            depth.append(loop)
        elif (loop.name in one) == (loop.name in other):
            batch.append(loop)
        else:
            (rows if loop.name in one else columns).append(loop)
    return rows, columns, depth, batch


def _axes(program: DerivedProgram) -> tuple[str, str, str]:
    """The instruction's axes of rows, columns and depth."""
    computation = program.instruction.computation
    one, other, result = (
        {name for index in computation.access(o.name).index for name in index.iterators}
        for o in (*computation.inputs, computation.output)
    )
    (rows,), (columns,), (depth,) = one & result, other & result, one & other
    return rows, columns, depth


def coordinates(operand: PackedOperand) -> tuple[IndexExpr, ...]:
    """Of what is accessed, in the original operand, over loops and axes."""
    places = dict(zip((d.name for d in operand.dimensions), operand.access, strict=True))
    return tuple(source.substitute(places) for source in operand.source)


def _in_original(operand: PackedOperand, order: Sequence[int]) -> PackedOperand:
    """The operand in its original layout, with its dimensions in an order; what is accessed may
    lie outside."""
    found = coordinates(operand)
    return replace(
        operand,
        dimensions=tuple(
            PackedDimension(f"d{place}", operand.original_shape[place]) for place in order
        ),
        source=tuple(IndexExpr.iterator(f"d{place}") for place in range(len(found))),
        access=tuple(found[place] for place in order),
    )


def _stored(layout: PackedOperand, program: DerivedProgram, along: str, longest: int) -> Stored:
    checked = tuple(
        place
        for place, (index, size) in enumerate(zip(layout.access, layout.shape, strict=True))
        for low, high in (index.bounds(program.extents),)
        if low < 0 or high >= size
    )
    return Stored(layout, checked, along, vector_length(layout, along, longest))


def _ways(
    operand: PackedOperand, program: DerivedProgram, along: str, *, ahead: bool
) -> tuple[Stored, ...]:
    """Layouts of a factor, whose vectors run along the depth.

    What is packed ``ahead`` of all calls lies in the tiles of the instruction. Another one keeps
    its layout where vectors are as long there as anywhere, or has its dimensions exchanged; where
    neither has long vectors, tiles are another way.
    """
    extents = {lane.name: lane.extent for lane in program.instruction_axes}
    longest = min(ACCESS_BYTES // size_bytes(operand.dtype), extents[along])
    tiles = _stored(_in_tiles(operand, along), program, along, longest)
    if ahead:
        return (tiles,)
    places = list(range(len(operand.original_shape)))
    orders = [places, *([*(p for p in places if p != last), last] for last in places[:-1])]
    kept = [_stored(_in_original(operand, order), program, along, longest) for order in orders]
    best = min(kept, key=lambda way: (-way.length, way.needs_packing))
    return (best,) if best.length == longest else (best, tiles)


def _in_tiles(operand: PackedOperand, along: str) -> PackedOperand:
    """The layout of the derived program, with what the axis walks innermost, and around it the
    other tile dimension."""

    def place(number: int) -> tuple[int, int]:
        walked = operand.dimensions[number].walked_by is not None
        inner = 2 if along in operand.access[number].iterators else int(walked)
        return inner, number

    order = sorted(range(len(operand.dimensions)), key=place)
    return replace(
        operand,
        dimensions=tuple(operand.dimensions[number] for number in order),
        access=tuple(operand.access[number] for number in order),
    )


def _output(
    output: PackedOperand,
    program: DerivedProgram,
    axes: tuple[str, str, str],
    epilogue: Epilogue | None,
) -> Stored:
    """The result in its original layout, in vectors along columns or rows, whichever are longer."""
    layout = _in_original(output, range(len(output.original_shape)))
    dtype = output.dtype if epilogue is None else epilogue.dtype
    extents = {lane.name: lane.extent for lane in program.instruction_axes}
    widest = min(ACCESS_BYTES // size_bytes(dtype), 8)
    found = [
        _stored(layout, program, axis, min(widest, extents[axis])) for axis in (axes[1], axes[0])
    ]
    return max(found, key=lambda way: way.length)


def _by_stride(loops: Sequence[Loop], operand: Stored) -> tuple[Loop, ...]:
    """Loops whose steps are the farthest apart in an operand first."""

    def stride(loop: Loop) -> int:
        found = 0
        for index, size in zip(operand.layout.access, operand.layout.strides, strict=True):
            for term in index.terms:
                if loop.name in term.iterators:
                    found = max(found, abs(term.coefficient) * size // term.divisor)
        return found

    return tuple(sorted(loops, key=lambda loop: -stride(loop)))
