"""Search for embeddings: the first stages of every command, and what ``cpembed solve`` does.

>>> import cpembed
>>> layer = cpembed.workload("conv2d n=1 c=16 h=8 w=8 k=16 r=3 s=3", target="vta_1x16x16")
>>> result = cpembed.solve(layer, "vta_1x16x16", constraints="strict")
>>> result.status.value, result.complete, result.embeddings[0].candidate.embedding.family
('optimal', True, {'x': (), 'y': ('k',), 'z': ('c',)})
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from cpembed.blocks import Displayed
from cpembed.bulk import without_collection
from cpembed.cost.ranking import RankedCandidate, front, objectives
from cpembed.cost.search import find_best
from cpembed.driver.named import hardware_spec
from cpembed.driver.options import SearchOptions, SolveOptions, merged, shared
from cpembed.driver.presets import Reweigh, best_of, default_searches, with_bound
from cpembed.driver.result import SolveResult
from cpembed.embedding.commute import Pairing
from cpembed.embedding.conflict import Conflict, explain_infeasible
from cpembed.embedding.constraint_set import ConstraintSet, load_constraint_set
from cpembed.embedding.cpsat import SearchLimits, Status
from cpembed.embedding.digit_search import check_embedding
from cpembed.embedding.result import Formulation
from cpembed.errors import SpecError
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation
from cpembed.ir.polyhedral import require_written
from cpembed.steps import PhaseProgress as Progress
from cpembed.steps import silent
from cpembed.targets.base import WELL_USED
from cpembed.time_limit import Clock, OutOfTime, check_time, within
from cpembed.transform.proof import require

_EXPLANATION_SECONDS = 0.5
"""Time budget for explaining infeasibility after the search used up the limit."""

_PROOF_SECONDS = 1.0
"""Time after the limit in which proofs, or the explanation, may still end."""

Filter = Callable[[tuple[RankedCandidate, ...]], tuple[RankedCandidate, ...]]
"""Selects some of the ranked candidates."""


@dataclass(frozen=True)
class TopCandidates:
    """Number of ranked candidates that a search returns and proves.

    Parameters
    ----------
    count : int, optional
        Number of the best candidates; None for all of them.
    keep : callable, optional
        Selects some of these.
    """

    count: int | None = 1
    keep: Filter | None = None


def solve(
    workload: Computation,
    target: str | HardwareSpec,
    options: SolveOptions | None = None,
    *,
    keep: Filter | None = None,
    progress: Progress | None = None,
    **keywords: Any,
) -> SolveResult:
    """Find every embedding of the target's instruction in the workload, rank them, prove the best.

    Without a constraint set, the set that the target names is searched, else
    :data:`~cpembed.driver.options.DEFAULT_CONSTRAINTS`; where the best candidate of that wastes
    much of the instruction, :data:`~cpembed.driver.options.WIDER` is searched too, and the result
    is that of the set with the better candidate. Where nothing fits with the factors of a product
    in the roles that their order gives them, they are tried in the other roles.

    Parameters
    ----------
    workload : Computation
        Operator, from :func:`~cpembed.driver.named.workload`.
    target : str or HardwareSpec
        Target by name, file or value.
    options : SolveOptions, optional
        How to search; its fields may also be given as keywords.
    keep : callable, optional
        Selects which of the ``top`` candidates are proven and returned.
    progress : callable, optional
        Called at each step with the stage and a count.

    Returns
    -------
    SolveResult
        A search that a limit stops has ``complete`` false; its candidates are the best of all only
        if ``top_proven``. Programs are derived and proven in little more time than the limit:
        those that are not by then are missing, and the status is ``unknown`` if all are. An
        infeasible problem has a ``conflict``.

    Raises
    ------
    SpecError, WorkloadError
        If the target, the set or the workload is wrong.
    """
    options = merged(SolveOptions, options, keywords)
    clock = Clock(options.timeout)
    returned = TopCandidates(options.top, keep)
    results = searches(
        workload, hardware_spec(target, workload), options, returned, progress=progress
    )
    return explained(best_of(results), clock, progress)


def searches(
    workload: Computation,
    spec: HardwareSpec,
    options: SearchOptions,
    returned: TopCandidates,
    *,
    reweigh: Reweigh | None = None,
    well_used: float = WELL_USED,
    progress: Progress | None = None,
) -> tuple[SolveResult, ...]:
    """Search each set that the options ask for, without explaining why nothing fits.

    Parameters
    ----------
    workload : Computation
        Operator.
    spec : HardwareSpec
        Target.
    options : SearchOptions
        How to search.
    returned : TopCandidates
        How many candidates each result has.
    reweigh : callable, optional
        Gives the weights that rank what the wider set finds, from the result of the narrow one.
    well_used : float
        Utilisation under the narrow set from which the wider one is not searched.
    progress : callable, optional
        Called at each step with the stage and a count.
    """
    report = progress or silent
    # One pairing for every set: each order of the operands is matched once.
    pairing = Pairing(workload, spec.instruction)
    formulation = _formulation(options.search)

    def search(
        constraints: str | ConstraintSet, /, *, options: SearchOptions = options
    ) -> SolveResult:
        loaded = constraint_set(constraints)
        if options.weights is not None:
            loaded = replace(loaded, weights=options.weights)
        limits = SearchLimits(seconds=options.timeout, seed=options.seed or 0)
        problem = _SetSearch(pairing, spec, loaded, limits, formulation, returned)
        return _solve_one_set(problem, report)

    # A target's file may name the only set that describes its hardware, such as strides of DMA.
    constraints = options.constraints or spec.constraints
    if constraints is None:
        return default_searches(search, options, reweigh, well_used)
    return (with_bound(search(constraints)),)


def constraint_set(constraints: str | ConstraintSet) -> ConstraintSet:
    """Return a constraint set by shipped name, by the path of a TOML file, or as it is."""
    return load_constraint_set(constraints) if isinstance(constraints, str) else constraints


@dataclass(frozen=True)
class _SetSearch:
    """Workload, constraint set and limits of the search of one set."""

    pairing: Pairing
    spec: HardwareSpec
    constraints: ConstraintSet
    limits: SearchLimits
    formulation: Formulation
    returned: TopCandidates


@without_collection()
def _solve_one_set(problem: _SetSearch, report: Progress) -> SolveResult:
    """Search, rank and prove the embeddings of one set."""
    pairing, constraints, limits = problem.pairing, problem.constraints, problem.limits
    top, formulation = problem.returned.count, problem.formulation
    clock = Clock(limits.seconds)
    require_written(pairing.workload)
    best = find_best(pairing, constraints, top, limits, report, formulation)
    commuted = False
    # A product may name its factors in the other order than the instruction. Only where labels
    # matched and nothing fits: else the same embeddings would be found twice.
    infeasible = best.search.status is Status.INFEASIBLE and best.search.mismatch is None
    if infeasible and constraints.get("dataflow") and not constraints.commutes:
        with_commuted = constraints.with_commuted_operands()
        remaining = limits.after(clock.passed)
        retry = find_best(pairing, with_commuted, top, remaining, report, formulation)
        if retry.search.status is not Status.INFEASIBLE:
            best, commuted = retry, True
    search, ranking, top_proven = best.search, best.ranking, best.proven
    proven: list[RankedCandidate] = []

    def prove_all() -> None:
        selected = (problem.returned.keep or tuple)(ranking.candidates)
        for number, item in enumerate(selected, 1):
            check_time()
            report("prove", number)
            # Two independent looks at the solver's answer: every constraint judges the scalar
            # operations, and isl proves that the derived program computes the workload.
            if search.problem is not None:
                check_embedding(search.problem, constraints, item.candidate.embedding)
            require(item.candidate.program)
            proven.append(item)

    try:
        within(clock.left(_PROOF_SECONDS), prove_all)
    except OutOfTime:
        # What is not proven is not returned, however far the search came.
        search, top_proven = search.cut(len(proven)), False
    return SolveResult(
        workload=pairing.workload,
        target=problem.spec,
        pairing=pairing,
        constraints=constraints,
        seed=limits.seed,
        status=search.status,
        complete=search.complete,
        count=len(search.embeddings) + len(search.irregular),
        families=search.families,
        seconds=search.seconds,
        total_seconds=clock.passed,
        search=search.effort,
        embeddings=tuple(proven),
        not_derivable=ranking.refused,
        conflict=None,
        irregular=len(search.irregular),
        top_proven=top_proven,
        commuted=commuted or _has_commuted_roles(pairing, constraints),
        unsearched=search.unsearched,
        timeout=limits.seconds,
    )


def _has_commuted_roles(pairing: Pairing, constraints: ConstraintSet) -> bool:
    """Return True if labels or element types alone give the factors each other's roles."""
    if constraints.commutes or pairing.fits(pairing.workload) is not None:
        return False
    return pairing.order != pairing.workload


