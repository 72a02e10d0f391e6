"""Measurement of kernels on a machine that others use too.

Every kernel is verified, then timed interleaved with the best one so far. What counts is the ratio
of the fast rounds (:data:`FAST_QUANTILE`) of two kernels. Rounds in which the best kernel is slower
than it was are repeated a little later.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cpembed.codegen.compiled import CompiledKernel, in_turn
from cpembed.codegen.packing import packed_before
from cpembed.codegen.plan import Knobs
from cpembed.cost.ranking import Candidate
from cpembed.errors import LoweringError
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation
from cpembed.ir.dtypes import size_bytes
from cpembed.ir.reference import random_inputs
from cpembed.runtime.measurement.interleaved import Interleaved, Work, time_interleaved
from cpembed.runtime.measurement.runner import Quantiles, Sampler, quantiles, wall_clock
from cpembed.runtime.measurement.verification import Expected
from cpembed.targets.capabilities import throttle_probe
from cpembed.targets.cpu.lowering import native_kernel
from cpembed.targets.cpu.space import Objective
from cpembed.targets.registry import open_target

ROUND_MS = 0.5
"""Milliseconds of a turn: the shorter, the fewer are disturbed by other processes."""

FIRST_ROUNDS = 6
"""Number of rounds before a kernel may be rejected, and minimum number for slow kernels."""

FAST_QUANTILE = 0.1
"""Quantile of the rounds that is compared."""

_TIME_LIMIT = 2.0
"""Maximum seconds of a comparison; slower kernels get fewer rounds."""

_PROBE_US = 400.0
"""Microseconds of probing the machine's speed before each turn."""

_POOL = "tvm"


@dataclass(frozen=True)
class CopyTimes:
    """Median microseconds of packing operands that are not packed ahead, and of unpacking."""

    packing_us: float
    unpacking_us: float

    @property
    def us(self) -> float:
        return self.packing_us + self.unpacking_us


@dataclass(frozen=True)
class Timed:
    """Times of a kernel.

    ``latency_us`` are those of the contraction, ``copies`` of packing and unpacking, ``whole_us``
    of one call of all three, if that was timed. ``ratio`` is the minimised time over the
    incumbent's, 1 without one. ``noisy``: the machine had other work, or the times varied;
    ``rejected``: the first rounds were clearly slower.
    """

    latency_us: Quantiles
    copies: CopyTimes
    ratio: float
    noisy: bool
    rejected: bool = False
    whole_us: Quantiles | None = None

    def us(self, objective: Objective) -> float:
        """Return the median of the minimised times."""
        if objective == "kernel":
            return self.latency_us.median
        if self.whole_us is not None:
            return self.whole_us.median
        return self.latency_us.median + self.copies.us


@dataclass(frozen=True)
class Failed:
    """Reason why a schedule has no kernel."""

    reason: str


@dataclass(frozen=True)
class Runner:
    """Kernel to be timed: that of a schedule (``key``) of an embedding (``identifier``).

    ``kernel`` is the contraction on packed operands; ``call`` packs and unpacks too, each thread
    what it needs where that is possible, None if that is the kernel; ``packing`` and ``unpacking``
    are None if nothing is copied.
    """

    key: str
    identifier: str
    kernel: Sampler
    call: Sampler | None
    packing: Sampler | None
    unpacking: Sampler | None


@dataclass(frozen=True)
class InterleavedComparison:
    """Comparison of runners that take turns.

    ``copy_times`` holds the embeddings whose packing is not timed again, by identifier; the
    objective ``total`` times whole calls too. Rounds in which ``unthrottled`` is False are
    repeated.
    """

    runners: Sequence[Runner]
    copy_times: Mapping[str, CopyTimes]
    objective: Objective
    unthrottled: Callable[[], bool] | None = None

    def run(self, rounds: int) -> Rounds:
        sides = {f"kernel {n}": Work(r.kernel, _POOL) for n, r in enumerate(self.runners)}
        for n, runner in enumerate(self.runners):
            if self.objective == "total" and runner.call is not None:
                sides[f"whole {n}"] = Work(runner.call, _POOL)
        for runner in self.runners:
            name = runner.identifier
            for part, sample in (("packing", runner.packing), ("unpacking", runner.unpacking)):
                if sample is not None and name not in self.copy_times:
                    sides[f"{part} {name}"] = Work(sample, _POOL)
        interleaved = time_interleaved(
            sides, rounds=rounds, round_ms=ROUND_MS, attempts=1, unthrottled=self.unthrottled
        )
        return Rounds(self, interleaved)


