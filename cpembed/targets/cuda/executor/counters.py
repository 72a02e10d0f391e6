"""What a launch did, counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any


def _no_calls() -> dict[str, int]:
    return {}


@dataclass(frozen=True)
class Counters:
    """Counts of one launch, or of several added up.

    A *wavefront* serves one 4-byte word of each of the 32 banks of shared memory; a *sector* is 32
    bytes of global memory. ``…_least`` is what the same accesses, warp by warp, take at best:
    without bank conflicts, and with the bytes of a warp's access side by side and aligned.
    """

    instructions: Mapping[str, int] = field(default_factory=_no_calls)
    """Calls of device functions, collective functions and barriers, by name; one a warp."""
    shared_load_wavefronts: int = 0
    """``ldmatrix`` and loads of WMMA fragments included."""
    shared_load_wavefronts_least: int = 0
    shared_store_wavefronts: int = 0
    """Those of ``cp.async`` included."""
    shared_store_wavefronts_least: int = 0
    ldmatrix_wavefronts: int = 0
    global_load_sectors: int = 0
    """By access of a warp; those of ``cp.async`` included."""
    global_load_sectors_least: int = 0
    global_store_sectors: int = 0
    global_store_sectors_least: int = 0
    global_load_bytes: int = 0
    """Asked for, by all lanes."""
    global_store_bytes: int = 0
    unique_bytes_read: int = 0
    """Of global memory, each once a launch: no cache can make memory give fewer."""
    unique_bytes_written: int = 0
    barriers: int = 0
    """Of whole blocks."""
    cp_async_groups: int = 0
    """Committed by warps."""
    blocks: int = 0

    @property
    def mma(self) -> dict[str, int]:
        """Matrix multiplications by their device functions."""
        return {name: calls for name, calls in self.instructions.items() if "_mma_" in name}

    @property
    def ldmatrix(self) -> int:
        """How many ``ldmatrix``, of any number of matrices."""
        return sum(n for name, n in self.instructions.items() if "_ldmatrix_" in name)

    def __add__(self, other: Counters) -> Counters:
        names = [f.name for f in fields(self) if f.name != "instructions"]
        calls = dict(self.instructions)
        for name, count in other.instructions.items():
            calls[name] = calls.get(name, 0) + count
        return Counters(calls, **{n: getattr(self, n) + getattr(other, n) for n in names})

    def to_json(self) -> dict[str, Any]:
        return {
            **{f.name: getattr(self, f.name) for f in fields(self) if f.name != "instructions"},
            "instructions": dict(sorted(self.instructions.items())),
        }
