"""Trials of a target that keeps no more of them than a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cpembed.provenance import Provenance
from cpembed.runtime.measurement.environment import versions
from cpembed.runtime.tuning.database import Trial, module_digest
from cpembed.stores import Positive, Time
from cpembed.wording import duration


class PlainTrial(Trial, frozen=True):
    """A schedule of an embedding, as JSON, with its estimate and its time, in ``unit``; ``time`` is
    None where it has no program. ``schedule_key`` tells schedules apart."""

    kind = "plain"

    schedule: Any
    schedule_key: str
    unit: str
    provenance: Provenance
    estimate: Time | None
    time: Positive | None

    @property
    def key(self) -> str:
        return f"{self.identifier} {self.schedule_key}"

    @property
    def cost(self) -> float | None:
        return self.time

    @property
    def estimated(self) -> float | None:
        return self.estimate

    def standing(self, objective: str | None = None) -> str:
        return f"best {figure(self.time or 0, self.unit)}"

    @classmethod
    def is_current(cls, key: Mapping[str, Any]) -> bool:
        here = versions()["cpembed"], module_digest(key["module"])
        return (key["version"], key["source"]) == here


def figure(value: float, unit: str) -> str:
    """``12.3 us``, ``4,096 cycles``."""
    return duration(value) if unit == "us" else f"{value:,.0f} {unit}"
