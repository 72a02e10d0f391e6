"""Search and ranking in one: the best candidates first where time is limited.

Without a limit the components are enumerated whole, which the number of embeddings needs anyway,
and the ranking combines them best first. Under a limit that does not suffice for this, the solver
looks below a ceiling of the score, which is raised until the best ``top`` are below it: then no
other embedding is better, however many there are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from cpembed.cost.objective import Least, Objective
from cpembed.cost.ranking import Ranking, rank
from cpembed.embedding.commute import Pairing
from cpembed.embedding.constraint_set import ConstraintSet
from cpembed.embedding.cpsat import SearchLimits, Status
from cpembed.embedding.digit_model import DigitModel
from cpembed.embedding.digit_search import DigitSearch
from cpembed.embedding.domains import digit_model_obstacle
from cpembed.embedding.problem import LabelMismatch
from cpembed.embedding.result import (
    Formulation,
    SearchResult,
    Seconds,
    merged,
    nothing_found,
)
from cpembed.embedding.search import search_pairing
from cpembed.hw.instruction import Instruction
from cpembed.ir.computation import Computation
from cpembed.steps import PhaseProgress as Progress
from cpembed.time_limit import Clock, OutOfTime, within
from cpembed.transform.derive import LayoutCache

_QUICK, _BELOW = 8, 2
"""Parts of the time for the first attempt to enumerate all, and of what is left then for the search
below ceilings."""

_SEARCHED, _DERIVED = 0.4, 0.7
"""Seconds after a limit at which a search that does not end by itself is left, and the deriving of
programs. The solver keeps to the limit, what is around it need not."""

_FIRST_STEP, _WIDER, _STEPS = 1 / 64, 4, 32
"""How far the first ceiling is above the bound, relative to the costs of the workload itself, by
how much this distance grows each time, and how often: beyond any program's cost."""


@dataclass(frozen=True)
class RankedSearch:
    """The result of a search and the best of it. ``proven``: no embedding is missing from the best
    that belongs there, found or not."""

    found: SearchResult
    ranking: Ranking
    proven: bool


def find_best(
    workload: Computation,
    instruction: Instruction,
    constraints: ConstraintSet,
    top: int | None,
    limits: SearchLimits,
    progress: Progress,
    formulation: Formulation = Formulation.AUTO,
) -> RankedSearch:
    """Search, and rank the best embeddings: :func:`find_best_of` of a workload and an instruction.

    Parameters
    ----------
    workload : Computation
        Operator at fixed sizes.
    instruction : Instruction
        Hardware instruction to embed.
    constraints, top, limits, progress, formulation
        As in :func:`find_best_of`.
    """
    pairing = Pairing(workload, instruction)
    return find_best_of(pairing, constraints, top, limits, progress, formulation)


def find_best_of(
    pairing: Pairing,
    constraints: ConstraintSet,
    top: int | None,
    limits: SearchLimits,
    progress: Progress,
    formulation: Formulation = Formulation.AUTO,
) -> RankedSearch:
    """Search for all embeddings and rank the best, best first under a time limit.

    Parameters
    ----------
    pairing : Pairing
        Workload and instruction with their operands paired.
    constraints : ConstraintSet
        Conditions on the embeddings, and the weights of the score.
    top : int or None
        Number of candidates to rank; None for all.
    limits : SearchLimits
        Time limit of the search in seconds, and number of solutions.
    progress : Progress
        Callback for the phase ("model", "search", "derive") and a count.
    formulation : Formulation
        Model to post; by default the digit model wherever it applies.

    Raises
    ------
    SpecError, WorkloadError
        As :func:`~cpembed.embedding.search.search_pairing` does.
    """
    ranker = Ranker(pairing, constraints, top, progress)
    if limits.seconds is None:
        return ranker.rank(search_pairing(pairing, constraints, limits, progress, formulation))
    clock, best = Clock(limits.seconds), BestSoFar()
    with suppress(OutOfTime):
        within(clock.left(_SEARCHED), lambda: _search_limited(ranker, limits, formulation, best))
    return best.best(ranker, clock)


def _search_limited(
    ranker: Ranker, limits: SearchLimits, formulation: Formulation, best: BestSoFar
) -> None:
    if formulation in (Formulation.AUTO, Formulation.DIGITS):
        limited = LimitedSearch(ranker, limits, best)
        if limited.applies:
            limited.run()
            return
    best.results.append(
        search_pairing(ranker.pairing, ranker.constraints, limits, ranker.progress, formulation)
    )


@dataclass
class BestSoFar:
    """Results of a limited search: all there are or some, and the best ``below`` a ceiling."""

    results: list[SearchResult] = field(default_factory=list[SearchResult])
    below: RankedSearch | None = None

    def best(self, ranker: Ranker, clock: Clock) -> RankedSearch:
        """The best of what was found, whether or not the search came to its end."""
        if not self.results:
            return ranker.rank(nothing_found(clock.passed))
        most = max(self.results, key=lambda result: (result.complete, len(result.embeddings)))
        searched = [*self.results, *([self.below.found] if self.below is not None else [])]
        seconds = Seconds(
            sum(result.seconds.model for result in searched),
            sum(result.seconds.solve for result in searched),
        )
        most = replace(most, seconds=seconds)
        if self.below is None or not self.below.proven or most.complete:
            return ranker.rank(most, seconds=clock.left(_DERIVED))
        return replace(self.below, found=most)


