"""One row of a benchmark: what a layer's searches found and how its kernel ran."""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

from cpembed.api.bench_baselines import BaselineRow, Latency, baseline_row
from cpembed.api.run import RunResult, run
from cpembed.api.run_vta import SIMULATOR, VtaRunResult, simulates, tail_for
from cpembed.api.solve import SolveResult, default_dtypes, solve
from cpembed.backends.kernel import BackendChoice
from cpembed.backends.vta.tail import Requantized
from cpembed.cost.ranking import RankedCandidate
from cpembed.embedding.constraint_set import ConstraintSet
from cpembed.embedding.embedding import Digit, Embedding
from cpembed.errors import CpembedError, InvariantError
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation
from cpembed.measure.baselines.base import Baseline, Subject
from cpembed.measure.roofline import instruction_peak_gops
from cpembed.tune import cpu_kept, vta_kept
from cpembed.tune.cpu_trials import CpuTrial
from cpembed.tune.kept import Kept, TunedChoice
from cpembed.tune.vta_trials import VtaTrial
from cpembed.workloads.suites import Layer

Phase = Callable[[str, int], None]


class Seconds(msgspec.Struct, frozen=True):
    """Wall time of a search; ``total`` adds decoding, deriving, ranking, proving, explaining."""

    model: float
    solve: float
    total: float


class Reason(msgspec.Struct, frozen=True):
    """Why nothing fits: the instruction axes at fault, the constraints, a sentence."""

    axes: list[str]
    constraints: list[str]
    text: str


class DigitRow(msgspec.Struct, frozen=True):
    axis: str
    count: int
    stride: int


class EmbeddingRow(msgspec.Struct, frozen=True):
    """The best candidate; ``mapping`` is ``y←k:16 z←c:4,s:2``, innermost digit first, and
    ``q:14*2`` where the steps along q are 2 apart."""

    id: str
    mapping: str
    axes: dict[str, list[DigitRow]]
    utilisation: float
    mac_overhead: float
    data_overhead: float
    calls: int
    in_place: list[str]


class SolvedRow(msgspec.Struct, frozen=True):
    """A search under one constraint set; ``embedding`` is the best candidate, ``reason`` says why
    there is none."""

    constraints: str
    status: str
    complete: bool
    count: int
    families: int
    seconds: Seconds
    embedding: EmbeddingRow | None
    reason: Reason | None


class TunedRow(msgspec.Struct, frozen=True):
    """The embedding that tuning chose, if not the best one of ``best``, with its place in the
    ranking of a constraint set, and how many trials led to it."""

    embedding: str
    mapping: str
    constraints: str
    rank: int
    trials: int


class ChosenRow(msgspec.Struct, frozen=True):
    """The embedding that the model of the machine chose among ``considered`` of the best, with its
    place in their ranking and the model's times of the contraction, and of packing and
    unpacking."""

    embedding: str
    mapping: str
    rank: int
    considered: int
    estimated_us: float
    estimated_moves_us: float


class RunRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """A verified execution of the best candidate; see ``COUNTED`` for what the times hold.

    ``latency_us`` and the rates are those of the target's instruction, None where portable code
    ran in its place (``missing`` says why), whose time is ``generic_latency_us``. ``noisy``: other
    work on the machine disturbed the times (see :class:`~cpembed.measure.runner.Measurement`).
    ``peak_share`` is ``gops`` over the instruction's rate on operands in registers, None where that
    is not known; ``baselines`` has the comparisons that were asked for, by name. ``chosen`` and
    ``tuned`` say which embedding ran and why. From ``output`` on: of simulated targets only, which
    have no measured latency.
    """

    backend: str
    verified: bool
    max_error: float | None
    latency_us: Latency | None
    generic_latency_us: Latency | None
    packing_us: float
    unpacking_us: float
    packed_ahead: list[str]
    gops: float | None
    gops_with_packing: float | None
    missing: list[str]
    noisy: bool
    peak_share: float | None = None
    baselines: dict[str, BaselineRow] = {}
    chosen: ChosenRow | None = None
    tuned: TunedRow | None = None
    output: str | None = None
    shift: int | None = None
    simulated_cycles: int | None = None
    clock_mhz: float | None = None
    simulated_us: float | None = None
    simulated_gops: float | None = None
    gemm_utilisation: float | None = None
    lower_bound_cycles: int | None = None
    lower_bound_ratio: float | None = None
    busiest_module_ratio: float | None = None


class ErrorRow(msgspec.Struct, frozen=True):
    """What ended a layer; ``traceback`` only for errors that the package does not raise itself."""

    type: str
    message: str
    exit_code: int
    traceback: str | None = None


