"""One row of a benchmark: what is kept of a layer's searches and of its kernel's run."""

from __future__ import annotations

import msgspec

from cpembed.api.bench_baselines import BaselineRow, Latency
from cpembed.errors import InvariantError


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
    place in the ranking of ``constraints`` and the model's times of the contraction, and of packing
    and unpacking."""

    embedding: str
    mapping: str
    rank: int
    considered: int
    estimated_us: float
    estimated_moves_us: float
    constraints: str = ""


class RunRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """A verified execution of the best candidate; see ``COUNTED`` for what the times hold.

    ``latency_us`` and the rates are those of the target's instruction, None where portable code
    ran in its place (``missing`` says why), whose time is ``generic_latency_us``. ``noisy``: other
    work on the machine disturbed the times (see :class:`~cpembed.measure.runner.Measurement`).
    ``peak_share`` is ``gops`` over the instruction's rate on operands in registers, None where that
    is not known; ``instead``: the target that ran the layer, where no embedding of the suite's
    exists or it is slower by the model; ``baselines`` has the comparisons that were asked for, by
    name. ``chosen`` and ``tuned`` say which embedding ran and why. From ``output`` on: of simulated
    targets only, which have no measured latency.
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
    whole_us: Latency | None = None
    instead: str | None = None
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
