"""A machine of scratchpads, and the keys that its specification has to have.

Every operand of the instruction has a scratchpad, its scope, of which each processing element (PE)
owns a part; DMA copies boxes of operands there from main memory, and back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cpembed.cost.machine.estimate import machine_of
from cpembed.hw.instruction import HardwareSpec, Instruction, StrideRule
from cpembed.hw.machine import Hierarchy, Mesh, Overlapping
from cpembed.hw.schema import spec_error
from cpembed.ir.dtypes import per_byte, size_bytes
from cpembed.targets.executor.program import ALIGNMENT

VECTOR_BYTES = 16
"""Bytes of a vector of the mesh's registers: four elements of float32."""

Lanes = tuple[str, str, str]
"""Instruction axes of A and C, of B and C, of A and B; empty if there is none."""


@dataclass(frozen=True)
class Engine:
    """DMA engine of an operand, which executes one transfer after the other."""

    bytes_per_cycle: float
    """Bytes per cycle of all PEs together."""
    latency_cycles: float
    """Cycles before the first byte of a transfer."""
    transaction_bytes: int
    """Bytes of a transaction of main memory, which is transferred as a whole."""


@dataclass(frozen=True, kw_only=True)
class ScratchpadMachine:
    """A mesh of PEs with scratchpads."""

    name: str
    clock_mhz: float
    rows: int
    columns: int
    cut: Mapping[str, tuple[str, str]]
    """Instruction axes that rows and columns of the mesh cut, by operand; empty without a mesh."""
    memories: tuple[str, ...]
    capacities: tuple[int, ...]
    """Bytes of each memory of a PE."""
    memory_of: Mapping[str, int]
    """Number of the memory of each operand."""
    alignment_bytes: int
    """Alignment of transfers."""
    overlaps: bool
    """True if transfers and executions overlap."""
    engines: Mapping[str, Engine]
    """DMA engine of each operand of the instruction."""
    cycles: float
    """Cycles of a granule on all PEs."""
    call_cycles: tuple[tuple[tuple[str, ...], float], ...]
    """Further cycles of an execution: coefficients of products of its sizes."""
    largest: Mapping[str, int]
    """Maximum points of each axis in one execution; empty if an execution is one granule."""
    lanes: Lanes
    """Instruction axes by the operands that they move."""
    distances: Mapping[str, Mapping[str, int | None]]
    """For each operand, elements between neighbours along each axis of its tile, in the tile's
    order; None where the instruction takes any distance."""
    spread: tuple[int, ...]
    """For each memory, bytes that emulate one of its bytes: several where elements share bytes."""
    row_elements: Mapping[str, int]
    """Elements of a row of each operand's memory; 0 if it has none."""

    @property
    def engine(self) -> Engine:
        """Engine of the first operand."""
        return next(iter(self.engines.values()))

    @property
    def elements(self) -> int:
        """Number of PEs."""
        return self.rows * self.columns

    @property
    def sized(self) -> bool:
        """True if one execution covers any number of granules."""
        return bool(self.largest)

    def parts(self, axis: str) -> int:
        """Return the number of parts that the mesh cuts an instruction axis into."""
        sizes = {
            size
            for axes in self.cut.values()
            for name, size in zip(axes, (self.rows, self.columns), strict=True)
            if name == axis
        }
        return max(sizes, default=1)