class BenchRow(msgspec.Struct, frozen=True):
    """``strict``: under the constraint set of that name. ``best``: under the one asked for.
    ``seconds``: wall time of the whole row. ``count``: how often the network has the layer."""

    index: int
    label: str
    application: str
    count: int
    macs: int
    date: str
    seconds: float
    strict: SolvedRow | None
    best: SolvedRow | None
    run: RunRow | None
    error: ErrorRow | None

    @property
    def is_bug(self) -> bool:
        """Whether the package failed, not what it was given: whatever the other rows say."""
        return self.error is not None and self.error.exit_code == InvariantError.exit_code

    @property
    def has_noisy_comparison(self) -> bool:
        """Whether the machine was too busy to compare the kernel with a baseline."""
        return self.run is not None and any(row.noisy for row in self.run.baselines.values())

    @property
    def failed_verification(self) -> bool:
        """Whether one of the package's own checks refused a result."""
        return self.error is not None and self.error.type == InvariantError.__name__


@dataclass(frozen=True)
class RowMaker:
    """How every layer of a suite is treated; ``backend`` None: solve, do not run.

    ``any_set``: what was tuned under any constraint set is used, not only under ``constraints``;
    ``untuned``: none of it. ``baselines`` run beside each kernel that uses the instruction.
    """

    spec: HardwareSpec
    strict: ConstraintSet
    constraints: ConstraintSet
    backend: BackendChoice | None
    layout: str
    seed: int
    timeout: float | None
    any_set: bool = False
    untuned: bool = False
    baselines: tuple[Baseline, ...] = ()

    def is_current(self, layer: Layer, row: BenchRow) -> bool:
        """Whether a stored row is of what tuning knows now."""
        run = row.run
        if run is None or self.backend in (None, "generic"):
            return True
        kept = None if self.untuned else self._kept(layer)
        if kept is None or run.tuned is None:
            return kept is None and run.tuned is None
        known = kept.trial.identifier, kept.trials
        return known == (run.tuned.embedding, run.tuned.trials)

    def _kept(self, layer: Layer) -> Kept[VtaTrial] | Kept[CpuTrial] | None:
        workload = layer.workload(default_dtypes(self.spec), self.layout)
        constraints = None if self.any_set else self.constraints
        if simulates(self.spec):
            tail = tail_for(workload, None, None)
            return vta_kept.best_kept(workload, self.spec, tail, constraints)
        return cpu_kept.best_kept(workload, self.spec, constraints)

    def row(self, layer: Layer, report: Phase) -> BenchRow:
        """The layer's row; an exception of its searches or its kernel is part of it."""
        started = time.perf_counter()
        draft = _Draft()
        try:
            workload = layer.workload(default_dtypes(self.spec), self.layout)
            draft.macs = workload.macs
            self._fill(draft, layer, workload, report)
        except Exception as error:
            draft.error = _error_row(error)
        return BenchRow(
            layer.index,
            layer.label,
            layer.application,
            layer.count,
            draft.macs,
            datetime.now(UTC).isoformat(timespec="seconds"),
            time.perf_counter() - started,
            draft.strict,
            draft.best,
            draft.run,
            draft.error,
        )

    def solve(self, workload: Computation, chosen: ConstraintSet, report: Phase) -> SolveResult:
        return solve(
            workload,
            self.spec,
            chosen,
            top=1,
            timeout=self.timeout,
            seed=self.seed,
            progress=report,
        )

    def _fill(self, draft: _Draft, layer: Layer, workload: Computation, report: Phase) -> None:
        draft.strict = _solved_row(self.solve(workload, self.strict, report))
        if self.backend is None:
            again = self.constraints == self.strict
            draft.best = (
                draft.strict
                if again
                else _solved_row(self.solve(workload, self.constraints, report))
            )
            return
        try:
            result = run(
                workload,
                self.spec,
                constraints=None if self.any_set else self.constraints,
                backend=self.backend,
                seed=self.seed,
                timeout=self.timeout,
                progress=report,
                untuned=self.untuned,
            )
        except Exception:
            # What was found is worth a row although it did not run.
            draft.best = _solved_row(self.solve(workload, self.constraints, report))
            raise
        if isinstance(result, SolveResult):
            draft.best = _solved_row(result)
            return
        draft.best = _solved_row(result.solved)
        if isinstance(result, VtaRunResult):
            draft.run = _simulated_row(result)
            return
        draft.run = _run_row(result)
        if self.baselines:
            compared = self._beside(result, layer, report)
            draft.run = msgspec.structs.replace(draft.run, baselines=compared)

    def _beside(self, result: RunResult, layer: Layer, report: Phase) -> dict[str, BaselineRow]:
        """The kernel and each baseline, timed in turns."""
        subject = Subject.of(layer, result.solved.workload, self.layout)
        found: dict[str, BaselineRow] = {}
        for baseline in self.baselines:
            report(f"beside {baseline.name}", 0)
            found[baseline.name] = baseline_row(result, baseline, subject)
        return found


@dataclass
class _Draft:
    """What is known of a row so far."""

    macs: int = 0
    strict: SolvedRow | None = None
    best: SolvedRow | None = None
    run: RunRow | None = None
    error: ErrorRow | None = None


