"""Result of a run: its verification and its times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import msgspec

from cpembed.blocks import Displayed
from cpembed.codegen.epilogue import Epilogue
from cpembed.cost.machine.estimate import Estimate
from cpembed.cost.ranking import RankedCandidate
from cpembed.driver.candidate_time import (
    CandidateTime,
    described_estimate,
    described_time,
    scheduled_time,
)
from cpembed.driver.plan import AnyTarget, Compared, MethodError, Substitution
from cpembed.driver.result import SolveResult, workload_json
from cpembed.ir.computation import Computation
from cpembed.provenance import Provenance
from cpembed.runtime.measurement.runner import Timing
from cpembed.runtime.measurement.verification import Verification
from cpembed.targets.base import Details, Target
from cpembed.targets.capabilities import doubts
from cpembed.targets.choice import Choice
from cpembed.targets.portable import PORTABLE

FACTOR = 3.0
"""Ratio of measured and estimated time above which the deviation is reported: on a calibrated, idle
machine, few estimates are off by 2."""


@dataclass(frozen=True)
class Expectation:
    """Estimated and measured time of a run.

    Parameters
    ----------
    unit : str
        ``us`` or ``cycles``.
    estimated, measured : float
        Times in ``unit``.
    reasons : tuple of str
        Possible reasons for a difference, the most likely one first.
    """

    unit: str
    estimated: float
    measured: float
    reasons: tuple[str, ...]

    @classmethod
    def of_choice(
        cls, target: Target[Any, Any, Any], choice: Choice, timing: Timing
    ) -> Expectation | None:
        """Compare the estimate of a choice with its time; None if either is unknown."""
        return cls.of_times(target, choice.estimated, timing)

    @classmethod
    def of_times(
        cls, target: Target[Any, Any, Any], estimated: float | None, timing: Timing
    ) -> Expectation | None:
        """Compare an estimate with a time.

        Parameters
        ----------
        target : Target
            Target that ran, whose unit both times have.
        estimated : float or None
            Estimate of its model; None if it has none.
        timing : Timing
            Times of the run.

        Returns
        -------
        Expectation or None
            Both times; None if either is unknown.
        """
        # Estimates include packing, so the time of one whole call is compared where it was taken.
        if target.unit == "cycles":
            measured = timing.cycles
        else:
            times = timing.whole_us or timing.latency_us
            measured = None if times is None else times.median
        if not estimated or estimated == float("inf") or measured is None:
            return None
        return cls(target.unit, estimated, measured, doubts(target, noisy=timing.noisy))

    @property
    def ratio(self) -> float:
        """Measured time over the estimate."""
        return self.measured / self.estimated

    @property
    def is_off(self) -> bool:
        """True if the times differ by more than :data:`FACTOR`."""
        return not 1 / FACTOR <= self.ratio <= FACTOR

    def to_json(self) -> dict[str, Any]:
        """Return the entry ``expectation`` of the document of ``run --json``."""
        return {
            "unit": self.unit,
            "estimated": self.estimated,
            "measured": self.measured,
            "ratio": self.ratio,
            "off": self.is_off,
            "reasons": list(self.reasons) if self.is_off else [],
        }


@dataclass(frozen=True, kw_only=True, repr=False)
class RunResult(Displayed):
    """Verified execution with its times.

    Parameters
    ----------
    solved : SolveResult
        Search that found the candidate; of a method, the search of its product.
    target : Target
        Target that executed it.
    candidate : RankedCandidate
        Candidate that ran.
    backend : str
        Back end that executed it; ``generic`` if portable code ran in place of the instruction:
        ``timing`` is then that of the portable code.
    missing : tuple of str
        Reasons why the target's instruction was not used; empty if it was.
    verification : Verification
        Comparison with the reference.
    timing : Timing
        Times; of a method, ``latency_us`` is that of its product alone.
    seed : int
        Seed of the random data.
    choice : Choice
        Candidate and schedule with their origin.
    epilogue : Any
        Epilogue in the target's own form; None for the plain sums.
    stored : str
        Element type of the output.
    details : Details
        Entries that only this target has.
    expectation : Expectation, optional
        Comparison with the estimated time.
    seconds : dict of str to float
        Wall time by phase.
    artifact : Any
        Compiled kernel; None if another process ran it.
    substitution : Substitution, optional
        Reason why an alternative, that of ``solved``, ran instead of the requested target.
    method : Compared, optional
        Selected method of a convolution, with the estimates of all.
    error : MethodError, optional
        Rounding error of a method other than the implicit one.
    estimate : Estimate, optional
        Estimate of the described machine by which the candidate was chosen; None if another figure
        decided.
    """

    solved: SolveResult
    target: AnyTarget
    candidate: RankedCandidate
    backend: str
    missing: tuple[str, ...]
    verification: Verification
    timing: Timing
    seed: int
    choice: Choice
    epilogue: Any
    stored: str
    details: Details
    expectation: Expectation | None
    seconds: Mapping[str, float]
    artifact: Any = field(default=None, repr=False)
    substitution: Substitution | None = None
    method: Compared | None = None
    error: MethodError | None = None
    estimate: Estimate | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave the artifact out: machine code cannot leave its process."""
        return {**self.__dict__, "artifact": None}

    @property
    def workload(self) -> Computation:
        """Computation that ran: with a method, the convolution and not its product."""
        method = None if self.method is None else self.method.rewritten
        return self.solved.workload if method is None else method.workload

    @property
    def requested(self) -> SolveResult:
        """Search of the requested target, even if an alternative ran."""
        return self.solved if self.substitution is None else self.substitution.solved

    @property
    def is_native(self) -> bool:
        """True if the target's instruction was used."""
        return self.backend != PORTABLE

    @cached_property
    def described(self) -> Estimate | None:
        """Estimate of the described machine, where nothing executes the target; else None."""
        if self.is_native:
            return None
        return self.estimate or described_estimate(self.candidate.program, self.solved.target)

    @cached_property
    def time(self) -> CandidateTime | None:
        """Estimated time of what ran, as the other commands state it; None if there is none.

        Of a method, the estimates of ``method`` count.
        """
        if self.method is not None and self.method.rewritten is not None:
            return None
        if not self.is_native:
            return None if self.described is None else described_time(self.described)
        amount = self.choice.estimated
        if amount is None or amount == float("inf"):
            return None
        scored = self.choice.scored
        parts = dict[str, float]() if scored is None else scored.parts
        return scheduled_time(self.target, self.candidate.program, amount, parts)

    @property
    def provenance(self) -> Provenance:
        """Origin of the times."""
        return self.timing.provenance

    def to_json(self) -> dict[str, Any]:
        """Return the document of ``run --json``.

        ``latency_us`` is only given for a measured time of the instruction, ``time`` for any time,
        with its provenance.
        """
        times = self.timing
        document: dict[str, Any] = {
            "workload": workload_json(self.workload),
            "target": self.requested.target.name,
            "executed": self.solved.target.name,
            "constraints": self.solved.constraints.name,
            "embedding": self.candidate.embedding.identifier(),
            "candidate": self.candidate.identifier,
            "in_place": list(self.candidate.program.in_place),
            "rank": self.candidate.rank,
            "seed": self.seed,
            "backend": self.backend,
            "provenance": self.provenance,
            "verified": self.verification.verified,
            "special_values": self.verification.special_values,
            "spreads_nan": self.verification.spreads_nan,
            "max_error": self.verification.max_error,
            "tolerance": self.verification.tolerance,
            "time": self._time(),
            "estimated_time": None if self.time is None else self.time.to_json(),
            "packing_us": times.packing_us,
            "unpacking_us": times.unpacking_us,
            "packed_ahead": list(times.packed_ahead),
            "noisy": times.noisy,
            "stored": self.stored,
            **_steps(self.epilogue),
            **self.solved.sets_json(),
        }
        if self.method is not None:
            document["method"] = self.method.to_json()
        if self.error is not None:
            document["method"]["error"] = self.error.to_json()
        if times.whole_us is not None:
            document["whole_us"] = msgspec.to_builtins(times.whole_us)
        latency = msgspec.to_builtins(times.latency_us)
        if not self.is_native:
            described = None if self.described is None else self.described.to_json()
            missing = {"generic_latency_us": latency, "missing": list(self.missing)}
            return document | missing | {"described": described}
        if self.provenance is Provenance.MEASURED:
            document |= {"latency_us": latency, "gops": times.gops}
        expected = self.expectation
        document["expectation"] = None if expected is None else expected.to_json()
        details = self.details.to_json()
        seconds = {"solve": self.solved.total_seconds, **self.seconds, **details.pop("seconds", {})}
        return document | self.choice.to_json(self.target) | details | {"seconds": seconds}

    def _time(self) -> dict[str, Any]:
        times = self.timing
        return {
            "provenance": times.provenance,
            "us": None if times.latency_us is None else times.latency_us.median,
            "cycles": times.cycles,
            "clock_mhz": times.clock_mhz,
            "gops": times.gops,
            "of_instruction": self.is_native,
        }


def _steps(epilogue: Any) -> dict[str, bool | int]:
    """Return the steps of an epilogue as entries of the document."""
    if not isinstance(epilogue, Epilogue | None):
        return {}
    names = ("bias", "scale", "relu")
    steps = {name: epilogue is not None and getattr(epilogue, name) for name in names}
    return steps | ({"shift": epilogue.shift} if epilogue and epilogue.shift else {})
