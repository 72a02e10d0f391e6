"""One row of a benchmark: the record of a layer's searches and of its kernel's run."""

from __future__ import annotations

import math
import traceback
from typing import Any

import msgspec

from cpembed.cost.ranking import RankedCandidate
from cpembed.driver.bench_baselines import BaselineRow
from cpembed.driver.result import SolveResult
from cpembed.driver.run_result import RunResult
from cpembed.embedding.embedding import Digit, Embedding
from cpembed.errors import CpembedError, InvariantError
from cpembed.provenance import Provenance
from cpembed.runtime.measurement.runner import Quantiles
from cpembed.runtime.tuning.records import TunedChoice
from cpembed.stores import Count, Natural, Positive, Time
from cpembed.targets.capabilities import peak_gops


class Seconds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Wall time of a search in seconds; ``total`` also covers decoding, ranking and proofs."""

    model: Time
    solve: Time
    total: Time


class Reason(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Explanation why nothing fits: instruction axes and constraints at fault, and a sentence."""

    axes: list[str]
    constraints: list[str]
    text: str


class DigitRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A digit of an instruction axis: ``count`` values of a workload axis, ``stride`` apart."""

    axis: str
    count: Count
    stride: Count


class EmbeddingRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Best candidate of a search.

    Parameters
    ----------
    id : str
        Identifier of the embedding.
    mapping : str
        The embedding as text, such as ``y←k:16 z←c:4,s:2``, innermost digit first; in ``q:14*2``,
        the steps along q are 2 apart.
    axes : dict of str to list of DigitRow
        Digits of each instruction axis, innermost first.
    utilisation : float
        Useful share of the multiply-accumulates that the instruction executes, 0 to 1.
    mac_overhead, data_overhead : float
        Executed multiply-accumulates over the minimum, and packed elements over original ones.
    calls : int
        Number of times that the instruction is issued.
    in_place : list of str
        Operands that are used without packing.
    """

    id: str
    mapping: str
    axes: dict[str, list[DigitRow]]
    utilisation: Positive
    mac_overhead: Positive
    data_overhead: Positive
    calls: Count
    in_place: list[str]


class SolvedRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Outcome of a search under one constraint set.

    Parameters
    ----------
    constraints : str
        Name of the constraint set.
    status : str
        Status of the solver.
    complete : bool
        True if every solution was enumerated.
    count, families : int
        Number of embeddings, and of their families: which axes feed each instruction axis.
    seconds : Seconds
        Wall time.
    embedding : EmbeddingRow, optional
        Best candidate; None if nothing fits.
    reason : Reason, optional
        Explanation why nothing fits.
    """

    constraints: str
    status: str
    complete: bool
    count: Natural
    families: Natural
    seconds: Seconds
    embedding: EmbeddingRow | None
    reason: Reason | None


class TunedRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Embedding that tuning selected.

    It has its rank under a constraint set, and the number of trials that led to it.
    """

    embedding: str
    mapping: str
    constraints: str
    rank: Count
    trials: Count


class ChosenRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Embedding that the cost model of the machine selected.

    Parameters
    ----------
    embedding, mapping : str
        Identifier, and the text of :attr:`EmbeddingRow.mapping`.
    rank : int
        Place in the ranking of ``constraints``, from 1.
    considered : int
        Number of top-ranked embeddings that the model compared.
    estimated : float
        Estimated time, in ``unit``.
    unit : str
        ``us`` or ``cycles``.
    constraints : str
        Name of the constraint set; empty in rows of older versions.
    estimated_us, estimated_moves_us : float, optional
        Microseconds of the contraction, and of packing and unpacking, if the model separates them.
    """

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
    """Verified execution of a layer; ``bench.COUNTED`` defines what each time includes.

    Parameters
    ----------
    backend : str
        Back end that executed the kernel.
    provenance : Provenance
        Origin of the time: measured, simulated or emulated.
    verified : bool
        True if the results agree with the reference.
    max_error : float, optional
        Largest absolute difference from the reference; None if it is not finite.
    latency_us : Quantiles, optional
        Measured time of the target's instruction; None if portable code ran in its place or the
        time was simulated.
    generic_latency_us : Quantiles, optional
        Time of the portable code that ran in place of the instruction.
    packing_us, unpacking_us : float, optional
        Microseconds of packing and unpacking.
    packed_ahead : list of str
        Inputs, such as weights, that are packed once and not counted in ``packing_us``.
    gops, gops_with_packing : float, optional
        Measured rates of the instruction; None where ``latency_us`` is None.
    missing : list of str
        Reasons why portable code ran in place of the instruction.
    noisy : bool
        True if other work on the machine disturbed the times, see
        :class:`~cpembed.runtime.measurement.runner.Timing`.
    peak_share : float, optional
        ``gops`` over the rate of the instruction on operands in registers; None if that is unknown.
    whole_us : Quantiles, optional
        Time of one call that packs, contracts and unpacks.
    instead : str, optional
        Alternative target that ran the layer, because the suite's target has no embedding of it or
        is slower by the model.
    baselines : dict of str to BaselineRow
        Requested comparisons, by the name of the baseline.
    selection, tuned : optional
        Embedding that ran, where the cost model or tuning selected it.
    cycles : int, optional
        Simulated cycles.
    clock_mhz : float, optional
        Clock of the simulated machine; None exactly if ``cycles`` is.
    utilisation : float, optional
        Useful share of the instruction; None in rows of older versions.
    moved_bytes : int, optional
        Bytes that packing and unpacking read and write.
    details : dict
        Entries that only this target has; documents also repeat them at the level of the row.
    method : str, optional
        Method that computed a convolution; None for the implicit one. With another method, rates
        are those of its product, and packing is its transforms.
    spreads_nan : bool
        True if padding turned results into NaN that the definition does not.
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
    selection: ChosenRow | None = msgspec.field(name="chosen", default=None)
    tuned: TunedRow | None = None
    cycles: Count | None = None
    clock_mhz: Positive | None = None
    utilisation: Positive | None = None
    moved_bytes: Natural | None = None
    details: dict[str, bool | float | str] = msgspec.field(
        name="own", default_factory=dict[str, bool | float | str]
    )
    method: str | None = None
    spreads_nan: bool = False

    @property
    def simulated_us(self) -> float | None:
        """Microseconds that the simulated cycles take at the clock; None without cycles."""
        return None if self.cycles is None else self.cycles / (self.clock_mhz or 1.0)

    def flaw(self) -> str | None:
        """Return a contradiction between the fields, which decoding does not find, or None."""
        if (self.clock_mhz is None) != (self.cycles is None):
            return "run: either cycles or a clock is missing"
        if (self.provenance is Provenance.SIMULATED) != (self.cycles is not None):
            return "run: cycles and a simulated provenance must come together"
        if (self.gops is None) != (self.latency_us is None):
            return "run: either a latency or a rate is missing"
        if (self.gops is None) != (self.gops_with_packing is None):
            return "run: either the rate without packing or the one with it is missing"
        times = (self.cycles, self.latency_us, self.generic_latency_us)
        count, expected = sum(time is not None for time in times), 1
        if self.provenance is Provenance.EMULATED:
            expected = 0
        if count != expected:
            return f"run: it has {count} times, not {expected}"
        return None

    def to_json(self) -> dict[str, Any]:
        """Return the row with the entries of ``details`` repeated at its top level."""
        document: dict[str, Any] = msgspec.to_builtins(self)
        return document | dict(self.details)


class ErrorRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Error that ended a layer; ``traceback`` only for exceptions other than the package's."""

    type: str
    message: str
    exit_code: int
    traceback: str | None = None


class BenchRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Row of a layer.

    Parameters
    ----------
    index : int
        Index of the layer in the suite.
    label, application : str
        Operator with its sizes, and the network that the layer comes from.
    count : int
        Number of times that the network has the layer.
    macs : int
        Multiply-accumulates of the layer.
    date : str
        Time at which the row was completed, ISO 8601 in UTC.
    seconds : float
        Wall time of the row.
    strict, best : SolvedRow, optional
        Search under the constraint set ``strict``, and under the requested one.
    run : RunRow, optional
        Execution of the kernel; None if nothing ran.
    error : ErrorRow, optional
        Error that ended the layer.
    """

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
        """Return a contradiction between the fields, which decoding does not find, or None."""
        if self.error is None and (self.strict is None or self.best is None):
            return "neither searches nor an error"
        return None if self.run is None else self.run.flaw()

    def to_json(self) -> dict[str, Any]:
        """Return the row as in the document of ``bench --json``."""
        document: dict[str, Any] = msgspec.to_builtins(self)
        return document | {"run": None if self.run is None else self.run.to_json()}

    @property
    def is_bug(self) -> bool:
        """True if the error is a bug of the package, not of its input or its environment."""
        return self.error is not None and self.error.exit_code == InvariantError.exit_code

    @property
    def has_noisy_comparison(self) -> bool:
        """True if the machine was too busy to compare the kernel with a baseline."""
        return self.run is not None and any(row.noisy for row in self.run.baselines.values())

    @property
    def failed_verification(self) -> bool:
        """True if a check of the package itself failed, such as the verification of results."""
        return self.error is not None and self.error.type == InvariantError.__name__


def solved_row(result: SolveResult) -> SolvedRow:
    """Return the row of a search."""
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
    """Return the row of a run; rates are given only where the instruction itself was timed."""
    times, check, native = result.timing, result.verification, result.is_native
    measured = native and times.provenance is Provenance.MEASURED
    latency, whole_call = times.latency_us, times.whole_us
    gops = times.gops if measured else None
    peak = peak_gops(result.target) if measured else None
    with_packing = None
    if measured and whole_call is not None:
        with_packing = 2 * times.macs / (whole_call.median * 1e3)
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
        whole_us=whole_call,
        packed_ahead=list(times.packed_ahead),
        gops=gops,
        gops_with_packing=with_packing or gops,
        missing=list(result.missing),
        noisy=times.noisy,
        peak_share=gops / peak if gops is not None and peak is not None else None,
        instead=None if result.substitution is None else result.solved.target.name,
        selection=_chosen_row(result),
        tuned=_tuned_row(result.choice.tuned),
        cycles=times.cycles,
        clock_mhz=times.clock_mhz,
        utilisation=result.candidate.overheads.utilisation,
        moved_bytes=result.candidate.overheads.packing_bytes,
        details=result.details.bench_json(),
        method=_method(result),
    )


def _method(result: RunResult) -> str | None:
    """Return the name of the convolution's method; None for the implicit one."""
    method = result.method
    return None if method is None or method.rewritten is None else method.name


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
    """Return the row of an exception; one that is not the package's own counts as its bug."""
    expected = isinstance(error, CpembedError)
    return ErrorRow(
        type(error).__name__,
        " ".join(str(error).split()),
        error.exit_code if expected else InvariantError.exit_code,
        None if expected else "".join(traceback.format_exception(error)),
    )