def explained(result: SolveResult, clock: Clock, progress: Progress | None = None) -> SolveResult:
    """Add to an infeasible result why nothing fits.

    Parameters
    ----------
    result : SolveResult
        Result of a search; returned unchanged if it is not infeasible.
    clock : Clock
        Clock of the command. The explanation gets what is left of its limit, and a little more.
    progress : callable, optional
        Called once with the stage ``explain``.
    """
    if result.status is not Status.INFEASIBLE or result.conflict is not None:
        return result
    (progress or silent)("explain", 0)
    left = clock.left()
    seconds = None if left is None else max(left, _EXPLANATION_SECONDS)
    limits = SearchLimits(seconds=seconds, seed=result.seed)
    try:
        conflict = within(
            clock.left(_PROOF_SECONDS),
            lambda: explain_infeasible(result.pairing, result.constraints, limits),
        )
    except OutOfTime:
        messages = ("the time was over before a reason was found",)
        conflict = Conflict((), (), messages, minimal=False)
    return replace(result, conflict=conflict)


def _formulation(search: str | Formulation) -> Formulation:
    try:
        return Formulation(search)
    except ValueError:
        names = ", ".join(formulation.value for formulation in Formulation)
        raise SpecError(f"search {search!r} is unknown: choose one of {names}") from None


