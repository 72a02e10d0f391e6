"""What the model expected of a run, beside what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from cpembed.api.run_cpu import CpuChoice
from cpembed.measure.runner import Measurement
from cpembed.targets.cpu.calibration import calibration
from cpembed.targets.vta.estimate import estimate_schedule
from cpembed.targets.vta.lower import LoweredVta
from cpembed.targets.vta.timing import Timing

FACTOR = 3.0
"""An estimate that is off by more is said: calibrated, on an idle machine, few are off by 2."""


@dataclass(frozen=True)
class Expectation:
    """Both in a unit. ``reasons``: why they may differ, the likely one first."""

    unit: Literal["us", "cycles"]
    estimated: float
    measured: float
    reasons: tuple[str, ...]

    @property
    def ratio(self) -> float:
        return self.measured / self.estimated

    @property
    def is_off(self) -> bool:
        """By more than :data:`FACTOR`."""
        return not 1 / FACTOR <= self.ratio <= FACTOR

    def to_json(self) -> dict[str, Any]:
        """A part of the document of ``run --json``."""
        return {
            "unit": self.unit,
            "estimated": self.estimated,
            "measured": self.measured,
            "ratio": self.ratio,
            "off": self.is_off,
            "reasons": list(self.reasons) if self.is_off else [],
        }


def of_times(choice: CpuChoice | None, times: Measurement) -> Expectation | None:
    """Of a kernel with its packing and unpacking; None where no model knows it."""
    if choice is None:
        return None
    if choice.tuned is not None:
        trial = choice.tuned.trial
        estimated = trial.estimate_us + trial.estimated_moves_us
    elif choice.estimate is not None:
        estimated = choice.estimate.total_us
    else:
        return None
    again = "other work on the machine disturbed the times: run it again when it is idle"
    if calibration().is_default:
        known = "the model has published figures of another machine: run `cpembed calibrate`"
    else:
        known = (
            "the machine is not as it was when it was calibrated: run `cpembed calibrate` again "
            "when it is idle"
        )
    reasons = (*((again,) if times.noisy else ()), known, "the model does not know this case")
    return Expectation("us", estimated, times.whole_us.median, reasons)


def of_cycles(lowered: LoweredVta, timing: Timing) -> Expectation | None:
    """Of a simulated program; None where the model takes the schedule for one that does not fit."""
    estimated = estimate_schedule(lowered.nest, lowered.schedule, lowered.tail, timing.memory)
    if estimated == float("inf"):
        return None
    reason = (
        "this schedule waits for loads or stores that the model overlaps: `cpembed tune` compares "
        "schedules by simulated cycles"
    )
    return Expectation("cycles", estimated, timing.cycles, (reason,))
