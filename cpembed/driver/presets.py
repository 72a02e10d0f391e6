"""Presets: the constraint sets of a command that names none.

The narrow preset copies no operand beyond padding, and is searched in hundredths of a second. Which
axes it leaves to an instruction depends on what its memory side reads in place, though: a unit that
declares no strides may be used to a tenth, where unrolled windows fill it. So the wider preset is
searched too where the best candidate of the narrow one wastes much of the instruction.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from cpembed.cost.bounds import utilisation_bound
from cpembed.driver.options import DEFAULT_CONSTRAINTS, WIDER, SearchOptions
from cpembed.driver.result import OtherSet, SolveResult
from cpembed.embedding.constraint_set import Weights, load_constraint_set
from cpembed.embedding.problem import EmbeddingProblem
from cpembed.targets.base import WELL_USED
from cpembed.time_limit import OutOfTime, within

_WORTH_SAYING = 0.02
"""Minimum gain in utilisation for which the wider preset is mentioned."""

Reweigh = Callable[[SolveResult], Weights | None]
"""Function that gives the weights for the wider preset's ranking, from the narrow one's result;
None keeps them."""

_BOUND_SECONDS = 0.3
"""Time budget in seconds for a bound, which takes a few hundredths for most layers."""

_SECOND_SEARCH_SHARE = 0.25
"""Minimum share of the time limit that must be left for the second search."""


class Search(Protocol):
    """A search of one workload under a set, with options that replace those of the command."""

    def __call__(self, constraints: str, /, *, options: SearchOptions = ...) -> SolveResult: ...


def default_searches(
    search: Search,
    options: SearchOptions,
    reweigh: Reweigh | None = None,
    well_used: float = WELL_USED,
) -> tuple[SolveResult, ...]:
    """Search the narrow preset and, where that wastes the instruction, the wider one.

    Parameters
    ----------
    search : callable
        Searches one set.
    options : SearchOptions
        Options of the command; its time limit holds for both searches together.
    reweigh : callable, optional
        Gives the weights that rank the wider preset's candidates.
    well_used : float
        Utilisation from which the wider preset is not searched.

    Returns
    -------
    tuple of SolveResult
        One or two results. Each names what the other preset uses of the instruction.
    """
    started = time.perf_counter()
    timeout = options.timeout
    first = search(DEFAULT_CONSTRAINTS)
    left = None if timeout is None else timeout - (time.perf_counter() - started)
    # A search that takes most of the time leaves too little for one of a wider set.
    late = timeout is not None and left is not None and left < timeout * _SECOND_SEARCH_SHARE
    # Nothing was posted: graphs that differ in labels differ under every set.
    mismatched = first.search.formulation is None
    if mismatched or late or first.occupancy >= well_used:
        return (with_bound(first),)
    # A model of the machine has other reasons to choose than how much of the instruction is used.
    bound = _bound(first) if reweigh is None else None
    if bound is not None and not _is_worth_saying(first, bound):
        # Too little for a search. Where nothing fits, that something else might is still said.
        might_fit = not first.embeddings and bound > 0
        return (_mentioning_wider(first, bound) if might_fit else first,)
    weights = None if reweigh is None else reweigh(first)
    second = search(
        WIDER, options=replace(options, timeout=left, weights=weights or options.weights)
    )
    return (
        replace(first, wider=OtherSet.of_result(second)),
        replace(second, narrower=OtherSet.of_result(first)),
    )


def best_of(results: Sequence[SolveResult]) -> SolveResult:
    """Return the result with the best score, the first one of equals."""
    # A score is comparable between sets with the same weights, which presets have.
    scores = [r.embeddings[0].score if r.embeddings else float("inf") for r in results]
    return results[scores.index(min(scores))]


def with_bound(result: SolveResult) -> SolveResult:
    """Add the bound of the wider preset to a result if it is worth mentioning."""
    bound = _bound(result) if result.embeddings else None
    return (
        _mentioning_wider(result, bound)
        if bound is not None and _is_worth_saying(result, bound)
        else result
    )


def _mentioning_wider(result: SolveResult, bound: float) -> SolveResult:
    """Return the result with a note of what the wider preset could use, unsearched."""
    useful = bound * result.workload.useful_macs / result.workload.macs
    return replace(result, wider=OtherSet(WIDER, useful, searched=False))


def _is_worth_saying(result: SolveResult, bound: float) -> bool:
    return bound > result.occupancy + _WORTH_SAYING


def _bound(result: SolveResult) -> float | None:
    """Return an upper bound of the wider preset's occupancy; None if there is none soon enough."""
    # So well used that no bound would be worth mentioning: computing it is saved.
    if result.occupancy > 1 - _WORTH_SAYING:
        return 1.0
    try:
        return within(_BOUND_SECONDS, lambda: _bound_of(result))
    except OutOfTime:
        return None


def _bound_of(result: SolveResult) -> float | None:
    problem = result.pairing.problem
    if not isinstance(problem, EmbeddingProblem):
        return None
    wider = load_constraint_set(WIDER)
    may_commute = result.commuted or not result.embeddings
    alternatives = result.pairing.alternatives(factors=True) if may_commute else ()
    bounds = [utilisation_bound(each, wider) for each in (problem, *alternatives)]
    # One order without a bound leaves the maximum of all orders unknown.
    finite = [bound for bound in bounds if bound is not None]
    return max(finite) if len(finite) == len(bounds) else None
