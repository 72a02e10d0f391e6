"""The constants of a machine that the model of its kernels needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True)
class Calibration:
    """Times in nanoseconds, of one thread; ``*_line_ns`` by level, from L1 outwards."""

    cpu: str
    threads: int
    cache_bytes: tuple[int, int, int]
    product_ns: Mapping[str, float]
    product_row_ns: Mapping[str, float]
    latency_ns: Mapping[str, float]
    tile_line_ns: tuple[float, float, float, float]
    vector_line_ns: tuple[float, float, float, float]
    store_line_ns: tuple[float, float, float]
    task_ns: float
    launch_us: float
    call_us: float
    copy_ns_per_line: float
    measured: str


def default_calibration() -> Calibration:
    return Calibration(
        cpu="",
        threads=1,
        cache_bytes=(48 * 1024, 2 * 1024 * 1024, 32 * 1024 * 1024),
        product_ns={"tdpbusd": 6.4, "tdpbf16ps": 6.4, "vpdpbusd": 0.2},
        product_row_ns={"tdpbusd": 0.3, "tdpbf16ps": 0.3, "vpdpbusd": 0.0},
        latency_ns={"tdpbusd": 20.8, "tdpbf16ps": 20.8, "vpdpbusd": 2.0},
        tile_line_ns=(0.2, 0.5, 2.0, 8.0),
        vector_line_ns=(0.2, 0.5, 2.0, 8.0),
        store_line_ns=(0.4, 0.8, 2.0),
        task_ns=60.0,
        launch_us=2.5,
        call_us=0.7,
        copy_ns_per_line=2.0,
        measured="",
    )


@cache
def calibration() -> Calibration:
    return default_calibration()
