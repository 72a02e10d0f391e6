"""Tune a workload: the fastest embedding and schedule; kept, resumable.

>>> import tempfile
>>> from pathlib import Path
>>> from cpembed.driver.solve import workload
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
from typing import Any, TypedDict, Unpack

from cpembed import worker
from cpembed.driver.chosen import AnyTarget, Chosen, Request, choose, of_several_statements
from cpembed.driver.solve import Progress, SolveResult, hardware_spec, solve
from cpembed.driver.solve_result import workload_json
from cpembed.driver.tune_tasks import made_together, measured_by, measures
from cpembed.cluster import Workers
from cpembed.cluster.base import ThisProcess
from cpembed.embedding.constraint_set import ConstraintSet
from cpembed.errors import BackendUnavailable, LoweringError, WorkloadError
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation
from cpembed.kernel.epilogue import Storing
from cpembed.selection.ranking import RankedCandidate
from cpembed.targets.base import CONSIDERED
from cpembed.targets.choice import Choice, choices
from cpembed.targets.registry import all_targets, missing_for, open_target
from cpembed.tuning.database import Stored, Trial, default_directory, stored
from cpembed.tuning.records import WIDEST
from cpembed.tuning.session import SEARCH_SHARE, CandidatePool, Task, Tuning
from cpembed.tuning.space import Design, distinct

DEFAULT_TRIALS = 64

CANDIDATES = 32
"""Embeddings that take part: the best of the ranking."""

OnTrial = Callable[[int, Trial, Trial], None]
"""Called with the number of a trial, the trial, and the best one so far."""


class TuneOptions(TypedDict, total=False):
    """How to tune, as :func:`tune` says."""

    constraints: str | ConstraintSet | None
    trials: int
    timeout: float | None
    candidates: int
    output: str | None
    objective: str | None
    seed: int
    database: Path | None
    progress: Progress | None


@dataclass(frozen=True)
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
            target,
            task.workload,
            task.constraints.name,
            task.seed,
            len(tuning.field.designs),
            tuple(tuning.done),
            tuning.measured,
            tuning.kept,
            tuning.stopped,
            best,
            untuned,
            time.perf_counter() - task.started,
            tuning.store.path,
            tuning.about(),
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
    *,
    on_trial: OnTrial | None = None,
    workers: Workers | None = None,
    **options: Unpack[TuneOptions],
) -> TuneResult | SolveResult:
    """Try ``trials`` schedules of the best embeddings: on this machine, or in the simulator of a
    target that has one.

    ``constraints`` None takes the widest set, ``complete``, and what runs without tuning;
    ``candidates`` of the best embeddings take part. ``timeout`` limits the whole call, in seconds,
    ``database`` is the folder that keeps the trials. ``output`` is what is stored, where the target
    tunes for it; ``objective``, where it has several, is what is to be short. ``workers`` simulate
    several trials at a time, or one of a cluster measures them. Returns the
    :class:`SolveResult` where nothing can be embedded; where ``constraints`` is None and that is
    proven, or the model says that it is faster, one of the target's ``alternatives`` is tuned.

    Raises :class:`BackendUnavailable` for a target that nothing here simulates or executes,
    :class:`WorkloadError` for an option of another target, :class:`LoweringError` where the
    instruction can execute no embedding, :class:`InvariantError` where a kernel's numbers are
    wrong, and what :func:`~cpembed.driver.solve.solve` raises.
    """
    opened = open_tuning(workload, target, workers=workers, **options)
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
    *,
    constraints: str | ConstraintSet | None = None,
    trials: int = DEFAULT_TRIALS,
    timeout: float | None = None,
    candidates: int = CANDIDATES,
    output: str | None = None,
    objective: str | None = None,
    seed: int = 0,
    database: Path | None = None,
    progress: Progress | None = None,
    workers: Workers | None = None,
) -> OpenTuning | SolveResult:
    """What :func:`tune` does before its first trial."""
    started = time.perf_counter()
    spec = hardware_spec(target)
    require_tunable(spec)
    worker.prepare()
    machine = open_target(spec)
    storing = Storing(output)
    _check_options(machine, output, objective)
    limit = None if timeout is None else timeout * SEARCH_SHARE
    asked = Request(
        workload, spec, constraints, timeout=limit, seed=seed, progress=progress,
        storing=storing, untuned=True,
    )  # fmt: skip
    if len(workload.statements) > 1:
        return of_several_statements(asked, machine)
    machine.epilogue(workload, storing)
    # Without a set, what runs untuned takes part: tuning never does worse.
    usual: Chosen | SolveResult | None = None
    if constraints is None:
        usual = choose(asked)
        if isinstance(usual, Chosen) and usual.plan.native:
            spec, machine = usual.solved.target, usual.plan.target
            # An alternative may be another kind of target.
            require_tunable(spec)
            _check_options(machine, output, objective)
    wide = solve(
        workload, spec, constraints or WIDEST, top=max(candidates, CONSIDERED), timeout=limit,
        seed=seed, progress=progress,
    )  # fmt: skip
    if isinstance(usual, SolveResult) and not wide.embeddings:
        return usual
    first = usual.plan.choices if isinstance(usual, Chosen) and usual.plan.native else ()
    if not first and not wide.embeddings:
        return wide
    if objective is not None:
        machine = machine.minimising(objective)
    epilogue = machine.epilogue(workload, storing)
    if not first and machine.compares_always:
        with suppress(LoweringError):
            likely = (machine.contenders or tuple)(wide.embeddings)
            first = choices(machine, machine.variants(likely, fuses=constraints is None), epilogue)
    field = _field(machine, first, wide.embeddings[:candidates], epilogue, constraints is None)
    deadline = float("inf") if timeout is None else started + timeout
    task = Task(workload, spec, wide.constraints, trials, seed, started, deadline)
    folder = database or default_directory()
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


def known(database: Path | None = None) -> list[Stored[Any]]:
    """What the database holds, by name of the file. What is used of it is
    :attr:`~cpembed.tuning.database.Stored.is_current`."""
    folder = database or default_directory()
    kinds = {kind.trial.kind: kind.trial for kind in all_targets().values()}
    found = [file for kind in kinds.values() for file in stored(folder, kind)]
    return sorted(found, key=lambda file: file.path)


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
