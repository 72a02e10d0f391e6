"""What a search chooses from: embeddings with the schedules that a target has for them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Generic, TypeVar

from cpembed.cost.candidate import Candidate
from cpembed.cost.ranking import RankedCandidate

S = TypeVar("S")
"""A target's schedule: a frozen dataclass of numbers and names, which JSON can keep."""


@dataclass(frozen=True)
class Scored(Generic[S]):
    """A schedule with its estimate: ``cost`` in the target's unit, and what of it is what
    (``parts``, by names that end in the unit)."""

    cost: float
    schedule: S
    parts: Mapping[str, float] = field(default_factory=dict[str, float])


class Space(ABC, Generic[S]):
    """The schedules of one lowered program, with their estimates."""

    @property
    def lower_bound(self) -> float:
        """What no schedule of the program goes below, in the unit of the estimates."""
        return 0.0

    @abstractmethod
    def ranked(self, limit: int | None = None) -> Sequence[Scored[S]]:
        """Schedules worth trying, the least estimate first; always the same.

        Raises :class:`~cpembed.errors.LoweringError` where none fits the machine.
        """

    @abstractmethod
    def scored(self, schedule: S) -> Scored[S]:
        """Any schedule with its estimate.

        Raises :class:`~cpembed.errors.LoweringError` for one that the program does not have.
        """

    def best(self) -> Scored[S]:
        """What runs untuned."""
        return self.ranked(1)[0]

    def neighbour(self, schedule: S, random: Random) -> S | None:
        """A schedule that differs a little; None where there is none. Whether it fits is not
        asked."""
        return None

    def canonical(self, schedule: S) -> S:
        """The schedule by the one name that all schedules of the same code have."""
        return schedule

    def transferred(self, schedule: S, source: Space[S]) -> S | None:
        """What another program's schedule is in this one; None where it has no meaning there."""
        return None

    def key(self, schedule: S) -> str:
        """What no two schedules share; the same in every process."""
        return repr(schedule)

    def form(self) -> object:
        """Equal, and hashable, for programs that are one kernel under other names."""
        return id(self)


@dataclass(frozen=True, eq=False)
class Design(Generic[S]):
    """An embedding that takes part in a search: a candidate, its program in the target's terms, and
    its schedules."""

    ranked: RankedCandidate
    lowered: Any
    space: Space[S]

    @property
    def candidate(self) -> Candidate:
        return self.ranked.candidate

    @property
    def identifier(self) -> str:
        return self.candidate.identifier


@dataclass(frozen=True)
class Proposal(Generic[S]):
    """A schedule of a design."""

    design: Design[S]
    scored: Scored[S]

    @property
    def candidate(self) -> Candidate:
        return self.design.candidate

    @property
    def schedule(self) -> S:
        return self.scored.schedule

    @property
    def estimate(self) -> float:
        return self.scored.cost

    @property
    def key(self) -> str:
        """What no two proposals of a search share."""
        return f"{self.design.identifier} {self.design.space.key(self.schedule)}"


def distinct(designs: Iterable[Design[S]]) -> list[Design[S]]:
    """One of those that are the same kernel."""
    found: dict[object, Design[S]] = {}
    for design in designs:
        found.setdefault(design.space.form(), design)
    return list(found.values())
