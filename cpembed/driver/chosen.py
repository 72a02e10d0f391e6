"""Which candidate runs on this machine, on which target, and how.

>>> from cpembed.driver.solve import workload
>>> layer = workload("gemm m=8 n=16 k=16", target="vta_1x16x16")
>>> found = choose(Request(layer, "vta_1x16x16"))
>>> found.candidate.rank, found.plan.missing
(1, ())
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal

from cpembed.driver.choice import POOR, pick
from cpembed.driver.identified import identified
from cpembed.driver.solve import Progress, SolveResult, explained, hardware_spec, searches
from cpembed.driver.widening import best_of
from cpembed.embedding.constraint_set import ConstraintSet, Weights, load_constraint_set
from cpembed.embedding.cpsat import Status
from cpembed.errors import BackendUnavailable, LoweringError, SpecError, WorkloadError
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation
from cpembed.kernel.epilogue import Storing
from cpembed.selection.ranking import RankedCandidate
from cpembed.targets.base import Target
from cpembed.targets.choice import Choice, choices
from cpembed.targets.portable import PORTABLE, PortableTarget
from cpembed.targets.registry import missing_for, open_target
from cpembed.time_limit import Clock
from cpembed.tuning.records import Lookup, TunedChoice, tuned

BackendChoice = Literal["auto", "native", "generic"]

AnyTarget = Target[Any, Any, Any]

AS_IT_IS = Storing()
"""Nothing is asked of what is stored."""


@dataclass(frozen=True)
class Request:
    """What is to run, in the words of :func:`~cpembed.driver.run.run`."""

    workload: Computation
    target: str | HardwareSpec
    constraints: str | ConstraintSet | None = None
    rank: int | None = None
    identifier: str | None = None
    backend: BackendChoice = "auto"
    seed: int = 0
    weights: Weights | None = None
    timeout: float | None = None
    progress: Progress | None = None
    storing: Storing = AS_IT_IS
    untuned: bool = False
    explains: bool = True
    """Whether a search that finds nothing says why."""
    epilogue: Any = None
    """What is stored of the sums, as the target has it, in the place of ``storing``."""

    @property
    def any_embedding(self) -> bool:
        """Whether no candidate was asked for."""
        return self.rank is None and self.weights is None and self.identifier is None

    @property
    def anything(self) -> bool:
        """Whether nothing at all was asked for, so that another target may run."""
        return self.constraints is None and self.backend == "auto" and self.any_embedding

    def searches(self, target: AnyTarget) -> tuple[SolveResult, ...]:
        """Of each set that is searched, with so many of the best as the target chooses from."""
        compares = self.any_embedding

        def weighed(first: SolveResult) -> Weights | None:
            return target.weights(first.embeddings)

        return searches(
            self.workload,
            target.spec,
            self.constraints,
            top=target.considered if compares else self.rank or 1,
            keep=target.contenders if compares else None,
            weights=self.weights,
            timeout=self.timeout,
            seed=self.seed,
            progress=self.progress,
            rescored=weighed if compares and target.weighs else None,
        )


@dataclass(frozen=True)
class Plan:
    """What to build on ``target``: the first of ``choices`` that has a program. Where none has,
    portable code of ``candidate``, for what ``missing`` says, unless the call ``insists``."""

    target: AnyTarget
    candidate: RankedCandidate
    choices: Sequence[Choice]
    epilogue: Any
    missing: tuple[str, ...] = ()
    insists: bool = False
    storing: Storing | None = AS_IT_IS
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


def choose(asked: Request) -> Chosen | SolveResult:
    """The candidate that runs; the :class:`SolveResult` where the search found nothing.

    Raises as :func:`~cpembed.driver.run.run` does before anything is built.
    """
    target, missing = executing(asked)
    if len(asked.workload.statements) > 1:
        return of_several_statements(asked, target)
    epilogue = asked.epilogue or target.epilogue(asked.workload, asked.storing)
    solved, candidate, found = _searched(asked, target)
    if not solved.count:
        if not (asked.anything and solved.status is Status.INFEASIBLE):
            return solved
        other, stopped = _alternative(asked, solved)
        return other or replace(solved, stopped_alternatives=stopped)
    if candidate is None and solved.is_stopped:
        return solved
    candidate = candidate or pick(solved, asked.rank or 1)
    storing = None if asked.epilogue else asked.storing
    plan = Plan(target, candidate, (), epilogue, missing, asked.backend == "native", storing)
    forced = asked.anything and is_forced(solved)
    if not plan.native:
        other = _alternative(asked, solved)[0] if forced else None
        return other or Chosen(solved, plan.portable(*missing))
    if asked.progress is not None:
        asked.progress("build", 0)
    try:
        options = _choices(asked, solved, plan, found)
    except LoweringError as error:
        if plan.insists:
            raise
        return Chosen(solved, plan.portable(str(error)))
    if not target.weighs:
        solved = next((r for r in found if options[0].candidate in r.embeddings), solved)
    chosen = Chosen(solved, replace(plan, choices=options))
    poorly = asked.anything and (forced or solved.occupancy < POOR)
    ours = options[0].scored
    other = _alternative(asked, solved, ours.cost)[0] if poorly and ours is not None else None
    return other or chosen


def of_several_statements(asked: Request, target: AnyTarget) -> SolveResult:
    """The search of a workload of several statements, where it found nothing.

    Raises :class:`BackendUnavailable` where it did: nothing executes several statements.
    """
    solved, _, _ = _searched(asked, target)
    if not solved.count:
        return solved
    raise BackendUnavailable(
        f"nothing executes {asked.workload.name}, which has {len(asked.workload.statements)} "
        f"statements: `solve` and `explain` show how {solved.target.name} is embedded in it"
    )


def is_forced(solved: SolveResult) -> bool:
    """Whether an embedding takes more than the narrow set and the factors in their order."""
    narrower = solved.narrower
    return solved.exchanged or (narrower is not None and not narrower.utilisation)


def executing(asked: Request) -> tuple[AnyTarget, tuple[str, ...]]:
    """What executes: the target, or portable code for what it is missing.

    Raises :class:`BackendUnavailable` where the target's own code was insisted on."""
    spec = hardware_spec(asked.target)
    missing = missing_for(spec)
    if asked.backend == "native" and missing:
        raise BackendUnavailable(
            f"{spec.name}: {'; '.join(missing)}; else use the generic back end"
        )
    if asked.backend == PORTABLE or missing:
        return PortableTarget(spec), missing
    return open_target(spec), ()


