"""Summary of the rows of a benchmark."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cpembed.driver.bench_baselines import BaselineRow
from cpembed.driver.bench_rows import BenchRow, RunRow, SolvedRow


def summarise(rows: Sequence[BenchRow]) -> dict[str, Any]:
    """Summarise rows: counts, reasons of layers that do not embed, search times and rates."""
    return {
        "layers": len(rows),
        "strict": _searches([(row.index, row.strict) for row in rows]),
        "best": _searches([(row.index, row.best) for row in rows]),
        "run": _runs(rows),
        "errors": [
            {"index": row.index, "type": row.error.type, "message": row.error.message}
            for row in rows
            if row.error is not None
        ],
    }


def _searches(rows: Sequence[tuple[int, SolvedRow | None]]) -> dict[str, Any]:
    """Summarise the searches under one constraint set."""
    solved = [(index, row) for index, row in rows if row is not None]
    fitting = [row for _, row in solved if row.embedding is not None]
    utilised = [row.embedding.utilisation for row in fitting if row.embedding is not None]
    return {
        "constraints": solved[0][1].constraints if solved else None,
        "embedded": len(fitting),
        "not_embedded": len(solved) - len(fitting),
        "reasons": _reasons(solved),
        "seconds": _seconds(solved),
        "mean_utilisation": statistics.fmean(utilised) if utilised else None,
    }


def _reasons(solved: Iterable[tuple[int, SolvedRow]]) -> list[dict[str, Any]]:
    """Group the layers that do not embed by the instruction axes and constraints at fault.

    Where neither is known they are grouped by the sentence. Each group has the text of its first
    layer.
    """
    groups: dict[tuple[str, ...], dict[str, Any]] = {}
    for index, row in solved:
        reason = row.reason
        if reason is None:
            continue
        named = (*reason.axes, "", *reason.constraints)
        group = groups.setdefault(
            named if reason.axes or reason.constraints else (reason.text,),
            {
                "axes": reason.axes,
                "constraints": reason.constraints,
                "text": reason.text,
                "layers": [],
            },
        )
        group["layers"].append(index)
    return sorted(groups.values(), key=lambda group: -len(group["layers"]))


def _seconds(solved: Iterable[tuple[int, SolvedRow]]) -> dict[str, Any] | None:
    """Summarise the times of building and solving each layer's model."""
    times = {index: row.seconds.model + row.seconds.solve for index, row in solved}
    if not times:
        return None
    longest = max(times, key=lambda index: times[index])
    return {
        "median": statistics.median(times.values()),
        "max": times[longest],
        "max_layer": longest,
        "sum": sum(times.values()),
    }


def _us_with_packing(run: RunRow) -> float:
    """Return the microseconds of a run with packing and unpacking."""
    if run.whole_us is not None:
        return run.whole_us.median
    latency = 0.0 if run.latency_us is None else run.latency_us.median
    return latency + (run.packing_us or 0.0) + (run.unpacking_us or 0.0)


def _runs(rows: Sequence[BenchRow]) -> dict[str, Any]:
    ran = [row.run for row in rows if row.run is not None]
    timed = [
        (row.count, row.run.latency_us.median, _us_with_packing(row.run))
        for row in rows
        if row.run is not None and row.run.latency_us is not None
    ]
    return {
        "executed": len(ran),
        "verified": sum(run.verified for run in ran),
        "failed_verification": [row.index for row in rows if row.failed_verification],
        "backends": dict(Counter(run.backend for run in ran)),
        "gops_geometric_mean": _geometric_mean(run.gops for run in _native(ran)),
        "gops_with_packing_geometric_mean": _geometric_mean(
            run.gops_with_packing for run in _native(ran)
        ),
        "noisy": [row.index for row in rows if row.run is not None and row.run.noisy],
        "timed_layers": sum(count for count, _, _ in timed),
        "total_us": sum(count * us for count, us, _ in timed) if timed else None,
        "total_with_packing_us": sum(count * us for count, _, us in timed) if timed else None,
        "simulated": _simulated(rows),
        "baselines": summarise_baselines(
            (row.index, row.run.baselines) for row in rows if row.run is not None
        ),
    }


def _simulated(rows: Sequence[BenchRow]) -> dict[str, Any] | None:
    """Summarise the layers that ran on a simulated target; None if there are none.

    Sums count a layer as often as the network has it.
    """
    simulated = [
        (row.index, row.count, row.run)
        for row in rows
        if row.run is not None and row.run.cycles is not None
    ]
    if not simulated:
        return None
    summary: dict[str, Any] = {
        "layers": sum(count for _, count, _ in simulated),
        "total_cycles": sum(count * (run.cycles or 0) for _, count, run in simulated),
        "total_us": sum(count * (run.simulated_us or 0) for _, count, run in simulated),
        "gops_geometric_mean": _geometric_mean(
            _target_entry(run, "simulated_gops") for *_, run in simulated
        ),
    }
    for name in RATIOS_OVER_BOUNDS:
        entries = {index: _target_entry(run, name) for index, _, run in simulated}
        ratios = {index: ratio for index, ratio in entries.items() if ratio is not None}
        if ratios:
            worst = max(ratios, key=lambda index: ratios[index])
            summary |= {
                f"{name}_geometric_mean": _geometric_mean(ratios.values()),
                f"{name}_max": ratios[worst],
                f"{name}_max_layer": worst,
            }
    return summary


RATIOS_OVER_BOUNDS = ("lower_bound_ratio", "busiest_module_ratio")
"""Entries of simulated targets: cycles over lower bounds that hold for every program."""


def _target_entry(run: RunRow, name: str) -> float | None:
    """Return a number among the entries that only the row's target has."""
    value = run.details.get(name)
    return float(value) if isinstance(value, int | float) else None


def _native(runs: Iterable[RunRow]) -> list[RunRow]:
    return [run for run in runs if run.gops is not None]


def _geometric_mean(values: Iterable[float | None]) -> float | None:
    logarithms = [math.log(value) for value in values if value is not None]
    return math.exp(statistics.fmean(logarithms)) if logarithms else None


RATIOS = (
    "primitive_ratio",
    "primitive_ratio_with_packing",
    "call_ratio",
    "call_ratio_with_packing",
)
"""Ratios of :class:`BaselineRow` that are summarised."""


def summarise_baselines(
    rows: Iterable[tuple[int, Mapping[str, BaselineRow]]],
) -> dict[str, dict[str, Any]]:
    """Summarise the comparisons with each baseline.

    ``rows`` are pairs of a layer's index and its comparisons. Noisy rows are listed, and their
    ratios are left out.
    """
    by_name: dict[str, list[tuple[int, BaselineRow]]] = {}
    for index, row in rows:
        for name, compared in row.items():
            by_name.setdefault(name, []).append((index, compared))
    return {name: _comparisons(compared) for name, compared in by_name.items()}


def _comparisons(rows: Sequence[tuple[int, BaselineRow]]) -> dict[str, Any]:
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
    """Summarise a ratio over the layers, each with its median; None if no row has it."""
    medians = {index: getattr(row, name).median for index, row in rows if getattr(row, name)}
    if not medians:
        return None
    worst, best = (choose(medians, key=lambda index: medians[index]) for choose in (min, max))
    return {
        "geometric_mean": _geometric_mean(medians.values()),
        "worst": medians[worst],
        "worst_layer": worst,
        "best": medians[best],
        "best_layer": best,
        "ours_not_slower": sum(ratio >= 1 for ratio in medians.values()),
        "layers": len(medians),
    }
