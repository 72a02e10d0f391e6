"""Generate a candidate's kernel, verify its numbers, time it.

>>> from cpembed.api.solve import workload
>>> layer = workload("gemm m=8 n=16 k=16", target="vta_1x16x16")
>>> result = run(layer, "vta_1x16x16", backend="generic")
>>> result.verification.verified, result.backend
(True, 'generic')

A target that is simulated gives another result, of :mod:`cpembed.api.run_vta`:

>>> run(layer, "vta_1x16x16").timing.gemm_cycles
8
"""

from __future__ import annotations

import secrets
from dataclasses import asdict, dataclass, field
from typing import Any

from cpembed.api.choice import pick
from cpembed.api.run_vta import Choice, OutputForm, VtaRunResult, VtaSimulation, simulates
from cpembed.api.solve import (
    DEFAULT_CONSTRAINTS,
    Progress,
    SolveResult,
    hardware_spec,
    solve,
    workload_json,
)
from cpembed.backends.kernel import EXECUTED, BackendChoice, CompiledKernel, build
from cpembed.backends.x86.features import missing_features
from cpembed.cost.ranking import RankedCandidate
from cpembed.embedding.constraint_set import ConstraintSet, Weights
from cpembed.errors import (
    BackendUnavailable,
    InvariantError,
    LoweringError,
    WorkloadError,
)
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation
from cpembed.ir.reference import random_inputs
from cpembed.measure.runner import Measurement, Verification, compare, measure

GENERIC = "generic"

_NATIVE_ROUNDS, _GENERIC_ROUNDS = 15, 3
"""Portable code is slow, and its time is not what a measurement is for."""


@dataclass(frozen=True)
class RunResult:
    """A verified kernel and its times.

    ``missing`` says what kept the target's instruction from being used, empty where it was used;
    ``backend`` is then ``generic``: portable code verified the program, and the times in
    ``measurement`` are not those of the instruction. ``seed`` made the data.
    """

    solved: SolveResult
    candidate: RankedCandidate
    backend: str
    missing: tuple[str, ...]
    verification: Verification
    measurement: Measurement
    seed: int
    kernel: CompiledKernel = field(repr=False)

    @property
    def is_native(self) -> bool:
        return self.backend != GENERIC

    def to_json(self) -> dict[str, Any]:
        """The document of ``run --json``; only the instruction's own time is ``latency_us``."""
        times = self.measurement
        latency = asdict(times.latency_us)
        document: dict[str, Any] = {
            "workload": workload_json(self.solved.workload),
            "target": self.solved.target.name,
            "constraints": self.solved.constraints.name,
            "embedding": self.candidate.candidate.embedding.identifier(),
            "rank": self.candidate.rank,
            "seed": self.seed,
            "backend": self.backend,
            "verified": self.verification.verified,
            "max_error": self.verification.max_error,
            "tolerance": self.verification.tolerance,
            "packing_us": times.packing_us,
            "unpacking_us": times.unpacking_us,
            "packed_ahead": list(times.packed_ahead),
            "noisy": times.noisy,
        }
        if self.is_native:
            document |= {"latency_us": latency, "gops": times.gops}
        else:
            document |= {"generic_latency_us": latency, "missing": list(self.missing)}
        return document


