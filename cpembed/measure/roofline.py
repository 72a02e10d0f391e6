"""How much of a machine's own limit a kernel reaches."""

from __future__ import annotations

from cpembed.hw.instruction import HardwareSpec


def instruction_peak_gops(spec: HardwareSpec) -> float | None:
    """Operations (two a multiply-accumulate) per nanosecond of the target's instruction on operands
    that stay in registers, on all threads of a kernel here; None where that was never measured.
    """
    del spec
    return None