@dataclass(frozen=True)
class Rounds:
    """Times of the runners of a comparison, by number."""

    comparison: InterleavedComparison
    interleaved: Interleaved

    def affordable(self, rounds: int) -> int:
        """Return the number of rounds, reduced for slow kernels."""
        # Each turn begins with at least one call that is not timed, hence the factor of two.
        probe_us = 0.0 if self.comparison.unthrottled is None else _PROBE_US
        round_us = [
            2 * max(np.median(samples_us), ROUND_MS * 1e3) + probe_us
            for samples_us in self.interleaved.samples.values()
        ]
        return max(FIRST_ROUNDS, min(rounds, int(_TIME_LIMIT * 1e6 / float(sum(round_us)))))

    def fastest(self, number: int) -> float:
        return float(self._minimised(number).min())

    def typical(self, number: int) -> float:
        return float(np.median(self._minimised(number)))

    def fast_us(self, number: int) -> float:
        """Return the :data:`FAST_QUANTILE` of a kernel's times over the rounds, in microseconds.

        The times are those of the contraction, without packing and unpacking.
        """
        return float(np.quantile(self.interleaved.samples[f"kernel {number}"], FAST_QUANTILE))

    def timed(self, number: int, *, noisy: bool = False, rejected: bool = False) -> Timed:
        """Return a kernel's times and its ratio to the first."""
        # A machine that is slower for a while is so for both kernels, and disturbances only ever
        # slow a kernel down, so the fast rounds are compared.
        fast, first_fast = (
            float(np.quantile(self._minimised(runner), FAST_QUANTILE)) for runner in (number, 0)
        )
        latency = quantiles(self.interleaved.samples[f"kernel {number}"])
        whole_samples = self.interleaved.samples.get(f"whole {number}")
        return Timed(
            latency_us=latency,
            copies=self._copies(number),
            ratio=fast / first_fast,
            noisy=noisy or self.interleaved.is_noisy or latency.is_noisy,
            rejected=rejected,
            whole_us=None if whole_samples is None else quantiles(whole_samples),
        )

    def _minimised(self, number: int) -> NDArray[np.float64]:
        kernel = self.interleaved.samples[f"kernel {number}"]
        return np.array(self.interleaved.samples.get(f"whole {number}", kernel))

    def _copies(self, number: int) -> CopyTimes:
        name = self.comparison.runners[number].identifier
        # Copies are the same for all schedules of an embedding, so that they are timed once.
        if name in self.comparison.copy_times:
            return self.comparison.copy_times[name]
        packing, unpacking = (
            float(np.median(self.interleaved.samples.get(f"{part} {name}", [0.0])))
            for part in ("packing", "unpacking")
        )
        return CopyTimes(packing, unpacking)


ROUNDS, FINAL_ROUNDS = 40, 80
"""Numbers of rounds of a kernel that is not rejected, and of each finalist of a search."""

REJECTION_RATIO = 1.15
"""Ratio above which a kernel is rejected: its fastest round over the incumbent's median."""

DISTURBANCE_RATIO = 1.25
"""Ratio of a kernel's time to its best rounds above which rounds are not trusted."""

PAUSES = (0.2, 1.0)
"""Seconds before each repetition of untrusted rounds."""

_PACKED_BYTES = 2**28
"""Maximum bytes of packed data that are retained, most recent embeddings first."""


class Timeable(Protocol):
    """Schedule of an embedding; ``key`` distinguishes schedules."""

    @property
    def key(self) -> str: ...
    @property
    def candidate(self) -> Candidate: ...
    @property
    def schedule(self) -> Knobs: ...


