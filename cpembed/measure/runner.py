"""Numerical verification and timing of compiled kernels."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.backends.epilogue import Epilogue
from cpembed.backends.kernel import CompiledKernel
from cpembed.backends.packing import packed_before
from cpembed.errors import WorkloadError
from cpembed.ir.computation import AxisKind, Computation
from cpembed.ir.dtypes import is_integer
from cpembed.ir.reference import random_inputs, reference

_UNIT_ROUNDOFF = {
    "bfloat16": 2.0**-8,
    "float16": 2.0**-11,
    "float32": 2.0**-24,
    "float64": 2.0**-53,
}
_SMALLEST_NORMAL = 2.0**-126
"""What flushing a denormal can cost an addition (AMX flushes)."""


@dataclass(frozen=True)
class Verification:
    """A kernel's output beside the reference.

    ``tolerance`` is 0 for integers, compared bit for bit. For floats it is relative to the sum of
    the products' magnitudes, ``sum |a| * |b|``: the worst that rounding each addition can do, so
    cancellation does not fail a right kernel and a wrong one does not pass. ``max_error`` is the
    largest absolute difference.
    """

    max_error: float
    verified: bool
    tolerance: float


NOISE = 1.5
"""Rounds of equal work whose p90 is above this multiple of their p10 were disturbed: what varies is
the machine, and the median may be anywhere between."""

ATTEMPTS = 5
"""Disturbed rounds are repeated; the steadiest of so many attempts counts."""


Sampler = Callable[[int], float]
"""Microseconds a call, over so many calls."""


@dataclass(frozen=True)
class Quantiles:
    """Over the rounds of a measurement."""

    median: float
    p10: float
    p90: float

    @property
    def spread(self) -> float:
        return self.p90 / self.p10

    @property
    def is_noisy(self) -> bool:
        return self.spread > NOISE


@dataclass(frozen=True)
class Measurement:
    """Times of one kernel in microseconds of wall clock.

    ``latency_us`` is the contraction alone, on packed operands. ``packing_us`` covers the inputs
    not in ``packed_ahead`` (weights are packed once, before); it and ``unpacking_us`` are medians,
    0 where the layouts are the same memory. ``whole_us`` is one call that does all of it, each
    thread packing its own share inside the kernel where that is possible. ``gops`` counts two
    operations a multiply-accumulate of the workload, padding not counted, over the median latency.
    ``noisy``: one of the times still varied by more than :data:`NOISE` at the last of
    :data:`ATTEMPTS`.
    """

    latency_us: Quantiles
    packing_us: float
    unpacking_us: float
    whole_us: Quantiles
    gops: float
    packed_ahead: tuple[str, ...]
    noisy: bool


def verify(kernel: CompiledKernel, workload: Computation, seed: int = 0) -> Verification:
    """Run the kernel on random inputs and compare with the reference."""
    inputs = random_inputs(workload, seed)
    return compare(workload, inputs, kernel.run(inputs))


def compare(
    workload: Computation, inputs: Mapping[str, NDArray[Any]], found: NDArray[Any]
) -> Verification:
    """Judge an output that was computed from ``inputs``."""
    return Expected(workload, inputs).judge(found)


class Expected:
    """What a workload's output is on given inputs, for judging several outputs."""

    def __init__(self, workload: Computation, inputs: Mapping[str, NDArray[Any]]) -> None:
        self._workload = workload
        self._inputs = inputs
        self._result = reference(workload, inputs)

    def judge(self, found: NDArray[Any]) -> Verification:
        """Judge an output of the workload's type."""
        self._check_shape(found)
        if is_integer(self._workload.output.dtype):
            return compare_integers(self._result, found)
        return self._judge_floats(found, 0.0)

    def judge_converted(self, found: NDArray[Any]) -> Verification:
        """Judge an output that was converted to a type of its own when it was stored.

        Integers saturate in a narrower integer type and are rounded to a float; bit for bit after
        that. Floats may also be off by one rounding to their type.
        """
        self._check_shape(found)
        if is_integer(self._workload.output.dtype):
            expected = self._result
            if np.issubdtype(found.dtype, np.integer):
                limits = np.iinfo(found.dtype)
                expected = expected.clip(limits.min, limits.max)
            return compare_integers(expected.astype(found.dtype), found)
        return self._judge_floats(found, _UNIT_ROUNDOFF[str(found.dtype)])

    def judge_stored(self, found: NDArray[Any], epilogue: Epilogue) -> Verification:
        """Judge what an epilogue without vectors stored: of integers bit for bit, of floats within
        the rounding of the sums and one to the stored type."""
        self._check_shape(found)
        if is_integer(self._workload.output.dtype):
            channel = np.zeros((), np.int64)
            return compare_integers(epilogue.apply(self._result, {}, channel), found)
        floor = 0.0 if epilogue.relu else -np.inf
        return self._judge_floats(found, _UNIT_ROUNDOFF[str(found.dtype)], floor)

    def _check_shape(self, found: NDArray[Any]) -> None:
        shape = self._result.shape
        if found.shape != shape:
            raise WorkloadError(f"the output is {found.shape}, the workload has {shape}")

    def _judge_floats(
        self, found: NDArray[Any], conversion: float, floor: float = -np.inf
    ) -> Verification:
        expected = np.maximum(self._result.astype(np.float64), floor)
        difference = np.abs(found.astype(np.float64) - expected)
        additions = _additions(self._workload)
        tolerance = additions * _UNIT_ROUNDOFF[self._workload.output.dtype]
        allowed = tolerance * self._magnitudes + additions * _SMALLEST_NORMAL
        allowed += conversion * (np.abs(expected) + allowed)
        # A NaN is not below anything: it fails.
        return Verification(float(difference.max()), bool((difference <= allowed).all()), tolerance)

    @cached_property
    def _magnitudes(self) -> NDArray[np.float64]:
        return _magnitudes(self._workload, self._inputs)


