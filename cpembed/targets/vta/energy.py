"""Area, leakage and energy of a VTA, from a technology's tables and the counts of a program.

Counted are the buffers, the queues of instructions, a multiplier and an adder for each product of
the GEMM core, an adder for each lane of the ALU, and accesses to main memory. Not counted: control,
wires, pipeline registers, the ALU's shifters, second ports of buffers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from cpembed.errors import SpecError
from cpembed.machine.technology import Sram, Technology, Unit
from cpembed.targets.vta.encoding import INSTRUCTION_BYTES, Opcode
from cpembed.targets.vta.isa import Memory, VtaConfig
from cpembed.targets.vta.program import MODULES, Columns, VtaProgram, columns_of
from cpembed.targets.vta.timing import executed
from cpembed.targets.vta.tokens import QUEUED_INSTRUCTIONS


@dataclass(frozen=True)
class Work:
    """Executions of the GEMM core (``products``), resets and operations of the ALU, each of a tile;
    elements of each memory that LOADs and STOREs move; 16-byte ``instructions``."""

    products: int
    resets: int
    operations: int
    moved: Mapping[Memory, int]
    instructions: int = 0


def work_of(program: VtaProgram) -> Work:
    """Of a program, exactly; zeros that a LOAD adds are not moved."""
    columns = columns_of(program.instructions, program.config)
    runs = executed(columns)
    reset = columns["reset"] == 1
    gemm, alu = columns.is_a(Opcode.GEMM), columns.is_a(Opcode.ALU)
    return Work(
        int(runs[gemm & ~reset].sum()),
        int(runs[gemm & reset].sum()),
        int(runs[alu].sum()),
        {memory: _moved(columns, memory) for memory in Memory},
        len(columns),
    )


def _moved(columns: Columns, memory: Memory) -> int:
    rows = columns.transfers(memory)
    return int(np.sum((columns["x"] * columns["y"])[rows]))


def counts(work: Work, config: VtaConfig) -> dict[str, float]:
    """Multiply-accumulates; operations of the ALU on an accumulator; bytes by memory and direction.

    A product reads a micro-op, an element of INP, one of WGT and an accumulator, and writes that
    and what STORE reads (OUT); a reset writes an accumulator; an operation reads one and writes it
    and OUT. What is loaded is written, what is stored is read.
    """
    size = {memory: config.element_bytes(memory) for memory in Memory}
    moved = {memory: size[memory] * work.moved.get(memory, 0) for memory in Memory}
    lanes = config.batch * config.block
    sums = work.products + work.operations
    return {
        "macs": float(work.products * lanes * config.block),
        "alu": float(work.operations * lanes),
        "dram.read": float(
            INSTRUCTION_BYTES * work.instructions
            + sum(moved[m] for m in Memory if m is not Memory.OUT)
        ),
        "dram.write": float(moved[Memory.OUT]),
        "uop.read": float((sums + work.resets) * size[Memory.UOP]),
        "uop.write": float(moved[Memory.UOP]),
        "inp.read": float(work.products * size[Memory.INP]),
        "inp.write": float(moved[Memory.INP]),
        "wgt.read": float(work.products * size[Memory.WGT]),
        "wgt.write": float(moved[Memory.WGT]),
        "acc.read": float(sums * size[Memory.ACC]),
        "acc.write": float((sums + work.resets) * size[Memory.ACC] + moved[Memory.ACC]),
        "out.write": float(sums * size[Memory.OUT]),
        "out.read": float(moved[Memory.OUT]),
    }


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
        """Of what :func:`~cpembed.targets.vta.energy.counts` names, without leakage."""
        total = counts["macs"] * self.mac.energy_pj + counts["alu"] * self.lane.energy_pj
        total += self.technology.dram_pj(counts["dram.read"] + counts["dram.write"])
        for memory, buffer in self.buffers.items():
            name = memory.name.lower()
            total += counts[f"{name}.read"] * buffer.macro.read_pj_per_byte
            total += counts[f"{name}.write"] * buffer.macro.write_pj_per_byte
        return total
