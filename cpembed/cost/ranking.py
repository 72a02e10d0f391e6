"""Ranking candidates by the weighted overheads (Rieber et al. 2021, section 4.4)."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from cpembed.cost.overheads import Overheads, overheads
from cpembed.embedding.constraint_set import Weights
from cpembed.embedding.embedding import Embedding
from cpembed.embedding.flatten import flatten
from cpembed.errors import TransformError
from cpembed.hw.instruction import Instruction
from cpembed.ir.computation import Computation
from cpembed.strategy.candidate import Candidate, derive_candidate
from cpembed.transform.derive import LayoutCache


@dataclass(frozen=True)
class RankedCandidate:
    """A candidate with its place (1 is best), its overheads and its score (lower is better)."""

    rank: int
    candidate: Candidate
    overheads: Overheads
    score: float


@dataclass(frozen=True)
class Ranking:
    """The best candidates in ascending score.

    ``derived`` counts the embeddings whose program had to be derived to know; ``refused`` are the
    reasons of those that no rewrite can serve.
    """

    candidates: tuple[RankedCandidate, ...]
    derived: int
    refused: tuple[str, ...]


def rank(
    workload: Computation,
    instruction: Instruction,
    embeddings: Iterable[Embedding],
    weights: Weights,
    top: int | None = None,
    report: Callable[[int], None] = lambda count: None,
) -> Ranking:
    """The ``top`` best of the embeddings, all of them where it is None.

    Equal scores are ordered by fewer executions of the instruction, fewer bytes moved by packing,
    then the embedding's canonical form, so that the order is the same on every machine. The MAC
    overhead follows from the digits and bounds the score from below: embeddings are taken in its
    order, and the first that cannot reach the best ``top`` ends the search.
    """
    bounds = sorted(
        (
            (weights.mac * mac_overhead(workload, instruction, e), n, e)
            for n, e in enumerate(embeddings)
        ),
        key=lambda item: item[:2],
    )
    best: list[tuple[tuple[float, int, int, str], Candidate, Overheads]] = []
    refused: list[str] = []
    derived = 0
    layouts: LayoutCache = {}
    for bound, _, embedding in bounds:
        if top is not None and len(best) >= top and (top == 0 or bound > best[top - 1][0][0]):
            break
        derived += 1
        report(derived)
        try:
            candidate = derive_candidate(workload, instruction, embedding, layouts)
        except TransformError as error:
            refused.append(str(error))
            continue
        cost = overheads(candidate.program)
        score = cost.score(weights.mac, weights.data)
        key = (score, cost.calls, cost.packing_bytes, repr(embedding.digits))
        bisect.insort(best, (key, candidate, cost), key=lambda item: item[0])
        if top is not None:
            del best[top:]
    ranked = (
        RankedCandidate(n, candidate, cost, key[0])
        for n, (key, candidate, cost) in enumerate(best, 1)
    )
    return Ranking(tuple(ranked), derived, tuple(refused))


def mac_overhead(workload: Computation, instruction: Instruction, embedding: Embedding) -> int:
    """MACs executed beyond the workload's own, from the digits alone."""
    extents = flatten(workload, embedding.flattened).extents
    blocks = {axis: (extent, 1) for axis, extent in extents.items()}
    for digits in embedding.digits.values():
        for digit in digits:
            outer = -(-extents[digit.axis] // (digit.count * digit.stride))
            blocks[digit.axis] = (outer, digit.stride)
    calls = math.prod(outer * phases for outer, phases in blocks.values())
    return calls * instruction.macs - workload.macs
