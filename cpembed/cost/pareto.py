"""Candidates that no other candidate beats in every respect: MACs, data moved, footprint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from cpembed.cost.ranking import RankedCandidate
from cpembed.ir.dtypes import size_bytes


class Objectives(NamedTuple):
    """Costs of a candidate; less is better in each.

    ``moved_bytes`` are read and written by packing and unpacking; ``footprint_bytes`` are taken by
    all operands in the layouts that the candidate needs.
    """

    executed_macs: int
    moved_bytes: int
    footprint_bytes: int

    def dominates(self, rival: Objectives) -> bool:
        """At least as good in every respect and better in one.

        >>> Objectives(8, 0, 64).dominates(Objectives(8, 16, 64))
        True
        >>> Objectives(8, 0, 64).dominates(Objectives(8, 0, 64))
        False
        """
        return self != rival and all(a <= b for a, b in zip(self, rival, strict=True))


def objectives(candidate: RankedCandidate) -> Objectives:
    cost, operands = candidate.overheads, candidate.program.operands
    footprint = sum(operand.elements * size_bytes(operand.dtype) for operand in operands)
    return Objectives(cost.executed_macs, cost.packing_bytes, footprint)


def front(candidates: Sequence[RankedCandidate]) -> tuple[RankedCandidate, ...]:
    """The candidates that no other one dominates, in the order given.

    Candidates of equal costs do not dominate each other: all of them stay.
    """
    nondominated: set[Objectives] = set()
    # Whatever dominates a point comes before it in this order, and if that is itself dominated,
    # then by a point of the front: comparing with the front so far is enough.
    for point in sorted({objectives(item) for item in candidates}):
        if not any(rival.dominates(point) for rival in nondominated):
            nondominated.add(point)
    return tuple(item for item in candidates if objectives(item) in nondominated)
