"""Machines whose instructions record their arguments, and what a program's have to be."""

from __future__ import annotations

import ctypes
from dataclasses import replace

from cpembed.accelerator.machine_code import call_arguments
from cpembed.accelerator.program import Program
from cpembed.hw.isa import InstructionSet
from tests.unit.accelerator.slow_machine import iterations

# Calls are recorded as numbers, in an array that the test reads.
PREAMBLE = """
#define LARGEST (1 << 20)
long long calls[LARGEST];
long long count;
static void record(int number, int arguments, const long long *values) {
  calls[count++] = number;
  for (int i = 0; i < arguments; i++) calls[count++] = values[i];
}
"""


def recording(machine: InstructionSet, program: Program) -> InstructionSet:
    """Return the machine with templates that record each call; addresses are element numbers."""
    instructions = {}
    for number, (name, instruction) in enumerate(machine.instructions.items()):
        fields = [f.replace(".address", ".element") for f in call_arguments(instruction, program)]
        floats = {
            f"{n}.value" for n, p in instruction.places.items() if p.dtype.startswith("float")
        }
        values = ", ".join(f"(long long)({{{f}}}{' * 4' if f in floats else ''})" for f in fields)
        template = f"record({number}, {len(fields)}, (long long[]){{{{{values or '0'}}}}});"
        instructions[name] = replace(instruction, emit=template)
    return replace(machine, instructions=instructions, preamble=PREAMBLE)


def expected_calls(program: Program) -> list[int]:
    """Evaluate the arguments of each execution, in the order of the templates."""
    numbers = {name: n for n, name in enumerate(program.machine.instructions)}
    calls: list[int] = []
    for issue, values in iterations(program.body, {}):
        calls.append(numbers[issue.instruction])
        instruction = program.machine.instructions[issue.instruction]
        for field in call_arguments(instruction, program):
            name, _, attribute = field.partition(".")
            if not attribute:
                calls.append(min(e.evaluate(values) for e in issue.sizes[name]))
                continue
            address = issue.operands[name]
            if attribute.startswith("stride."):
                calls.append(address.strides[attribute.removeprefix("stride.")])
            elif attribute == "lane":
                calls.append(address.lane.evaluate(values))
            elif address.value is not None:
                calls.append(int(address.value * 4))
            else:
                calls.append(address.base.evaluate(values))
    return calls


def recorded(library: ctypes.CDLL) -> list[int]:
    """Return the calls that a compiled program has recorded."""
    count = ctypes.c_longlong.in_dll(library, "count").value
    return list((ctypes.c_longlong * count).in_dll(library, "calls"))
