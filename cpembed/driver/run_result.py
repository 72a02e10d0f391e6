"""What a run found: its numbers are right, and how long it takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from cpembed.driver.plan import Compared, MethodError, Substitution
from cpembed.driver.request import AnyTarget
from cpembed.driver.result import SolveResult, workload_json
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation
from cpembed.kernel.epilogue import Epilogue
from cpembed.measure.runner import Timing
from cpembed.measure.verification import Verification
from cpembed.provenance import Provenance
from cpembed.selection.ranking import RankedCandidate
from cpembed.targets.base import Details, Target
from cpembed.targets.choice import Choice
from cpembed.targets.portable import PORTABLE

FACTOR = 3.0
"""An estimate that is off by more is said: calibrated, on an idle machine, few are off by 2."""


@dataclass(frozen=True)
class Expectation:
    """Both in a unit. ``reasons``: why they may differ, the likely one first."""

    unit: str
    estimated: float
    measured: float
    reasons: tuple[str, ...]

    @classmethod
    def of(
        cls, target: Target[Any, Any, Any], choice: Choice, timing: Timing
    ) -> Expectation | None:
        """Of an execution with its packing and unpacking, where those count; None where no model
        knows it, or there is no time."""
        return cls.of_times(target, choice.estimated, timing)

    @classmethod
    def of_times(
        cls, target: Target[Any, Any, Any], estimated: float | None, timing: Timing
    ) -> Expectation | None:
        """Likewise, of what the model expects."""
        if target.unit == "cycles":
            measured = timing.cycles
        else:
            times = timing.whole_us or timing.latency_us
            measured = None if times is None else times.median
        if not estimated or estimated == float("inf") or measured is None:
            return None
        return cls(target.unit, estimated, measured, target.doubts(noisy=timing.noisy))

    @property
    def ratio(self) -> float:
        return self.measured / self.estimated

    @property
    def is_off(self) -> bool:
        """By more than :data:`FACTOR`."""
        return not 1 / FACTOR <= self.ratio <= FACTOR

    def to_json(self) -> dict[str, Any]:
        """A part of the document of ``run --json``."""
        return {
            "unit": self.unit,
            "estimated": self.estimated,
            "measured": self.measured,
            "ratio": self.ratio,
            "off": self.is_off,
            "reasons": list(self.reasons) if self.is_off else [],
        }


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """A verified execution and its times.

    ``backend`` is what executed it. ``missing`` says what kept the target's instruction from being
    used, empty where it was used; ``backend`` is then ``generic``: portable code verified the
    program, and the times in ``timing`` are not those of the instruction. ``seed`` made the data.
    ``choice`` is where the candidate and its schedule come from; ``epilogue`` is what was stored,
    None for the sums, of type ``stored``. ``details`` is what only this target says. ``artifact``
    is None where another process ran it. ``seconds`` is wall time by phase. ``instead``: an
    alternative ran, of which ``solved`` is, in the place of the target that was asked for.
    ``method``: of a convolution whose method was chosen; where that is not the implicit one, what
    is solved and chosen is its product, ``latency_us`` is that of the product alone, and ``error``
    is what rounding in its transforms made of the result.
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
    instead: Substitution | None = None
    method: Compared | None = None
    error: MethodError | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Machine code stays in its process."""
        return {**self.__dict__, "artifact": None}

    @property
    def workload(self) -> Computation:
        """What was computed, by whatever method."""
        chosen = None if self.method is None else self.method.rewritten
        return self.solved.workload if chosen is None else chosen.workload

    @property
    def asked(self) -> HardwareSpec:
        """The target that was asked for."""
        return (self.solved if self.instead is None else self.instead.solved).target

    @property
    def is_native(self) -> bool:
        return self.backend != PORTABLE

    @property
    def provenance(self) -> Provenance:
        return self.timing.provenance

    def to_json(self) -> dict[str, Any]:
        """The document of ``run --json``; only the instruction's own measured time is
        ``latency_us``, any time with its provenance is in ``time``."""
        times = self.timing
        document: dict[str, Any] = {
            "workload": workload_json(self.workload),
            "target": self.asked.name,
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
            return document | {"generic_latency_us": latency, "missing": list(self.missing)}
        if self.provenance is Provenance.MEASURED:
            document |= {"latency_us": latency, "gops": times.gops}
        expected = self.expectation
        document["expectation"] = None if expected is None else expected.to_json()
        own = self.details.to_json()
        spent = {"solve": self.solved.total_seconds, **self.seconds, **own.pop("seconds", {})}
        return document | self.choice.to_json(self.target) | own | {"seconds": spent}

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
    """What happens to the sums before they are stored."""
    if not isinstance(epilogue, Epilogue | None):
        return {}
    names = ("bias", "scale", "relu")
    taken = {name: epilogue is not None and getattr(epilogue, name) for name in names}
    return taken | ({"shift": epilogue.shift} if epilogue and epilogue.shift else {})
