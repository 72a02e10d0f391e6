"""Speed of this machine: constants for the model of x86 kernels, and throttling at the moment.

The levels are those of AMOS section 5.3 and swATOP section 4.6: the instruction, the caches, the
cores. Each constant has a microkernel of its own
(:mod:`~cpembed.targets.x86.microbenchmarks`). :class:`ThrottlingProbe` compares the speed of the
product instruction at the moment with the measured one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import Any

import msgspec

from cpembed.codegen.host_cpu import cache_bytes, cpu_model
from cpembed.codegen.runtime import compile_plan, thread_count
from cpembed.errors import BackendUnavailable, CrashError
from cpembed.hw.instruction import HardwareSpec
from cpembed.runtime import worker
from cpembed.runtime.measurement.interleaved import BUSY, Elsewhere
from cpembed.targets.cpu.calibration import (
    OPERATIONS,
    Calibration,
    calibration_path,
    default_calibration,
    load_calibration,
    store_calibration,
)
from cpembed.targets.x86 import microkernels
from cpembed.targets.x86.amx_tiles import MAX_ROWS
from cpembed.targets.x86.features import lacking
from cpembed.targets.x86.microbenchmarks import (
    BLOCK_PRODUCTS,
    CLOCK,
    FEW_ROWS,
    LEVELS,
    TASK_STEPS,
    VECTOR_ACCUMULATORS,
    Kernel,
    Microbenchmarks,
    Series,
    time_in_rounds,
)

ROUNDS = 60
TIMEOUT = 8.0
"""Number of rounds of all measurements, and seconds for these and further ones."""

# Instructions of more features come first, because a target of AVX512-BF16 names AVX512F too, and
# product_of returns the first that fits.
FEATURES: Mapping[str, tuple[str, ...]] = {
    "tdpbusd": ("amx_tile", "amx_int8"),
    "tdpbf16ps": ("amx_tile", "amx_bf16"),
    "vpdpbusd": ("avx512f", "avx512_vnni"),
    "vdpbf16ps": ("avx512f", "avx512_bf16"),
    "vpdpbusd_ymm": ("avx2", "avx_vnni"),
    "vfmadd231ps": ("avx512f",),
    "vfmadd231ps_ymm": ("avx2", "fma"),
}
"""CPU features of each product instruction."""
_FLOAT_PRODUCTS = ("tdpbf16ps", "vdpbf16ps", "vfmadd231ps", "vfmadd231ps_ymm")
"""Instructions whose sums are float32; those of the others are int32."""

_TILE_CYCLES = 16
"""Cycles of a full tile product (Intel's optimization manual, chapter Intel AMX)."""
_CONTENDED = 1.5
"""Minimum ratio to these cycles that tells of a shared tile unit; AMX lowers the clock by less."""

OnStep = Callable[[str, int, int], None]
"""Called with ``build``, the kernels compiled so far and their number, then with ``measure``, the
finished rounds and the number of constants that need more."""


def product_of(spec: HardwareSpec) -> str | None:
    """Return the timed product instruction of a target, by CPU features and type of its sums."""
    sums = spec.instruction.computation.output.dtype
    for name, features in FEATURES.items():
        has_float_sums = name in _FLOAT_PRODUCTS
        if set(features) <= set(spec.cpu_features) and has_float_sums == (sums == "float32"):
            return name
    return None


# ------------------------------------------------------------------------------ measuring


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """Calibration and the circumstances of its measurement.

    ``missing`` has the reasons why instructions were left out, ``notes`` are messages about
    disturbances; ``clock_ghz`` is the clock of plain integer code meanwhile.
    """

    calibration: Calibration
    missing: Mapping[str, str]
    notes: tuple[str, ...]
    clock_ghz: float
    rounds: int
    seconds: float


def _ignore_step(phase: str, finished: int, total: int) -> None: ...


def measure_calibration(
    rounds: int = ROUNDS, timeout: float = TIMEOUT, on_step: OnStep = _ignore_step
) -> Measurement:
    """Measure the constants of every product instruction of this CPU, in the worker.

    Parameters
    ----------
    rounds, timeout, on_step
        As for :func:`calibrate`, which raises the same errors.
    """
    crashes: dict[str, str] = {}
    while True:
        try:
            return worker.call(_measure, crashes, rounds, timeout, progress=on_step)
        except CrashError as error:
            # An instruction that the CPU reports may still end the process: measure the others.
            activity = error.doing or ""
            crashed = [name for name in FEATURES if name in activity and name not in crashes]
            if not crashed:
                raise
            crashes |= dict.fromkeys(crashed, str(error))


def _measure(
    crashes: Mapping[str, str], rounds: int, timeout: float, *, progress: OnStep
) -> Measurement:
    """Measure in this process, leaving out the instructions whose kernels ended a worker."""
    started = time.perf_counter()
    # In the worker, since the permission to use tiles belongs to a process.
    missing = {
        name: ", ".join(reasons)
        for name, features in FEATURES.items()
        if (reasons := lacking(features))
    }
    missing |= crashes
    products = [name for name in FEATURES if name not in missing]
    if not products:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in missing.items())
        raise BackendUnavailable(f"this machine has no instruction to calibrate: {reasons}")
    microbenchmarks = Microbenchmarks(products, cache_bytes(), thread_count())
    probes = microbenchmarks.probes(partial(progress, "build"))
    elsewhere = Elsewhere()
    with elsewhere:
        on_round = partial(progress, "measure")
        series = dict(time_in_rounds(probes, rounds, timeout, on_round))
        # Threads that never ran at the same time give no time of a shared level: one thread's
        # stands in.
        failed = [name for name, each in series.items() if not each.has_result]
        repeated = microbenchmarks.single_thread(failed)
        series.update(time_in_rounds(repeated, rounds, timeout / 4, on_round))
    calibration = assemble(series, has_tiles=microbenchmarks.has_tiles)
    clock_ghz = 1 / series[CLOCK].ns
    names = [probe.name for probe in repeated]
    return Measurement(
        calibration=calibration,
        missing=missing,
        notes=disturbances(calibration, clock_ghz, elsewhere.cores, names),
        clock_ghz=clock_ghz,
        rounds=max(len(each.long) for each in series.values()),
        seconds=time.perf_counter() - started,
    )


