"""Lowering: which loops move which tile, and how long a transfer takes."""

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
    """Tile of an operand: the outer loops that move it, and the bus cycles of a transfer."""

    operand: PackedOperand
    loops: frozenset[str]
    cycles: int


@dataclass(frozen=True)
class Walk:
    """Program as a walk over tiles: outer loops with their extents, inputs, output."""

    program: DerivedProgram
    extents: Mapping[str, int]
    inputs: tuple[Tile, ...]
    output: Tile


def lower(program: DerivedProgram, machine: MemoryInterface) -> Walk:
    """Lower a program. Raises :class:`LoweringError` if the unit cannot execute it."""
    if len(program.workload.outputs) != 1 or program.overlaps:
        raise LoweringError(f"{program.workload.name}: the unit stores one output, each tile once")
    extents = {loop.name: loop.extent for loop in program.loops}
    lanes = {lane.name: lane.extent for lane in program.instruction_axes}

    def tile(operand: PackedOperand) -> Tile:
        iterators = {name for index in operand.access for name in index.iterators}
        elements = math.prod(extent for name, extent in lanes.items() if name in iterators)
        # A transfer fills whole words of the bus.
        bits = 8 * size_bytes(operand.dtype) * elements
        return Tile(operand, frozenset(iterators & set(extents)), -(-bits // machine.bus_bits))

    *inputs, output = (tile(operand) for operand in program.operands)
    return Walk(program, extents, tuple(inputs), output)
