"""A machine as a hierarchy of memories around a compute unit, the value of ``[machines.NAME]``.

Values only: :mod:`cpembed.hw.machine_reader` makes them of a specification, and
:mod:`cpembed.cost.machine` estimates times from them. The format is described in
``docs/add-a-target.md``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

import msgspec


class Evidence(StrEnum):
    """Origin of a machine's numbers."""

    PUBLISHED = "published"
    MEASURED = "measured"
    ASSUMED = "assumed"


class Overlapping(StrEnum):
    """Ability to fill and empty a memory while the unit computes."""

    NONE = "none"
    """Not possible: the unit waits."""
    DOUBLE_BUFFER = "double_buffer"
    """Explicit transfers into one half of the memory while the unit works on the other."""
    HARDWARE = "hardware"
    """Small pieces moved by the hardware: a cache with prefetching, registers that are renamed."""


class TransferUnit(StrEnum):
    """Amount of data that one transfer moves into or out of a memory."""

    REGION = "region"
    """Any box of an operand."""
    TILE = "tile"
    """An operand's tile of one execution, as a load of a register moves it."""
    EXECUTION = "execution"
    """A factor's tile for every execution anew: it streams through and is not reused."""


class Layouts(StrEnum):
    """Layouts in which transfers from main memory find the operands."""

    PACKED = "packed"
    """Layouts of the program; packing the operands into these takes extra time."""
    ORIGINAL = "original"
    """Layouts of the caller: transfers fetch boxes of them and put zeros where they pad."""


