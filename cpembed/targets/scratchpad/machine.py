"""A machine of scratchpads, as its specification describes it.

Every operand of the instruction has a scratchpad, its scope, in which each processing element (PE)
has a part of its own; DMA brings boxes of operands there from main memory, and back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cpembed.cost.machine.estimate import machine_of
from cpembed.hw.instruction import HardwareSpec
from cpembed.hw.machine import Hierarchy, Mesh, Overlapping
from cpembed.hw.schema import spec_error
from cpembed.targets.scratchpad.requirements import Lanes, lanes_of


@dataclass(frozen=True)
class Engine:
    """What moves an operand, one transfer of any operand after the other: bytes a cycle, for all
    PEs together; cycles before the first of them; the bytes of a transaction, of which all are
    moved where one is wanted."""

    bytes_per_cycle: float
    latency_cycles: float
    transaction_bytes: int


@dataclass(frozen=True)
class ScratchpadMachine:
    """PEs, their memories by number, the number of each operand's, and what things take.

    ``cut`` has the instruction axes that rows and columns of the mesh cut of an operand, none where
    there is no mesh. ``sized``: one execution covers as many granules as it is told (``largest``
    points of each axis at most); else one. ``lanes`` are the instruction's axes by what they move.
    ``engines`` move the instruction's operands; ``cycles`` are those of a granule on all PEs,
    ``call_cycles`` coefficients of products of sizes, of each execution besides.
    """

    name: str
    clock_mhz: float
    rows: int
    columns: int
    cut: Mapping[str, tuple[str, str]]
    memories: tuple[str, ...]
    capacities: tuple[int, ...]
    held_in: Mapping[str, int]
    alignment_bytes: int
    overlaps: bool
    engines: Mapping[str, Engine]
    cycles: float
    call_cycles: tuple[tuple[tuple[str, ...], float], ...]
    largest: Mapping[str, int]
    lanes: Lanes

    @property
    def engine(self) -> Engine:
        """That of the first operand."""
        return next(iter(self.engines.values()))

    @property
    def elements(self) -> int:
        """PEs."""
        return self.rows * self.columns

    @property
    def sized(self) -> bool:
        return bool(self.largest)

    def parts(self, axis: str) -> int:
        """How many parts the mesh cuts an instruction axis into."""
        found = {
            size
            for axes in self.cut.values()
            for name, size in zip(axes, (self.rows, self.columns), strict=True)
            if name == axis
        }
        return max(found, default=1)


def _engine(found: Hierarchy, spec: HardwareSpec, operand: str) -> Engine:
    """Of an operand's path between main memory and its scratchpad, whatever is slowest."""
    scope, *path = found.path(spec.instruction.memory[operand].scope)
    stores = operand == spec.instruction.computation.output.name
    return Engine(
        min(
            min(m.write_bytes, m.child_write_bytes)
            if stores
            else min(m.read_bytes, m.child_read_bytes)
            for m in path
        ),
        max(memory.latency_cycles for memory in path),
        max(memory.granule_bytes for memory in (scope, *path)),
    )


def scratchpad_machine(spec: HardwareSpec, name: str | None = None) -> ScratchpadMachine:
    """The machine of a specification, its first where none is named.

    Raises :class:`SpecError` for what is missing, and for what is not executed here.
    """
    found = machine_of(spec, name)
    lanes = lanes_of(spec, found)
    scopes = {operand: held.scope for operand, held in spec.instruction.memory.items()}
    memories = tuple(dict.fromkeys(scopes.values()))
    mesh = found.mesh or Mesh(1, 1, {})
    for scope in memories:
        if found.memories[scope].capacity_bytes is None:
            key = ("memories", scope, "capacity_bytes")
            raise spec_error(spec.path, key, "is missing; a scratchpad has one")
    return ScratchpadMachine(
        found.name,
        found.clock_mhz,
        mesh.rows,
        mesh.columns,
        mesh.cut,
        memories,
        tuple(
            (found.memories[s].capacity_bytes or 0) // (mesh.rows * mesh.columns) for s in memories
        ),
        {operand: memories.index(scope) for operand, scope in scopes.items()},
        max(held.alignment_bytes for held in spec.instruction.memory.values()),
        all(found.memories[s].effective_overlap is not Overlapping.NONE for s in memories),
        {operand: _engine(found, spec, operand) for operand in scopes},
        found.compute.cycles,
        found.compute.call_cycles,
        {a.name: a.largest for a in spec.instruction.axes if a.largest is not None},
        lanes,
    )
