"""From the results of searches and runs to what a benchmark's row keeps of them."""

from __future__ import annotations

import math
import traceback
from typing import Any

from cpembed.driver.bench_rows import (
    ChosenRow,
    DigitRow,
    EmbeddingRow,
    ErrorRow,
    Reason,
    RunRow,
    Seconds,
    SolvedRow,
    TunedRow,
)
from cpembed.driver.result import SolveResult
from cpembed.driver.run_result import RunResult
from cpembed.embedding.embedding import Digit, Embedding
from cpembed.errors import CpembedError, InvariantError
from cpembed.provenance import Provenance
from cpembed.selection.ranking import RankedCandidate
from cpembed.tuning.records import TunedChoice


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
    embedding = result.candidate.candidate.embedding
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
