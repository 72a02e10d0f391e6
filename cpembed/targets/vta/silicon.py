"""Area, leakage and energy of a VTA, from the figures of a technology.

Counted are the buffers, the queues of instructions, a multiplier and an adder for each product of
the GEMM core, an adder for each lane of the ALU, and accesses to main memory. Not counted: control,
wires, pipeline registers, the ALU's shifters, second ports of buffers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from cpembed.errors import SpecError
from cpembed.machine.technology import Sram, Technology, Unit
from cpembed.targets.vta.columns import MODULES
from cpembed.targets.vta.config import VtaConfig
from cpembed.targets.vta.formats import INSTRUCTION_BYTES
from cpembed.targets.vta.isa import Memory
from cpembed.targets.vta.order import QUEUED_INSTRUCTIONS

MACRO_BITS = 512
"""Width of a memory macro at most; wider elements lie in several, accessed together."""


@dataclass(frozen=True)
class Buffer:
    """``macros`` equal memories side by side, all of which an access takes."""

    macro: Sram
    macros: int

    @classmethod
    def of(cls, technology: Technology, capacity: int, element_bytes: int) -> Buffer:
        """Raises :class:`SpecError` where the technology has no such macro."""
        bits = 8 * element_bytes
        macros = max(1, math.ceil(bits / MACRO_BITS))
        return cls(technology.sram(capacity / macros, bits / macros), macros)

    @property
    def area_um2(self) -> float:
        return self.macros * self.macro.area_um2

    @property
    def leakage_w(self) -> float:
        return self.macros * self.macro.leakage_w


@dataclass(frozen=True)
class Silicon:
    """What a configuration is made of."""

    technology: Technology
    buffers: Mapping[Memory, Buffer]
    queue: Buffer
    mac: Unit
    lane: Unit
    macs: int
    lanes: int

    @classmethod
    def of(cls, config: VtaConfig, technology: Technology) -> Silicon:
        """Raises :class:`SpecError` for a buffer that the technology has no figures for: which,
        and the remedy."""
        buffers: dict[Memory, Buffer] = {}
        for memory in Memory:
            size = config.element_bytes(memory)
            try:
                buffers[memory] = Buffer.of(technology, config.elements(memory) * size, size)
            except SpecError as error:
                raise SpecError(f"{memory.name}: {error}; change the buffer's size") from None
        lanes = config.batch * config.block
        return cls(
            technology,
            buffers,
            Buffer.of(technology, QUEUED_INSTRUCTIONS * INSTRUCTION_BYTES, INSTRUCTION_BYTES),
            technology.mac("int8", "int32"),
            technology.add("int32"),
            lanes * config.block,
            lanes,
        )

    @property
    def area_um2(self) -> float:
        memories = sum(buffer.area_um2 for buffer in self.buffers.values())
        units = self.macs * self.mac.area_um2 + self.lanes * self.lane.area_um2
        return memories + len(MODULES) * self.queue.area_um2 + units

    @property
    def leakage_w(self) -> float:
        memories = sum(buffer.leakage_w for buffer in self.buffers.values())
        return memories + len(MODULES) * self.queue.leakage_w

    def energy_pj(self, counts: Mapping[str, float]) -> float:
        """Of what :func:`~cpembed.targets.vta.work.counts` names, without leakage."""
        total = counts["macs"] * self.mac.energy_pj + counts["alu"] * self.lane.energy_pj
        total += self.technology.dram_pj(counts["dram.read"] + counts["dram.write"])
        for memory, buffer in self.buffers.items():
            name = memory.name.lower()
            total += counts[f"{name}.read"] * buffer.macro.read_pj_per_byte
            total += counts[f"{name}.write"] * buffer.macro.write_pj_per_byte
        return total
