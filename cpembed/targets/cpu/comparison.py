"""Kernels timed interleaved, and what their rounds say.

What counts is the ratio of the fast rounds (:data:`FAST`) of two kernels: a machine that is slower
for a while is so for both, and what disturbs a kernel only ever slows it down.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cpembed.runtime.measurement.interleaved import Interleaved, Work, time_interleaved
from cpembed.runtime.measurement.runner import Quantiles, Sampler, quantiles
from cpembed.targets.cpu.choice import Objective

ROUND_MS = 0.5
"""Of a kernel's turn. Schedulers give others whole milliseconds: the shorter a turn, the more of
them pass undisturbed."""

FIRST_ROUNDS = 6
"""Before a kernel may be rejected, and of kernels that are slow."""

FAST = 0.1
"""Quantile of the rounds that is compared."""

_LIMIT_S = 2.0
"""Slower kernels get fewer rounds, but no fewer than the first."""

_LOOK_US = 400.0
"""What it takes to look at the machine's speed, before each turn."""

_POOL = "tvm"


@dataclass(frozen=True)
class Moves:
    """Microseconds of packing what is not packed ahead, and of unpacking: medians."""

    packing_us: float
    unpacking_us: float

    @property
    def us(self) -> float:
        return self.packing_us + self.unpacking_us


@dataclass(frozen=True)
class Timed:
    """A kernel's times; ``ratio`` is what is minimised over the incumbent's, 1 where it is alone.
    ``whole_us``: one call with packing and unpacking, where that was timed.
    """

    latency_us: Quantiles
    moves: Moves
    ratio: float
    noisy: bool
    rejected: bool = False
    whole_us: Quantiles | None = None

    def us(self, objective: Objective) -> float:
        """What is minimised, the median of these rounds."""
        if objective == "kernel":
            return self.latency_us.median
        if self.whole_us is not None:
            return self.whole_us.median
        return self.latency_us.median + self.moves.us


@dataclass(frozen=True)
class Failed:
    """Why a schedule has no kernel."""

    reason: str


@dataclass(frozen=True)
class Runner:
    """A kernel, and the moves of its embedding where there are any; ``key`` names the schedule,
    ``identifier`` the embedding. ``whole`` is the call that moves as well, each thread what it
    needs where it can; None where that is the kernel."""

    key: str
    identifier: str
    kernel: Sampler
    whole: Sampler | None
    packing: Sampler | None
    unpacking: Sampler | None


@dataclass(frozen=True)
class InterleavedComparison:
    """Runners, interleaved; packing of ``known`` embeddings is not timed. ``unthrottled`` says
    whether the machine is as fast as it is at best: rounds in which it is not are repeated."""

    runners: Sequence[Runner]
    known: Mapping[str, Moves]
    objective: Objective
    unthrottled: Callable[[], bool] | None = None

    def run(self, rounds: int) -> Rounds:
        sides = {f"kernel {n}": Work(r.kernel, _POOL) for n, r in enumerate(self.runners)}
        if self.objective == "total":
            sides |= {
                f"whole {n}": Work(runner.whole, _POOL)
                for n, runner in enumerate(self.runners)
                if runner.whole is not None
            }
        for runner in self.runners:
            name = runner.identifier
            moves = {"packing": runner.packing, "unpacking": runner.unpacking}
            sides |= {
                f"{part} {name}": Work(sample, _POOL)
                for part, sample in moves.items()
                if sample is not None and name not in self.known
            }
        interleaved = time_interleaved(
            sides, rounds=rounds, round_ms=ROUND_MS, attempts=1, unthrottled=self.unthrottled
        )
        return Rounds(self, interleaved)


@dataclass(frozen=True)
class Rounds:
    """What the runners of a comparison took, by their numbers."""

    comparison: InterleavedComparison
    interleaved: Interleaved

    def affordable(self, rounds: int) -> int:
        """So many rounds, or fewer where they are slow."""
        # Each turn begins with at least one call that is not timed.
        look = 0.0 if self.comparison.unthrottled is None else _LOOK_US
        each = [
            2 * max(np.median(taken), ROUND_MS * 1e3) + look
            for taken in self.interleaved.samples.values()
        ]
        return max(FIRST_ROUNDS, min(rounds, int(_LIMIT_S * 1e6 / float(sum(each)))))

    def fastest(self, number: int) -> float:
        return float(self._minimised(number).min())

    def typical(self, number: int) -> float:
        return float(np.median(self._minimised(number)))

    def fast_us(self, number: int) -> float:
        """Microseconds of a kernel alone in its fast rounds."""
        return float(np.quantile(self.interleaved.samples[f"kernel {number}"], FAST))

    def timed(self, number: int, *, noisy: bool = False, rejected: bool = False) -> Timed:
        """A kernel's times and its ratio to the first."""
        ours, theirs = (float(np.quantile(self._minimised(runner), FAST)) for runner in (number, 0))
        latency = quantiles(self.interleaved.samples[f"kernel {number}"])
        noisy = noisy or self.interleaved.is_noisy or latency.is_noisy
        whole = self.interleaved.samples.get(f"whole {number}")
        return Timed(
            latency,
            self._moves(number),
            ours / theirs,
            noisy,
            rejected,
            None if whole is None else quantiles(whole),
        )

    def _minimised(self, number: int) -> NDArray[np.float64]:
        """Round by round."""
        kernel = self.interleaved.samples[f"kernel {number}"]
        return np.array(self.interleaved.samples.get(f"whole {number}", kernel))

    def _moves(self, number: int) -> Moves:
        name = self.comparison.runners[number].identifier
        if name in self.comparison.known:
            return self.comparison.known[name]
        packing, unpacking = (
            float(np.median(self.interleaved.samples.get(f"{part} {name}", [0.0])))
            for part in ("packing", "unpacking")
        )
        return Moves(packing, unpacking)
