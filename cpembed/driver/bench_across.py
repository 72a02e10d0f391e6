"""Comparison of a suite on several targets, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from cpembed.driver.across import Figure, Line, Time, line
from cpembed.driver.bench import Bench
from cpembed.driver.bench_rows import BenchRow, RunRow
from cpembed.driver.matching import match_in_worker
from cpembed.driver.named import hardware_specs
from cpembed.driver.options import KernelOptions
from cpembed.driver.plan import Request
from cpembed.embedding.cpsat import Status
from cpembed.provenance import Provenance
from cpembed.steps import Progress
from cpembed.workloads.suites import Layer


@dataclass(frozen=True)
class Across:
    """Results of a suite's layers on several targets.

    Parameters
    ----------
    suite : str
        Name of the suite.
    layers : tuple of str
        Labels of the layers, in order.
    targets : tuple of str
        Names of the targets.
    figures : dict of str to list of Figure
        By target, one result for each of ``layers``; None if the target's suite has no such layer,
        or no row of it.
    """

    suite: str
    layers: tuple[str, ...]
    targets: tuple[str, ...]
    figures: dict[str, list[Figure | None]]

    @property
    def lines(self) -> tuple[Line, ...]:
        """Totals of each target."""
        return tuple(
            line(target, [f for f in self.figures[target] if f is not None])
            for target in self.targets
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "layers": [
                {
                    "label": label,
                    "targets": {
                        target: None if figure is None else figure.to_json()
                        for target in self.targets
                        for figure in [self.figures[target][number]]
                    },
                }
                for number, label in enumerate(self.layers)
            ],
            "lines": {
                total.target: {
                    "layers": total.layers,
                    "embedded": total.embedded,
                    **total.to_json(),
                }
                for total in self.lines
            },
        }


def across(benches: Sequence[Bench], progress: Progress | None = None) -> Across:
    """Compare the completed rows of one suite's benchmarks on several targets.

    If a row has no time of the instruction, the embedding that a run would select is searched and
    its time is estimated. Raises :class:`~cpembed.errors.SpecError` if two targets share a name.
    """
    hardware_specs([bench.maker.spec for bench in benches])
    figures: dict[str, dict[str, Figure]] = {}
    total, completed = sum(len(bench.finished()) for bench in benches), 0
    for bench in benches:
        target = bench.maker.spec.name
        by_label = figures.setdefault(target, {})
        rows = {row.index: row for row in bench.finished()}
        for layer in bench.layers:
            if layer.index not in rows:
                continue
            if progress is not None:
                progress(f"{layer.index}: {layer.label} on {target}", completed, total)
            by_label[layer.label] = _figure(bench, layer, rows[layer.index])
            completed += 1
    labels = tuple(dict.fromkeys(layer.label for bench in benches for layer in bench.layers))
    targets = tuple(figures)
    by_target = {target: [figures[target].get(label) for label in labels] for target in targets}
    return Across(benches[0].suite, labels, targets, by_target)


def _figure(bench: Bench, layer: Layer, row: BenchRow) -> Figure:
    """Return a row's result: as it ran, or else the embedding and time of a new search."""
    maker, best = bench.maker, row.best
    if row.error is not None and best is None:
        return Figure(row.macs, row.count, reason=row.error.message, outcome="failed")
    run, reason = row.run, None if best is None or best.reason is None else best.reason.text
    time = None if run is None else _time(run)
    # Rows of older versions lack the utilisation: those are searched again below.
    if run is not None and time is not None and run.utilisation is not None:
        on = run.instead or maker.spec.name
        return Figure(row.macs, row.count, on, run.utilisation, run.moved_bytes, time, reason)
    if run is None and (best is None or best.embedding is None):
        stopped = best is not None and best.status == Status.UNKNOWN.value
        outcome = "stopped" if stopped else "no"
        return Figure(row.macs, row.count, reason=reason, outcome=outcome)
    options = KernelOptions(
        constraints=None if maker.any_set else maker.constraints,
        timeout=maker.timeout,
        untuned=maker.untuned,
    )
    request = Request(maker.workload(layer), maker.spec, options)
    figure = match_in_worker(request).figure(row.macs, row.count)
    return figure if time is None else replace(figure, time=time)


def _time(run: RunRow) -> Time | None:
    """Return the time of the target's instruction; None if it did not run.

    Packing is included if both were timed in one call.
    """
    if run.cycles is not None:
        return Time(run.cycles, "cycles", run.simulated_us, Provenance.SIMULATED)
    times = run.whole_us or run.latency_us
    if run.latency_us is None or times is None:
        return None
    return Time(times.median, "us", times.median, run.provenance)
