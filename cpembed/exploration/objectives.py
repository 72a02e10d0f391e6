"""Objectives by which machines are compared, limits on them, and fronts of evaluated points.

All objectives are minimized. The costs of an evaluated point give its objectives, and lower bounds
of costs give lower bounds of objectives.
"""
# moocore has no complete annotations.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec

import numpy as np
import numpy.typing as npt

from cpembed.errors import BackendUnavailable, SpecError
from cpembed.exploration.costing import LayerCosts, LeftOut
from cpembed.hw.schema import close_match, joined
from cpembed.targets.family import Costs, Family, Point, Value


@dataclass(frozen=True)
class Machine:
    """The properties of a point that do not depend on software."""

    clock_mhz: float
    area_um2: float
    leakage_w: float
    point: Point = field(default_factory=dict[str, Value], compare=False)

    @classmethod
    def at(cls, family: Family, point: Point) -> Machine:
        """Return the properties of a point of a family."""
        return cls(family.clock_mhz(point), family.area_um2(point), family.leakage_w(point), point)

    def time_us(self, costs: Costs) -> float:
        """Return the time of cycles in microseconds."""
        return costs.cycles / self.clock_mhz


@dataclass(frozen=True)
class Objective:
    """A quantity to be minimized, computed from a machine and the costs of the layers there.

    ``key`` is its name in documents, with the unit, ``label`` that in tables. A limit may be given
    in ``units``, relative to the objective's own, which is the first. ``bound`` computes a lower
    bound of the quantity from lower bounds of the costs.
    """

    name: str
    key: str
    label: str
    units: Mapping[str, float]
    value: Callable[[Machine, Costs], float]
    bound: Callable[[Machine, Costs], float]

    @property
    def unit(self) -> str:
        return next(iter(self.units))


def _energy_mj(_machine: Machine, costs: Costs) -> float:
    return costs.energy_pj * 1e-9


def _power_w(machine: Machine, costs: Costs) -> float:
    # pJ a microsecond are microwatts.
    time_us = machine.time_us(costs)
    return costs.energy_pj / time_us * 1e-6 if time_us else machine.leakage_w


_QUANTITIES: Mapping[str, Callable[[Machine, Costs], float]] = {
    "cycles": lambda _machine, costs: costs.cycles,
    "time": Machine.time_us,
    "energy": _energy_mj,
    "area": lambda machine, _costs: machine.area_um2 * 1e-6,
    "power": _power_w,
    "edp": lambda machine, costs: _energy_mj(machine, costs) * machine.time_us(costs) * 1e-3,
}

_BOUNDS: Mapping[str, Callable[[Machine, Costs], float]] = {
    **_QUANTITIES,
    # Power is energy over time, and bounds of both bound no quotient: the energy may be spread over
    # any time. Leakage is drawn whatever is executed.
    "power": lambda machine, _costs: machine.leakage_w,
}

OBJECTIVES = {
    name: Objective(
        name=name, key=key, label=label, units=units, value=_QUANTITIES[name], bound=_BOUNDS[name]
    )
    for name, key, label, units in (
        ("cycles", "cycles", "cycles", {"": 1.0}),
        ("time", "time_us", "time", {"us": 1.0, "ms": 1e3, "s": 1e6, "ns": 1e-3}),
        (
            *("energy", "energy_mj", "energy"),
            {"mJ": 1.0, "J": 1e3, "uJ": 1e-3, "nJ": 1e-6, "pJ": 1e-9},
        ),
        ("area", "area_mm2", "area", {"mm2": 1.0, "um2": 1e-6, "cm2": 100.0}),
        ("power", "power_w", "power", {"W": 1.0, "mW": 1e-3, "uW": 1e-6}),
        ("edp", "edp_mj_ms", "energy times time", {"mJms": 1.0, "Js": 1e6}),
    )
}
"""Objectives by name; they are sums over the layers, each as often as the network has it."""

DEFAULT_OBJECTIVES = ("cycles", "energy", "area")
"""Names of the objectives of a space that names none."""

COUNTED = {
    "cycles": "of all layers one after the other, each as often as the network has it",
    "time_us": "cycles at the machine's clock",
    "energy_mj": "of all layers, leakage included",
    "area_mm2": "of the machine, as its family counts it",
    "power_w": "energy over time",
    "edp_mj_ms": "energy times time",
    "hypervolume": "what the front dominates of the box between the origin and the reference "
    "point, as a share of that box; each objective is divided by the reference's, which is the "
    "largest value among the evaluated points within the limits, and the bounds of those that were "
    "discarded by such points",
    "left_out": "layers of a point that no embedding serves there, or whose embeddings the machine "
    "rejects: they are in none of its sums. A point is on the front if no other one that computes "
    "all of its layers is at least as good; hypervolumes are of the points that compute the most "
    "layers",
    "hypervolume.optimistic": "the same of the front and the lower bounds of all points that are "
    "neither evaluated nor discarded",
    "hypervolume.over_trials": "after each trial, by the reference of all of them",
    "certificate.discarded": "bound: lower bounds of the objectives when the point was discarded, "
    "of power its leakage; by: the number of a point that is at least as good in all of them",
}
"""Explanations of the members of documents."""

# NAME = NUMBER UNIT, the number with an optional fraction and exponent. ASCII, because \d and \w of
# Unicode accept digits and letters that no unit has.
_LIMIT = re.compile(r"\s*(\w+)\s*=\s*(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+)\s*(\w*)\s*", re.ASCII)


@dataclass(frozen=True)
class Limit:
    """A maximum value of an objective, in its unit; ``text`` is as it was written."""

    objective: Objective
    value: float
    text: str

    def __str__(self) -> str:
        return self.text


