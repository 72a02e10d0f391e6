"""The figures of an Arm core by which schedules are ranked."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import msgspec

from cpembed.hw.schema import read_table
from cpembed.targets.cpu.calibration import Calibration

_FILE = Path(__file__).parent / "machines" / "neoverse_v2.toml"


class _Cycles(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    line: tuple[float, float, float, float]
    store: tuple[float, float, float]
    task: float
    copy: float
    call: float
    launch: float


class _Core(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    cpu: str
    clock_ghz: float
    cache_bytes: tuple[int, int, int]
    product_cycles: dict[str, float]
    latency_cycles: dict[str, float]
    cycles: _Cycles


@cache
def core(threads: int) -> Calibration:
    """Published figures, of kernels on so many threads: nothing is measured on Arm yet."""
    found = read_table(_FILE, _Core)
    cycle, cycles = 1 / found.clock_ghz, found.cycles
    first, second, third, memory = (cycle * line for line in cycles.line)
    near, far, beyond = (cycle * line for line in cycles.store)
    return Calibration(
        cpu=found.cpu,
        threads=threads,
        cache_bytes=found.cache_bytes,
        product_ns={name: cycle * cost for name, cost in found.product_cycles.items()},
        product_row_ns=dict.fromkeys(found.product_cycles, 0.0),
        latency_ns={name: cycle * cost for name, cost in found.latency_cycles.items()},
        tile_line_ns=(0.0, 0.0, 0.0, 0.0),
        vector_line_ns=(first, second, third, memory),
        store_line_ns=(near, far, beyond),
        task_ns=cycle * cycles.task,
        launch_us=cycle * cycles.launch / 1e3,
        call_us=cycle * cycles.call / 1e3,
        copy_ns_per_line=cycle * cycles.copy,
        measured="",
    )
