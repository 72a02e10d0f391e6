"""The embedding of a shape in a layer: what ``cpembed solve --weights 1,0`` ranks first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from cpembed.embedding.checks import check_embedding
from cpembed.embedding.commute import Pairing
from cpembed.embedding.constraint_set import ConstraintSet, Weights
from cpembed.embedding.cpsat import SearchLimits
from cpembed.embedding.embedding import Embedding
from cpembed.embedding.result import merged, silent
from cpembed.embedding.search import find_embeddings
from cpembed.errors import InvariantError, TransformError
from cpembed.exploration.shapes.shape import Shape, instruction_of
from cpembed.ir.computation import Computation
from cpembed.selection.candidate import Candidate
from cpembed.selection.overheads import Overheads
from cpembed.selection.search import LimitedSearch, RankedSearch, Ranker
from cpembed.transform.proof import require

EXECUTIONS_ONLY = Weights(1.0, 0.0)
"""What orders candidates where only executions count: ``--weights 1,0``."""

_WHOLE, _TIES = 1.0, 4.0
"""Seconds for all embeddings of a shape in a layer; then for those of the fewest executions, of
which the one that moves the fewest bytes is wanted."""


_FEW = 64
"""Axis maps of each component, where a few seconds find no embedding."""


class NoProgram(TransformError):
    """The embeddings of as few executions as the tables say have no programs, as those of a user's
    own set may: the tables are lower bounds."""


@dataclass(frozen=True)
class Embedded:
    """The best embedding, its program proven. ``exchanged``: the factors have each other's roles,
    because in their own nothing fits. ``first``: among those of as few executions it is proven the
    first of the ranking."""

    embedding: Embedding
    executions: int
    utilisation: float
    packing_bytes: int
    in_place: tuple[str, ...]
    exchanged: bool
    first: bool


@dataclass(frozen=True)
class Fewest:
    """The fewest executions of a shape in a layer; ``exchanged`` as of :class:`Embedded`."""

    executions: int
    exchanged: bool


def embed(
    workload: Computation, constraints: ConstraintSet, shape: Shape, fewest: Fewest
) -> Embedded:
    """The embedding of a shape whose executions are known to be the fewest.

    Raises :class:`NoProgram` where no rewrite serves those of as few, :class:`InvariantError` where
    the search has none of as few.
    """
    executions, exchanged = fewest.executions, fewest.exchanged
    chosen = replace(constraints, weights=EXECUTIONS_ONLY)
    if exchanged:
        chosen = chosen.with_exchanged_factors()
    refused: tuple[str, ...] = ()
    for search in _searches(workload, chosen, shape, executions):
        best = search.ranking.candidates[:1]
        if best and best[0].overheads.calls == executions:
            break
        refused = refused or search.ranking.refused
    else:
        what = f"{shape} in {workload.name}"
        if refused:
            raise NoProgram(f"{what}: no program of {executions} executions: {refused[0]}")
        raise InvariantError(f"{what}: the search finds no embedding of {executions} executions")
    if search.found.problem is not None:
        check_embedding(search.found.problem, chosen, best[0].candidate.embedding)
    require(best[0].candidate.program)
    return embedded_of(
        best[0].candidate, best[0].overheads, exchanged=exchanged, first=search.proven
    )


def _searches(
    workload: Computation, constraints: ConstraintSet, shape: Shape, executions: int
) -> Iterator[RankedSearch]:
    """All embeddings where they are soon found; else those of as few executions, as many as a few
    seconds find; else the first of these, whatever time it takes."""
    instruction = instruction_of(shape)
    ranker = Ranker(Pairing(workload, instruction), constraints, 1, silent)
    whole = SearchLimits(seconds=_WHOLE)
    found = find_embeddings(workload, instruction, constraints, whole)
    if found.complete:
        yield ranker.rank(found)
        return
    ceiling = float(executions * shape.macs - workload.macs)
    for limits in (SearchLimits(seconds=_TIES), SearchLimits(solutions=_FEW)):
        runs = [
            bounded.below(ceiling, silent)
            for bounded in LimitedSearch(ranker, limits).bounded(limits)
        ]
        if not runs:
            continue
        below = merged([run(limits.share(len(runs))) for run in runs])
        ranked = ranker.rank(below, seconds=limits.seconds)
        yield replace(ranked, proven=ranked.proven and below.complete)


def embedded_of(candidate: Candidate, cost: Overheads, *, exchanged: bool, first: bool) -> Embedded:
    """A candidate with what it costs."""
    return Embedded(
        candidate.embedding,
        cost.calls,
        cost.utilisation,
        cost.packing_bytes,
        tuple(cost.in_place),
        exchanged,
        first,
    )
