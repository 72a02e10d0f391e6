"""Layers on several targets: a figure for each pair, and totals for each target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cpembed.provenance import Provenance


@dataclass(frozen=True)
class Time:
    """Time of a layer with its origin.

    Parameters
    ----------
    amount : float
        Time in ``unit``.
    unit : str
        ``us`` or ``cycles``.
    us : float or None
        The same in microseconds; None if no clock is known.
    provenance : Provenance
        Whether the time is measured, simulated or estimated.
    machine : str, optional
        Described machine that the estimate is for; None for this machine or the simulated one.
    """

    amount: float
    unit: str
    us: float | None
    provenance: Provenance
    machine: str | None = None

    @property
    def origin(self) -> str:
        """Provenance as text, with the described machine: ``estimated for NAME``."""
        origin = self.provenance.value
        return f"{origin} for {self.machine}" if self.machine else origin

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
    """Result of one layer on one target.

    Parameters
    ----------
    macs : int
        Multiply-accumulates of the layer.
    count : int
        Number of times that the network has the layer.
    embedded_on : str, optional
        The target, or the alternative of it, whose instruction computes the layer; None if there is
        none, or this is unknown.
    utilisation : float, optional
        Useful share of the multiply-accumulates that the instruction executes, 0 to 1.
    moved_bytes : int, optional
        Bytes that packing and unpacking read and write.
    time : Time, optional
        Time of the layer, packing and unpacking included.
    reason : str, optional
        Reason why an alternative computes the layer, or none does.
    outcome : str
        If ``embedded_on`` is None: ``no``, or ``stopped`` or ``failed`` if the search did not end.
    """

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
    """Total time of ``layers`` layers, in microseconds if clocks are known, else in cycles."""

    amount: float
    unit: str
    layers: int


@dataclass(frozen=True)
class Line:
    """Totals of the layers on one target, each counted as often as the network has it.

    Parameters
    ----------
    target : str
        Name of the target.
    layers, embedded : int
        Number of layers, and of those that are embedded.
    macs, embedded_macs : int
        Multiply-accumulates of both.
    use : float or None
        Mean utilisation of the embedded layers; None if there are none.
    use_by_macs : float or None
        Useful share of all multiply-accumulates that the embedded layers execute.
    moved_bytes : int
        Bytes that packing and unpacking read and write.
    times : dict of str to TimeSum
        Sums by :attr:`Time.origin`: times of different origins, or of different machines, are never
        added.
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
                origin: {"amount": total.amount, "unit": total.unit, "layers": total.layers}
                for origin, total in self.times.items()
            },
        }


def line(target: str, figures: Sequence[Figure]) -> Line:
    """Return the totals of the layers of a target.

    >>> full = Figure(100, 3, "a", 1.0, 10, Time(5, "us", 5, Provenance.MEASURED))
    >>> half = Figure(100, 1, "a", 0.5, 0, Time(7, "us", 7, Provenance.ESTIMATED))
    >>> total = line("a", [full, half, Figure(50)])
    >>> total.use, total.use_by_macs, total.embedded, total.layers
    (0.875, 0.8, 4, 5)
    >>> {origin: time.amount for origin, time in total.times.items()}
    {'measured': 15, 'estimated': 7}
    """
    fitting = [f for f in figures if f.embedded_on is not None]
    utilised = [(f, f.utilisation) for f in fitting if f.utilisation]
    count = sum(f.count for f, _ in utilised)
    executed = sum(f.count * f.macs / used for f, used in utilised)
    return Line(
        target=target,
        layers=sum(f.count for f in figures),
        embedded=sum(f.count for f in fitting),
        macs=sum(f.count * f.macs for f in figures),
        embedded_macs=sum(f.count * f.macs for f in fitting),
        use=sum(f.count * used for f, used in utilised) / count if count else None,
        use_by_macs=sum(f.count * f.macs for f, _ in utilised) / executed if executed else None,
        moved_bytes=sum(f.count * (f.moved_bytes or 0) for f in fitting),
        times=_times(figures),
    )


def _times(figures: Sequence[Figure]) -> dict[str, TimeSum]:
    sums: dict[str, TimeSum] = {}
    for figure in figures:
        time = figure.time
        if time is None:
            continue
        unit, amount = ("us", time.us) if time.us is not None else (time.unit, time.amount)
        # Cycles without a clock cannot be added to microseconds: they have a sum of their own.
        key = time.origin if unit == "us" else f"{time.origin} in {unit}"
        before = sums.get(key, TimeSum(0, unit, 0))
        total = before.amount + figure.count * amount
        sums[key] = TimeSum(total, unit, before.layers + figure.count)
    return sums
