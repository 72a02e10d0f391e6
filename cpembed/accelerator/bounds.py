"""Bounds of the cycles and bytes of an operator, whatever its program."""

from __future__ import annotations

import itertools
import math
from functools import lru_cache
from typing import Any

from cpembed.accelerator.buffer_specs import BufferSpec
from cpembed.accelerator.copy_cost import Lengths, copy_costs, copy_cycles
from cpembed.accelerator.cost import busiest_cycles
from cpembed.accelerator.moves import moves
from cpembed.accelerator.template import Template, element_bits
from cpembed.accelerator.tiling_cost import reduced_cycles
from cpembed.hw.isa import InstructionSet


def bounds(template: Template) -> tuple[float, float]:
    """Return bounds of the cycles and of the bytes of main memory, of any program.

    The bytes are those of every input and output once. The cycles are those of the bytes, and of
    the busiest unit: its executions of statements, and copies of each tensor once.
    """
    specification = template.problem.specification
    homes = template.problem.homes
    moved = 0.0
    for name in specification.operands:
        outside = name in specification.inputs or name in specification.constants
        if (outside or name in specification.outputs) and name not in homes:
            moved += touched_bytes(template, name)
    units = unit_cycles(template)
    for buffer in template.buffers:
        for path, is_store in ((buffer.load, False), (buffer.store, True)):
            # A tensor may pass through other memories on its way than these.
            if path and buffer.uses and not buffer.is_home:
                unit, cycles = _copied_once(template, buffer, is_store)
                units[unit] = units.get(unit, 0.0) + cycles
    moved = max(moved, _product_bytes(template))
    busiest = busiest_cycles(units, template.machine)
    return max(busiest, moved / template.machine.main.bytes_per_cycle), moved


def touched_bytes(template: Template, tensor: str) -> float:
    """Return a lower bound of the bytes of a tensor that the statements read or write.

    A number without dimensions has none: instructions may hold it as an immediate.
    """
    operand = template.problem.specification.operands[tensor]
    return _touched(template, tensor) * element_bits(operand.dtype) / 8 if operand.shape else 0.0


def unit_cycles(template: Template) -> dict[str, float]:
    """Return the cycles of each unit that the executions of all statements take."""
    units: dict[str, float] = {}
    for step in template.steps:
        factors: dict[str, tuple[Any, Any]] = {
            a: (-(-template.extent(step, a) // step.granules[a]), template.extent(step, a))
            for a in step.axes.values()
        }
        unit = step.instruction.unit
        # The first execution of a sum may cover one point or as many as any.
        cycles = (
            float(reduced_cycles(template, step, factors, {a: (1, size) for a, size in first}))
            for first in (
                [(a, 1) for a in step.reductions],
                [(a, min(step.granules[a], template.extents[a])) for a in step.reductions],
            )
        )
        units[unit] = units.get(unit, 0.0) + min(cycles)
    return units


def _copied_once(template: Template, buffer: BufferSpec, is_store: bool) -> tuple[str, float]:
    """Return the cycles of copying all of a tensor into its rows, or out of them, once.

    The unit is that of the copies; several ones have a name of their own, under which nothing else
    counts.
    """
    memory = buffer.memory
    ends = _ends(template, buffer, is_store)
    pairs = [(memory, end) if is_store else (end, memory) for end in ends]
    costs = [cost for pair in pairs for cost in copy_costs(template, buffer, pair)]
    lengths = [Lengths(((size, 1),)) for size in _touched_lengths(template, buffer.tensor)]
    units = "|".join(sorted({cost.instruction.unit for cost in costs}))
    cycles = (float(copy_cycles(cost, lengths, buffer.steps)) for cost in costs)
    return units, min(cycles, default=0.0)


def _ends(template: Template, buffer: BufferSpec, is_store: bool) -> list[str]:
    """List the memories from which a tensor may come into a buffer, or into which it may go."""
    machine, tensor = template.machine, buffer.tensor
    if buffer.role == "granule":
        return [buffer.load[0]]
    ends = [m for m in machine.memories if m != buffer.memory]
    if tensor in template.problem.homes or (not is_store and template.is_written(tensor)):
        return ends
    # All of it is in main memory, at the beginning or in the end.
    main = machine.main.name
    return [m for m in ends if m == main or _leads(machine, main, m, back=is_store)]


@lru_cache(maxsize=256)
def _leads(machine: InstructionSet, main: str, memory: str, *, back: bool) -> bool:
    """True if moves lead from main memory to a memory, or back from there to main memory."""
    edges = {(m.target, m.source) if back else (m.source, m.target) for m in moves(machine)}
    reached: set[str] = set()
    fresh = {main}
    while fresh:
        reached |= fresh
        fresh = {target for source, target in edges if source in fresh} - reached
    return memory in reached


def _touched(template: Template, tensor: str) -> int:
    """Return a lower bound of the elements of a tensor that the statements read or write."""
    return math.prod(_touched_lengths(template, tensor))


def _touched_lengths(template: Template, tensor: str) -> list[int]:
    """Return a lower bound of the indices along each dimension that the statements touch."""
    most: list[int] = []
    for step in template.steps:
        computation = step.statement.computation
        for access in (*computation.reads, computation.statement.store):
            if computation.operand(access.operand).tensor == tensor:
                lengths: list[int] = []
                shape = computation.operand(access.operand).shape
                for e, size in zip(access.index, shape, strict=True):
                    low, high = e.bounds(computation.extents)
                    reached = min(high, size - 1) - max(low, 0) + 1
                    terms = [t for t in e.terms if computation.extents[t.iterator] > 1]
                    if len(terms) == 1:
                        reached = -(-reached // abs(terms[0].coefficient))
                    elif any(abs(t.coefficient) > 1 for t in terms):
                        largest = max(computation.extents[t.iterator] for t in terms)
                        reached = min(reached, largest)
                    lengths.append(reached)
                most = max(most, lengths, key=math.prod) if most else lengths
    return most


def _product_bytes(template: Template) -> float:
    """Return the bound 2mnk/sqrt(S) - 2S of a matrix product in S elements of memory."""
    step = template.main_step
    computation = step.statement.computation
    indices = [a.index for a in (*computation.reads, computation.statement.store)]
    single = all(e.single_iterator for index in indices for e in index)
    groups = [{e.single_iterator for e in index} for index in indices]
    if (
        not single
        or len(groups) != 3
        or any(len(a & b) != 1 for a, b in itertools.combinations(groups, 2))
    ):
        return 0.0
    widths = [element_bits(o.dtype) / 8 for o in computation.operands]
    capacity = sum(m.capacity_bytes or 0 for m in template.machine.row_memories()) / min(widths)
    if any(b.is_home for b in template.buffers):
        return 0.0
    points = computation.macs
    return min(widths) * max(0.0, 2 * points / math.sqrt(capacity) - 2 * capacity)
