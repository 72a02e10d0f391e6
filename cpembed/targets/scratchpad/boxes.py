"""Derived programs as products of boxes, and the axes that one execution of a primitive covers.

A box is the part of an operand that a processing element (PE) holds of a tile. It keeps the order
of its operand's dimensions, so what is contiguous in main memory stays contiguous; the leading
dimensions of a call are distances in the box.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from cpembed.codegen.packing import packed_before
from cpembed.errors import LoweringError
from cpembed.ir.computation import AxisKind, Computation
from cpembed.ir.dtypes import per_byte, size_bytes
from cpembed.ir.expression import Cast, Expression, Operation
from cpembed.ir.index import IndexExpr, row_major_strides
from cpembed.targets.scratchpad.machine import ScratchpadMachine
from cpembed.transform.program import DerivedProgram


@dataclass(frozen=True)
class Axis:
    """An axis of the workload."""

    name: str
    extent: int
    reduction: bool
    lane: str | None = None
    """Instruction axis that covers it; None if only tiles do."""
    granule: int = 1
    """Number of its points in a granule."""
    parts: int = 1
    """Number of parts that the mesh cuts a tile into."""
    weight: int = 1
    """Divisor of a PE's place along the lane: its part is ``place // weight % parts``."""

    @property
    def grain(self) -> int:
        """Number of points of a granule in one PE."""
        return self.granule // self.parts

    def points_per_pe(self, points: int) -> int:
        """Return how many of a tile's points each PE holds.

        Those that complete the last granule count too.
        """
        return -(-points // self.granule) * self.grain


@dataclass(frozen=True, kw_only=True)
class Operand:
    """An operand in main memory."""

    name: str
    """Operand of the workload."""
    tensor: str
    role: str
    """Operand of the instruction."""
    dtype: str
    """Type of its elements, in main memory and in scratchpads."""
    shape: tuple[int, ...]
    index: tuple[IndexExpr, ...]
    """Index of each dimension over the workload's axes."""
    memory: int
    """Number of its scratchpad."""
    cut: tuple[str, str] | None
    """Instruction axes that the mesh's rows and columns cut."""
    is_output: bool
    constant: bool
    """True if it may be packed before the kernel runs."""

    @property
    def element_bytes(self) -> int:
        """Bytes of an element in an array of numpy, and where it is emulated."""
        return size_bytes(self.dtype)

    @property
    def per_byte(self) -> int:
        """Number of elements that share a byte of the machine's memories."""
        return per_byte(self.dtype)

    def bytes_of(self, elements: Any) -> Any:
        """Return the bytes of the machine that so many elements take."""
        if self.per_byte == 1:
            return elements * self.element_bytes
        return -(-elements // self.per_byte)

    @cached_property
    def axes(self) -> tuple[str, ...]:
        """Workload axes that move it."""
        return tuple(dict.fromkeys(name for index in self.index for name in index.iterators))

    @cached_property
    def strides(self) -> tuple[int, ...]:
        """Bytes between neighbours along each dimension."""
        sizes = self.shape
        return tuple(self.element_bytes * step for step in row_major_strides(sizes))


@dataclass(frozen=True, kw_only=True)
class BoxProduct:
    """``C += A * B`` over boxes.

    ``axes`` are in the workload's order, the output is the last of the ``operands``, and ``lanes``
    are the instruction's axes of A and C, of B and C, of A and B.
    """

    program: DerivedProgram
    machine: ScratchpadMachine
    axes: Mapping[str, Axis]
    operands: tuple[Operand, Operand, Operand]
    lanes: tuple[str, str, str]

    @property
    def workload(self) -> Computation:
        return self.program.workload

    @property
    def output(self) -> Operand:
        return self.operands[2]

    def axes_of_lane(self, lane: str) -> tuple[Axis, ...]:
        """Return the axes that move the same operands as an instruction axis."""
        return tuple(a for a in self.axes.values() if self.lane_of(a.name) == lane)

    def lane_of(self, axis: str) -> str | None:
        """Return the instruction axis that moves the same operands; None if ``axis`` moves all."""
        moved = [axis in operand.axes for operand in self.operands]
        kinds = {(True, False, True): 0, (False, True, True): 1, (True, True, False): 2}
        number = kinds.get((moved[0], moved[1], moved[2]))
        return None if number is None else self.lanes[number]


def lower(program: DerivedProgram, machine: ScratchpadMachine) -> BoxProduct:
    """Lower a derived program.

    Raises :class:`LoweringError` for a program that is not a sum of products of two operands, whose
    boxes have gaps, or whose padding could reach a result.
    """
    workload = program.workload
    # A digit of a fused axis ends in the middle of a row, so the points of a tile are no product of
    # ranges.
    if program.embedding.flattened or program.overlaps:
        raise LoweringError(f"{workload.name}: fused axes are no boxes; use --constraints boxes")
    _require_products(workload)
    roles = [o.name for o in program.instruction.computation.operands]
    constant = packed_before(program.unfused)
    a, b, c = (_operand(program, machine, role, constant) for role in roles)
    product = BoxProduct(
        program=program,
        machine=machine,
        axes={axis.name: _axis(program, machine, axis.name) for axis in workload.axes},
        operands=(a, b, c),
        lanes=machine.lanes,
    )
    _require_harmless_padding(product)
    return product


def _require_products(workload: Computation) -> None:
    def factors(node: Expression) -> int:
        if isinstance(node, Cast):
            return factors(node.arg)
        if isinstance(node, Operation):
            # Anything but a product has more than two factors.
            return sum(map(factors, node.args)) if node.op == "mul" else 99
        return 1

    statements = workload.statements
    single = len(statements) == 1 and len(workload.inputs) == 2
    if not single or statements[0].reduction != "add" or factors(statements[0].value) != 2:
        raise LoweringError(
            f"{workload.name} is no sum of products of two operands: solve and explain take it"
        )


def _operand(
    program: DerivedProgram, machine: ScratchpadMachine, role: str, constant: list[str]
) -> Operand:
    workload, name = program.workload, program.roles[role]
    operand, access = workload.operand(name), workload.access(name)
    if any(not index.is_affine for index in access.index):
        raise LoweringError(
            f"{name} has indices that are no sums of axes, so that its tiles are no boxes: index "
            "it by sums of axes times integers"
        )
    is_output = name == workload.output.name
    if is_output and any(len(index.iterators) > 1 for index in access.index):
        raise LoweringError(
            f"{name} adds up what several points store, so that tiles would overlap: index each of "
            "its dimensions by one axis"
        )
    if per_byte(operand.dtype) > 1 and not _has_whole_bytes(program, role):
        raise LoweringError(
            f"{per_byte(operand.dtype)} elements of {name} share a byte, which a transfer moves "
            f"whole: its last dimension has to be one axis of an even extent that {role} walks in "
            "even numbers of points"
        )
    return Operand(
        name=name,
        tensor=operand.tensor,
        role=role,
        dtype=operand.dtype,
        shape=operand.shape,
        index=access.index,
        memory=machine.memory_of[role],
        cut=machine.cut.get(role),
        is_output=is_output,
        constant=operand.tensor in constant,
    )


def _has_whole_bytes(program: DerivedProgram, role: str) -> bool:
    """True if boxes of an operand begin and end with bytes of several elements."""
    operand = program.workload.operand(program.roles[role])
    index, count = program.workload.access(operand.name).index, per_byte(operand.dtype)
    axis = index[-1].single_iterator if index else None
    granules = {
        digit.axis: digit.count for digits in program.embedding.digits.values() for digit in digits
    }
    granule = granules.get(axis or "", 1)
    return axis is not None and granule % count == operand.shape[-1] % count == 0


def _axis(program: DerivedProgram, machine: ScratchpadMachine, name: str) -> Axis:
    axis = next(a for a in program.workload.axes if a.name == name)
    reduction = axis.kind is AxisKind.REDUCTION
    for lane, digits in program.embedding.digits.items():
        # The mesh cuts the outer digits first, so that neighbours stay in a PE.
        left, parts = machine.parts(lane), list[int]()
        for digit in reversed(digits):
            parts.insert(0, math.gcd(left, digit.count))
            left //= parts[0]
        if left != 1:
            raise LoweringError(
                f"{lane}: the mesh cuts it into {machine.parts(lane)} parts, its digits "
                f"{' x '.join(str(d.count) for d in digits)} into "
                f"{machine.parts(lane) // left}: give its axes extents in multiples of "
                f"{machine.parts(lane)}"
            )
        for number, digit in enumerate(digits):
            if digit.axis != name:
                continue
            if digit.stride != 1:
                raise LoweringError(
                    f"{lane} walks {name} in steps of {digit.stride}, which is no box: use "
                    "--constraints boxes"
                )
            weight = math.prod(parts[:number])
            return Axis(
                name, axis.extent, reduction, lane,
                granule=digit.count, parts=parts[number], weight=weight,
            )  # fmt: skip
    return Axis(name, axis.extent, reduction)


def _require_harmless_padding(product: BoxProduct) -> None:
    """Raise :class:`LoweringError` unless the padding of each reduction axis multiplies zeros."""
    for axis in product.axes.values():
        if not axis.reduction or axis.granule == 1 or axis.extent % axis.granule == 0:
            continue
        # The axis is the only index of a factor's dimension, outside of which the factor is zero.
        harmless = any(
            index.single_iterator == axis.name and size == axis.extent
            for operand in product.operands[:2]
            for index, size in zip(operand.index, operand.shape, strict=True)
        )
        if not harmless:
            raise LoweringError(
                f"{axis.name} is padded to a multiple of {axis.granule}, where no factor is zero: "
                f"give it an extent in multiples of {axis.granule}"
            )


@dataclass(frozen=True, kw_only=True)
class BoxDimension:
    """A dimension of a box."""

    walks: Mapping[str, int]
    """Coefficients of the axes in the number of places, ``1 + sum(coefficient * (points - 1))``."""
    starts: Mapping[str, int]
    """Factors of the first points of a PE's part in the operand's dimension: place u of the box is
    its place ``sum(factor * start) + constant + step * u``."""
    constant: int
    step: int
    size: int
    """Size of the operand's dimension."""
    stride_bytes: int
    """Bytes between neighbouring places in main memory."""
    number: int = 0
    """Number of the operand's dimension."""
    blocked: int = 0
    """Number of points of a block, if the places of this dimension are blocks of an axis."""
    within: int = 0
    """Number of places, if this dimension is that of one axis within a block."""
    room: int = 0
    """Number of places after which the next row of the scratchpad begins; 0 if it is dense."""

    def places(self, pe_points: Mapping[str, Any]) -> Any:
        """Return the number of places for the points that a PE holds by axis, or arrays of them."""
        if self.within:
            return self.within
        places = 1 + sum(factor * (pe_points[name] - 1) for name, factor in self.walks.items())
        return places // self.blocked if self.blocked else places


@dataclass(frozen=True)
class Box:
    """The part of an operand that a PE holds for a tile, dimensions outermost first.

    ``tiled`` if main memory contains it in this form already, box after box.
    """

    operand: Operand
    dimensions: tuple[BoxDimension, ...]
    tiled: bool

    def places(self, pe_points: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(dimension.places(pe_points) for dimension in self.dimensions)

    def elements(self, pe_points: Mapping[str, Any]) -> Any:
        """Return the number of elements of the scratchpad that the box takes."""
        return math.prod(d.room or d.places(pe_points) for d in self.dimensions)

    def walk(self, axis: str) -> tuple[tuple[int, int], ...]:
        """Return the dimensions that an axis walks, within a block, with the places of its step."""
        return tuple(
            (number, dimension.walks[axis])
            for number, dimension in enumerate(self.dimensions)
            if axis in dimension.walks and not dimension.blocked
        )

    def block_dimension(self, axis: str) -> int | None:
        """Return the dimension whose places are blocks of an axis; None if it has none."""
        for number, dimension in enumerate(self.dimensions):
            if dimension.blocked and axis in dimension.walks:
                return number
        return None

    def stride(self, axis: str, places: Sequence[int]) -> int:
        """Return the elements between neighbours along an axis, in a box of so many places."""
        sizes = [d.room or size for d, size in zip(self.dimensions, places, strict=True)]
        return sum(factor * math.prod(sizes[number + 1 :]) for number, factor in self.walk(axis))

    def _unit_dimension(self, axis: str) -> int | None:
        """Return the only dimension that an axis walks, if it does so place by place."""
        walk = self.walk(axis)
        return walk[0][0] if len(walk) == 1 and walk[0][1] == 1 else None

    def own_dimension(self, axis: str) -> int | None:
        """Return the dimension that only this axis walks, place by place; None if there is none."""
        number = self._unit_dimension(axis)
        if number is None or len(self.dimensions[number].walks) != 1:
            return None
        return number

    def follows(self, outer: str, inner: str) -> bool:
        """True if one index walks both axes, all of the inner one in each step of the outer."""
        first, second = self.own_dimension(outer), self.own_dimension(inner)
        if first is None or second is None or first >= second:
            return False
        return not any(dimension.walks for dimension in self.dimensions[first + 1 : second])

    def is_unit(self, axis: str) -> bool:
        """True if neighbours along an axis are neighbours in the box."""
        number = self._unit_dimension(axis)
        return number is not None and not any(d.walks for d in self.dimensions[number + 1 :])
