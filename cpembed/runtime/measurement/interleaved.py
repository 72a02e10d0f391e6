"""Interleaved timing of several kinds of work, so that a disturbance hits all of them alike."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from cpembed.runtime.measurement.runner import Quantiles, Sampler, calls_in, quantiles

ATTEMPTS = 3
"""Maximum number of attempts: disturbed rounds are repeated, and the steadiest attempt counts."""

# Quartiles: a few rounds in which the machine changed its speed do not matter.
UNSURE = 1.25
"""Maximum ratio of the third to the first quartile of the rounds' ratios of a usable median."""

# Two threads that wait for each other, spinning, one of them without a core, take a slice of the
# scheduler (milliseconds) in each call, and do so steadily: such times are wrong without being
# noisy.
BUSY = 0.2
"""Maximum number of cores that other processes may use meanwhile."""

PATIENCE = 2
"""Maximum number of rounds while the machine is throttled, as a multiple of those needed."""

ENOUGH = 0.4
"""Minimum fraction of unthrottled rounds: with so many the throttled ones are left out."""

OUR_POOL = "tvm"
"""Name of the thread pool of this package's kernels."""

# ------------------------------------------------------------------------------ the machine's load

_TASKS, _STAT = Path("/proc/self/task"), Path("/proc/stat")

# Seconds between two looks at the threads, and until giving up.
_POLL_SECONDS, _GIVE_UP_SECONDS = 2e-3, 1.0

# Seconds to pause on systems where threads cannot be seen; longer than the known pools spin.
_FIXED_PAUSE = 0.2


def wait_for_idle_threads() -> bool:
    """Pause until every other thread of the process sleeps; return False if one never does.

    Thread pools spin after their last task, and a spinning thread takes a core that another pool
    needs.
    """
    if not _TASKS.is_dir():
        time.sleep(_FIXED_PAUSE)
        return True
    deadline = time.perf_counter() + _GIVE_UP_SECONDS
    while _has_running_threads():
        if time.perf_counter() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def _has_running_threads() -> bool:
    """True if a thread of this process other than the calling one is running or runnable."""
    current = str(threading.get_native_id())
    for task in os.listdir(_TASKS):
        if task == current:
            continue
        try:
            # "id (name) state ...": the name may hold anything, a parenthesis too.
            state = (_TASKS / task / "stat").read_text().rpartition(") ")[2][:1]
        except OSError:  # the thread has ended
            continue
        if state == "R":
            return True
    return False


class Elsewhere:
    """Context that adds up the processor time of other processes and guests of the host."""

    def __init__(self) -> None:
        self._passed = self._used = 0.0
        self._started = self._before = 0.0

    def __enter__(self) -> None:
        self._started, self._before = time.perf_counter(), _elsewhere()

    def __exit__(self, *error: object) -> None:
        # A single visit may be shorter than the system's clock resolves: only sums mean something.
        self._passed += time.perf_counter() - self._started
        self._used += _elsewhere() - self._before

    @property
    def cores(self) -> float:
        """Mean number of cores in use; 0 where the system does not say."""
        return max(0.0, self._used) / self._passed if self._passed else 0.0


def _elsewhere() -> float:
    """Return the seconds so far of all processors, without those of this process."""
    try:
        fields = _STAT.read_text().split("\n", 1)[0].split()[1:]
    except OSError:
        return 0.0
    user, nice, system, _idle, _waiting, interrupts, soft_interrupts, stolen = map(int, fields[:8])
    # Stolen ticks are those of other guests: the host's processor was not ours then.
    ticks = user + nice + system + interrupts + soft_interrupts + stolen
    return ticks / os.sysconf("SC_CLK_TCK") - time.process_time()


# ------------------------------------------------------------------------------ interleaved rounds


@dataclass(frozen=True)
class Work:
    """One kind of work; ``pool`` names the threads it runs on."""

    sample: Sampler
    pool: str