def assemble(series: Mapping[str, Series], *, has_tiles: bool) -> Calibration:
    """Return the constants from the series of all probes.

    Raises :class:`MeasurementError` if one without a result is required.
    """

    def by_product(constant: str, *, required: bool = True) -> dict[str, float]:
        return {
            name.partition(":")[2]: each.ns
            for name, each in series.items()
            if name.partition(":")[0] == constant and (required or each.has_result)
        }

    def by_level(constant: str) -> list[float]:
        names = [f"{constant}:{level}" for level in LEVELS]
        return [series[name].ns if name in series else 0.0 for name in names]

    def loads(constant: str) -> tuple[float, float, float, float]:
        first, second, third, memory = by_level(constant)
        return first, second, third, memory

    products = by_product("product_ns")
    few_rows = by_product("product_row_ns", required=False)
    first_store, second_store, third_store, _ = by_level("store_line_ns")
    few_steps, many_steps = (series[f"task_ns:{steps}"].ns for steps in TASK_STEPS)
    # Tasks are timed on tiles if there are any, else on vectors.
    stored_lines = microkernels.TILE_TASK_LINES if has_tiles else microkernels.VECTOR_TASK_LINES
    return Calibration(
        cpu=cpu_model(),
        threads=thread_count(),
        cache_bytes=cache_bytes(),
        product_ns=products,
        product_row_ns={
            name: row_ns(ns, few_rows[name])
            if _has_steady_rows(series, name)
            else usual_row_ns(name, ns)
            for name, ns in products.items()
        },
        latency_ns=by_product("latency_ns"),
        tile_line_ns=loads("tile_line_ns"),
        vector_line_ns=loads("vector_line_ns"),
        store_line_ns=(first_store, second_store, third_store),
        task_ns=task_ns(few_steps, many_steps, stores_ns=stored_lines * first_store),
        launch_us=series["launch_us"].ns / 1e3,
        call_us=series["call_us"].ns / 1e3,
        copy_ns_per_line=series["copy_ns_per_line"].ns,
        measured=datetime.now(UTC).isoformat(timespec="seconds"),
        split_line_ns=series["split_line_ns"].ns if "split_line_ns" in series else 0.0,
        product_shared_ns=(
            by_product("product_shared_ns", required=False) if thread_count() > 1 else products
        ),
        noisy=tuple(name for name, each in series.items() if name != CLOCK and not each.is_steady),
    )


def _has_steady_rows(series: Mapping[str, Series], product: str) -> bool:
    # A row's share is a small difference of two times, and decides how images are cut into tiles.
    names = [f"{constant}:{product}" for constant in ("product_ns", "product_row_ns")]
    return all(
        name in series and series[name].has_result and series[name].is_steady for name in names
    )


