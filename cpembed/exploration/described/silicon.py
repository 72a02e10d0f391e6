"""Area and energy of a described machine, from the tables of a technology.

Every memory with a capacity is an SRAM of as many banks as its width needs, or registers where it
is too small for one; main memory has the energy of DRAM and no area. Caches have no tags here. The
units that execute have a multiplier and an adder for each multiply-accumulate of a cycle. What no
source has is not counted: networks, DMA engines, control, and leakage of logic.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from cpembed.cost.machine.technology import Sram, Technology, Unit, technology
from cpembed.errors import SpecError
from cpembed.hw.instruction import HardwareSpec, Instruction
from cpembed.hw.machine import Hierarchy, Memory
from cpembed.ir.dtypes import size_bytes
from cpembed.targets.family import Activity

DEFAULT_TECHNOLOGY = "45nm"
"""Name of the tables where none are named."""

_WIDTHS = (8, 512)
"""Minimum and maximum bits of an access to a bank of SRAM in the tables."""

_MIN_SRAM_BYTES, _MIN_SRAM_WORDS = 64, 32
"""Minimum size of a bank: CACTI finds no organisation of a smaller one, which is a register file
instead."""


@dataclass(frozen=True)
class MemorySilicon:
    """Area and leakage of all units of a memory, and energies of a byte that one of them moves."""

    area_um2: float
    leakage_w: float
    read_pj: float
    write_pj: float
    kind: str
    """``SRAM``, ``registers`` or ``DRAM``."""

    @staticmethod
    def of_dram(tables: Technology) -> MemorySilicon:
        """Return main memory, which has no area of its own."""
        energy = tables.dram_pj(1)
        return MemorySilicon(0.0, 0.0, energy, energy, "DRAM")

    @staticmethod
    def of_memory(
        tables: Technology, size: float, bits: float, banks: int, units: int
    ) -> MemorySilicon:
        """Return the SRAM of each unit, or its registers where the tables have none so small.

        Parameters
        ----------
        tables
            The technology.
        size
            Bytes of a unit's memory.
        bits
            Bits of an access to a bank.
        banks
            Number of banks of a unit's memory.
        units
            Number of units.
        """
        if size / banks < max(_MIN_SRAM_BYTES, _MIN_SRAM_WORDS * bits / 8):
            area, energy = tables.register_area_um2(8 * size), tables.register_pj(8)
            return MemorySilicon(area * units, 0.0, energy, energy, "registers")
        return MemorySilicon.of_sram(tables.sram(size, bits, banks), units)

    @staticmethod
    def of_sram(sram: Sram, units: int = 1) -> MemorySilicon:
        """Return the SRAM of all units."""
        area, leakage = sram.area_um2 * units, sram.leakage_w * units
        read, write = sram.read_pj_per_byte, sram.write_pj_per_byte
        return MemorySilicon(area, leakage, read, write, "SRAM")


@dataclass(frozen=True)
class Silicon:
    """Areas, leakage and energies of a machine's parts, by memory.

    ``compute_pj`` is the energy of what is ``computed``, the name of a count of an activity, and
    ``units_um2`` the area of the units that compute.
    """

    memories: Mapping[str, MemorySilicon]
    units_um2: float
    computed: str
    compute_pj: float

    @property
    def area_um2(self) -> float:
        return self.units_um2 + sum(memory.area_um2 for memory in self.memories.values())

    @property
    def leakage_w(self) -> float:
        return sum(memory.leakage_w for memory in self.memories.values())

    def energy_pj(self, activity: Activity, clock_mhz: float) -> float:
        """Return the energy of a layer, including leakage during its cycles."""
        return math.fsum(self.energy_by_level(activity, clock_mhz).values())

    def energy_by_level(self, activity: Activity, clock_mhz: float) -> dict[str, float]:
        """Return the energy of a layer's executions, of each memory, and of leakage."""
        counts = activity.counts
        levels = {"compute": counts[self.computed] * self.compute_pj}
        for name, memory in self.memories.items():
            levels[name] = counts.get(f"{name}.read", 0.0) * memory.read_pj
            levels[name] += counts.get(f"{name}.written", 0.0) * memory.write_pj
        # W over cycles of 1/MHz is uJ.
        return levels | {"leakage": self.leakage_w * activity.cycles / clock_mhz * 1e6}


def silicon(spec: HardwareSpec, machine: Hierarchy, name: str = DEFAULT_TECHNOLOGY) -> Silicon:
    """Return areas and energies of a machine of a target.

    Parameters
    ----------
    spec
        The target.
    machine
        One of its machines.
    name
        Name of the technology.

    Raises
    ------
    SpecError
        Where the tables do not have a part, with the key that would help.
    """
    tables, instruction = technology(name), spec.instruction
    if machine.mesh is not None:
        raise SpecError(f"machines.{machine.name}.mesh: area and energy of a mesh are not known")
    memories: dict[str, MemorySilicon] = {}
    for memory in machine.memories.values():
        try:
            memories[memory.name] = _memory(memory, machine, instruction, tables)
        except SpecError as error:
            raise SpecError(f"memory {memory.name}: no area and energy: {error}") from None
    mac = _mac(instruction, tables)
    # An execution that takes several cycles uses its multipliers one after the other.
    multipliers = math.ceil(instruction.macs / machine.compute.cycles)
    units = machine.levels[0][0].units * multipliers
    compute_pj = instruction.macs * mac.energy_pj
    return Silicon(memories, units * mac.area_um2, "executions", compute_pj)


def tile_bytes(instruction: Instruction, operand: str) -> int:
    """Return the bytes of an operand's tile of one execution."""
    elements = math.prod(instruction.tile_shape(operand))
    return elements * size_bytes(instruction.dtypes[operand][0])


def _mac(instruction: Instruction, tables: Technology) -> Unit:
    computation = instruction.computation
    if len(computation.inputs) != 2 or len(computation.outputs) != 1:
        raise SpecError(f"no area and energy: {instruction.name} is no product of two factors")
    (output,) = computation.outputs
    widest = max(
        (instruction.dtypes[operand.name][0] for operand in computation.inputs), key=size_bytes
    )
    return tables.mac(widest, instruction.dtypes[output.name][0])


def _memory(
    memory: Memory, machine: Hierarchy, instruction: Instruction, tables: Technology
) -> MemorySilicon:
    if memory.parent is None:
        return MemorySilicon.of_dram(tables)
    tiles = sum(
        tile_bytes(instruction, name)
        for name, place in instruction.memory.items()
        if place.scope == memory.name
    )
    # Bytes a cycle: a memory that holds operands feeds an execution, any other one those below it.
    width = tiles / machine.compute.cycles if not memory.level else memory.read_bytes
    capacity = memory.capacity_bytes
    if capacity is None:
        if memory.level:
            raise SpecError("its capacity_bytes is not in the file")
        capacity = tiles
    bits = max(8 * width, float(_WIDTHS[0]))
    banks = max(memory.banks, math.ceil(bits / _WIDTHS[1]), 1)
    bits = max(bits / banks, float(_WIDTHS[0]))
    return MemorySilicon.of_memory(tables, capacity, bits, banks, memory.units)
