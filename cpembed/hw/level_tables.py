"""The tables of ``[machines.NAME]`` in a hardware specification file, and their words.

Types only; what the values must satisfy together is checked in :mod:`cpembed.hw.levels`.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Known(StrEnum):
    """Where figures are from."""

    PUBLISHED = "published"
    MEASURED = "measured"
    ASSUMED = "assumed"


class Overlapping(StrEnum):
    """How a memory is filled and emptied beside computing."""

    NONE = "none"
    """Not at all: the unit waits."""
    DOUBLE_BUFFER = "double_buffer"
    """By explicit transfers into one half of the memory while the unit works on the other."""
    HARDWARE = "hardware"
    """By the hardware, in small pieces: a cache with prefetching, registers that are renamed."""


class Moved(StrEnum):
    """What one transfer moves into or out of a memory."""

    REGION = "region"
    """Any box of an operand."""
    TILE = "tile"
    """An operand's tile of one execution, as a load of a register does."""
    EXECUTION = "execution"
    """Of a factor the same, with each execution anew: it streams through, and nothing is kept."""


class Layouts(StrEnum):
    """What transfers from main memory find there."""

    PACKED = "packed"
    """Operands in the layouts of the program; bringing them into these takes time of its own."""
    ORIGINAL = "original"
    """Operands as they come: transfers fetch boxes of them, and put zeros where they pad."""


class ComputeTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``[machines.NAME.compute]``: the unit that executes the instruction.

    ``call_cycles``: of each execution besides, as a polynomial of the sizes of its axes, such as
    ``{ "1" = 176, "z" = 0.25, "x*z" = 0.004 }``.
    """

    cycles: float
    latency_cycles: float | None = None
    issues_per_cycle: float | None = None
    call_cycles: dict[str, float] = {}


class MeshTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``[machines.NAME.mesh]``: ``rows`` x ``columns`` processing elements that execute together.

    ``cut`` has, for each operand of the instruction, the axes that the rows and the columns of the
    mesh cut into equal parts: ``A = ["x", "z"]``.
    """

    rows: int
    columns: int
    cut: dict[str, list[str]]


class LevelTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``[machines.NAME.memories."MEMORY"]``."""

    parent: str | None = None
    units: int = 1
    capacity_bytes: int | None = None
    read_bytes_per_cycle: float | None = None
    write_bytes_per_cycle: float | None = None
    read_bytes_per_cycle_each: float | None = None
    write_bytes_per_cycle_each: float | None = None
    half_duplex: bool = False
    latency_cycles: float | None = None
    granule_bytes: int | None = None
    banks: int | None = None
    overlap: Overlapping = Overlapping.HARDWARE
    transfer: str = ""
    moves: Moved = Moved.REGION


class HierarchyTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``[machines.NAME]``."""

    source: str
    known: Known
    compute: ComputeTable
    memories: dict[str, LevelTable]
    clock_mhz: float | None = None
    mesh: MeshTable | None = None
    layouts: Layouts = Layouts.PACKED
