"""Tuning of a target: the trials of a schedule, their key in the database, their report.

:class:`Tuner` works for every target that can read a schedule back from a trial
(:class:`Tunable`): a trial builds, verifies and times one schedule. A target that tunes in another
way names a subclass in its attribute ``tuner``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, Generic, Protocol, cast, runtime_checkable

from cpembed.cost.ranking import Candidate
from cpembed.embedding.constraint_set import ConstraintSet
from cpembed.embedding.embedding import Embedding
from cpembed.errors import BackendUnavailable, CrashError, LoweringError
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation
from cpembed.provenance import Provenance
from cpembed.runtime import worker
from cpembed.runtime.cluster import Task as WorkerTask
from cpembed.runtime.cluster import Workers
from cpembed.runtime.measurement.environment import versions
from cpembed.runtime.tuning.database import (
    PlainTrial,
    Trial,
    module_digest,
    problem_key,
    trial_store,
)
from cpembed.runtime.tuning.records import Lookup, Record, TunedChoice, best_record, tuned_choice
from cpembed.runtime.tuning.session import BatchMeasurement, CandidatePool, Task, Tuning
from cpembed.runtime.tuning.space import Proposal, S
from cpembed.steps import step
from cpembed.targets.base import Row, Target
from cpembed.targets.capabilities import AnyTarget, calibration_digest
from cpembed.targets.verification import verified

Call = Callable[..., Any]


@runtime_checkable
class Tunable(Protocol):
    """Reads schedules back from stored trials."""

    def schedule_of(self, trial: Any) -> Any:
        """Return the schedule of a trial."""
        ...


class Tuner(Generic[S]):
    """Tuning of one target."""

    trial: type[Any] = PlainTrial
    """Type of the stored trials."""
    objectives: tuple[str, ...] = ()
    """Names of the costs that can be minimised, the default first; empty if there is only one."""
    tunes_outputs: bool = True
    """True if the stored output changes the time of a schedule, so that each has trials of its
    own."""
    spread: float = 2.0
    """Maximum ratio of an embedding's estimate to the best one for its schedules to be tried
    first."""
    trials: int = 64
    """Number of schedules that are measured by default."""

    def __init__(self, target: Any) -> None:
        self.target = target
        self.spec: HardwareSpec = target.spec

    @property
    def provenance(self) -> Provenance:
        """Origin of the trials' times."""
        return self.target.provenance

    def unavailable(self) -> str | None:
        """Return why there is nothing to tune by on this machine; None if there is."""
        if self.provenance is Provenance.EMULATED:
            return "its kernels are emulated here: there is no time to tune by"
        return None

    def measured_machine(self) -> str | None:
        """Return the described machine that trials are measured on; None for the target's own."""
        return None

    def minimising(self, objective: str) -> Tuner[S]:
        """Return the tuner of another objective."""
        # Targets with several objectives override this.
        return self

    def trial_key(
        self,
        workload: Computation,
        constraints: ConstraintSet,
        epilogue: Any,
        objective: str | None,
    ) -> dict[str, Any]:
        """Return everything that the trials of a file depend on, the target's code included.

        Parameters
        ----------
        workload, epilogue
            Operator, and epilogue in the target's own form.
        constraints : ConstraintSet
            Set that the embeddings are from.
        objective : str or None
            Cost that is minimised.
        """
        module = type(self.target).__module__
        # A digest of the entries names the file, so new names would discard all stored trials.
        return {
            **problem_key(workload, self.spec, constraints),
            "kind": self.trial.kind,
            "executor": self.spec.backend,
            "objective": objective,
            "module": module,
            "source": module_digest(module),
            "stored": None if epilogue is None else str(epilogue),
            "figures": calibration_digest(self.target),
            "version": versions()["cpembed"],
        }

    def require_schedule(self, candidate: Candidate, epilogue: Any, trial: Trial) -> None:
        """Check a stored schedule.

        Parameters
        ----------
        candidate, epilogue
            Candidate of the trial, and epilogue in the target's own form.
        trial : Trial
            Stored trial.

        Raises
        ------
        LoweringError
            If the candidate does not have the schedule.
        """
        space = self.target.space(self.target.lower(candidate.program, epilogue))
        space.scored(self.target.schedule_of(trial))

    def open(
        self,
        task: Task,
        pool: CandidatePool[S],
        epilogue: Any,
        folder: Path,
        call: Call = worker.call,
    ) -> Tuning[Any, S]:
        """Return a search that is ready to run and stores its trials.

        Parameters
        ----------
        task : Task
            Workload, limits and seed.
        pool : CandidatePool
            Candidates that take part.
        epilogue : Any
            Epilogue in the target's own form.
        folder : Path
            Folder of the database.
        call : callable
            Executes a function that may crash, as :func:`cpembed.runtime.worker.call` does.
        """
        key = self.trial_key(
            task.workload, task.constraints, epilogue, next(iter(self.objectives), None)
        )
        store = trial_store(folder, key, self.trial)

        def measure(proposal: Proposal[S]) -> Any:
            return self.run_trial(proposal, epilogue, call)

        entries = self.document_entries(task.workload, epilogue)
        return Tuning(task, pool, store, self.trial, measure, self.spread, entries)

    def document_entries(self, workload: Computation, epilogue: Any) -> dict[str, Any]:
        """Return additional entries of the document of ``tune --json``."""
        return {}

    def trial_call(self, proposal: Proposal[S], epilogue: Any) -> tuple[Call, tuple[Any, ...]]:
        """Return a module-level function and its arguments, which measure a proposal.

        The function may crash: it is called in a worker.
        """
        candidate = proposal.design.candidate
        # The worker opens the target anew: a class and a specification can always be pickled.
        kind = cast("type[Any]", type(self.target))
        return _time_of, (kind, self.spec, candidate, proposal.schedule, epilogue)

    def trial_of(self, proposal: Proposal[S], figure: Any, error: str | None) -> Any:
        """Return the trial of a proposal.

        Parameters
        ----------
        proposal : Proposal
            Candidate, schedule and estimate.
        figure : Any
            Result of :meth:`trial_call`; None if it failed.
        error : str or None
            Reason of the failure.
        """
        design = proposal.design
        return PlainTrial(
            design.candidate.embedding.to_json(),
            design.identifier,
            design.ranked.rank,
            design.ranked.constraints,
            error,
            self.target.schedule_json(proposal.schedule),
            design.space.key(proposal.schedule),
            self.target.unit,
            self.provenance,
            # JSON has no infinity.
            proposal.estimate if proposal.estimate < float("inf") else None,
            figure,
        )

    def run_trial(self, proposal: Proposal[S], epilogue: Any, call: Call = worker.call) -> Any:
        """Measure a proposal; a failed build or a crash becomes a trial with an error.

        Parameters
        ----------
        proposal, epilogue
            Candidate and schedule, and epilogue in the target's own form.
        call : callable
            Executes a function that may crash.
        """
        function, arguments = self.trial_call(proposal, epilogue)
        try:
            figure = call(function, *arguments)
        # Wrong results (InvariantError) are no failed trial: they end the search, to be reported.
        except (LoweringError, CrashError) as error:
            return self.trial_of(proposal, None, str(error))
        return self.trial_of(proposal, figure, None)

    def rows(self, best: Any, untuned: Any) -> list[Row]:
        """Return the lines of a report for the best trial and for the one that runs untuned."""
        # standing() describes a trial as the best so far.
        return [
            ("untuned", untuned.standing().removeprefix("best ")),
            ("tuned", best.standing().removeprefix("best ")),
        ]

    def schedule_text(self, trial: Any) -> str:
        """Describe the schedule of a trial."""
        embedding = Embedding.from_json(trial.embedding)
        return self.target.schedule_text(embedding, self.target.schedule_of(trial))

    def trial_json(self, trial: Any) -> dict[str, Any]:
        """Return a trial for the document of ``tune --json``."""
        document: dict[str, Any] = trial.document()
        # Only successful trials are documented.
        del document["error"]
        return document