def compare_integers(expected: NDArray[Any], found: NDArray[Any]) -> Verification:
    """Judge integers of the same shape and type, bit for bit."""
    # In float64 a difference of 64-bit integers cannot wrap; equality is judged on the bits.
    difference = np.abs(found.astype(np.float64) - expected.astype(np.float64))
    equal = found.dtype == expected.dtype and np.array_equal(found, expected)
    return Verification(float(difference.max()), equal, 0.0)


def measure(
    kernel: CompiledKernel,
    inputs: Mapping[str, NDArray[Any]],
    *,
    packed_ahead: Collection[str] | None = None,
    rounds: int = 15,
    round_ms: float = 10.0,
) -> Measurement:
    """Time the contraction, the packing of the inputs and the unpacking of the output.

    ``packed_ahead`` names the inputs that are packed once and not timed; by default the second one
    (W, B). Each of the ``rounds`` repeats the work for about ``round_ms``.
    """
    names = kernel.input_names
    workload = kernel.program.workload
    if packed_ahead is None:
        packed_ahead = packed_before(workload)
    ahead = tuple(name for name in names if name in packed_ahead)
    packed = {name: kernel.pack(name, inputs[name]) for name in names}
    output = kernel.execute(packed)
    latency = time_work(kernel.bound(packed, output), rounds, round_ms)

    packing, unpacking = (
        [time_work(call, rounds, round_ms) for call in calls]
        for calls in (kernel.bound_packing(inputs, packed, ahead), kernel.bound_unpacking(output))
    )
    whole = latency
    if packing or unpacking:
        whole = time_work(kernel.bound_whole(inputs, packed, ahead, output), rounds, round_ms)
    return Measurement(
        latency_us=latency,
        whole_us=whole,
        packing_us=sum(times.median for times in packing),
        unpacking_us=sum(times.median for times in unpacking),
        gops=2 * workload.macs / (latency.median * 1e3),
        packed_ahead=ahead,
        noisy=any(times.is_noisy for times in (latency, whole, *packing, *unpacking)),
    )


def time_work(work: Callable[[], Any], rounds: int, round_ms: float) -> Quantiles:
    """Microseconds a call, over rounds of equally many calls; the steadiest attempt."""
    sample = wall_clock(work)
    steadiest = _attempt(sample, rounds, round_ms)
    for _ in range(ATTEMPTS - 1):
        if not steadiest.is_noisy:
            break
        again = _attempt(sample, rounds, round_ms)
        steadiest = min(steadiest, again, key=lambda times: times.spread)
    return steadiest


def wall_clock(work: Callable[[], Any]) -> Sampler:
    """The mean over a block of calls, by this process's clock."""

    def sample(calls: int) -> float:
        started = time.perf_counter()
        for _ in range(calls):
            work()
        return (time.perf_counter() - started) / calls * 1e6

    return sample


def calls_in(sample: Sampler, round_ms: float) -> int:
    """How many calls fill a round, at least one; one call before the one that is looked at."""
    sample(1)
    return max(1, int(round_ms * 1e3 / max(sample(1), 0.1)))


def quantiles(samples: Sequence[float]) -> Quantiles:
    p10, median, p90 = (float(q) for q in np.quantile(samples, (0.1, 0.5, 0.9)))
    return Quantiles(median, p10, p90)


def _attempt(sample: Sampler, rounds: int, round_ms: float) -> Quantiles:
    repeats = calls_in(sample, round_ms)
    return quantiles([sample(repeats) for _ in range(rounds)])


def _additions(workload: Computation) -> int:
    """Roundings on the way to one output element."""
    found = 1
    for axis in workload.axes:
        if axis.kind is AxisKind.REDUCTION:
            found *= axis.extent
    return found + 1


def _magnitudes(workload: Computation, inputs: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
    """``sum |a| * |b|`` for each output element."""
    absolute = {name: np.abs(array.astype(np.float64)) for name, array in inputs.items()}
    wide = {operand.name: "float64" for operand in workload.operands}
    return reference(workload.with_dtypes(wide), absolute)
