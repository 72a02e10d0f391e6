"""What was found for a workload, for those who execute it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic

from cpembed.cost.overheads import overheads
from cpembed.cost.ranking import RankedCandidate
from cpembed.embedding.constraint_set import Weights
from cpembed.embedding.embedding import Embedding
from cpembed.errors import CpembedError, InvariantError, SpecError
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation
from cpembed.strategy.candidate import Candidate, derive_candidate
from cpembed.transform.proof import require
from cpembed.tune.database import Stored, T, Trial, store_of

WIDEST = "complete"
"""The widest shipped set. What it admits and no rewrite can serve is never among its candidates."""


@dataclass(frozen=True)
class Kept(Generic[T]):
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


def kept_in(file: Stored[T], embedding: Embedding | None) -> Kept[T] | None:
    """The best trial of a file, of all or of one embedding's."""
    wanted = None if embedding is None else embedding.identifier()
    trials = [t for t in file.trials if wanted is None or t.identifier == wanted]
    best = file.kind.best_of(trials)
    if best is None:
        return None
    return Kept(best, file.count, file.key["constraints"], file.path)


def is_of(file: Stored[Any], directory: Path, key: dict[str, Any]) -> bool:
    """Whether a file is that of the key, constraint set included."""
    kind: type[Trial] = file.kind
    return file.path == store_of(directory, key, kind).path


def proven(workload: Computation, spec: HardwareSpec, kept: Kept[T]) -> TunedChoice[T]:
    """The choice of a trial, its program derived and proven again.

    Raises :class:`SpecError` where the file was changed.
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
        raise SpecError(
            f"{kept.path}: the embedding {trial.identifier} is none of {workload.name} ({reason}): "
            "the file was changed; delete it"
        ) from error
    return TunedChoice(candidate, trial, kept.trials, kept.tuned_under)
