"""What machines are compared by, and limits on it.

Costs of an evaluated point give its objectives. Lower bounds of costs give lower bounds of all of
them but power, energy over time: its energy may be spread over any time. What is left is leakage,
which is drawn whatever is executed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from cpembed.errors import SpecError
from cpembed.hw.schema import close_match, one_of
from cpembed.targets.family import Costs, Family, Point


@dataclass(frozen=True)
class Machine:
    """What of a point does not depend on software."""

    clock_mhz: float
    area_um2: float
    leakage_w: float

    @classmethod
    def of(cls, family: Family, point: Point) -> Machine:
        return cls(family.clock_mhz(point), family.area_um2(point), family.leakage_w(point))

    def time_us(self, costs: Costs) -> float:
        return costs.cycles / self.clock_mhz


@dataclass(frozen=True)
class Objective:
    """A figure to be small. ``key`` names it in documents, with its unit; ``units``: what a limit
    may be given in, over the objective's own unit, which is the first."""

    name: str
    key: str
    words: str
    units: Mapping[str, float]
    of: Callable[[Machine, Costs], float]
    bound: Callable[[Machine, Costs], float]

    @property
    def unit(self) -> str:
        return next(iter(self.units))


def _cycles(_machine: Machine, costs: Costs) -> float:
    return costs.cycles


def _time(machine: Machine, costs: Costs) -> float:
    return machine.time_us(costs)


def _energy(_machine: Machine, costs: Costs) -> float:
    return costs.energy_pj * 1e-9


def _area(machine: Machine, _costs: Costs) -> float:
    return machine.area_um2 * 1e-6


def _power(machine: Machine, costs: Costs) -> float:
    # pJ a microsecond are microwatts.
    time_us = machine.time_us(costs)
    return costs.energy_pj / time_us * 1e-6 if time_us else machine.leakage_w


def _leakage(machine: Machine, _costs: Costs) -> float:
    return machine.leakage_w


def _edp(machine: Machine, costs: Costs) -> float:
    return _energy(machine, costs) * machine.time_us(costs) * 1e-3


OBJECTIVES = {
    one.name: one
    for one in (
        Objective("cycles", "cycles", "cycles", {"": 1.0}, _cycles, _cycles),
        Objective(
            "time",
            "time_us",
            "time",
            {"us": 1.0, "ms": 1e3, "s": 1e6, "ns": 1e-3},
            _time,
            _time,
        ),
        Objective(
            "energy",
            "energy_mj",
            "energy",
            {"mJ": 1.0, "J": 1e3, "uJ": 1e-3, "nJ": 1e-6, "pJ": 1e-9},
            _energy,
            _energy,
        ),
        Objective(
            "area", "area_mm2", "area", {"mm2": 1.0, "um2": 1e-6, "cm2": 100.0}, _area, _area
        ),
        Objective(
            "power", "power_w", "power", {"W": 1.0, "mW": 1e-3, "uW": 1e-6}, _power, _leakage
        ),
        Objective("edp", "edp_mj_ms", "energy times time", {"mJms": 1.0, "Js": 1e6}, _edp, _edp),
    )
}
"""By name; sums over the layers, each as often as the network has it."""

DEFAULT = ("cycles", "energy", "area")

_LIMIT = re.compile(r"\s*(\w+)\s*=\s*(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+)\s*(\w*)\s*", re.ASCII)


@dataclass(frozen=True)
class Limit:
    """The largest value, in the objective's unit; ``text`` as it was given."""

    objective: Objective
    value: float
    text: str

    def __str__(self) -> str:
        return self.text


def read_objectives(names: Iterable[str]) -> tuple[Objective, ...]:
    """Each once, in the order given.

    Raises :class:`SpecError` for an unknown name, one that comes twice, and where there is none.
    """
    found: list[Objective] = []
    for name in names:
        if name not in OBJECTIVES:
            close = close_match(name, OBJECTIVES)
            raise SpecError(f"unknown objective {name!r}{close}; allowed: {one_of(OBJECTIVES)}")
        if OBJECTIVES[name] in found:
            raise SpecError(f"objective {name!r} is given twice: keep one")
        found.append(OBJECTIVES[name])
    if not found:
        raise SpecError(f"no objective is given; allowed: {one_of(OBJECTIVES)}")
    return tuple(found)


def read_limit(text: str) -> Limit:
    """``power=2W``, ``area=1.5mm2``, ``cycles=1e9``.

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
        units = one_of(one or "none" for one in objective.units)
        raise SpecError(f"limit {text!r}: the unit of {name} is one of: {units}")
    value = float(number) * objective.units[unit]
    if not 0 < value < math.inf:
        raise SpecError(f"limit {text!r}: a limit is a number above 0")
    return Limit(objective, value, text.strip())


def read_limits(texts: Iterable[str]) -> tuple[Limit, ...]:
    """Raises :class:`SpecError`, also for two limits of one objective."""
    limits = tuple(read_limit(text) for text in texts)
    names = [limit.objective.name for limit in limits]
    for name in names:
        if names.count(name) > 1:
            raise SpecError(f"{name} has two limits: keep one")
    return limits


def exceeded(limits: Sequence[Limit], value: Callable[[Objective], float]) -> Limit | None:
    """The first limit that a point's values, or its bounds, are above."""
    return next((limit for limit in limits if value(limit.objective) > limit.value), None)
