"""A derived program as a product of boxes: axes of the workload, and operands as they lie in main
memory.

An execution of the instruction's granule covers a box of the workload; an execution of a primitive
of any size covers a box of granules. So a tile is a box too, of so many points of each axis, and
what it touches of an operand follows from the operand's own indices: a box again, in which what
windows share is there once.
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
    """An axis of the workload.

    ``lane`` is the instruction axis that walks it, None where only tiles do; a granule has
    ``granule`` points of it. The mesh cuts a tile of it into ``parts``, whose numbers are
    ``(place // weight) % parts`` of a PE's place along the instruction axis.
    """

    name: str
    extent: int
    reduction: bool
    lane: str | None = None
    granule: int = 1
    parts: int = 1
    weight: int = 1

    @property
    def grain(self) -> int:
        """Points of a granule in one PE."""
        return self.granule // self.parts

    def held(self, points: int) -> int:
        """Points of a tile of so many that each PE holds, the last granule filled up."""
        return -(-points // self.granule) * self.grain


@dataclass(frozen=True)
class Operand:
    """An operand in main memory: ``index`` over the workload's axes for each of its dimensions.

    ``role`` is the instruction's operand; ``memory`` the number of its scratchpad; ``cut`` the
    instruction axes that the mesh's rows and columns cut. ``dtype`` is that of its elements
    everywhere. ``constant``: it may be laid out before the kernel runs.
    """

    name: str
    tensor: str
    role: str
    dtype: str
    shape: tuple[int, ...]
    index: tuple[IndexExpr, ...]
    memory: int
    cut: tuple[str, str] | None
    is_output: bool
    constant: bool

    @property
    def element_bytes(self) -> int:
        return size_bytes(self.dtype)

    @cached_property
    def axes(self) -> tuple[str, ...]:
        """Workload axes that move it."""
        return tuple(dict.fromkeys(name for index in self.index for name in index.iterators))

    @cached_property
    def strides(self) -> tuple[int, ...]:
        """Bytes between neighbours of each dimension."""
        sizes = self.shape
        return tuple(self.element_bytes * math.prod(sizes[k + 1 :]) for k in range(len(sizes)))


@dataclass(frozen=True)
class BoxProduct:
    """``C += A * B`` over boxes: axes by name, in the workload's order, and operands, the output
    last. ``lanes`` are the instruction's axes: those of A and C, of B and C, of A and B."""

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

    def of_lane(self, lane: str) -> tuple[Axis, ...]:
        """Axes that move the same operands as an instruction axis does."""
        return tuple(a for a in self.axes.values() if self.class_of(a.name) == lane)

    def class_of(self, axis: str) -> str | None:
        """The instruction axis that moves the same operands; None for one that moves all."""
        moved = [axis in operand.axes for operand in self.operands]
        kinds = {(True, False, True): 0, (False, True, True): 1, (True, True, False): 2}
        number = kinds.get((moved[0], moved[1], moved[2]))
        return None if number is None else self.lanes[number]


def lower(program: DerivedProgram, machine: ScratchpadMachine) -> BoxProduct:
    """Raises :class:`LoweringError` for a program that is no sum of products of two operands, whose
    boxes have gaps, or whose padding could reach a result."""
    workload = program.workload
    if program.embedding.flattened or program.overlaps:
        raise LoweringError(f"{workload.name}: fused axes are no boxes; use --constraints boxes")
    _require_products(workload)
    names = [o.name for o in program.instruction.computation.operands]
    known = packed_before(program.unfused)
    operands = [_operand(program, machine, role, known) for role in names]
    axes = {axis.name: _axis(program, machine, axis.name) for axis in workload.axes}
    product = BoxProduct(
        program, machine, axes, (operands[0], operands[1], operands[2]), machine.lanes
    )
    _require_harmless_padding(product)
    return product


def _require_products(workload: Computation) -> None:
    def factors(node: Expression) -> int:
        if isinstance(node, Cast):
            return factors(node.arg)
        if isinstance(node, Operation):
            return sum(map(factors, node.args)) if node.op == "mul" else 99
        return 1

    statements = workload.statements
    right = len(statements) == 1 and len(workload.inputs) == 2
    if not right or statements[0].reduction != "add" or factors(statements[0].value) != 2:
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
    output = name == workload.output.name
    if output and any(len(index.iterators) > 1 for index in access.index):
        raise LoweringError(f"{name} adds up what several points store; tiles would overlap")
    return Operand(
        name,
        operand.tensor,
        role,
        operand.dtype,
        operand.shape,
        access.index,
        machine.held_in[role],
        machine.cut.get(role),
        output,
        operand.tensor in constant,
    )


def _axis(program: DerivedProgram, machine: ScratchpadMachine, name: str) -> Axis:
    """Of the digits of an instruction axis, the outer ones are cut first: neighbours stay in a PE.
    A part's weight in a PE's place is the number of parts of the digits inside of it."""
    workload = program.workload
    axis = next(a for a in workload.axes if a.name == name)
    reduction = axis.kind is AxisKind.REDUCTION
    for lane, digits in program.embedding.digits.items():
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
            return Axis(name, axis.extent, reduction, lane, digit.count, parts[number], weight)
    return Axis(name, axis.extent, reduction)


def _require_harmless_padding(product: BoxProduct) -> None:
    """A reduction axis that is filled up multiplies zeros: it alone indexes a whole dimension of a
    factor, outside of which there are zeros."""
    for axis in product.axes.values():
        if not axis.reduction or axis.granule == 1 or axis.extent % axis.granule == 0:
            continue
        alone = any(
            index.single_iterator == axis.name and size == axis.extent
            for operand in product.operands[:2]
            for index, size in zip(operand.index, operand.shape, strict=True)
        )
        if not alone:
            raise LoweringError(
                f"{axis.name} is padded to a multiple of {axis.granule}: no factor is zero there"
            )
