"""The best trial of a workload, looked up and proven again for whoever executes it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol

from cpembed.cost.ranking import Candidate, RankedCandidate, derive_candidate, overheads
from cpembed.embedding.constraint_set import ConstraintSet, Weights, load_constraint_set
from cpembed.embedding.embedding import Embedding
from cpembed.errors import CpembedError, InvariantError
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation
from cpembed.runtime.tuning.database import SEARCHED, T, TrialFile, trial_files, tuning_folder
from cpembed.stores import warn_damaged
from cpembed.transform.proof import require

WIDEST = "complete"
"""Name of the shipped constraint set that admits the most; the key of lookups under any set."""


@dataclass(frozen=True)
class Record(Generic[T]):
    """The best trial of a file of ``trials`` schedules, tuned under the set ``tuned_under``."""

    trial: T
    trials: int
    tuned_under: str
    path: Path


@dataclass(frozen=True, kw_only=True)
class TunedChoice(Record[T]):
    """The record of a proven candidate.

    ``rank`` is the candidate's position in the ranking under ``constraints``.
    """

    candidate: Candidate

    @property
    def rank(self) -> int:
        return self.trial.rank

    @property
    def constraints(self) -> str:
        return self.trial.constraints

    def ranked(self, weights: Weights) -> RankedCandidate:
        """Return the candidate with its overheads, scored by ``weights``."""
        cost = overheads(self.candidate.program)
        score = cost.score(weights.mac, weights.data)
        return RankedCandidate(self.rank, self.candidate, cost, score, self.constraints)

    def to_json(self) -> dict[str, Any]:
        """Return the origin of the candidate for the document of ``run --json``."""
        return {
            "constraints": self.constraints,
            "tuned_under": self.tuned_under,
            "trials": self.trials,
        }


def record_in(
    file: TrialFile[T], identifier: str | None, excluded: Collection[str] = ()
) -> Record[T] | None:
    """Return the best trial of a file, if there is one.

    Parameters
    ----------
    file
        The file.
    identifier
        The only candidate that counts; None for all.
    excluded
        Keys of trials that are left out.
    """
    trials = [
        trial
        for trial in file.trials
        if (identifier is None or trial.identifier == identifier) and trial.key not in excluded
    ]
    best = file.kind.best_of(trials)
    if best is None:
        return None
    return Record(best, file.count, file.key["constraints"], file.path)


class UnusableTrialError(Exception):
    """The reason why a trial does not fit its workload."""


class Tunable(Protocol):
    """The members of a target that a lookup needs."""

    spec: HardwareSpec
    trial: type[Any]
    objectives: tuple[str, ...]

    def trial_key(
        self,
        workload: Computation,
        constraints: ConstraintSet,
        epilogue: Any,
        objective: str | None,
    ) -> dict[str, Any]:
        """Return everything that the trials of a file depend on.

        Parameters
        ----------
        workload
            The workload.
        constraints
            The constraint set under which embeddings are searched.
        epilogue
            The epilogue of the kernel, or None.
        objective
            One of the target's objectives; None if it has none.
        """
        ...

    def require_schedule(self, candidate: Candidate, epilogue: Any, trial: Any) -> None:
        """Raise :class:`LoweringError` if the candidate does not have the trial's schedule.

        Parameters
        ----------
        candidate
            The candidate of the trial's embedding.
        epilogue
            The epilogue of the kernel, or None.
        trial
            The trial.
        """
        ...


@dataclass(frozen=True)
class Lookup:
    """Trials that count in a lookup.

    They are of a workload with its epilogue, under one constraint set or any, of one candidate or
    all, in the default folder or another.
    """

    workload: Computation
    epilogue: Any = None
    constraints: ConstraintSet | None = None
    identifier: str | None = None
    directory: Path | None = None


def tuned_choice(target: Tunable, lookup: Lookup) -> TunedChoice[Any] | None:
    """Return the fastest candidate that tuning measured on a target; None without measurements.

    The candidate's program is derived and proven again; damaged trials are left out.
    """

    def require(candidate: Candidate, trial: Any) -> None:
        target.require_schedule(candidate, lookup.epilogue, trial)

    return first_proven(
        lookup.workload,
        target.spec,
        lambda excluded: best_record(target, lookup, excluded),
        require,
    )


def best_record(
    target: Tunable, lookup: Lookup, excluded: Collection[str] = ()
) -> Record[Any] | None:
    """Return the record of :func:`tuned_choice`, without deriving its program.

    Parameters
    ----------
    target
        The target. Of several objectives, trials for an earlier one come before all others.
    lookup
        The trials that count.
    excluded
        Keys of trials that are left out.
    """
    folder = lookup.directory or tuning_folder()
    # Networks ask for each combination of layouts, and keys of files take milliseconds.
    if next(folder.glob("*.jsonl"), None) is None:
        return None
    constraints = lookup.constraints or load_constraint_set(WIDEST)
    for objective in target.objectives or (None,):
        key = target.trial_key(lookup.workload, constraints, lookup.epilogue, objective)
        # With a named set only its own files count, though others may hold faster trials.
        search = [key[name] for name in SEARCHED]
        records: list[Record[Any]] = [
            record
            for file in trial_files(folder, target.trial, key)
            if file.key.get("objective") == objective
            and (lookup.constraints is None or [file.key[name] for name in SEARCHED] == search)
            and (record := record_in(file, lookup.identifier, excluded)) is not None
        ]
        # Trials for a later objective are looked at only if there are none for this one.
        if records:
            # A trial is measured in the unit of its objective: different objectives do not compare.
            return min(records, key=lambda record: record.trial.figure(objective) or 0)
    return None


def first_proven(
    workload: Computation,
    spec: HardwareSpec,
    best: Callable[[Collection[str]], Record[T] | None],
    require_schedule: Callable[[Candidate, T], object],
) -> TunedChoice[T] | None:
    """Return the choice of the best trial that fits the workload, with one warning about others.

    Parameters
    ----------
    workload
        The workload.
    spec
        The specification of the hardware.
    best
        Function that returns the best record without the trials of these keys.
    require_schedule
        Function that raises :class:`LoweringError` for a schedule that a candidate does not have.
    """
    unusable: dict[str, str] = {}
    choice: TunedChoice[T] | None = None
    # Each round excludes one more damaged trial, so the loop ends with the last of them.
    while choice is None and (record := best(unusable)) is not None:
        try:
            choice = _proven(workload, spec, record, require_schedule)
        except UnusableTrialError as error:
            trial = record.trial
            unusable[trial.key] = f"{record.path}: the embedding {trial.identifier} {error}"
    if unusable:
        first, *rest = unusable.values()
        more = f", and {len(rest)} more" if rest else ""
        warn_damaged(f"{first}{more}: left out, the file was changed; delete it and tune again")
    return choice


def _proven(
    workload: Computation,
    spec: HardwareSpec,
    record: Record[T],
    require_schedule: Callable[[Candidate, T], object],
) -> TunedChoice[T]:
    """Derive and prove a trial's program; :class:`UnusableTrialError` if the file was changed."""
    trial = record.trial
    try:
        # The file may have been edited: nothing in it is trusted before the proof.
        embedding = Embedding.from_json(trial.embedding)
        candidate = derive_candidate(
            workload, spec.instruction, embedding, in_place=trial.operands_in_place
        )
        require(candidate.program)
    except (CpembedError, LookupError, TypeError, ValueError, AttributeError) as error:
        reason = "not proven" if isinstance(error, InvariantError) else f"{error}"
        raise UnusableTrialError(f"is none of {workload.name} ({reason})") from error
    try:
        require_schedule(candidate, trial)
    except (
        CpembedError, LookupError, TypeError, ValueError, AttributeError, NotImplementedError
    ) as error:  # fmt: skip
        raise UnusableTrialError(f"has no such schedule ({error})") from error
    return TunedChoice(**vars(record), candidate=candidate)
