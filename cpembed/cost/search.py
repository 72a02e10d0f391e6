"""Search and ranking in one: the best candidates first under a time limit.

Without a limit, all components are enumerated, and the ranking combines them best first. Under a
limit that does not suffice for this, the solver searches below a ceiling of the score, which is
raised until the best ``top`` are below it: then no other embedding is better, however many there
are. The ceiling is posted as linear constraints of the digit model (:class:`Objective`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from cpembed.cost.ranking import Ranking, rank
from cpembed.embedding.commute import Pairing
from cpembed.embedding.constraint_set import ConstraintSet, Weights
from cpembed.embedding.cpsat import SearchLimits, Status, minimise
from cpembed.embedding.digit_model import DigitModel, DigitOption
from cpembed.embedding.digit_search import DigitSearch, digit_model_obstacle
from cpembed.embedding.problem import EmbeddingProblem, LabelMismatch
from cpembed.embedding.result import (
    Formulation,
    SearchResult,
    Seconds,
    merged,
    nothing_found,
)
from cpembed.embedding.search import search_pairing
from cpembed.ir.index import IndexExpr
from cpembed.steps import PhaseProgress as Progress
from cpembed.time_limit import Clock, OutOfTime, within
from cpembed.transform.derive import LayoutCache

_QUICK, _BELOW = 8, 2
"""Divisors of the time limit for the first attempt to enumerate all embeddings, and of the rest for
the search below ceilings."""

_SEARCHED, _DERIVED = 0.4, 0.7
"""Seconds after the limit at which the search is abandoned, and the derivation of programs. The
solver keeps to the limit by itself, the code around it does not."""

_FIRST_STEP, _WIDER, _STEPS = 1 / 64, 4, 32
"""Distance of the first ceiling from the bound, relative to the costs of the workload itself,
growth factor of the distance, and maximum number of ceilings, the last of which is beyond any
program's costs."""

_UNIT = 2**20
"""Units per doubling in which logarithms of executions are rounded: a resolution of a millionth."""

_LARGEST = 2**40
"""Cap on elements, which is as good as infinity, so that sums stay within 64 bits."""


@dataclass(frozen=True)
class RankedSearch:
    """Result of a search with its ranking.

    It is ``proven`` if no embedding, enumerated or not, is better than those in the ranking.
    """

    search: SearchResult
    ranking: Ranking
    proven: bool


