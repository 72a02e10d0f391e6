"""Timing of compiled kernels."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from cpembed.codegen.compiled import CompiledKernel
from cpembed.codegen.packing import packed_before
from cpembed.provenance import Provenance
from cpembed.stores import Positive

NOISE = 1.5
"""Maximum ratio of p90 to p10 over rounds of equal work, beyond which a median says little."""

ATTEMPTS = 5
"""Maximum number of attempts: disturbed rounds are repeated, and the steadiest attempt counts."""

Sampler = Callable[[int], float]
"""Function that makes a number of calls and returns the microseconds a call."""


class Quantiles(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Microseconds, or a ratio of times, over the rounds of a measurement."""

    median: Positive
    p10: Positive
    p90: Positive

    @property
    def spread(self) -> float:
        """Ratio of p90 to p10."""
        return self.p90 / self.p10

    @property
    def is_noisy(self) -> bool:
        """True if the rounds were disturbed."""
        return self.spread > NOISE


@dataclass(frozen=True)
class Timing:
    """Times of one execution in microseconds, by ``provenance``.

    Parameters
    ----------
    provenance
        Origin of the times of the kernel; those of packing and unpacking are always measured
        here.
    macs
        Number of multiply-accumulates of the workload, without padding.
    latency_us
        The contraction alone, on packed operands; None if its numbers were emulated.
    packing_us
        Median of packing the inputs that are not in ``packed_ahead``, 0 where the layouts are
        the same memory; None if it was not timed.
    unpacking_us
        Median of unpacking the output, likewise.
    packed_ahead
        Names of the inputs that are packed once, before, as weights are.
    noisy
        True if one of the times still varied by more than :data:`NOISE` in the last of
        :data:`ATTEMPTS`.
    whole_us
        One call that does all of it, each thread packing its own share inside the kernel if
        possible; None if there is no such call.
    cycles, clock_mhz
        Cycles of a simulated machine, and its clock.
    """

    provenance: Provenance
    macs: int
    latency_us: Quantiles | None
    packing_us: float | None = None
    unpacking_us: float | None = None
    packed_ahead: tuple[str, ...] = ()
    noisy: bool = False
    whole_us: Quantiles | None = None
    cycles: int | None = None
    clock_mhz: float | None = None

    @property
    def gops(self) -> float | None:
        """Two operations a multiply-accumulate over the median latency, in 10^9 a second."""
        return None if self.latency_us is None else 2 * self.macs / (self.latency_us.median * 1e3)


def measure(
    kernel: CompiledKernel,
    inputs: Mapping[str, NDArray[Any]],
    *,
    packed_ahead: Collection[str] | None = None,
    rounds: int = 15,
    round_ms: float = 10.0,
) -> Timing:
    """Time the contraction, the packing of the inputs and the unpacking of the output.

    Parameters
    ----------
    kernel
        The kernel.
    inputs
        Arrays by operand, in the workload's layouts.
    packed_ahead
        Names of the inputs that are packed once and not timed; by default the second one (W, B).
    rounds
        Number of rounds.
    round_ms
        Milliseconds of each kind of work in a round, roughly.
    """
    names = kernel.input_names
    workload = kernel.program.workload
    if packed_ahead is None:
        packed_ahead = packed_before(workload)
    ahead = tuple(name for name in names if name in packed_ahead)
    # Packed once: the contraction is timed on operands that are already in place.
    packed = {name: kernel.pack(name, inputs[name]) for name in names}
    # Unpacking is timed on the output of a real call.
    output = kernel.execute(packed)
    latency = time_work(kernel.bound(packed, output), rounds, round_ms)

    originals = kernel.originals(inputs, ahead)
    packing, unpacking = (
        [time_work(call, rounds, round_ms) for call in calls]
        for calls in (kernel.bound_packing(originals, packed), kernel.bound_unpacking(output))
    )
    # Without a copy the complete call is the contraction: it is not timed twice.
    complete = latency
    if packing or unpacking:
        complete = time_work(kernel.bound_whole(inputs, packed, ahead, output), rounds, round_ms)
    return Timing(
        Provenance.MEASURED,
        workload.macs,
        latency,
        whole_us=complete,
        packing_us=sum(times.median for times in packing),
        unpacking_us=sum(times.median for times in unpacking),
        packed_ahead=ahead,
        noisy=any(times.is_noisy for times in (latency, complete, *packing, *unpacking)),
    )


def time_work(work: Callable[[], Any], rounds: int, round_ms: float) -> Quantiles:
    """Return the microseconds a call in the steadiest attempt.

    Parameters
    ----------
    work
        The function to call.
    rounds
        Number of rounds, each of equally many calls.
    round_ms
        Milliseconds of a round, roughly.
    """
    sample = wall_clock(work)
    steadiest = _attempt(sample, rounds, round_ms)
    for _ in range(ATTEMPTS - 1):
        if not steadiest.is_noisy:
            break
        attempt = _attempt(sample, rounds, round_ms)
        steadiest = min(steadiest, attempt, key=lambda times: times.spread)
    return steadiest


def wall_clock(work: Callable[[], Any]) -> Sampler:
    """Return a sampler of the mean time of a block of calls, by this process's clock."""

    def sample(calls: int) -> float:
        started = time.perf_counter()
        for _ in range(calls):
            work()
        return (time.perf_counter() - started) / calls * 1e6

    return sample


def calls_in(sample: Sampler, round_ms: float) -> int:
    """Return the number of calls that fill a round, at least one."""
    # The first call may load code and fill caches: the second one counts.
    sample(1)
    # A tenth of a microsecond is less than a call from Python takes: no division by zero.
    return max(1, int(round_ms * 1e3 / max(sample(1), 0.1)))


def quantiles(samples: Sequence[float]) -> Quantiles:
    """Return the quantiles of samples."""
    p10, median, p90 = (float(q) for q in np.quantile(samples, (0.1, 0.5, 0.9)))
    return Quantiles(median, p10, p90)


def _attempt(sample: Sampler, rounds: int, round_ms: float) -> Quantiles:
    # Anew for each attempt: a machine that was busy then would get too few calls.
    repeats = calls_in(sample, round_ms)
    return quantiles([sample(repeats) for _ in range(rounds)])
