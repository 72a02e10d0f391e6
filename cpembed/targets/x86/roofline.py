"""How much of a machine's own limit a kernel reaches."""

from __future__ import annotations

from cpembed.hw.instruction import HardwareSpec
from cpembed.targets.cpu.calibration import load_calibration
from cpembed.targets.x86.calibrate import product_of


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