def find_best(
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
        # Counting the embeddings needs all components anyway.
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
    # Other models have no ceilings: enumerate what the time allows.
    best.results.append(
        search_pairing(ranker.pairing, ranker.constraints, limits, ranker.progress, formulation)
    )


@dataclass
class BestSoFar:
    """Results of a limited search, complete or not, and the best ones ``below`` a ceiling."""

    results: list[SearchResult] = field(default_factory=list[SearchResult])
    below: RankedSearch | None = None

    def best(self, ranker: Ranker, clock: Clock) -> RankedSearch:
        """Return the best results, even if the search did not come to its end."""
        if not self.results:
            return ranker.rank(nothing_found(clock.passed))
        most = max(self.results, key=lambda result: (result.complete, len(result.embeddings)))
        searched = [*self.results, *([self.below.search] if self.below is not None else [])]
        seconds = Seconds(
            sum(result.seconds.model for result in searched),
            sum(result.seconds.solve for result in searched),
        )
        most = replace(most, seconds=seconds)
        # A complete enumeration ranks all embeddings; the proven best below a ceiling come with the
        # count of the most that were enumerated.
        if self.below is None or not self.below.proven or most.complete:
            return ranker.rank(most, seconds=clock.left(_DERIVED))
        return replace(self.below, search=most)


@dataclass(frozen=True)
class Ranker:
    """Ranking of the embeddings of several searches of one pairing, which share their layouts."""

    pairing: Pairing
    constraints: ConstraintSet
    top: int | None
    progress: Progress
    layouts: LayoutCache = field(default_factory=LayoutCache)

    def rank(
        self, result: SearchResult, ceiling: float | None = None, seconds: float | None = None
    ) -> RankedSearch:
        """Rank the embeddings of a search.

        Parameters
        ----------
        result : SearchResult
            Result of the search.
        ceiling : float, optional
            Score up to which the result is complete.
        seconds : float, optional
            Time limit for deriving programs.
        """
        ranking = rank(
            self.pairing.workload,
            self.pairing.instruction,
            result.embeddings,
            self.constraints.weights,
            top=self.top,
            report=lambda count: self.progress("derive", count),
            layouts=self.layouts,
            seconds=seconds,
        )
        name = self.constraints.name
        candidates = tuple(replace(c, constraints=name) for c in ranking.candidates)
        ranking = replace(ranking, candidates=candidates)
        if ranking.cut:
            return RankedSearch(result.cut(len(ranking.candidates)), ranking, proven=False)
        proven, best = result.complete, ranking.candidates
        if ceiling is not None and best and len(best) == self.top:
            proven = proven or best[-1].score <= ceiling
        return RankedSearch(result, ranking, proven)


_Run = Callable[[SearchLimits], SearchResult]


@dataclass(frozen=True)
class BoundedSearch:
    """Search of a problem with the solver's bounds on its components."""

    search: DigitSearch
    objective: Objective
    least: list[Least]

    def below(self, ceiling: float, progress: Progress) -> _Run:
        """Return a search for all embeddings with a score up to the ceiling, and some others."""

        def bound(models: list[DigitModel]) -> None:
            self.objective.post(models, self.least, ceiling)

        return lambda limits: self.search.run(limits, progress, bound)


class LimitedSearch:
    """Search of digit models under a time limit."""

    def __init__(self, ranker: Ranker, limits: SearchLimits, best: BestSoFar | None = None) -> None:
        self.ranker, self.limits, self.best = ranker, limits, best or BestSoFar()
        self.started = time.perf_counter()
        constraints = ranker.constraints
        problems = ranker.pairing.problems(constraints.commutes)
        self.searches: list[DigitSearch] = []
        if not isinstance(problems, LabelMismatch) and all(
            digit_model_obstacle(problem, constraints) is None for problem in problems
        ):
            self.searches = [DigitSearch(problem, constraints) for problem in problems]

    @property
    def applies(self) -> bool:
        """True if the digit model covers the problem, and the score tells embeddings apart."""
        weights = self.ranker.constraints.weights
        return bool(self.searches and self.ranker.top and (weights.mac or weights.data))

    def run(self) -> None:
        """Search until time is over; results are stored in ``best`` as soon as they exist."""
        # Most problems are enumerated completely in a fraction of the limit.
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
        """Return the union of the results of several runs, which share the time."""
        started = time.perf_counter()
        results: list[SearchResult] = []
        # What an earlier run leaves of its share is divided among those that wait.
        for waiting, run in zip(range(len(runs), 0, -1), runs, strict=True):
            results.append(run(limits.after(time.perf_counter() - started).share(waiting)))
        return merged(results)

    def best_below_ceilings(self, limits: SearchLimits) -> RankedSearch | None:
        """Return the best embeddings below the last ceiling, proven unless time was too short.

        None if no problem is known to have a solution.
        """
        started = time.perf_counter()
        bounded = self.bounded(limits.share(2))
        if not bounded:
            return None
        # Problems differ in the pairing of operands; the best embedding may belong to any of them.
        floor = min(item.objective.floor(item.least) for item in bounded)
        step = max([floor, *(item.objective.scale for item in bounded)]) * _FIRST_STEP
        best: RankedSearch | None = None
        # A low ceiling admits few embeddings and is searched fast, so it starts close to the bound.
        for _ in range(_STEPS):
            ceiling = floor + step
            left = limits.after(time.perf_counter() - started)
            below = self._merged(
                [item.below(ceiling, self.ranker.progress) for item in bounded], left
            )
            # Complete below the ceiling is not complete.
            status = Status.FEASIBLE if len(below.embeddings) else Status.UNKNOWN
            partial = replace(below, status=status, complete=False)
            best = self.ranker.rank(partial, ceiling if below.complete else None)
            if best.proven or not below.complete:
                break
            step *= _WIDER
        return best

    def bounded(self, limits: SearchLimits) -> list[BoundedSearch]:
        """Return the problems that are known to have solutions."""
        bounded_searches: list[BoundedSearch] = []
        for search in self.searches:
            models = search.models()
            objective = Objective(search.problem, self.ranker.constraints.weights)
            share = limits.share(2 * len(models) * len(self.searches))
            least = objective.least(models, share)
            if least is not None:
                bounded_searches.append(BoundedSearch(search, objective, least))
        return bounded_searches


# ------------------------------------------------------------- bounds on the score for the solver


@dataclass(frozen=True)
class Least:
    """Lower bounds over all solutions of a component, in the units of the constraints."""

    executions: int
    elements: int


class Objective:
    """Linear constraints that exclude the embeddings of a problem with a score above a ceiling.

    Executions are a product over workload axes; the constraint bounds their logarithm, a sum, which
    is rounded down and does not overflow.
    """

    def __init__(self, problem: EmbeddingProblem, weights: Weights) -> None:
        self.weights = weights
        self.macs, self.macs_per_call = problem.workload.macs, problem.instruction.macs
        self.extents = problem.workload.extents
        self.operands = [
            (operand, problem.workload.access(operand.name).index)
            for operand in problem.workload.operands
        ]
        tensors = {operand.tensor: operand for operand, _ in self.operands}
        self.data = sum(math.prod(operand.shape) for operand in tensors.values())
        # Ports of one tensor may share their elements: only tensors with one port count.
        names = [operand.tensor for operand, _ in self.operands]
        self.single = [index for o, index in self.operands if names.count(o.tensor) == 1]
        self.base = sum(self._least_elements(index) for index in self.single)

    def executions(self, option: DigitOption) -> int:
        """Return the logarithm of an axis's executions per iteration under a digit."""
        digit = option.digit
        # Blocks times interleaved phases, relative to an axis that is a loop of single iterations.
        calls = -(-option.extent // (digit.count * digit.stride)) * digit.stride
        # Rounded down, so that rounding admits embeddings above the ceiling and excludes none below
        # it.
        return math.floor(_UNIT * math.log2(calls / option.extent) - 1e-6)

    def elements(self, option: DigitOption) -> int:
        """Return a lower bound on the elements that padding for a digit adds to all operands."""
        # What the padding of a fused axis adds depends on the layout, so that 0 is its bound.
        if len(option.members) > 1:
            return 0
        axis = option.digit.axis
        block = option.digit.count * option.digit.stride
        padding = -option.extent % block
        added = 0
        for index in self.single:
            if any(_follows(expression, axis) for expression in index):
                added += self._least_elements(index) * padding // option.extent
        return min(added, _LARGEST)

    def _least_elements(self, index: Sequence[IndexExpr]) -> int:
        """Return a lower bound on the elements of a layout: each dimension's longest axis."""
        return math.prod(
            max((self.extents[axis] for axis in expression.iterators), default=1)
            for expression in index
        )

    def least(self, models: Sequence[DigitModel], limits: SearchLimits) -> list[Least] | None:
        """Return the solver's bounds on each component; None if one has no solution."""
        bounds_of_models: list[Least] = []
        for model in models:
            bounds: list[int] = []
            for weigh in (self.executions, self.elements):
                terms = {literal: weigh(option) for option, literal in model.options.items()}
                bound = minimise(model.build(), terms, limits)
                if bound is None:
                    return None
                bounds.append(bound)
            bounds_of_models.append(Least(*bounds))
        return bounds_of_models

    def floor(self, least: Sequence[Least]) -> float:
        """Return a lower bound on the score of all embeddings."""
        logarithm = sum(bound.executions for bound in least) / _UNIT
        # Floating-point rounding must not lift the floor above a score.
        calls = 2.0**logarithm * self.macs * (1 - 1e-9)
        mac = self.weights.mac * max(0.0, calls * self.macs_per_call - self.macs)
        data = self.weights.data * max(0, self._extra(least))
        return math.hypot(mac, data)

    @property
    def scale(self) -> float:
        """Score of an overhead as large as the workload's MACs and elements."""
        return math.hypot(self.weights.mac * self.macs, self.weights.data * self.data)

    def _extra(self, least: Sequence[Least]) -> int:
        return self.base - self.data + sum(bound.elements for bound in least)

    def post(self, models: Sequence[DigitModel], least: Sequence[Least], ceiling: float) -> None:
        """Exclude digits of each component that exceed the ceiling for any choice of the others.

        Every embedding with a score up to the ceiling remains, and so do some others: bounds are
        rounded to the safe side.

        Parameters
        ----------
        models : sequence of DigitModel
            Models of the components.
        least : sequence of Least
            Their bounds.
        ceiling : float
            Highest score to keep.
        """
        above = ceiling * (1 + 1e-9)
        for model, model_least in zip(models, least, strict=True):
            if self.weights.mac:
                calls = (self.macs + above / self.weights.mac) / self.macs_per_call
                limit = math.ceil(_UNIT * math.log2(calls / self.macs)) + 1
                # The other components have their least executions at best, so that this one may
                # have the rest.
                elsewhere = sum(bound.executions for bound in least) - model_least.executions
                _at_most(model, self.executions, limit - elsewhere)
            if self.weights.data:
                limit = math.ceil(min(above / self.weights.data, _LARGEST)) + 1
                elsewhere = self._extra(least) - model_least.elements
                _at_most(model, self.elements, limit - elsewhere)


def _at_most(model: DigitModel, weigh: Callable[[DigitOption], int], limit: int) -> None:
    terms = [(weigh(option), literal) for option, literal in model.options.items()]
    terms = [(weight, literal) for weight, literal in terms if weight]
    low = sum(min(weight, 0) for weight, _ in terms)
    if limit < low:
        # No choice of digits is within the limit: an empty clause makes the component infeasible.
        model.builder.exactly_one([])
    elif terms:
        model.builder.row(terms, low, limit)


def _follows(index: IndexExpr, axis: str) -> bool:
    """Return True if a dimension follows the axis one to one, up to an offset."""
    return index.iterators == (axis,) and index.is_affine and index.coefficient(axis) == 1
