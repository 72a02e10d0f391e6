"""Derived programs as batched matrix products of instruction tiles.

Every embedding has this form: outer loops over the first factor and the result count rows of tiles,
those over the second factor and the result count columns, reductions count the depth, and the rest
is the batch. The address of a tile follows from the indices of the derived program, so nothing
after this step knows of convolutions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

from cpembed.codegen.epilogue import Epilogue
from cpembed.codegen.placement import Placement
from cpembed.codegen.program_nest import vector_operand
from cpembed.errors import LoweringError
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import AxisKind, Computation
from cpembed.ir.dtypes import size_bytes
from cpembed.ir.index import IndexExpr, IndexTerm
from cpembed.targets.cuda.instructions import TensorCoreInstruction, instruction_of
from cpembed.transform.program import DerivedProgram, Loop, PackedDimension, PackedOperand

N = TypeVar("N")

ACCESS_BYTES = 16
"""Width of the widest access of a thread in bytes."""

# Kernels index memory with 32-bit integers.
_MAX_ELEMENTS = 2**31 - 1


@dataclass(frozen=True)
class GlobalOperand:
    """An operand in global memory."""

    layout: PackedOperand
    """Dimensions and the address of each element."""
    checked: tuple[int, ...]
    """Dimensions in which coordinates may lie outside of the operand."""
    along: str
    """Instruction axis along which vectors are accessed."""
    length: int
    """Number of elements of a vector."""
    placement: Placement | None = None
    """Place in a larger buffer; by default a buffer of its own."""

    @property
    def needs_packing(self) -> bool:
        return not self.layout.is_identity

    @property
    def elements(self) -> int:
        """Number of elements of the buffer."""
        return self.layout.elements if self.placement is None else self.placement.elements

    @cached_property
    def address(self) -> IndexExpr:
        """Number of an element in memory, over loops and instruction axes."""
        total, strides = IndexExpr(), self.layout.strides
        if self.placement is not None:
            total, strides = IndexExpr(constant=self.placement.offset), self.placement.strides
        for index, stride in zip(self.layout.access, strides, strict=True):
            total = total + index.times(stride)
        return total


def packed_ahead(workload: Computation) -> str | None:
    """Return the operand that is packed ahead of all calls: the second, unless it varies."""
    second = workload.inputs[1]
    return None if second.varies else second.name


# Compared by identity, so that what is counted of a product is remembered without hashing it.
@dataclass(frozen=True, kw_only=True, eq=False)
class TiledProduct:
    """``C[b, m, n] += A[b, m, k] * B[b, k, n]`` over tiles of an instruction."""

    program: DerivedProgram
    instruction: TensorCoreInstruction
    epilogue: Epilogue | None
    """Function applied to the sums before they are stored."""
    batch: tuple[Loop, ...]
    rows: tuple[Loop, ...]
    columns: tuple[Loop, ...]
    depth: tuple[Loop, ...]
    """Loops over tiles of each kind, outermost first."""
    axes: tuple[str, str, str]
    """Instruction axes of rows, columns and depth."""
    first: tuple[GlobalOperand, ...]
    second: tuple[GlobalOperand, ...]
    """Layouts that each factor can have; the one with the least packing work comes first."""
    output: GlobalOperand

    @cached_property
    def tiles(self) -> tuple[int, int, int, int]:
        """Number of tiles in the batch, rows, columns and depth."""
        batch, rows, columns, depth = (
            math.prod(loop.extent for loop in loops)
            for loops in (self.batch, self.rows, self.columns, self.depth)
        )
        return batch, rows, columns, depth

    @property
    def sums(self) -> str:
        """Element type of the sums."""
        return self.output.layout.dtype

    @property
    def packed_ahead(self) -> str | None:
        """Name of the operand that is packed ahead of all calls: the weights, if there are some."""
        return packed_ahead(self.program.workload)

    @property
    def output_dtype(self) -> str:
        """Element type of the result after the epilogue."""
        return self.sums if self.epilogue is None else self.epilogue.dtype

    @cached_property
    def channels(self) -> IndexExpr | None:
        """Number of a result's channel, over loops and axes; None without vectors."""
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
    program: DerivedProgram,
    spec: HardwareSpec,
    epilogue: Epilogue | None = None,
    unstored: Collection[str] = (),
) -> TiledProduct:
    """Lower a derived program.

    Parameters
    ----------
    program
        Program of an embedding.
    spec
        Specification of the Tensor Core instruction.
    epilogue
        What is applied to the sums before they are stored; default: nothing.
    unstored
        Operands that are not in memory, so that their sizes do not matter.

    Raises
    ------
    LoweringError
        If the program is not a sum of products of two operands, stores elements twice, or has an
        operand of more than 2^31 - 1 elements.
    """
    workload = program.workload
    if len(workload.statements) != 1 or len(workload.inputs) != 2 or program.overlaps:
        raise LoweringError(
            f"{workload.name} is no sum of products of two operands: solve and explain take it"
        )
    computation = program.instruction.computation
    first, second, output = (program.role(operand.name) for operand in computation.operands)
    for operand in (first, second, output):
        if operand.name not in unstored:
            _check_size(operand)
    rows, columns, depth, batch = _loops_by_kind(program, first, second)
    axes = _matrix_axes(program)
    weights = workload.inputs[1].name
    dtypes = {operand.name: operand.dtype for operand in (first, second, output)}
    instruction = instruction_of(spec, dtypes, program.roles)
    layouts = [
        _factor_layouts(
            operand,
            program,
            axes[2],
            # ldmatrix transposes elements of 16 bits.
            across if instruction.kind == "mma" and size_bytes(operand.dtype) == 2 else None,
            ahead=operand.name == packed_ahead(workload),
        )
        for operand, across in ((first, axes[0]), (second, axes[1]))
    ]
    result = _result_layout(output, program, axes, epilogue)
    image = layouts[1] if first.name == weights else layouts[0]
    return TiledProduct(
        program=program,
        instruction=instruction,
        epilogue=epilogue,
        batch=tuple(batch),
        # Neighbouring tiles are neighbours in the result, and along the depth in the image.
        rows=by_stride(rows, result.layout),
        columns=by_stride(columns, result.layout),
        depth=by_stride(depth, image[0].layout),
        axes=axes,
        first=layouts[0],
        second=layouts[1],
        output=result,
    )


