"""Pipeline of the driver: every stage from a request to a timed kernel, in order.

::

    request ─ resolve ─▶ target ─ search ─▶ results ─ prove ─▶ candidates ─ lower, schedule ─▶ plan
                                                                                                │
                     RunResult ◀─ time ◀─ verify ◀─ build ◀──────────── choose ◀────────────────┘

resolve
    Names become a workload and a target, which is opened once: ``plan.py``.
search
    A constraint set gives every embedding, ranked by overheads; two presets are searched where no
    set is named: ``solve.py``, ``presets.py``.
prove
    Each candidate that is returned is judged by every constraint, and its program is proven with
    isl: ``solve.py``. A target's variants of them come later: one is proven where it is shown, or
    just before it is built (:func:`~cpembed.targets.choice.built_first`).
lower, schedule
    Candidates and the target's variants of them in its own terms, each with the schedule of a
    tuning record or the fastest by the model: :func:`schedule`.
choose
    The best of these, an alternative target where the instruction would be mostly idle, portable
    code where nothing executes it: :func:`choose`. Around it, ``methods.py`` compares im2col and
    Winograd, each of which is a product with a choice of its own.
build, verify, time
    The first choice that has a program, in the worker process, which may die in its place:
    :func:`execute`. Only verified programs are timed.

``run`` takes all stages, ``explain --chosen`` and ``match`` those up to *choose*, ``solve`` those
up to *prove*; ``build`` links what *choose* gives, and ``tune`` repeats *lower* to *time*.

>>> from cpembed.driver.named import workload
>>> layer = workload("gemm m=8 n=16 k=16", target="vta_1x16x16")
>>> selection = choose(Request(layer, "vta_1x16x16"))
>>> selection.ranked.rank, selection.plan.missing
(1, ())
"""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from cpembed.cost.machine.estimate import Estimate
from cpembed.cost.ranking import RankedCandidate
from cpembed.driver.advice import POOR
from cpembed.driver.candidate_id import identified
from cpembed.driver.estimate import estimate
from cpembed.driver.options import EstimateOptions, SearchOptions, shared
from cpembed.driver.plan import (
    AnyTarget,
    Plan,
    Request,
    Selection,
    Substitution,
    candidate_searches,
    candidates_of,
)
from cpembed.driver.presets import best_of
from cpembed.driver.result import SolveResult
from cpembed.driver.run_result import Expectation, RunResult
from cpembed.driver.solve import Progress, constraint_set, explained
from cpembed.embedding.cpsat import Status
from cpembed.errors import BackendUnavailable, LoweringError, SpecError, WorkloadError
from cpembed.runtime.tuning.records import Lookup
from cpembed.steps import silent, step
from cpembed.targets.capabilities import Weighing, details, with_variants
from cpembed.targets.choice import Choice, built_first, choices
from cpembed.targets.outputs import save, save_trace, stored_type
from cpembed.targets.portable import PortableTarget
from cpembed.targets.registry import open_target
from cpembed.targets.tuner import tuning_record
from cpembed.targets.verification import verified
from cpembed.time_limit import Clock

_TIMED_CALLS = 10
"""Number of calls of a kernel that the time limit of its timing allows for.

Timing makes more calls, but kernels are many times as fast as
:data:`~cpembed.steps.SLOWEST`, by which the limit is computed."""


@dataclass(frozen=True)
class Files:
    """Files to write about a run; None for those that are not requested."""

    save: Path | None = None
    trace: Path | None = None


def choose(request: Request) -> Selection | SolveResult:
    """Choose a candidate: search, rank by the target's estimates, fall back where nothing executes.

    Parameters
    ----------
    request : Request
        Workload, target and options.

    Returns
    -------
    Selection or SolveResult
        The search's result if it found nothing that runs.

    Raises
    ------
    BackendUnavailable, LoweringError
        If the target's own code is insisted on and impossible.
    WorkloadError
        If the rank, the id or the output does not exist.
    """
    options = request.options
    target, missing = request.execution
    # Code is generated for one statement: several can be embedded and explained, not run.
    if len(request.workload.statements) > 1:
        return of_several_statements(request, target)
    epilogue = request.epilogue or target.epilogue(request.workload, options.storing)
    searched = search(request, target)
    solved = searched.solved
    # Whoever names a set, a candidate or a back end wants that, or to know why not.
    may_substitute = options.free_choice
    if not solved.count:
        # "Unknown" is no reason for an alternative: with more time the target itself may fit.
        if not (may_substitute and solved.status is Status.INFEASIBLE):
            return solved
        alternative, stopped = _alternative(request, solved)
        return alternative or replace(solved, stopped_alternatives=stopped)
    if searched.candidate is None and solved.is_stopped:
        return solved
    candidate = searched.candidate or solved.of_rank(options.rank or 1)
    # Without choices yet: what is scheduled depends on the epilogue, and portable code on the plan.
    plan = Plan(
        target=target,
        candidate=candidate,
        choices=(),
        epilogue=epilogue,
        missing=missing,
        insists=options.backend == "native",
        storing=None if request.epilogue else options.storing,
    )
    forced = may_substitute and is_forced(solved)
    if not plan.native:
        # This machine lacks the instruction. Its own embedding by portable code is preferred to an
        # alternative's kernel, unless it took the wider set to get one at all.
        alternative = _alternative(request, solved)[0] if forced else None
        return alternative or Selection(
            solved, plan.portable(*missing), described=searched.described
        )
    if request.progress is not None:
        request.progress("build", 0)
    try:
        plan = replace(plan, choices=schedule(request, searched, plan))
    except LoweringError as error:
        # The candidate is proven, so portable code of it computes the workload.
        if plan.insists:
            raise
        return Selection(solved, plan.portable(str(error)))
    best = plan.choices[0]
    if not isinstance(target, Weighing):
        # The result that the best candidate comes from, which may be the other preset's.
        solved = next((r for r in searched.results if best.ranked in r.embeddings), solved)
    selection = Selection(solved, plan)
    # Searching the alternatives costs as much as the search so far: only where they may well win.
    idle = may_substitute and (forced or solved.occupancy < POOR)
    if not idle or best.scored is None:
        return selection
    return _alternative(request, solved, best.scored.cost)[0] or selection