def usual_row_ns(product: str, full_ns: float) -> float:
    """Return the time that a missing row saves, as a share of a product's on a quiet core."""
    usual = default_calibration()
    return full_ns * usual.product_row_ns[product] / usual.product_ns[product]


def row_ns(full_ns: float, few_ns: float) -> float:
    """Return the time that a missing row saves, from full tiles and those of :data:`FEW_ROWS`."""
    return max(0.0, full_ns - few_ns) / (MAX_ROWS - FEW_ROWS)


def task_ns(few_ns: float, many_ns: float, *, stores_ns: float) -> float:
    """Return the overhead of a task besides its steps and stores; 0 if these hide it.

    Parameters
    ----------
    few_ns, many_ns : float
        Times of tasks of :data:`TASK_STEPS`.
    stores_ns : float
        Time of the stores.
    """
    step_ns = (many_ns - few_ns) / (TASK_STEPS[1] - TASK_STEPS[0])
    return max(0.0, few_ns - TASK_STEPS[0] * step_ns - stores_ns)


def disturbances(
    calibration: Calibration, clock_ghz: float, busy_cores: float, repeated: Sequence[str]
) -> tuple[str, ...]:
    """Return messages about disturbances that make steady constants doubtful.

    Parameters
    ----------
    calibration : Calibration
        Measured constants.
    clock_ghz : float
        Clock of plain integer code.
    busy_cores : float
        Number of cores that other processes used.
    repeated : sequence of str
        Names of the probes that were repeated on one thread.
    """
    notes: list[str] = []
    if busy_cores > BUSY:
        notes.append(f"other processes had {busy_cores:.1f} cores meanwhile")
    if repeated and calibration.threads > 1:
        notes.append(
            f"{', '.join(repeated)} had no figure on {calibration.threads} threads, so it is that "
            "of one; launch_us may have waiting in it"
        )
    for name, ns in calibration.product_ns.items():
        cycles = ns * clock_ghz
        if name.startswith("tdp") and cycles > _CONTENDED * _TILE_CYCLES:
            notes.append(
                f"{name} took {cycles:.0f} cycles of {clock_ghz:.1f} GHz, and {_TILE_CYCLES} are "
                "documented: something else uses the core's tile unit"
            )
    return tuple(notes)


# ------------------------------------------------------------------------------ the command


