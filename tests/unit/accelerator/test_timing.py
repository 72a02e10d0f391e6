"""Cycles of runs: against a second implementation of the definition, and with faster memories."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest

from cpembed.accelerator.executor import execute
from cpembed.errors import ExecutionFault
from cpembed.hw.isa import IMMEDIATE, InstructionSet, MemoryKind, Synchronization
from cpembed.ir.dtypes import dtype_info, size_bytes
from tests.compilers import needs_executor
from tests.unit.accelerator.random_programs import Case, random_case, random_machine
from tests.unit.accelerator.slow_machine import SlowMachine, Undefined, iterations

pytestmark = needs_executor


@dataclass
class Touches:
    """What an execution touches, and its costs."""

    unit: str
    cycles: float
    latency: float
    path: float
    reads: set[Any]
    writes: set[Any]


def touches(case: Case) -> Iterator[Touches]:
    """Yield what each execution touches, by the slow machine's places."""
    machine = case.program.machine
    slow = SlowMachine(case.program, case.buffers)
    for issue, values in iterations(case.program.body, {}):
        instruction = machine.instructions[issue.instruction]
        sizes = dict(instruction.extents)
        for axis in instruction.size_arguments:
            sizes[axis.name] = min(e.evaluate(values) for e in issue.sizes[axis.name])
        reads: set[Any] = set()
        writes: set[Any] = set()
        moved = 0.0
        reads_main = False
        for operand in instruction.computation.operands:
            place = instruction.places[operand.name]
            if place.memory == IMMEDIATE:
                continue
            registers = {s for s in place.strides.values() if s in machine.memories}
            reads |= {("register", name) for name in registers}
            is_output = operand.name in instruction.outputs
            is_read = not is_output or instruction.reads_outputs
            if machine.memories[place.memory].kind is MemoryKind.REGISTER:
                (writes if is_output else reads).add(("register", place.memory))
                continue
            elements = slow._elements(
                instruction, operand.name, issue.operands[operand.name], sizes, values
            )
            cells: set[Any] = set()
            if place.memory == "dram":
                width = size_bytes(place.dtype)
                for tensor, at in elements.values():
                    if case.program.tensors[tensor].role not in ("input", "constant"):
                        cells.add((tensor, at * width // 64))
                bits = len(elements) * dtype_info(place.dtype).storage_bits
                moved += bits / 8 * (is_read + is_output)
                reads_main |= is_read
            else:
                cells = {(place.memory, row) for row, _ in elements.values()}
            if is_read:
                reads |= cells
            if is_output:
                writes |= cells
        path = moved / machine.main.bytes_per_cycle
        # Once, whatever an instruction reads: its requests are on the way at the same time.
        latency = instruction.latency_cycles + reads_main * machine.main.latency_cycles
        yield Touches(
            instruction.unit, instruction.occupied_cycles(sizes), latency, path, reads, writes
        )
        slow.execute(issue, values)


def cycles_by_definition(case: Case) -> float:
    """Compute the cycles of a run: the order of paths without their limits, then the times."""
    executions = list(touches(case))
    if case.program.machine.synchronization is Synchronization.IN_ORDER:
        executions = [replace(e, unit="all") for e in executions]
    written: dict[Any, float] = defaultdict(float)
    read: dict[Any, float] = defaultdict(float)
    free: dict[str, float] = defaultdict(float)

    def start(e: Touches) -> float:
        waits = [written[c] for c in e.reads | e.writes] + [read[c] for c in e.writes]
        return max([free[e.unit], *waits])

    def end(e: Touches, busy: float, ready: float) -> None:
        free[e.unit] = busy
        for cell in e.reads:
            read[cell] = max(read[cell], busy)
        for cell in e.writes:
            written[cell] = max(written[cell], ready)

    order: list[tuple[float, int]] = []
    for number, e in enumerate(executions):
        at = start(e)
        order.append((at, number))
        end(e, at + e.cycles, at + e.cycles)
    for table in (written, read, free):
        table.clear()
    path_free = total = 0.0
    for _, number in sorted(order):
        e = executions[number]
        at = start(e)
        if e.path:
            at = max(at, path_free)
            path_free = at + e.path
        busy = at + max(e.cycles, e.path)
        end(e, busy, busy + e.latency)
        total = max(total, busy + e.latency)
    return total


@cache
def valid_cases() -> tuple[Case, ...]:
    """Return cases, of few machines, that run without a fault."""
    cases: list[Case] = []
    for seed in range(50):
        case = random_case(seed, random_machine(random.Random(seed // 25)))
        try:
            SlowMachine(case.program, case.buffers).run()
        except Undefined:
            continue
        cases.append(case)
    return tuple(cases)


def test_cycles_are_those_of_the_definition() -> None:
    overlaps = 0
    for case in valid_cases():
        cycles: list[float] = []
        for kind in (Synchronization.INTERLOCKED, Synchronization.IN_ORDER):
            machine = replace(case.program.machine, synchronization=kind)
            timed = replace(case, program=replace(case.program, machine=machine))
            cycles.append(cycles_by_definition(timed))
            actual = execute(timed.program, timed.buffers).cycles
            assert actual == pytest.approx(cycles[-1], rel=1e-12)
        overlaps += cycles[0] < cycles[1]
    assert overlaps > 5


def faster(machine: InstructionSet, draw: random.Random) -> InstructionSet:
    """Return the machine with a faster main memory, or with results that are ready earlier."""
    main = machine.main
    memories = dict(machine.memories)
    instructions = dict(machine.instructions)
    memories["dram"] = replace(
        main,
        bytes_per_cycle=main.bytes_per_cycle * draw.choice([1, 1, 1.5, 4, math.inf]),
        latency_cycles=main.latency_cycles * draw.choice([1, 1, 0.5, 0]),
    )
    for name, instruction in machine.instructions.items():
        if draw.random() < 0.5:
            latency = instruction.latency_cycles * draw.choice([0, 1])
            instructions[name] = replace(instruction, latency_cycles=latency)
    return replace(machine, memories=memories, instructions=instructions)


def test_no_faster_memory_makes_a_program_slower() -> None:
    draw = random.Random(11)
    gains = 0
    for case in valid_cases():
        before = execute(case.program, case.buffers).cycles
        for _ in range(4):
            machine = faster(case.program.machine, draw)
            after = execute(replace(case.program, machine=machine), case.buffers).cycles
            assert after <= before * (1 + 1e-12)
            gains += after < before
    assert gains > 20


def test_a_fault_leaves_no_state_behind() -> None:
    cases = valid_cases()
    before = execute(cases[0].program, cases[0].buffers)
    for seed in range(40):
        case = random_case(seed, random_machine(random.Random(0)))
        try:
            execute(case.program, case.buffers)
        except ExecutionFault:
            break
    after = execute(cases[0].program, cases[0].buffers)
    assert (before.cycles, before.moved) == (after.cycles, after.moved)
