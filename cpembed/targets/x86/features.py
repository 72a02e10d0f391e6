"""CPU features of this machine, and the kernel's permission to use the tile registers of AMX."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Sequence
from functools import cache

from cpembed.codegen.host_cpu import cpu_features, listed, named_processor
from cpembed.hw.instruction import HardwareSpec

ASSUME_VARIABLE = "CPEMBED_ASSUME_CPU_FEATURES"
"""Testing aid: comma-separated features that count as present, permission included, because
something else executes them (the instruction emulator of the tests)."""

_ARCH_PRCTL = 158
_ARCH_REQ_XCOMP_PERM = 0x1023
_XTILEDATA = 18


def assumed_features() -> frozenset[str]:
    """Return the features that :data:`ASSUME_VARIABLE` lists."""
    return listed(ASSUME_VARIABLE)


@cache
def request_tile_permission() -> bool:
    """Ask the kernel for this process's permission to use AMX tile data; True if it is granted."""
    if platform.machine() != "x86_64" or platform.system() != "Linux":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    return libc.syscall(_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XTILEDATA) == 0


def missing_features(spec: HardwareSpec) -> tuple[str, ...]:
    """Return a message for each thing that is missing to execute a target's instruction.

    It is missing on the processor that kernels are built for, by default this machine's.
    """
    assumed = assumed_features()
    return lacking([name for name in spec.cpu_features if name not in assumed])


def lacking(names: Sequence[str]) -> tuple[str, ...]:
    """Return a message for each thing missing to execute instructions of these CPU features."""
    missing = [f"CPU feature {name}" for name in names if name not in cpu_features()]
    if named_processor() is not None:
        return tuple(missing)
    # Without the permission, Linux ends the process at its first AMX instruction.
    needs_tiles = any(name.startswith("amx") for name in names)
    if needs_tiles and not missing and not request_tile_permission():
        missing.append("the kernel's permission to use AMX tile data (arch_prctl refused)")
    return tuple(missing)
