"""Choice among candidates: the one whose fastest schedule has the lowest estimate runs.

Overheads rank embeddings without knowing the machine. A target's model knows it, so it chooses
among the best by overheads (AMOS, sections 5.3 and 5.4).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cpembed.cost.ranking import RankedCandidate
from cpembed.errors import LoweringError
from cpembed.runtime.tuning.records import TunedChoice
from cpembed.runtime.tuning.space import Scored, Space
from cpembed.steps import step
from cpembed.targets.base import Target
from cpembed.targets.capabilities import require_candidate


@dataclass(frozen=True)
class Estimated:
    """Candidate with its fastest schedule by the target's model."""

    ranked: RankedCandidate
    scored: Scored[Any]

    @property
    def cost(self) -> float:
        return self.scored.cost


@dataclass(frozen=True)
class ModelChoice:
    """Candidates as the model ranks them, fastest first.

    ``refused`` lists the identifiers of candidates that the target cannot execute, each with the
    reason.
    """

    estimates: tuple[Estimated, ...]
    refused: tuple[tuple[str, str], ...]

    @property
    def least(self) -> float:
        """Lowest estimate."""
        # The first candidate's may be higher, by the tie ratio of the target's policy.
        return min(item.cost for item in self.estimates)

    @property
    def considered(self) -> int:
        """Number of candidates that were compared or rejected."""
        return len(self.estimates) + len(self.refused)

    def estimate_of(self, ranked: RankedCandidate) -> Estimated | None:
        """Return the estimate of a candidate; None if there is none."""
        # By identifier, since the candidate may come from another process.
        identifier = ranked.candidate.identifier
        return next(
            (e for e in self.estimates if e.ranked.candidate.identifier == identifier), None
        )

    def why_refused(self, ranked: RankedCandidate) -> str | None:
        """Return the reason why a candidate was rejected; None if it was not."""
        return dict(self.refused).get(ranked.candidate.identifier)


@dataclass(frozen=True)
class Choice:
    """Candidate with its schedule, and their origin.

    ``scored`` is the estimate of the schedule, ``tuned`` the tuning record that it is from,
    ``model`` the candidates that the model chose among.
    """

    ranked: RankedCandidate
    schedule: Any
    scored: Scored[Any] | None = None
    tuned: TunedChoice[Any] | None = None
    model: ModelChoice | None = None

    @property
    def estimated(self) -> float | None:
        """Estimate in the target's unit; None without one."""
        if self.tuned is not None:
            return self.tuned.trial.estimated
        return None if self.scored is None else self.scored.cost

    def to_json(self, target: Target[Any, Any, Any]) -> dict[str, Any]:
        """Return the entries for the documents of ``run`` and ``explain --chosen``."""
        model = None
        if self.model is not None and self.scored is not None:
            model = {
                "considered": self.model.considered,
                "refused": len(self.model.refused),
                "constraints": self.ranked.constraints,
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
    target: Target[Any, Any, Any],
    candidates: Sequence[RankedCandidate],
    epilogue: Any = None,
    *,
    first_only: bool = False,
) -> ModelChoice:
    """Rank candidates by the estimates of their fastest schedules.

    Among those that the model considers equally fast, the first one given is first.

    Parameters
    ----------
    target, epilogue
        Target whose model is used, and epilogue in its own form.
    candidates : sequence of RankedCandidate
        Candidates, best by overheads first.
    first_only : bool
        Leave out candidates that cannot be first: the first one is that of all candidates.
    """
    rejected: list[tuple[str, str]] = []
    spaces: list[tuple[int, RankedCandidate, Space[Any]]] = []
    for place, ranked in enumerate(candidates):
        try:
            lowered = target.lower(ranked.candidate.program, epilogue)
            spaces.append((place, ranked, target.space(lowered)))
        # Without a program or a schedule, the others still compete.
        except LoweringError as error:
            rejected.append((ranked.candidate.identifier, str(error)))
    if first_only:
        # The best one is soon among the estimates, and few of the others are computed.
        spaces.sort(key=lambda item: item[2].least_best)
    limit = math.inf
    by_place: dict[int, Estimated] = {}
    for place, ranked, space in spaces:
        try:
            scored = space.best_within(limit) if first_only else space.best()
        except LoweringError as error:
            rejected.append((ranked.candidate.identifier, str(error)))
            continue
        if scored is not None:
            by_place[place] = Estimated(ranked, scored)
            limit = min(limit, target.policy.tie_ratio * scored.cost)
    estimates = [by_place[place] for place in sorted(by_place)]
    if estimates:
        least = min(item.cost for item in estimates)
        # Estimates are still in the order of overheads, which decide among equals.
        first = next(item for item in estimates if item.cost <= target.policy.tie_ratio * least)
        rest = [item for item in estimates if item is not first]
        estimates = [first, *sorted(rest, key=lambda item: item.cost)]
    return ModelChoice(tuple(estimates), tuple(rejected))


def choices(
    target: Target[Any, Any, Any],
    candidates: Sequence[RankedCandidate],
    epilogue: Any = None,
    *,
    first_only: bool = False,
) -> list[Choice]:
    """Return candidates with their fastest schedules by the model, the one to run first.

    Parameters
    ----------
    target, epilogue
        Target whose model is used, and epilogue in its own form.
    candidates : sequence of RankedCandidate
        Candidates, best by overheads first.
    first_only : bool
        Leave out candidates that cannot be first.

    Raises
    ------
    LoweringError
        If the instruction can execute none of them.
    """
    model = compared(target, candidates, epilogue, first_only=first_only)
    if not model.estimates:
        # The reason for the best candidate, which a user would expect to run.
        raise LoweringError(model.refused[0][1])
    return [
        Choice(item.ranked, item.scored.schedule, item.scored, None, model)
        for item in model.estimates
    ]


def choices_storing(target: Target[Any, Any, Any], choice: Choice, epilogue: Any) -> list[Choice]:
    """Re-rank the same candidates with another epilogue; a tuned choice is returned unchanged.

    Parameters
    ----------
    target, epilogue
        Target whose model is used, and epilogue in its own form.
    choice : Choice
        Choice with the candidates of its model.
    """
    if choice.model is None:
        return [choice]
    return choices(target, [item.ranked for item in choice.model.estimates], epilogue)


def built_first(
    target: Target[Any, Any, Any], options: Sequence[Choice], epilogue: Any = None
) -> tuple[Any, Choice]:
    """Build the first choice that has a program, and return its artifact with it.

    Called in the worker, where a compiler may crash.

    Parameters
    ----------
    target, epilogue
        Target to build for, and epilogue in its own form.
    options : sequence of Choice
        Choices, best first.

    Raises
    ------
    LoweringError
        If none has a program.
    InvariantError
        If a variant cannot be proven.
    """
    errors: list[LoweringError] = []
    for choice in options:
        candidate = choice.ranked.candidate
        # Variants come from no search, so nothing has proven them yet.
        require_candidate(target, candidate)
        activity = f"building a kernel of {target.spec.name}"
        try:
            with step(activity, candidate.program.workload.macs):
                lowered = target.lower(candidate.program, epilogue)
                return target.build(lowered, choice.schedule), choice
        except LoweringError as error:
            errors.append(error)
    raise errors[0]
