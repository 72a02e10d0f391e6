"""Spaces of machines: a family, its parameters, their values and relations."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from cpembed.exploration.costing import Costing, LayerCosts, LeftOut
from cpembed.exploration.objectives import (
    EvaluatedPoint,
    Limit,
    Machine,
    Objective,
    Place,
    exceeded,
    total,
)
from cpembed.exploration.relations import Expression, Relation
from cpembed.targets.family import Family, Point, Value


@dataclass(frozen=True)
class Space:
    """Machines of a family by the values of ``parameters``, ascending where they are numbers.

    ``fixed`` has the values that all points share, with the family's defaults; ``derived`` those
    that follow from others. Points have to satisfy the ``relations``.
    """

    name: str
    description: str
    source: str | None
    family: Family
    fixed: Mapping[str, Value]
    parameters: Mapping[str, tuple[Value, ...]]
    relations: tuple[Relation, ...]
    limits: tuple[Limit, ...]
    objectives: tuple[Objective, ...]
    derived: Mapping[str, Expression] = field(default_factory=dict[str, Expression])

    @property
    def numeric(self) -> list[str]:
        """Names of the parameters whose values are numbers."""
        return [name for name, v in self.parameters.items() if not isinstance(v[0], str)]

    @property
    def combinations(self) -> int:
        """Number of combinations of values, with those that relations exclude."""
        return math.prod(len(values) for values in self.parameters.values())

    def places(self) -> Iterator[Place]:
        """Yield all points that satisfy the relations."""
        for place in itertools.product(*(range(len(v)) for v in self.parameters.values())):
            if self.violated(self.point(place)) is None:
                yield place

    def number(self, place: Place) -> int:
        """Return the number of a combination, from 0; the last parameter changes the fastest."""
        # Mixed radix: a parameter is a digit whose base is the number of its values.
        number = 0
        for position, values in zip(place, self.parameters.values(), strict=True):
            number = number * len(values) + position
        return number

    def place(self, number: int) -> Place:
        """Return the combination of a number: the inverse of :meth:`number`."""
        positions: list[int] = []
        for values in reversed(list(self.parameters.values())):
            number, position = divmod(number, len(values))
            positions.append(position)
        return tuple(reversed(positions))

    def point(self, place: Place) -> Point:
        """Return the values of all parameters, with those that are fixed or derived."""
        pairs = zip(self.parameters.items(), place, strict=True)
        point = {**self.fixed, **{name: values[position] for (name, values), position in pairs}}
        for name, expression in self.derived.items():
            point[name] = expression.value(point)
        return point

    def violated(self, point: Point) -> Relation | None:
        """Return the first relation that a combination does not satisfy."""
        return next((r for r in self.relations if not r.holds(point)), None)

    def flaw(self, point: Point) -> str | None:
        """Return the reason why a combination is no machine of the space, or None."""
        relation = self.violated(point)
        if relation is not None:
            return f"{relation.text} does not hold"
        return self.family.flaw(point)

    def evaluated(
        self, place: Place, costing: Costing, limits: Sequence[Limit]
    ) -> EvaluatedPoint | None:
        """Return a point whose requests are all answered; None where no layer has software there.

        Layers without software are left out of its sums. A layer that is analysed and has no
        program nevertheless makes it None too.

        Parameters
        ----------
        place
            Positions of the point's values.
        costing
            Costs of the layers.
        limits
            Limits, the first of which that the point is above is noted.
        """
        point = self.point(place)
        layers: list[LayerCosts] = []
        left_out: list[LeftOut] = []
        for layer in costing.layers:
            if costing.bound(point, layer) is None:
                left_out.append(LeftOut(layer, costing.why_none(point, layer)))
                continue
            layer_costs = costing.costs(point, layer)
            if layer_costs is None:
                return None
            layers.append(layer_costs)
        if not layers:
            return None
        costs = total([item.costs.times(item.layer.count) for item in layers])
        machine = Machine.at(self.family, point)
        return EvaluatedPoint(
            number=self.number(place),
            place=place,
            point=point,
            machine=machine,
            layers=tuple(layers),
            costs=costs,
            beyond=exceeded(limits, lambda objective: objective.value(machine, costs)),
            left_out=tuple(left_out),
        )

    def varied(self, point: Point) -> dict[str, Value]:
        """Return the values of the parameters that vary."""
        return {name: point[name] for name in self.parameters}
