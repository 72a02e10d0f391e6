"""Layers on several targets: a figure for each pair, and what they come to on each target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cpembed.provenance import Provenance


@dataclass(frozen=True)
class Time:
    """``amount`` in ``unit`` (``us`` or ``cycles``), in microseconds where a clock is known, and
    how it came about: an estimate of a described ``machine`` where one is named, else of this one,
    or of the simulated."""

    amount: float
    unit: str
    us: float | None
    provenance: Provenance
    machine: str | None = None

    @property
    def how(self) -> str:
        """``estimated for NAME``."""
        how = self.provenance.value
        return f"{how} for {self.machine}" if self.machine else how

    def to_json(self) -> dict[str, Any]:
        return {
            "amount": self.amount,
            "unit": self.unit,
            "us": self.us,
            "machine": self.machine,
            "provenance": self.provenance.value,
        }


@dataclass(frozen=True)
class Figure:
    """A layer on a target: ``embedded_on`` is the target or an alternative that computes it, None
    where none does or this is not known (``outcome``: ``no``, or how the search ended), for what
    ``reason`` says; ``count``: how often the network has the layer;
    ``moved_bytes`` are read and written by packing and unpacking."""

    macs: int
    count: int = 1
    embedded_on: str | None = None
    utilisation: float | None = None
    moved_bytes: int | None = None
    time: Time | None = None
    reason: str | None = None
    outcome: str = "no"

    def to_json(self) -> dict[str, Any]:
        return {
            "macs": self.macs,
            "count": self.count,
            "embedded_on": self.embedded_on,
            "outcome": "yes" if self.embedded_on is not None else self.outcome,
            "utilisation": self.utilisation,
            "moved_bytes": self.moved_bytes,
            "time": None if self.time is None else self.time.to_json(),
            "reason": self.reason,
        }


@dataclass(frozen=True)
class TimeSum:
    """Of ``layers``, in microseconds where clocks are known; else in ``unit``."""

    amount: float
    unit: str
    layers: int


@dataclass(frozen=True)
class Line:
    """What the layers come to on one target, each as often as the network has it.

    ``use``: the mean utilisation of the layers that are embedded. ``use_by_macs``: of all that
    their instructions multiply, the useful share. ``times``: sums by how they came about; times of
    different kinds, or of different machines, are never added.
    """

    target: str
    layers: int
    embedded: int
    macs: int
    embedded_macs: int
    use: float | None
    use_by_macs: float | None
    moved_bytes: int
    times: Mapping[str, TimeSum]

    def to_json(self) -> dict[str, Any]:
        return {
            "macs": self.macs,
            "embedded_macs": self.embedded_macs,
            "utilisation": self.use,
            "utilisation_by_macs": self.use_by_macs,
            "moved_bytes": self.moved_bytes,
            "times": {
                how: {"amount": found.amount, "unit": found.unit, "layers": found.layers}
                for how, found in self.times.items()
            },
        }


def line(target: str, figures: Sequence[Figure]) -> Line:
    """Sums over the layers of a target.

    >>> whole = Figure(100, 3, "a", 1.0, 10, Time(5, "us", 5, Provenance.MEASURED))
    >>> half = Figure(100, 1, "a", 0.5, 0, Time(7, "us", 7, Provenance.ESTIMATED))
    >>> found = line("a", [whole, half, Figure(50)])
    >>> found.use, found.use_by_macs, found.embedded, found.layers
    (0.875, 0.8, 4, 5)
    >>> {how: time.amount for how, time in found.times.items()}
    {'measured': 15, 'estimated': 7}
    """
    fitting = [f for f in figures if f.embedded_on is not None]
    known = [(f, f.utilisation) for f in fitting if f.utilisation]
    counted = sum(f.count for f, _ in known)
    executed = sum(f.count * f.macs / used for f, used in known)
    return Line(
        target,
        sum(f.count for f in figures),
        sum(f.count for f in fitting),
        sum(f.count * f.macs for f in figures),
        sum(f.count * f.macs for f in fitting),
        sum(f.count * used for f, used in known) / counted if counted else None,
        sum(f.count * f.macs for f, _ in known) / executed if executed else None,
        sum(f.count * (f.moved_bytes or 0) for f in fitting),
        _times(figures),
    )


def _times(figures: Sequence[Figure]) -> dict[str, TimeSum]:
    sums: dict[str, TimeSum] = {}
    for figure in figures:
        time = figure.time
        if time is None:
            continue
        unit, amount = ("us", time.us) if time.us is not None else (time.unit, time.amount)
        # Cycles without a clock stand beside microseconds, not among them.
        key = time.how if unit == "us" else f"{time.how} in {unit}"
        before = sums.get(key, TimeSum(0, unit, 0))
        total = before.amount + figure.count * amount
        sums[key] = TimeSum(total, unit, before.layers + figure.count)
    return sums
