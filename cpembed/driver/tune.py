"""Tune a workload: the fastest embedding and schedule; kept, resumable.

>>> import tempfile
>>> from pathlib import Path
>>> from cpembed.driver.named import workload
>>> layer = workload("gemm m=8 n=32 k=32", target="vta_1x16x16")
>>> with tempfile.TemporaryDirectory() as folder:
...     result = tune(layer, "vta_1x16x16", trials=4, database=Path(folder))
>>> len(result.trials), result.best.cycles <= result.untuned.cycles
(4, True)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from cpembed import worker
from cpembed.cluster import Task as WorkerTask
from cpembed.cluster import Workers
from cpembed.cluster.base import ThisProcess
from cpembed.driver.named import hardware_spec
from cpembed.driver.options import KernelOptions, SolveOptions, TuneOptions, merged
from cpembed.driver.pipeline import choose, of_several_statements
from cpembed.driver.plan import Selection
from cpembed.driver.request import AnyTarget, Request
from cpembed.driver.result import SolveResult, workload_json
from cpembed.driver.solve import Progress, solve
from cpembed.errors import BackendUnavailable, CrashError, LoweringError, WorkloadError
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation
from cpembed.provenance import Provenance
from cpembed.selection.ranking import RankedCandidate
from cpembed.targets.base import CONSIDERED
from cpembed.targets.choice import Choice, choices
from cpembed.targets.registry import missing_for, open_target
from cpembed.tuning.database import Trial, default_directory
from cpembed.tuning.records import WIDEST
from cpembed.tuning.session import SEARCH_SHARE, CandidatePool, Task, Together, Tuning
from cpembed.tuning.space import Design, Proposal, distinct

OnTrial = Callable[[int, Trial, Trial], None]
"""Called with the number of a trial, the trial, and the best one so far."""


@dataclass(frozen=True, kw_only=True)
class TuneResult:
    """What is known after tuning: ``trials`` holds those of this call's proposals, ``best`` the
    best of all that are kept under this key, ``untuned`` what runs without tuning.

    ``candidates`` embeddings took part. ``measured`` trials are new; the others were kept from
    earlier calls. ``stopped``: the time limit came before the number of trials. ``seconds`` is wall
    time, searches included. ``about`` is what was tuned beside workload, target and constraint set.
    """

    target: AnyTarget
    workload: Computation
    constraints: str
    seed: int
    candidates: int
    trials: tuple[Any, ...]
    measured: int
    kept: int
    stopped: bool
    best: Any
    untuned: Any
    seconds: float
    database: Path
    about: dict[str, Any]

    @classmethod
    def of(cls, target: AnyTarget, tuning: Tuning[Any, Any]) -> TuneResult:
        """After :meth:`Tuning.run`, whole or interrupted; raises as :meth:`Tuning.outcome`."""
        best, untuned = tuning.outcome()
        task = tuning.task
        return cls(
            target=target,
            workload=task.workload,
            constraints=task.constraints.name,
            seed=task.seed,
            candidates=len(tuning.field.designs),
            trials=tuple(tuning.done),
            measured=tuning.measured,
            kept=tuning.kept,
            stopped=tuning.stopped,
            best=best,
            untuned=untuned,
            seconds=time.perf_counter() - task.started,
            database=tuning.store.path,
            about=tuning.about(),
        )

    @property
    def speedup(self) -> float:
        """What is minimised, untuned over tuned."""
        return (self.untuned.cost or 0) / (self.best.cost or 1)

    def to_json(self) -> dict[str, Any]:
        """The document of ``tune --json``."""
        return {
            "workload": workload_json(self.workload),
            "target": self.target.spec.name,
            "constraints": self.constraints,
            "unit": self.target.unit,
            "provenance": self.target.provenance,
            **self.about,
            "seed": self.seed,
            "candidates": self.candidates,
            "trials": len(self.trials),
            "measured": self.measured,
            "kept": self.kept,
            "stopped": self.stopped,
            "untuned": self.target.trial_json(self.untuned),
            "best": self.target.trial_json(self.best),
            "speedup": self.speedup,
            "seconds": self.seconds,
            "database": str(self.database),
        }


@dataclass(frozen=True)
class OpenTuning:
    """A search that is ready to run, on the target that it is for."""

    target: AnyTarget
    tuning: Tuning[Any, Any]
    epilogue: Any
    workers: Workers

    def run(self, stop: Callable[[], bool] = lambda: False) -> Iterator[Any]:
        """The trials one by one, none of them begun after ``stop`` says so; raises as
        :meth:`~cpembed.cluster.Workers.outcomes`."""
        if isinstance(self.workers, ThisProcess) or measures(self.target):
            # What is timed is timed beside the best so far, which the trial before may be.
            return takewhile(lambda _: not stop(), self.tuning.run())
        together = made_together(self.workers, self.target, self.epilogue, stop)
        return self.tuning.run(together)

    def result(self) -> TuneResult:
        """Raises as :meth:`TuneResult.of`."""
        return TuneResult.of(self.target, self.tuning)


def tune(
    workload: Computation,
    target: str | HardwareSpec,
    options: TuneOptions | None = None,
    *,
    on_trial: OnTrial | None = None,
    workers: Workers | None = None,
    progress: Progress | None = None,
    **keywords: Any,
) -> TuneResult | SolveResult:
    """Try schedules of the best embeddings, measured on this machine or simulated, and keep them.

    Parameters
    ----------
    workload : Computation
        Operator, from :func:`~cpembed.driver.named.workload`.
    target : str or HardwareSpec
        Target by name, file or value.
    options : TuneOptions, optional
        How long and what for; its fields may also be given as keywords. Without a constraint set,
        the widest one is searched, and what runs without tuning takes part too.
    on_trial : callable, optional
        Called after each trial.
    workers : Workers, optional
        Processes that simulate several trials at a time, or a cluster of which one measures them.
    progress : callable, optional
        Called at each step of the search with the stage and a count.

    Returns
    -------
    TuneResult or SolveResult
        The search's result if nothing can be embedded. Without a constraint set, one of the
        target's ``alternatives`` is tuned where that is proven or the model says that it is faster.

    Raises
    ------
    BackendUnavailable
        If nothing here simulates or executes the target.
    WorkloadError
        If an option is of another target.
    LoweringError
        If the instruction can execute no embedding.
    InvariantError
        If a kernel's numbers are wrong.
    """
    opened = open_tuning(workload, target, options, workers=workers, progress=progress, **keywords)
    if isinstance(opened, SolveResult):
        return opened
    for number, trial in enumerate(opened.run(), 1):
        best = opened.tuning.best
        if on_trial is not None and best is not None:
            on_trial(number, trial, best)
    return opened.result()


def open_tuning(
    workload: Computation,
    target: str | HardwareSpec,
    options: TuneOptions | None = None,
    *,
    workers: Workers | None = None,
    progress: Progress | None = None,
    **keywords: Any,
) -> OpenTuning | SolveResult:
    """Search and choose the embeddings that take part: all of :func:`tune` before its first trial.

    Parameters are those of :func:`tune`.
    """
    started = time.perf_counter()
    options = merged(TuneOptions, options, keywords)
    constraints, objective, timeout = options.constraints, options.objective, options.timeout
    spec = hardware_spec(target)
    require_tunable(spec)
    worker.prepare()
    machine = open_target(spec)
    _check_options(machine, options.output, objective)
    limit = None if timeout is None else timeout * SEARCH_SHARE
    kernel = KernelOptions(
        constraints=constraints,
        timeout=limit,
        seed=options.seed,
        output=options.output,
        untuned=True,
    )
    storing = kernel.storing
    request = Request(workload, spec, kernel, progress=progress)
    if len(workload.statements) > 1:
        return of_several_statements(request, machine)
    machine.epilogue(workload, storing)
    # Without a set, what runs untuned takes part: tuning never does worse.
    usual: Selection | SolveResult | None = None
    if constraints is None:
        usual = choose(request)
        if isinstance(usual, Selection) and usual.plan.native:
            spec, machine = usual.solved.target, usual.plan.target
            # An alternative may be another kind of target.
            require_tunable(spec)
            _check_options(machine, options.output, objective)
    search = SolveOptions(
        constraints=constraints or WIDEST,
        top=max(options.candidates, CONSIDERED),
        timeout=limit,
        seed=options.seed,
    )
    wide = solve(workload, spec, search, progress=progress)
    if isinstance(usual, SolveResult) and not wide.embeddings:
        return usual
    first = usual.plan.choices if isinstance(usual, Selection) and usual.plan.native else ()
    if not first and not wide.embeddings:
        return wide
    if objective is not None:
        machine = machine.minimising(objective)
    epilogue = machine.epilogue(workload, storing)
    if not first and machine.compares_always:
        with suppress(LoweringError):
            likely = (machine.contenders or tuple)(wide.embeddings)
            first = choices(machine, machine.variants(likely, fuses=constraints is None), epilogue)
    field = _field(
        machine, first, wide.embeddings[: options.candidates], epilogue, constraints is None
    )
    deadline = float("inf") if timeout is None else started + timeout
    task = Task(
        workload, spec, wide.constraints, options.trials, options.seed or 0, started, deadline
    )
    folder = options.database or default_directory()
    executing = workers or ThisProcess()
    call = worker.call
    if measures(machine) and not isinstance(executing, ThisProcess):
        executing.require_measuring()
        call = measured_by(executing)
    tuning = machine.open_tuning(task, field, epilogue, folder, call)
    return OpenTuning(machine, tuning, epilogue, executing)


def _field(
    target: AnyTarget,
    first: Sequence[Choice],
    others: Sequence[RankedCandidate],
    epilogue: Any,
    fuses: bool,
) -> CandidatePool[Any]:
    """The embeddings that take part: what runs untuned, what it was chosen among, and ``others``,
    with their variants.

    Raises :class:`LoweringError` where the instruction executes none of them.
    """
    ranked = [choice.candidate for choice in first]
    designs: list[Design[Any]] = []
    refused: dict[str, str] = {}
    seen: set[str] = set()
    for item in (*ranked, *target.variants(others, fuses=fuses)):
        if item.candidate.identifier in seen:
            continue
        seen.add(item.candidate.identifier)
        try:
            lowered = target.lower(item.candidate.program, epilogue)
            designs.append(Design(item, lowered, target.space(lowered)))
        except LoweringError as error:
            refused[item.candidate.identifier] = str(error)
    if not designs:
        raise LoweringError(next(iter(refused.values())))
    taking_part = distinct(designs)
    for design in taking_part:
        target.require(design.candidate)
    untuned = first[0].schedule if first else taking_part[0].space.best().schedule
    return CandidatePool(tuple(taking_part), untuned, tuple(refused.values()))


def require_tunable(spec: HardwareSpec) -> None:
    """Raises :class:`BackendUnavailable` for a target that nothing here simulates or executes."""
    try:
        why = open_target(spec).untunable()
    except BackendUnavailable as error:
        why = f"{error}: nothing to measure"
    # What is to be installed is said only where that would help.
    if why is None and (missing := missing_for(spec)):
        why = f"{'; '.join(missing)}: nothing to measure"
    if why is not None:
        raise BackendUnavailable(f"{spec.name}: {why}")


def _check_options(target: AnyTarget, output: str | None, objective: str | None) -> None:
    name = target.spec.name
    if objective is not None and objective not in target.objectives:
        has = ", ".join(target.objectives) or "one only"
        raise WorkloadError(f"{name} has no objective {objective} ({has}): leave it out")
    if output is not None and not target.tunes_stored:
        raise WorkloadError(
            f"an output form is for targets that are tuned for what they store, not for {name}: "
            "leave it out"
        )


def measures(target: AnyTarget) -> bool:
    """Whether trials are times of the CPU that makes them."""
    return target.provenance is Provenance.MEASURED


def made_together(
    workers: Workers, target: AnyTarget, epilogue: Any, stop: Callable[[], bool]
) -> Together[Any, Any]:
    """Trials of several proposals at a time, none of them begun after ``stop`` says so."""

    def together(proposals: Sequence[Proposal[Any]]) -> Iterator[tuple[Proposal[Any], Any]]:
        by_key = {proposal.key: proposal for proposal in proposals}
        tasks = (
            WorkerTask(key, *target.trial_call(proposal, epilogue), "trying a schedule")
            for key, proposal in by_key.items()
        )
        for outcome in workers.outcomes(takewhile(lambda _: not stop(), tasks)):
            proposal, error = by_key[outcome.task.key], outcome.error
            if error is not None and not isinstance(error, LoweringError | CrashError):
                raise error
            reason = None if error is None else str(error)
            yield proposal, target.trial_of(proposal, outcome.result, reason)

    return together


def measured_by(workers: Workers) -> Callable[..., Any]:
    """Executes functions that time kernels, one after the other, on a worker that may."""

    def call(function: Callable[..., Any], *arguments: Any) -> Any:
        task = WorkerTask(
            function.__name__, function, arguments, "measuring a schedule", measures=True
        )
        ((_, result),) = workers.results([task])
        return result

    return call
