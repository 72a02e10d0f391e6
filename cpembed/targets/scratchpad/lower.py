"""Derived programs as products of boxes: axes of the workload, and operands in main memory.

An execution of the instruction's granule covers a box of the workload, and an execution of a
primitive of any size a box of granules. So a tile is a box too, and what it touches of an operand
follows from the operand's indices: a box again, which contains once what windows share.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from cpembed.codegen.packing import packed_before
from cpembed.errors import LoweringError
from cpembed.ir.computation import AxisKind, Computation
from cpembed.ir.dtypes import size_bytes
from cpembed.ir.expression import Cast, Expression, Operation
from cpembed.ir.index import IndexExpr
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

    def held(self, points: int) -> int:
        """Return how many of a tile's points each PE holds, including those that complete the last
        granule.
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
        return size_bytes(self.dtype)

    @cached_property
    def axes(self) -> tuple[str, ...]:
        """Workload axes that move it."""
        return tuple(dict.fromkeys(name for index in self.index for name in index.iterators))

    @cached_property
    def strides(self) -> tuple[int, ...]:
        """Bytes between neighbours along each dimension."""
        sizes = self.shape
        return tuple(self.element_bytes * math.prod(sizes[k + 1 :]) for k in range(len(sizes)))


@dataclass(frozen=True, kw_only=True)
class BoxProduct:
    """``C += A * B`` over boxes: axes by name in the workload's order, operands with the output
    last, and the instruction's axes of A and C, of B and C, of A and B (``lanes``).
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
        raise LoweringError(f"{name} has indices that are no sums of axes: its tiles are no boxes")
    is_output = name == workload.output.name
    if is_output and any(len(index.iterators) > 1 for index in access.index):
        raise LoweringError(f"{name} adds up what several points store; tiles would overlap")
    return Operand(
        name=name,
        tensor=operand.tensor,
        role=role,
        dtype=operand.dtype,
        shape=operand.shape,
        index=access.index,
        memory=machine.held_in[role],
        cut=machine.cut.get(role),
        is_output=is_output,
        constant=operand.tensor in constant,
    )


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
                f"{' x '.join(str(d.count) for d in digits)} into {machine.parts(lane) // left}"
            )
        for number, digit in enumerate(digits):
            if digit.axis != name:
                continue
            if digit.stride != 1:
                raise LoweringError(f"{lane} walks {name} in steps of {digit.stride}: no box")
            weight = math.prod(parts[:number])
            return Axis(
                name, axis.extent, reduction, lane,
                granule=digit.count, parts=parts[number], weight=weight,
            )  # fmt: skip
    return Axis(name, axis.extent, reduction)


def _require_harmless_padding(product: BoxProduct) -> None:
    """Raise unless the padding of each reduction axis multiplies zeros: the axis is the only index
    of a factor's dimension, outside of which the factor is zero.
    """
    for axis in product.axes.values():
        if not axis.reduction or axis.granule == 1 or axis.extent % axis.granule == 0:
            continue
        harmless = any(
            index.single_iterator == axis.name and size == axis.extent
            for operand in product.operands[:2]
            for index, size in zip(operand.index, operand.shape, strict=True)
        )
        if not harmless:
            raise LoweringError(
                f"{axis.name} is padded to a multiple of {axis.granule}: no factor is zero there"
            )
