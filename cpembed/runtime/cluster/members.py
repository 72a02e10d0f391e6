"""The workers of a cluster at one moment, as its scheduler knows them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cpembed.runtime.cluster.identity import measured_cpu


@dataclass(frozen=True)
class Member:
    """A worker's process: how many tasks it takes at a time, and the CPU model on which it may
    measure, None where it may not."""

    host: str
    slots: int
    measures_on: str | None


@dataclass(frozen=True)
class Members:
    """All of them."""

    all: tuple[Member, ...]

    @classmethod
    def told(cls, workers: Mapping[str, Mapping[str, Any]]) -> Members:
        """Of what a scheduler tells of its workers by their addresses."""
        return cls(tuple(_member(told) for told in workers.values() if told["status"] == "running"))

    @property
    def slots(self) -> int:
        return sum(member.slots for member in self.all)

    def measuring(self, cpu: str) -> int:
        """How many may measure on a CPU model: those that are alone on their host."""
        hosts = Counter(member.host for member in self.all)
        return sum(hosts[one.host] == 1 for one in self.all if one.measures_on == cpu)

    def cannot_measure(self, cpu: str) -> str:
        """Why there is none, in words."""
        models = sorted({one.measures_on for one in self.all if one.measures_on is not None})
        if cpu in models:
            return f"those on {cpu} share their host with other workers"
        what = f"its measuring workers have {'; '.join(models)}" if models else "none measures"
        return f"of its {len(self.all)} workers {what}" if not models else what


def _member(told: Mapping[str, Any]) -> Member:
    cpus = (measured_cpu(tag) for tag in told["resources"])
    return Member(told["host"], told["nthreads"], next((cpu for cpu in cpus if cpu), None))
