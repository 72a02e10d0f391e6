"""Evaluated points with their objectives, all of which are minimized, fronts and hypervolumes."""
# moocore has no complete annotations.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np
import numpy.typing as npt

from cpembed.errors import BackendUnavailable
from cpembed.exploration.costing import Costing, LayerCosts
from cpembed.exploration.objectives import Limit, Machine, Objective, exceeded
from cpembed.exploration.space import Place, Space
from cpembed.targets.family import Costs, Point

Vector = tuple[float, ...]
"""The values of a point's objectives."""


@dataclass(frozen=True)
class Step:
    """The progress of a search, for people: an activity, and how many of its steps are done."""

    doing: str
    done: int
    total: int


@dataclass(frozen=True)
class EvaluatedPoint:
    """A point with the costs of all layers; ``number`` is the point's in its space, ``beyond`` the
    first limit that it is above.
    """

    number: int
    place: Place
    point: Point
    machine: Machine
    layers: tuple[LayerCosts, ...]
    costs: Costs
    beyond: Limit | None

    def value(self, objective: Objective) -> float:
        """Return the value of an objective."""
        return objective.value(self.machine, self.costs)

    def vector(self, objectives: Sequence[Objective]) -> Vector:
        """Return the values of objectives."""
        return tuple(self.value(objective) for objective in objectives)

    @property
    def provenances(self) -> tuple[str, ...]:
        """The kinds of figures that its costs rest on, such as estimates."""
        return tuple(sorted({layer.activity.provenance.value for layer in self.layers}))


def total(costs: Sequence[Costs]) -> Costs:
    """Return the sum of costs, always in the same order, so that bounds add up to a bound."""
    return sum(costs, start=Costs(0.0, 0.0))


def evaluated(
    space: Space, place: Place, costing: Costing, limits: Sequence[Limit]
) -> EvaluatedPoint | None:
    """Return a point whose requests are all answered; None where a layer has no software there.

    Parameters
    ----------
    space
        The space.
    place
        The point.
    costing
        The costs of its layers.
    limits
        Limits, the first of which that it is above is noted.
    """
    point = space.point(place)
    layers: list[LayerCosts] = []
    for layer in costing.layers:
        layer_costs = costing.costs(point, layer)
        if layer_costs is None:
            return None
        layers.append(layer_costs)
    costs = total([item.costs.times(item.layer.count) for item in layers])
    machine = Machine.of(space.family, point)
    return EvaluatedPoint(
        number=space.number(place),
        place=place,
        point=point,
        machine=machine,
        layers=tuple(layers),
        costs=costs,
        beyond=exceeded(limits, lambda objective: objective.value(machine, costs)),
    )


def front_of(
    points: Sequence[EvaluatedPoint], objectives: Sequence[Objective]
) -> list[EvaluatedPoint]:
    """Return the front of the points within the limits, ordered by the first objective; of equal
    points the one with the smallest number is in it.
    """
    within = sorted((p for p in points if p.beyond is None), key=lambda p: p.number)
    vectors = [point.vector(objectives) for point in within]
    return sorted(
        (within[position] for position in front(vectors)), key=lambda p: p.vector(objectives)
    )


def keyed(objectives: Sequence[Objective], vector: Vector) -> dict[str, float]:
    """Return the values of objectives by their names in documents."""
    pairs = zip(objectives, vector, strict=True)
    return {objective.key: value for objective, value in pairs}


def covers(vector: Vector, rows: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Return which rows a vector is at least as good as, in every objective."""
    return np.asarray((np.asarray(vector) <= rows).all(axis=1))


def front(vectors: Sequence[Vector]) -> list[int]:
    """Return the positions of the vectors that no other dominates; of equal ones the first.

    >>> front([(1, 2), (2, 1), (2, 2), (1, 2)])
    [0, 1]
    """
    positions: list[int] = []
    # What dominates a vector comes before it in this order, as does the first of equal ones.
    for position in sorted(range(len(vectors)), key=lambda n: (vectors[n], n)):
        table = np.asarray([vectors[n] for n in positions], dtype=np.float64)
        if not positions or not (table <= np.asarray(vectors[position])).all(axis=1).any():
            positions.append(position)
    return sorted(positions)


def can_measure() -> bool:
    """True if moocore is installed, which computes hypervolumes."""
    return find_spec("moocore") is not None


def hypervolume(vectors: Sequence[Vector], reference: Vector) -> float:
    """Return the hypervolume of vectors as a fraction of the box from the origin to the reference.

    It is the part of the box that some vector dominates, each objective divided by the reference's.

    Raises :class:`BackendUnavailable` where moocore is not installed.
    """
    if not can_measure():
        raise BackendUnavailable(
            "a hypervolume needs moocore, which is not installed: pip install 'cpembed[explore]'"
        )
    import moocore

    if not vectors:
        return 0.0
    scaled = np.asarray(vectors, dtype=np.float64) / np.asarray(reference, dtype=np.float64)
    inside = scaled[(scaled < 1).all(axis=1)]
    if not len(inside):
        return 0.0
    if inside.shape[1] == 1:
        return float(1 - inside.min())
    return float(moocore.hypervolume(inside, ref=np.ones(inside.shape[1])))


def worst(vectors: Sequence[Vector]) -> Vector:
    """Return the largest value of each objective."""
    return tuple(max(values) for values in zip(*vectors, strict=True))
