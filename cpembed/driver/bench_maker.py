"""Makes the rows of a benchmark: searches a layer, runs its kernel, keeps what goes wrong."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from itertools import takewhile
from typing import Any

import msgspec

from cpembed import worker
from cpembed.baselines.base import Baseline, Subject
from cpembed.cluster import Task, Workers
from cpembed.driver.bench_baselines import BaselineRow, baseline_row
from cpembed.driver.bench_layers import layer_workload
from cpembed.driver.bench_rows import (
    BenchRow,
    ErrorRow,
    RunRow,
    SolvedRow,
    error_row,
    run_row,
    solved_row,
)
from cpembed.driver.named import default_dtypes, is_typed, typed_by_roles
from cpembed.driver.options import BackendName, MethodName, RunOptions, SolveOptions
from cpembed.driver.result import SolveResult
from cpembed.driver.run import run
from cpembed.driver.run_result import RunResult
from cpembed.driver.solve import solve
from cpembed.embedding.constraint_set import ConstraintSet
from cpembed.errors import BackendUnavailable, CpembedError, CrashError
from cpembed.hw.instruction import HardwareSpec
from cpembed.hw.loader import load_hardware_spec
from cpembed.ir.computation import Computation
from cpembed.kernel.epilogue import Epilogue, Storing
from cpembed.provenance import Provenance
from cpembed.targets.portable import PORTABLE
from cpembed.targets.registry import open_target
from cpembed.tuning.records import Lookup, Record, best_record
from cpembed.workloads.suites import Layer
from cpembed.workloads.user_suites import ComputedLayer

Phase = Callable[[str, int], None]


@dataclass(frozen=True)
class RowMaker:
    """How every layer of a suite is treated; ``backend`` None: solve, do not run.

    ``any_set``: what was tuned under any constraint set is used, not only under ``constraints``;
    ``untuned``: none of it. ``epilogue``: what kernels store, None for the sums, or what a target
    stores by default. ``baselines`` run beside each kernel that uses the instruction.
    ``method``: by which convolutions are computed.
    """

    spec: HardwareSpec
    strict: ConstraintSet
    constraints: ConstraintSet
    backend: BackendName | None
    layout: str
    seed: int
    timeout: float | None
    any_set: bool = False
    untuned: bool = False
    epilogue: Epilogue | None = None
    baselines: tuple[Baseline, ...] = ()
    method: MethodName = "implicit"

    def workload(self, layer: Layer) -> Computation:
        """The layer on the target's element types."""
        if isinstance(layer, ComputedLayer):
            return layer_workload(layer, self.layout, self.spec)
        named = layer.workload(default_dtypes(self.spec), self.layout)
        return named if is_typed([layer.label]) else typed_by_roles(named, self.spec.instruction)

    def is_current(self, layer: Layer, row: BenchRow) -> bool:
        """Whether a stored row is of what tuning knows now."""
        run = row.run
        if run is None or self.backend in (None, "generic"):
            return True
        kept = None if self.untuned else self._kept(layer, run.instead)
        if kept is None or run.tuned is None:
            return kept is None and run.tuned is None
        known = kept.trial.identifier.split("+")[0], kept.trials
        return known == (run.tuned.embedding, run.tuned.trials)

    def _kept(self, layer: Layer, instead: str | None) -> Record[Any] | None:
        workload = self.workload(layer)
        target = open_target(self.spec if instead is None else load_hardware_spec(instead))
        constraints = None if self.any_set else self.constraints
        epilogue = target.epilogue(workload, Storing()) if self.epilogue is None else self.epilogue
        return best_record(target, Lookup(workload, epilogue, constraints))

    def row(self, layer: Layer, *, progress: Phase) -> BenchRow:
        """The layer's row, made in the worker; an exception of its searches or its kernel is part
        of it, and so is what ended the worker."""
        started = time.perf_counter()
        try:
            draft = worker.call(self.draft, layer, progress=progress)
        except CrashError as error:
            draft = Draft(error=error_row(error))
        return _row(layer, draft, time.perf_counter() - started)

    def failed(self, layer: Layer, error: CpembedError) -> BenchRow:
        """The row of a layer that nothing is known of but what went wrong."""
        return _row(layer, Draft(error=error_row(error)), 0.0)

    def draft(self, layer: Layer, *, progress: Phase) -> Draft:
        """What there is of the layer's row; an exception is part of it."""
        draft = Draft()
        try:
            workload = self.workload(layer)
            draft.macs = workload.macs
            self._fill(draft, layer, workload, progress)
        except Exception as error:
            draft.error = error_row(error)
        return draft

    def warm_up(self, layer: Layer) -> None:
        """A search like those of rows."""
        workload = self.workload(layer)
        self.solve(workload, self.strict, lambda phase, count: None)

    def solve(
        self, workload: Computation, chosen: ConstraintSet | None, report: Phase
    ) -> SolveResult:
        options = SolveOptions(constraints=chosen, top=1, timeout=self.timeout, seed=self.seed)
        return solve(workload, self.spec, options, progress=report)

    def _fill(self, draft: Draft, layer: Layer, workload: Computation, report: Phase) -> None:
        draft.strict = solved_row(self.solve(workload, self.strict, report))
        chosen = None if self.any_set else self.constraints
        if self.backend is None:
            again = chosen == self.strict
            draft.best = draft.strict if again else solved_row(self.solve(workload, chosen, report))
            return
        try:
            options = RunOptions(
                constraints=chosen,
                backend=self.backend,
                seed=self.seed,
                timeout=self.timeout,
                untuned=self.untuned,
                method=self.method,
                **({} if self.epilogue is None else _output(self.epilogue)),
            )
            result = run(workload, self.spec, options, progress=report)
        except Exception:
            # What was found is worth a row although it did not run.
            draft.best = solved_row(self.solve(workload, chosen, report))
            raise
        if isinstance(result, SolveResult):
            draft.best = solved_row(result)
            return
        # What the suite's target has, also where another one ran in its place.
        draft.best = solved_row(result.solved if result.instead is None else result.instead.solved)
        draft.run = run_row(result)
        if self.baselines:
            compared = self._beside(result, layer, report)
            draft.run = msgspec.structs.replace(draft.run, baselines=compared)

    def _beside(self, result: RunResult, layer: Layer, report: Phase) -> dict[str, BaselineRow]:
        """The kernel and each baseline, timed interleaved."""
        subject = Subject.of(layer, result.solved.workload, self.layout, self.epilogue)
        found: dict[str, BaselineRow] = {}
        for baseline in self.baselines:
            report(f"beside {baseline.name}", 0)
            found[baseline.name] = baseline_row(result, baseline, subject)
        return found


def _row(layer: Layer, draft: Draft, seconds: float) -> BenchRow:
    return BenchRow(
        layer.index,
        layer.label,
        layer.application,
        layer.count,
        draft.macs,
        datetime.now(UTC).isoformat(timespec="seconds"),
        seconds,
        draft.strict,
        draft.best,
        draft.run,
        draft.error,
    )


def _output(epilogue: Epilogue) -> dict[str, Any]:
    """Return the options of an epilogue for :class:`~cpembed.driver.options.RunOptions`."""
    steps = {name: getattr(epilogue, name) for name in ("scale", "bias", "relu")}
    return {"output": epilogue.dtype, "shift": epilogue.shift or None, **steps}


@dataclass
class Draft:
    """What is known of a layer's row so far."""

    macs: int = 0
    strict: SolvedRow | None = None
    best: SolvedRow | None = None
    run: RunRow | None = None
    error: ErrorRow | None = None


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
