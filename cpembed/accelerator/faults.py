"""Faults of a run as one line each: :func:`fault_text`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cpembed.accelerator.assembly import issue_text
from cpembed.accelerator.trace import Trace
from cpembed.hw.isa import IMMEDIATE, MemoryKind


def fault_text(trace: Trace, fault: Any, record: Callable[[int], Any]) -> str:
    """Describe a fault.

    Parameters
    ----------
    trace
        Executions of the program.
    fault
        Numbers of the runtime (``native/machine.h``).
    record
        Function from the number of an execution to its record.
    """
    machine = trace.program.machine
    instruction = machine.instructions[trace.issues[fault.issue].instruction]
    text = _execution_text(trace, fault.issue, fault.number, record)
    operands = [operand.name for operand in instruction.computation.operands]
    name = operands[fault.operand] if fault.operand >= 0 else ""
    memories = list(machine.memories)
    memory = memories[fault.memory] if fault.memory >= 0 else IMMEDIATE
    operand = f"operand {name}" if name else ""
    place = _place(trace, fault, memory)
    match fault.code:
        case 1 | 7:
            problem = f"{operand} reads {place}, which was never written: load or compute it before"
        case 2:
            rows = machine.memories[memory].rows
            problem = f"{operand} reaches row {fault.row} of {memory}, which has rows 0 to {rows - 1}"
        case 3:
            problem = (
                f"{operand} reaches lane {fault.lane} of row {fault.row} of {memory}, whose rows "
                f"have {fault.first} lanes of {instruction.places[name].dtype}"
            )
        case 4:
            problem = f"{operand} begins at lane {fault.lane} of {memory}: it can only begin at lane 0"
        case 5:
            tensor = trace.tensors[fault.second]
            problem = (
                f"{operand} reaches element {fault.row} of tensor {tensor}, which has elements "
                f"0 to {fault.first - 1}"
            )
        case 6:
            tensor = trace.tensors[fault.second]
            role = trace.program.tensors[tensor].role
            article = "an" if role == "input" else "a"
            problem = f"{operand} writes tensor {tensor}, which is {article} {role}"
        case 8:
            other = operands[fault.first]
            bank = machine.memories[memory].bank_rows
            problem = (
                f"operands {name} (row {fault.row}) and {other} (row {fault.second}) of {memory} "
                f"lie in the same bank {fault.row // bank}: they have to lie in different ones"
            )
        case 9:
            problem = f"{operand} reads register {memory}, which was never set: set it before"
        case 10:
            problem = _size_problem(trace, fault, instruction.name)
        case 11:
            other = operands[fault.first]
            problem = (
                f"operand {name} lies partly where {other} lies, in {memory}: let them lie apart"
                + (", or in exactly the same place" if name in instruction.in_place else "")
            )
        case 12:
            verb = "writes" if fault.first else "reads"
            other = _execution_text(trace, fault.other_issue, fault.other_number, record)
            problem = (
                f"{operand} {verb} {place}, and nothing orders that with {other}: signal the end "
                "of one of them to the other"
            )
        case 13:
            channel = machine.channels[fault.memory].name
            problem = (
                f"deadlock: it waits for channel {channel}, on which no signal is left and none "
                "will come"
            )
        case 14:
            channel = machine.channels[fault.memory]
            problem = (
                f"it signals channel {channel.name}, which may be full: {channel.depth} signals fit, "
                "and no wait for the first of them is certain to have ended"
            )
        case 16:
            problem = f"{operand} writes {place} twice: give it strides that keep elements apart"
        case _:
            place_type = instruction.places[name].dtype
            problem = f"{operand} has the value {fault.row}, which is no {place_type}"
    return f"{text}: {problem}"


def _execution_text(trace: Trace, issue: int, number: int, record: Callable[[int], Any]) -> str:
    numbers = record(number)
    instruction = trace.issues[issue] if numbers is None else trace.issue_at(issue, numbers)
    return f"instruction {number} ({issue_text(instruction, trace.program)})"


def _place(trace: Trace, fault: Any, memory: str) -> str:
    machine = trace.program.machine
    if memory == IMMEDIATE or memory not in machine.memories:
        return memory
    match machine.memories[memory].kind:
        case MemoryKind.REGISTER:
            return f"register {memory}"
        case MemoryKind.ROWS:
            return f"row {fault.row}, lane {fault.lane}, of {memory}"
        case MemoryKind.MAIN:
            return f"element {fault.row} of tensor {trace.tensors[fault.second]}"


def _size_problem(trace: Trace, fault: Any, name: str) -> str:
    machine = trace.program.machine
    fields = trace.fields[name]
    axis = next(axis for axis, position in fields.sizes.items() if position == fault.first)
    (described,) = (a for a in machine.instructions[name].axes if a.name == axis)
    return f"size {axis}={fault.row} is not allowed: {axis} is {described.describe_allowed()}"
