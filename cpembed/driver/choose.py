"""Choice of what runs: the candidate, its schedule, and the target or portable code.

>>> from cpembed.driver.named import workload
>>> layer = workload("gemm m=8 n=16 k=16", target="vta_1x16x16")
>>> selection = choose(Request(layer, "vta_1x16x16"))
>>> selection.candidate.rank, selection.plan.missing
(1, ())
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from cpembed.driver.advice import POOR, pick
from cpembed.driver.candidate_id import identified
from cpembed.driver.named import hardware_spec
from cpembed.driver.presets import best_of
from cpembed.driver.request import SUMS, AnyTarget, Request, candidates_of, search_for
from cpembed.driver.result import SolveResult
from cpembed.driver.solve import constraint_set, explained
from cpembed.embedding.cpsat import Status
from cpembed.errors import BackendUnavailable, LoweringError, SpecError, WorkloadError
from cpembed.kernel.epilogue import Storing
from cpembed.selection.ranking import RankedCandidate
from cpembed.targets.choice import Choice, choices
from cpembed.targets.portable import PORTABLE, PortableTarget
from cpembed.targets.registry import missing_for, open_target
from cpembed.time_limit import Clock
from cpembed.tuning.records import Lookup, TunedChoice, tuned


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to build on ``target``: the first of ``choices`` that has a program. Where none has,
    portable code of ``candidate``, for what ``missing`` says, unless the call ``insists``."""

    target: AnyTarget
    candidate: RankedCandidate
    choices: Sequence[Choice]
    epilogue: Any
    missing: tuple[str, ...] = ()
    insists: bool = False
    storing: Storing | None = SUMS
    """None: the epilogue is stored as it is, whatever executes it."""

    @property
    def native(self) -> bool:
        """Whether the target's instruction is used."""
        return not isinstance(self.target, PortableTarget)

    def portable(self, *missing: str) -> Plan:
        """The same candidate as portable code; of what that does not store, the sums."""
        target, epilogue = PortableTarget(self.target.spec), self.epilogue
        if self.storing is not None:
            epilogue = None
            with suppress(WorkloadError):
                epilogue = target.epilogue(self.candidate.candidate.program.unfused, self.storing)
        choice = Choice(self.candidate, None)
        return replace(self, target=target, choices=(choice,), epilogue=epilogue, missing=missing)


@dataclass(frozen=True)
class Instead:
    """Why a target runs in the place of the one that was asked for, whose search is ``solved``:
    estimates of both in ``unit``, packing and unpacking included; None where the one that was asked
    for has no embedding, or an estimate of another kind."""

    solved: SolveResult
    asked: float | None = None
    estimated: float | None = None
    unit: str = "us"


@dataclass(frozen=True)
class Chosen:
    """The candidate that runs, of the search ``solved``, and how; ``instead`` where it is on an
    alternative target."""

    solved: SolveResult
    plan: Plan
    instead: Instead | None = None

    @property
    def choice(self) -> Choice:
        """The first that is built."""
        return self.plan.choices[0]

    @property
    def candidate(self) -> RankedCandidate:
        return self.choice.candidate

    @property
    def tuned(self) -> TunedChoice[Any] | None:
        """The trial that was kept, where that made the choice."""
        return self.choice.tuned

    def to_json(self) -> dict[str, Any]:
        """Why it runs, in the document of ``explain --chosen --json``."""
        asked = self.solved if self.instead is None else self.instead.solved
        document: dict[str, Any] = {
            "target": asked.target.name,
            "executed": self.solved.target.name,
            "missing": list(self.plan.missing),
            "tuned": None if self.tuned is None else self.tuned.to_json(),
        }
        return document | self.choice.to_json(self.plan.target) if self.plan.native else document


def choose(request: Request) -> Chosen | SolveResult:
    """Choose what runs: search, rank by the target's estimates, fall back where nothing executes.

    Parameters
    ----------
    request : Request
        Workload, target and options.

    Returns
    -------
    Chosen or SolveResult
        The search's result if it found nothing that runs.

    Raises
    ------
    BackendUnavailable, LoweringError
        If the target's own code is insisted on and impossible.
    WorkloadError
        If the rank, the id or the output does not exist.
    """
    options = request.options
    target, missing = executing(request)
    if len(request.workload.statements) > 1:
        return of_several_statements(request, target)
    epilogue = request.epilogue or target.epilogue(request.workload, options.storing)
    search = _search(request, target)
    solved = search.solved
    may_substitute = options.free_choice
    if not solved.count:
        if not (may_substitute and solved.status is Status.INFEASIBLE):
            return solved
        alternative, stopped = _alternative(request, solved)
        return alternative or replace(solved, stopped_alternatives=stopped)
    if search.candidate is None and solved.is_stopped:
        return solved
    candidate = search.candidate or pick(solved, options.rank or 1)
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
        alternative = _alternative(request, solved)[0] if forced else None
        return alternative or Chosen(solved, plan.portable(*missing))
    if request.progress is not None:
        request.progress("build", 0)
    try:
        plan = replace(plan, choices=_choices(request, search, plan))
    except LoweringError as error:
        if plan.insists:
            raise
        return Chosen(solved, plan.portable(str(error)))
    best = plan.choices[0]
    if not target.weighs:
        # The result that the best candidate comes from, which may be the other preset's.
        solved = next((r for r in search.results if best.candidate in r.embeddings), solved)
    selection = Chosen(solved, plan)
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
    solved = _search(request, target).solved
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
    return solved.exchanged or (narrower is not None and not narrower.utilisation)


