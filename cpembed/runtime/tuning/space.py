"""The space of a search: embeddings with the schedules that a target has for them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Generic, TypeVar

from cpembed.cost.ranking import Candidate, RankedCandidate

S = TypeVar("S")
"""A target's schedule: a frozen dataclass of numbers and names, which JSON can hold."""


S_co = TypeVar("S_co", covariant=True)


@dataclass(frozen=True)
class Scored(Generic[S_co]):
    """Schedule with its estimated ``cost``, and its ``parts`` by names that end in the unit."""

    cost: float
    schedule: S_co
    parts: Mapping[str, float] = field(default_factory=dict[str, float])


class Space(ABC, Generic[S]):
    """The schedules of one lowered program, with their estimates."""

    @property
    def lower_bound(self) -> float:
        """Lower bound of the cost of all schedules of the program."""
        return 0.0

    @abstractmethod
    def ranked(self, limit: int | None = None) -> Sequence[Scored[S]]:
        """Return schedules worth trying, the least estimate first; always the same ones.

        Parameters
        ----------
        limit
            Maximum number of schedules; None for all.

        Raises
        ------
        LoweringError
            If none fits the machine.
        """

    @abstractmethod
    def scored(self, schedule: S) -> Scored[S]:
        """Return a schedule with its estimate.

        Raises :class:`LoweringError` if the program does not have this schedule.
        """

    def best(self) -> Scored[S]:
        """Return the schedule that runs untuned."""
        return self.ranked(1)[0]

    @property
    def least_best(self) -> float:
        """Lower bound of the cost of :meth:`best`, which takes less time to compute."""
        return self.lower_bound

    def best_within(self, limit: float) -> Scored[S] | None:
        """Return :meth:`best`, or None if its cost is above a limit."""
        if self.least_best > limit:
            return None
        best = self.best()
        return best if best.cost <= limit else None

    def neighbour(self, schedule: S, random: Random) -> S | None:
        """Return a schedule that differs a little, and need not fit; None if there is none."""
        return None

    def canonical(self, schedule: S) -> S:
        """Return the representative of all schedules of the same code."""
        return schedule

    def transferred(self, schedule: S, source: Space[S]) -> S | None:
        """Return the counterpart of another program's schedule; None if it has none."""
        return None

    def key(self, schedule: S) -> str:
        """Return a text unique to the schedule, the same in every process."""
        # Frozen dataclasses of numbers and names: equal ones have equal texts in every process.
        return repr(schedule)

    def group(self, schedule: S) -> object:
        """Return a hashable value in which schedules of an embedding differ that come first."""
        return None

    def form(self) -> object:
        """Return a hashable value that is equal for programs that are the same kernel."""
        # By default no two programs are known to be the same kernel.
        return id(self)


@dataclass(frozen=True, eq=False)
class Design(Generic[S]):
    """An embedding in a search: a candidate, its program in the target's terms, its schedules."""

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
    """A schedule of a design that is to be measured."""

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
        """Unique text of the proposal within a search."""
        return f"{self.design.identifier} {self.design.space.key(self.schedule)}"


def distinct(designs: Iterable[Design[S]]) -> list[Design[S]]:
    """Return the first of each group of designs that are the same kernel."""
    unique: dict[object, Design[S]] = {}
    for design in designs:
        unique.setdefault(design.space.form(), design)
    return list(unique.values())
