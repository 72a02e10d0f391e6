"""Describe the device, and measure its ceilings in the same run as the kernels."""

from __future__ import annotations

import ctypes
import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.remote.driver import Driver, architecture, launch

_COPY_BYTES = 1 << 30
_FLUSH_BYTES = 256 << 20
"""Number of bytes written before each call.

They are several times the second level cache of any device so far, and take long enough that the
next launch waits for them, not for the processor.
"""

REPEATS = 9


class Clock:
    """Times calls on the current stream by events, with the second level cache emptied before."""

    def __init__(self) -> None:
        self._flushed = torch.empty(_FLUSH_BYTES, dtype=torch.int8, device="cuda")

    def __call__(self, run: Callable[[], None]) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._flushed.zero_()
        begin.record()
        run()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1e3


def warm_up(milliseconds: float = 300.0) -> None:
    """Compute products until the clocks have risen."""
    matrix = torch.randn(4096, 4096, dtype=torch.float16, device="cuda")
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    while True:
        for _ in range(20):
            matrix @ matrix
        end.record()
        end.synchronize()
        if begin.elapsed_time(end) >= milliseconds:
            return


def description(driver: Driver) -> dict[str, Any]:
    """Return names and versions, on which results depend."""
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    facts: dict[str, Any] = {
        "device": properties.name,
        "capability": list(torch.cuda.get_device_capability()),
        "multiprocessors": properties.multi_processor_count,
        "memory_bytes": properties.total_memory,
        "l2_bytes": getattr(properties, "L2_cache_size", None),
        "cuda_driver": driver.version(),
        "driver": queried("driver_version"),
        "clock_limits_mhz": queried("clocks.max.sm"),
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "cuda_of_torch": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "numpy": np.__version__,
    }
    try:
        import triton

        facts["triton"] = triton.__version__
    except ImportError:
        facts["triton"] = None
    return facts


def queried(field: str) -> str | None:
    """Return an answer of ``nvidia-smi``; None if it is missing."""
    try:
        process = subprocess.run(
            ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return process.stdout.strip().splitlines()[0] if process.stdout.strip() else None


def ceilings(root: Path, driver: Driver, clock: Clock) -> dict[str, float]:
    """Return the device's rates.

    These are bytes a second of a copy (read and written), multiply-adds a second of each
    instruction, and microseconds that events see of nothing.
    """
    source = torch.empty(_COPY_BYTES, dtype=torch.int8, device="cuda")
    target = torch.empty_like(source)
    us = median_us(clock, lambda: target.copy_(source))
    rates = {"copy_bytes_per_s": 2 * _COPY_BYTES / us * 1e6}
    rates["nothing_us"] = median_us(clock, lambda: None)
    for path in sorted((root / "ceilings").glob("*.json")):
        document = json.loads(path.read_text(encoding="utf-8"))
        rates[f"{path.stem}_macs_per_s"] = _multiplying(path, document, driver, clock)
    return rates


def median_us(clock: Clock, run: Callable[[], Any]) -> float:
    """Return the median microseconds of a call."""
    for _ in range(3):
        clock(run)
    return statistics.median(clock(run) for _ in range(REPEATS))


def _multiplying(path: Path, document: dict[str, Any], driver: Driver, clock: Clock) -> float:
    capability = torch.cuda.get_device_capability()
    cubin = path.with_suffix(f".{architecture(capability)}.cubin").read_bytes()
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    driver.call("cuModuleLoadData", ctypes.byref(module), cubin)
    name = document["kernel"].encode()
    driver.call("cuModuleGetFunction", ctypes.byref(function), module, name)
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    blocks = 4 * properties.multi_processor_count
    kernel = {
        "grid": [blocks, 1, 1],
        "block": [document["threads"], 1, 1],
        "dynamic_shared_bytes": 0,
    }
    out = torch.zeros(document["threads"], dtype=torch.int32, device="cuda")
    values = [ctypes.c_void_p(out.data_ptr()), ctypes.c_uint(0x3C003C00)]

    def run() -> None:
        launch(driver, function, kernel, values, torch.cuda.current_stream().cuda_stream)

    return blocks * document["macs_per_block"] / median_us(clock, run) * 1e6
