"""An instruction set as tables: the shape of its file, which is described in docs/accelerators.md.

The tables give types and defaults; :mod:`cpembed.hw.isa_reader` and
:mod:`cpembed.hw.isa_instructions` check what their values must satisfy jointly.
"""

from __future__ import annotations

import math

import msgspec

from cpembed.hw.isa import MemoryKind, Synchronization
from cpembed.hw.machine import Evidence
from cpembed.hw.specification import AxisTable


class IsaMemoryTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``[memories.NAME]``; see :class:`~cpembed.hw.isa.IsaMemory`."""

    kind: MemoryKind = MemoryKind.ROWS
    rows: int | None = None
    row_bytes: int | None = None
    banks: int = 1
    dtype: str | None = None
    bytes_per_cycle: float = math.inf
    latency_cycles: float = 0.0
    energy_pj_per_byte: float | None = None


class ChannelTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``[[channels]]``; see :class:`~cpembed.hw.isa.Channel`."""

    name: str
    sender: str = msgspec.field(name="from")
    receiver: str = msgspec.field(name="to")
    depth: int | None = None


class PlaceTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``operands.NAME`` of an instruction; see :class:`~cpembed.hw.isa.OperandPlace`."""

    memory: str
    dtype: str | None = None
    dimensions: list[str] | None = None
    rows: list[str] = []
    lanes: list[str] = []
    stride: dict[str, int | str] = {}
    any_lane: bool = False


class IsaInstructionTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``[[instructions]]``; see :class:`~cpembed.hw.isa.IsaInstruction`."""

    name: str
    unit: str
    expression: str
    operands: dict[str, PlaceTable]
    axes: dict[str, int | AxisTable] = {}
    cycles: float | dict[str, float] = 1.0
    latency_cycles: float = 0.0
    energy_pj: float | None = None
    emit: str = ""
    accumulate: bool = True
    saturate: bool = False
    in_place: list[str] = []
    banks_differ: list[list[str]] = []


class HostTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``[host]``: the processor beside the accelerator."""

    cycles_per_element: float | None = None
    cycles_per_mac: float | None = None
    clock_mhz: float | None = None


class InstructionSetTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A file of an instruction set: all of its tables."""

    name: str
    description: str
    source: str
    evidence: Evidence = msgspec.field(name="known")
    clock_mhz: float
    units: list[str]
    memories: dict[str, IsaMemoryTable]
    instructions: list[IsaInstructionTable]
    synchronization: Synchronization = Synchronization.INTERLOCKED
    channels: list[ChannelTable] = []
    host: HostTable = HostTable()
    preamble: str = ""
    constants: dict[str, float] = {}
    """Listed among the allowed keys; :mod:`cpembed.hw.isa_constants` replaces them before."""