def _check_size(operand: PackedOperand) -> None:
    # The packing kernel indexes the original too.
    _check_count(operand.name, max(operand.elements, math.prod(operand.original_shape)))


def _check_count(name: str, largest: int) -> None:
    if largest > _MAX_ELEMENTS:
        raise LoweringError(
            f"operand {name} has {largest:,} elements and a kernel indexes at most "
            f"{_MAX_ELEMENTS:,}: run a part of the workload; solve and explain take the whole"
        )


def _iterators(indices: Iterable[IndexExpr]) -> set[str]:
    return {name for index in indices for name in index.iterators}


def _loops_by_kind(
    program: DerivedProgram, first: PackedOperand, second: PackedOperand
) -> tuple[list[Loop], list[Loop], list[Loop], list[Loop]]:
    """Return the loops of rows, columns, depth and batch that have more than one step."""
    rows, columns, depth, batch = list[Loop](), list[Loop](), list[Loop](), list[Loop]()
    of_first, of_second = _iterators(first.access), _iterators(second.access)
    for loop in program.loops:
        # Loops of one step count nothing, and would only lengthen every address.
        if loop.extent == 1:
            continue
        if loop.kind is AxisKind.REDUCTION:
            depth.append(loop)
        elif (loop.name in of_first) == (loop.name in of_second):
            batch.append(loop)
        else:
            (rows if loop.name in of_first else columns).append(loop)
    return rows, columns, depth, batch


def _matrix_axes(program: DerivedProgram) -> tuple[str, str, str]:
    """Return the instruction's axes of rows, columns and depth."""
    computation = program.instruction.computation
    first, second, output = (
        _iterators(computation.access(operand.name).index) for operand in computation.operands
    )
    (rows,), (columns,), (depth,) = first & output, second & output, first & second
    return rows, columns, depth