class KernelMeasurer:
    """Measures kernels of one workload on random data, verified against one reference.

    ``copy_times`` holds the packing and unpacking of measured embeddings by identifier: they are
    the same for all schedules.
    """

    def __init__(
        self, workload: Computation, spec: HardwareSpec, objective: Objective, seed: int = 0
    ) -> None:
        self.copy_times: dict[str, CopyTimes] = {}
        self._workload = workload
        self._spec = spec
        self._objective: Objective = objective
        self._seed = seed
        self._inputs = random_inputs(workload, seed)
        self._ahead = packed_before(workload)
        self._data: OrderedDict[str, _PackedData] = OrderedDict()
        self._kernels: dict[
            str, tuple[_PackedData, Callable[[], Any], Callable[[], Any] | None]
        ] = {}
        """Data, the contraction, and the whole call where it is another one and counts."""
        self._fastest_us: dict[str, float] = {}
        """Microseconds of kernels in their best rounds."""

    def measure(self, proposal: Timeable, incumbent: Timeable | None) -> Timed | Failed:
        """Time a schedule interleaved with the incumbent, which was measured before.

        Raises :class:`InvariantError` if the kernel's results are wrong.
        """
        incumbents = [] if incumbent is None else [incumbent]
        self._forget({item.key for item in incumbents})
        try:
            comparison = self._comparison((*incumbents, proposal))
        except LoweringError as error:
            return Failed(str(error))
        first = comparison.run(FIRST_ROUNDS)
        # Its fastest round against the incumbent's median: a kernel that disturbances make slower
        # is not rejected by them.
        slower = incumbent is not None and first.fastest(1) > REJECTION_RATIO * first.typical(0)
        if slower and self._disturbance(first, 1) <= DISTURBANCE_RATIO:
            return first.timed(1, rejected=True)
        trusted, noisy = self._trusted(comparison, first.affordable(ROUNDS), len(incumbents))
        timed = trusted.timed(len(incumbents), noisy=noisy)
        self.copy_times.setdefault(proposal.candidate.identifier, timed.copies)
        return timed

    def final(self, proposals: Sequence[Timeable]) -> list[Timed]:
        """Time measured schedules interleaved with each other; ratios are over the first."""
        self._forget({item.key for item in proposals})
        comparison = self._comparison(proposals)
        rounds = comparison.run(FIRST_ROUNDS).affordable(FINAL_ROUNDS)
        trusted, noisy = self._trusted(comparison, rounds, len(proposals))
        return [trusted.timed(number, noisy=noisy) for number in range(len(proposals))]

    def _comparison(self, proposals: Sequence[Timeable]) -> InterleavedComparison:
        runners = [self._runner(item) for item in proposals]
        return InterleavedComparison(runners, self.copy_times, self._objective, self._unthrottled)

    def _trusted(
        self, comparison: InterleavedComparison, rounds: int, timed_before: int
    ) -> tuple[Rounds, bool]:
        """Return the least disturbed of a few attempts and whether it was disturbed.

        The first ``timed_before`` runners have earlier times.
        """
        best = comparison.run(rounds)
        least = self._disturbance(best, timed_before)
        # What disturbs the machine may be over after a while.
        for pause in PAUSES:
            if least <= DISTURBANCE_RATIO:
                break
            time.sleep(pause)
            repeated = comparison.run(rounds)
            if (disturbance := self._disturbance(repeated, timed_before)) < least:
                best, least = repeated, disturbance
        return best, least > DISTURBANCE_RATIO

    def _disturbance(self, rounds: Rounds, timed_before: int) -> float:
        """Return the median slowdown of the first ``timed_before`` runners; 1.0 if there are none.

        The slowdown of a runner is its time in these rounds, as :meth:`Rounds.fast_us`, over its
        best time so far. Also updates the best time of every runner.
        """
        ratios: list[float] = []
        for number, runner in enumerate(rounds.comparison.runners):
            fast_us = rounds.fast_us(number)
            best = min(fast_us, self._fastest_us.get(runner.key, fast_us))
            self._fastest_us[runner.key] = best
            if number < timed_before:
                ratios.append(fast_us / best)
        return median(ratios) if ratios else 1.0

    def _runner(self, proposal: Timeable) -> Runner:
        key = proposal.key
        if key not in self._kernels:
            data, kernel = self._built(proposal.candidate, proposal.schedule)
            copies = data.packing is not None or data.unpacking is not None
            whole_call = None
            if copies and self._objective == "total":
                arguments = self._inputs, data.packed, self._ahead, data.output
                whole_call = kernel.bound_whole(*arguments)
            self._kernels[key] = data, kernel.bound(data.packed, data.output), whole_call
        data, call, whole_call = self._kernels[key]
        return Runner(
            key=key,
            identifier=data.identifier,
            kernel=wall_clock(call),
            call=None if whole_call is None else wall_clock(whole_call),
            packing=data.packing,
            unpacking=data.unpacking,
        )

    def _built(self, candidate: Candidate, knobs: Knobs) -> tuple[_PackedData, CompiledKernel]:
        kernel = native_kernel(candidate.program, self._spec, knobs)
        identifier = candidate.identifier
        if identifier not in self._data:
            self._data[identifier] = _PackedData(identifier, kernel, self._inputs)
        self._data.move_to_end(identifier)
        data = self._data[identifier]
        self._verify(data, kernel, knobs)
        return data, kernel

    def _verify(self, data: _PackedData, kernel: CompiledKernel, knobs: Knobs) -> None:
        """Verify a kernel on an output of its own."""
        # In the output that all kernels of the embedding share, results of another one would still
        # be right.
        verification = self._expected.judge(data.mover.unpack(kernel.execute(data.packed)))
        if verification.verified and self._objective == "total" and kernel.has_inner_packing:
            verification = self._expected.judge(kernel.run_whole(self._inputs, self._ahead))
        subject = f"the {kernel.backend} kernel of embedding {data.identifier} of {self._spec.name}"
        verification.require(f"{subject} in {self._workload.name} with {knobs}", self._seed)

    def _forget(self, needed: set[str]) -> None:
        """Drop all kernels but the needed ones, and data that was not used recently."""
        self._kernels = {key: kernel for key, kernel in self._kernels.items() if key in needed}
        used_identifiers = {data.identifier for data, *_ in self._kernels.values()}
        retained_bytes = 0
        # Most recent first: the next schedules are probably of these embeddings.
        for identifier, data in reversed(list(self._data.items())):
            retained_bytes += data.bytes
            if retained_bytes > _PACKED_BYTES and identifier not in used_identifiers:
                del self._data[identifier]

    @cached_property
    def _unthrottled(self) -> Callable[[], bool] | None:
        """Function that is True if the instruction runs at full speed; None without a probe."""
        probe = throttle_probe(open_target(self._spec))
        return None if probe is None else probe.is_unthrottled

    @cached_property
    def _expected(self) -> Expected:
        return Expected(self._workload, self._inputs)


class _PackedData:
    """Packed operands of an embedding, which all its schedules share.

    ``mover`` is a kernel of the embedding, which packs and unpacks for the others.
    """

    def __init__(
        self, identifier: str, mover: CompiledKernel, inputs: Mapping[str, NDArray[Any]]
    ) -> None:
        self.identifier = identifier
        self.mover = mover
        self.bytes = sum(o.elements * size_bytes(o.dtype) for o in mover.program.operands)
        self.packed = {name: mover.pack(name, inputs[name]) for name in mover.input_names}
        output = mover.program.workload.output.name
        self.output = mover.empty(output)
        ahead = packed_before(mover.program.workload)
        self.packing = _sampler(mover.bound_packing(mover.originals(inputs, ahead), self.packed))
        self.unpacking = _sampler(mover.bound_unpacking(self.output))


def _sampler(calls: Sequence[Callable[[], Any]]) -> Sampler | None:
    return wall_clock(in_turn(calls)) if calls else None
