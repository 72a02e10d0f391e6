"""Choose the mappings of a workload that take part in a table."""

from __future__ import annotations

from dataclasses import dataclass

from cpembed.cost.ranking import Candidate, Overheads, derive_candidate, overheads
from cpembed.driver.solve import solve
from cpembed.embedding.constraint_set import load_constraint_set
from cpembed.embedding.embedding import Embedding
from cpembed.embedding.search import find_embeddings
from cpembed.errors import TransformError
from cpembed.hw.instruction import Instruction
from cpembed.ir.computation import Computation
from cpembed.transform.proof import require

SETS = ("relaxed", "flattened")
TOP = 5
"""Number of mappings of each set, as in the paper."""


@dataclass(frozen=True, eq=False)
class Mapping:
    """A proven candidate, with the names of the constraint sets that it was found in."""

    candidate: Candidate
    overheads: Overheads
    found_in: tuple[str, ...]

    @property
    def identifier(self) -> str:
        return self.candidate.embedding.identifier()

    @property
    def elements(self) -> dict[str, int]:
        """Return the elements of image and weights as they are packed."""
        return {name: self.overheads.footprint[name] for name in ("I", "W")}


def best_by_score(workload: Computation, target: str) -> list[Mapping]:
    """Return the best mappings of each set by the sum of both overheads (weights [1, 1])."""
    mappings: dict[str, Mapping] = {}
    for constraints in SETS:
        for ranked in solve(workload, target, constraints=constraints, top=TOP).embeddings:
            mapping = Mapping(ranked.candidate, ranked.overheads, (constraints,))
            earlier = mappings.get(mapping.identifier)
            if earlier is not None:
                mapping = Mapping(
                    earlier.candidate, earlier.overheads, (*earlier.found_in, constraints)
                )
            mappings[mapping.identifier] = mapping
    return list(mappings.values())


def smallest(workload: Computation, instruction: Instruction, top: int) -> list[Mapping]:
    """Return the mappings of ``relaxed`` with the smallest image and weights together.

    All mappings are enumerated; equal ones are ordered by their scores.
    """
    constraints = load_constraint_set(SETS[0])
    search = find_embeddings(workload, instruction, constraints)
    if not search.complete:
        raise RuntimeError(f"{workload}: the enumeration did not end")
    weights = constraints.weights
    sized: list[tuple[tuple[float, ...], Embedding, Overheads]] = []
    for embedding in search.embeddings:
        try:
            cost = overheads(derive_candidate(workload, instruction, embedding).program)
        except TransformError:
            continue
        elements = cost.footprint["I"] + cost.footprint["W"]
        sized.append(((elements, cost.score(weights.mac, weights.data)), embedding, cost))
    sized.sort(key=lambda item: item[0])
    mappings: list[Mapping] = []
    for _, embedding, cost in sized[:top]:
        candidate = derive_candidate(workload, instruction, embedding)
        require(candidate.program)
        mappings.append(Mapping(candidate, cost, (constraints.name,)))
    return mappings


def digits_text(embedding: Embedding) -> str:
    """Return the digits of each instruction axis, innermost first."""
    parts: list[str] = []
    for name, digits in embedding.digits.items():
        words = [f"{d.axis}:{d.count}" + f" by {d.stride}" * (d.stride > 1) for d in digits]
        parts.append(f"{name} <- {' '.join(words) or '.'}")
    return ", ".join(parts)
