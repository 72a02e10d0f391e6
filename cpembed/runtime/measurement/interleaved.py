"""Interleaved timing of several kinds of work: what disturbs one disturbs all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from cpembed.runtime.measurement.load import Elsewhere, wait_for_idle_threads
from cpembed.runtime.measurement.runner import Quantiles, Sampler, calls_in, quantiles

ATTEMPTS = 3
"""Rounds that were disturbed are repeated; the steadiest of so many attempts counts."""

UNSURE = 1.25
"""The middle half of the rounds' ratios must lie within this factor, or their median means little.
A few rounds in which the machine changed its speed do not matter."""

BUSY = 0.2
"""Cores that others may have while we measure. Two threads that wait for each other, spinning, one
of them without a core, take a slice of the scheduler (milliseconds) in each call, and do so
steadily: such times are wrong without being noisy."""


PATIENCE = 2
"""So many times the rounds that are wanted are tried."""

ENOUGH = 0.4
"""Of the rounds that are wanted: with so many the others are left out."""

OUR_POOL = "tvm"
"""The threads of our kernels."""


@dataclass(frozen=True)
class Work:
    """One kind of work; ``pool`` names the threads it runs on."""

    sample: Sampler
    pool: str


@dataclass(frozen=True)
class Interleaved:
    """What each kind of work took, round by round, in microseconds a call.

    ``elsewhere``: cores that other processes had meanwhile. ``rested``: whether each pool of
    threads slept before another one's turn. ``slow``: rounds that are left out because the CPU's
    product instruction was slow in them; ``enough``: whether that leaves enough, else they are in.
    """

    samples: Mapping[str, Sequence[float]]
    elsewhere: float
    rested: bool
    slow: int = 0
    enough: bool = True

    def times(self, name: str) -> Quantiles:
        return quantiles(self.samples[name])

    def ratio(self, name: str, other: str, added: float = 0.0) -> Quantiles:
        """Of two kinds of work in the same round: a machine that is slower for a while is so for
        both. ``added`` microseconds belong to the first."""
        pairs = zip(self.samples[name], self.samples[other], strict=True)
        return quantiles([(mine + added) / yours for mine, yours in pairs])

    @property
    def is_noisy(self) -> bool:
        """Whether the machine had other work, or a ratio varied too much to mean something."""
        disturbed = self.elsewhere > BUSY or not self.rested or not self.enough
        return disturbed or self._spread > UNSURE

    @property
    def disturbance(self) -> tuple[bool, bool, float]:
        """Less is better."""
        return not self.enough, self.elsewhere > BUSY, self._spread

    @property
    def _spread(self) -> float:
        """Third quartile over first, of the ratio to the first kind of work that varied most."""
        first, *others = self.samples.values()
        spreads = [1.0]
        for samples in others:
            low, high = np.quantile(np.divide(samples, first), (0.25, 0.75))
            spreads.append(float(high / low))
        return max(spreads)


class SpeedProbe(Protocol):
    """A loop of one product instruction: it shows whether the machine is as fast as it can be."""

    macs: int
    """Multiply-accumulates of :meth:`stretch`, at the product's largest shape."""

    def wait(self) -> bool:
        """Wait until the loop is about as fast as it was at best; False where it does not get
        there."""
        ...

    def stretch(self) -> None:
        """Products for about a millisecond, to be timed."""
        ...

    def is_unthrottled(self) -> bool:
        """Whether the loop takes about as long as it did at best."""
        ...


def time_interleaved(
    sides: Mapping[str, Work],
    *,
    rounds: int = 11,
    round_ms: float = 10.0,
    attempts: int = ATTEMPTS,
    unthrottled: Callable[[], bool] | None = None,
) -> Interleaved:
    """Time each kind of work ``rounds`` times for about ``round_ms``, interleaved.

    Every other round goes through them backwards. Between kinds of work of different pools the
    process pauses until no thread spins, and each turn begins with calls that are not timed.
    ``unthrottled`` says before every turn, on our own threads, whether the machine is as fast as it
    is at best, having waited for it or not (:class:`SpeedProbe`): rounds in which it is not are
    repeated, up to :data:`PATIENCE` times as many.
    """
    calls: dict[str, int] = {}
    for name, side in sides.items():
        if _has_several_pools(sides):
            wait_for_idle_threads()
        calls[name] = calls_in(side.sample, round_ms)
    best = _attempt(sides, calls, rounds, unthrottled)
    for _ in range(attempts - 1):
        if not best.is_noisy:
            break
        again = _attempt(sides, calls, rounds, unthrottled)
        best = min(best, again, key=lambda found: found.disturbance)
    return best


def _has_several_pools(sides: Mapping[str, Work]) -> bool:
    return len({side.pool for side in sides.values()}) > 1


def _attempt(
    sides: Mapping[str, Work],
    calls: Mapping[str, int],
    rounds: int,
    unthrottled: Callable[[], bool] | None,
) -> Interleaved:
    kept: list[dict[str, float]] = []
    slow: list[dict[str, float]] = []
    elsewhere, rested = Elsewhere(), True
    # Threads of the only pool take nothing from another.
    pool = None if _has_several_pools(sides) else next(iter(sides.values())).pool
    for turn in range(rounds * PATIENCE):
        if len(kept) == rounds:
            break
        took: dict[str, float] = {}
        right = True
        order = list(sides.items())
        for name, side in order if turn % 2 == 0 else reversed(order):
            if side.pool != pool:
                rested &= wait_for_idle_threads()
                pool = side.pool
            if unthrottled is not None:
                if pool != OUR_POOL:
                    rested &= wait_for_idle_threads()
                right &= unthrottled()
                if pool != OUR_POOL:
                    rested &= wait_for_idle_threads()
            # A tenth of a turn wakes the pool's threads and fills the caches again.
            side.sample(1 + calls[name] // 10)
            with elsewhere:
                took[name] = side.sample(calls[name])
        (kept if right else slow).append(took)
    enough = len(kept) >= max(1, int(rounds * ENOUGH))
    rows = kept if enough else kept + slow
    samples = {name: [took[name] for took in rows] for name in sides}
    return Interleaved(samples, elsewhere.cores, rested, len(slow), enough)
