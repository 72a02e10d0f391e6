"""Ranking candidates by the weighted overheads (Rieber et al. 2021, section 4.4)."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from cpembed.cost.best_first import Bounded, best_first
from cpembed.cost.bounds import Lower
from cpembed.cost.candidate import Candidate, derive_candidate
from cpembed.cost.overheads import Overheads, overheads
from cpembed.embedding.constraint_set import Weights
from cpembed.embedding.embedding import Embedding
from cpembed.embedding.result import spaces_of
from cpembed.errors import TransformError
from cpembed.hw.instruction import Instruction
from cpembed.ir.computation import Computation
from cpembed.time_limit import OutOfTime, check_time, within
from cpembed.transform.derive import LayoutCache
from cpembed.transform.program import DerivedProgram


@dataclass(frozen=True)
class RankedCandidate:
    """A candidate with its place (1 is best) in the ranking of the constraint set ``constraints``,
    its overheads and its score (lower is better)."""

    rank: int
    candidate: Candidate
    overheads: Overheads
    score: float
    constraints: str = ""

    @property
    def embedding(self) -> Embedding:
        """Embedding of the instruction in the workload."""
        return self.candidate.embedding

    @property
    def program(self) -> DerivedProgram:
        """Program that was derived from the embedding."""
        return self.candidate.program

    @property
    def identifier(self) -> str:
        """Id of the embedding, with the names of the operands that stay in place."""
        return self.candidate.identifier

    @property
    def variant(self) -> str:
        """Name of the variant; empty if a search found the embedding."""
        return self.candidate.variant


@dataclass(frozen=True)
class Ranking:
    """The best candidates in ascending score.

    ``derived`` counts the embeddings whose program had to be derived to know; ``refused`` are the
    reasons of those that no rewrite can serve. ``cut``: time was over before all that had to be
    were.
    """

    candidates: tuple[RankedCandidate, ...]
    derived: int
    refused: tuple[str, ...]
    cut: bool = False


def rank(
    workload: Computation,
    instruction: Instruction,
    embeddings: Sequence[Embedding],
    weights: Weights,
    top: int | None = None,
    report: Callable[[int], None] = lambda count: None,
    layouts: LayoutCache | None = None,
    constraints: str = "",
    seconds: float | None = None,
) -> Ranking:
    """The ``top`` best of the embeddings, all of them where it is None.

    Equal scores are ordered by fewer executions of the instruction, fewer bytes moved by packing,
    then the embedding's canonical form, so that the order is the same on every machine. The digits
    bound all of it from below: embeddings are taken in the order of their bounds, and the first
    that cannot be among the best ``top`` ends the search. ``layouts`` keeps what was derived for
    another ranking of the same problem; ``constraints`` is the name of the set. After ``seconds``
    the best of those that were derived are returned.
    """
    if top == 0:
        return Ranking((), 0, ())
    cache: LayoutCache = {} if layouts is None else layouts
    best: list[tuple[_Key, Candidate, Overheads]] = []
    refused: list[str] = []
    derived, cut = 0, False

    def derive_all() -> None:
        nonlocal derived
        for item in _in_order(workload, instruction, embeddings, weights, top):
            check_time()
            if top is not None and len(best) >= top:
                last = best[-1][0]
                if item.lower > last.cost:
                    break
                if _Key(item.lower, repr(item.embedding.digits), item.space) > last:
                    continue
            derived += 1
            report(derived)
            try:
                candidate = derive_candidate(workload, instruction, item.embedding, cache)
            except TransformError as error:
                refused.append(str(error))
                continue
            cost = overheads(candidate.program)
            paid = Lower(cost.score(weights.mac, weights.data), cost.calls, cost.packing_bytes)
            key = _Key(paid, repr(item.embedding.digits), item.space)
            bisect.insort(best, (key, candidate, cost), key=lambda entry: entry[0])
            if top is not None:
                del best[top:]

    try:
        within(seconds, derive_all)
    except OutOfTime:
        if seconds is None:
            raise
        cut = True
    ranked = (
        RankedCandidate(n, candidate, cost, key.cost.score, constraints)
        for n, (key, candidate, cost) in enumerate(best[:top], 1)
    )
    return Ranking(tuple(ranked), derived, tuple(refused), cut)


@dataclass(frozen=True, order=True)
class _Key:
    """The order of the ranking; ``space`` is the number of the alternative problem."""

    cost: Lower
    canonical: str
    space: int


def _in_order(
    workload: Computation,
    instruction: Instruction,
    embeddings: Sequence[Embedding],
    weights: Weights,
    top: int | None,
) -> Iterator[Bounded]:
    """The embeddings as their bounds have it; as they come where all are wanted anyway."""
    if top is not None and top < len(embeddings):
        return best_first(workload, instruction, embeddings, weights)
    nothing = Lower(0.0, 0, 0)
    return (
        Bounded(nothing, number, embedding)
        for number, space in enumerate(spaces_of(embeddings))
        for embedding in space
    )
