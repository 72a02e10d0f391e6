"""A suite on several targets: the benches of each, and their layers beside each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cpembed.driver.across import Figure, Line, Time, line
from cpembed.driver.bench import Bench
from cpembed.driver.bench_rows import BenchRow, RunRow
from cpembed.driver.matching import match_in_worker
from cpembed.driver.named import hardware_specs
from cpembed.driver.options import KernelOptions
from cpembed.driver.request import Request
from cpembed.embedding.cpsat import Status
from cpembed.provenance import Provenance
from cpembed.workloads.suites import Layer

Progress = Callable[[str, int, int], None]
"""Called with the layer and target that are looked at, how many are done, and of how many."""


@dataclass(frozen=True)
class Across:
    """``layers``: the label of each, in order; ``figures``: by target, one for each layer, None
    where the target's suite has no such layer or no row of it."""

    suite: str
    layers: tuple[str, ...]
    targets: tuple[str, ...]
    figures: dict[str, list[Figure | None]]

    @property
    def lines(self) -> tuple[Line, ...]:
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
                        target: None if found is None else found.to_json()
                        for target in self.targets
                        for found in [self.figures[target][number]]
                    },
                }
                for number, label in enumerate(self.layers)
            ],
            "lines": {
                found.target: {
                    "layers": found.layers,
                    "embedded": found.embedded,
                    **found.to_json(),
                }
                for found in self.lines
            },
        }


def across(benches: Sequence[Bench], progress: Progress | None = None) -> Across:
    """The rows of finished benches of one suite. Where a row has no time of the instruction, the
    embedding that a run would choose is looked for, and its time estimated.

    Raises :class:`~cpembed.errors.SpecError` where two targets have one name.
    """
    hardware_specs([bench.maker.spec for bench in benches])
    figures: dict[str, dict[str, Figure]] = {}
    total, done = sum(len(bench.finished()) for bench in benches), 0
    for bench in benches:
        target = bench.maker.spec.name
        by_label = figures.setdefault(target, {})
        rows = {row.index: row for row in bench.finished()}
        for layer in bench.layers:
            if layer.index not in rows:
                continue
            if progress is not None:
                progress(f"{layer.index}: {layer.label} on {target}", done, total)
            by_label[layer.label] = _figure(bench, layer, rows[layer.index])
            done += 1
    labels = tuple(dict.fromkeys(layer.label for bench in benches for layer in bench.layers))
    targets = tuple(figures)
    beside = {target: [figures[target].get(label) for label in labels] for target in targets}
    return Across(benches[0].suite, labels, targets, beside)


def _figure(bench: Bench, layer: Layer, row: BenchRow) -> Figure:
    maker, best = bench.maker, row.best
    if row.error is not None and best is None:
        return Figure(row.macs, row.count, reason=row.error.message, outcome="failed")
    run, reason = row.run, None if best is None or best.reason is None else best.reason.text
    time = None if run is None else _time(run)
    # Rows of older versions do not say how much is used.
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
    found = match_in_worker(request).figure(row.macs, row.count)
    return found if time is None else replace(found, time=time)


def _time(run: RunRow) -> Time | None:
    """Of the target's instruction, packing and unpacking included where they are timed with it."""
    if run.cycles is not None:
        return Time(run.cycles, "cycles", run.simulated_us, Provenance.SIMULATED)
    times = run.whole_us or run.latency_us
    if run.latency_us is None or times is None:
        return None
    return Time(times.median, "us", times.median, run.provenance)
