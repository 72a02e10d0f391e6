"""Bounds of the cycles and bytes of an operator, whatever its program."""

from __future__ import annotations

import itertools
import math
from typing import Any

from cpembed.accelerator.template import Template, element_bits
from cpembed.accelerator.tiling_cost import statement_cycles
from cpembed.hw.isa import Synchronization


def bounds(template: Template) -> tuple[float, float]:
    """Return bounds of the cycles and of the bytes of main memory, of any program.

    The bytes are those of every input and output once. The cycles are those of the busiest unit's
    executions, and of the bytes.
    """
    specification = template.problem.specification
    homes = template.problem.homes
    moved = 0.0
    for name in specification.operands:
        outside = name in specification.inputs or name in specification.constants
        if (outside or name in specification.outputs) and name not in homes:
            moved += touched_bytes(template, name)
    units = unit_cycles(template)
    moved = max(moved, _product_bytes(template))
    busiest = max(units.values())
    if template.machine.synchronization is Synchronization.IN_ORDER:
        busiest = sum(units.values())
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
            a: (-(-template.extents[a] // step.granules[a]), template.extents[a])
            for a in step.axes.values()
        }
        unit = step.instruction.unit
        units[unit] = units.get(unit, 0.0) + float(statement_cycles(step, factors))
    return units


def _touched(template: Template, tensor: str) -> int:
    """Return a lower bound of the elements of a tensor that the statements read or write."""
    most = 0
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
                most = max(most, math.prod(lengths))
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
