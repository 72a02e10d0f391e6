"""What was found for a workload, for those who execute it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol

from cpembed.cost.candidate import Candidate, derive_candidate, overheads
from cpembed.cost.ranking import RankedCandidate
from cpembed.embedding.constraint_set import ConstraintSet, Weights, load_constraint_set
from cpembed.embedding.embedding import Embedding
from cpembed.errors import CpembedError, InvariantError
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation
from cpembed.runtime.tuning.database import Stored, T, Trial, default_directory, store_of, stored
from cpembed.stores import say
from cpembed.transform.proof import require

WIDEST = "complete"
"""The widest shipped set. What it admits and no rewrite can serve is never among its candidates."""


@dataclass(frozen=True)
class Record(Generic[T]):
    """The best trial of a file, out of ``trials``; ``tuned_under`` names the set of the file."""

    trial: T
    trials: int
    tuned_under: str
    path: Path


@dataclass(frozen=True)
class TunedChoice(Generic[T]):
    """A proven candidate with the trial that was the fastest.

    ``trials`` were measured to find it, under the constraint set ``tuned_under``; ``rank`` is the
    candidate's place in the ranking of ``constraints``.
    """

    candidate: Candidate
    trial: T
    trials: int
    tuned_under: str

    @property
    def rank(self) -> int:
        return self.trial.rank

    @property
    def constraints(self) -> str:
        return self.trial.constraints

    def ranked(self, weights: Weights) -> RankedCandidate:
        """The candidate with its overheads, scored by ``weights``."""
        cost = overheads(self.candidate.program)
        score = cost.score(weights.mac, weights.data)
        return RankedCandidate(self.rank, self.candidate, cost, score, self.constraints)

    def to_json(self) -> dict[str, Any]:
        """Where a tuned candidate comes from, in the document of ``run --json``."""
        return {
            "constraints": self.constraints,
            "tuned_under": self.tuned_under,
            "trials": self.trials,
        }


def record_in(
    file: Stored[T], wanted: str | None, without: Collection[str] = ()
) -> Record[T] | None:
    """The best trial of a file, of all or of the candidate with an identifier, ``without`` those of
    these keys."""
    trials = [
        trial
        for trial in file.trials
        if (wanted is None or trial.identifier == wanted) and trial.key not in without
    ]
    best = file.kind.best_of(trials)
    if best is None:
        return None
    return Record(best, file.count, file.key["constraints"], file.path)


def is_of(file: Stored[Any], directory: Path, key: dict[str, Any]) -> bool:
    """Whether a file is that of the key, constraint set included."""
    kind: type[Trial] = file.kind
    return file.path == store_of(directory, key, kind).path


class Unusable(Exception):
    """Why a trial is none of a workload."""


class Tunable(Protocol):
    """What is asked of a target here."""

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
        """Everything that the trials of a file depend on."""
        ...

    def require_schedule(self, candidate: Candidate, epilogue: Any, trial: Any) -> None:
        """Raises :class:`LoweringError` for a schedule that the candidate does not have."""
        ...


@dataclass(frozen=True)
class Lookup:
    """Which trials: of a workload and what is stored of it, under a set of constraints or any, of
    one candidate or all, in the default folder or another."""

    workload: Computation
    epilogue: Any = None
    constraints: ConstraintSet | None = None
    identifier: str | None = None
    directory: Path | None = None


def tuned(target: Tunable, of: Lookup) -> TunedChoice[Any] | None:
    """The fastest of what tuning measured on a target; None where it did not.

    The candidate's program is derived and proven again; what is damaged is left out.
    """

    def require(candidate: Candidate, trial: Any) -> None:
        target.require_schedule(candidate, of.epilogue, trial)

    return first_proven(
        of.workload, target.spec, lambda without: best_record(target, of, without), require
    )


def best_record(target: Tunable, of: Lookup, without: Collection[str] = ()) -> Record[Any] | None:
    """What :func:`tuned` takes, without its program; ``without`` leaves trials of these keys out.
    Of several objectives, what was tuned for the first is taken before the others."""
    folder = of.directory or default_directory()
    under = of.constraints or load_constraint_set(WIDEST)
    for objective in target.objectives or (None,):
        key = target.trial_key(of.workload, under, of.epilogue, objective)
        found: list[Record[Any]] = [
            kept
            for file in stored(folder, target.trial, key)
            if file.key.get("objective") == objective
            and (of.constraints is None or is_of(file, folder, key))
            and (kept := record_in(file, of.identifier, without)) is not None
        ]
        if found:
            return min(found, key=lambda kept: kept.trial.figure(objective) or 0)
    return None


def first_proven(
    workload: Computation,
    spec: HardwareSpec,
    best: Callable[[Collection[str]], Record[T] | None],
    require_schedule: Callable[[Candidate, T], object],
) -> TunedChoice[T] | None:
    """The choice of the best trial that is one of the workload; ``best`` gives the best one without
    some, ``require_schedule`` raises :class:`LoweringError` for a schedule that a candidate does
    not have. Trials that were passed over are said in one line."""
    passed: dict[str, str] = {}
    while (kept := best(passed)) is not None:
        try:
            choice = _proven(workload, spec, kept, require_schedule)
        except Unusable as error:
            passed[kept.trial.key] = f"{kept.path}: the embedding {kept.trial.identifier} {error}"
            continue
        _say_passed(passed)
        return choice
    _say_passed(passed)
    return None


def _say_passed(passed: dict[str, str]) -> None:
    if passed:
        first, *others = passed.values()
        more = f", and {len(others)} more" if others else ""
        say(f"{first}{more}: left out, the file was changed; delete it and tune again")


def _proven(
    workload: Computation,
    spec: HardwareSpec,
    kept: Record[T],
    require_schedule: Callable[[Candidate, T], object],
) -> TunedChoice[T]:
    """The choice of a trial, its program derived and proven again.

    Raises :class:`Unusable` where the file was changed.
    """
    trial = kept.trial
    try:
        embedding = Embedding.from_json(trial.embedding)
        candidate = derive_candidate(
            workload, spec.instruction, embedding, in_place=trial.operands_in_place
        )
        require(candidate.program)
    except (CpembedError, LookupError, TypeError, ValueError, AttributeError) as error:
        reason = "not proven" if isinstance(error, InvariantError) else f"{error}"
        raise Unusable(f"is none of {workload.name} ({reason})") from error
    try:
        require_schedule(candidate, trial)
    except (
        CpembedError, LookupError, TypeError, ValueError, AttributeError, NotImplementedError
    ) as error:  # fmt: skip
        raise Unusable(f"has no such schedule ({error})") from error
    return TunedChoice(candidate, trial, kept.trials, kept.tuned_under)