@dataclass(frozen=True, repr=False)
class ParetoResult(Displayed):
    """Pareto front of a search.

    ``solved.embeddings`` are its members, proven, with their ranks among all candidates. It is the
    complete front if ``solved.complete``.
    """

    solved: SolveResult

    @property
    def candidates(self) -> tuple[RankedCandidate, ...]:
        return self.solved.embeddings

    def to_json(self) -> dict[str, Any]:
        """The document of ``solve --pareto --json``: that of ``solve``, with the objectives."""
        document: dict[str, Any] = {**self.solved.to_json(), "pareto": True}
        for entry, item in zip(document["embeddings"], self.candidates, strict=True):
            entry["objectives"] = objectives(item)._asdict()
        return document


def pareto(
    workload: Computation,
    target: str | HardwareSpec,
    options: SearchOptions | None = None,
    *,
    progress: Progress | None = None,
    **keywords: Any,
) -> ParetoResult:
    """Find the candidates that no other dominates in MACs, packing traffic and footprint.

    Every embedding's program is derived, since its layouts decide; the members of the front are
    proven.

    Parameters
    ----------
    workload, target, progress
        As for :func:`solve`.
    options : SearchOptions, optional
        How to search; its fields may also be given as keywords.
    """
    search = SolveOptions(
        top=None, **shared(merged(SearchOptions, options, keywords), SearchOptions)
    )
    return ParetoResult(solve(workload, target, search, keep=front, progress=progress))
