"""Make the rows of a benchmark: search a layer, run its kernel, record errors."""

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

from cpembed.codegen.epilogue import Epilogue
from cpembed.codegen.epilogue_request import EpilogueRequest
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
from cpembed.provenance import Provenance
from cpembed.runtime import worker
from cpembed.runtime.baselines import Baseline, Subject
from cpembed.runtime.cluster import Task, Workers
from cpembed.runtime.tuning.records import Lookup, Record
from cpembed.targets.capabilities import calibration_digest
from cpembed.targets.portable import PORTABLE
from cpembed.targets.registry import open_target
from cpembed.targets.tuner import record_identity, stored_record
from cpembed.workloads.suites import Layer

Phase = Callable[[str, int], None]
"""Called with the name of a phase and a running count."""


@dataclass(frozen=True)
class RowMaker:
    """Settings with which every row of a benchmark is made.

    Parameters
    ----------
    spec : HardwareSpec
        Target.
    strict : ConstraintSet
        Constraint set of :attr:`BenchRow.strict`.
    constraints : ConstraintSet
        Requested constraint set, of :attr:`BenchRow.best` and the kernel.
    backend : str or None
        Back end of the kernels; None if layers are only solved.
    layout : str
        Layout of the layers' tensors.
    seed : int
        Seed of the solver and the random data.
    timeout : float or None
        Limit of each search, in seconds.
    any_set : bool
        True if no constraint set was requested: presets beyond ``constraints`` are searched too,
        and schedules that were tuned under any set are used.
    untuned : bool
        True if no tuned schedules are used.
    epilogue : Epilogue, optional
        Epilogue of the kernels; None for the default of the target, for most the plain sums.
    baselines : tuple of Baseline
        Libraries that each kernel of the instruction is compared with.
    method : str
        Method that computes convolutions.
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
        """Return the computation of a layer, on the target's element types."""
        return layer_workload(layer, self.spec, self.layout)

    def is_current(self, layer: Layer, row: BenchRow) -> bool:
        """True if a stored row used the best tuned schedule that is now known."""
        run = row.run
        if run is None or self.backend in (None, "generic"):
            return True
        record = None if self.untuned else self._tuning_record(layer, run.instead)
        if record is None or run.tuned is None:
            return record is None and run.tuned is None
        # A candidate's identifier is that of its embedding, then "+" with what is in place.
        best = record.trial.identifier.split("+")[0], record.trials
        return best == (run.tuned.embedding, run.tuned.trials)

    def _tuning_record(self, layer: Layer, instead: str | None) -> Record[Any] | None:
        """Return the best tuning record for a layer, on its alternative target if one ran it."""
        workload = self.workload(layer)
        target = open_target(self.spec if instead is None else load_hardware_spec(instead))
        constraints = None if self.any_set else self.constraints
        epilogue = (
            target.epilogue(workload, EpilogueRequest()) if self.epilogue is None else self.epilogue
        )
        return stored_record(target, Lookup(workload, epilogue, constraints))

    def row(self, layer: Layer, *, progress: Phase) -> BenchRow:
        """Make the row of a layer in the worker.

        An exception, or a crash of the worker, becomes the row's error.
        """
        started = time.perf_counter()
        try:
            draft = worker.call(self.draft, layer, progress=progress)
        except CrashError as error:
            draft = Draft(error=error_row(error))
        return _row(layer, draft, time.perf_counter() - started)

    def failed(self, layer: Layer, error: CpembedError) -> BenchRow:
        """Return the row of a layer that failed before anything was recorded."""
        return _row(layer, Draft(error=error_row(error)), 0.0)

    def draft(self, layer: Layer, *, progress: Phase) -> Draft:
        """Make a layer's row as far as it comes: an exception becomes the draft's error."""
        draft = Draft()
        try:
            workload = self.workload(layer)
            draft.macs = workload.macs
            self._fill(draft, layer, workload, progress)
        except Exception as error:
            draft.error = error_row(error)
        return draft

    def solve(
        self, workload: Computation, constraints: ConstraintSet | None, report: Phase
    ) -> SolveResult:
        """Search a workload under a constraint set, or under the target's presets for None.

        Parameters
        ----------
        workload : Computation
            Computation of a layer.
        constraints : ConstraintSet or None
            Constraint set.
        report : callable
            Called at each phase.
        """
        options = SolveOptions(constraints=constraints, top=1, timeout=self.timeout, seed=self.seed)
        return solve(workload, self.spec, options, progress=report)

    def _fill(self, draft: Draft, layer: Layer, workload: Computation, report: Phase) -> None:
        draft.strict = solved_row(self.solve(workload, self.strict, report))
        constraints = None if self.any_set else self.constraints
        if self.backend is None:
            draft.best = (
                draft.strict
                if constraints == self.strict
                else solved_row(self.solve(workload, constraints, report))
            )
            return
        try:
            options = RunOptions(
                constraints=constraints,
                backend=self.backend,
                seed=self.seed,
                timeout=self.timeout,
                untuned=self.untuned,
                method=self.method,
                **({} if self.epilogue is None else _output(self.epilogue)),
            )
            result = run(workload, self.spec, options, progress=report)
        except Exception:
            # The exception took the search's result along: search again, since the row of a layer
            # that does not run still reports its embedding.
            draft.best = solved_row(self.solve(workload, constraints, report))
            raise
        if isinstance(result, SolveResult):
            draft.best = solved_row(result)
            return
        # `best` is always of the suite's target, even if an alternative ran.
        draft.best = solved_row(result.requested)
        draft.run = run_row(result)
        if self.baselines:
            baselines = self._compare(result, layer, report)
            draft.run = msgspec.structs.replace(draft.run, baselines=baselines)

    def _compare(self, result: RunResult, layer: Layer, report: Phase) -> dict[str, BaselineRow]:
        """Time the kernel against each baseline."""
        subject = Subject.from_layer(layer, result.solved.workload, self.layout, self.epilogue)
        rows: dict[str, BaselineRow] = {}
        for baseline in self.baselines:
            report(f"beside {baseline.name}", 0)
            rows[baseline.name] = baseline_row(result, baseline, subject)
        return rows


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
    """Part of a layer's row that is recorded so far; see :class:`BenchRow` for the fields."""

    macs: int = 0
    strict: SolvedRow | None = None
    best: SolvedRow | None = None
    run: RunRow | None = None
    error: ErrorRow | None = None