def of_several_statements(request: Request, target: AnyTarget) -> SolveResult:
    """Return the search of a workload of several statements if it found nothing.

    Raises
    ------
    BackendUnavailable
        If it found an embedding: nothing executes several statements.
    """
    solved = search(request, target).solved
    if not solved.count:
        return solved
    name, count = request.workload.name, len(request.workload.statements)
    raise BackendUnavailable(
        f"nothing executes {name}, which has {count} statements: `solve` and `explain` show how "
        f"{solved.target.name} is embedded in it"
    )


def is_forced(solved: SolveResult) -> bool:
    """Return True if the instruction fits only under the wider preset or with commuted operands."""
    narrower = solved.narrower
    return solved.commuted or (narrower is not None and not narrower.utilisation)


@dataclass(frozen=True)
class Searches:
    """Results of all sets that were searched, the one that counts, and a candidate named by id.

    ``described`` is the estimate of the best candidate where estimates ranked the candidates.
    """

    solved: SolveResult
    results: Sequence[SolveResult]
    candidate: RankedCandidate | None = None
    described: Estimate | None = None


def search(request: Request, target: AnyTarget) -> Searches:
    """Search for the named candidate, or each constraint set that counts for the target."""
    options = request.options
    if _is_described(request, target):
        fastest = EstimateOptions(rank_by="estimate", top=1, **shared(options, SearchOptions))
        result = estimate(request.workload, target.spec, fastest, progress=request.progress)
        first = next(iter(result.estimates), None)
        described = first if isinstance(first, Estimate) else None
        return Searches(result.solved, (result.solved,), described=described)
    if options.identifier is not None:
        solved, candidate = identified(
            request.workload, target.spec, options.identifier, options, progress=request.progress
        )
        return Searches(solved, (), candidate)
    clock = Clock(options.timeout)
    results = candidate_searches(request, target)
    # A target that weighs overheads compares the candidates of both presets by its estimates.
    compares = isinstance(target, Weighing) and not options.named_candidate and results[0].count
    solved = results[0] if compares else best_of(results)
    if request.explains and not compares:
        solved = explained(solved, clock, request.progress)
    return Searches(solved, results)


def _is_described(request: Request, target: AnyTarget) -> bool:
    """Return True if estimates of a described machine choose the candidate.

    They do where nothing executes the target and its file describes a machine, so that all commands
    state the time of the same candidate.
    """
    nothing_executes = isinstance(target, PortableTarget) and bool(request.execution.missing)
    return nothing_executes and bool(target.spec.machines) and not request.options.named_candidate


def schedule(request: Request, searched: Searches, plan: Plan) -> Sequence[Choice]:
    """Lower the candidates and schedule each, the one to build first.

    Parameters
    ----------
    request : Request
        Which candidates take part.
    searched : Searches
        Results of the searches.
    plan : Plan
        Target, candidate of the search and epilogue.

    Returns
    -------
    sequence of Choice
        A tuning record alone, else the candidates by their estimates; those after the first are
        built if it has no code.
    """
    target, candidate, options = plan.target, plan.candidate, request.options
    if not options.untuned:
        constraints = options.constraints and constraint_set(options.constraints)
        identifier = candidate.identifier if options.named_candidate else None
        lookup = Lookup(searched.solved.workload, plan.epilogue, constraints or None, identifier)
        record = tuning_record(target, lookup)
        # A measured schedule is not compared with estimates, which are of another kind.
        if record is not None:
            weights = searched.solved.constraints.weights
            ranked = record.choice.ranked(weights) if identifier is None else candidate
            return [Choice(ranked, record.schedule, None, record.choice)]
    # An id names one program. A rank names an embedding, whose operands may be packed or in place.
    if options.identifier is not None:
        candidates: Sequence[RankedCandidate] = (candidate,)
    elif options.named_candidate:
        candidates = with_variants(target, (candidate,), fuses=False)
    elif target.policy.compares_always or len(searched.results) > 1:
        candidates = with_variants(
            target, candidates_of(searched.results), fuses=options.constraints is None
        )
    else:
        candidates = (candidate,)
    return choices(target, candidates, plan.epilogue, first_only=request.first_only)