@dataclass(frozen=True)
class Interleaved:
    """Times of each kind of work, round by round, in microseconds a call.

    ``elsewhere`` is the mean number of cores that other processes used meanwhile. ``rested`` is
    True if each thread pool slept before another one's turn. ``slow`` is the number of throttled
    rounds. ``enough`` is True if the others suffice: throttled rounds are then left out.
    """

    samples: Mapping[str, Sequence[float]]
    elsewhere: float
    rested: bool
    slow: int = 0
    enough: bool = True

    def times(self, name: str) -> Quantiles:
        """Return the quantiles of the times of a kind of work."""
        return quantiles(self.samples[name])

    def ratio(self, name: str, base: str, added: float = 0.0) -> Quantiles:
        """Return the quantiles of the ratio of two kinds of work in the same round.

        Parameters
        ----------
        name
            The numerator.
        base
            The denominator.
        added
            Microseconds that are added to the numerator.
        """
        # Round by round: a machine that is slower for a while slows both down.
        pairs = zip(self.samples[name], self.samples[base], strict=True)
        return quantiles([(numerator + added) / denominator for numerator, denominator in pairs])

    @property
    def is_noisy(self) -> bool:
        """True if the machine was busy with other work, or a ratio varied too much."""
        disturbed = self.elsewhere > BUSY or not self.rested or not self.enough
        return disturbed or self._spread > UNSURE

    @property
    def disturbance(self) -> tuple[bool, bool, float]:
        """Sort key of attempts: the least disturbed is the best."""
        # Too few full-speed rounds are worse than neighbours, and both are worse than spread.
        return not self.enough, self.elsewhere > BUSY, self._spread

    @property
    def _spread(self) -> float:
        """Maximum ratio of the third to the first quartile of the ratios to the first kind."""
        first, *rest = self.samples.values()
        spreads = [1.0]
        for samples in rest:
            low, high = np.quantile(np.divide(samples, first), (0.25, 0.75))
            spreads.append(float(high / low))
        return max(spreads)


class SpeedProbe(Protocol):
    """A loop of one product instruction that shows whether the machine runs at full speed."""

    macs: int
    """Number of multiply-accumulates of :meth:`stretch`, at the product's largest shape."""

    def wait(self) -> bool:
        """Wait until the loop is about as fast as at best; return False if it never is."""
        ...

    def stretch(self) -> None:
        """Execute products for about a millisecond, to be timed."""
        ...

    def is_unthrottled(self) -> bool:
        """Return True if the loop is about as fast as at best."""
        ...


def time_interleaved(
    sides: Mapping[str, Work],
    *,
    rounds: int = 11,
    round_ms: float = 10.0,
    attempts: int = ATTEMPTS,
    unthrottled: Callable[[], bool] | None = None,
) -> Interleaved:
    """Time several kinds of work, interleaved; return the steadiest attempt.

    Every other round goes through them backwards. Between kinds of work of different pools the
    process pauses until no thread spins, and each turn begins with calls that are not timed.

    Parameters
    ----------
    sides
        The kinds of work by name.
    rounds
        Number of rounds.
    round_ms
        Milliseconds of each kind of work in a round, roughly.
    attempts
        Maximum number of attempts while the machine is disturbed.
    unthrottled
        Function called before every turn, which returns True if the machine is at full speed
        (:meth:`SpeedProbe.wait`). Rounds in which it is not are repeated, up to :data:`PATIENCE`
        times as many.
    """
    calls: dict[str, int] = {}
    for name, side in sides.items():
        if _has_several_pools(sides):
            wait_for_idle_threads()
        # Once for all attempts, so that their rounds are equal work.
        calls[name] = calls_in(side.sample, round_ms)
    best = _attempt(sides, calls, rounds, unthrottled)
    for _ in range(attempts - 1):
        if not best.is_noisy:
            break
        attempt = _attempt(sides, calls, rounds, unthrottled)
        best = min(best, attempt, key=lambda result: result.disturbance)
    return best


def _has_several_pools(sides: Mapping[str, Work]) -> bool:
    return len({side.pool for side in sides.values()}) > 1


def _attempt(
    sides: Mapping[str, Work],
    calls: Mapping[str, int],
    rounds: int,
    unthrottled: Callable[[], bool] | None,
) -> Interleaved:
    fast: list[dict[str, float]] = []
    slow: list[dict[str, float]] = []
    elsewhere, rested = Elsewhere(), True
    # A single pool disturbs nobody: no pause is needed even before the first turn.
    pool = None if _has_several_pools(sides) else next(iter(sides.values())).pool
    for turn in range(rounds * PATIENCE):
        if len(fast) == rounds:
            break
        times: dict[str, float] = {}
        at_full_speed = True
        # Backwards every other round: a drift within a round then favours no side.
        order = list(sides.items())
        for name, side in order if turn % 2 == 0 else reversed(order):
            if side.pool != pool:
                rested &= wait_for_idle_threads()
                pool = side.pool
            if unthrottled is not None:
                # The probe runs on our threads: it pauses before and after another pool's turn.
                if pool != OUR_POOL:
                    rested &= wait_for_idle_threads()
                at_full_speed &= unthrottled()
                if pool != OUR_POOL:
                    rested &= wait_for_idle_threads()
            # A tenth of a turn wakes the pool's threads and fills the caches again.
            side.sample(1 + calls[name] // 10)
            with elsewhere:
                times[name] = side.sample(calls[name])
        (fast if at_full_speed else slow).append(times)
    enough = len(fast) >= max(1, int(rounds * ENOUGH))
    # Too few fast rounds to stand alone: the slow ones count too, and `is_noisy` says so.
    rows = fast if enough else fast + slow
    samples = {name: [times[name] for times in rows] for name in sides}
    return Interleaved(samples, elsewhere.cores, rested, len(slow), enough)