def loop_digits(
    number: N, loops: Sequence[Loop], digit: Callable[[N, int, int | None], N]
) -> dict[str, N]:
    """Return the values of loops, outermost first, at a number that counts their points.

    The outermost loop exceeds its extent if the number exceeds their product.

    Parameters
    ----------
    number : N
        Number, array of numbers, or expression.
    loops : sequence of Loop
    digit : callable
        Function of a number, a divisor and a modulus, which is None for the outermost loop.
    """
    values: dict[str, N] = {}
    inner = 1
    for place, loop in reversed(list(enumerate(loops))):
        values[loop.name] = digit(number, inner, loop.extent if place else None)
        inner *= loop.extent
    return values


def original_access(operand: PackedOperand) -> tuple[IndexExpr, ...]:
    """Return the coordinates of an access in the original layout, outside of it too."""
    places = dict(zip((d.name for d in operand.dimensions), operand.access, strict=True))
    return tuple(source.substitute(places) for source in operand.source)


def in_original(operand: PackedOperand, order: Sequence[int]) -> PackedOperand:
    """Return the operand in its original layout, with its dimensions in ``order``.

    Accesses may lie outside of it.
    """
    coordinates = original_access(operand)
    return replace(
        operand,
        dimensions=tuple(
            PackedDimension(f"d{place}", operand.original_shape[place]) for place in order
        ),
        source=tuple(IndexExpr.iterator(f"d{place}") for place in range(len(coordinates))),
        access=tuple(coordinates[place] for place in order),
    )


def global_operand(
    layout: PackedOperand, program: DerivedProgram, along: str, max_length: int
) -> GlobalOperand:
    """Return a layout with the dimensions that have to be checked, and its vectors.

    Parameters
    ----------
    layout
        Layout in global memory.
    program
        Program that accesses it.
    along
        Instruction axis of the vectors.
    max_length
        Maximum length of a vector, a power of two.
    """
    checked = tuple(
        place
        for place, (index, size) in enumerate(zip(layout.access, layout.shape, strict=True))
        for low, high in (index.bounds(program.extents),)
        if low < 0 or high >= size
    )
    return GlobalOperand(layout, checked, along, vector_length(layout, along, max_length))