def _alternative(
    request: Request, solved: SolveResult, own_cost: float | None = None
) -> tuple[Selection | None, tuple[str, ...]]:
    """Choose among the alternatives that the target's specification names.

    Parameters
    ----------
    request : Request
        What is to run; each alternative is solved once for it.
    solved : SolveResult
        Search of the target itself.
    own_cost : float, optional
        Estimate of the target's own candidate, which an alternative has to beat by more than
        estimates can tell; None if it has no candidate.

    Returns
    -------
    selection : Selection or None
        The alternative of the least estimate.
    stopped : tuple of str
        Alternatives of which nothing is known, because a limit stopped their search.
    """
    unit = open_target(solved.target).unit if own_cost is not None else "us"
    best: Selection | None = None
    stopped: list[str] = []
    for name in solved.target.alternatives:
        try:
            selection = choose(replace(request, target=name))
        except (BackendUnavailable, LoweringError, SpecError, WorkloadError):
            # It may multiply other element types, too.
            continue
        if not isinstance(selection, Selection):
            stopped += [name] if selection.is_stopped else []
            continue
        cost = _cost(selection)
        # Microseconds do not compare with cycles, and portable code has no estimate.
        if own_cost is not None and (selection.plan.target.unit != unit or cost == float("inf")):
            continue
        if best is None or cost < _cost(best):
            best = selection
    if best is None:
        return None, tuple(stopped)
    # Within the tolerance of the estimates, the target that was asked for stays.
    if own_cost is not None and _cost(best) * best.plan.target.policy.tie_ratio >= own_cost:
        return None, tuple(stopped)
    estimated = None if own_cost is None else _cost(best)
    return replace(best, substitution=Substitution(solved, own_cost, estimated, unit)), tuple(
        stopped
    )


def _cost(selection: Selection) -> float:
    """Return the estimate; infinity for portable code, which comes last."""
    estimated = selection.choice.estimated
    return float("inf") if estimated is None or not selection.plan.native else estimated


@dataclass
class _Stages:
    """Wall time of each stage in seconds; a stage is announced when it begins."""

    progress: Progress
    seconds: dict[str, float] = field(default_factory=dict[str, float])

    @contextmanager
    def __call__(self, name: str) -> Generator[None]:
        self.progress(name, 0)
        started = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - started


def execute(
    solved: SolveResult,
    plan: Plan,
    seed: int,
    files: Files = Files(),
    *,
    progress: Progress = silent,
) -> RunResult:
    """Build a plan, verify the program on random data, and time it, in the worker process.

    Parameters
    ----------
    solved : SolveResult
        Search that the candidate belongs to.
    plan : Plan
        What is built; portable code of it where nothing has a program.
    seed : int
        Seed of the data.
    files : Files
        Files to write of what ran.
    progress : callable
        Called at each stage.

    Raises
    ------
    InvariantError
        If the program's numbers are wrong.
    LoweringError
        If nothing has a program and portable code must not stand in.
    """
    stages = _Stages(progress)
    try:
        with stages("build"):
            artifact, choice = built_first(plan.target, plan.choices, plan.epilogue)
    except LoweringError as error:
        # Some limits show only when code is generated. Portable code itself ends the recursion.
        if plan.insists or not plan.native:
            raise
        return execute(solved, plan.portable(str(error)), seed, files, progress=progress)
    target, workload = plan.target, solved.workload
    backend = target.executed_by(artifact)
    with stages("verify"):
        verification, inputs = verified(target, artifact, workload, plan.epilogue, seed)
    embedding = choice.ranked.identifier
    kernel = f"the {backend} kernel of embedding {embedding} of {solved.target.name}"
    # Before any time is taken: a wrong program's speed must never be reported.
    verification.require(f"{kernel} in {workload.name}", seed)
    with stages("measure"), step(f"timing the {backend} kernel", _TIMED_CALLS * workload.macs):
        timing = target.time(artifact, inputs)
    if files.save is not None:
        save(target, artifact, files.save)
    if files.trace is not None:
        save_trace(target, artifact, files.trace)
    return RunResult(
        solved=solved,
        target=target,
        candidate=choice.ranked,
        backend=backend,
        missing=plan.missing,
        verification=verification,
        timing=timing,
        seed=seed,
        choice=choice,
        epilogue=plan.epilogue,
        stored=stored_type(target, workload, plan.epilogue),
        details=details(target, artifact, timing),
        expectation=Expectation.of_choice(target, choice, timing) if plan.native else None,
        seconds=stages.seconds,
        artifact=artifact,
    )
