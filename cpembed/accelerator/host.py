"""Work that stays on the processor beside an accelerator, with its estimated time."""

from __future__ import annotations

import math
from collections.abc import Mapping

from cpembed.accelerator.specification import Statement
from cpembed.graph.graph import Operator
from cpembed.graph.kinds import Product
from cpembed.graph.kinds.base import TensorType
from cpembed.hw.isa import InstructionSet

CYCLES_PER_ELEMENT, CYCLES_PER_MAC, CLOCK = "cycles_per_element", "cycles_per_mac", "clock_mhz"
"""Figures of ``[host]``: cycles for each element that is read or written and for each product that
is added, and the clock of the host, by default that of the accelerator."""


def host_us(
    operator: Operator, types: Mapping[str, TensorType], machine: InstructionSet
) -> float | None:
    """Return the estimated microseconds of an operator on the host.

    Parameters
    ----------
    operator : Operator
    types : mapping of str to TensorType
        Types of the graph's tensors.
    machine : InstructionSet
        Machine whose ``[host]`` describes the host.

    Returns
    -------
    float or None
        None if the machine does not describe its host.
    """
    elements = sum(types[name].elements for name in (*operator.inputs, *operator.outputs))
    macs = operator.kind.computation.macs if isinstance(operator.kind, Product) else 0
    return _time(machine, elements, macs)


def statement_us(statement: Statement, machine: InstructionSet) -> float | None:
    """Return the estimated microseconds of a statement on the host."""
    computation = statement.computation
    elements = sum(math.prod(operand.shape) for operand in computation.operands)
    reduces = computation.statement.reduction is not None
    return _time(machine, elements, computation.macs if reduces else 0)


def copy_us(elements: int, machine: InstructionSet) -> float | None:
    """Return the estimated microseconds in which the host moves elements to another layout."""
    return _time(machine, 2 * elements, 0)


def copy_cycles(elements: int, machine: InstructionSet) -> float:
    """Return the accelerator's cycles that pass while the host moves elements to another layout.

    Without figures of the host, they are more than those of the slowest one that ships.
    """
    us = copy_us(elements, machine)
    return _CYCLES_PER_ELEMENT * elements if us is None else us * machine.clock_mhz


_CYCLES_PER_ELEMENT = 16.0


def _time(machine: InstructionSet, elements: int, macs: int) -> float | None:
    figures = machine.host
    if CYCLES_PER_ELEMENT not in figures:
        return None
    # A host whose products are not described takes as long for one as for an element.
    per_mac = figures.get(CYCLES_PER_MAC, figures[CYCLES_PER_ELEMENT])
    cycles = elements * figures[CYCLES_PER_ELEMENT] + macs * per_mac
    return math.ceil(cycles) / figures.get(CLOCK, machine.clock_mhz)
