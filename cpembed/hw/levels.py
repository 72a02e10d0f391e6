"""A machine as a hierarchy of memories around a compute unit: what ``[machines.NAME]`` describes.

Data alone; :mod:`cpembed.machine` estimates times from it. The format is that of
``docs/add-a-target.md``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from cpembed.errors import SpecError
from cpembed.hw.instruction import Instruction, Machine
from cpembed.hw.level_tables import HierarchyTable, Known, Layouts, LevelTable, Moved, Overlapping
from cpembed.hw.schema import Key, MemoryTable, close_match, one_of, spec_error

_LARGEST = 2.0**50
"""Of every figure; far beyond any machine."""

_LARGEST_MESH = 64
"""Rows or columns of a mesh."""


@dataclass(frozen=True)
class ComputeUnit:
    """What executes the instruction, one to each unit of the innermost memories.

    ``cycles`` lie between two independent executions (0.5: two units side by side),
    ``latency_cycles`` between an execution and one that adds to the same output;
    ``issues_per_cycle`` bounds executions and transfers of tiles together (infinite: no bound).
    """

    cycles: float
    latency_cycles: float
    issues_per_cycle: float = math.inf
    call_cycles: tuple[tuple[tuple[str, ...], float], ...] = ()
    """Cycles of an execution besides: coefficients of products of the sizes of these axes (swATOP
    4.6, equation 2)."""


@dataclass(frozen=True)
class Mesh:
    """Processing elements that execute the instruction together, each with its part of every
    memory that holds operands. ``cut``: by operand, the instruction axes that rows and columns cut
    into equal parts."""

    rows: int
    columns: int
    cut: Mapping[str, tuple[str, str]]


@dataclass(frozen=True)
class Memory:
    """A memory with the path to its ``parent`` (None: main memory).

    ``units`` counts it in the whole machine. ``read_bytes`` and ``write_bytes`` are what a unit of
    it gives to, and takes from, all units below it together in a cycle; ``each_read`` and
    ``each_write`` what one of these can have; ``half_duplex``: not both at a time.
    ``latency_cycles`` pass from a request to the first data. The others say how it is filled:
    contiguous bytes in multiples of ``granule_bytes`` (cache line, burst, coalesced segment), by
    the instruction ``transfer`` (empty: it is a cache), ``moves`` at a time, ``overlap`` beside
    computing. A memory of one bank (``banks``; 0: not known) is either filled or read.
    """

    name: str
    level: int
    parent: str | None = None
    units: int = 1
    capacity_bytes: int | None = None
    read_bytes: float = math.inf
    write_bytes: float = math.inf
    each_read: float = math.inf
    each_write: float = math.inf
    half_duplex: bool = False
    latency_cycles: float = 0.0
    granule_bytes: int = 1
    banks: int = 0
    overlap: Overlapping = Overlapping.HARDWARE
    transfer: str = ""
    moves: Moved = Moved.REGION

    @property
    def room(self) -> float:
        """Bytes that the data of a tile can take: half of the memory where the other half is being
        filled."""
        if self.capacity_bytes is None:
            return math.inf
        halves = 2 if self.overlapped is Overlapping.DOUBLE_BUFFER else 1
        return self.capacity_bytes / halves

    @property
    def overlapped(self) -> Overlapping:
        """How it is filled beside computing, as far as its banks allow."""
        return Overlapping.NONE if self.banks == 1 else self.overlap


@dataclass(frozen=True)
class Hierarchy:
    """A machine that executes an instruction: a compute unit and a tree of memories.

    The leaves hold the instruction's operands, by scope; the root is main memory. A memory's level
    is 0 for a leaf, else one more than that of the highest memory below it. ``known`` and
    ``source`` say where the figures are from.
    """

    name: str
    clock_mhz: float
    compute: ComputeUnit
    memories: Mapping[str, Memory]
    known: Known
    source: str
    mesh: Mesh | None = None
    layouts: Layouts = Layouts.PACKED

    @cached_property
    def levels(self) -> tuple[tuple[Memory, ...], ...]:
        """Memories by level, the innermost first; the last one is main memory alone."""
        top = max(memory.level for memory in self.memories.values())
        members = self.memories.values()
        return tuple(tuple(m for m in members if m.level == level) for level in range(top + 1))

    @property
    def root(self) -> Memory:
        """Main memory."""
        return self.levels[-1][0]

    def path(self, scope: str) -> tuple[Memory, ...]:
        """The memories that an operand passes, from its scope to main memory."""
        memory = self.memories[scope]
        found = [memory]
        while memory.parent is not None:
            memory = self.memories[memory.parent]
            found.append(memory)
        return tuple(found)

    def sharing(self, level: int) -> int:
        """Units of a level under one unit of the next."""
        return self.levels[level][0].units // self.levels[level + 1][0].units


def read_hierarchies(
    place: Callable[[Key], str],
    tables: Mapping[str, HierarchyTable],
    scopes: Mapping[str, MemoryTable],
    instruction: Instruction,
    machine: Machine | None,
) -> dict[str, Hierarchy]:
    """The machines of a specification, by name; raises :class:`SpecError` for the first fault, in
    the file in which ``place`` says that its key stands.

    ``scopes`` are the file's ``[memories]``. What ``machine``
    says, the file's ``[machine]``, need not be said again.
    """
    operands = tuple(dict.fromkeys(m.scope for m in instruction.memory.values()))
    return {
        name: _Reader(place, name, table, scopes, machine).hierarchy(operands, instruction)
        for name, table in tables.items()
    }


class _Reader:
    """Checks one machine's tables against each other and makes the values."""

    def __init__(
        self,
        place: Callable[[Key], str],
        name: str,
        table: HierarchyTable,
        scopes: Mapping[str, MemoryTable],
        machine: Machine | None,
    ) -> None:
        self.place, self.name, self.table = place, name, table
        self.scopes, self.machine = scopes, machine

    def error(self, key: Key, problem: str) -> SpecError:
        whole = ("machines", self.name, *key)
        return spec_error(self.place(whole), whole, problem)

    def hierarchy(self, operands: Sequence[str], instruction: Instruction) -> Hierarchy:
        table = self.table
        if not table.source.strip():
            raise self.error(("source",), "is empty")
        clock = table.clock_mhz
        if clock is None:
            if self.machine is None:
                raise self.error(("clock_mhz",), "is missing; it must be a float")
            clock = self.machine.clock_mhz
        self._positive(("clock_mhz",), clock)
        levels = self._levels(operands)
        memories = {name: self._memory(name, level) for name, level in levels.items()}
        found = Hierarchy(
            self.name,
            clock,
            self._compute(instruction),
            memories,
            table.known,
            table.source,
            self._mesh(instruction),
            table.layouts,
        )
        self._check_units(found)
        return found

    def _positive(self, key: Key, value: float | None, *, zero: bool = False) -> None:
        if value is None or (0 < value <= _LARGEST) or (zero and value == 0):
            return
        allowed = "a number of at least 0" if zero else "a number above 0"
        raise self.error(key, f"{value} is not allowed; allowed: {allowed}")

    def _mesh(self, instruction: Instruction) -> Mesh | None:
        """Every operand is cut, by axes of its own that the mesh divides."""
        table = self.table.mesh
        if table is None:
            return None
        sizes = {"rows": table.rows, "columns": table.columns}
        for field, size in sizes.items():
            if not 1 <= size <= _LARGEST_MESH:
                problem = f"{size} is not allowed; allowed: 1..{_LARGEST_MESH}"
                raise self.error(("mesh", field), problem)
        names = [operand.name for operand in instruction.computation.operands]
        for name in dict.fromkeys([*names, *table.cut]):
            key = ("mesh", "cut", name)
            if name not in names:
                raise self.error(key, f"is no operand of the instruction; allowed: {one_of(names)}")
            axes = table.cut.get(name, [])
            own = instruction.memory[name].axes
            if len(axes) != 2 or len(set(axes)) != 2 or not set(axes) <= set(own):
                problem = f"must be two different axes of {name}, for rows and columns"
                raise self.error(key, f"{problem}; its axes: {one_of(own)}")
            for axis, size in zip(axes, sizes.values(), strict=True):
                if instruction.axis(axis).maximum % size:
                    problem = f"{axis} is {instruction.axis(axis).maximum}, which {size} does not"
                    raise self.error(key, f"{problem} divide; make it a multiple")
        cut = {name: (axes[0], axes[1]) for name, axes in table.cut.items()}
        return Mesh(table.rows, table.columns, cut)

    def _call_cycles(self, instruction: Instruction) -> tuple[tuple[tuple[str, ...], float], ...]:
        found: list[tuple[tuple[str, ...], float]] = []
        axes = [axis.name for axis in instruction.axes]
        for text, cycles in self.table.compute.call_cycles.items():
            key = ("compute", "call_cycles", text)
            names = tuple(part.strip() for part in text.split("*") if part.strip() != "1")
            if len(set(names)) != len(names) or not set(names) <= set(axes):
                problem = f"{text!r} is not a product of different axes; allowed: 1, or "
                problem += one_of(axes)
                raise self.error(key, f"{problem}, with * between them")
            self._positive(key, cycles, zero=True)
            found.append((names, cycles))
        return tuple(found)

    def _compute(self, instruction: Instruction) -> ComputeUnit:
        table = self.table.compute
        self._positive(("compute", "cycles"), table.cycles)
        self._positive(("compute", "latency_cycles"), table.latency_cycles, zero=True)
        self._positive(("compute", "issues_per_cycle"), table.issues_per_cycle)
        latency = table.cycles if table.latency_cycles is None else table.latency_cycles
        issues = table.issues_per_cycle or math.inf
        return ComputeUnit(table.cycles, latency, issues, self._call_cycles(instruction))

    def _levels(self, operands: Sequence[str]) -> dict[str, int]:
        """The level of each memory, after checks that the parents make a tree whose leaves hold
        operands."""
        tables = self.table.memories
        for scope in operands:
            if scope not in tables:
                problem = "is missing: it holds an operand and needs a table"
                raise self.error(("memories", scope), problem)
        for name, table in tables.items():
            if table.parent is not None and table.parent not in tables:
                near = close_match(table.parent, tables)
                problem = f"unknown memory {table.parent!r}{near}; allowed: {one_of(tables)}"
                raise self.error(("memories", name, "parent"), problem)
        roots = [name for name, table in tables.items() if table.parent is None]
        if len(roots) != 1:
            problem = f"{one_of(roots) or 'none'} without a parent; allowed: one, main memory"
            raise self.error(("memories",), problem)
        if roots[0] in operands:
            problem = "holds an operand: it needs a parent, at the end of which is main memory"
            raise self.error(("memories", roots[0]), problem)
        levels = dict.fromkeys(operands, 0)
        for scope in operands:
            name, level = scope, 0
            while (parent := tables[name].parent) is not None:
                level += 1
                if level > len(tables):
                    problem = "leads back to it; allowed: a memory farther from the unit"
                    raise self.error(("memories", scope, "parent"), problem)
                if parent in operands:
                    problem = f"{parent} holds an operand itself; allowed: another memory"
                    raise self.error(("memories", name, "parent"), problem)
                levels[parent] = max(levels.get(parent, 0), level)
                name = parent
        for name in tables:
            if name not in levels:
                problem = f"feeds no operand; the operands are in {one_of(operands)}"
                raise self.error(("memories", name), problem)
        return dict(sorted(levels.items(), key=lambda entry: entry[1]))

    def _memory(self, name: str, level: int) -> Memory:
        table, key = self.table.memories[name], ("memories", name)
        for field in ("units", "capacity_bytes", "granule_bytes", "banks"):
            self._positive((*key, field), getattr(table, field))
        for field in LevelTable.__struct_fields__:
            if "per_cycle" in field:
                self._positive((*key, field), getattr(table, field))
        self._positive((*key, "latency_cycles"), table.latency_cycles, zero=True)
        known = self.machine
        top = table.parent is None
        bus = known.bus_bits / 8 if known is not None and top else None
        read, write = table.read_bytes_per_cycle or bus, table.write_bytes_per_cycle or bus
        if level and (read is None or write is None):
            field = "read_bytes_per_cycle" if read is None else "write_bytes_per_cycle"
            raise self.error((*key, field), "is missing; it must be a float")
        latency, granule = table.latency_cycles, table.granule_bytes
        if known is not None and latency is None and top:
            latency = known.dram_delay_cycles
        parent = self.table.memories.get(table.parent or "")
        if known is not None and granule is None and parent is not None and parent.parent is None:
            granule = known.bus_bits // 8
        return Memory(
            name,
            level,
            table.parent,
            table.units,
            self._capacity(name),
            read or math.inf,
            write or math.inf,
            table.read_bytes_per_cycle_each or math.inf,
            table.write_bytes_per_cycle_each or math.inf,
            table.half_duplex,
            latency or 0.0,
            granule or 1,
            table.banks or 0,
            table.overlap,
            table.transfer,
            table.moves,
        )

    def _capacity(self, name: str) -> int | None:
        own = self.table.memories[name].capacity_bytes
        declared = self.scopes[name].capacity_bytes if name in self.scopes else None
        if own is not None and declared is not None:
            problem = f'it is in [memories."{name}"]: leave the key out'
            raise self.error(("memories", name, "capacity_bytes"), problem)
        return declared if own is None else own

    def _check_units(self, found: Hierarchy) -> None:
        if found.root.units != 1:
            key = ("memories", found.root.name, "units")
            raise self.error(key, f"{found.root.units} is not allowed for main memory; allowed: 1")
        for inner, outer in zip(found.levels, found.levels[1:], strict=False):
            for memory in inner:
                key = ("memories", memory.name, "units")
                if memory.units != inner[0].units:
                    problem = f"{memory.units}, and {inner[0].units} of {inner[0].name}"
                    raise self.error(key, f"{problem} on the same level: make them equal")
                if memory.units % outer[0].units:
                    problem = f"{memory.units} is not allowed; allowed: a multiple of"
                    raise self.error(key, f"{problem} {outer[0].units}, that of {outer[0].name}")