def _solved_row(result: SolveResult) -> SolvedRow:
    seconds = Seconds(result.seconds.model, result.seconds.solve, result.total_seconds)
    return SolvedRow(
        result.constraints.name,
        result.status.value,
        result.complete,
        result.count,
        result.families,
        seconds,
        _embedding_row(result.embeddings[0]) if result.embeddings else None,
        _reason(result),
    )


def _reason(result: SolveResult) -> Reason | None:
    if result.conflict is not None:
        conflict = result.conflict
        return Reason(list(conflict.axes), list(conflict.constraints), conflict.words[0])
    if result.embeddings:
        return None
    if result.not_derivable:
        return Reason([], [], f"no program: {result.not_derivable[0]}")
    if result.count:
        return Reason([], [], "no program: the embeddings found are not axis maps")
    return Reason([], [], "the search was stopped before it found anything")


def _embedding_row(ranked: RankedCandidate) -> EmbeddingRow:
    embedding, cost = ranked.candidate.embedding, ranked.overheads
    return EmbeddingRow(
        embedding.identifier(),
        _mapping(embedding),
        {
            axis: [DigitRow(d.axis, d.count, d.stride) for d in digits]
            for axis, digits in embedding.digits.items()
        },
        cost.utilisation,
        cost.mac_overhead,
        cost.data_overhead,
        cost.calls,
        list(cost.in_place),
    )


def _mapping(embedding: Embedding) -> str:
    return " ".join(
        f"{axis}←{','.join(map(_digit, digits))}"
        for axis, digits in embedding.digits.items()
        if digits
    )


def _digit(digit: Digit) -> str:
    return f"{digit.axis}:{digit.count}" + (f"*{digit.stride}" if digit.stride > 1 else "")


def _run_row(result: RunResult) -> RunRow:
    times, check = result.measurement, result.verification
    latency = Latency.of(times.latency_us)
    everything = latency.median + times.packing_us + times.unpacking_us
    native = result.is_native
    peak = instruction_peak_gops(result.solved.target)
    return RunRow(
        backend=result.backend,
        verified=check.verified,
        max_error=check.max_error if math.isfinite(check.max_error) else None,
        latency_us=latency if native else None,
        generic_latency_us=None if native else latency,
        packing_us=times.packing_us,
        unpacking_us=times.unpacking_us,
        packed_ahead=list(times.packed_ahead),
        gops=times.gops if native else None,
        gops_with_packing=2 * result.solved.workload.macs / (everything * 1e3) if native else None,
        missing=list(result.missing),
        noisy=times.noisy,
        peak_share=times.gops / peak if native and peak is not None else None,
        chosen=_chosen_row(result),
        tuned=None if result.choice is None else _tuned_row(result.choice.tuned),
    )


def _chosen_row(result: RunResult) -> ChosenRow | None:
    choice = result.choice
    if choice is None or choice.model is None or choice.estimate is None:
        return None
    embedding = result.candidate.candidate.embedding
    return ChosenRow(
        embedding.identifier(),
        _mapping(embedding),
        result.candidate.rank,
        choice.model.considered,
        choice.estimate.kernel.us,
        choice.estimate.moves_us,
    )


def _simulated_row(result: VtaRunResult) -> RunRow:
    tail, moves = result.lowered.tail, result.moves
    return RunRow(
        backend=SIMULATOR,
        verified=result.verification.verified,
        max_error=result.verification.max_error,
        latency_us=None,
        generic_latency_us=None,
        packing_us=moves.packing_us,
        unpacking_us=moves.unpacking_us,
        packed_ahead=list(moves.packed_ahead),
        gops=None,
        gops_with_packing=None,
        missing=[],
        noisy=moves.noisy,
        output=result.form,
        shift=tail.shift if isinstance(tail, Requantized) else None,
        simulated_cycles=result.timing.cycles,
        clock_mhz=result.clock_mhz,
        simulated_us=result.microseconds,
        simulated_gops=result.gops,
        gemm_utilisation=result.timing.gemm_utilisation,
        lower_bound_cycles=result.bounds.gemm_or_dma,
        lower_bound_ratio=result.lower_bound_ratio,
        busiest_module_ratio=result.busiest_module_ratio,
        tuned=_tuned_row(result.tuned),
    )


def _tuned_row(tuned: TunedChoice[Any] | None) -> TunedRow | None:
    if tuned is None:
        return None
    embedding = tuned.candidate.embedding
    return TunedRow(
        embedding.identifier(),
        _mapping(embedding),
        tuned.constraints,
        tuned.rank,
        tuned.trials,
    )


def _error_row(error: Exception) -> ErrorRow:
    expected = isinstance(error, CpembedError)
    return ErrorRow(
        type(error).__name__,
        " ".join(str(error).split()),
        error.exit_code if expected else InvariantError.exit_code,
        None if expected else "".join(traceback.format_exception(error)),
    )