def measures(maker: RowMaker) -> bool:
    """True if the rows contain times of the CPU that makes them."""
    if maker.backend is None:
        return False
    specs = (maker.spec, *map(load_hardware_spec, maker.spec.alternatives))
    measured = any(open_target(spec).provenance is Provenance.MEASURED for spec in specs)
    return maker.backend == PORTABLE or measured


def rows_by_workers(
    maker: RowMaker, layers: Sequence[Layer], workers: Workers, stop: Callable[[], bool]
) -> Generator[tuple[Layer, BenchRow], None, None]:
    """Make the rows of layers in workers.

    Parameters
    ----------
    maker : RowMaker
        Settings of the rows.
    layers : sequence of Layer
        Layers to make rows of.
    workers : Workers
        Processes that make the rows.
    stop : callable
        Asked before each layer; no layer is started after it has returned True.

    Yields
    ------
    Layer, BenchRow
        A layer and its row, in order of completion.
    """
    # The largest kernels run first: the last ones to start determine when all have ended.
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
    """Return the multiply-accumulates of a layer; 0 if its row will be an error."""
    with suppress(Exception):
        return maker.workload(layer).macs
    return 0


def _tasks(maker: RowMaker, layers: Iterable[Layer]) -> Iterator[Task]:
    timed = measures(maker)
    for layer in layers:
        arguments = (maker, layer, inputs_digest(maker, layer))
        yield Task(_key(layer), make_row, arguments, f"making the row of {layer.label}", timed)


def make_row(maker: RowMaker, layer: Layer, client_digest: str) -> BenchRow:
    """Make a layer's row in a worker.

    Parameters
    ----------
    maker : RowMaker
        Settings of the rows.
    layer : Layer
        Layer to make the row of.
    client_digest : str
        :func:`inputs_digest` on the client's machine.

    Returns
    -------
    BenchRow
        The row; if the kernel itself is not timed on this CPU, without times of packing and
        ``noisy``.

    Raises
    ------
    BackendUnavailable
        If the worker's machine has other tuned schedules of the layer, or other calibration
        constants of the target, than the client's: its row would not fit among the client's.
    """
    if inputs_digest(maker, layer) != client_digest:
        raise BackendUnavailable(
            "the worker has other tuned schedules or calibration constants than the client: have "
            "both read the same CPEMBED_TUNE_DIR and CPEMBED_CALIBRATION_DIR"
        )
    warm_up(maker, layer)
    row = maker.row(layer, progress=lambda phase, count: None)
    if row.run is None or row.run.provenance is Provenance.MEASURED:
        return row
    # Packing for a simulated machine is timed on this CPU, beside other workers' rows, and perhaps
    # on another CPU than the client's: such times cannot be compared.
    untimed = msgspec.structs.replace(row.run, packing_us=None, unpacking_us=None, noisy=False)
    return msgspec.structs.replace(row, run=untimed)


@cache
def _warmed() -> list[Layer]:
    return []


def warm_up(maker: RowMaker, layer: Layer) -> None:
    """Search once before the first timed search of this process: libraries load at first use."""
    if not _warmed():
        _warmed().append(layer)
        # An error of the layer itself belongs to its row, which is made next.
        with suppress(Exception):
            maker.solve(maker.workload(layer), maker.strict, lambda phase, count: None)


def inputs_digest(maker: RowMaker, layer: Layer) -> str:
    """Return a digest of what this machine has stored that affects a layer's row.

    That is tuning records and calibration constants; the digest is empty if there are none.
    """
    if maker.backend in (None, PORTABLE):
        return ""
    try:
        workload = maker.workload(layer)
    except Exception:
        # The same error becomes that of the row.
        return ""
    inputs: list[object] = []
    for spec in (maker.spec, *map(load_hardware_spec, maker.spec.alternatives)):
        target = open_target(spec)
        inputs.append(calibration_digest(target))
        if not maker.untuned:
            epilogue = maker.epilogue or target.epilogue(workload, EpilogueRequest())
            constraints = None if maker.any_set else maker.constraints
            inputs.append(record_identity(target, Lookup(workload, epilogue, constraints)))
    return hashlib.sha256(repr(inputs).encode()).hexdigest()