@dataclass(frozen=True)
class CalibrateResult:
    """Constants in use with their file; ``path`` is None for published ones.

    ``measured`` tells how they were measured, if that was just now.
    """

    calibration: Calibration
    path: Path | None
    measured: Measurement | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the document of ``calibrate --json``."""
        constants, run = self.calibration, self.measured
        return {
            "calibration": msgspec.to_builtins(constants),
            "path": None if self.path is None else str(self.path),
            "peak_gops": {
                name: {"thread": constants.peak_gops(name), "all": constants.shared_peak_gops(name)}
                for name in OPERATIONS
                if name in constants.product_ns
            },
            "gb_per_s": {
                "tile_load": [bandwidth(ns) for ns in constants.tile_line_ns],
                "split_tile_load": bandwidth(constants.split_line_ns),
                "vector_load": [bandwidth(ns) for ns in constants.vector_line_ns],
                "store": [bandwidth(ns) for ns in constants.store_line_ns],
                "copy": bandwidth(constants.copy_ns_per_line),
            },
            "missing": {} if run is None else dict(run.missing),
            "notes": [] if run is None else list(run.notes),
            "clock_ghz": None if run is None else run.clock_ghz,
            "rounds": None if run is None else run.rounds,
            "seconds": None if run is None else run.seconds,
        }


def calibrate(
    *,
    rounds: int = ROUNDS,
    timeout: float = TIMEOUT,
    database: Path | None = None,
    on_step: OnStep = _ignore_step,
) -> CalibrateResult:
    """Measure the constants of this machine and store them in place of older ones.

    Nothing is written before everything is measured.

    Parameters
    ----------
    rounds : int
        Number of rounds of all measurements; those that are not steady get more.
    timeout : float
        Seconds after which no further round starts.
    database : Path, optional
        Folder of calibrations; by default the user's.
    on_step : callable
        Called with the progress.

    Raises
    ------
    BackendUnavailable
        If the CPU has none of the instructions.
    MeasurementError
        If the machine is too busy for a constant.
    CrashError
        If the process ends, and not by an instruction's kernel.
    """
    measured = measure_calibration(rounds, timeout, on_step)
    path = store_calibration(measured.calibration, database)
    return CalibrateResult(measured.calibration, path, measured)


def calibration_in_use(database: Path | None = None) -> CalibrateResult:
    """Return the constants stored for this CPU and number of threads, else the published ones."""
    stored = load_calibration(database)
    if stored is None:
        return CalibrateResult(default_calibration(thread_count()), None)
    return CalibrateResult(stored, calibration_path(database))


def bandwidth(line_ns: float) -> float | None:
    """Return the GB/s of cache lines that take so long each; None if the time is unknown."""
    return microkernels.LINE / line_ns if line_ns else None


def instruction_peak_gops(spec: HardwareSpec) -> float | None:
    """Return the maximum throughput of a target's instruction on all threads of a kernel.

    Operations (two per multiply-accumulate) per nanosecond, on operands in registers. None if
    ``cpembed calibrate`` has not measured it.
    """
    measured = load_calibration()
    product = product_of(spec)
    if measured is None or product is None:
        return None
    return measured.shared_peak_gops(product)


# ------------------------------------------------------------------------------ throttling

# On a shared machine, a core's tile unit may also serve another guest, for a minute or a
# millisecond. Products then take two or three times as long, and nothing that the system accounts
# for shows it. A loop of products on registers does.

UNTHROTTLED = 1.5
"""Maximum ratio to the calibrated time, or to the shortest one since: clocks vary, and threads take
time to start."""

PATIENCE = 0.1
"""Seconds to wait for full speed."""

_SAMPLE_NS = 100_000
"""Duration of a sample on each thread."""
_STRETCH_SAMPLES = 10
_REGION = microkernels.BLOCK


class ThrottlingProbe:
    """Loop of a product instruction in registers, on all threads of a kernel."""

    def __init__(self, product: str, threads: int) -> None:
        tiles = product.startswith("tdp")
        if tiles:
            products, step_ns = len(BLOCK_PRODUCTS), 7.0 * len(BLOCK_PRODUCTS)
            body = microkernels.tile_products(product, BLOCK_PRODUCTS)
        else:
            products, step_ns = VECTOR_ACCUMULATORS, 0.2 * VECTOR_ACCUMULATORS
            body = microkernels.vector_products(product, VECTOR_ACCUMULATORS, products)
        plan = microkernels.plan(body, _REGION, threads, tiles=tiles)
        data = microkernels.varied_bytes(_REGION * threads)
        self._kernel = Kernel(compile_plan(plan), threads, data, MAX_ROWS)
        self._steps = int(_SAMPLE_NS / step_ns)
        stretch_products = products * self._steps * _STRETCH_SAMPLES
        self.macs = OPERATIONS[product] // 2 * stretch_products * threads
        """Multiply-accumulates of :meth:`stretch`, at the product's largest shape."""
        calibration = load_calibration()
        shared_ns = None if calibration is None else calibration.product_shared_ns.get(product)
        self._best_ns = math.inf if shared_ns is None else shared_ns * products * self._steps

    @staticmethod
    def for_target(spec: HardwareSpec) -> ThrottlingProbe | None:
        """Return the probe of a target's instruction; None if this CPU does not have it."""
        product = product_of(spec)
        if product is None or lacking(FEATURES[product]):
            return None
        return _shared_probe(product, thread_count())

    def wait(self) -> bool:
        """Run the loop until it is at full speed; False after :data:`PATIENCE` seconds."""
        deadline = time.perf_counter() + PATIENCE
        while not self.is_unthrottled():
            if time.perf_counter() > deadline:
                return False
        return True

    def stretch(self) -> None:
        """Multiply for about a millisecond, to be timed: long against the start of the threads."""
        self._kernel.run(self._steps * _STRETCH_SAMPLES)

    def is_unthrottled(self) -> bool:
        """True if the loop takes about as long as it did at best."""
        # The better of two samples: a single interruption is no throttling.
        sample_ns = min(self._timed() for _ in range(2))
        self._best_ns = min(self._best_ns, sample_ns)
        return sample_ns <= UNTHROTTLED * self._best_ns

    def _timed(self) -> float:
        started = time.perf_counter_ns()
        self._kernel.run(self._steps)
        return float(time.perf_counter_ns() - started)


@cache
def _shared_probe(product: str, threads: int) -> ThrottlingProbe:
    # One for the process, since the best time improves with each sample.
    return ThrottlingProbe(product, threads)
