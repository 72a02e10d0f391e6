"""Candidates: embeddings with the programs derived from them, and their overheads.

Overheads are those over the workload's minimum (Rieber et al. 2021, section 4.4).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from cpembed.embedding.embedding import Embedding
from cpembed.hw.instruction import Instruction
from cpembed.ir.computation import Computation
from cpembed.ir.dtypes import size_bytes
from cpembed.ir.index import IndexExpr
from cpembed.transform.derive import LayoutCache, derive
from cpembed.transform.program import DerivedProgram, PackedDimension


@dataclass(frozen=True)
class Candidate:
    """Embedding and the program that executes the workload with it.

    ``variant`` names the change from the embedding that a search returned; empty if there is none.
    """

    embedding: Embedding
    program: DerivedProgram
    variant: str = ""

    @property
    def identifier(self) -> str:
        """Id of the embedding, with the names of the operands that the program keeps in place."""
        document = "".join(f"+{name}" for name in self.program.in_place)
        return f"{self.embedding.identifier()}{document}"


def derive_candidate(
    workload: Computation,
    instruction: Instruction,
    embedding: Embedding,
    cache: LayoutCache | None = None,
    in_place: Collection[str] = (),
) -> Candidate:
    """Return the candidate of an embedding.

    Parameters
    ----------
    workload, instruction, embedding
        Problem and its solution.
    cache : LayoutCache, optional
        Layouts shared with other embeddings of the same problem.
    in_place : collection of str
        Operands that keep their layouts.

    Raises
    ------
    TransformError
        No rewrite serves the embedding.
    """
    return Candidate(embedding, derive(workload, instruction, embedding, cache, in_place))


@dataclass(frozen=True)
class Overheads:
    """Costs of a program, beside the minimum of the workload itself.

    Parameters
    ----------
    macs : int
        Multiply-accumulates of the workload.
    executed_macs : int
        Those of the program, with each execution at the instruction's largest extents: a unit that
        is configured to fewer rows is occupied all the same.
    calls : int
        Number of executions of the instruction.
    data, packed_data : int
        Elements of the operands in their original and in the packed layouts.
    footprint : mapping of str to int
        Packed elements by operand.
    packing_bytes : int
        Bytes read and written by packing and unpacking; operands in place cost none.
    in_place : tuple of str
        Operands whose layouts are the same memory.
    useful_macs : int
        ``macs`` without products with zeros inserted between an operand's elements.
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
        """Elements in the packed layouts relative to the original ones."""
        return self.packed_data / self.data

    @property
    def utilisation(self) -> float:
        """Useful share of the MACs executed."""
        return self.useful_macs / self.executed_macs

    @property
    def occupancy(self) -> float:
        """Share of the MACs executed that the workload has, useful or not.

        Another embedding may have a higher one; the utilisation depends on the workload too.
        """
        return self.macs / self.executed_macs

    def score(self, mac_weight: float, data_weight: float) -> float:
        """Return the weighted norm of the two absolute overheads; 0 if nothing is wasted."""
        mac = mac_weight * (self.executed_macs - self.macs)
        data = data_weight * (self.packed_data - self.data)
        return math.hypot(mac, data)


def overheads(program: DerivedProgram) -> Overheads:
    """Return the costs of a program; ports of one tensor share elements in the same layout."""
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
        macs=program.unfused.macs,
        executed_macs=program.calls * program.instruction.macs,
        calls=program.calls,
        data=sum(original.values()),
        packed_data=sum(footprint.values()),
        footprint=footprint,
        packing_bytes=moved,
        in_place=tuple(in_place),
        useful_macs=program.unfused.useful_macs,
    )