def scratchpad_machine(spec: HardwareSpec) -> ScratchpadMachine:
    """Return the first machine of a specification.

    Raises :class:`SpecError` for what is missing, and for what cannot be executed here.
    """
    described = machine_of(spec)
    lanes = _checked_lanes(spec, described)
    scopes = {operand: tile.scope for operand, tile in spec.instruction.memory.items()}
    # Operands of one scope share a memory.
    memories = tuple(dict.fromkeys(scopes.values()))
    mesh = described.mesh or Mesh(1, 1, {})
    for scope in memories:
        if described.memories[scope].capacity_bytes is None:
            key = ("memories", scope, "capacity_bytes")
            raise spec_error(spec.path, key, "is missing; a scratchpad has one")
    levels = [described.memories[scope] for scope in memories]
    return ScratchpadMachine(
        name=described.name,
        clock_mhz=described.clock_mhz,
        rows=mesh.rows,
        columns=mesh.columns,
        cut=mesh.cut,
        memories=memories,
        # A capacity is that of all elements of the mesh together.
        capacities=tuple((m.capacity_bytes or 0) // (mesh.rows * mesh.columns) for m in levels),
        memory_of={operand: memories.index(scope) for operand, scope in scopes.items()},
        alignment_bytes=max(tile.alignment_bytes for tile in spec.instruction.memory.values()),
        overlaps=all(m.effective_overlap is not Overlapping.NONE for m in levels),
        engines={operand: _engine(described, spec, operand) for operand in scopes},
        cycles=described.compute.cycles,
        call_cycles=described.compute.call_cycles,
        largest={a.name: a.largest for a in spec.instruction.axes if a.largest is not None},
        lanes=lanes,
        spread=tuple(
            max(
                per_byte(dtype)
                for name, dtypes in spec.instruction.dtypes.items()
                if scopes[name] == scope
                for dtype in dtypes
            )
            for scope in memories
        ),
        distances={name: _distances(spec, name) for name in scopes},
        row_elements={name: spec.row_elements.get(scope, 0) for name, scope in scopes.items()},
    )


def _distances(spec: HardwareSpec, operand: str) -> dict[str, int | None]:
    """Return the distances along the axes of an operand's tile; None for those that are free."""
    memory = spec.instruction.memory[operand]
    extents, distances, distance = spec.instruction.extents, dict[str, int | None](), 1
    row = spec.row_elements.get(memory.scope, 0)
    for dimension in reversed(memory.tile):
        rule = memory.stride_rule(dimension.axis)
        distances[dimension.axis] = distance if rule is StrideRule.UNIT else None
        distance *= row or extents[dimension.axis]
        row = 0
    return dict(reversed(distances.items()))


def _engine(machine: Hierarchy, spec: HardwareSpec, operand: str) -> Engine:
    """Return the slowest part of an operand's path between main memory and its scratchpad."""
    scope, *path = machine.path(spec.instruction.memory[operand].scope)
    stores = operand == spec.instruction.computation.output.name
    return Engine(
        # All memories of the path take part in a transfer at once: the slowest one decides.
        min(
            min(m.write_bytes, m.child_write_bytes)
            if stores
            else min(m.read_bytes, m.child_read_bytes)
            for m in path
        ),
        max(memory.latency_cycles for memory in path),
        max(memory.granule_bytes for memory in (scope, *path)),
    )


def _checked_lanes(spec: HardwareSpec, machine: Hierarchy) -> Lanes:
    """Return the roles of the instruction's axes on a machine that the generator has kernels for.

    Raises :class:`SpecError` for what is no product of two operands, and for a machine that does
    not execute it as ``gemm`` of ``scratchpad.h`` does.
    """
    instruction = spec.instruction
    lanes = _lanes(spec)
    sized = [axis.name for axis in instruction.axes if axis.largest is not None]
    # The primitive is gemm of scratchpad.h, which takes all three sizes.
    if sized and ("" in lanes or len(sized) < len(instruction.axes)):
        raise spec_error(
            spec.path,
            ("instruction", "axes"),
            "a primitive of any size is a product of matrices, C[x,y] += A[x,z] * B[z,y]: give all "
            "three axes as { multiple, max }, or none",
        )
    if machine.mesh is not None and not sized:
        raise spec_error(
            spec.path,
            ("machines", machine.name, "mesh"),
            "an instruction of fixed size is executed by one element: give its axes as "
            "{ multiple, max }, or leave the mesh out",
        )
    _check_tiles(spec, sized=bool(sized))
    _check_transfers(spec, machine)
    if sized:
        if machine.mesh is not None:
            _check_mesh(spec, machine.name, machine.mesh, lanes)
        _check_vectors(spec, machine, lanes)
    return lanes


def _lanes(spec: HardwareSpec) -> Lanes:
    computation = spec.instruction.computation
    key = ("instruction", "expression")
    if len(computation.inputs) != 2 or len(computation.outputs) != 1:
        raise spec_error(spec.path, key, "a kernel of boxes multiplies two operands into one")
    first, second, output = map(set[str], _axes(spec.instruction).values())
    kinds = first & output - second, second & output - first, first & second - output
    if any(len(kind) > 1 for kind in kinds):
        raise spec_error(
            spec.path, key, "several axes move the same operands; allowed: one of each kind"
        )
    # An empty name: a product without such an axis, as that of a matrix and a vector.
    x, y, z = (next(iter(kind), "") for kind in kinds)
    return x, y, z


def _axes(instruction: Instruction) -> Mapping[str, tuple[str, ...]]:
    """Return the axes of each operand, the output last."""
    computation = instruction.computation
    return {
        operand.name: tuple(
            name for index in computation.access(operand.name).index for name in index.iterators
        )
        for operand in (*computation.inputs, computation.output)
    }


def _check_tiles(spec: HardwareSpec, *, sized: bool) -> None:
    """Raise :class:`SpecError` for tiles that boxes in a scratchpad cannot be."""
    for name, memory in spec.instruction.memory.items():
        key = ("operands", name)
        split = next((d for d in memory.tile if str(d) != d.axis), None)
        if split is not None:
            raise spec_error(
                spec.path,
                (*key, "tile"),
                f"{split} is a part of {split.axis}, and boxes hold axes whole; allowed: "
                f"{split.axis}",
            )
        row = spec.row_elements.get(memory.scope, 0)
        rule = memory.stride_rule(memory.tile[-1].axis) if memory.tile else StrideRule.ANY
        if row and (not memory.tile or rule is StrideRule.ANY):
            raise spec_error(
                spec.path,
                (*key, "tile"),
                f"{memory.scope} has rows, of which the last axis of a tile fills one: name one "
                "whose stride is unit",
            )
        if sized and (row or any(memory.stride_rule(a) is StrideRule.UNIT for a in memory.axes)):
            raise spec_error(
                spec.path,
                (*key, "stride"),
                "a primitive of any size takes matrices by rows or by columns, at any leading "
                f"dimension; declare any for {' and '.join(memory.axes)}, in a memory without rows",
            )


def _check_transfers(spec: HardwareSpec, machine: Hierarchy) -> None:
    for name, tile in spec.instruction.memory.items():
        element = min(map(size_bytes, spec.instruction.dtypes[name]))
        if element % tile.alignment_bytes:
            raise spec_error(
                spec.path,
                ("operands", name, "alignment_bytes"),
                f"{tile.alignment_bytes} is more than an element of {element} bytes, and boxes "
                "begin at any element; allowed: what divides an element",
            )
    for memory in machine.memories.values():
        if ALIGNMENT % memory.granule_bytes:
            raise spec_error(
                spec.path,
                ("machines", machine.name, "memories", memory.name, "granule_bytes"),
                f"{memory.granule_bytes} is not allowed; allowed: a divisor of {ALIGNMENT}, at "
                "multiples of which operands begin",
            )


def _check_mesh(spec: HardwareSpec, name: str, mesh: Mesh, lanes: Lanes) -> None:
    # Each element holds block (row, column) of all three matrices.
    x, y, z = lanes
    key = ("machines", name, "mesh")
    for operand, cut in zip(_axes(spec.instruction), ((x, z), (z, y), (x, y)), strict=True):
        if mesh.cut[operand] != cut:
            raise spec_error(
                spec.path,
                (*key, "cut", operand),
                f'rows and columns cut a product into blocks; allowed: ["{cut[0]}", "{cut[1]}"]',
            )
    if mesh.rows != mesh.columns:
        raise spec_error(
            spec.path,
            key,
            f"rows and columns cut {z} into {mesh.rows} and {mesh.columns} parts; make them equal",
        )


def _check_vectors(spec: HardwareSpec, machine: Hierarchy, lanes: Lanes) -> None:
    # The vectorised dimension of an element's block is a multiple of a vector.
    instruction = spec.instruction
    output = instruction.computation.output.name
    vector = VECTOR_BYTES // min(map(size_bytes, instruction.dtypes[output]))
    rows = 1 if machine.mesh is None else machine.mesh.rows
    if instruction.axis(lanes[0]).maximum % (rows * max(1, vector)):
        raise spec_error(
            spec.path,
            ("instruction", "axes", lanes[0], "multiple"),
            f"{lanes[0]}, of {output} and the first factor, is computed in vectors of {vector} "
            f"elements; allowed: multiples of {rows * vector}",
        )
