"""What a program does, in tiles, and the counts of it that energy is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from cpembed.targets.vta.columns import Columns, columns_of
from cpembed.targets.vta.config import VtaConfig
from cpembed.targets.vta.formats import INSTRUCTION_BYTES, Opcode
from cpembed.targets.vta.isa import Memory
from cpembed.targets.vta.program import VtaProgram
from cpembed.targets.vta.timing import executed


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
