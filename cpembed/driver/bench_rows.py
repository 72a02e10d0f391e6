"""One row of a benchmark: what is kept of a layer's searches and of its kernel's run."""

from __future__ import annotations

import math
import traceback
from typing import Any

import msgspec

from cpembed.driver.bench_baselines import BaselineRow
from cpembed.driver.result import SolveResult
from cpembed.driver.run_result import RunResult
from cpembed.embedding.embedding import Digit, Embedding
from cpembed.errors import CpembedError, InvariantError
from cpembed.measure.runner import Quantiles
from cpembed.provenance import Provenance
from cpembed.selection.ranking import RankedCandidate
from cpembed.stores import Count, Natural, Positive, Time
from cpembed.tuning.records import TunedChoice


class Seconds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Wall time of a search; ``total`` adds decoding, deriving, ranking, proving, explaining."""

    model: Time
    solve: Time
    total: Time


class Reason(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Why nothing fits: the instruction axes at fault, the constraints, a sentence."""

    axes: list[str]
    constraints: list[str]
    text: str


class DigitRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    axis: str
    count: Count
    stride: Count


class EmbeddingRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The best candidate; ``mapping`` is ``y←k:16 z←c:4,s:2``, innermost digit first, and
    ``q:14*2`` where the steps along q are 2 apart."""

    id: str
    mapping: str
    axes: dict[str, list[DigitRow]]
    utilisation: Positive
    mac_overhead: Positive
    data_overhead: Positive
    calls: Count
    in_place: list[str]


class SolvedRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A search under one constraint set; ``embedding`` is the best candidate, ``reason`` says why
    there is none."""

    constraints: str
    status: str
    complete: bool
    count: Natural
    families: Natural
    seconds: Seconds
    embedding: EmbeddingRow | None
    reason: Reason | None


class TunedRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The embedding that tuning chose, if not the best one of ``best``, with its place in the
    ranking of a constraint set, and how many trials led to it."""

    embedding: str
    mapping: str
    constraints: str
    rank: Count
    trials: Count


class ChosenRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The embedding that the model of the machine chose among ``considered`` of the best, with its
    place in the ranking of ``constraints`` and the model's ``estimated`` time in a ``unit``; where
    that is so known, the times of the contraction, and of packing and unpacking."""

    embedding: str
    mapping: str
    rank: Count
    considered: Count
    estimated: Time
    unit: str
    constraints: str = ""
    estimated_us: Time | None = None
    estimated_moves_us: Time | None = None


