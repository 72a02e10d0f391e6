"""Candidates that read and write the workload's operands where they are.

A derived program has the layouts of least footprint. Where the instruction can walk an operand as
it comes, leaving it there may take more memory (rows that a stride skips) and yet moves nothing;
and an axis that no tile divides need not be padded, which copies all of an operand for a margin, if
the last tile moves back over the one before.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from cpembed.backends.packing import packed_before
from cpembed.cost.overheads import overheads
from cpembed.cost.ranking import RankedCandidate
from cpembed.errors import TransformError
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.dtypes import size_bytes
from cpembed.strategy.candidate import derive_candidate
from cpembed.transform.program import DerivedProgram
from cpembed.tune.cpu_choice import moved


def beside_in_place(
    candidates: Iterable[RankedCandidate], spec: HardwareSpec
) -> tuple[RankedCandidate, ...]:
    """The candidates, before each one the same embedding on operands in place, where that moves
    less. These keep the rank and the score of the embedding, and are not proven yet."""
    found: list[RankedCandidate] = []
    for ranked in candidates:
        twin = in_place(ranked, spec)
        found += [ranked] if twin is None else [twin, ranked]
    return tuple(found)


def in_place(ranked: RankedCandidate, spec: HardwareSpec) -> RankedCandidate | None:
    """The same embedding on operands in place; None where the instruction cannot take them from
    there, or where no less is moved."""
    program = ranked.candidate.program
    workload = program.original or program.workload
    if program.in_place or not moved(program):
        return None
    ahead = packed_before(workload)
    names = tuple(o.name for o in workload.operands if o.name not in ahead)
    embedding = ranked.candidate.embedding
    try:
        candidate = derive_candidate(workload, spec.instruction, embedding, in_place=names)
    except TransformError:
        return None
    if _moved_bytes(candidate.program) >= _moved_bytes(program):
        return None
    return replace(ranked, candidate=candidate, overheads=overheads(candidate.program))


def _moved_bytes(program: DerivedProgram) -> int:
    """Read and written whenever the kernel runs."""
    return sum(
        (o.elements + math.prod(o.original_shape)) * size_bytes(o.dtype) for o in moved(program)
    )
