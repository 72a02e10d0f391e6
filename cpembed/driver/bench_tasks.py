"""Rows of a benchmark as tasks of workers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from itertools import takewhile

import msgspec

from cpembed.cluster import Task, Workers
from cpembed.driver.bench_maker import RowMaker
from cpembed.driver.bench_rows import BenchRow
from cpembed.errors import BackendUnavailable
from cpembed.hw.loader import load_hardware_spec
from cpembed.kernel.epilogue import Storing
from cpembed.provenance import Provenance
from cpembed.targets.portable import PORTABLE
from cpembed.targets.registry import open_target
from cpembed.tuning.records import Lookup, best_record
from cpembed.workloads.suites import Layer


def measures(maker: RowMaker) -> bool:
    """Whether rows have times of the CPU that makes them."""
    if maker.backend is None:
        return False
    specs = (maker.spec, *map(load_hardware_spec, maker.spec.alternatives))
    measured = any(open_target(spec).provenance is Provenance.MEASURED for spec in specs)
    return maker.backend == PORTABLE or measured


def rows_of(
    maker: RowMaker, layers: Sequence[Layer], workers: Workers, stop: Callable[[], bool]
) -> Generator[tuple[Layer, BenchRow], None, None]:
    """The rows of layers as workers complete them; none is begun after ``stop`` says so. Of kernels
    that are run, those with the most work are first: what is begun last is waited for."""
    ordered = layers if maker.backend is None else _largest_first(maker, layers)
    by_key = {_key(layer): layer for layer in ordered}
    tasks = _tasks(maker, by_key.values())
    for outcome in workers.outcomes(takewhile(lambda _: not stop(), tasks)):
        layer = by_key[outcome.task.key]
        error = outcome.error
        yield layer, outcome.result if error is None else maker.failed(layer, error)


def _key(layer: Layer) -> str:
    return f"layer {layer.index}"


def _largest_first(maker: RowMaker, layers: Sequence[Layer]) -> list[Layer]:
    return sorted(layers, key=lambda layer: _work(maker, layer), reverse=True)


def _work(maker: RowMaker, layer: Layer) -> int:
    """Multiply-accumulates; none of a layer whose row will be an error."""
    with suppress(Exception):
        return maker.workload(layer).macs
    return 0


def _tasks(maker: RowMaker, layers: Iterable[Layer]) -> Iterator[Task]:
    timed = measures(maker)
    for layer in layers:
        arguments = (maker, layer, known(maker, layer))
        yield Task(_key(layer), make_row, arguments, f"making the row of {layer.label}", timed)


def make_row(maker: RowMaker, layer: Layer, client_knows: str) -> BenchRow:
    """In a worker: a layer's row, without times of this CPU where the kernel itself is not timed:
    packing for a simulated machine may have been measured beside other work, or on another CPU than
    the client's. Whether such times were disturbed goes with them.

    Raises :class:`BackendUnavailable` where the worker's machine knows other trials of the layer or
    other figures of the target than the client's, ``client_knows``, among whose rows this one is.
    """
    if known(maker, layer) != client_knows:
        raise BackendUnavailable(
            "the worker knows other tuned schedules or calibrated figures than the client: have "
            "both read the same CPEMBED_TUNE_DIR and CPEMBED_CALIBRATION_DIR"
        )
    _warm_up(maker, layer)
    row = maker.row(layer, progress=lambda phase, count: None)
    if row.run is None or row.run.provenance is Provenance.MEASURED:
        return row
    untimed = msgspec.structs.replace(row.run, packing_us=None, unpacking_us=None, noisy=False)
    return msgspec.structs.replace(row, run=untimed)


@cache
def _warmed() -> list[Layer]:
    return []


def _warm_up(maker: RowMaker, layer: Layer) -> None:
    """A search before the first that is timed in a process."""
    if not _warmed():
        _warmed().append(layer)
        with suppress(Exception):
            maker.warm_up(layer)


def known(maker: RowMaker, layer: Layer) -> str:
    """A digest of what the kept trials and figures of this machine add to a layer's row; empty
    where nothing does."""
    if maker.backend in (None, PORTABLE):
        return ""
    try:
        workload = maker.workload(layer)
    except Exception:
        # The row will tell.
        return ""
    found: list[object] = []
    for spec in (maker.spec, *map(load_hardware_spec, maker.spec.alternatives)):
        target = open_target(spec)
        found.append(target.figures())
        if not maker.untuned:
            epilogue = maker.epilogue or target.epilogue(workload, Storing())
            constraints = None if maker.any_set else maker.constraints
            record = best_record(target, Lookup(workload, epilogue, constraints))
            found.append(record and (record.trial.identifier, record.trial.key, record.trials))
    return hashlib.sha256(repr(found).encode()).hexdigest()