class RunRow(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A verified execution of the best candidate; see ``COUNTED`` for what the times hold.

    ``provenance`` says how its time came about. ``latency_us`` and the rates are those of the
    target's instruction where they were measured, None where portable code ran in its place
    (``missing`` says why), whose time is ``generic_latency_us``, and where ``cycles`` were
    simulated, at ``clock_mhz``. ``noisy``: other work on the machine disturbed the times (see
    :class:`~cpembed.measure.runner.Timing`). ``peak_share`` is ``gops`` over the instruction's rate
    on operands in registers, None where that is not known; ``instead``: the target that ran the
    layer, where no embedding of the suite's exists or it is slower by the model; ``baselines`` has
    the comparisons that were asked for, by name. ``chosen`` and ``tuned`` say which embedding ran
    and why; of the instruction, its ``utilisation`` is useful, and packing and unpacking read and
    write ``moved_bytes``. ``method``: by which a convolution was computed, None where it is the
    implicit one; with another, rates are of its product, and packing is its transforms.
    ``spreads_nan``: padding made NaN of results beside those of the definition. ``own`` is
    what only this target says; in documents its entries stand beside the others too.
    """

    backend: str
    provenance: Provenance
    verified: bool
    max_error: Time | None
    latency_us: Quantiles | None
    generic_latency_us: Quantiles | None
    packing_us: Time | None
    unpacking_us: Time | None
    packed_ahead: list[str]
    gops: Positive | None
    gops_with_packing: Positive | None
    missing: list[str]
    noisy: bool
    peak_share: Positive | None = None
    whole_us: Quantiles | None = None
    instead: str | None = None
    baselines: dict[str, BaselineRow] = {}
    chosen: ChosenRow | None = None
    tuned: TunedRow | None = None
    cycles: Count | None = None
    clock_mhz: Positive | None = None
    utilisation: Positive | None = None
    moved_bytes: Natural | None = None
    own: dict[str, bool | float | str] = {}
    method: str | None = None
    spreads_nan: bool = False

    @property
    def simulated_us(self) -> float | None:
        """The cycles at the clock."""
        return None if self.cycles is None else self.cycles / (self.clock_mhz or 1.0)

    def flaw(self) -> str | None:
        """What no run says; types and ranges are right."""
        if (self.clock_mhz is None) != (self.cycles is None):
            return "run: cycles or a clock, not both"
        if (self.provenance is Provenance.SIMULATED) != (self.cycles is not None):
            return "run: a part of the figures of a simulation"
        if (self.gops is None) != (self.latency_us is None):
            return "run: a latency or a rate, not both"
        if (self.gops is None) != (self.gops_with_packing is None):
            return "run: a rate without packing or with it, not both"
        times = (self.cycles, self.latency_us, self.generic_latency_us)
        found = sum(time is not None for time in times)
        if found != (0 if self.provenance is Provenance.EMULATED else 1):
            return "run: it has one time"
        return None

    def to_json(self) -> dict[str, Any]:
        """The row with the target's own entries beside the others."""
        document: dict[str, Any] = msgspec.to_builtins(self)
        return document | dict(self.own)


class ErrorRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What ended a layer; ``traceback`` only for errors that the package does not raise itself."""

    type: str
    message: str
    exit_code: int
    traceback: str | None = None


class BenchRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``strict``: under the constraint set of that name. ``best``: under the one asked for.
    ``seconds``: wall time of the whole row. ``count``: how often the network has the layer."""

    index: Natural
    label: str
    application: str
    count: Count
    macs: Natural
    date: str
    seconds: Time
    strict: SolvedRow | None
    best: SolvedRow | None
    run: RunRow | None
    error: ErrorRow | None

    def flaw(self) -> str | None:
        """What no row says; types and ranges are right."""
        if self.error is None and (self.strict is None or self.best is None):
            return "neither searches nor an error"
        return None if self.run is None else self.run.flaw()

    def to_json(self) -> dict[str, Any]:
        """The row in the document of ``bench --json``."""
        document: dict[str, Any] = msgspec.to_builtins(self)
        return document | {"run": None if self.run is None else self.run.to_json()}

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


def solved_row(result: SolveResult) -> SolvedRow:
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
        return Reason(list(conflict.axes), list(conflict.constraints), result.why_nothing)
    return None if result.embeddings else Reason([], [], result.why_nothing)


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


def run_row(result: RunResult) -> RunRow:
    times, check, native = result.timing, result.verification, result.is_native
    measured = native and times.provenance is Provenance.MEASURED
    latency, whole = times.latency_us, times.whole_us
    gops = times.gops if measured else None
    peak = result.target.peak_gops() if measured else None
    with_packing = None
    if measured and whole is not None:
        with_packing = 2 * times.macs / (whole.median * 1e3)
    return RunRow(
        backend=result.backend,
        provenance=times.provenance,
        verified=check.verified,
        spreads_nan=check.spreads_nan,
        max_error=check.max_error if math.isfinite(check.max_error) else None,
        latency_us=latency if measured else None,
        generic_latency_us=None if native else latency,
        packing_us=times.packing_us,
        unpacking_us=times.unpacking_us,
        whole_us=whole,
        packed_ahead=list(times.packed_ahead),
        gops=gops,
        gops_with_packing=with_packing or gops,
        missing=list(result.missing),
        noisy=times.noisy,
        peak_share=gops / peak if gops is not None and peak is not None else None,
        instead=None if result.instead is None else result.solved.target.name,
        chosen=_chosen_row(result),
        tuned=_tuned_row(result.choice.tuned),
        cycles=times.cycles,
        clock_mhz=times.clock_mhz,
        utilisation=result.candidate.overheads.utilisation,
        moved_bytes=result.candidate.overheads.packing_bytes,
        own=result.details.bench_json(),
        method=_method(result),
    )


def _method(result: RunResult) -> str | None:
    """None where it is the implicit one."""
    found = result.method
    return None if found is None or found.rewritten is None else found.name


def _chosen_row(result: RunResult) -> ChosenRow | None:
    choice = result.choice
    if choice.model is None or choice.scored is None:
        return None
    embedding = result.candidate.embedding
    parts = choice.scored.parts
    return ChosenRow(
        embedding.identifier(),
        _mapping(embedding),
        result.candidate.rank,
        choice.model.considered,
        choice.scored.cost,
        result.target.unit,
        result.candidate.constraints,
        parts.get("us"),
        parts.get("moves_us"),
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


def error_row(error: Exception) -> ErrorRow:
    expected = isinstance(error, CpembedError)
    return ErrorRow(
        type(error).__name__,
        " ".join(str(error).split()),
        error.exit_code if expected else InvariantError.exit_code,
        None if expected else "".join(traceback.format_exception(error)),
    )
