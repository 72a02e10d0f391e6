"""The share of the instruction's own rate needs a calibrated machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cpembed.codegen.host_cpu import cpu_model
from cpembed.codegen.runtime import thread_count
from cpembed.hw.loader import load_hardware_spec
from cpembed.targets.cpu.calibration import (
    DIRECTORY_VARIABLE,
    OPERATIONS,
    default_calibration,
    store_calibration,
)
from cpembed.targets.x86.calibrate import instruction_peak_gops

AMX, BFLOAT, VNNI, VTA = map(
    load_hardware_spec, ("amx_int8", "amx_bf16", "avx512_vnni", "vta_1x16x16")
)


def test_the_rate_is_what_was_measured_here(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path))
    assert instruction_peak_gops(AMX) is None
    threads = thread_count()
    measured = replace(
        default_calibration(threads),
        cpu=cpu_model(),
        product_shared_ns={"tdpbusd": 10.0, "vpdpbusd": 0.25},
        measured="2026-01-01",
    )
    store_calibration(measured)
    assert instruction_peak_gops(AMX) == threads * OPERATIONS["tdpbusd"] / 10.0
    assert instruction_peak_gops(VNNI) == threads * 128 / 0.25
    assert instruction_peak_gops(BFLOAT) is None, "not measured"
    assert instruction_peak_gops(VTA) is None
