"""Objectives by which machines are compared, and limits on them.

Costs of an evaluated point give its objectives. Lower bounds of costs give lower bounds of all of
them but power, which is energy over time: the energy may be spread over any time. Its lower bound
is leakage, which is drawn whatever is executed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from cpembed.errors import SpecError
from cpembed.hw.schema import close_match, joined
from cpembed.targets.family import Costs, Family, Point


@dataclass(frozen=True)
class Machine:
    """The properties of a point that do not depend on software."""

    clock_mhz: float
    area_um2: float
    leakage_w: float

    @classmethod
    def of(cls, family: Family, point: Point) -> Machine:
        """Return the properties of a point of a family."""
        return cls(family.clock_mhz(point), family.area_um2(point), family.leakage_w(point))

    def time_us(self, costs: Costs) -> float:
        """Return the time of cycles in microseconds."""
        return costs.cycles / self.clock_mhz


@dataclass(frozen=True)
class Objective:
    """A quantity to be minimized, computed from a machine and the costs of the layers there.

    ``key`` is its name in documents, with the unit, ``words`` that in tables. A limit may be given
    in ``units``, relative to the objective's own, which is the first. ``bound`` computes a lower
    bound of the quantity from lower bounds of the costs.
    """

    name: str
    key: str
    words: str
    units: Mapping[str, float]
    value: Callable[[Machine, Costs], float]
    bound: Callable[[Machine, Costs], float]

    @property
    def unit(self) -> str:
        """The objective's own unit."""
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
    "power": lambda machine, _costs: machine.leakage_w,
}

OBJECTIVES = {
    name: Objective(
        name=name, key=key, words=words, units=units, value=_QUANTITIES[name], bound=_BOUNDS[name]
    )
    for name, key, words, units in (
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

_LIMIT = re.compile(r"\s*(\w+)\s*=\s*(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+)\s*(\w*)\s*", re.ASCII)


@dataclass(frozen=True)
class Limit:
    """A maximum value of an objective, in its unit; ``text`` is as it was written."""

    objective: Objective
    value: float
    text: str

    def __str__(self) -> str:
        return self.text


def read_objectives(names: Iterable[str]) -> tuple[Objective, ...]:
    """Return objectives by their names, in the same order.

    Raises :class:`SpecError` for an unknown name, one that comes twice, and where there is none.
    """
    objectives: list[Objective] = []
    for name in names:
        if name not in OBJECTIVES:
            close = close_match(name, OBJECTIVES)
            raise SpecError(f"unknown objective {name!r}{close}; allowed: {joined(OBJECTIVES)}")
        if OBJECTIVES[name] in objectives:
            raise SpecError(f"objective {name!r} is given twice: keep one")
        objectives.append(OBJECTIVES[name])
    if not objectives:
        raise SpecError(f"no objective is given; allowed: {joined(OBJECTIVES)}")
    return tuple(objectives)


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