def _factor_layouts(
    operand: PackedOperand, program: DerivedProgram, along: str, across: str | None, *, ahead: bool
) -> tuple[GlobalOperand, ...]:
    """Return layouts of a factor whose vectors run along the depth, or across it.

    A factor that is packed ``ahead`` of all calls is stored in instruction tiles. Another one keeps
    its layout if its vectors are the longest possible, along the depth or along the instruction
    axis ``across``, or has its dimensions permuted; if neither has long vectors, tiles are the
    alternative.
    """
    extents = {lane.name: lane.extent for lane in program.instruction_axes}
    max_length = min(ACCESS_BYTES // size_bytes(operand.dtype), extents[along])
    # In tiles the depth of an instruction is contiguous, whatever the original layout is.
    tiles = global_operand(_in_tiles(operand, along), program, along, max_length)
    if ahead:
        return (tiles,)
    places = list(range(len(operand.original_shape)))
    # Any dimension can be made contiguous by moving it to the end.
    orders = [places, *([*(p for p in places if p != last), last] for last in places[:-1])]
    permuted = [
        global_operand(in_original(operand, order), program, along, max_length) for order in orders
    ]
    best = min(permuted, key=lambda layout: (-layout.length, layout.needs_packing))
    # Tiles cost a packing kernel, so they are only an alternative to short vectors.
    layouts = (best,) if best.length == max_length else (best, tiles)
    if best.needs_packing:
        # Launching a kernel that packs may take longer than to gather a small factor's elements.
        layouts += (permuted[0],)
    if across is None or (best.length == max_length and not best.needs_packing):
        return layouts
    widest = ACCESS_BYTES // size_bytes(operand.dtype)
    transposed = global_operand(in_original(operand, places), program, across, widest)
    return (transposed, *layouts) if transposed.length == widest else layouts


def _in_tiles(operand: PackedOperand, along: str) -> PackedOperand:
    """Return the layout of the derived program with the tile's dimension ``along`` innermost.

    The tile's other dimension is next to it.
    """

    def depth_of(number: int) -> tuple[int, int]:
        in_tile = operand.dimensions[number].lane is not None
        depth = 2 if along in operand.access[number].iterators else int(in_tile)
        return depth, number

    order = sorted(range(len(operand.dimensions)), key=depth_of)
    return replace(
        operand,
        dimensions=tuple(operand.dimensions[number] for number in order),
        access=tuple(operand.access[number] for number in order),
    )


def _result_layout(
    output: PackedOperand,
    program: DerivedProgram,
    axes: tuple[str, str, str],
    epilogue: Epilogue | None,
) -> GlobalOperand:
    """Return the result in its original layout, with vectors along columns or rows."""
    layout = in_original(output, range(len(output.original_shape)))
    dtype = output.dtype if epilogue is None else epilogue.dtype
    extents = {lane.name: lane.extent for lane in program.instruction_axes}
    max_length = min(ACCESS_BYTES // size_bytes(dtype), 8)
    # Whichever vectors are longer; columns if they are equal.
    candidates = [
        global_operand(layout, program, axis, min(max_length, extents[axis]))
        for axis in (axes[1], axes[0])
    ]
    result = max(candidates, key=lambda candidate: candidate.length)
    placement = None if epilogue is None else epilogue.placement
    if placement is None:
        return result
    _check_count(output.name, placement.elements)
    *outer, last = placement.strides
    length = result.length
    # Vectors are contiguous in the buffer, and begin at multiples of their length.
    while last != 1 or any(number % length for number in (*outer, placement.offset)):
        if length == 1:
            break
        length //= 2
    return replace(result, length=length if last == 1 else 1, placement=placement)


def by_stride(loops: Sequence[Loop], layout: PackedOperand) -> tuple[Loop, ...]:
    """Sort loops by the distance of their steps in an operand, the largest first."""

    def stride(loop: Loop) -> int:
        return max(
            (
                abs(term.coefficient) * size // term.divisor
                for index, size in zip(layout.access, layout.strides, strict=True)
                for term in index.terms
                if loop.name in term.iterators
            ),
            default=0,
        )

    return tuple(sorted(loops, key=lambda loop: -stride(loop)))


@dataclass(frozen=True)
class Movement:
    """Movement of an index over an aligned group of steps of an axis.

    ``step`` is its increment per step, 0 or 1; ``aligned`` tells whether it is a multiple of the
    group's length at the first step.
    """

    step: int
    aligned: bool


def vector_length(operand: PackedOperand, axis: str, max_length: int) -> int:
    """Return the length of the longest vector along an axis.

    Parameters
    ----------
    operand
        Operand that is accessed.
    axis
        Instruction axis of the vector's elements.
    max_length
        Maximum length, a power of two.

    Returns
    -------
    int
        The largest power of two of steps that are contiguous in memory, begin at a multiple of
        their number, and lie inside the operand all or none.
    """
    length = max_length
    while length > 1 and not _is_contiguous(operand, axis, length):
        length //= 2
    return length


def _is_contiguous(operand: PackedOperand, axis: str, length: int) -> bool:
    # Otherwise rows would begin at places that are no multiples of the vector.
    if operand.shape[-1] % length:
        return False
    *outer, last = (_movement(index, axis, length) for index in operand.access)
    return last == Movement(1, True) and all(
        movement is not None and movement.step == 0 for movement in outer
    )


def _movement(index: IndexExpr, axis: str, length: int) -> Movement | None:
    """Return the movement of an index, None if it is irregular."""
    # Irregular: it moves by another number than 0 or 1, or differently in different groups.
    movements = [_term_movement(term, axis, length) for term in index.terms]
    step, aligned = 0, index.constant % length == 0
    for movement in movements:
        if movement is None:
            return None
        step += movement.step
        aligned = aligned and movement.aligned
    return Movement(step, aligned) if step in (0, 1) else None


def _term_movement(term: IndexTerm, axis: str, length: int) -> Movement | None:
    # A term that does not move must not spoil the alignment of one that does.
    still = Movement(0, term.coefficient % length == 0)
    if axis not in term.iterators:
        return still
    if term.inner is not None:
        inner = _movement(term.inner, axis, length)
        if inner is None or inner.step == 0:
            return None if inner is None else still
        if not inner.aligned:
            return None
    if term.divisor % length == 0:
        # The quotient is the same for all steps of a group.
        return still
    moves = term.divisor == 1 and (term.modulus is None or term.modulus % length == 0)
    return Movement(1, True) if moves and term.coefficient == 1 else None
