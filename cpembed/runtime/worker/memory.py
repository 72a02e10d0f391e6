"""How much memory there is for a process."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

_SYSTEM = Path("/proc/meminfo")
_GROUP = Path("/sys/fs/cgroup")


def available_bytes(system: Path = _SYSTEM, group: Path = _GROUP) -> int | None:
    """What the system has available, or what is left of the control group's limit where that is
    less; None where neither is said."""
    found: list[int] = []
    with suppress(OSError, ValueError, IndexError):
        lines = system.read_text().splitlines()
        line = next(line for line in lines if line.startswith("MemAvailable:"))
        found.append(int(line.split()[1]) * 1024)
    with suppress(OSError, ValueError):
        limit, used = (int((group / f"memory.{name}").read_text()) for name in ("max", "current"))
        found.append(max(0, limit - used))
    return min(found) if found else None
