"""Area, leakage and energy of a VTA, from a technology's tables and the counts of a program.

Counted are the buffers, the queues of instructions, a multiplier and an adder for each product of
the GEMM core, an adder for each lane of the ALU, and accesses to main memory. Not counted: control,
wires, pipeline registers, the ALU's shifters, second ports of buffers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from cpembed.cost.machine.technology import Sram, Technology, Unit
from cpembed.errors import SpecError
from cpembed.targets.vta.encoding import columns_of
from cpembed.targets.vta.isa import INSTRUCTION_BYTES, MODULES, Memory, Opcode, VtaConfig
from cpembed.targets.vta.program import VtaProgram
from cpembed.targets.vta.timing import executed_uops
from cpembed.targets.vta.tokens import QUEUED_INSTRUCTIONS


@dataclass(frozen=True)
class Work:
    """Work of a program.

    Attributes
    ----------
    products, resets, operations
        Tiles that the GEMM core multiplies and resets, and that the ALU operates on.
    moved
        Elements that LOADs and STOREs transfer, by memory.
    instructions
        Instructions of 16 bytes.
    """

    products: int
    resets: int
    operations: int
    moved: Mapping[Memory, int]
    instructions: int = 0


def work_of(program: VtaProgram) -> Work:
    """Count the work of a program; zeros that a LOAD adds are not transferred."""
    columns = columns_of(program.instructions, program.config)
    runs = executed_uops(columns)
    reset = columns["reset"] == 1
    gemm, alu = columns.is_a(Opcode.GEMM), columns.is_a(Opcode.ALU)
    elements = columns["x"] * columns["y"]
    return Work(
        products=int(runs[gemm & ~reset].sum()),
        resets=int(runs[gemm & reset].sum()),
        operations=int(runs[alu].sum()),
        moved={memory: int(elements[columns.transfers(memory)].sum()) for memory in Memory},
        instructions=len(columns),
    )


def energy_counts(work: Work, config: VtaConfig) -> dict[str, float]:
    """Return the counts that energy is made of.

    These are multiply-accumulates, operations of the ALU on an accumulator, and bytes by memory and
    direction. A product reads a micro-op, an element of INP, one of WGT and an accumulator, and
    writes the accumulator and OUT, which STORE reads; a reset writes an accumulator; an operation
    reads one and writes it and OUT. A LOAD writes its memory.
    """
    size = {memory: config.element_bytes(memory) for memory in Memory}
    transferred = {memory: size[memory] * work.moved.get(memory, 0) for memory in Memory}
    lanes = config.batch * config.block
    # What is read from ACC and written to OUT as well; a reset is only written, to ACC.
    sums = work.products + work.operations
    return {
        "macs": float(work.products * lanes * config.block),
        "alu": float(work.operations * lanes),
        "dram.read": float(
            INSTRUCTION_BYTES * work.instructions
            + sum(transferred[m] for m in Memory if m is not Memory.OUT)
        ),
        "dram.write": float(transferred[Memory.OUT]),
        "uop.read": float((sums + work.resets) * size[Memory.UOP]),
        "uop.write": float(transferred[Memory.UOP]),
        "inp.read": float(work.products * size[Memory.INP]),
        "inp.write": float(transferred[Memory.INP]),
        "wgt.read": float(work.products * size[Memory.WGT]),
        "wgt.write": float(transferred[Memory.WGT]),
        "acc.read": float(sums * size[Memory.ACC]),
        "acc.write": float((sums + work.resets) * size[Memory.ACC] + transferred[Memory.ACC]),
        "out.write": float(sums * size[Memory.OUT]),
        "out.read": float(transferred[Memory.OUT]),
    }


MACRO_BITS = 512
"""Maximum width of a memory macro; wider elements lie in several, accessed together."""


@dataclass(frozen=True)
class Buffer:
    """Buffer of ``macros`` equal memories, each access using all of them."""

    macro: Sram
    macros: int

    @classmethod
    def from_size(cls, technology: Technology, capacity: int, element_bytes: int) -> Buffer:
        """Return the buffer of a size in bytes.

        Raises :class:`SpecError` if the technology has no macro of the size.
        """
        bits = 8 * element_bytes
        # Side by side: the capacity and the width of an element are divided alike.
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
    """Memories and arithmetic units of a configuration, in a technology."""

    technology: Technology
    buffers: Mapping[Memory, Buffer]
    queue: Buffer
    mac: Unit
    lane: Unit
    macs: int
    lanes: int

    @classmethod
    def from_config(cls, config: VtaConfig, technology: Technology) -> Silicon:
        """Return the hardware of a configuration.

        Raises :class:`SpecError` for a buffer whose size the technology's tables lack.
        """
        buffers: dict[Memory, Buffer] = {}
        for memory in Memory:
            size = config.element_bytes(memory)
            try:
                buffers[memory] = Buffer.from_size(technology, config.elements(memory) * size, size)
            except SpecError as error:
                raise SpecError(f"{memory.name}: {error}; change the buffer's size") from None
        lanes = config.batch * config.block
        # A queue of instructions is a memory too.
        queue_bytes = QUEUED_INSTRUCTIONS * INSTRUCTION_BYTES
        return cls(
            technology=technology,
            buffers=buffers,
            queue=Buffer.from_size(technology, queue_bytes, INSTRUCTION_BYTES),
            mac=technology.mac("int8", "int32"),
            lane=technology.add("int32"),
            macs=lanes * config.block,
            lanes=lanes,
        )

    @property
    def area_um2(self) -> float:
        # Each module has a queue of instructions; those of tokens are counters.
        memories = sum(buffer.area_um2 for buffer in self.buffers.values())
        units = self.macs * self.mac.area_um2 + self.lanes * self.lane.area_um2
        return memories + len(MODULES) * self.queue.area_um2 + units

    @property
    def leakage_w(self) -> float:
        memories = sum(buffer.leakage_w for buffer in self.buffers.values())
        return memories + len(MODULES) * self.queue.leakage_w

    def energy_pj(self, counts: Mapping[str, float]) -> float:
        """Return the energy of a program's :func:`energy_counts` in pJ, without leakage."""
        total = counts["macs"] * self.mac.energy_pj + counts["alu"] * self.lane.energy_pj
        total += self.technology.dram_pj(counts["dram.read"] + counts["dram.write"])
        for memory, buffer in self.buffers.items():
            name = memory.name.lower()
            total += counts[f"{name}.read"] * buffer.macro.read_pj_per_byte
            total += counts[f"{name}.write"] * buffer.macro.write_pj_per_byte
        return total
