"""Tune a workload: measure schedules of its best embeddings; resumable from stored trials.

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
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

from cpembed.blocks import Displayed
from cpembed.cost.ranking import RankedCandidate
from cpembed.driver.named import hardware_spec
from cpembed.driver.options import (
    WIDER,
    KernelOptions,
    RunOptions,
    SolveOptions,
    TuneOptions,
    merged,
)
from cpembed.driver.pipeline import choose, of_several_statements
from cpembed.driver.plan import AnyTarget, Request, Selection
from cpembed.driver.result import SolveResult, workload_json
from cpembed.driver.solve import Progress, solve
from cpembed.errors import BackendUnavailable, LoweringError, WorkloadError
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation
from cpembed.runtime import worker
from cpembed.runtime.cluster import Workers
from cpembed.runtime.cluster.executors import ThisProcess
from cpembed.runtime.tuning.database import Trial, tuning_folder
from cpembed.runtime.tuning.records import WIDEST
from cpembed.runtime.tuning.session import (
    SEARCH_SHARE,
    CandidatePool,
    Task,
    Tuning,
)
from cpembed.runtime.tuning.space import Design, distinct
from cpembed.targets.base import CONSIDERED
from cpembed.targets.capabilities import require_candidate, with_variants
from cpembed.targets.choice import Choice, choices
from cpembed.targets.registry import missing_for, open_target
from cpembed.targets.tuner import (
    measured_by,
    measures,
    require_tuner,
    trials_by_workers,
    why_untunable,
)

OnTrial = Callable[[int, Trial, Trial], None]
"""Called with the number of a trial, from 1, the trial, and the best trial so far."""


@dataclass(frozen=True, kw_only=True, repr=False)
class TuneResult(Displayed):
    """Trials of a call, and the best schedule that is now stored.

    Parameters
    ----------
    target : Target
        Target that was tuned: an alternative of the requested one if that is faster.
    workload : Computation
        Workload that was tuned.
    constraints : str
        Name of the constraint set that the embeddings are from.
    seed : int
        Seed of the proposals.
    candidates : int
        Number of embeddings that took part.
    trials : tuple of Trial
        Trials of this call's proposals, of which ``measured`` are new and the rest were stored.
    measured : int
        Number of new trials.
    stored : int
        Number of trials in the store, under this key.
    stopped : bool
        True if the time limit ended the call before its number of trials was reached.
    best : Trial
        Best trial in the store.
    untuned : Trial
        Trial of the candidate and schedule that run without tuning.
    seconds : float
        Wall time, searches included.
    database : Path
        File of the stored trials.
    about : dict
        Further entries of the document, which depend on the target.
    """

    target: AnyTarget
    workload: Computation
    constraints: str
    seed: int
    candidates: int
    trials: tuple[Any, ...]
    measured: int
    stored: int
    stopped: bool
    best: Any
    untuned: Any
    seconds: float
    database: Path
    about: dict[str, Any]

    @classmethod
    def of_tuning(cls, target: AnyTarget, tuning: Tuning[Any, Any]) -> TuneResult:
        """Return the result after :meth:`Tuning.run`, even an interrupted one.

        Raises as :meth:`Tuning.outcome` does.
        """
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
            stored=tuning.schedule_count,
            stopped=tuning.stopped,
            best=best,
            untuned=untuned,
            seconds=time.perf_counter() - task.started,
            database=tuning.store.path,
            about=tuning.about(),
        )

    @property
    def speedup(self) -> float:
        """Ratio of the minimised costs, untuned over best: above 1 if tuning helped."""
        return (self.untuned.cost or 0) / (self.best.cost or 1)

    def to_json(self) -> dict[str, Any]:
        """Return the document of ``tune --json``."""
        return {
            "workload": workload_json(self.workload),
            "target": self.target.spec.name,
            "constraints": self.constraints,
            "unit": self.target.unit,
            "provenance": require_tuner(self.target).provenance,
            **self.about,
            "seed": self.seed,
            "candidates": self.candidates,
            "trials": len(self.trials),
            "measured": self.measured,
            "kept": self.stored,
            "stopped": self.stopped,
            "untuned": require_tuner(self.target).trial_json(self.untuned),
            "best": require_tuner(self.target).trial_json(self.best),
            "speedup": self.speedup,
            "seconds": self.seconds,
            "database": str(self.database),
        }


@dataclass(frozen=True)
class OpenTuning:
    """Tuning that is ready to run.

    Parameters
    ----------
    target : Target
        Target that is tuned.
    tuning : Tuning
        Search over the schedules, with its store.
    epilogue : Any
        Epilogue of the kernels, in the target's own form.
    workers : Workers
        Processes that make the trials.
    """

    target: AnyTarget
    tuning: Tuning[Any, Any]
    epilogue: Any
    workers: Workers

    def run(self, stop: Callable[[], bool] = lambda: False) -> Iterator[Any]:
        """Yield the trials; none is started after ``stop`` has returned True.

        Raises as :meth:`~cpembed.runtime.cluster.Workers.outcomes` does.
        """
        if isinstance(self.workers, ThisProcess) or measures(self.target):
            # One by one: a trial is timed in alternation with the best one so far, which may be the
            # trial before it.
            return takewhile(lambda _: not stop(), self.tuning.run())
        make_trials = trials_by_workers(self.workers, self.target, self.epilogue, stop)
        return self.tuning.run(make_trials)

    def result(self) -> TuneResult:
        """Return the result so far; raise as :meth:`TuneResult.of_tuning` does."""
        return TuneResult.of_tuning(self.target, self.tuning)


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
    """Measure, or simulate, schedules of the best embeddings, and store the trials.

    Parameters
    ----------
    workload, target, progress
        As for :func:`~cpembed.driver.solve.solve`.
    options : TuneOptions, optional
        Limits and objective; its fields may also be given as keywords. Without a constraint set,
        the widest preset is searched, and the candidate that runs without tuning takes part too.
    on_trial : callable, optional
        Called after each trial.
    workers : Workers, optional
        Processes that simulate several trials at a time, or a cluster, one process of which
        measures them.

    Returns
    -------
    TuneResult or SolveResult
        Result of tuning; the search's result if nothing can be embedded. Without a constraint set,
        one of the target's ``alternatives`` is tuned if it has the only embeddings, or is faster by
        the cost model.

    Raises
    ------
    BackendUnavailable
        If this machine can neither simulate nor execute the target.
    WorkloadError
        If the target does not have an option.
    LoweringError
        If no embedding has a program.
    InvariantError
        If a kernel's results are wrong.
    """
    opened = open_tuning(workload, target, options, workers=workers, progress=progress, **keywords)
    if isinstance(opened, SolveResult):
        return opened
    for number, trial in enumerate(opened.run(), 1):
        best = opened.tuning.best
        if on_trial is not None and best is not None:
            on_trial(number, trial, best)
    return opened.result()


def measure_schedules(
    workload: Computation,
    target: str | HardwareSpec,
    options: RunOptions,
    progress: Progress | None = None,
) -> RunOptions:
    """Tune the embeddings that a run compares, and return the options that run the fastest.

    Parameters
    ----------
    workload, target, progress
        As for :func:`tune`.
    options : RunOptions
        Options of the run, whose machine is by default the one that measures.

    Raises
    ------
    BackendUnavailable
        If this machine measures no schedules of the target.
    WorkloadError
        If the options leave nothing to choose.
    """
    if options.named_candidate or options.untuned or options.backend == "generic":
        raise WorkloadError(
            "--measure chooses by times: leave out --rank, --id, --weights, --untuned and "
            "--backend generic"
        )
    tuning = TuneOptions(
        constraints=options.constraints or WIDER,
        timeout=options.timeout,
        seed=options.seed,
        candidates=CONSIDERED,
        output=options.output,
        machine=options.machine,
    )
    tuned = tune(workload, target, tuning, progress=progress)
    if isinstance(tuned, SolveResult) or options.machine is not None:
        return options
    # The trials are those of the machine that the GPU here is.
    return replace(options, machine=tuned.target.described_machine)


def open_tuning(
    workload: Computation,
    target: str | HardwareSpec,
    options: TuneOptions | None = None,
    *,
    workers: Workers | None = None,
    progress: Progress | None = None,
    **keywords: Any,
) -> OpenTuning | SolveResult:
    """Prepare :func:`tune` up to its first trial: search, and select the embeddings that take part.

    Parameters
    ----------
    workload, target, options, workers, progress
        As for :func:`tune`.

    Returns
    -------
    OpenTuning or SolveResult
        The tuning; the search's result if nothing can be embedded.

    Raises
    ------
    CpembedError
        As :func:`tune` does.
    """
    started = time.perf_counter()
    options = merged(TuneOptions, options, keywords)
    constraints, objective, timeout = options.constraints, options.objective, options.timeout
    spec = tunable_spec(hardware_spec(target, workload, options.machine), options.machine)
    # The worker loads the compiler while the searches run here.
    worker.prepare()
    machine = open_target(spec)
    _check_options(machine, options.output, objective)
    limit = None if timeout is None else timeout * SEARCH_SHARE
    common: dict[str, Any] = {"timeout": limit, "seed": options.seed}
    kernel = KernelOptions(constraints=constraints, output=options.output, untuned=True, **common)
    storing = kernel.storing
    request = Request(workload, spec, kernel, progress=progress)
    if len(workload.statements) > 1:
        return of_several_statements(request, machine)
    # For its errors alone: an output that the target cannot store ends the call before a search.
    machine.epilogue(workload, storing)
    # The candidate that runs untuned takes part, so that tuning never does worse.
    usual: Selection | SolveResult | None = None
    if constraints is None:
        usual = choose(request)
        if isinstance(usual, Selection) and usual.plan.native:
            spec, machine = usual.solved.target, usual.plan.target
            # Checked again: an alternative may be another kind of target, with other options.
            require_tunable(spec)
            _check_options(machine, options.output, objective)
    top = max(options.candidates, CONSIDERED)
    search = SolveOptions(constraints=constraints or WIDEST, top=top, **common)
    wide = solve(workload, spec, search, progress=progress)
    if isinstance(usual, SolveResult) and not wide.embeddings:
        return usual
    first = usual.plan.choices if isinstance(usual, Selection) and usual.plan.native else ()
    if not first and not wide.embeddings:
        return wide
    tuner = require_tuner(machine)
    if objective is not None:
        tuner = tuner.minimising(objective)
        machine = tuner.target
    epilogue = machine.epilogue(workload, storing)
    if not first and machine.policy.compares_always:
        first = _likely_choices(machine, wide.embeddings, epilogue, fuses=constraints is None)
    field = _field(
        machine, first, wide.embeddings[: options.candidates], epilogue, constraints is None
    )
    deadline = float("inf") if timeout is None else started + timeout
    task = Task(
        workload=workload,
        target=spec,
        constraints=wide.constraints,
        trials=options.trials or tuner.trials,
        seed=options.seed or 0,
        started=started,
        deadline=deadline,
    )
    folder = options.database or tuning_folder()
    executing = workers or ThisProcess()
    call = worker.call
    if measures(machine) and not isinstance(executing, ThisProcess):
        executing.require_measuring()
        call = measured_by(executing)
    tuning = tuner.open(task, field, epilogue, folder, call)
    return OpenTuning(machine, tuning, epilogue, executing)


def _likely_choices(
    target: AnyTarget, embeddings: tuple[RankedCandidate, ...], epilogue: Any, *, fuses: bool
) -> Sequence[Choice]:
    """Choose as a run would, where none ran: trials are compared with the first one."""
    try:
        likely = (target.policy.shortlist or tuple)(embeddings)
        return choices(target, with_variants(target, likely, fuses=fuses), epilogue)
    except LoweringError:
        return ()


def _field(
    target: AnyTarget,
    first: Sequence[Choice],
    best: Sequence[RankedCandidate],
    epilogue: Any,
    fuses: bool,
) -> CandidatePool[Any]:
    """Collect the embeddings that take part in tuning.

    These are the untuned choices ``first``, of which the first one runs without tuning, then the
    ``best`` of the search with their variants. Raises :class:`LoweringError` if none of them has a
    program.
    """
    ranked = [choice.ranked for choice in first]
    designs: list[Design[Any]] = []
    refused: dict[str, str] = {}
    identifiers: set[str] = set()
    for item in (*ranked, *with_variants(target, best, fuses=fuses)):
        if item.candidate.identifier in identifiers:
            continue
        identifiers.add(item.candidate.identifier)
        try:
            lowered = target.lower(item.candidate.program, epilogue)
            designs.append(Design(item, lowered, target.space(lowered)))
        except LoweringError as error:
            refused[item.candidate.identifier] = str(error)
    if not designs:
        raise LoweringError(next(iter(refused.values())))
    taking_part = distinct(designs)
    for design in taking_part:
        require_candidate(target, design.candidate)
    untuned = first[0].schedule if first else taking_part[0].space.best().schedule
    return CandidatePool(tuple(taking_part), untuned, tuple(refused.values()))


def tunable_spec(spec: HardwareSpec, machine: str | None = None) -> HardwareSpec:
    """Return the specification that is tuned here.

    Parameters
    ----------
    spec : HardwareSpec
        Specification of the target.
    machine : str, optional
        Name of the machine that was asked for; by default the one that measures, if the target has
        several.

    Raises
    ------
    BackendUnavailable
        If this machine cannot simulate or execute the target.
    """
    require_tunable(spec)
    measured = None if machine else require_tuner(open_target(spec)).measured_machine()
    return spec if measured is None else spec.for_machine(measured)


def require_tunable(spec: HardwareSpec) -> None:
    """Raise :class:`BackendUnavailable` if this machine cannot simulate or execute a target."""
    try:
        reason = why_untunable(open_target(spec))
    except BackendUnavailable as error:
        reason = f"{error}: nothing to measure"
    # Only now: installing what is missing would not help with a target that cannot be tuned at all.
    if reason is None and (missing := missing_for(spec)):
        reason = f"{'; '.join(missing)}: nothing to measure"
    if reason is not None:
        raise BackendUnavailable(f"{spec.name}: {reason}")


def _check_options(target: AnyTarget, output: str | None, objective: str | None) -> None:
    """Raise :class:`WorkloadError` for an option that the target does not have."""
    name, tuner = target.spec.name, require_tuner(target)
    if objective is not None and objective not in tuner.objectives:
        objectives = ", ".join(tuner.objectives) or "one only"
        raise WorkloadError(f"{name} has no objective {objective} ({objectives}): leave it out")
    if output is not None and not tuner.tunes_outputs:
        raise WorkloadError(
            f"an output form is for targets that are tuned for what they store, not for {name}: "
            "leave it out"
        )