def run(
    workload: Computation,
    target: str | HardwareSpec,
    *,
    constraints: str | ConstraintSet | None = None,
    rank: int = 1,
    backend: BackendChoice = "auto",
    seed: int | None = 0,
    weights: Weights | None = None,
    timeout: float | None = None,
    progress: Progress | None = None,
    output: OutputForm | None = None,
    shift: int | None = None,
    untuned: bool = False,
) -> RunResult | VtaRunResult | SolveResult:
    """Solve, build the candidate of a rank, verify it on random data, measure it.

    Returns the :class:`SolveResult` where the search found nothing, a :class:`VtaRunResult` where
    the target is simulated. ``seed`` None takes fresh data. ``auto`` uses the target's instruction
    where this machine can execute or simulate it, else portable code; ``native`` insists on the
    instruction. ``output`` and ``shift`` are for simulated targets: what they store of the sums
    (:func:`~cpembed.api.run_vta.tail_for`).

    ``constraints`` None takes :data:`~cpembed.api.solve.DEFAULT_CONSTRAINTS`. What
    :func:`~cpembed.api.tune.tune` kept under the same set, or under any where it is None, replaces
    the candidate of rank 1 and its schedule; of other ranks, and with ``weights``, the schedule
    only; with ``untuned`` nothing.

    Raises :class:`BackendUnavailable` or :class:`LoweringError` where ``native`` is impossible,
    :class:`WorkloadError` for a rank that does not exist or a form that the output does not have,
    and :class:`InvariantError` where the kernel's numbers are wrong.
    """
    report: Progress = progress or _silent
    spec = hardware_spec(target)
    missing = missing_for(spec)
    if backend == "native" and missing:
        raise BackendUnavailable(f"{spec.name}: {'; '.join(missing)}; use the generic back end")
    simulation = None
    if simulates(spec) and backend != GENERIC:
        simulation = VtaSimulation.of(spec, workload, output, shift)
    elif output is not None or shift is not None:
        raise WorkloadError(
            "an output form or a shift is for targets that are simulated, "
            f"not for {spec.name} with the {backend} back end: leave it out"
        )
    data_seed = secrets.randbits(31) if seed is None else seed
    solved = solve(
        workload,
        spec,
        DEFAULT_CONSTRAINTS if constraints is None else constraints,
        top=rank,
        weights=weights,
        timeout=timeout,
        seed=seed or 0,
        progress=progress,
    )
    if not solved.count:
        return solved
    candidate = pick(solved, rank)
    if simulation is not None:
        chosen = Choice(candidate)
        if not untuned:
            chosen = simulation.tuned(
                solved,
                candidate,
                any_set=constraints is None,
                any_embedding=rank == 1 and weights is None,
            )
        try:
            return simulation.run(solved, chosen, data_seed, report)
        except LoweringError as error:
            if backend == "native":
                raise
            backend, missing = GENERIC, (str(error),)
    report("build", 0)
    kernel, missing = _build(candidate, spec, backend, missing)
    report("verify", 0)
    inputs = random_inputs(workload, data_seed)
    verification = compare(workload, inputs, kernel.run(inputs))
    if not verification.verified:
        raise InvariantError(
            f"the {kernel.backend} kernel of embedding "
            f"{candidate.candidate.embedding.identifier()} of {spec.name} in {workload.name} is "
            f"wrong by up to {verification.max_error:g} on data of seed {data_seed}: "
            "please report this command line"
        )
    report("measure", 0)
    rounds = _GENERIC_ROUNDS if kernel.backend == GENERIC else _NATIVE_ROUNDS
    measurement = measure(kernel, inputs, rounds=rounds)
    return RunResult(
        solved, candidate, kernel.backend, missing, verification, measurement, data_seed, kernel
    )


def missing_for(spec: HardwareSpec) -> tuple[str, ...]:
    """What executing or simulating a target's instruction on this machine lacks; empty where
    nothing does."""
    if simulates(spec):
        return ()
    if spec.backend not in EXECUTED:
        return (f"no back end executes {spec.name} yet",)
    features = missing_features(spec)
    return (f"this machine lacks {' and '.join(features)}",) if features else ()


def _silent(phase: str, count: int) -> None:
    """Progress that nobody watches."""


def _build(
    candidate: RankedCandidate,
    spec: HardwareSpec,
    backend: BackendChoice,
    missing: tuple[str, ...],
) -> tuple[CompiledKernel, tuple[str, ...]]:
    """The kernel, and what is missing where it is not native."""
    program = candidate.candidate.program
    if backend == "native" or (backend == "auto" and not missing):
        try:
            return build(program, spec, backend="native"), ()
        except (BackendUnavailable, LoweringError) as error:
            if backend == "native":
                raise
            missing = (str(error),)
    return build(program, spec, backend="generic"), missing
