"""Cost of a program: executions, bytes and cycles, counted; a match's share of the peak rate."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from cpembed.accelerator.matching import Match
from cpembed.accelerator.program import Issue, Loop, Program
from cpembed.hw.isa import InstructionSet, IsaInstruction, MemoryKind, Synchronization
from cpembed.ir.dtypes import bits
from cpembed.ir.index import IndexExpr

Array = NDArray[Any]
Key = TypeVar("Key")


@dataclass(frozen=True)
class ProgramCost:
    """Counts of a program, and its estimated cycles.

    Attributes
    ----------
    executions : mapping of str to int
        Number of executions of each instruction.
    moved : mapping of (str, str) to int
        Bytes of each memory that are ``read`` and ``written``.
    unit_cycles : mapping of str to float
        Cycles that each unit is occupied.
    main_bytes : int
        Bytes to and from main memory.
    cycles : float
        Estimated cycles of the program.
    """

    executions: Mapping[str, int]
    moved: Mapping[tuple[str, str], int]
    unit_cycles: Mapping[str, float]
    main_bytes: int
    cycles: float


def summed(mappings: Iterable[Mapping[Key, float]]) -> dict[Key, Any]:
    """Return the sums of mappings key by key."""
    total: dict[Key, Any] = {}
    for mapping in mappings:
        for key, value in mapping.items():
            total[key] = total.get(key, 0) + value
    return total


def moved_entries(moved: Mapping[tuple[str, Any], float]) -> list[dict[str, Any]]:
    """Return the bytes of each memory and direction as entries of a document."""
    return [
        {"memory": memory, "direction": direction, "bytes": size}
        for (memory, direction), size in moved.items()
    ]


def main_traffic(moved: Mapping[tuple[str, str], Any], machine: InstructionSet) -> Any:
    """Return the bytes to and from main memory among those of all memories."""
    return sum(moved.get((machine.main.name, direction), 0) for direction in ("read", "written"))


def busiest_cycles(units: Mapping[str, float], machine: InstructionSet) -> float:
    """Return the cycles of the busiest unit; of all where they wait for each other."""
    is_serial = machine.synchronization is Synchronization.IN_ORDER
    return sum(units.values()) if is_serial else max(units.values(), default=0.0)


@dataclass(frozen=True)
class IssueCost:
    """Counts of one instruction of the text over all iterations of its loops."""

    executions: int
    cycles: float
    moved: Mapping[tuple[str, str], int]


def issue_cost(issue: Issue, loops: Sequence[Loop], machine: InstructionSet) -> IssueCost:
    """Count the executions, cycles and bytes of one instruction of a program.

    Parameters
    ----------
    issue : Issue
    loops : sequence of Loop
        The loops around it.
    machine : InstructionSet
    """
    instruction = machine.instructions[issue.instruction]
    varying = issue.varying
    repeats = math.prod(loop.extent for loop in loops if loop.name not in varying)
    inner = [loop for loop in loops if loop.name in varying]
    executed, all_sizes = executed_sizes(issue, inner, machine)
    sizes: dict[str, Any] = {
        a: np.broadcast_to(size, executed.shape)[executed] for a, size in all_sizes.items()
    }
    count = int(np.count_nonzero(executed))
    moved = moved_bytes(instruction, machine, sizes)
    path = main_traffic(moved, machine) / machine.main.bytes_per_cycle
    occupied = np.maximum(instruction.occupied_cycles(sizes), path)
    return IssueCost(
        repeats * count,
        repeats * _total(occupied, count),
        {key: round(repeats * _total(elements, count)) for key, elements in moved.items()},
    )


def executed_sizes(
    issue: Issue, loops: Sequence[Loop], machine: InstructionSet
) -> tuple[Array, dict[str, Any]]:
    """Return in which iterations of loops an instruction is executed, and with which sizes.

    The arrays have a dimension for each loop, and the sizes one of length 1 where they do not
    depend on it.

    Parameters
    ----------
    issue : Issue
    loops : sequence of Loop
        Loops around it; all on which its sizes and guards depend.
    machine : InstructionSet
    """
    grids = np.meshgrid(*(np.arange(loop.extent) for loop in loops), indexing="ij", sparse=True)
    values = {loop.name: grid for loop, grid in zip(loops, grids, strict=True)}
    executed = np.ones(tuple(loop.extent for loop in loops), np.bool_)
    for guard in issue.guards:
        executed &= _evaluated(guard, values) >= 0
    sizes: dict[str, Any] = {}
    for axis in machine.instructions[issue.instruction].size_arguments:
        least, *bounds = (_evaluated(e, values) for e in issue.sizes[axis.name])
        for bound in bounds:
            least = np.minimum(least, bound)
        sizes[axis.name] = np.where(executed, least, 1) if np.ndim(least) else least
    return executed, sizes


def _evaluated(e: IndexExpr, values: Mapping[str, Any]) -> Any:
    return np.asarray(e.evaluate(values))


def _total(value: Any, count: int) -> float:
    """Return the sum of a value over executions, which may be the same for all of them."""
    return float(np.sum(value)) if np.ndim(value) else float(value) * count


def moved_bytes(
    instruction: IsaInstruction, machine: InstructionSet, sizes: Mapping[str, Any]
) -> dict[tuple[str, str], Any]:
    """Return the bytes that an execution reads and writes in each memory.

    Parameters
    ----------
    instruction : IsaInstruction
    machine : InstructionSet
    sizes : mapping of str to int or ndarray
        Sizes of the axes that are arguments.
    """
    complete: dict[str, Any] = {**instruction.extents, **sizes}
    moved: dict[tuple[str, str], Any] = {}

    def add(operand: str, direction: str) -> None:
        place = instruction.places[operand]
        memory = machine.memories.get(place.memory)
        if memory is None or memory.kind is MemoryKind.REGISTER:
            return
        accesses = instruction.computation.access_maps[operand]
        elements: Any = 1
        for dimension in range(len(accesses[0].index)):
            reached: Any = 0
            for access in accesses:
                e = access.index[dimension]
                last = e.constant + sum(t.coefficient * (complete[t.iterator] - 1) for t in e.terms)
                reached = np.maximum(reached, last)
            elements = elements * (reached + 1)
        key = place.memory, direction
        moved[key] = moved.get(key, 0) + elements * bits(place.dtype) / 8

    for operand in instruction.inputs:
        add(operand, "read")
    for operand in instruction.outputs:
        add(operand, "written")
        if instruction.reads_outputs:
            add(operand, "read")
    return moved


def program_cost(program: Program, least: float = 0.0) -> ProgramCost:
    """Count a program's executions, bytes and cycles.

    Parameters
    ----------
    program : Program
    least : float
        Cycles that it takes at least, by the waits of its instructions for each other.
    """
    machine = program.machine
    executions: dict[str, int] = {}
    moved: dict[tuple[str, str], int] = {}
    units = dict.fromkeys(machine.units, 0.0)
    for loops, issue in program.issues():
        cost = issue_cost(issue, loops, machine)
        instruction = machine.instructions[issue.instruction]
        executions[instruction.name] = executions.get(instruction.name, 0) + cost.executions
        units[instruction.unit] += cost.cycles
        for key, size in cost.moved.items():
            moved[key] = moved.get(key, 0) + size
    main_bytes = main_traffic(moved, machine)
    path = main_bytes / machine.main.bytes_per_cycle
    cycles = max(busiest_cycles(units, machine), path, least)
    return ProgramCost(executions, moved, units, main_bytes, cycles)


# -- occupancy -------------------------------------------------------------------------------------

POOR = 0.5
"""Share of the peak rate below which the reasons are said: a factor of two is lost."""


def peak_share(match: Match) -> float:
    """Return the statement's operations in a cycle of the match, over the most of the instruction.

    The most is that of an execution at its largest sizes. Cycles that depend on no size count, so
    that a short execution uses less.
    """
    instruction = match.instruction
    peak = math.prod(instruction.extents.values()) / _cycles(match, instruction.extents)
    useful = match.statement.computation.macs / (match.executions * _cycles(match, match.sizes))
    return useful / peak


def _cycles(match: Match, sizes: dict[str, int]) -> float:
    """Return the cycles of an execution, of which free ones take one."""
    return max(float(match.instruction.occupied_cycles(sizes)), 1.0)


def unfilled(match: Match) -> tuple[str, ...]:
    """Return which places of the instruction's axes stay empty, and what would fill them."""
    reasons: list[tuple[float, str]] = []
    extents = match.statement.computation.extents
    for axis, most in match.instruction.extents.items():
        digits = match.axes.get(axis, ())
        size = math.prod(digit.count for digit in digits)
        fed = " ".join(digit.axis for digit in digits) or "nothing"
        if size < most:
            reach = math.prod(extents[digit.axis] for digit in digits)
            # With a larger layer the axis is filled, unless another digit would have to join.
            remedy = f"; {most} along {fed} would fill it" if digits and reach < most else ""
            reasons.append((size / most, f"{fed} fills {size} of {most} places of {axis}{remedy}"))
        for digit in digits:
            extent = extents[digit.axis]
            block = digit.count * digit.stride
            blocks = -(-extent // block)
            share = extent / (blocks * block)
            if blocks > 1 and share < 1:
                text = f"{digit.axis} of {extent} takes {blocks} x {block} places of {axis}"
                reasons.append((share, f"{text}; multiples of {block} leave none empty"))
    return tuple(text for _, text in sorted(reasons))