@runtime_checkable
class TakesResults(Protocol):
    """Takes trials from what the programs of a pack measured on another machine."""

    def store_results(
        self,
        workload: Computation,
        epilogue: Any,
        layer: Mapping[str, Any],
        device: str,
        folder: Path,
    ) -> int:
        """Store the times of a layer, and return how many were not stored yet.

        Parameters
        ----------
        workload, epilogue
            Layer, and what is stored of its sums.
        layer : mapping
            Document of its results, checked.
        device : str
            Name of the machine that measured.
        folder : Path
            Folder of the database.

        Raises
        ------
        LoweringError
            If a kernel is generated differently now.
        """
        ...


def tuner_class(kind: type[AnyTarget]) -> type[Tuner[Any]]:
    """Return the tuner of a class of targets."""
    specific: type[Tuner[Any]] = getattr(kind, "tuner", Tuner)
    return specific


def tuner_of(target: AnyTarget) -> Tuner[Any] | None:
    """Return the tuner of a target; None if it is not :class:`Tunable`."""
    return tuner_class(type(target))(target) if isinstance(target, Tunable) else None


def require_tuner(target: AnyTarget) -> Tuner[Any]:
    """Return the tuner of a target. Raises :class:`BackendUnavailable` if it has none."""
    tuner = tuner_of(target)
    if tuner is None:
        raise BackendUnavailable(f"{target.spec.name}: {_NO_SCHEDULES}")
    return tuner


