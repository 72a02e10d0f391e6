"""What every search does: generations, and which neighbours are measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, cast

from cpembed.runtime.tuning.session import FROM_ESTIMATES, GENERATION, Search
from cpembed.runtime.tuning.space import Design, Scored, Space


@dataclass(frozen=True)
class Point:
    """``model`` says which of two families the estimates know worse."""

    model: str
    number: int

    @property
    def estimate(self) -> float:
        return 100.0 + self.number


class Line(Space[Point]):
    """Neighbours are the next numbers."""

    def ranked(self, limit: int | None = None) -> Sequence[Scored[Point]]:
        points = [Point(model, n) for n in range(0, 10_000, 100) for model in ("right", "wrong")]
        return [self.scored(point) for point in points][:limit]

    def scored(self, schedule: Point) -> Scored[Point]:
        return Scored(schedule.estimate, schedule)

    def neighbour(self, schedule: Point, random: Random) -> Point | None:
        number = schedule.number + random.randint(1, 30)
        return None if number % 100 == 0 else Point(schedule.model, number)


@dataclass(frozen=True)
class _Embedding:
    """Stands for a candidate: its id and its family."""

    identifier: str = "one"
    family: str = "family"

    @property
    def candidate(self) -> _Embedding:
        return self

    @property
    def embedding(self) -> _Embedding:
        return self


def line() -> Design[Point]:
    return Design(cast(Any, _Embedding()), None, Line())


def cost(point: Point) -> float:
    """What estimates call alike takes half as long."""
    return point.estimate / (2 if point.model == "wrong" else 1)


def search(trials: int) -> list[Point]:
    searched, found = Search([line()], Point("right", 0), 0), list[Point]()
    for proposal in searched.proposals(trials):
        found.append(proposal.schedule)
        searched.tell(proposal, cost(proposal.schedule))
    return found


def test_generations_mix_estimates_and_neighbours() -> None:
    found = search(3 * GENERATION)
    chosen = [point.number % 100 == 0 for point in found]
    expected = [True] * FROM_ESTIMATES + [False] * (GENERATION - FROM_ESTIMATES)
    assert chosen == [True] * GENERATION + 2 * expected
    assert len(set(found)) == len(found)


def test_estimates_of_neighbours_are_corrected_by_their_parents() -> None:
    """Parents are the four best measured; of their children those of the better kind are taken,
    although their estimates are the same."""
    second = search(2 * GENERATION)[GENERATION + FROM_ESTIMATES :]
    assert {point.model for point in second} == {"wrong"}


def test_neighbours_that_were_not_taken_may_come_again() -> None:
    numbers = {point.number for point in search(8 * GENERATION) if point.model == "wrong"}
    # All of them are neighbours of the best, more than one generation takes.
    assert set(range(1, 20)) <= numbers
