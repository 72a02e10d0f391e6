"""Faults of a run as one line each: :func:`fault_text`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Any

from cpembed.accelerator.assembly import issue_text
from cpembed.accelerator.trace import Trace
from cpembed.hw.isa import IMMEDIATE, Channel, IsaInstruction, IsaMemory, MemoryKind


class FaultCode(IntEnum):
    """Kinds of faults, with the numbers of ``native/machine.h``."""

    NEVER_WRITTEN = 1
    ROW_OUTSIDE = 2
    LANE_OUTSIDE = 3
    LANE_FIXED = 4
    ELEMENT_OUTSIDE = 5
    READ_ONLY = 6
    ELEMENT_NEVER_WRITTEN = 7
    BANKS_EQUAL = 8
    REGISTER_UNSET = 9
    SIZE = 10
    OVERLAP = 11
    RACE = 12
    DEADLOCK = 13
    FULL_CHANNEL = 14
    IMMEDIATE = 15
    TWICE = 16


@dataclass(frozen=True, kw_only=True)
class FaultNumbers:
    """Numbers of a fault, as the runtime has them.

    Attributes
    ----------
    code, issue, number : int
        Its :class:`FaultCode`, the instruction of the text, and the number of the execution.
    operand, memory : int
        Numbers of the operand and of the memory (for faults of channels, of the channel); -1 if
        there is none.
    row, lane : int
        The place; ``row`` is also an element, a size or the value of an immediate.
    first, second : int
        Further numbers of the kind of fault.
    other_issue, other_number : int
        Of a race, the other execution.
    """

    code: int
    issue: int
    number: int
    operand: int
    memory: int
    row: int
    lane: int
    first: int
    second: int
    other_issue: int
    other_number: int


RecordOf = Callable[[int], Any]
"""Function from the number of an execution to its record, or None if that is no longer there."""


def fault_text(trace: Trace, fault: FaultNumbers, record: RecordOf) -> str:
    """Describe a fault: the instruction, the operand, the place and the remedy.

    Parameters
    ----------
    trace : Trace
        Executions of the program.
    fault : FaultNumbers
    record : callable
        Function from the number of an execution to its record.
    """
    return _Description(trace, fault, record).text()


@dataclass(frozen=True)
class _Description:
    trace: Trace
    fault: FaultNumbers
    record: RecordOf

    def text(self) -> str:
        code = FaultCode(self.fault.code)
        execution = self._execution(self.fault.issue, self.fault.number)
        return f"{execution}: {self._problems[code]()}"

    @cached_property
    def _problems(self) -> Mapping[FaultCode, Callable[[], str]]:
        return {
            FaultCode.NEVER_WRITTEN: self._never_written,
            FaultCode.ROW_OUTSIDE: self._row_outside,
            FaultCode.LANE_OUTSIDE: self._lane_outside,
            FaultCode.LANE_FIXED: self._lane_fixed,
            FaultCode.ELEMENT_OUTSIDE: self._element_outside,
            FaultCode.READ_ONLY: self._read_only,
            FaultCode.ELEMENT_NEVER_WRITTEN: self._never_written,
            FaultCode.BANKS_EQUAL: self._banks_equal,
            FaultCode.REGISTER_UNSET: self._register_unset,
            FaultCode.SIZE: self._size,
            FaultCode.OVERLAP: self._overlap,
            FaultCode.RACE: self._race,
            FaultCode.DEADLOCK: self._deadlock,
            FaultCode.FULL_CHANNEL: self._full_channel,
            FaultCode.IMMEDIATE: self._immediate,
            FaultCode.TWICE: self._twice,
        }

    # -- what the numbers name --------------------------------------------------------------------

    @property
    def _instruction(self) -> IsaInstruction:
        name = self.trace.issues[self.fault.issue].instruction
        return self.trace.program.machine.instructions[name]

    def _operand_name(self, number: int) -> str:
        return self._instruction.computation.operands[number].name

    @property
    def _name(self) -> str:
        return self._operand_name(self.fault.operand)

    @property
    def _memory(self) -> IsaMemory:
        return list(self.trace.program.machine.memories.values())[self.fault.memory]

    @property
    def _tensor(self) -> str:
        return self.trace.tensors[self.fault.second]

    @property
    def _channel(self) -> Channel:
        return self.trace.program.machine.channels[self.fault.memory]

    def _execution(self, issue: int, number: int) -> str:
        numbers = self.record(number)
        instruction = self.trace.issues[issue]
        place = instruction.place
        if numbers is not None:
            instruction = self.trace.issue_at(issue, numbers)
        return f"{place}instruction {number} ({issue_text(instruction, self.trace.program)})"

    @property
    def _place(self) -> str:
        match self._memory.kind:
            case MemoryKind.REGISTER:
                return f"register {self._memory.name}"
            case MemoryKind.ROWS:
                return f"row {self.fault.row}, lane {self.fault.lane}, of {self._memory.name}"
            case MemoryKind.MAIN:
                return f"element {self.fault.row} of tensor {self._tensor}"

    # -- problems ---------------------------------------------------------------------------------

    def _never_written(self) -> str:
        return (
            f"operand {self._name} reads {self._place}, which was never written: load or compute "
            "it before"
        )

    def _row_outside(self) -> str:
        return (
            f"operand {self._name} reaches row {self.fault.row} of {self._memory.name}, which has "
            f"rows 0 to {self._memory.rows - 1}"
        )

    def _lane_outside(self) -> str:
        return (
            f"operand {self._name} reaches lane {self.fault.lane} of row {self.fault.row} of "
            f"{self._memory.name}, whose rows have {self.fault.first} lanes of "
            f"{self._instruction.places[self._name].dtype}"
        )

    def _lane_fixed(self) -> str:
        return (
            f"operand {self._name} begins at lane {self.fault.lane} of {self._memory.name}: it can "
            "only begin at lane 0"
        )

    def _element_outside(self) -> str:
        return (
            f"operand {self._name} reaches element {self.fault.row} of tensor {self._tensor}, "
            f"which has elements 0 to {self.fault.first - 1}"
        )

    def _read_only(self) -> str:
        role = self.trace.program.tensors[self._tensor].role
        article = "an" if role == "input" else "a"
        return f"operand {self._name} writes tensor {self._tensor}, which is {article} {role}"

    def _banks_equal(self) -> str:
        return (
            f"operands {self._name} (row {self.fault.row}) and "
            f"{self._operand_name(self.fault.first)} (row {self.fault.second}) of "
            f"{self._memory.name} lie in the same bank of {self._memory.bank_rows} rows: they have "
            "to lie in different ones"
        )

    def _register_unset(self) -> str:
        return (
            f"operand {self._name} reads register {self._memory.name}, which was never set: set it "
            "before"
        )

    def _size(self) -> str:
        fields = self.trace.fields[self._instruction.name]
        axis = next(a for a, position in fields.sizes.items() if position == self.fault.first)
        (described,) = (a for a in self._instruction.axes if a.name == axis)
        allowed = described.describe_allowed()
        return f"size {axis}={self.fault.row} is not allowed: {axis} is {allowed}"

    def _overlap(self) -> str:
        in_place = ", or in exactly the same place" * (self._name in self._instruction.in_place)
        return (
            f"operand {self._name} lies partly where {self._operand_name(self.fault.first)} lies, "
            f"in {self._memory.name}: let them lie apart{in_place}"
        )

    def _race(self) -> str:
        verb = "writes" if self.fault.first else "reads"
        execution = self._execution(self.fault.other_issue, self.fault.other_number)
        return (
            f"operand {self._name} {verb} {self._place}, and nothing orders that with {execution}: "
            "signal the end of one of them to the other"
        )

    def _deadlock(self) -> str:
        return (
            f"deadlock: it waits for channel {self._channel.name}, on which no signal is left and "
            "none will come"
        )

    def _full_channel(self) -> str:
        return (
            f"it signals channel {self._channel.name}, which may be full: {self._channel.depth} "
            "signals fit, and no wait for the first of them is certain to have ended"
        )

    def _immediate(self) -> str:
        dtype = self._instruction.places[self._name].dtype
        return f"{IMMEDIATE} {self._name} has the value {self.fault.row}, which is no {dtype}"

    def _twice(self) -> str:
        return (
            f"operand {self._name} writes {self._place} twice: give it strides that keep elements "
            "apart"
        )
