"""Run a suite of layers: search, verify and time each; resumable.

>>> import tempfile
>>> from pathlib import Path
>>> with tempfile.TemporaryDirectory() as folder:
...     suite = open_bench(
...         "deepbench", "vta_1x16x16", layers="12", execute=False, results=Path(folder)
...     )
...     rows = list(suite.run())
>>> rows[0].strict.embedding.mapping, suite.summary()["strict"]["embedded"]
('y←k:16 z←c:16', 1)
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from cpembed.blocks import Displayed
from cpembed.codegen.epilogue import RESULT_TYPES
from cpembed.driver.bench_baselines import (
    check_comparable,
    check_output_applies,
    open_baselines,
)
from cpembed.driver.bench_layers import NamedSuite, named_suite
from cpembed.driver.bench_maker import RowMaker, measures, rows_by_workers, warm_up
from cpembed.driver.bench_rows import BenchRow
from cpembed.driver.bench_summary import summarise
from cpembed.driver.named import default_dtypes, hardware_spec
from cpembed.driver.options import DEFAULT_CONSTRAINTS, WIDER, BenchOptions, merged
from cpembed.embedding.constraint_set import load_constraint_set
from cpembed.errors import BackendUnavailable, CrashError, InvariantError, WorkloadError
from cpembed.hw.instruction import HardwareSpec
from cpembed.hw.loader import load_hardware_spec
from cpembed.runtime import worker
from cpembed.runtime.cluster import Workers
from cpembed.runtime.cluster.executors import ThisProcess
from cpembed.runtime.measurement.environment import machine, provenance, source_digest, versions
from cpembed.runtime.measurement.runner import ATTEMPTS, NOISE
from cpembed.stores import ResultStore, store_folder
from cpembed.targets.capabilities import calibration_digest
from cpembed.targets.portable import PORTABLE
from cpembed.targets.registry import missing_for, open_target
from cpembed.workloads.suites import Layer
from cpembed.workloads.user_suites import ComputedLayer

STRICT = "strict"
"""Name of the constraint set whose embeddings every row reports, beside the requested one."""

COUNTED = {
    "seconds.model": "building the model, in a process that solved before",
    "seconds.solve": "enumerating every solution and checking each, one thread",
    "seconds.total": "model, solve, deriving and proving programs, explaining a conflict",
    "latency_us": "the contraction alone, on packed operands; packing excluded",
    "packing_us": "packing the inputs that are not in packed_ahead",
    "unpacking_us": "unpacking the output",
    "noisy": f"a time whose p90 is more than {NOISE} times its p10, after {ATTEMPTS} attempts",
    "gops": "two operations a multiply-accumulate of the layer, padding not counted, over the "
    "median latency_us; packing excluded",
    "whole_us": "one call that packs, contracts and unpacks",
    "gops_with_packing": "the same over median whole_us",
    "peak_share": "gops over the rate of the instruction on operands that stay in registers, on as "
    "many threads",
    "baselines.*.call_us": "one call of the baseline, operands in its own layouts, weights packed "
    "ahead; interleaved with ours_us",
    "baselines.*.primitive_us": "the computation in that call by the library's own account",
    "baselines.*.reorder_us": "its moving of activations, not part of primitive_us",
    "baselines.*.weights_reorder_us": "its moving of weights that were packed ahead, but not as it "
    "wants them; not part of primitive_us",
    "baselines.*.ours_us": "latency_us, measured interleaved with the baseline",
    "baselines.*.ours_with_packing_us": "the same with packing and unpacking, in one call",
    "baselines.*_ratio": "the baseline's time over ours_us, above 1 where ours is faster; "
    "*_with_packing: over ours_with_packing_us, reorder_us added to primitive_us",
    "simulated_cycles": "from launch to FINISH on the simulated machine, packing excluded",
    "simulated_us": "simulated_cycles at clock_mhz",
    "simulated_gops": "two operations a multiply-accumulate of the layer over simulated_us",
    "lower_bound_ratio": "simulated_cycles over the larger of the GEMM core's cycles (executions "
    "on zeros only are not counted), those of reading each operand once, and those of writing the "
    "output",
    "busiest_module_ratio": "the same with resets and ALU operations added to the GEMM core's",
    "summary.run.total_us": "median latency_us times count, summed over the layers that were run",
    "summary.run.total_with_packing_us": "the same of whole_us",
}
"""Definition of each number in a row, by its path in the document of ``bench --json``."""

LayerProgress = Callable[[Layer, str, int], None]
"""Called with the layer, a phase (``model``, ``search``, ``verify`` …) and a running count."""

_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")


@dataclass(repr=False)
class Bench(Displayed):
    """A suite on a target, with the rows that are complete so far.

    Parameters
    ----------
    suite : str
        Name of the suite.
    layers : tuple of Layer
        Selected layers, in the order of the suite.
    maker : RowMaker
        Settings that all rows share.
    missing : tuple of str
        Reasons why the layers cannot run on this machine; empty if they can, or if nothing is to
        run.
    store : ResultStore
        File that completed rows are appended to.
    rows : dict of int to BenchRow
        Completed rows by the index of their layer; :meth:`run` adds the rest.
    reused : int
        Number of rows that an earlier run had left in the store.
    """

    suite: str
    layers: tuple[Layer, ...]
    maker: RowMaker
    missing: tuple[str, ...]
    store: ResultStore[BenchRow]
    rows: dict[int, BenchRow]
    reused: int

    @property
    def pending(self) -> tuple[Layer, ...]:
        """Layers without a row, in the suite's order."""
        return tuple(layer for layer in self.layers if layer.index not in self.rows)

    @property
    def measures(self) -> bool:
        """True if the rows contain times of the CPU that makes them."""
        return measures(self.maker)

    def run(
        self,
        progress: LayerProgress | None = None,
        workers: Workers | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> Iterator[BenchRow]:
        """Make the missing rows one by one; each is in the store before it is yielded.

        Parameters
        ----------
        progress : callable, optional
            Called at each phase of each layer, unless ``workers`` make the rows.
        workers : Workers, optional
            Processes that make the rows, which are then yielded in order of completion; by default
            this process makes them in the suite's order.
        stop : callable
            Asked before each layer; no layer is started after it has returned True.

        Yields
        ------
        BenchRow
            The next completed row.

        Raises
        ------
        CpembedError
            As :meth:`~cpembed.runtime.cluster.Workers.outcomes` does.
        """
        pending = self.pending
        if workers is None or isinstance(workers, ThisProcess):
            rows = self._rows_in_process(takewhile(lambda _: not stop(), pending), progress)
        else:
            rows = rows_by_workers(self.maker, pending, workers, stop)
        for layer, row in rows:
            # Stored first: an interrupted suite then resumes behind this row.
            self.store.append(row)
            self.rows[layer.index] = row
            yield row

    def _rows_in_process(
        self, layers: Iterable[Layer], progress: LayerProgress | None
    ) -> Iterator[tuple[Layer, BenchRow]]:
        """Make the rows in this process, in the order of ``layers``."""
        for number, layer in enumerate(layers):
            if not number:
                # Rows are made even where the worker crashes here.
                with suppress(CrashError):
                    worker.call(warm_up, self.maker, layer)

            def report(phase: str, count: int, layer: Layer = layer) -> None:
                if progress is not None:
                    progress(layer, phase, count)

            yield layer, self.maker.row(layer, progress=report)

    def finished(self) -> list[BenchRow]:
        """Return the completed rows, in the suite's order."""
        return [self.rows[layer.index] for layer in self.layers if layer.index in self.rows]

    def summary(self) -> dict[str, Any]:
        """Summarise the completed rows, as in the document of ``bench --json``."""
        return summarise(self.finished())

    def exit_code(self) -> int:
        """Return the exit code of the command.

        It is that of a bug if any layer hit one, that of the first error if every layer failed,
        else 0.
        """
        rows = self.finished()
        if any(row.is_bug for row in rows):
            return InvariantError.exit_code
        errors = [row.error for row in rows if row.error is not None]
        return errors[0].exit_code if errors and len(errors) == len(rows) else 0

    def to_json(self) -> dict[str, Any]:
        """Return the document of ``bench --json``."""
        maker = self.maker
        return {
            "suite": self.suite,
            "target": maker.spec.name,
            "instruction": str(maker.spec.instruction.computation),
            "constraints": maker.constraints.name,
            "layout": maker.layout,
            "backend": maker.backend,
            "epilogue": maker.epilogue and asdict(maker.epilogue),
            "baselines": {baseline.name: baseline.identity() for baseline in maker.baselines},
            "seed": maker.seed,
            "rows": [row.to_json() for row in self.finished()],
            "summary": self.summary(),
            "counted": COUNTED,
            "not_run": list(self.missing),
            **provenance(),
            "taken_from_store": self.reused,
            "store": str(self.store.path),
        }


def bench(
    suite: str,
    target: str | HardwareSpec,
    options: BenchOptions | None = None,
    *,
    progress: LayerProgress | None = None,
    **keywords: Any,
) -> Bench:
    """Search, run and compare every layer of a suite.

    Parameters
    ----------
    suite, target, options
        As in :func:`open_bench`.
    progress : callable, optional
        Called at each phase of each layer.

    Returns
    -------
    Bench
        Benchmark with all rows. Rows that an earlier call completed are taken from its store.

    Raises
    ------
    SpecError, WorkloadError
        As :func:`open_bench` does. An error of a layer is part of its row.
    """
    opened = open_bench(suite, target, options, **keywords)
    for _ in opened.run(progress):
        pass
    return opened


def open_bench(
    suite_name: str,
    target: str | HardwareSpec,
    options: BenchOptions | None = None,
    **keywords: Any,
) -> Bench:
    """Prepare a benchmark of a suite and load the rows that an earlier run completed.

    Parameters
    ----------
    suite_name : str
        A shipped suite, or a file: a table of layers (CSV), or a model, whose distinct products are
        the layers.
    target : str or HardwareSpec
        Target by name, file or value.
    options : BenchOptions, optional
        Selected layers and settings; its fields may also be given as keywords. With the ``backend``
        ``auto``, layers run if this machine can execute the target's instruction and are only
        solved otherwise. An epilogue or output type needs kernels that are not simulated; without
        one, kernels compared with a baseline write the output type of the library's fastest form.

    Returns
    -------
    Bench
        The benchmark, of which :meth:`Bench.run` makes the missing rows.

    Raises
    ------
    WorkloadError
        If the suite, a layer or a baseline is unknown, if a baseline is requested for kernels that
        have no time on this machine, or an output type although nothing is to run.
    SpecError
        If the target or the constraint set is invalid.
    BackendUnavailable
        If this machine cannot run ``native`` kernels or a baseline.
    """
    options = merged(BenchOptions, options, keywords)
    constraints, baselines = options.constraints, options.baselines
    backend, execute = options.backend, options.execute
    spec = hardware_spec(target, machine=options.machine)
    named_layers = named_suite(suite_name, spec, options.shapes)
    layers = select_layers(named_layers, options.layers)
    for layer in layers:
        if isinstance(layer, ComputedLayer):
            # Called for its check alone: a layout that does not apply is an error of the command,
            # not of every row.
            layer.workload(layout=options.layout)
    # All that the command line can get wrong is rejected here, before hours of layers.
    missing = missing_for(spec) if execute and backend != PORTABLE else ()
    if backend == "native" and missing:
        raise BackendUnavailable(
            f"{spec.name}: {'; '.join(missing)}; else use the generic back end"
        )
    epilogue = None
    storing = options.storing
    if options.output is not None or storing.steps:
        check_output_applies(spec, execute, backend, missing)
        epilogue = storing.epilogue(spec.name, default_dtypes(spec)[-1])
    if baselines:
        check_comparable(spec, execute, backend, missing)
        _check_baselines(named_layers.name, layers, options, has_steps=epilogue is not None)
    named = constraints or spec.constraints or DEFAULT_CONSTRAINTS
    maker = RowMaker(
        spec=spec,
        strict=load_constraint_set(STRICT),
        constraints=load_constraint_set(named) if isinstance(named, str) else named,
        backend=backend if execute and not missing else None,
        layout=options.layout,
        seed=options.seed or 0,
        timeout=options.timeout,
        any_set=constraints is None and spec.constraints is None,
        untuned=options.untuned,
        epilogue=epilogue,
        baselines=open_baselines(baselines, spec, epilogue),
        method=options.method,
    )
    names = (named_layers.name, spec.name, maker.constraints.name)
    key, flaw = _key(named_layers, maker), _row_flaw(named_layers.layers)
    store = ResultStore(options.results or store_folder("bench"), names, key, BenchRow, flaw)
    store.open(fresh=options.fresh)
    rows = _usable(store.load(), layers, maker)
    return Bench(
        suite=named_layers.name,
        layers=layers,
        maker=maker,
        missing=missing,
        store=store,
        rows=rows,
        reused=len(rows),
    )


def _check_baselines(
    suite_name: str, layers: Sequence[Layer], options: BenchOptions, *, has_steps: bool
) -> None:
    """Raise :class:`WorkloadError` for layers or options with which no library is compared."""
    if options.method != "implicit":
        raise WorkloadError(
            "a baseline is compared with kernels of the implicit method, not with "
            f"{options.method}: leave one of them out"
        )
    if any(isinstance(layer, ComputedLayer) for layer in layers):
        raise WorkloadError(
            f"{suite_name} has layers that no operator's sizes make, which no library is called "
            "with: leave the baseline out"
        )
    if has_steps and options.output is None:
        raise WorkloadError(
            "what a baseline stores after these steps has to be said: add --output (output=), "
            f"one of {', '.join(RESULT_TYPES)}"
        )


def select_layers(named: NamedSuite, text: str | None) -> tuple[Layer, ...]:
    """Return the layers of a suite that ``text`` selects by index and range; None selects all.

    >>> from cpembed.workloads.suites import suite
    >>> deepbench = NamedSuite("deepbench", suite("deepbench"))
    >>> [layer.index for layer in select_layers(deepbench, "3,0,5-7")]
    [0, 3, 5, 6, 7]
    """
    layers = named.layers
    if text is None:
        return layers
    picked: set[int] = set()
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            raise WorkloadError(f"layers {text!r}: {part!r} is neither 3 nor 3-7")
        first, last = int(match[1]), int(match[2] or match[1])
        if first > last or last >= len(layers):
            allowed = f"{named.name} has layers 0 to {len(layers) - 1}"
            raise WorkloadError(f"layers {text!r}: there is no {part.strip()}; {allowed}")
        picked.update(range(first, last + 1))
    return tuple(layer for layer in layers if layer.index in picked)


def _row_flaw(layers: Sequence[Layer]) -> Callable[[BenchRow], str | None]:
    """Return a check of stored rows: that each is consistent and of the layer with its index.

    A table of layers may have been edited since.
    """
    labels = {layer.index: layer.label for layer in layers}

    def flaw(row: BenchRow) -> str | None:
        if labels.get(row.index) != row.label:
            return f"layer {row.index} is not {row.label}"
        return row.flaw()

    return flaw


def _usable(
    stored: Iterable[BenchRow], layers: Sequence[Layer], maker: RowMaker
) -> dict[int, BenchRow]:
    """Return the last stored row of each layer that need not be made again.

    Rows with an error or a noisy comparison are, and those whose tuned schedules have changed.
    """
    by_index = {layer.index: layer for layer in layers}
    last = {row.index: row for row in stored if row.index in by_index}
    return {
        index: row
        for index, row in last.items()
        if row.error is None
        and not row.has_noisy_comparison
        and maker.is_current(by_index[index], row)
    }


def _key(named: NamedSuite, maker: RowMaker) -> dict[str, Any]:
    """Return everything that the rows depend on: stored rows with another key are not reused."""
    environment = machine()
    # Left out at their default, since older stores, which stay usable, do not have them.
    optional = {} if named.digest is None else {"layers": named.digest}
    optional |= {} if maker.method == "implicit" else {"method": maker.method}
    return {
        "suite": named.name,
        **optional,
        "target": maker.spec.name,
        "spec": _specifications(maker.spec),
        "constraints": maker.constraints.name,
        # The loaded values, since a file may extend others.
        "constraint_sets": _digest(
            repr((maker.strict, maker.constraints, load_constraint_set(WIDER))).encode()
        ),
        "backend": maker.backend,
        "layout": maker.layout,
        "epilogue": maker.epilogue and asdict(maker.epilogue),
        "seed": maker.seed,
        "timeout": maker.timeout,
        "tuned": _tuned(maker),
        "calibration": _calibrated(maker),
        "baselines": {baseline.name: baseline.identity() for baseline in maker.baselines},
        "versions": versions(),
        "source": source_digest(),
        "cpu": environment["cpu"],
        "threads": environment["threads"],
    }


def _specifications(spec: HardwareSpec) -> str:
    """Return a digest of the specification files of the target and of its alternatives."""
    specs = (spec, *map(load_hardware_spec, spec.alternatives))
    return _digest(b"".join(Path(each.path).read_bytes() for each in specs))


def _tuned(maker: RowMaker) -> str | None:
    """Return which tuned schedules the rows use; None if no kernel of the target runs."""
    if maker.backend in (None, PORTABLE):
        return None
    return "never" if maker.untuned else "any set" if maker.any_set else "this set"


def _calibrated(maker: RowMaker) -> str | None:
    """Return a digest of the calibration constants; None if no kernel of the target runs.

    Schedules and ``peak_share`` depend on them.
    """
    if maker.backend in (None, PORTABLE):
        return None
    return _digest(calibration_digest(open_target(maker.spec)).encode())


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
