"""Which of several candidates runs: the one whose fastest schedule has the least estimate.

Overheads rank embeddings without knowing a machine. A target's model does, so it chooses among the
best by overheads (AMOS sections 5.3 and 5.4).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cpembed.cost.ranking import RankedCandidate
from cpembed.errors import LoweringError
from cpembed.runtime.tuning.records import TunedChoice
from cpembed.runtime.tuning.space import Scored
from cpembed.steps import step
from cpembed.targets.base import Target
from cpembed.targets.capabilities import require_candidate


@dataclass(frozen=True)
class Estimated:
    """A candidate with its fastest schedule by the target's model."""

    ranked: RankedCandidate
    scored: Scored[Any]

    @property
    def cost(self) -> float:
        return self.scored.cost


@dataclass(frozen=True)
class ModelChoice:
    """Candidates as the model ranks them, the fastest first; ``refused`` are the ids of those that
    the target cannot execute, each with the reason."""

    estimates: tuple[Estimated, ...]
    refused: tuple[tuple[str, str], ...]

    @property
    def least(self) -> float:
        """The least estimate; what is first may have a little more (``ChoicePolicy.tie_ratio``)."""
        return min(item.cost for item in self.estimates)

    @property
    def considered(self) -> int:
        """Candidates looked at."""
        return len(self.estimates) + len(self.refused)

    def of(self, ranked: RankedCandidate) -> Estimated | None:
        """The estimate of a candidate, by its id: it may come from another process; None where it
        was refused or is not among those looked at."""
        wanted = ranked.candidate.identifier
        return next((e for e in self.estimates if e.ranked.candidate.identifier == wanted), None)

    def why_refused(self, ranked: RankedCandidate) -> str | None:
        """Why the target cannot execute a candidate; None where it was not refused."""
        return dict(self.refused).get(ranked.candidate.identifier)


@dataclass(frozen=True)
class Choice:
    """A candidate with its schedule, and where they come from: what was ``tuned``, or the
    ``model``, which ranks the candidates that it could choose among."""

    candidate: RankedCandidate
    schedule: Any
    scored: Scored[Any] | None = None
    tuned: TunedChoice[Any] | None = None
    model: ModelChoice | None = None

    @property
    def estimated(self) -> float | None:
        """What the model expects, in the target's unit."""
        if self.tuned is not None:
            return self.tuned.trial.estimated
        return None if self.scored is None else self.scored.cost

    def to_json(self, target: Target[Any, Any, Any]) -> dict[str, Any]:
        """A part of the documents of ``run`` and ``explain --chosen``."""
        model = None
        if self.model is not None and self.scored is not None:
            model = {
                "considered": self.model.considered,
                "refused": len(self.model.refused),
                "constraints": self.candidate.constraints,
                "estimated": self.scored.cost,
                "unit": target.unit,
                "provenance": "estimated",
                **{f"estimated_{name}": value for name, value in self.scored.parts.items()},
            }
        return {
            "schedule": target.schedule_json(self.schedule),
            "tuned": None if self.tuned is None else self.tuned.to_json(),
            "model": model,
        }


def compared(
    target: Target[Any, Any, Any], candidates: Sequence[RankedCandidate], epilogue: Any = None
) -> ModelChoice:
    """Candidates by their estimates; first the one that is given first among those that the model
    takes for equally fast."""
    found: list[Estimated] = []
    refused: list[tuple[str, str]] = []
    for ranked in candidates:
        try:
            lowered = target.lower(ranked.candidate.program, epilogue)
            found.append(Estimated(ranked, target.space(lowered).best()))
        except LoweringError as error:
            refused.append((ranked.candidate.identifier, str(error)))
    if found:
        least = min(item.cost for item in found)
        first = next(item for item in found if item.cost <= target.policy.tie_ratio * least)
        rest = [item for item in found if item is not first]
        found = [first, *sorted(rest, key=lambda item: item.cost)]
    return ModelChoice(tuple(found), tuple(refused))


def choices(
    target: Target[Any, Any, Any], candidates: Sequence[RankedCandidate], epilogue: Any = None
) -> list[Choice]:
    """Candidates with their fastest schedules by the model, the one to run first.

    Raises :class:`LoweringError` where the instruction can execute none of them.
    """
    model = compared(target, candidates, epilogue)
    if not model.estimates:
        raise LoweringError(model.refused[0][1])
    return [
        Choice(item.ranked, item.scored.schedule, item.scored, None, model)
        for item in model.estimates
    ]


def storing(target: Target[Any, Any, Any], choice: Choice, epilogue: Any) -> list[Choice]:
    """What the model chooses, of what it chose among, where ``epilogue`` is stored; a choice that
    it did not make stays."""
    if choice.model is None:
        return [choice]
    return choices(target, [item.ranked for item in choice.model.estimates], epilogue)


def built_first(
    target: Target[Any, Any, Any], options: Sequence[Choice], epilogue: Any = None
) -> tuple[Any, Choice]:
    """The artifact of the first choice that has one; in the worker.

    Raises :class:`LoweringError` where none has, and :class:`InvariantError` for a variant that
    cannot be proven.
    """
    failed: list[LoweringError] = []
    for choice in options:
        candidate = choice.candidate.candidate
        require_candidate(target, candidate)
        doing = f"building a kernel of {target.spec.name}"
        try:
            with step(doing, candidate.program.workload.macs):
                lowered = target.lower(candidate.program, epilogue)
                return target.build(lowered, choice.schedule), choice
        except LoweringError as error:
            failed.append(error)
    raise failed[0]
