"""Ranking candidates by the weighted overheads (Rieber et al. 2021, section 4.4)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cpembed.cost.overheads import Overheads, overheads
from cpembed.embedding.constraint_set import Weights
from cpembed.strategy.candidate import Candidate


@dataclass(frozen=True)
class RankedCandidate:
    """A candidate with its place (1 is best), its overheads and its score (lower is better)."""

    rank: int
    candidate: Candidate
    overheads: Overheads
    score: float


def rank(candidates: Iterable[Candidate], weights: Weights) -> tuple[RankedCandidate, ...]:
    """Candidates in ascending score.

    Equal scores are ordered by fewer executions of the instruction, fewer bytes moved by packing,
    then the embedding's canonical form, so that the order is the same on every machine.
    """
    measured = [(candidate, overheads(candidate.program)) for candidate in candidates]

    def key(item: tuple[Candidate, Overheads]) -> tuple[float, int, int, str]:
        candidate, cost = item
        return (
            cost.score(weights.mac, weights.data),
            cost.calls,
            cost.packing_bytes,
            repr(candidate.embedding.digits),
        )

    return tuple(
        RankedCandidate(n, candidate, cost, cost.score(weights.mac, weights.data))
        for n, (candidate, cost) in enumerate(sorted(measured, key=key), 1)
    )
