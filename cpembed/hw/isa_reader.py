"""Load instruction sets of accelerators: TOML in, :class:`InstructionSet` out, faults in one line.

The format is described in ``docs/accelerators.md``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from cpembed.errors import SpecError
from cpembed.files import read_toml
from cpembed.hw.isa import (
    IMMEDIATE,
    Channel,
    InstructionSet,
    IsaInstruction,
    IsaMemory,
    MemoryKind,
    Synchronization,
)
from cpembed.hw.isa_checks import check_flow, overflow_warnings
from cpembed.hw.isa_constants import with_constants
from cpembed.hw.isa_instructions import InstructionReader
from cpembed.hw.isa_tables import ChannelTable, InstructionSetTable, IsaMemoryTable
from cpembed.hw.schema import Key, close_match, convert_table, joined, spec_error
from cpembed.ir.dtypes import DTYPES, size_bytes
from cpembed.plugins import plugin_file, plugin_files
from cpembed.resources import accelerator_files, hardware_spec_files, read_once

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")
"""Names of instruction sets, memories, units, channels and instructions."""

# Executors hold all rows; the largest accelerators have some tens of mebibytes.
_MAX_ROW_BYTES = 2**26
"""Maximum number of bytes of all rows of a memory."""
_MAX_NUMBER = 2.0**50
"""Maximum of every number, far beyond any machine."""
_MAX_ENTRIES = 256
"""Maximum number of instructions, and of memories, units and channels."""


def available_instruction_sets() -> tuple[str, ...]:
    """Names of the shipped instruction sets and of those that distributions add, sorted."""
    shipped = accelerator_files()
    return tuple(sorted(shipped | plugin_files("cpembed.accelerators", shipped)))


def instruction_set_file(name: str) -> Path | None:
    """Return the file of a named instruction set; None if there is none of this name."""
    # Listing what installed distributions add is slow, so only for names that do not ship.
    return accelerator_files().get(name) or plugin_file("cpembed.accelerators", name)


def load_instruction_set(name_or_path: str | Path) -> InstructionSet:
    """Load an instruction set by its name or from a TOML file.

    >>> load_instruction_set("gemmini").memories["scratchpad"].capacity_bytes
    262144

    Parameters
    ----------
    name_or_path : str or Path
        A ``Path``, a string that ends in ``.toml`` and a string with a ``/`` are files; any other
        string is the name of a shipped instruction set, or of one that a distribution adds.

    Raises
    ------
    SpecError
        In one line: the file, the key, what is wrong and what is allowed.
    """
    if isinstance(name_or_path, Path) or name_or_path.endswith(".toml") or "/" in name_or_path:
        return _load(Path(name_or_path))
    path = instruction_set_file(name_or_path)
    if path is None:
        names = available_instruction_sets()
        raise SpecError(
            f"unknown accelerator {name_or_path!r}{close_match(name_or_path, names)}; "
            "`cpembed targets` lists them, and a path to a TOML file with [[instructions]] is one"
        )
    return _load(path)


def names_instruction_set(name_or_path: str) -> bool:
    """Return True for the name of an instruction set, and for a TOML file that describes one.

    A file that cannot be read is none, so that whoever reads it next says why.
    """
    if name_or_path.endswith(".toml") or "/" in name_or_path:
        try:
            return describes_instruction_set(read_toml(Path(name_or_path)))
        except SpecError:
            return False
    # Before distributions are looked through, which is slow.
    if name_or_path in hardware_spec_files():
        return False
    return instruction_set_file(name_or_path) is not None


@read_once
def _load(path: Path) -> InstructionSet:
    return read_instruction_set(read_toml(path), str(path))


def describes_instruction_set(tables: Mapping[str, Any]) -> bool:
    """True if the contents of a TOML file are those of an instruction set."""
    return not {"instructions", "units"}.isdisjoint(tables) and "instruction" not in tables


def read_instruction_set(tables: Mapping[str, Any], place: str) -> InstructionSet:
    """Read an instruction set from the contents of a TOML file.

    Parameters
    ----------
    tables : mapping
        The contents, as TOML gives them.
    place : str
        Path of the file, for messages.

    Returns
    -------
    InstructionSet
        With its ``warnings``.

    Raises
    ------
    SpecError
        For the first fault, in one line: the file, the key, what is wrong and what is allowed.
    """
    if "instruction" in tables and "instructions" not in tables:
        problem = "describes a single instruction, as `cpembed solve --target FILE` takes it"
        raise spec_error(place, ("instruction",), f"{problem}; allowed here: [[instructions]]")
    return _Reader(place, typed_tables(tables, place)).read()


def typed_tables(tables: Mapping[str, Any], place: str) -> InstructionSetTable:
    """Return the contents of a file as typed tables, with constants replaced, checked no further.

    Parameters
    ----------
    tables : mapping
        The contents, as TOML gives them.
    place : str
        Path of the file, for messages.

    Raises
    ------
    SpecError
        For a key that is unknown or missing, and for a value of another type.
    """
    return convert_table(with_constants(tables, place), InstructionSetTable, lambda _: place)


class _Reader:
    """Checks the tables of one file against each other and makes the values."""

    def __init__(self, path: str, table: InstructionSetTable) -> None:
        self.path = path
        self.table = table

    def read(self) -> InstructionSet:
        table = self.table
        self._check_header()
        memories = {name: self._memory(name, t) for name, t in table.memories.items()}
        mains = [m.name for m in memories.values() if m.kind is MemoryKind.MAIN]
        problem = f"{joined(mains) or 'none'} of kind main; allowed: exactly one, main memory"
        self._need(len(mains) == 1, ("memories",), problem)
        self._need(bool(table.instructions), ("instructions",), "lists none; add [[instructions]]")
        self._check_units()
        instructions = self._instructions(memories)
        channels = self._channels()
        machine = InstructionSet(
            name=table.name,
            description=table.description,
            source=table.source,
            evidence=table.evidence,
            clock_mhz=table.clock_mhz,
            memories=memories,
            units=tuple(table.units),
            instructions=instructions,
            synchronization=table.synchronization,
            channels=channels,
            host=self._host(),
            path=self.path,
            preamble=table.preamble,
            warnings=overflow_warnings(instructions.values()),
        )
        check_flow(machine)
        return machine

    def _need(self, condition: bool, key: Key, problem: str) -> None:
        if not condition:
            raise spec_error(self.path, key, problem)

    def _need_number(self, value: float, key: Key, *, zero: bool = True) -> None:
        allowed = "from 0" if zero else "above 0, up"
        problem = f"{value} is not allowed; allowed: a number {allowed} to {_MAX_NUMBER:g}"
        self._need((zero and value == 0) or 0 < value <= _MAX_NUMBER, key, problem)

    def _need_names(self, names: Iterable[str], key: Key) -> None:
        """Check that names are spelled as names, and each only once."""
        earlier: set[str] = set()
        for name in names:
            problem = f"{name!r} is not a name; allowed: a letter, then letters, digits, _ . -"
            self._need(bool(NAME.fullmatch(name)), key, problem)
            self._need(name not in earlier, key, f"{name} is there twice; rename one of them")
            earlier.add(name)
        problem = f"{len(earlier)} entries; allowed: up to {_MAX_ENTRIES}"
        self._need(len(earlier) <= _MAX_ENTRIES, key, problem)

    def _check_header(self) -> None:
        table = self.table
        self._need_names([table.name], ("name",))
        for key in ("description", "source"):
            self._need(bool(getattr(table, key).strip()), (key,), "is empty")
        self._need_number(table.clock_mhz, ("clock_mhz",), zero=False)
        self._need_names(table.memories, ("memories",))
        problem = f"{IMMEDIATE} is the place of values in an instruction's word; rename the memory"
        self._need(IMMEDIATE not in table.memories, ("memories", IMMEDIATE), problem)
        for name, value in self._host().items():
            self._need_number(value, ("host", name), zero=False)

    def _host(self) -> dict[str, float]:
        figures: dict[str, float | None] = msgspec.structs.asdict(self.table.host)
        return {name: value for name, value in figures.items() if value is not None}

    def _memory(self, name: str, table: IsaMemoryTable) -> IsaMemory:
        key = ("memories", name)
        for field in ("latency_cycles", "energy_pj_per_byte"):
            self._need_number(getattr(table, field) or 0.0, (*key, field))
        if table.bytes_per_cycle != math.inf:
            self._need_number(table.bytes_per_cycle, (*key, "bytes_per_cycle"), zero=False)
        rows, row_bytes, dtype = table.rows, table.row_bytes, table.dtype
        if table.kind is MemoryKind.ROWS:
            rows, row_bytes = self._rows(key, table)
        else:
            for field in ("rows", "row_bytes"):
                problem = f"is for memories of rows, this one is of kind {table.kind}: leave it out"
                self._need(getattr(table, field) is None, (*key, field), problem)
            self._need(table.banks == 1, (*key, "banks"), "is for memories of rows: leave it out")
        if table.kind is MemoryKind.REGISTER:
            if dtype is None:
                problem = f"is missing: a register holds one scalar of a type, {joined(DTYPES)}"
                raise spec_error(self.path, (*key, "dtype"), problem)
            problem = f"unknown dtype {dtype!r}{close_match(dtype, DTYPES)}"
            self._need(dtype in DTYPES, (*key, "dtype"), f"{problem}; allowed: {joined(DTYPES)}")
            row_bytes = size_bytes(dtype)
        else:
            problem = "is for registers: types of operands are written in the instructions"
            self._need(dtype is None, (*key, "dtype"), problem)
        return IsaMemory(
            name=name,
            kind=table.kind,
            rows=rows or 0,
            row_bytes=row_bytes or 0,
            banks=table.banks,
            dtype=dtype or "",
            bytes_per_cycle=table.bytes_per_cycle,
            latency_cycles=table.latency_cycles,
            energy_pj_per_byte=table.energy_pj_per_byte,
        )

    def _rows(self, key: Key, table: IsaMemoryTable) -> tuple[int, int]:
        """Check and return the number of rows of a memory and the bytes of each."""
        sizes = {"rows": table.rows, "row_bytes": table.row_bytes, "banks": table.banks}
        for field, size in sizes.items():
            if size is None:
                problem = "is missing; it must be an integer, or say `kind` = main or register"
                raise spec_error(self.path, (*key, field), problem)
            self._need(size >= 1, (*key, field), f"{size} is not allowed; allowed: at least 1")
        rows, row_bytes = table.rows or 0, table.row_bytes or 0
        problem = f"{rows:,} rows of {row_bytes:,} bytes are {rows * row_bytes:,} bytes"
        problem += f"; allowed: up to {_MAX_ROW_BYTES:,}"
        self._need(rows * row_bytes <= _MAX_ROW_BYTES, (*key, "rows"), problem)
        problem = f"{table.banks} does not divide {rows} rows; allowed: a divisor"
        self._need(rows % table.banks == 0, (*key, "banks"), problem)
        return rows, row_bytes

    def _check_units(self) -> None:
        units = self.table.units
        self._need_names(units, ("units",))
        used = {instruction.unit for instruction in self.table.instructions}
        for position, unit in enumerate(units):
            problem = f"{unit} executes no instruction; units in use: {joined(sorted(used))}"
            self._need(unit in used, ("units", position), problem)

    def _instructions(self, memories: Mapping[str, IsaMemory]) -> dict[str, IsaInstruction]:
        tables = self.table.instructions
        self._need_names((table.name for table in tables), ("instructions",))
        instructions: dict[str, IsaInstruction] = {}
        for table in tables:
            units = self.table.units
            problem = f"{table.unit!r} is not in `units`{close_match(table.unit, units)}"
            problem += f"; allowed: {joined(units) or 'none'}"
            self._need(table.unit in units, ("instructions", table.name, "unit"), problem)
            instructions[table.name] = InstructionReader(self.path, table, memories).read()
        return instructions

    def _channels(self) -> tuple[Channel, ...]:
        table = self.table
        by_channels = table.synchronization is Synchronization.CHANNELS
        problem = f"is for synchronization = channels, and here it is {table.synchronization}"
        self._need(by_channels or not table.channels, ("channels",), problem)
        self._need_names((channel.name for channel in table.channels), ("channels",))
        problem = "is missing: units that run in parallel need channels between them"
        parallel = by_channels and len(table.units) > 1
        self._need(bool(table.channels) or not parallel, ("channels",), problem)
        return tuple(self._channel(n, channel) for n, channel in enumerate(table.channels))

    def _channel(self, position: int, table: ChannelTable) -> Channel:
        units = self.table.units
        for field, unit in (("from", table.sender), ("to", table.receiver)):
            problem = f"{unit!r} is not in `units`{close_match(unit, units)}"
            key = ("channels", position, field)
            self._need(unit in units, key, f"{problem}; allowed: {joined(units)}")
        problem = f"{table.receiver} is the sender too; allowed: another unit"
        self._need(table.sender != table.receiver, ("channels", position, "to"), problem)
        channel = Channel(name=table.name, sender=table.sender, receiver=table.receiver)
        if table.depth is None:
            return channel
        problem = f"{table.depth} is not allowed; allowed: 1..{1 << 30}"
        self._need(1 <= table.depth <= 1 << 30, ("channels", position, "depth"), problem)
        return replace(channel, depth=table.depth)
