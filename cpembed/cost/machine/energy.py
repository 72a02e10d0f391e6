"""Energy of a tiling on a machine, by component, in the manner of Accelergy.

Each byte that a memory reads or writes costs what its component does: registers, SRAM of a capacity
and a width, main memory. A machine may say its own figures; the others are those of a technology
(:mod:`cpembed.cost.machine.technology`). Leakage and the network between memories are left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from cpembed.cost.machine.nest import ExecutionNest
from cpembed.cost.machine.objective import Price
from cpembed.cost.machine.technology import Technology, technology
from cpembed.cost.machine.traffic import Tilings
from cpembed.errors import SpecError
from cpembed.hw.instruction import Instruction
from cpembed.hw.machine import Hierarchy, Memory, TransferUnit

COMPUTE = "compute"
"""Name of the energy of executions among those of memories."""


@dataclass(frozen=True)
class Energies:
    """Energies of a machine in pJ: of a byte by memory and direction, and of an execution.

    ``accessed`` are the bytes that all executions read from each memory that holds operands, and
    those that they write there.
    """

    memories: Mapping[str, Price]
    execution: float
    accessed: Mapping[str, tuple[float, float]]

    def prices(self, machine: Hierarchy) -> dict[str, Price]:
        """Return the energy of a byte through each link between memories."""
        prices: dict[str, Price] = {}
        for link in machine.links:
            inner, parent = self.memories[link.memory.name], self.memories[link.parent.name]
            prices[link.name] = Price(parent.read, inner.read + parent.write, inner.write)
        return prices

    def fixed(self, nest: ExecutionNest) -> float:
        """Return the energy of all executions with their accesses, which no tiling changes."""
        energy = self.execution * nest.calls
        for name, (read, written) in self.accessed.items():
            energy += read * self.memories[name].read + written * self.memories[name].write
        return energy

    def by_component(
        self, tilings: Tilings, nest: ExecutionNest, machine: Hierarchy
    ) -> dict[str, float]:
        """Return the energy of one tiling, of executions and of each memory."""
        energy = {COMPUTE: self.execution * nest.calls, **dict.fromkeys(machine.memories, 0.0)}
        for name, (read, written) in self.accessed.items():
            price = self.memories[name]
            energy[name] += read * price.read + written * price.write
        for link in machine.links:
            if link.name not in tilings.traffic:
                continue
            traffic = tilings.traffic[link.name]
            read, written = float(traffic.total_read[0]), float(traffic.total_write[0])
            inner, parent = self.memories[link.memory.name], self.memories[link.parent.name]
            energy[link.memory.name] += float(traffic.received[0]) * inner.write
            energy[link.memory.name] += written * inner.read
            energy[link.parent.name] += read * parent.read + written * parent.write
        return energy


def component_energies(
    machine: Hierarchy, instruction: Instruction, nest: ExecutionNest
) -> Energies:
    """Return the energies of a machine on which a nest executes an instruction.

    Parameters
    ----------
    machine : Hierarchy
        Machine with its memories.
    instruction : Instruction
        Instruction, whose element types decide the energy of an execution.
    nest : ExecutionNest
        Nest of executions.

    Raises
    ------
    SpecError
        Neither the machine nor the technology has the figures.
    """
    tables = technology()
    memories = {m.name: _memory_price(m, tables) for m in machine.memories.values()}
    accessed: dict[str, tuple[float, float]] = {}
    for operand in nest.operands:
        size = float(operand.elements(nest.single)[0]) * operand.held_bytes
        read, written = accessed.get(operand.scope, (0.0, 0.0))
        times = nest.calls
        if operand.is_output:
            # An execution reads the sums that it adds to, but for the first one.
            extents = {loop.name: np.full(1, float(loop.extent)) for loop in nest.loops}
            times -= float(nest.execution_tiles(operand, extents)[0])
            written += size * nest.calls
        accessed[operand.scope] = read + size * times, written
    execution = machine.compute.energy_pj
    if execution is None:
        outputs = {operand.name for operand in instruction.computation.outputs}
        operands = instruction.computation.operands
        factor = next(role.dtype for role in operands if role.name not in outputs)
        total = next(role.dtype for role in operands if role.name in outputs)
        execution = math.prod(nest.axes.values()) * tables.mac(factor, total).energy_pj
    return Energies(memories, execution, accessed)


def _memory_price(memory: Memory, tables: Technology) -> Price:
    read, write = memory.read_pj_per_byte, memory.write_pj_per_byte
    if read is None or write is None:
        default = _technology_price(memory, tables)
        read = default.read if read is None else read
        write = default.write if write is None else write
    return Price(read, write)


def _technology_price(memory: Memory, tables: Technology) -> Price:
    """Return the price of main memory, registers or an SRAM by capacity."""
    if memory.parent is None:
        return Price(tables.dram_pj(1), tables.dram_pj(1))
    if memory.transfer_unit is not TransferUnit.REGION or memory.capacity_bytes is None:
        return Price(tables.register_pj(8), tables.register_pj(8))
    bank = tables.nearest_sram(memory.capacity_bytes / max(1, memory.banks))
    return Price(bank.read_pj_per_byte, bank.write_pj_per_byte)


def energies_or_reason(
    machine: Hierarchy, instruction: Instruction, nest: ExecutionNest
) -> Energies | str:
    """Return the energies of a machine, or a message about missing ones.

    Parameters
    ----------
    machine, instruction, nest
        Those of :func:`component_energies`.
    """
    try:
        return component_energies(machine, instruction, nest)
    except SpecError as error:
        return str(error)
