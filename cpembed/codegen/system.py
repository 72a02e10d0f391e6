"""What the system says of this machine: the CPU's model, its caches."""

from __future__ import annotations

import platform
from contextlib import suppress
from functools import cache
from pathlib import Path

_CPU = Path("/proc/cpuinfo")
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}


@cache
def cpu_model(information: Path = _CPU) -> str:
    """The model as /proc/cpuinfo names it, with family and number, which tell generations apart
    where a virtual machine gives them one name; else as the platform names it."""
    found: dict[str, str] = {}
    with suppress(OSError):
        for line in information.read_text().splitlines():
            field, _, value = line.partition(":")
            # Of the first core: the fields of the others come later.
            found.setdefault(field.strip(), value.strip())
    name = found.get("model name") or platform.processor() or platform.machine() or "unknown"
    family, number = found.get("cpu family"), found.get("model")
    return f"{name}, family {family} model {number}" if family and number else name


def cache_bytes(caches: Path = _CACHES) -> tuple[int, int, int]:
    """Bytes of one L1 data cache, one L2 and one L3, each shared as the machine shares it; 0 where
    the system does not say."""
    sizes = [0, 0, 0]
    for index in sorted(caches.glob("index*")):
        try:
            level = int((index / "level").read_text())
            kind = (index / "type").read_text().strip()
            size = _bytes((index / "size").read_text().strip())
        except (OSError, ValueError):
            continue
        if kind != "Instruction" and 1 <= level <= len(sizes):
            sizes[level - 1] = size
    first, second, third = sizes
    return first, second, third


def _bytes(text: str) -> int:
    """``48K`` in bytes."""
    unit = _UNITS.get(text[-1:], 1)
    return int(text.rstrip("".join(_UNITS))) * unit
