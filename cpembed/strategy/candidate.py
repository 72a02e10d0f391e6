"""Strategies: an embedding with the program derived from it, proven before it is shown."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cpembed.embedding.embedding import Embedding
from cpembed.errors import TransformError
from cpembed.hw.instruction import Instruction
from cpembed.ir.computation import Computation
from cpembed.transform.derive import derive
from cpembed.transform.program import DerivedProgram


@dataclass(frozen=True)
class Candidate:
    """One way to execute the workload: the embedding and its program."""

    embedding: Embedding
    program: DerivedProgram


def derive_candidates(
    workload: Computation, instruction: Instruction, embeddings: Iterable[Embedding]
) -> tuple[tuple[Candidate, ...], tuple[str, ...]]:
    """Candidates of the embeddings, and the reasons of those that no rewrite can serve."""
    candidates: list[Candidate] = []
    refused: list[str] = []
    for embedding in embeddings:
        try:
            candidates.append(Candidate(embedding, derive(workload, instruction, embedding)))
        except TransformError as error:
            refused.append(str(error))
    return tuple(candidates), tuple(refused)
