"""A derived program in this target's terms: which loops move which tile, and what a tile takes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from cpembed.errors import LoweringError
from cpembed.hw.machine import MemoryInterface
from cpembed.ir.dtypes import size_bytes
from cpembed.transform.program import DerivedProgram, PackedOperand


@dataclass(frozen=True)
class Tile:
    """The tile of an operand: the outer ``loops`` that move it, and the ``cycles`` that the bus
    takes to transfer it."""

    operand: PackedOperand
    loops: frozenset[str]
    cycles: int


@dataclass(frozen=True)
class Walk:
    """A program as a walk over tiles: outer loops with their extents, inputs, the output."""

    program: DerivedProgram
    extents: Mapping[str, int]
    inputs: tuple[Tile, ...]
    output: Tile


def lower(program: DerivedProgram, machine: MemoryInterface) -> Walk:
    """Raises :class:`LoweringError` for a program that this unit does not execute."""
    if len(program.workload.outputs) != 1 or program.overlaps:
        raise LoweringError(f"{program.workload.name}: the unit stores one output, each tile once")
    extents = {loop.name: loop.extent for loop in program.loops}
    lanes = {lane.name: lane.extent for lane in program.instruction_axes}

    def tile(operand: PackedOperand) -> Tile:
        used = {name for index in operand.access for name in index.iterators}
        elements = math.prod(extent for name, extent in lanes.items() if name in used)
        bits = 8 * size_bytes(operand.dtype) * elements
        return Tile(operand, frozenset(used & set(extents)), -(-bits // machine.bus_bits))

    *inputs, output = (tile(operand) for operand in program.operands)
    return Walk(program, extents, tuple(inputs), output)