def executing(request: Request) -> tuple[AnyTarget, tuple[str, ...]]:
    """Return the target that executes, portable code included, and what the machine is missing.

    Raises
    ------
    BackendUnavailable
        If the target's own code is insisted on and something is missing.
    """
    spec, backend = hardware_spec(request.target), request.options.backend
    missing = missing_for(spec)
    if backend == "native" and missing:
        raise BackendUnavailable(
            f"{spec.name}: {'; '.join(missing)}; else use the generic back end"
        )
    if backend == PORTABLE or missing:
        return PortableTarget(spec), missing
    return open_target(spec), ()


@dataclass(frozen=True)
class _Search:
    """Results of all sets that were searched, the one that counts, and a candidate named by id."""

    solved: SolveResult
    results: Sequence[SolveResult]
    candidate: RankedCandidate | None = None


def _search(request: Request, target: AnyTarget) -> _Search:
    options = request.options
    if options.identifier is not None:
        solved, candidate = identified(
            request.workload, target.spec, options.identifier, options, progress=request.progress
        )
        return _Search(solved, (), candidate)
    clock = Clock(options.timeout)
    results = search_for(request, target)
    # A target that weighs overheads compares the candidates of both presets by its estimates.
    compares = target.weighs and not options.named_candidate and results[0].count
    solved = results[0] if compares else best_of(results)
    if request.explains and not compares:
        solved = explained(solved, clock, request.progress)
    return _Search(solved, results)


def _choices(request: Request, search: _Search, plan: Plan) -> Sequence[Choice]:
    """Return candidates with their schedules, the one to build first; others if it has no code."""
    target, candidate, options = plan.target, plan.candidate, request.options
    if not options.untuned:
        constraints = options.constraints and constraint_set(options.constraints)
        identifier = candidate.candidate.identifier if options.named_candidate else None
        lookup = Lookup(search.solved.workload, plan.epilogue, constraints or None, identifier)
        record = tuned(target, lookup)
        if record is not None:
            weights = search.solved.constraints.weights
            ranked = record.ranked(weights) if identifier is None else candidate
            return [Choice(ranked, target.schedule_of(record.trial), None, record)]
    if options.identifier is not None:
        candidates: Sequence[RankedCandidate] = (candidate,)
    elif options.named_candidate:
        candidates = target.variants((candidate,), fuses=False)
    elif target.compares_always or len(search.results) > 1:
        candidates = target.variants(
            candidates_of(search.results), fuses=options.constraints is None
        )
    else:
        candidates = (candidate,)
    return choices(target, candidates, plan.epilogue)


def _alternative(
    request: Request, solved: SolveResult, own_cost: float | None = None
) -> tuple[Chosen | None, tuple[str, ...]]:
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
    selection : Chosen or None
        The alternative of the least estimate.
    stopped : tuple of str
        Alternatives of which nothing is known, because a limit stopped their search.
    """
    unit = open_target(solved.target).unit if own_cost is not None else "us"
    best: Chosen | None = None
    stopped: list[str] = []
    for name in solved.target.alternatives:
        try:
            selection = choose(replace(request, target=name))
        except (BackendUnavailable, LoweringError, SpecError, WorkloadError):
            # It may multiply other element types, too.
            continue
        if not isinstance(selection, Chosen):
            stopped += [name] if selection.is_stopped else []
            continue
        cost = _cost(selection)
        if own_cost is not None and (selection.plan.target.unit != unit or cost == float("inf")):
            continue
        if best is None or cost < _cost(best):
            best = selection
    if best is None:
        return None, tuple(stopped)
    if own_cost is not None and _cost(best) * best.plan.target.equal >= own_cost:
        return None, tuple(stopped)
    estimated = None if own_cost is None else _cost(best)
    return replace(best, instead=Instead(solved, own_cost, estimated, unit)), tuple(stopped)


def _cost(selection: Chosen) -> float:
    """Return the estimate; infinity for portable code, which comes last."""
    estimated = selection.choice.estimated
    return float("inf") if estimated is None or not selection.plan.native else estimated
