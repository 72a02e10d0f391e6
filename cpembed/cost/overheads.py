"""Overheads of a program over the workload's minimum (Rieber et al. 2021, section 4.4)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from cpembed.ir.dtypes import size_bytes
from cpembed.ir.index import IndexExpr
from cpembed.transform.program import DerivedProgram, PackedDimension


@dataclass(frozen=True)
class Overheads:
    """Costs of a program: what it executes and stores, and what the workload itself would.

    ``executed_macs`` counts each execution at the instruction's largest extents: a unit that is
    configured to fewer rows is occupied all the same. ``footprint`` is in elements per workload
    operand, packed. ``packing_bytes`` counts bytes read and written by packing and unpacking;
    operands used in place cost none. ``useful_macs``: the workload's without products with zeros
    that were inserted between an operand's elements.
    """

    macs: int
    executed_macs: int
    calls: int
    data: int
    packed_data: int
    footprint: Mapping[str, int]
    packing_bytes: int
    in_place: tuple[str, ...]
    useful_macs: int

    @property
    def mac_overhead(self) -> float:
        """MACs executed relative to the minimum."""
        return self.executed_macs / self.macs

    @property
    def data_overhead(self) -> float:
        """Elements in the needed layouts relative to the operands' own."""
        return self.packed_data / self.data

    @property
    def utilisation(self) -> float:
        """Useful share of the MACs executed."""
        return self.useful_macs / self.executed_macs

    @property
    def occupancy(self) -> float:
        """Share of the MACs executed that the workload has, useful or not: what another embedding
        could make larger."""
        return self.macs / self.executed_macs

    def score(self, mac_weight: float, data_weight: float) -> float:
        """Weighted norm of the two absolute overheads; 0 when nothing is wasted."""
        mac = mac_weight * (self.executed_macs - self.macs)
        data = data_weight * (self.packed_data - self.data)
        return math.hypot(mac, data)


def overheads(program: DerivedProgram) -> Overheads:
    """Costs of a program; ports of one tensor share what they hold in the same layout."""
    original: dict[str, int] = {}
    footprint: dict[str, int] = {}
    moved = 0
    in_place: list[str] = []
    tensors: set[tuple[str, tuple[PackedDimension, ...], tuple[IndexExpr, ...]]] = set()
    for operand in program.operands:
        tensor = program.workload.operand(operand.name).tensor
        original[tensor] = math.prod(operand.original_shape)
        if operand.is_identity:
            in_place.append(operand.name)
        elements = (tensor, operand.dimensions, operand.source)
        if elements in tensors:
            continue
        tensors.add(elements)
        footprint[operand.name] = operand.elements
        if not operand.is_identity:
            moved += (original[tensor] + operand.elements) * size_bytes(operand.dtype)
    return Overheads(
        program.unfused.macs,
        program.calls * program.instruction.macs,
        program.calls,
        sum(original.values()),
        sum(footprint.values()),
        footprint,
        moved,
        tuple(in_place),
        program.unfused.useful_macs,
    )
