"""An instruction of a program's text with what the description and its claims say of it.

Whatever they name has to be there: otherwise an :class:`ObligationError` says what is missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from cpembed.accelerator.program import Address, Content, Issue, Loop
from cpembed.accelerator.proof.result import ObligationError
from cpembed.accelerator.proof.tensors import Tensors
from cpembed.accelerator.proof.terms import (
    Number,
    stored_number,
)
from cpembed.hw.isa import IMMEDIATE, IsaInstruction, MemoryKind, OperandPlace
from cpembed.ir.arithmetic import sums_floats
from cpembed.ir.computation import Assignment
from cpembed.ir.dtypes import is_integer
from cpembed.ir.expression import Access
from cpembed.ir.index import IndexExpr


@dataclass(frozen=True)
class IssueFacts:
    """An instruction of the text with what the description says of it."""

    tensors: Tensors
    loops: tuple[Loop, ...]
    issue: Issue

    @cached_property
    def instruction(self) -> IsaInstruction:
        instructions = self.tensors.program.machine.instructions
        if self.issue.instruction not in instructions:
            raise ObligationError(f"{self.issue.instruction} is no instruction of the machine")
        return instructions[self.issue.instruction]

    @cached_property
    def text(self) -> str:
        """Name of the instruction, and the note that says what it does."""
        note = f" ({self.issue.note})" if self.issue.note else ""
        return f"{self.issue.instruction}{note}"

    @cached_property
    def assignment(self) -> Assignment:
        if len(self.instruction.computation.statements) != 1:
            raise ObligationError(
                f"{self.text} has several statements, of which nothing can be claimed"
            )
        return self.instruction.computation.statement

    @property
    def is_wide(self) -> bool:
        """True if it sums floats, which is defined in float64."""
        return sums_floats(self.assignment, self.dtype(self.output))

    @property
    def output(self) -> str:
        return self.assignment.store.operand

    def place(self, operand: str) -> OperandPlace:
        return self.instruction.places[operand]

    def dtype(self, operand: str) -> str:
        """Return the element type of an operand as memory holds it."""
        return self.place(operand).dtype

    def is_immediate(self, operand: str) -> bool:
        return self.place(operand).memory == IMMEDIATE

    def is_register(self, operand: str) -> bool:
        memory = self.tensors.program.machine.memories.get(self.place(operand).memory)
        return memory is not None and memory.kind is MemoryKind.REGISTER

    @cached_property
    def element_reads(self) -> tuple[Access, ...]:
        """Reads of registers and immediates that are claimed to hold an element of a constant.

        Constants whose elements are all equal are numbers instead.
        """
        if self.issue.meaning is None:
            return ()
        constants, uniform = self.tensors.specification.constants, self.tensors.uniform
        reads: list[Access] = []
        for read in dict.fromkeys(self.assignment.reads):
            content = self.content(read.operand)
            is_scalar = self.is_immediate(read.operand) or self.is_register(read.operand)
            if not is_scalar or content is None or content.tensor in uniform:
                continue
            if content.tensor in constants:
                reads.append(read)
        return tuple(reads)

    def selection(self) -> Address | None:
        """Return the immediate of several numbers that the instruction writes to a register."""
        value = self.assignment.value
        if not (isinstance(value, Access) and self.is_register(self.output)):
            return None
        address = self.issue.operands[value.operand]
        return address if self.is_immediate(value.operand) and address.table else None

    def content(self, operand: str) -> Content | None:
        content = self.issue.contents.get(operand)
        if content is not None:
            shape = self.tensors.shape(content.tensor)
            if len(shape) != len(content.index):
                raise ObligationError(
                    f"{self.text}: {operand} is claimed to hold {content.tensor} with "
                    f"{len(content.index)} indices, it has {len(shape)} dimensions"
                )
        return content

    def element(self, access: Access) -> tuple[IndexExpr, ...] | None:
        """Return the index of the tensor's element that a read or store is claimed to touch."""
        content = self.content(access.operand)
        if content is None:
            return None
        dimensions = self.place(access.operand).dimensions
        values = dict(zip(dimensions, access.index, strict=True))
        return tuple(index.substitute(values) for index in content.index)

    @cached_property
    def points(self) -> Mapping[str, IndexExpr]:
        """Value of each axis of the statement over the loops and the instruction's axes."""
        meaning = self.issue.meaning
        if meaning is None:
            return {}
        extents = self.tensors.statement(meaning.statement).computation.extents
        if set(meaning.points) != set(extents):
            raise ObligationError(
                f"{self.text}: points name {sorted(meaning.points)}, not the "
                f"statement's axes {sorted(extents)}"
            )
        return meaning.points

    def point_element(self, access: Access) -> tuple[IndexExpr, ...]:
        """Return the index that a statement's access has at the claimed points."""
        return tuple(index.substitute(self.points) for index in access.index)

    def check(self) -> None:
        """Check names, without which index expressions would be ambiguous."""
        inner = {axis.name for axis in self.instruction.axes}
        for place in self.instruction.places.values():
            inner.update(place.dimensions)
        names = [loop.name for loop in self.loops]
        for name in names:
            if name in inner or names.count(name) > 1:
                raise ObligationError(
                    f"{self.text}: loop {name} has the name of another loop, axis or dimension: "
                    "rename it"
                )
        self._check_claims(set(names))
        for axis in self.instruction.size_arguments:
            if not self.issue.sizes.get(axis.name):
                raise ObligationError(f"{self.text}: axis {axis.name} has no size")
        for operand in self.instruction.computation.operands:
            if operand.name not in self.issue.operands:
                raise ObligationError(f"{self.text}: operand {operand.name} has no address")

    def _check_claims(self, loops: set[str]) -> None:
        """Check that claims are over the loops and what is inside of the instruction."""
        for operand, content in self.issue.contents.items():
            if operand not in self.instruction.places:
                raise ObligationError(f"{self.text} has no operand {operand}, of which it claims")
            self._check_iterators(content.index, loops.union(self.place(operand).dimensions))
        axes = {axis.name for axis in self.instruction.axes}
        self._check_iterators(tuple(self.points.values()), loops | axes)

    def _check_iterators(self, indices: tuple[IndexExpr, ...], names: set[str]) -> None:
        for index in indices:
            unbound = [name for name in index.iterators if name not in names]
            if unbound:
                raise ObligationError(
                    f"{self.text}: {index} of a claim names {unbound[0]}, which is neither a loop "
                    "around the instruction nor inside of it"
                )

    @cached_property
    def registers_read(self) -> frozenset[str]:
        """Names of the registers that hold operands, or strides of them."""
        machine = self.tensors.program.machine
        inputs = (self.place(name) for name in self.instruction.inputs)
        registers = {place.memory for place in inputs}
        for place in self.instruction.places.values():
            registers.update(str(stride) for stride in place.strides.values())
        memories = (machine.memories[name] for name in registers if name in machine.memories)
        return frozenset(m.name for m in memories if m.kind is MemoryKind.REGISTER)

    def held_number(self, operand: str, value: Number) -> Number:
        """Return an immediate as an operand holds it."""
        dtype = self.dtype(operand)
        number = stored_number(value, dtype)
        if is_integer(dtype) and number != value:
            raise ObligationError(f"{self.text}: immediate {operand} is {value}, no {dtype}")
        return number

    @property
    def effective_dtypes(self) -> dict[str, str]:
        """Type of each operand's values: that of the claimed tensor if memory can hold it."""
        dtypes = {name: place.dtype for name, place in self.instruction.places.items()}
        for operand in self.instruction.inputs:
            content = self.content(operand)
            if content is not None:
                dtype = self.tensors.dtype(content.tensor)
                if is_integer(dtype) != is_integer(dtypes[operand]):
                    raise ObligationError(
                        f"{self.text}: {operand} is {dtypes[operand]} and cannot hold "
                        f"{content.tensor}, which is {dtype}"
                    )
                dtypes[operand] = dtype
        return dtypes
