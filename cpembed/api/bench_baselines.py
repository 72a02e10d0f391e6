"""A layer's comparison with a baseline as part of its row, and what the rows come to."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from cpembed.api.run_result import RunResult
from cpembed.baselines.base import Baseline, NotCovered, Subject
from cpembed.baselines.contest import Comparison, contest
from cpembed.ir.reference import random_inputs
from cpembed.kernel.compiled import CompiledKernel
from cpembed.kernel.epilogue import Epilogue
from cpembed.measure.runner import Quantiles
from cpembed.stores import Natural, Positive, Time


class Latency(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Microseconds, or a ratio of such, over the rounds of a measurement."""

    median: Positive
    p10: Positive
    p90: Positive

    @classmethod
    def of(cls, times: Quantiles) -> Latency:
        return cls(times.median, times.p10, times.p90)


class BaselineRow(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Both sides, timed in turns (:mod:`cpembed.baselines`), or why not (``missing``).

    ``form`` is the baseline's call and result, ``stored`` the type of the results that both sides
    store, ``implementations`` what the library chose to run in it. ``call_us``: that call;
    ``primitive_us``: the computation by the library's own account; ``reorder_us`` and
    ``weights_reorder_us`` its moving of activations and of weights that were packed ahead, but not
    as it wants them, both means. ``ours_us``: our contraction on packed operands;
    ``ours_with_packing_us``: with packing and unpacking. The ratios are the baseline's time over
    ours in the same round, above 1 where ours is faster; ``primitive_ratio_with_packing`` adds
    ``reorder_us``. ``peak_us``: the layer's products alone, on registers, in the same rounds, and
    ``primitive_over_peak`` the library's time over that. ``elsewhere_cores``: what other processes
    had of the machine meanwhile. ``noisy``: too much, or a ratio varied too much
    (:class:`~cpembed.measure.turns.Turns`): then the ratios mean little.
    """

    missing: str | None = None
    form: str | None = None
    stored: str | None = None
    implementations: list[str] = []
    max_error: Time | None = None
    call_us: Latency | None = None
    primitive_us: Latency | None = None
    reorder_us: Time | None = None
    weights_reorder_us: Time | None = None
    ours_us: Latency | None = None
    ours_with_packing_us: Latency | None = None
    call_ratio: Latency | None = None
    call_ratio_with_packing: Latency | None = None
    primitive_ratio: Latency | None = None
    primitive_ratio_with_packing: Latency | None = None
    peak_us: Latency | None = None
    primitive_over_peak: Latency | None = None
    elsewhere_cores: Time | None = None
    slow_rounds: Natural = 0
    noisy: bool = False


def baseline_row(result: RunResult, baseline: Baseline, subject: Subject) -> BaselineRow:
    """Time a verified kernel beside the baseline."""
    kernel, target = result.artifact, result.target
    if kernel is None or not result.is_native:
        return BaselineRow(missing="portable code ran in place of the instruction")
    inputs = random_inputs(subject.workload, result.seed)

    def storing(dtype: str) -> CompiledKernel:
        if subject.stored is not None or dtype == subject.workload.output.dtype:
            return kernel
        # Bytes take less of a line than sums: another kernel may suit them, as `run --output` says.
        return target.storing_kernel(kernel, result.choice, Epilogue(dtype))

    pace = target.throttle_probe()
    found = contest(storing, baseline, subject, inputs, seed=result.seed, pace=pace)
    if isinstance(found, NotCovered):
        return BaselineRow(missing=found.reason)
    return _compared(found)


def _compared(found: Comparison) -> BaselineRow:
    error = found.verification.max_error
    return BaselineRow(
        form=found.form,
        stored=found.stored,
        implementations=list(found.names),
        max_error=error if math.isfinite(error) else None,
        call_us=Latency.of(found.call),
        primitive_us=_latency(found.primitive),
        reorder_us=found.reorder_us,
        weights_reorder_us=found.weights_us,
        ours_us=Latency.of(found.ours),
        ours_with_packing_us=Latency.of(found.ours_with_packing),
        call_ratio=Latency.of(found.call_ratio(packing=False)),
        call_ratio_with_packing=Latency.of(found.call_ratio(packing=True)),
        primitive_ratio=_latency(found.primitive_ratio(packing=False)),
        primitive_ratio_with_packing=_latency(found.primitive_ratio(packing=True)),
        peak_us=_latency(found.peak),
        primitive_over_peak=_latency(found.primitive_over_peak),
        elsewhere_cores=found.turns.elsewhere,
        slow_rounds=found.turns.slow,
        noisy=found.turns.is_noisy,
    )


def _latency(times: Quantiles | None) -> Latency | None:
    return None if times is None else Latency.of(times)


RATIOS = (
    "primitive_ratio",
    "primitive_ratio_with_packing",
    "call_ratio",
    "call_ratio_with_packing",
)
"""What is summarised of the rows."""


def summarise_baselines(
    rows: Iterable[tuple[int, Mapping[str, BaselineRow]]],
) -> dict[str, dict[str, Any]]:
    """Per baseline, what its rows come to; ``rows`` are those of the layers that ran, by index.

    Ratios of rows that are noisy count nowhere: they are listed instead.
    """
    found: dict[str, list[tuple[int, BaselineRow]]] = {}
    for index, row in rows:
        for name, compared in row.items():
            found.setdefault(name, []).append((index, compared))
    return {name: _summary(compared) for name, compared in found.items()}


def _summary(rows: Sequence[tuple[int, BaselineRow]]) -> dict[str, Any]:
    steady = [(index, row) for index, row in rows if row.missing is None and not row.noisy]
    reasons: dict[str, list[int]] = {}
    for index, row in rows:
        if row.missing is not None:
            reasons.setdefault(row.missing, []).append(index)
    return {
        "compared": len(steady),
        "noisy": [index for index, row in rows if row.noisy],
        "not_compared": [{"reason": why, "layers": which} for why, which in reasons.items()],
        **{name: _ratios(steady, name) for name in RATIOS},
    }


def _ratios(rows: Iterable[tuple[int, BaselineRow]], name: str) -> dict[str, Any] | None:
    """Of the rounds' medians; None where no row has the ratio."""
    known = {index: getattr(row, name).median for index, row in rows if getattr(row, name)}
    if not known:
        return None
    worst, best = (choose(known, key=lambda index: known[index]) for choose in (min, max))
    return {
        "geometric_mean": math.exp(statistics.fmean(map(math.log, known.values()))),
        "worst": known[worst],
        "worst_layer": worst,
        "best": known[best],
        "best_layer": best,
        "ours_not_slower": sum(ratio >= 1 for ratio in known.values()),
        "layers": len(known),
    }
