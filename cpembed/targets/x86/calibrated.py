"""Measure what a model of kernels needs to know of this machine, and keep it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from cpembed.codegen.runtime import thread_count
from cpembed.steps import Progress, silent
from cpembed.targets.cpu.calibration import (
    OPERATIONS,
    Calibration,
    calibration_path,
    default_calibration,
    load_calibration,
    store_calibration,
)
from cpembed.targets.x86.calibrate import (
    ROUNDS,
    TIMEOUT,
    Measured,
    measure_calibration,
)

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
    on_step: Progress = silent,
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
    its place."""
    found = load_calibration(database)
    if found is None:
        return CalibrateResult(default_calibration(thread_count()), None)
    return CalibrateResult(found, calibration_path(database))


def bandwidth(line_ns: float) -> float | None:
    """GB/s of lines that take so long each; None for what there is not."""
    return _LINE / line_ns if line_ns else None


def _bandwidths(lines: tuple[float, ...]) -> list[float | None]:
    return [bandwidth(ns) for ns in lines]
