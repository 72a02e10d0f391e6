"""Read ``[machines.NAME]`` of a specification: tables in, checked machines out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cpembed.errors import SpecError
from cpembed.hw.instruction import Instruction
from cpembed.hw.machine import ComputeUnit, Hierarchy, Memory, MemoryInterface, Mesh
from cpembed.hw.schema import Key, close_match, joined, spec_error
from cpembed.hw.specification import HierarchyTable, LevelTable
from cpembed.ir.dtypes import storage_bytes

# Far beyond any machine.
_MAX_NUMBER = 2.0**50
"""Maximum of every number of a machine."""

_MAX_MESH = 64
"""Maximum number of rows or columns of a mesh."""


def read_hierarchies(
    place: Callable[[Key], str],
    tables: Mapping[str, HierarchyTable],
    capacities: Mapping[str, int | None],
    instruction: Instruction,
    interface: MemoryInterface | None,
) -> dict[str, Hierarchy]:
    """Read the machines of a specification.

    Parameters
    ----------
    place : callable
        Maps a key to the path of the file that holds it, for error messages.
    tables : mapping of str to HierarchyTable
        ``[machines]`` by name.
    capacities : mapping of str to int or None
        Bytes of each scope of ``[memories]``; they need not be repeated in a machine.
    instruction : Instruction
        The instruction that the machines execute.
    interface : MemoryInterface or None
        ``[machine]`` of the file; its clock and bus need not be repeated in a machine.

    Returns
    -------
    dict of str to Hierarchy
        The machines by name, in the order of the file.

    Raises
    ------
    SpecError
        For the first fault, with the file and the key.
    """
    scopes_in_use = tuple(dict.fromkeys(m.scope for m in instruction.memory.values()))
    return {
        name: _Reader(place, name, table, capacities, interface).hierarchy(
            scopes_in_use, instruction
        )
        for name, table in tables.items()
    }


@dataclass
class _Reader:
    """Reader of one machine, which checks its tables against each other."""

    place: Callable[[Key], str]
    name: str
    table: HierarchyTable
    capacities: Mapping[str, int | None]
    interface: MemoryInterface | None

    def error(self, key: Key, problem: str) -> SpecError:
        path = ("machines", self.name, *key)
        return spec_error(self.place(path), path, problem)

    def need(self, condition: bool, key: Key, problem: str) -> None:
        if not condition:
            raise self.error(key, problem)

    def hierarchy(self, operands: Sequence[str], instruction: Instruction) -> Hierarchy:
        table = self.table
        self.need(bool(table.source.strip()), ("source",), "is empty")
        clock = table.clock_mhz
        if clock is None:
            if self.interface is None:
                raise self.error(("clock_mhz",), "is missing; it must be a float")
            clock = self.interface.clock_mhz
        self._positive(("clock_mhz",), clock)
        # Levels first: only memories that feed others need a bandwidth.
        levels = self._levels(operands)
        memories = {name: self._memory(name, level) for name, level in levels.items()}
        machine = Hierarchy(
            name=self.name,
            clock_mhz=clock,
            compute=self._compute(instruction),
            memories=memories,
            evidence=table.evidence,
            source=table.source,
            mesh=self._mesh(instruction),
            layouts=table.layouts,
        )
        self._check_units(machine)
        self._check_capacities(machine, instruction)
        return machine

    def _positive(self, key: Key, value: float | None, *, zero: bool = False) -> None:
        if value is None or (0 < value <= _MAX_NUMBER) or (zero and value == 0):
            return
        allowed = "a number of at least 0" if zero else "a number above 0"
        raise self.error(key, f"{value} is not allowed; allowed: {allowed}")

    def _mesh(self, instruction: Instruction) -> Mesh | None:
        """Check that every operand is cut along two of its axes that the mesh divides."""
        table = self.table.mesh
        if table is None:
            return None
        sizes = {"rows": table.rows, "columns": table.columns}
        for field, size in sizes.items():
            problem = f"{size} is not allowed; allowed: 1..{_MAX_MESH}"
            self.need(1 <= size <= _MAX_MESH, ("mesh", field), problem)
        names = [operand.name for operand in instruction.computation.operands]
        # Both: an operand without a cut is reported too.
        for name in dict.fromkeys([*names, *table.cut]):
            key = ("mesh", "cut", name)
            problem = f"is no operand of the instruction; allowed: {joined(names)}"
            self.need(name in names, key, problem)
            axes = table.cut.get(name, [])
            operand_axes = instruction.memory[name].axes
            problem = f"must be two different axes of {name}, for rows and columns"
            different = len(axes) == 2 and axes[0] != axes[1] and set(axes) <= set(operand_axes)
            self.need(different, key, f"{problem}; its axes: {joined(operand_axes)}")
            for axis, size in zip(axes, sizes.values(), strict=True):
                extent = instruction.axis(axis).maximum
                problem = f"{axis} is {extent}, which {size} does not divide; make it a multiple"
                self.need(extent % size == 0, key, problem)
        cut = {name: (axes[0], axes[1]) for name, axes in table.cut.items()}
        return Mesh(table.rows, table.columns, cut)

    def _call_cycles(self, instruction: Instruction) -> tuple[tuple[tuple[str, ...], float], ...]:
        """Parse the keys of the polynomial, such as ``x*z``, into names of axes."""
        terms: list[tuple[tuple[str, ...], float]] = []
        axes = [axis.name for axis in instruction.axes]
        for text, cycles in self.table.compute.call_cycles.items():
            key = ("compute", "call_cycles", text)
            names = tuple(part.strip() for part in text.split("*") if part.strip() != "1")
            problem = f"{text!r} is not a product of different axes; allowed: 1, or {joined(axes)}"
            different = len(set(names)) == len(names) and set(names) <= set(axes)
            self.need(different, key, f"{problem}, with * between them")
            self._positive(key, cycles, zero=True)
            terms.append((names, cycles))
        return tuple(terms)

    def _compute(self, instruction: Instruction) -> ComputeUnit:
        table = self.table.compute
        # Cycles may be fractions: two units side by side take half a cycle an execution.
        self._positive(("compute", "cycles"), table.cycles)
        self._positive(("compute", "latency_cycles"), table.latency_cycles, zero=True)
        self._positive(("compute", "issues_per_cycle"), table.issues_per_cycle)
        # By default a dependent execution waits as long as an independent one.
        latency = table.cycles if table.latency_cycles is None else table.latency_cycles
        issues = table.issues_per_cycle or math.inf
        calls = self._call_cycles(instruction)
        self._positive(("compute", "energy_pj"), table.energy_pj, zero=True)
        return ComputeUnit(table.cycles, latency, issues, calls, table.energy_pj)

    def _levels(self, operands: Sequence[str]) -> dict[str, int]:
        """Return the level of each memory, ascending.

        The parents have to make a tree whose leaves are the scopes that hold operands.
        """
        tables = self.table.memories
        for scope in operands:
            problem = "is missing: it holds an operand and needs a table"
            self.need(scope in tables, ("memories", scope), problem)
        for name, table in tables.items():
            if table.parent is not None and table.parent not in tables:
                near = close_match(table.parent, tables)
                problem = f"unknown memory {table.parent!r}{near}; allowed: {joined(tables)}"
                raise self.error(("memories", name, "parent"), problem)
        roots = [name for name, table in tables.items() if table.parent is None]
        problem = f"{joined(roots) or 'none'} without a parent; allowed: one, main memory"
        self.need(len(roots) == 1, ("memories",), problem)
        problem = "holds an operand: it needs a parent, at the end of which is main memory"
        self.need(roots[0] not in operands, ("memories", roots[0]), problem)
        # A memory that several paths lead through is above all that lie below it on any of them.
        levels = dict.fromkeys(operands, 0)
        for scope in operands:
            name, level = scope, 0
            while (parent := tables[name].parent) is not None:
                level += 1
                # A path that is longer than there are memories goes round in a circle.
                if level > len(tables):
                    raise self._circle(scope)
                problem = f"{parent} holds an operand itself; allowed: another memory"
                self.need(parent not in operands, ("memories", name, "parent"), problem)
                levels[parent] = max(levels.get(parent, 0), level)
                name = parent
        for name in tables:
            problem = f"feeds no operand; the operands are in {joined(operands)}"
            self.need(name in levels, ("memories", name), problem)
        return dict(sorted(levels.items(), key=lambda entry: entry[1]))

    def _circle(self, scope: str) -> SpecError:
        """Return the error of a path that never reaches main memory, with its circle."""
        tables, path = self.table.memories, [scope]
        while (parent := tables[path[-1]].parent) is not None and parent not in path:
            path.append(parent)
        problem = f"{' -> '.join([*path, parent or ''])} goes round in a circle; allowed: a memory"
        key = ("memories", path[-1], "parent")
        return self.error(key, f"{problem} farther from the unit, or none for main memory")

    def _memory(self, name: str, level: int) -> Memory:
        table, key = self.table.memories[name], ("memories", name)
        for field in ("units", "capacity_bytes", "granule_bytes", "banks"):
            self._positive((*key, field), getattr(table, field))
        for field in LevelTable.__struct_fields__:
            if "per_cycle" in field:
                self._positive((*key, field), getattr(table, field))
        for field in ("latency_cycles", "read_pj_per_byte", "write_pj_per_byte"):
            self._positive((*key, field), getattr(table, field), zero=True)
        problem = "no operand can pass by it: it holds operands itself"
        self.need(level > 0 or not table.bypass, (*key, "bypass"), problem)
        problem = "no operand can pass by main memory"
        self.need(table.parent is not None or not table.bypass, (*key, "bypass"), problem)
        self.need(level > 0 or not table.multicast, (*key, "multicast"), "it feeds no memory")
        # What the file's [machine] says of the bus to main memory need not be repeated: it is the
        # path out of the root, and the burst granule of the memories right below it.
        interface = self.interface
        is_root = table.parent is None
        bus = interface.bus_bits / 8 if interface is not None and is_root else None
        read, write = table.read_bytes_per_cycle or bus, table.write_bytes_per_cycle or bus
        if level and (read is None or write is None):
            field = "read_bytes_per_cycle" if read is None else "write_bytes_per_cycle"
            raise self.error((*key, field), "is missing; it must be a float")
        latency, granule = table.latency_cycles, table.granule_bytes
        if interface is not None and latency is None and is_root:
            latency = interface.dram_delay_cycles
        parent = self.table.memories.get(table.parent or "")
        if interface is not None and granule is None and parent and parent.parent is None:
            granule = interface.bus_bits // 8
        return Memory(
            name=name,
            level=level,
            parent=table.parent,
            units=table.units,
            capacity_bytes=self._capacity(name),
            read_bytes=read or math.inf,
            write_bytes=write or math.inf,
            child_read_bytes=table.read_bytes_per_cycle_each or math.inf,
            child_write_bytes=table.write_bytes_per_cycle_each or math.inf,
            half_duplex=table.half_duplex,
            latency_cycles=latency or 0.0,
            granule_bytes=granule or 1,
            banks=table.banks or 0,
            overlap=table.overlap,
            transfer=table.transfer,
            transfer_unit=table.moves,
            read_pj_per_byte=table.read_pj_per_byte,
            write_pj_per_byte=table.write_pj_per_byte,
            multicast=table.multicast,
            bypass=table.bypass,
        )

    def _capacity(self, name: str) -> int | None:
        capacity = self.table.memories[name].capacity_bytes
        declared = self.capacities.get(name)
        problem = f'it is in [memories."{name}"]: leave the key out'
        twice = capacity is not None and declared is not None
        self.need(not twice, ("memories", name, "capacity_bytes"), problem)
        return declared if capacity is None else capacity

    def _check_capacities(self, machine: Hierarchy, instruction: Instruction) -> None:
        """Check that the memories on the way of an operand hold its tile."""
        for operand, side in instruction.memory.items():
            elements = math.prod(instruction.tile_shape(operand))
            tile_bytes = min(
                storage_bytes(elements, dtype) for dtype in instruction.dtypes[operand]
            )
            _, *path = machine.path(side.scope)
            for memory in path:
                capacity = memory.capacity_bytes
                problem = f"{capacity} is too small for a tile of {operand}, {tile_bytes} bytes"
                key = ("memories", memory.name, "capacity_bytes")
                self.need(capacity is None or capacity >= tile_bytes, key, problem)

    def _check_units(self, machine: Hierarchy) -> None:
        """Check that units of a level are equally many, and shared evenly by those above."""
        root = machine.root
        problem = f"{root.units} is not allowed for main memory; allowed: 1"
        self.need(root.units == 1, ("memories", root.name, "units"), problem)
        # `Hierarchy.fan_out` is one number for all memories of a level.
        for inner, (outer, *_) in zip(machine.levels, machine.levels[1:], strict=False):
            first = inner[0]
            for memory in inner:
                key, units = ("memories", memory.name, "units"), memory.units
                problem = f"{units}, and {first.units} of {first.name} on the same level"
                self.need(units == first.units, key, f"{problem}: make them equal")
                problem = f"{units} is not allowed; allowed: a multiple of {outer.units}"
                self.need(units % outer.units == 0, key, f"{problem}, that of {outer.name}")