@dataclass(frozen=True)
class Ranker:
    """Ranks the embeddings of several searches of one pairing; they share their layouts."""

    pairing: Pairing
    constraints: ConstraintSet
    top: int | None
    progress: Progress
    layouts: LayoutCache = field(default_factory=LayoutCache)

    def rank(
        self, result: SearchResult, ceiling: float | None = None, seconds: float | None = None
    ) -> RankedSearch:
        """``result`` is complete, or is so as far as a ceiling of the score; ``seconds`` are for
        deriving programs."""
        ranking = rank(
            self.pairing.workload,
            self.pairing.instruction,
            result.embeddings,
            self.constraints.weights,
            self.top,
            lambda count: self.progress("derive", count),
            self.layouts,
            self.constraints.name,
            seconds,
        )
        if ranking.cut:
            return RankedSearch(result.cut(len(ranking.candidates)), ranking, proven=False)
        proven, best = result.complete, ranking.candidates
        if ceiling is not None and best and len(best) == self.top:
            proven = proven or best[-1].score <= ceiling
        return RankedSearch(result, ranking, proven)


_Run = Callable[[SearchLimits], SearchResult]


@dataclass(frozen=True)
class Bounded:
    """A problem's search with the solver's bounds on its components."""

    search: DigitSearch
    objective: Objective
    least: list[Least]

    def below(self, ceiling: float, progress: Progress) -> _Run:
        """A search for all embeddings whose score is at most the ceiling, and some others."""

        def bound(models: list[DigitModel]) -> None:
            self.objective.post(models, self.least, ceiling)

        return lambda limits: self.search.run(limits, progress, bound)


class LimitedSearch:
    """The search of digit models under a time limit."""

    def __init__(self, ranker: Ranker, limits: SearchLimits, best: BestSoFar | None = None) -> None:
        self.ranker, self.limits, self.best = ranker, limits, best or BestSoFar()
        self.started = time.perf_counter()
        constraints = ranker.constraints
        problems = ranker.pairing.problems(constraints.exchanges_factors)
        self.searches: list[DigitSearch] = []
        if not isinstance(problems, LabelMismatch) and all(
            digit_model_obstacle(problem, constraints) is None for problem in problems
        ):
            self.searches = [DigitSearch(problem, constraints) for problem in problems]

    @property
    def applies(self) -> bool:
        """Whether the digit model takes the problem, and there is a best to look for."""
        weights = self.ranker.constraints.weights
        return bool(self.searches and self.ranker.top and (weights.mac or weights.data))

    def run(self) -> None:
        """Search until the time is over; what is found is kept as soon as it is."""
        quick = self._enumerate_all(self.limits.share(_QUICK))
        self.best.results.append(quick)
        if quick.complete or not self._left().seconds:
            return
        self.best.below = self.best_below_ceilings(self._left().share(_BELOW))
        self.best.results.append(self._enumerate_all(self._left()))

    def _left(self) -> SearchLimits:
        return self.limits.after(time.perf_counter() - self.started)

    def _enumerate_all(self, limits: SearchLimits) -> SearchResult:
        progress = self.ranker.progress
        runs: list[_Run] = [lambda share, s=s: s.run(share, progress) for s in self.searches]
        return self._merged(runs, limits)

    def _merged(self, runs: Sequence[_Run], limits: SearchLimits) -> SearchResult:
        """The union of what the runs find, which share the time."""
        started = time.perf_counter()
        results: list[SearchResult] = []
        for waiting, run in zip(range(len(runs), 0, -1), runs, strict=True):
            results.append(run(limits.after(time.perf_counter() - started).share(waiting)))
        return merged(results)

    def best_below_ceilings(self, limits: SearchLimits) -> RankedSearch | None:
        """The best with what the last ceiling admits, proven unless the time was too short; None
        where no problem is known to have a solution."""
        started = time.perf_counter()
        bounded = self.bounded(limits.share(2))
        if not bounded:
            return None
        floor = min(item.objective.floor(item.least) for item in bounded)
        step = max([floor, *(item.objective.scale for item in bounded)]) * _FIRST_STEP
        best: RankedSearch | None = None
        for _ in range(_STEPS):
            ceiling = floor + step
            left = limits.after(time.perf_counter() - started)
            below = self._merged(
                [item.below(ceiling, self.ranker.progress) for item in bounded], left
            )
            # All there are below the ceiling are not all there are.
            status = Status.FEASIBLE if len(below.embeddings) else Status.UNKNOWN
            partial = replace(below, status=status, complete=False)
            best = self.ranker.rank(partial, ceiling if below.complete else None)
            if best.proven or not below.complete:
                break
            step *= _WIDER
        return best

    def bounded(self, limits: SearchLimits) -> list[Bounded]:
        """The problems that have solutions, as far as this is known."""
        bounded_searches: list[Bounded] = []
        for search in self.searches:
            models = search.models()
            objective = Objective(search.problem, self.ranker.constraints.weights)
            share = limits.share(2 * len(models) * len(self.searches))
            least = objective.least(models, share)
            if least is not None:
                bounded_searches.append(Bounded(search, objective, least))
        return bounded_searches