def _searched(
    asked: Request, target: AnyTarget
) -> tuple[SolveResult, RankedCandidate | None, Sequence[SolveResult]]:
    """The search that counts, the candidate where one was asked for by its id, and all searches."""
    if asked.identifier is not None:
        solved, candidate = identified(
            asked.workload,
            target.spec,
            asked.identifier,
            constraints=asked.constraints,
            timeout=asked.timeout,
            progress=asked.progress,
        )
        return solved, candidate, ()
    clock = Clock(asked.timeout)
    found = asked.searches(target)
    own = target.weighs and asked.any_embedding and found[0].count
    solved = found[0] if own else best_of(found)
    if asked.explains and not own:
        solved = explained(solved, clock, asked.progress)
    return solved, None, found


def _choices(
    asked: Request, solved: SolveResult, plan: Plan, found: Sequence[SolveResult]
) -> Sequence[Choice]:
    """What to build, the first that can be built."""
    target, candidate, named = plan.target, plan.candidate, asked.constraints
    if not asked.untuned:
        of = load_constraint_set(named) if isinstance(named, str) else named
        only = None if asked.any_embedding else candidate.candidate.identifier
        kept = tuned(target, Lookup(solved.workload, plan.epilogue, of, only))
        if kept is not None:
            ranked = kept.ranked(solved.constraints.weights) if only is None else candidate
            return [Choice(ranked, target.schedule_of(kept.trial), None, kept)]
    if asked.identifier is not None:
        considered: Sequence[RankedCandidate] = (candidate,)
    elif not asked.any_embedding:
        considered = target.variants((candidate,), fuses=False)
    elif target.compares_always or len(found) > 1:
        considered = target.variants(_all(found), fuses=named is None)
    else:
        considered = (candidate,)
    return choices(target, considered, plan.epilogue)


def _alternative(
    asked: Request, solved: SolveResult, ours: float | None = None
) -> tuple[Chosen | None, tuple[str, ...]]:
    """The fastest of the alternatives by estimate, each solved once; None where none runs the
    workload here, or is faster than ``ours`` by more than estimates can tell. And those of which
    this is not known, because a limit stopped their search."""
    unit = open_target(solved.target).unit if ours is not None else "us"
    best: Chosen | None = None
    stopped: list[str] = []
    for name in solved.target.alternatives:
        try:
            found = choose(replace(asked, target=name))
        except (BackendUnavailable, LoweringError, SpecError, WorkloadError):
            # Also of types that the other one does not multiply.
            continue
        if not isinstance(found, Chosen):
            stopped += [name] if found.is_stopped else []
            continue
        if ours is not None and (found.plan.target.unit != unit or _cost(found) == float("inf")):
            continue
        if best is None or _cost(found) < _cost(best):
            best = found
    if best is None:
        return None, tuple(stopped)
    if ours is not None and _cost(best) * best.plan.target.equal >= ours:
        return None, tuple(stopped)
    theirs = None if ours is None else _cost(best)
    return replace(best, instead=Instead(solved, ours, theirs, unit)), tuple(stopped)


def _cost(chosen: Chosen) -> float:
    """The estimate; portable code comes last."""
    estimated = chosen.choice.estimated
    return float("inf") if estimated is None or not chosen.plan.native else estimated


def considered(asked: Request) -> tuple[RankedCandidate, ...]:
    """What the target chooses among, variants too; none where nothing executes it here."""
    spec = hardware_spec(asked.target)
    if missing_for(spec):
        return ()
    target = open_target(spec)
    return tuple(target.variants(_all(asked.searches(target))))


def _all(found: Sequence[SolveResult]) -> list[RankedCandidate]:
    return [item for result in found for item in result.embeddings]
