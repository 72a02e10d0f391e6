"""Strategies: an embedding with the program derived from it, proven before it is shown."""

from __future__ import annotations

from dataclasses import dataclass

from cpembed.embedding.embedding import Embedding
from cpembed.hw.instruction import Instruction
from cpembed.ir.computation import Computation
from cpembed.transform.derive import LayoutCache, derive
from cpembed.transform.program import DerivedProgram


@dataclass(frozen=True)
class Candidate:
    """One way to execute the workload: the embedding and its program."""

    embedding: Embedding
    program: DerivedProgram


def derive_candidate(
    workload: Computation,
    instruction: Instruction,
    embedding: Embedding,
    cache: LayoutCache | None = None,
) -> Candidate:
    """The candidate of an embedding; raises TransformError where no rewrite can serve it."""
    return Candidate(embedding, derive(workload, instruction, embedding, cache))
