"""Measuring the constants of this machine that the model of x86 kernels needs.

The levels are those of AMOS section 5.3 and swATOP section 4.6: the instruction, the caches, the
cores. Each constant has a microkernel of its own
(:mod:`~cpembed.targets.x86.microbenchmarks`); all are timed interleaved
(:func:`~cpembed.targets.x86.microbenchmarks.time_in_rounds`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from cpembed.codegen.host_cpu import cache_bytes, cpu_model
from cpembed.codegen.runtime import thread_count
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
from cpembed.targets.x86.amx_tiles import MAX_ROWS
from cpembed.targets.x86.features import lacking
from cpembed.targets.x86.microbenchmarks import (
    CLOCK,
    FEW_ROWS,
    LEVELS,
    TASK_STEPS,
    Microbenchmarks,
    Series,
    time_in_rounds,
)
from cpembed.targets.x86.microkernels import TILE_TASK_LINES, VECTOR_TASK_LINES

ROUNDS = 60
TIMEOUT = 8.0
"""Seconds for rounds, those of the first :data:`ROUNDS` included."""

FEATURES: Mapping[str, tuple[str, ...]] = {
    "tdpbusd": ("amx_tile", "amx_int8"),
    "tdpbf16ps": ("amx_tile", "amx_bf16"),
    "vpdpbusd": ("avx512f", "avx512_vnni"),
    "vdpbf16ps": ("avx512f", "avx512_bf16"),
    "vpdpbusd_ymm": ("avx2", "avx_vnni"),
    "vfmadd231ps": ("avx512f",),
    "vfmadd231ps_ymm": ("avx2", "fma"),
}
"""CPU features by product instruction."""

_OF_FLOATS = ("tdpbf16ps", "vdpbf16ps", "vfmadd231ps", "vfmadd231ps_ymm")
"""Instructions whose sums are float32; those of the others are int32."""

_TILE_CYCLES = 16
"""Of a full tile product (Intel's optimization manual, chapter Intel AMX)."""
_CONTENDED = 1.5
"""A tile product that takes more than so many times its cycles shares its unit with others. Less
than that is the clock, which AMX lowers."""

OnStep = Callable[[str, int, int], None]
"""Called with ``build``, the kernels that are compiled and their number, then with ``measure``, the
rounds that are done and the figures that need more."""


def product_of(spec: HardwareSpec) -> str | None:
    """The product instruction of a target, which its CPU features and the type of its sums name;
    None where none is timed.
    """
    sums = spec.instruction.computation.output.dtype
    for name, wanted in FEATURES.items():
        if set(wanted) <= set(spec.cpu_features) and (name in _OF_FLOATS) == (sums == "float32"):
            return name
    return None


def unreported(what: str, done: int, of: int) -> None:
    """Nobody wants to know."""
    del what, done, of


@dataclass(frozen=True)
class Measured:
    """A calibration and how it went.

    ``missing`` says, by product instruction, what the CPU lacks; ``notes`` what disturbed the
    measurement; ``clock_ghz`` is the clock of plain integer code meanwhile.
    """

    calibration: Calibration
    missing: Mapping[str, str]
    notes: tuple[str, ...]
    clock_ghz: float
    rounds: int
    seconds: float


def measure_calibration(
    rounds: int = ROUNDS, timeout: float = TIMEOUT, on_step: OnStep = unreported
) -> Measured:
    """Measure every constant whose instruction this CPU has, in the worker; an instruction whose
    kernels end their process is left out.

    Raises :class:`BackendUnavailable` where it has none, :class:`MeasurementError` where the
    machine is too busy for a figure, and :class:`CrashError` where it is not an instruction that
    ends the process.
    """
    ended: dict[str, str] = {}
    while True:
        try:
            return worker.call(_measured, ended, rounds, timeout, progress=on_step)
        except CrashError as error:
            doing = error.doing or ""
            crashed = [name for name in FEATURES if name in doing and name not in ended]
            if not crashed:
                raise
            ended |= dict.fromkeys(crashed, str(error))


def _measured(
    ended: Mapping[str, str], rounds: int, timeout: float, *, progress: OnStep
) -> Measured:
    """``ended``: why instructions are left out whose kernels ended a worker."""
    started = time.perf_counter()
    # Asked here: the permission to use tiles is a process's own.
    missing = {
        name: ", ".join(lacks) for name, needs in FEATURES.items() if (lacks := lacking(needs))
    }
    missing |= ended
    products = [name for name in FEATURES if name not in missing]
    if not products:
        reasons = "; ".join(f"{name}: {what}" for name, what in missing.items())
        raise BackendUnavailable(f"this machine has no instruction to calibrate: {reasons}")
    microbenchmarks = Microbenchmarks(products, cache_bytes(), thread_count())
    probes = microbenchmarks.probes(partial(progress, "build"))
    elsewhere = Elsewhere()
    with elsewhere:
        series = dict(time_in_rounds(probes, rounds, timeout, partial(progress, "measure")))
        alone = microbenchmarks.alone([name for name, of in series.items() if not of.has_figure])
        series.update(time_in_rounds(alone, rounds, timeout / 4, partial(progress, "measure")))
    calibration = assemble(series, has_tiles=microbenchmarks.has_tiles)
    clock = 1 / series[CLOCK].ns
    again = [probe.name for probe in alone]
    notes = disturbances(calibration, clock, elsewhere.cores, again)
    done = max(len(of.long) for of in series.values())
    return Measured(calibration, missing, notes, clock, done, time.perf_counter() - started)


def assemble(series: Mapping[str, Series], *, has_tiles: bool) -> Calibration:
    """The constants from the probes.

    Raises :class:`MeasurementError` for one that has no figure and cannot do without.
    """

    def by_product(field: str, *, needed: bool = True) -> dict[str, float]:
        names = [
            name
            for name, found in series.items()
            if _field(name) == field and (needed or found.has_figure)
        ]
        return {_place(name): series[name].ns for name in names}

    def by_level(field: str) -> list[float]:
        names = [f"{field}:{level}" for level in LEVELS]
        return [series[name].ns if name in series else 0.0 for name in names]

    products = by_product("product_ns")
    few_rows = by_product("product_row_ns", needed=False)
    stores = by_level("store_line_ns")
    return Calibration(
        cpu=cpu_model(),
        threads=thread_count(),
        cache_bytes=cache_bytes(),
        product_ns=products,
        product_row_ns={
            name: row_ns(ns, few_rows[name]) if settled(series, name) else usual_row_ns(name, ns)
            for name, ns in products.items()
        },
        latency_ns=by_product("latency_ns"),
        tile_line_ns=_four(by_level("tile_line_ns")),
        vector_line_ns=_four(by_level("vector_line_ns")),
        store_line_ns=(stores[0], stores[1], stores[2]),
        task_ns=task_ns(
            *(series[f"task_ns:{steps}"].ns for steps in TASK_STEPS),
            stores_ns=(TILE_TASK_LINES if has_tiles else VECTOR_TASK_LINES) * stores[0],
        ),
        launch_us=series["launch_us"].ns / 1e3,
        call_us=series["call_us"].ns / 1e3,
        copy_ns_per_line=series["copy_ns_per_line"].ns,
        measured=datetime.now(UTC).isoformat(timespec="seconds"),
        split_line_ns=series["split_line_ns"].ns if "split_line_ns" in series else 0.0,
        product_shared_ns=(
            by_product("product_shared_ns", needed=False) if thread_count() > 1 else products
        ),
        noisy=tuple(
            name for name, found in series.items() if name != CLOCK and not found.is_steady
        ),
    )


def settled(series: Mapping[str, Series], product: str) -> bool:
    """Whether both times behind a row's share are known and steady: it is a small difference of
    them, and decides how images are cut into tiles.
    """
    probes = [f"{field}:{product}" for field in ("product_ns", "product_row_ns")]
    return all(
        name in series and series[name].has_figure and series[name].is_steady for name in probes
    )


def usual_row_ns(product: str, full: float) -> float:
    """What a row less saves, as a share of a product's time on an undisturbed core."""
    usual = default_calibration()
    return full * usual.product_row_ns[product] / usual.product_ns[product]


def row_ns(full: float, few: float) -> float:
    """What a row less saves of a product, from times with all rows and with :data:`FEW_ROWS`."""
    return max(0.0, full - few) / (MAX_ROWS - FEW_ROWS)


def task_ns(few: float, many: float, *, stores_ns: float) -> float:
    """The part of a task's time that neither its steps nor its stores explain, from tasks of
    :data:`TASK_STEPS`; none where they overlap it all.
    """
    step = (many - few) / (TASK_STEPS[1] - TASK_STEPS[0])
    return max(0.0, few - TASK_STEPS[0] * step - stores_ns)


def disturbances(
    found: Calibration, clock_ghz: float, elsewhere: float, again: Sequence[str]
) -> tuple[str, ...]:
    """What makes figures doubtful that are steady, in words. ``elsewhere`` is the number of cores
    that others had, ``again`` names the probes that had no figure on all threads.
    """
    notes: list[str] = []
    if elsewhere > BUSY:
        notes.append(f"other processes had {elsewhere:.1f} cores meanwhile")
    if again and found.threads > 1:
        notes.append(
            f"{', '.join(again)} had no figure on {found.threads} threads, so it is that of one; "
            "launch_us may have waiting in it"
        )
    for name, ns in found.product_ns.items():
        cycles = ns * clock_ghz
        if name.startswith("tdp") and cycles > _CONTENDED * _TILE_CYCLES:
            notes.append(
                f"{name} took {cycles:.0f} cycles of {clock_ghz:.1f} GHz, and {_TILE_CYCLES} are "
                "documented: something else uses the core's tile unit"
            )
    return tuple(notes)


def _field(probe: str) -> str:
    return probe.partition(":")[0]


def _place(probe: str) -> str:
    return probe.partition(":")[2]


def _four(values: list[float]) -> tuple[float, float, float, float]:
    first, second, third, fourth = values
    return first, second, third, fourth


_LINE = 64
"""Bytes."""


@dataclass(frozen=True)
class CalibrateResult:
    """The constants that are in use, and where they are kept; ``path`` is None for published ones.

    ``measured`` says how measuring went where it was done just now.
    """

    calibration: Calibration
    path: Path | None
    measured: Measured | None = None

    def to_json(self) -> dict[str, Any]:
        """The document of ``calibrate --json``."""
        found, run = self.calibration, self.measured
        return {
            "calibration": msgspec.to_builtins(found),
            "path": None if self.path is None else str(self.path),
            "peak_gops": {
                name: {"thread": found.peak_gops(name), "all": found.shared_peak_gops(name)}
                for name in OPERATIONS
                if name in found.product_ns
            },
            "gb_per_s": {
                "tile_load": _bandwidths(found.tile_line_ns),
                "split_tile_load": bandwidth(found.split_line_ns),
                "vector_load": _bandwidths(found.vector_line_ns),
                "store": _bandwidths(found.store_line_ns),
                "copy": bandwidth(found.copy_ns_per_line),
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
    on_step: OnStep = unreported,
) -> CalibrateResult:
    """Measure the constants of this machine and keep them in the place of older ones.

    ``rounds`` are made of all figures; those that do not settle get more, up to ``timeout``
    seconds. ``database`` is the folder that keeps them, a folder of the user's data unless told
    otherwise. Nothing is written before all is measured.

    Raises :class:`BackendUnavailable` for a CPU that has none of the instructions and
    :class:`MeasurementError` on a machine that is too busy.
    """
    measured = measure_calibration(rounds, timeout, on_step)
    path = store_calibration(measured.calibration, database)
    return CalibrateResult(measured.calibration, path, measured)


def known(database: Path | None = None) -> CalibrateResult:
    """What is kept for this CPU and number of threads, else the published figures that are used in
    its place.
    """
    found = load_calibration(database)
    if found is None:
        return CalibrateResult(default_calibration(thread_count()), None)
    return CalibrateResult(found, calibration_path(database))


def bandwidth(line_ns: float) -> float | None:
    """GB/s of lines that take so long each; None for what there is not."""
    return _LINE / line_ns if line_ns else None


def _bandwidths(lines: tuple[float, ...]) -> list[float | None]:
    return [bandwidth(ns) for ns in lines]


def instruction_peak_gops(spec: HardwareSpec) -> float | None:
    """Operations (two a multiply-accumulate) per nanosecond of the target's instruction on operands
    that stay in registers, on all threads of a kernel here; None where ``cpembed calibrate`` has
    not measured that.
    """
    measured = load_calibration()
    product = product_of(spec)
    if measured is None or product is None:
        return None
    return measured.shared_peak_gops(product)
