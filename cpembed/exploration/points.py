"""Points that were evaluated: what each layer costs there, and the objectives of all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cpembed.exploration.costing import Costing, LayerCosts
from cpembed.exploration.front import Vector, front
from cpembed.exploration.objectives import Limit, Machine, Objective, exceeded
from cpembed.exploration.space import Place, Space
from cpembed.targets.family import Costs, Point

NOTHING = Costs(0.0, 0.0)


@dataclass(frozen=True)
class Step:
    """How far a search is, for people."""

    doing: str
    done: int
    of: int


@dataclass(frozen=True)
class EvaluatedPoint:
    """``number`` is the point's in its space; ``beyond`` is the first limit that it is above."""

    number: int
    place: Place
    point: Point
    machine: Machine
    layers: tuple[LayerCosts, ...]
    costs: Costs
    beyond: Limit | None

    def value(self, objective: Objective) -> float:
        return objective.of(self.machine, self.costs)

    def vector(self, objectives: Sequence[Objective]) -> Vector:
        return tuple(self.value(objective) for objective in objectives)

    @property
    def provenances(self) -> tuple[str, ...]:
        return tuple(sorted({layer.activity.provenance.value for layer in self.layers}))


def total(costs: Sequence[Costs]) -> Costs:
    """Always added in the same order, so that the sum of lower bounds is one of the sum."""
    return sum(costs, start=NOTHING)


def evaluated(
    space: Space, place: Place, costing: Costing, limits: Sequence[Limit]
) -> EvaluatedPoint | None:
    """A point all of whose requests are answered; None where a layer has no software there."""
    point = space.point(place)
    layers: list[LayerCosts] = []
    for layer in costing.layers:
        found = costing.costs(point, layer)
        if found is None:
            return None
        layers.append(found)
    costs = total([found.costs.times(found.layer.count) for found in layers])
    machine = Machine.of(space.family, point)
    beyond = exceeded(limits, lambda objective: objective.of(machine, costs))
    return EvaluatedPoint(space.number(place), place, point, machine, tuple(layers), costs, beyond)


def front_of(
    points: Sequence[EvaluatedPoint], objectives: Sequence[Objective]
) -> list[EvaluatedPoint]:
    """Of the points within the limits, by the first objective; of equal ones that with the
    smallest number."""
    within = sorted((p for p in points if p.beyond is None), key=lambda p: p.number)
    vectors = [point.vector(objectives) for point in within]
    return sorted(
        (within[position] for position in front(vectors)), key=lambda p: p.vector(objectives)
    )


def keyed(objectives: Sequence[Objective], vector: Vector) -> dict[str, float]:
    """As documents name objectives."""
    return {one.key: value for one, value in zip(objectives, vector, strict=True)}
