"""A layer's comparison with a baseline as part of its row."""

from __future__ import annotations

import math

import msgspec

from cpembed.api.run import RunResult
from cpembed.ir.reference import random_inputs
from cpembed.measure.baselines.base import Baseline, NotCovered, Subject
from cpembed.measure.baselines.contest import Comparison, contest
from cpembed.measure.runner import Quantiles


class Latency(msgspec.Struct, frozen=True):
    """Microseconds, or a ratio of such, over the rounds of a measurement."""

    median: float
    p10: float
    p90: float

    @classmethod
    def of(cls, times: Quantiles) -> Latency:
        return cls(times.median, times.p10, times.p90)


class BaselineRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """Both sides, timed in turns (:mod:`cpembed.measure.baselines`), or why not (``missing``).

    ``form`` is the baseline's call and result, ``implementations`` what the library chose to run in
    it. ``call_us``: that call; ``primitive_us``: the computation by the library's own account, and
    ``reorder_us`` its moving of activations, a mean. ``ours_us``: our contraction on packed
    operands; ``ours_with_packing_us``: with packing and unpacking. The ratios are the baseline's
    time over ours in the same round, above 1 where ours is faster;
    ``primitive_ratio_with_packing`` adds ``reorder_us``. ``elsewhere_cores``: what other processes
    had of the machine meanwhile. ``noisy``: too much, or a ratio varied by more than
    :data:`~cpembed.measure.runner.NOISE`: then the ratios mean little.
    """

    missing: str | None = None
    form: str | None = None
    implementations: list[str] = []
    max_error: float | None = None
    call_us: Latency | None = None
    primitive_us: Latency | None = None
    reorder_us: float | None = None
    ours_us: Latency | None = None
    ours_with_packing_us: Latency | None = None
    call_ratio: Latency | None = None
    call_ratio_with_packing: Latency | None = None
    primitive_ratio: Latency | None = None
    primitive_ratio_with_packing: Latency | None = None
    elsewhere_cores: float | None = None
    noisy: bool = False


def baseline_row(result: RunResult, baseline: Baseline, subject: Subject) -> BaselineRow:
    """Time a verified kernel beside the baseline."""
    if not result.is_native:
        return BaselineRow(missing="portable code ran in place of the instruction")
    inputs = random_inputs(subject.workload, result.seed)
    found = contest(result.kernel, baseline, subject, inputs)
    if isinstance(found, NotCovered):
        return BaselineRow(missing=found.reason)
    return _compared(found)


def _compared(found: Comparison) -> BaselineRow:
    error = found.verification.max_error
    return BaselineRow(
        form=found.form,
        implementations=list(found.names),
        max_error=error if math.isfinite(error) else None,
        call_us=Latency.of(found.call),
        primitive_us=_latency(found.primitive),
        reorder_us=found.reorder_us,
        ours_us=Latency.of(found.ours),
        ours_with_packing_us=Latency.of(found.ours_with_packing),
        call_ratio=Latency.of(found.call_ratio(packing=False)),
        call_ratio_with_packing=Latency.of(found.call_ratio(packing=True)),
        primitive_ratio=_latency(found.primitive_ratio(packing=False)),
        primitive_ratio_with_packing=_latency(found.primitive_ratio(packing=True)),
        elsewhere_cores=found.turns.elsewhere,
        noisy=found.turns.is_noisy,
    )


def _latency(times: Quantiles | None) -> Latency | None:
    return None if times is None else Latency.of(times)
