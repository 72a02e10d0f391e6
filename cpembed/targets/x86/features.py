"""What this machine's CPU and kernel provide of an instruction set.

AMX needs two things: the CPU features, and the kernel's permission, asked once per process, to use
the large register state (without it the first AMX instruction ends the process).
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Sequence
from functools import cache

from cpembed.codegen.host_cpu import cpu_features, listed
from cpembed.errors import BackendUnavailable
from cpembed.hw.instruction import HardwareSpec

ASSUME_VARIABLE = "CPEMBED_ASSUME_CPU_FEATURES"
"""A testing aid: comma-separated features to take as present, permission included, because
something else executes them (the instruction emulator of the tests)."""

_ARCH_PRCTL = 158
_ARCH_REQ_XCOMP_PERM = 0x1023
_XTILEDATA = 18


def assumed_features() -> frozenset[str]:
    return listed(ASSUME_VARIABLE)


@cache
def request_tile_permission() -> bool:
    """Ask the kernel for this process's permission to use AMX tile data."""
    if platform.machine() != "x86_64" or platform.system() != "Linux":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    return libc.syscall(_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XTILEDATA) == 0


def missing_features(spec: HardwareSpec) -> tuple[str, ...]:
    """What running the target's instruction lacks here, in words; empty where nothing does."""
    assumed = assumed_features()
    return lacking([name for name in spec.cpu_features if name not in assumed])


def lacking(names: Sequence[str]) -> tuple[str, ...]:
    """What executing instructions of CPU features lacks here, in words; nothing is assumed."""
    missing = [f"CPU feature {name}" for name in names if name not in cpu_features()]
    wants_tiles = any(name.startswith("amx") for name in names)
    if wants_tiles and not missing and not request_tile_permission():
        missing.append("the kernel's permission to use AMX tile data (arch_prctl refused)")
    return tuple(missing)


def require(spec: HardwareSpec) -> None:
    """Raise :class:`BackendUnavailable` where the machine cannot execute the instruction."""
    missing = missing_features(spec)
    if missing:
        raise BackendUnavailable(
            f"{spec.name} cannot execute here, missing: {', '.join(missing)}; "
            "use the generic back end"
        )
