"""A hardware specification as tables: the shape of its file, merged with the machines it shares.

The tables give types and defaults; :mod:`cpembed.hw.loader` checks what their values must satisfy
jointly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import msgspec

from cpembed.errors import SpecError
from cpembed.files import read_toml
from cpembed.hw.instruction import StrideRule
from cpembed.hw.machine import Evidence, Layouts, MemoryInterface, Overlapping, TransferUnit
from cpembed.hw.schema import Key, convert_table, spec_error


class AxisTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Axis in steps, ``{ min = 1, max = 16 }``, or of any size, ``{ multiple = 32, max = 96 }``."""

    max: int
    # Of an axis in steps.
    min: int | None = None
    step: int = 1
    # Of an axis of any size, in whole multiples.
    multiple: int | None = None


class InstructionTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``[instruction]``: the statement and the extent of each of its axes."""

    expression: str
    axes: dict[str, int | AxisTable]


class OperandTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``[operands.NAME]``: element types and the tile that memory holds."""

    dtype: str | list[str]
    scope: str
    tile: list[str]
    stride: dict[str, StrideRule] = {}
    alignment_bytes: int = 1
    contiguous: list[str] = []


class MemoryTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``[memories."SCOPE"]``: a register file or buffer that holds operands' tiles."""

    capacity_bytes: int | None = None
    # Of a memory that is addressed by rows: elements of a row, and instead of its bytes its rows.
    row_elements: int | None = None
    rows: int | None = None
    # Purpose of a memory without operands.
    holds: str | None = None


class ComputeTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``[machines.NAME.compute]``: the unit that executes the instruction.

    ``call_cycles`` are additional cycles of each execution, a polynomial of the sizes of its axes
    such as ``{ "1" = 176, "z" = 0.25, "x*z" = 0.004 }``.
    """

    cycles: float
    latency_cycles: float | None = None
    issues_per_cycle: float | None = None
    call_cycles: dict[str, float] = {}
    energy_pj: float | None = None


class MeshTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``[machines.NAME.mesh]``: ``rows`` x ``columns`` processing elements that execute jointly.

    ``cut`` has, for each operand of the instruction, the axes that the rows and the columns of the
    mesh cut into equal parts: ``A = ["x", "z"]``.
    """

    rows: int
    columns: int
    cut: dict[str, list[str]]


class LevelTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``[machines.NAME.memories."MEMORY"]``; see :class:`~cpembed.hw.machine.Memory`."""

    # None where [memories] or [machine] of the file may say it already.
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
    moves: TransferUnit = TransferUnit.REGION
    read_pj_per_byte: float | None = None
    write_pj_per_byte: float | None = None
    multicast: bool = False
    bypass: bool = False


class HierarchyTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``[machines.NAME]``; see :class:`~cpembed.hw.machine.Hierarchy`."""

    source: str
    evidence: Evidence = msgspec.field(name="known")
    compute: ComputeTable
    memories: dict[str, LevelTable]
    clock_mhz: float | None = None
    mesh: MeshTable | None = None
    layouts: Layouts = Layouts.PACKED


class HardwareTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A specification: all tables of the file."""

    name: str
    description: str
    source: str
    instruction: InstructionTable
    operands: dict[str, OperandTable]
    memories: dict[str, MemoryTable]
    backend: str | None = None
    cpu_features: list[str] = []
    alternatives: list[str] = []
    constraints: str | None = None
    # Older keys for a single target of `alternatives`.
    older_otherwise: str | None = msgspec.field(default=None, name="otherwise")
    older_beside: str | None = msgspec.field(default=None, name="beside")
    machine: MemoryInterface | None = None
    # File in the same folder that holds tables [machines.NAME] and nothing else: each machine that
    # this file lists takes the keys that it leaves out from there.
    machines_from: str | None = None
    machines: dict[str, HierarchyTable] = {}


Tables = Mapping[str, Any]
"""Contents of a TOML file."""


@dataclass(frozen=True)
class SpecificationFile:
    """A file of a specification with the file of shared machines that it names, as tables."""

    path: Path
    contents: Tables
    # If no file of machines is named, the same path and no tables.
    shared_path: Path
    shared: Tables

    @staticmethod
    def read(path: Path) -> SpecificationFile:
        """Read both files; raise :class:`SpecError`, in one line, if one cannot be read."""
        contents = read_toml(path)
        return SpecificationFile(path, contents, *_read_shared(path, contents))

    @property
    def merged(self) -> Tables:
        """Tables of both files in one, which no longer names the file of shared machines."""
        tables = _completed(self.contents, self.shared)
        return {name: table for name, table in tables.items() if name != "machines_from"}

    def with_tables(self, tables: Tables) -> SpecificationFile:
        """Return the specification with other tables, whose faults are reported for this path."""
        return SpecificationFile(self.path, tables, self.path, {})

    def table(self) -> HardwareTable:
        """Merge and type both files; raise :class:`SpecError` naming the file of the fault."""
        return convert_table(_completed(self.contents, self.shared), HardwareTable, self.place)

    def place(self, key: Key) -> str:
        """Path of the file that holds a key; that of the specification if neither does."""
        shared = not _holds(self.contents, key) and _holds(self.shared, key)
        return str(self.shared_path if shared else self.path)


def _read_shared(path: Path, contents: Tables) -> tuple[Path, Tables]:
    """Path and contents of the file of shared machines."""
    name = contents.get("machines_from")
    # Of another type, the key is reported when the tables are typed.
    if not isinstance(name, str):
        return path, {}
    shared_path = path.parent / name
    try:
        shared = read_toml(shared_path)
    except SpecError as error:
        raise spec_error(str(path), ("machines_from",), str(error)) from None
    machines: object = shared.get("machines")
    if shared.keys() != {"machines"} or not isinstance(machines, dict):
        problem = f"{shared_path} holds more, or less, than tables [machines.NAME]"
        raise spec_error(str(path), ("machines_from",), problem)
    return shared_path, shared


def _completed(contents: Tables, shared: Tables) -> Tables:
    # Only machines that the specification lists: the shared file has those of others too.
    listed: object = contents.get("machines")
    if not isinstance(listed, dict):
        return contents
    shared_machines: Tables = shared.get("machines", {})
    machines = {
        name: _merged(table, shared_machines.get(name, {}))
        for name, table in cast(Tables, listed).items()
    }
    return {**contents, "machines": machines}


def _merged(value: Any, default: Any) -> Any:
    """Fill in the keys that a table lacks from a default, at every depth; keep any other value."""
    if not (isinstance(value, dict) and isinstance(default, dict)):
        return cast(Any, value)
    entries, defaults = cast(dict[str, Any], value), cast(dict[str, Any], default)
    merged = {name: _merged(entries[name], defaults.get(name)) for name in entries}
    return {**defaults, **merged}


def _holds(tables: Tables, key: Key) -> bool:
    value: object = tables
    for part in key:
        if isinstance(value, dict) and part in value:
            value = cast(dict[str | int, object], value)[part]
        elif isinstance(value, list) and isinstance(part, int):
            elements = cast(list[object], value)
            if part >= len(elements):
                return False
            value = elements[part]
        else:
            return False
    return True