class MemoryInterface(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``[machine]``: clock and path to main memory of a unit that moves its data itself.

    A transfer moves ``bus_bits`` a cycle in bursts of up to ``burst_beats``; the first beat arrives
    ``dram_delay_cycles`` after the request.
    """

    clock_mhz: float
    bus_bits: int
    burst_beats: int
    dram_delay_cycles: int


@dataclass(frozen=True)
class ComputeUnit:
    """The unit that executes the instruction; each unit of the innermost memories feeds one.

    Attributes
    ----------
    cycles : float
        Cycles between two independent executions (0.5: two units side by side).
    latency_cycles : float
        Cycles between an execution and the next one that adds to the same output.
    issues_per_cycle : float
        Maximum number of executions and transfers of tiles, summed, per cycle; infinite by default.
    call_cycles : tuple of (axis names, float)
        Additional cycles of an execution: coefficients of products of the sizes of these axes
        (swATOP 4.6, equation 2).
    energy_pj : float or None
        Energy of an execution; None where the technology's is to be used.
    """

    cycles: float
    latency_cycles: float
    issues_per_cycle: float = math.inf
    call_cycles: tuple[tuple[tuple[str, ...], float], ...] = ()
    energy_pj: float | None = None


@dataclass(frozen=True)
class Mesh:
    """Processing elements that execute the instruction jointly.

    Each one holds its part of every memory that holds operands. ``cut`` has, for each operand, the
    two instruction axes that the rows and the columns of the mesh cut into equal parts.
    """

    rows: int
    columns: int
    cut: Mapping[str, tuple[str, str]]


@dataclass(frozen=True, kw_only=True)
class Memory:
    """A memory with the path to its parent.

    >>> buffer = Memory(
    ...     name="buffer", level=0, capacity_bytes=1024, overlap=Overlapping.DOUBLE_BUFFER
    ... )
    >>> buffer.tile_capacity
    512.0

    Attributes
    ----------
    level : int
        0 for a memory that holds operands, else one more than the highest level below it.
    parent : str or None
        Name of the memory that fills this one; None for main memory.
    units : int
        Number of such memories in the whole machine.
    capacity_bytes : int or None
        Capacity of one unit; None where it is not limited.
    read_bytes, write_bytes : float
        Bytes per cycle that one unit gives to, and takes from, all units below it in total.
    child_read_bytes, child_write_bytes : float
        Bytes per cycle that a single unit below it can read and write.
    half_duplex : bool
        True if it cannot read and write in the same cycle.
    latency_cycles : float
        Cycles from a request to the first data.
    granule_bytes : int
        Contiguous bytes are moved in multiples of this: cache line, burst, coalesced segment.
    banks : int
        Number of banks, 0 if not known. A memory of one bank is either filled or read.
    overlap : Overlapping
        Ability to be filled while the unit computes, if the banks allow it.
    transfer : str
        Name of the instruction that fills it; empty for a cache.
    transfer_unit : TransferUnit
        Amount of data that one transfer moves.
    read_pj_per_byte, write_pj_per_byte : float or None
        Energy of a byte that is read or written; None where the technology's is to be used.
    multicast : bool
        True if one read serves all units below that need the same data at the same time.
    bypass : bool
        True if an operand may pass it by: its transfers are those between the memories around.
    """

    name: str
    level: int
    parent: str | None = None
    units: int = 1
    capacity_bytes: int | None = None
    read_bytes: float = math.inf
    write_bytes: float = math.inf
    child_read_bytes: float = math.inf
    child_write_bytes: float = math.inf
    half_duplex: bool = False
    latency_cycles: float = 0.0
    granule_bytes: int = 1
    banks: int = 0
    overlap: Overlapping = Overlapping.HARDWARE
    transfer: str = ""
    transfer_unit: TransferUnit = TransferUnit.REGION
    read_pj_per_byte: float | None = None
    write_pj_per_byte: float | None = None
    multicast: bool = False
    bypass: bool = False

    @property
    def tile_capacity(self) -> float:
        """Bytes available to a tile: half of the memory if the other half is being filled."""
        if self.capacity_bytes is None:
            return math.inf
        # Hardware fills a cache piece by piece, so that only double buffers lose a half.
        halves = 2 if self.effective_overlap is Overlapping.DOUBLE_BUFFER else 1
        return self.capacity_bytes / halves

    @property
    def effective_overlap(self) -> Overlapping:
        """The overlap that the banks allow: none with a single bank."""
        return Overlapping.NONE if self.banks == 1 else self.overlap


@dataclass(frozen=True)
class Link:
    """Path between a memory and one that fills it, with none or some that are passed by between."""

    memory: Memory
    parent: Memory

    @property
    def name(self) -> str:
        """Name of the memory; with that of the other one, if others are passed by."""
        if self.memory.parent == self.parent.name:
            return self.memory.name
        return f"{self.memory.name} from {self.parent.name}"

    @property
    def fan_out(self) -> int:
        """Number of units that one unit of the parent feeds."""
        return self.memory.units // self.parent.units


@dataclass(frozen=True, kw_only=True)
class Hierarchy:
    """A machine that executes an instruction: a compute unit and a tree of memories.

    The leaves of the tree hold the instruction's operands, by scope; the root is main memory.
    ``evidence`` and ``source`` say where the numbers come from.
    """

    name: str
    clock_mhz: float
    compute: ComputeUnit
    memories: Mapping[str, Memory]
    evidence: Evidence
    source: str
    mesh: Mesh | None = None
    layouts: Layouts = Layouts.PACKED

    @cached_property
    def levels(self) -> tuple[tuple[Memory, ...], ...]:
        """Memories by level, the innermost first; the last one is main memory alone."""
        # No level is empty: the longest path to a memory passes one of each level below it.
        memories = self.memories.values()
        top = max(memory.level for memory in memories)
        return tuple(tuple(m for m in memories if m.level == level) for level in range(top + 1))

    @property
    def root(self) -> Memory:
        """Main memory."""
        return self.levels[-1][0]

    def path(self, scope: str) -> tuple[Memory, ...]:
        """The memories that an operand passes, from its scope to main memory."""
        path = [self.memories[scope]]
        while (parent := path[-1].parent) is not None:
            path.append(self.memories[parent])
        return tuple(path)

    @cached_property
    def links(self) -> tuple[Link, ...]:
        """Links between memories, those past memories that may be passed by included."""
        links = list[Link]()
        for memory in self.memories.values():
            _, *path = self.path(memory.name)
            for parent in path:
                links.append(Link(memory, parent))
                if not parent.bypass:
                    break
        return tuple(links)

    def links_below(self, memory: Memory) -> list[Link]:
        """Return the links through which a memory fills others."""
        return [link for link in self.links if link.parent == memory]

    def fan_out(self, level: int) -> int:
        """Number of units of a level below one unit of the next level."""
        return self.levels[level][0].units // self.levels[level + 1][0].units
