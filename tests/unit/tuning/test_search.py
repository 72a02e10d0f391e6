"""What both searches share: generations, and which neighbours are measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from cpembed.tuning.search import FROM_ESTIMATES, GENERATION, Search


@dataclass(frozen=True)
class Point:
    """``model`` says which of two families the estimates know worse."""

    model: str
    number: int

    @property
    def key(self) -> str:
        return f"{self.model} {self.number}"

    @property
    def estimate(self) -> float:
        return 100.0 + self.number


class Line(Search[Point]):
    """Neighbours are the next numbers."""

    def _chosen(self) -> Iterator[Point]:
        for number in range(0, 10_000, 100):
            yield from (Point("right", number), Point("wrong", number))

    def _neighbour(self, parent: Point, random: Random) -> Point | None:
        number = parent.number + random.randint(1, 30)
        return None if number % 100 == 0 else Point(parent.model, number)


def cost(point: Point) -> float:
    """What estimates call alike takes half as long."""
    return point.estimate / (2 if point.model == "wrong" else 1)


def search(trials: int) -> list[Point]:
    line, found = Line(0), list[Point]()
    for point in line.proposals(trials):
        found.append(point)
        line.tell(point, cost(point))
    return found


def test_generations_mix_estimates_and_neighbours() -> None:
    found = search(3 * GENERATION)
    chosen = [point.number % 100 == 0 for point in found]
    expected = [True] * FROM_ESTIMATES + [False] * (GENERATION - FROM_ESTIMATES)
    assert chosen == [True] * GENERATION + 2 * expected
    assert len({point.key for point in found}) == len(found)


def test_estimates_of_neighbours_are_corrected_by_their_parents() -> None:
    """Parents are the four best measured; of their children those of the better kind are taken,
    although their estimates are the same."""
    second = search(2 * GENERATION)[GENERATION + FROM_ESTIMATES :]
    assert {point.model for point in second} == {"wrong"}


def test_neighbours_that_were_not_taken_may_come_again() -> None:
    numbers = {point.number for point in search(8 * GENERATION) if point.model == "wrong"}
    # All of them are neighbours of the best, more than one generation takes.
    assert set(range(1, 20)) <= numbers
