"""What was found for a workload, for those who execute it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cpembed.backends.vta.schedule import Schedule
from cpembed.backends.vta.tail import Tail
from cpembed.embedding.constraint_set import ConstraintSet, load_constraint_set
from cpembed.embedding.embedding import Embedding
from cpembed.errors import CpembedError, InvariantError, SpecError
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation
from cpembed.strategy.candidate import Candidate, derive_candidate
from cpembed.transform.proof import require
from cpembed.tune.database import Trial, best_of, default_directory, key_of, store_of, stored

WIDEST = "complete"
"""The widest shipped set. What it admits and no rewrite can serve is never among its candidates."""


@dataclass(frozen=True)
class TunedChoice:
    """A proven candidate with a schedule, and its simulated cycles.

    ``trials`` were measured to find it, under the constraint set ``tuned_under``; ``rank`` is the
    candidate's place in the ranking of ``constraints``.
    """

    candidate: Candidate
    rank: int
    constraints: str
    schedule: Schedule
    cycles: int
    trials: int
    tuned_under: str


def tuned(
    workload: Computation,
    spec: HardwareSpec,
    tail: Tail,
    constraints: ConstraintSet | None = None,
    *,
    embedding: Embedding | None = None,
    directory: Path | None = None,
) -> TunedChoice | None:
    """The fastest of what tuning measured for a workload on a target; None where it did not.

    ``constraints`` None takes trials of any set. ``embedding`` asks for schedules of this one only.
    The candidate's program is derived and proven again.

    Raises :class:`CpembedError` for a damaged file.
    """
    kept = best_kept(workload, spec, tail, constraints, embedding=embedding, directory=directory)
    if kept is None:
        return None
    best = kept.trial
    return TunedChoice(
        _candidate(workload, spec, best, kept.path),
        best.rank,
        best.constraints,
        best.schedule,
        kept.cycles,
        kept.trials,
        kept.tuned_under,
    )


@dataclass(frozen=True)
class Kept:
    """The best trial of a file of the database, out of ``trials``, as it is stored."""

    trial: Trial
    cycles: int
    trials: int
    tuned_under: str
    path: Path


def best_kept(
    workload: Computation,
    spec: HardwareSpec,
    tail: Tail,
    constraints: ConstraintSet | None = None,
    *,
    embedding: Embedding | None = None,
    directory: Path | None = None,
) -> Kept | None:
    """What :func:`tuned` takes, without its program."""
    folder = directory or default_directory()
    key = key_of(workload, spec, tail, constraints or load_constraint_set(WIDEST))
    wanted = None if embedding is None else embedding.identifier()
    found: list[Kept] = []
    for file in stored(folder, key):
        if constraints is not None and file.path != store_of(folder, key).path:
            continue
        trials = [t for t in file.trials if wanted is None or t.identifier == wanted]
        best = best_of(trials)
        if best is not None and best.cycles is not None:
            name = file.key["constraints"]
            found.append(Kept(best, best.cycles, len(file.trials), name, file.path))
    return min(found, key=lambda kept: kept.cycles, default=None)


def _candidate(workload: Computation, spec: HardwareSpec, trial: Trial, path: Path) -> Candidate:
    try:
        embedding = Embedding.from_json(trial.embedding)
        candidate = derive_candidate(workload, spec.instruction, embedding)
        require(candidate.program)
    except (CpembedError, LookupError, TypeError, ValueError, AttributeError) as error:
        reason = "not proven" if isinstance(error, InvariantError) else f"{error}"
        raise SpecError(
            f"{path}: the embedding {trial.identifier} is none of {workload.name} ({reason}): "
            "the file was changed; delete it"
        ) from error
    return candidate
