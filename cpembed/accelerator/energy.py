"""Energy of programs of an instruction set, by level, in the manner of Accelergy.

A byte that a memory reads or writes, and an execution of an instruction, cost what the file says.
What it leaves out is that of a technology's tables, which name their sources
(:mod:`cpembed.cost.machine.technology`): a memory of rows is an SRAM of its banks, or registers
where it is too small for one; main memory is DRAM; an execution has the multiplications and
additions of its expression. Networks, control and leakage are in no table and not counted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cpembed.cost.machine.technology import Technology, technology
from cpembed.hw.isa import InstructionSet, IsaInstruction, IsaMemory, MemoryKind
from cpembed.ir.dtypes import size_bytes
from cpembed.ir.expression import Operation, walk

INSTRUCTIONS = "instructions"
"""Name of the energy of executions among those of memories."""

_SMALLEST_SRAM_BYTES = 64
"""Minimum bytes of a bank of SRAM: CACTI finds no organization of a smaller one."""


@dataclass(frozen=True)
class EnergyTable:
    """Energies of a machine.

    Attributes
    ----------
    byte_pj : mapping of str to float
        Picojoules of a byte that is read or written, by memory.
    execution_pj : mapping of str to float
        Picojoules of an execution, by instruction, without those of memories.
    sources : mapping of str to str
        Origin of each memory's figure, and of those of executions.
    """

    byte_pj: Mapping[str, float]
    execution_pj: Mapping[str, float]
    sources: Mapping[str, str]

    def by_level(
        self, executions: Mapping[str, int], moved: Mapping[tuple[str, Any], float]
    ) -> dict[str, float]:
        """Return the picojoules of executions and of each memory."""
        levels = {
            INSTRUCTIONS: math.fsum(
                self.execution_pj[name] * count for name, count in executions.items()
            ),
            **dict.fromkeys(self.byte_pj, 0.0),
        }
        for (memory, _), size in moved.items():
            # Registers are part of what instructions cost.
            pj = self.byte_pj.get(memory, 0.0)
            levels[memory] = levels.get(memory, 0.0) + size * pj
        return levels


def energy_table(machine: InstructionSet, name: str = "45nm") -> EnergyTable:
    """Return the energies of a machine, from its file and from a technology's tables.

    Parameters
    ----------
    machine : InstructionSet
    name : str, default "45nm"
        Technology of the figures that the file leaves out.
    """
    tables = technology(name)
    byte_pj: dict[str, float] = {}
    sources: dict[str, str] = {}
    for memory in machine.memories.values():
        if memory.kind is MemoryKind.REGISTER:
            continue
        if memory.energy_pj_per_byte is not None:
            byte_pj[memory.name], source = memory.energy_pj_per_byte, "the file"
        else:
            byte_pj[memory.name], source = _byte(memory, tables)
        sources[memory.name] = source
    execution_pj = {
        instruction.name: _execution(instruction, tables)
        if instruction.energy_pj is None
        else instruction.energy_pj
        for instruction in machine.instructions.values()
    }
    described = [i.energy_pj is not None for i in machine.instructions.values()]
    tabled = f"{name}: operations of expressions"
    sources[INSTRUCTIONS] = "the file" if all(described) else tabled
    if any(described) and not all(described):
        sources[INSTRUCTIONS] = f"the file, else {tabled}"
    return EnergyTable(byte_pj, execution_pj, sources)


def _byte(memory: IsaMemory, tables: Technology) -> tuple[float, str]:
    """Return the picojoules of a byte of a memory, and the component that it is."""
    capacity = memory.capacity_bytes
    if capacity is None:
        return tables.dram_pj(1), f"{tables.name}: DRAM"
    bank = capacity / memory.banks
    if bank < _SMALLEST_SRAM_BYTES:
        return tables.register_pj(8), f"{tables.name}: registers"
    sram = tables.nearest_sram(bank)
    per_byte = (sram.read_pj_per_byte + sram.write_pj_per_byte) / 2
    return per_byte, f"{tables.name}: SRAM, banks of {bank:,.0f} bytes"


def _execution(instruction: IsaInstruction, tables: Technology) -> float:
    """Return the picojoules of an execution's arithmetic, at its largest sizes.

    Moves have none. Products count as multiplications, every other operation as an addition, and
    types that no table has like float32.
    """
    computation = instruction.computation
    dtypes = {name: place.dtype for name, place in instruction.places.items()}
    energy = 0.0
    for statement in computation.statements:
        output = dtypes[statement.store.operand]
        read = [dtypes[access.operand] for access in statement.reads]
        widest = max(read, key=size_bytes, default=output)
        operations = [n.op for n in walk(statement.value) if isinstance(n, Operation)]
        products = sum(name in _PRODUCTS for name in operations)
        additions = len(operations) - products
        per_point = products * _unit(tables, "multiply", widest)
        per_point += additions * _unit(tables, "add", widest)
        if statement.reduction is not None:
            per_point += _unit(tables, "add", output)
        energy += per_point * math.prod(instruction.extents.values())
    return energy


def _unit(tables: Technology, operation: str, dtype: str) -> float:
    """Return the picojoules of an operation; of float32 where no table has the type."""
    units = tables.tables.multiply if operation == "multiply" else tables.tables.add
    return units.get(dtype.removeprefix("u"), units["float32"]).energy_pj


_PRODUCTS = ("mul", "div")
"""Operations that count as multiplications."""
