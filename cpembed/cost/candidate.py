"""Strategies: an embedding with the program derived from it, proven before it is shown."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from cpembed.embedding.embedding import Embedding
from cpembed.hw.instruction import Instruction
from cpembed.ir.computation import Computation
from cpembed.transform.derive import LayoutCache, derive
from cpembed.transform.program import DerivedProgram


@dataclass(frozen=True)
class Candidate:
    """One way to execute the workload: the embedding and its program.

    ``variant`` says what the embedding has that the one it was made from has not; empty where a
    search found it.
    """

    embedding: Embedding
    program: DerivedProgram
    variant: str = ""

    @property
    def identifier(self) -> str:
        """The embedding's id, with the names of the operands that the program keeps in place."""
        document = "".join(f"+{name}" for name in self.program.in_place)
        return f"{self.embedding.identifier()}{document}"


def derive_candidate(
    workload: Computation,
    instruction: Instruction,
    embedding: Embedding,
    cache: LayoutCache | None = None,
    in_place: Collection[str] = (),
) -> Candidate:
    """The candidate of an embedding; raises TransformError where no rewrite can serve it.

    ``in_place`` names operands that keep their layouts (:func:`~cpembed.transform.derive.derive`).
    """
    return Candidate(embedding, derive(workload, instruction, embedding, cache, in_place))