@dataclass(frozen=True)
class TuningRecord:
    """Best proven choice in the database and its schedule."""

    choice: TunedChoice[Any]
    schedule: Any


def tuning_record(target: AnyTarget, lookup: Lookup) -> TuningRecord | None:
    """Return the best stored choice of a target, derived and proven again; None without trials."""
    tuner = tuner_of(target)
    if tuner is None or (choice := tuned_choice(tuner, lookup)) is None:
        return None
    return TuningRecord(choice, tuner.target.schedule_of(choice.trial))


def stored_record(target: AnyTarget, lookup: Lookup) -> Record[Any] | None:
    """Return the best stored record of a target without deriving its program."""
    tuner = tuner_of(target)
    return None if tuner is None else best_record(tuner, lookup)


def record_identity(target: AnyTarget, lookup: Lookup) -> tuple[str, str, int] | None:
    """Return the identity of the best stored record, for keys of results that depend on it.

    That is its candidate, its schedule and the number of trials; None if there is no record.
    """
    record = stored_record(target, lookup)
    return record and (record.trial.identifier, str(record.trial.key), record.trials)


_NO_SCHEDULES = "it reads no schedules back from trials: nothing to tune"


def why_untunable(target: AnyTarget) -> str | None:
    """Return the reason why a target cannot be tuned on this machine; None if it can."""
    tuner = tuner_of(target) or Tuner[Any](target)
    return tuner.unavailable() or (None if isinstance(target, Tunable) else _NO_SCHEDULES)


def _time_of(
    kind: type[Target[Any, Any, Any]],
    spec: HardwareSpec,
    candidate: Candidate,
    schedule: Any,
    epilogue: Any,
) -> float:
    """Return the time of a schedule in the target's unit, after verifying its results.

    Raises :class:`LoweringError` if the target has no time on this machine.
    """
    target, workload = kind(spec), candidate.program.workload
    with step("building a schedule", workload.macs):
        artifact = target.build(target.lower(candidate.program, epilogue), schedule)
    verification, inputs = verified(target, artifact, candidate.program.unfused, epilogue, seed=0)
    kernel = f"the {target.executed_by(artifact)} kernel of embedding {candidate.identifier}"
    verification.require(f"{kernel} of {spec.name} in {workload.name} with {schedule}", seed=0)
    # Timing executes the kernel many times, so the step may take longer than one run.
    with step("timing a schedule", 10 * workload.macs):
        timing = target.time(artifact, inputs)
    latency = None if timing.latency_us is None else timing.latency_us.median
    amount = timing.cycles if target.unit == "cycles" else latency
    if amount is None:
        raise LoweringError(f"{spec.name} gives no {target.unit} here: nothing to compare")
    return amount


# -- trials by workers -----------------------------------------------------------------------------


def measures(target: AnyTarget) -> bool:
    """True if trials are times of the machine that makes them."""
    return require_tuner(target).provenance is Provenance.MEASURED


def trials_by_workers(
    workers: Workers, target: AnyTarget, epilogue: Any, stop: Callable[[], bool]
) -> BatchMeasurement[Any, Any]:
    """Return a function that makes the trials of several proposals at a time.

    Parameters
    ----------
    workers : Workers
        Processes that make the trials.
    target : Target
        Target that is tuned.
    epilogue : Any
        Epilogue of the kernels, in the target's own form.
    stop : callable
        Asked before each trial; no trial is started after it has returned True.

    Returns
    -------
    callable
        Yields each proposal with its trial, in order of completion; a proposal that has no program,
        or whose process crashes, gets a trial with the reason.
    """
    tuner = require_tuner(target)

    def make_trials(proposals: Sequence[Proposal[Any]]) -> Iterator[tuple[Proposal[Any], Any]]:
        by_key = {proposal.key: proposal for proposal in proposals}
        tasks = (
            WorkerTask(key, *tuner.trial_call(proposal, epilogue), "trying a schedule")
            for key, proposal in by_key.items()
        )
        for outcome in workers.outcomes(takewhile(lambda _: not stop(), tasks)):
            proposal, error = by_key[outcome.task.key], outcome.error
            if error is not None and not isinstance(error, LoweringError | CrashError):
                raise error
            reason = None if error is None else str(error)
            yield proposal, tuner.trial_of(proposal, outcome.result, reason)

    return make_trials


def measured_by(workers: Workers) -> Call:
    """Return a function that calls another one on a worker that may time kernels, and waits."""

    def call(function: Callable[..., Any], *arguments: Any) -> Any:
        task = WorkerTask(
            function.__name__, function, arguments, "measuring a schedule", measures=True
        )
        ((_, result),) = workers.results([task])
        return result

    return call
