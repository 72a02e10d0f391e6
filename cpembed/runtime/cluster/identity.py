"""What client and workers have to have in common, and how measuring workers are named."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version

from cpembed.codegen.host_cpu import cpu_model
from cpembed.runtime.measurement.environment import source_digest, versions

_MEASURING = "cpembed measures on "


@dataclass(frozen=True)
class Identity:
    """Versions that results depend on, and a digest of the package's source."""

    versions: dict[str, str]
    source: str

    def difference(self, other: Identity) -> str | None:
        """What ``other`` has that this one has not, in words; None where they are the same."""
        for name, number in other.versions.items():
            if (ours := self.versions.get(name)) != number:
                return f"{name} {number}, not {ours}"
        if other.source != self.source:
            return f"cpembed {other.versions['cpembed']} of other sources"
        return None


@cache
def identity() -> Identity:
    """Of this process."""
    return Identity({**versions(), "distributed": version("distributed")}, source_digest())


def measuring_tag(cpu: str | None = None) -> str:
    """The resource of which a worker that may measure has one unit: its CPU's exact model."""
    return _MEASURING + (cpu_model() if cpu is None else cpu)


def measured_cpu(tag: str) -> str | None:
    """The CPU model of a resource of :func:`measuring_tag`; None for another resource."""
    return tag.removeprefix(_MEASURING) if tag.startswith(_MEASURING) else None


def cores() -> int:
    """Cores that this process may use."""
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ()
    return len(usable) or os.cpu_count() or 1


def host_name() -> str:
    """For messages."""
    return platform.node() or "this machine"
