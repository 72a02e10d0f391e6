"""What the model expected of a run, beside what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cpembed.measure.runner import Timing
from cpembed.targets.base import Target
from cpembed.targets.choice import Choice

FACTOR = 3.0
"""An estimate that is off by more is said: calibrated, on an idle machine, few are off by 2."""


@dataclass(frozen=True)
class Expectation:
    """Both in a unit. ``reasons``: why they may differ, the likely one first."""

    unit: str
    estimated: float
    measured: float
    reasons: tuple[str, ...]

    @classmethod
    def of(
        cls, target: Target[Any, Any, Any], choice: Choice, timing: Timing
    ) -> Expectation | None:
        """Of an execution with its packing and unpacking, where those count; None where no model
        knows it, or there is no time."""
        return cls.of_times(target, choice.estimated, timing)

    @classmethod
    def of_times(
        cls, target: Target[Any, Any, Any], estimated: float | None, timing: Timing
    ) -> Expectation | None:
        """Likewise, of what the model expects."""
        if target.unit == "cycles":
            measured = timing.cycles
        else:
            times = timing.whole_us or timing.latency_us
            measured = None if times is None else times.median
        if not estimated or estimated == float("inf") or measured is None:
            return None
        return cls(target.unit, estimated, measured, target.doubts(noisy=timing.noisy))

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