def read_objectives(
    names: Iterable[str], parameters: Collection[str] = ()
) -> tuple[Objective, ...]:
    """Return objectives by their names, in the same order.

    Parameters
    ----------
    names
        Names of objectives, or of ``parameters`` whose values are to be small.
    parameters
        Names of the numeric parameters of a space.

    Raises
    ------
    SpecError
        For an unknown name, one that comes twice, and where there is none.
    """
    objectives: list[Objective] = []
    allowed = joined((*OBJECTIVES, *parameters))
    for name in names:
        if any(objective.name == name for objective in objectives):
            raise SpecError(f"objective {name!r} is given twice: keep one")
        if name in OBJECTIVES:
            objectives.append(OBJECTIVES[name])
        elif name in parameters:
            objectives.append(_parameter_objective(name))
        else:
            close = close_match(name, (*OBJECTIVES, *parameters))
            raise SpecError(f"unknown objective {name!r}{close}; allowed: {allowed}")
    if not objectives:
        raise SpecError(f"no objective is given; allowed: {allowed}")
    return tuple(objectives)


def _parameter_objective(name: str) -> Objective:
    """Return the objective that a parameter is small; a value is its own bound."""

    def value(machine: Machine, _costs: Costs) -> float:
        return float(machine.point[name])

    return Objective(name=name, key=name, label=name, units={"": 1.0}, value=value, bound=value)


def read_limit(text: str) -> Limit:
    """Read a limit, such as ``power=2W``, ``area=1.5mm2`` or ``cycles=1e9``.

    >>> read_limit("power=500mW").value
    0.5

    Raises :class:`SpecError` for what is no limit.
    """
    match = _LIMIT.fullmatch(text)
    if match is None:
        raise SpecError(f"limit {text!r} is not NAME=NUMBER with a unit, such as power=2W")
    name, number, unit = match.groups()
    (objective,) = read_objectives([name])
    if unit not in objective.units:
        units = joined(u or "none" for u in objective.units)
        raise SpecError(f"limit {text!r}: the unit of {name} is one of: {units}")
    value = float(number) * objective.units[unit]
    if not 0 < value < math.inf:
        raise SpecError(f"limit {text!r}: a limit is a number above 0")
    return Limit(objective, value, text.strip())


def read_limits(texts: Iterable[str]) -> tuple[Limit, ...]:
    """Read limits; raise :class:`SpecError` also for two limits of one objective."""
    limits = tuple(read_limit(text) for text in texts)
    names = [limit.objective.name for limit in limits]
    for name in names:
        if names.count(name) > 1:
            raise SpecError(f"{name} has two limits: keep one")
    return limits


def exceeded(limits: Sequence[Limit], value: Callable[[Objective], float]) -> Limit | None:
    """Return the first limit that a point's values, or its bounds, are above."""
    return next((limit for limit in limits if value(limit.objective) > limit.value), None)


# ------------------------------------------------------------------------------ evaluated points

Place = tuple[int, ...]
"""A point of a space as the position of each parameter's value."""

Vector = tuple[float, ...]
"""The values of a point's objectives."""


@dataclass(frozen=True)
class Step:
    """The progress of a search, for people: an activity, and how many of its steps are complete."""

    doing: str
    completed: int
    total: int


@dataclass(frozen=True)
class EvaluatedPoint:
    """An evaluated point of a space, with the costs of the layers that have software there.

    ``number`` is the point's in its space, ``beyond`` the first limit that it is above. The layers
    that are ``left_out`` are in no sum.
    """

    number: int
    place: Place
    point: Point
    machine: Machine
    layers: tuple[LayerCosts, ...]
    costs: Costs
    beyond: Limit | None
    left_out: tuple[LeftOut, ...] = ()

    @property
    def coverage(self) -> frozenset[int]:
        """Numbers of the layers that have software."""
        return frozenset(item.layer.index for item in self.layers)

    def value(self, objective: Objective) -> float:
        return objective.value(self.machine, self.costs)

    def vector(self, objectives: Sequence[Objective]) -> Vector:
        return tuple(self.value(objective) for objective in objectives)

    @property
    def provenances(self) -> tuple[str, ...]:
        """The kinds of figures that its costs rest on, such as estimates."""
        return tuple(sorted({layer.activity.provenance.value for layer in self.layers}))


def total(costs: Sequence[Costs]) -> Costs:
    """Return the sum of costs."""
    # Bounds and costs are added in the same order, so that rounding makes no sum of bounds larger
    # than the sum of the costs that they bound.
    return sum(costs, start=Costs(0.0, 0.0))


def front_of(
    points: Sequence[EvaluatedPoint], objectives: Sequence[Objective]
) -> list[EvaluatedPoint]:
    """Return the front of the points within the limits, ordered by the first objective.

    A point beats another one only if it computes all of that one's layers: sums over different
    layers are not comparable. Of equal points the one with the smallest number is in it.
    """
    within = sorted((p for p in points if p.beyond is None), key=lambda p: p.number)
    members: list[EvaluatedPoint] = []
    for coverage in {point.coverage for point in within}:
        # Larger coverages first: of points with equal values they remain.
        rivals = sorted(
            (p for p in within if p.coverage >= coverage), key=lambda p: -len(p.coverage)
        )
        vectors = [point.vector(objectives) for point in rivals]
        members += [rivals[place] for place in front(vectors) if rivals[place].coverage == coverage]
    return sorted(members, key=lambda p: (-len(p.coverage), p.vector(objectives), p.number))


def keyed(objectives: Sequence[Objective], vector: Vector) -> dict[str, float]:
    """Return the values of objectives by their names in documents."""
    pairs = zip(objectives, vector, strict=True)
    return {objective.key: value for objective, value in pairs}


def covers(vector: Vector, rows: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Return a mask of the rows that a vector is at least as good as in every objective."""
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
