"""What a run of a kernel on a CPU found: its numbers are right, and its times."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from cpembed.api.beside import Beside
from cpembed.api.expectation import Expectation, of_times
from cpembed.api.run_cpu import CpuChoice
from cpembed.api.solve import SolveResult, workload_json
from cpembed.hw.instruction import HardwareSpec
from cpembed.kernel.compiled import CompiledKernel
from cpembed.kernel.epilogue import Epilogue
from cpembed.measure.runner import Measurement
from cpembed.measure.verification import Verification
from cpembed.selection.ranking import RankedCandidate

GENERIC = "generic"


@dataclass(frozen=True)
class RunResult:
    """A verified kernel and its times.

    ``missing`` says what kept the target's instruction from being used, empty where it was used;
    ``backend`` is then ``generic``: portable code verified the program, and the times in
    ``measurement`` are not those of the instruction. ``seed`` made the data. ``choice`` is where
    the candidate and its schedule come from, None for portable code; ``epilogue`` is what was
    stored, None for the sums. ``kernel`` is None where another process ran it. ``instead_of``: the
    search for the target that was asked for, where another one ran, of which ``solved`` is; it
    proved that there is no embedding, or ``beside`` says which of the two is faster.
    """

    solved: SolveResult
    candidate: RankedCandidate
    backend: str
    missing: tuple[str, ...]
    verification: Verification
    measurement: Measurement
    seed: int
    choice: CpuChoice | None
    epilogue: Epilogue | None = None
    kernel: CompiledKernel | None = field(default=None, repr=False)
    instead_of: SolveResult | None = None
    beside: Beside | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Machine code stays in its process."""
        return {**self.__dict__, "kernel": None}

    @property
    def asked(self) -> HardwareSpec:
        """The target that was asked for."""
        return (self.instead_of or self.solved).target

    @property
    def stored(self) -> str:
        """Type of the results."""
        if self.epilogue is None:
            return self.solved.workload.output.dtype
        return self.epilogue.dtype

    @property
    def is_native(self) -> bool:
        return self.backend != GENERIC

    @property
    def expectation(self) -> Expectation | None:
        """What the model expected of a native kernel."""
        return of_times(self.choice, self.measurement) if self.is_native else None

    def to_json(self) -> dict[str, Any]:
        """The document of ``run --json``; only the instruction's own time is ``latency_us``."""
        times = self.measurement
        latency = asdict(times.latency_us)
        document: dict[str, Any] = {
            "workload": workload_json(self.solved.workload),
            "target": self.asked.name,
            "executed": self.solved.target.name,
            "constraints": self.solved.constraints.name,
            "embedding": self.candidate.candidate.embedding.identifier(),
            "candidate": self.candidate.candidate.identifier,
            "in_place": list(self.candidate.candidate.program.in_place),
            "rank": self.candidate.rank,
            "seed": self.seed,
            "backend": self.backend,
            "verified": self.verification.verified,
            "max_error": self.verification.max_error,
            "tolerance": self.verification.tolerance,
            "packing_us": times.packing_us,
            "unpacking_us": times.unpacking_us,
            "whole_us": asdict(times.whole_us),
            "packed_ahead": list(times.packed_ahead),
            "noisy": times.noisy,
            "stored": self.stored,
            **_steps(self.epilogue),
            **self.solved.sets_json(),
        }
        if self.is_native:
            expected = self.expectation
            document |= {"latency_us": latency, "gops": times.gops}
            document["expectation"] = None if expected is None else expected.to_json()
            document |= {} if self.choice is None else self.choice.to_json()
        else:
            document |= {"generic_latency_us": latency, "missing": list(self.missing)}
        return document


def _steps(epilogue: Epilogue | None) -> dict[str, bool]:
    """What happens to the sums before they are stored."""
    names = ("bias", "scale", "relu")
    return {name: epilogue is not None and getattr(epilogue, name) for name in names}
