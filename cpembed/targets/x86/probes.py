"""Times of many small pieces of work on a machine that is shared with others.

Disturbances only ever add time, and last from microseconds to minutes. So the pieces are short, are
timed interleaved, and what counts is the best few of many rounds; pieces whose best few still
differ get further rounds, until a time limit.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from cpembed.errors import MeasurementError

BEST = 5
"""Rounds that count: the middle one of the best few."""

SPREAD = 1.08
"""The last of the best few over the first: above it a figure is not steady."""

Run = Callable[[int], bool]
"""Executes so many steps; False where what it did must not count."""

OnRound = Callable[[int, int], None]
"""Called with the number of rounds that are done and of the probes that need more."""


@dataclass(frozen=True)
class Probe:
    """A piece of work whose time grows by the same amount with each step.

    ``short`` and ``long`` are the steps of its two lengths, ``units`` what a step consists of;
    ``before`` is done ahead of each round, untimed.
    """

    name: str
    run: Run
    short: int
    long: int
    units: float = 1.0
    before: Callable[[], object] | None = None


@dataclass
class Series:
    """Nanoseconds of a probe's two lengths, round by round; ``enough`` rounds make a figure."""

    probe: Probe
    enough: int = BEST
    short: list[float] = field(default_factory=list[float])
    long: list[float] = field(default_factory=list[float])

    def take(self) -> None:
        """One round."""
        probe = self.probe
        if probe.before is not None:
            probe.before()
        probe.run(probe.short)
        started = time.perf_counter_ns()
        counts = probe.run(probe.short)
        between = time.perf_counter_ns()
        counts &= probe.run(probe.long)
        ended = time.perf_counter_ns()
        if counts:
            self.short.append(between - started)
            self.long.append(ended - between)

    @property
    def ns(self) -> float:
        """A unit's time: from two lengths, so that what every call costs is not in it.

        Raises :class:`MeasurementError` where :attr:`has_figure` is not.
        """
        probe = self.probe
        if not self.has_figure:
            raise MeasurementError(
                f"{probe.name} could not be timed in {len(self.long)} rounds: the machine is too "
                "busy; try again, or give more --rounds"
            )
        steps = (probe.long - probe.short) * probe.units
        return (_best(self.long) - _best(self.short)) / steps

    @property
    def has_figure(self) -> bool:
        """Whether enough rounds count, and the longer length took longer in them."""
        return len(self.long) >= self.enough and _best(self.long) > _best(self.short)

    @property
    def spread(self) -> float:
        """How far the best few rounds of the longer length are apart, as a ratio."""
        best = sorted(self.long)[:BEST]
        return best[-1] / best[0] if self.has_figure else math.inf

    @property
    def is_steady(self) -> bool:
        return self.spread <= SPREAD


def time_in_rounds(
    probes: Sequence[Probe], rounds: int, timeout: float, on_round: OnRound | None = None
) -> Mapping[str, Series]:
    """Every probe's series, by name: ``rounds`` rounds of all, then more of those that are not
    steady, until they are. It ends after ``timeout`` seconds, but not before the first few rounds.
    """
    enough = min(rounds, BEST)
    found = {probe.name: Series(probe, enough) for probe in probes}
    deadline = time.perf_counter() + timeout
    pending, done = list(found.values()), 0
    while pending and (done < enough or time.perf_counter() < deadline):
        for series in pending:
            series.take()
        done += 1
        if done >= rounds:
            pending = [series for series in pending if not series.is_steady]
        if on_round is not None:
            on_round(done, len(pending))
    return found


def _best(samples: Sequence[float]) -> float:
    return float(np.median(sorted(samples)[:BEST]))
