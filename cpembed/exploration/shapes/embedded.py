"""The embedding of a shape in a layer: what ``cpembed solve --weights 1,0`` ranks first."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cpembed.embedding.checks import check_embedding
from cpembed.embedding.constraint_set import ConstraintSet, Weights
from cpembed.embedding.cpsat import SearchLimits
from cpembed.embedding.embedding import Embedding
from cpembed.embedding.result import merged, silent
from cpembed.embedding.search import find_embeddings
from cpembed.errors import InvariantError
from cpembed.exploration.shapes.shape import Shape, instruction_of
from cpembed.ir.computation import Computation
from cpembed.selection.candidate import Candidate
from cpembed.selection.overheads import Overheads
from cpembed.selection.search import LimitedSearch, RankedSearch, Ranker, find_best
from cpembed.transform.proof import require

EXECUTIONS_ONLY = Weights(1.0, 0.0)
"""What orders candidates where only executions count: ``--weights 1,0``."""

_WHOLE, _TIES = 1.0, 4.0
"""Seconds for all embeddings of a shape in a layer; then for those of the fewest executions, of
which the one that moves the fewest bytes is wanted."""


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

    Raises :class:`InvariantError` where the search has none of as few, or one of fewer.
    """
    executions, exchanged = fewest.executions, fewest.exchanged
    chosen = replace(constraints, weights=EXECUTIONS_ONLY)
    if exchanged:
        chosen = chosen.with_exchanged_factors()
    search = _search(workload, chosen, shape, executions)
    best = search.ranking.candidates[:1]
    if not best or best[0].overheads.calls != executions:
        found = best[0].overheads.calls if best else "none"
        tables = f"the tables say {executions} executions"
        raise InvariantError(f"{shape} in {workload.name}: {tables}, the search {found}")
    if search.found.problem is not None:
        check_embedding(search.found.problem, chosen, best[0].candidate.embedding)
    require(best[0].candidate.program)
    return embedded_of(
        best[0].candidate, best[0].overheads, exchanged=exchanged, first=search.proven
    )


def _search(
    workload: Computation, constraints: ConstraintSet, shape: Shape, executions: int
) -> RankedSearch:
    """All embeddings where they are soon found, else those of as few executions."""
    instruction = instruction_of(shape)
    limits = SearchLimits(seconds=_WHOLE)
    ranker = Ranker(workload, instruction, constraints, 1, silent)
    found = find_embeddings(workload, instruction, constraints, limits)
    if found.complete:
        return ranker.rank(found, seconds=_TIES)
    limits = SearchLimits(seconds=_TIES)
    limited = LimitedSearch(ranker, limits)
    if not limited.applies:
        return find_best(workload, instruction, constraints, 1, limits, silent)
    ceiling = float(executions * shape.macs - workload.macs)
    runs = [bounded.below(ceiling, silent) for bounded in limited.bounded(limits)]
    below = merged([run(limits.share(len(runs))) for run in runs])
    ranked = ranker.rank(below, seconds=_TIES)
    return replace(ranked, proven=ranked.proven and below.complete)


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
