"""Time of a program on a described machine, estimated from the specification alone."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np

from cpembed.cost.machine.energy import Energies, energies_or_reason
from cpembed.cost.machine.nest import ExecutionNest, execution_nest
from cpembed.cost.machine.objective import Cost, Objective, Price, cycles_cost
from cpembed.cost.machine.search import ROWS, best_tilings
from cpembed.cost.machine.times import MemoryTime, compute_time, memory_times
from cpembed.cost.machine.traffic import Tilings
from cpembed.errors import SpecError
from cpembed.hw.instruction import HardwareSpec
from cpembed.hw.machine import Hierarchy, Layouts
from cpembed.ir.dtypes import element_bytes
from cpembed.provenance import Provenance
from cpembed.transform.program import DerivedProgram, PackedOperand

_SAMPLE = 2048
"""Number of consecutive packed elements, in the middle of an operand, whose pieces represent
all."""


class LevelEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """Cycles of one unit of a memory with everything below it.

    ``computing`` happens while data are read from the memory and written to it; ``cycles`` is the
    total. Bytes are those that the memories below exchange with all units of the memory.
    """

    memory: str
    computing: float = msgspec.field(name="computing_cycles")
    reading: float = msgspec.field(name="reading_cycles")
    writing: float = msgspec.field(name="writing_cycles")
    cycles: float
    read_bytes: float
    written_bytes: float


@dataclass(frozen=True)
class HeldTiles:
    """Operands that a level holds at one place, with the tile there and the loops around it."""

    operands: tuple[str, ...]
    tile: Mapping[str, int]
    order: tuple[str, ...]


@dataclass(frozen=True)
class LevelTiling:
    """Tile that the memories of a level hold, in iterations by loop.

    ``order`` are the loops around it within the next tile, the innermost first. Loops of one
    iteration are left out. ``units`` is the number of the level's units that have work. ``held``
    are the places of operands that are held one inside the other, the outermost first; ``tile`` is
    that of the innermost one, ``order`` that around the outermost.
    """

    memories: tuple[str, ...]
    tile: Mapping[str, int]
    order: tuple[str, ...]
    units: int
    residency: tuple[HeldTiles, ...] = ()


@dataclass(frozen=True)
class Estimate:
    """Time of a program on a machine."""

    machine: str
    cycles: float
    us: float
    """Time of the executions with the transfers that feed them."""
    bound: str
    """Bottleneck: ``compute``, ``latency``, ``issue``, ``read from`` or ``write to`` a memory."""
    levels: tuple[LevelEstimate, ...]
    tiling: tuple[LevelTiling, ...]
    """Times and tiles by level, innermost first."""
    packing_us: Mapping[str, float]
    """Additional time of packing or unpacking, by operand."""
    objective: Objective
    """Quantity that the tiling has the least of."""
    cost: float
    least_cost: float
    """Cost of the tiling by the objective, and a lower bound on that of every tiling."""
    gap: float
    """Fraction by which another tiling could cost less by this model, at most."""
    exact: bool
    """No tiling costs less by this model, whatever its sizes, orders, places of operands and
    division among units."""
    moved: Mapping[str, tuple[float, float]]
    """Bytes that all units of each memory take from those that fill it, and give to them."""
    bypassed: Mapping[str, tuple[str, ...]]
    """Operands that pass by each memory that allows it."""
    energy_pj: Mapping[str, float]
    """Energy of executions and by memory; empty if there are no figures."""
    provenance: Provenance = Provenance.ESTIMATED

    @property
    def total_us(self) -> float:
        """Time with packing and unpacking."""
        return self.us + sum(self.packing_us.values())

    def to_json(self) -> dict[str, Any]:
        return {
            "machine": self.machine,
            "provenance": self.provenance.value,
            "cycles": self.cycles,
            "us": self.us,
            "packing_us": dict(self.packing_us),
            "total_us": self.total_us,
            "bound": self.bound,
            "levels": [msgspec.to_builtins(level) for level in self.levels],
            "tiling": [
                {
                    "memories": list(level.memories),
                    "tile": dict(level.tile),
                    "order": list(level.order),
                    "units": level.units,
                    "held": [
                        {"operands": list(h.operands), "tile": dict(h.tile), "order": list(h.order)}
                        for h in level.residency
                    ],
                }
                for level in self.tiling
            ],
            "objective": self.objective.value,
            "cost": self.cost,
            "least_cost": self.least_cost,
            "gap": self.gap,
            "exact": self.exact,
            "bypassed": {name: list(operands) for name, operands in self.bypassed.items()},
            "energy_pj": dict(self.energy_pj),
        }


def machine_of(spec: HardwareSpec, name: str | None = None) -> Hierarchy:
    """Return a machine of a target by name, by default its first one.

    Raises :class:`SpecError` if the target has no such machine, or none at all.
    """
    if not spec.machines:
        file = f"{spec.path}: " if spec.path else ""
        scopes = dict.fromkeys(m.scope for m in spec.instruction.memory.values())
        raise SpecError(
            f"{file}{spec.name} has no figures to estimate from: add [machines.NAME] with source, "
            "known, clock_mhz, compute.cycles and memories, from "
            f"{', '.join(scopes)} to main memory (docs/add-a-target.md)"
        )
    if name is None:
        return next(iter(spec.machines.values()))
    if name not in spec.machines:
        raise SpecError(f"{spec.name} has no machine {name!r}; it has {', '.join(spec.machines)}")
    return spec.machines[name]


def estimate_program(
    program: DerivedProgram,
    machine: Hierarchy,
    *,
    ahead: Collection[str] = (),
    objective: str = "cycles",
) -> Estimate:
    """Estimate the time of a program on a machine, with the best tiling.

    Parameters
    ----------
    program : DerivedProgram
        Program to estimate.
    machine : Hierarchy
        Machine with its memories.
    ahead : collection of str
        Operands that are packed once, ahead of time, and cost nothing.
    objective : str
        What the tiling is to have the least of: ``cycles``, ``bytes`` to and from main memory,
        ``energy``, or ``edp``, the product of energy and cycles.

    Raises
    ------
    TransformError
        A memory is too small for one execution.
    SpecError
        The objective needs energies, and there are no figures.
    """
    nest = execution_nest(program, machine.layouts)
    energies = energies_or_reason(machine, program.instruction, nest)
    cost = objective_cost(Objective(objective), nest, machine, energies)
    best = best_tilings(nest, machine, ROWS, cost)
    nest = best.nest
    computing = compute_time(best.tilings, nest, machine)
    times = list(memory_times(best.tilings, nest, machine, computing.longest))
    # The outermost memory that others are filled from includes all below it.
    total = float(times[-1].total[0])
    parts = {
        "compute": computing.executing[0],
        "latency": computing.waiting[0],
        "issue": computing.issuing[0],
    }
    packing = _packing_times(program, nest, machine, ahead)
    return Estimate(
        machine=machine.name,
        cycles=total,
        us=total / machine.clock_mhz,
        bound=_bound(max(parts, key=lambda name: parts[name]), times),
        levels=tuple(
            LevelEstimate(
                memory=t.memory,
                computing=float(t.computing[0]),
                reading=float(t.reading[0]),
                writing=float(t.writing[0]),
                cycles=float(t.total[0]),
                read_bytes=float(t.read_bytes[0]),
                written_bytes=float(t.written_bytes[0]),
            )
            for t in times
        ),
        tiling=_tiling(best.tilings, nest, machine),
        packing_us=packing,
        objective=cost.objective,
        cost=best.cost,
        least_cost=best.bound,
        gap=best.gap,
        exact=best.exact,
        moved=_moved(best.tilings, machine),
        bypassed={
            memory.name: tuple(o.name for o in nest.operands if memory.name in o.bypassed)
            for memory in machine.memories.values()
            if memory.bypass
        },
        energy_pj={}
        if isinstance(energies, str)
        else energies.by_component(best.tilings, nest, machine),
    )


def packing_times(
    program: DerivedProgram, machine: Hierarchy, ahead: Collection[str] = ()
) -> dict[str, float]:
    """Return the microseconds of packing and unpacking by operand, without those packed ahead.

    Parameters
    ----------
    program : DerivedProgram
        Program whose operands are packed.
    machine : Hierarchy
        Machine that packs them.
    ahead : collection of str
        Operands that are packed once, ahead of time, and cost nothing.
    """
    return _packing_times(program, execution_nest(program, machine.layouts), machine, ahead)


def _moved(tilings: Tilings, machine: Hierarchy) -> dict[str, tuple[float, float]]:
    """Return the bytes that all units of each memory take from others, and give to them."""
    moved: dict[str, tuple[float, float]] = {}
    for link in machine.links:
        if link.name in tilings.traffic:
            traffic, (read, written) = (
                tilings.traffic[link.name],
                moved.get(link.memory.name, (0, 0)),
            )
            moved[link.memory.name] = (
                read + float(traffic.received[0]),
                written + float(traffic.total_write[0]),
            )
    return moved


def _packing_times(
    program: DerivedProgram, nest: ExecutionNest, machine: Hierarchy, ahead: Collection[str]
) -> dict[str, float]:
    return {
        operand.name: _packing_cycles(operand, scope, machine) / machine.clock_mhz
        for operand, scope in ((program.operand(o.name), o.scope) for o in nest.operands)
        if machine.layouts is Layouts.PACKED
        and operand.name not in ahead
        and not operand.is_identity
    }


def objective_cost(
    objective: Objective, nest: ExecutionNest, machine: Hierarchy, energies: Energies | str
) -> Cost:
    """Return the cost by an objective; raise :class:`SpecError` if there are no energies for it.

    Parameters
    ----------
    objective : Objective
        What is to be least.
    nest : ExecutionNest
        Nest that is tiled.
    machine : Hierarchy
        Machine with its memories.
    energies : Energies or str
        Energies of the machine, or the reason why there are none.
    """
    if objective is Objective.CYCLES:
        return cycles_cost(machine)
    if objective is Objective.BYTES:
        prices: dict[str, Price] = {}
        for link in machine.links:
            weight = float(link.parent == machine.root)
            prices[link.name] = Price(weight, weight)
        return Cost(objective, prices)
    if isinstance(energies, str):
        raise SpecError(f"{machine.name} has no energies: {energies}")
    return Cost(objective, energies.prices(machine), energies.fixed(nest))


def _bound(computing: str, times: list[MemoryTime]) -> str:
    """Return the bottleneck: the outermost memory that computing waits for, if any."""
    bound = computing
    for time in times:
        if time.waits[0]:
            reads = time.reading[0] >= time.writing[0]
            bound = f"read from {time.memory}" if reads else f"write to {time.memory}"
    return bound


def _tiling(tilings: Tilings, nest: ExecutionNest, machine: Hierarchy) -> tuple[LevelTiling, ...]:
    levels: dict[int, LevelTiling] = {}
    around = {loop.name: loop.extent for loop in nest.loops}
    for stage in tilings.stages:
        tile = {name: int(size[0]) for name, size in stage.sizes.items()}
        order = sorted(tile, key=lambda name, ranks=stage.ranks: float(ranks[name][0]))
        outside = tuple(name for name in order if tile[name] < around[name])
        several = {name: size for name, size in tile.items() if size > 1}
        residency = HeldTiles(tuple(sorted(stage.operands)), several, outside)
        before = levels.get(stage.level)
        if before is None:
            names = tuple(memory.name for memory in machine.levels[stage.level])
            units = round(tilings.busy[stage.level][0])
            levels[stage.level] = LevelTiling(names, several, outside, units, (residency,))
        elif outside:
            levels[stage.level] = replace(
                before, tile=several, residency=(*before.residency, residency)
            )
        else:
            # Held where those before are, in tiles of the same size.
            *before_last, last = before.residency
            joint = replace(last, operands=tuple(sorted((*last.operands, *residency.operands))))
            levels[stage.level] = replace(before, residency=(*before_last, joint))
        around = tile
    return tuple(levels[level] for level in sorted(levels))


def _packing_cycles(operand: PackedOperand, scope: str, machine: Hierarchy) -> float:
    """Return the cycles of copying an operand between its original and the packed layout.

    Both are in main memory. A piece is contiguous in both layouts.
    """
    size = element_bytes(operand.dtype)
    original, packed = math.prod(operand.original_shape) * size, operand.elements * size
    piece = contiguous_elements(operand) * size
    path, longest = machine.path(scope), 0.0
    # All units copy, through the memories between main memory and the operand's scope, and the
    # slowest boundary decides.
    for below, memory in itertools.pairwise(path):
        reading = min(memory.read_bytes * memory.units, memory.child_read_bytes * below.units)
        writing = min(memory.write_bytes * memory.units, memory.child_write_bytes * below.units)
        # The innermost memory moves pieces one by one, in full granules; farther out, caches
        # combine them.
        granules = 1.0
        if below is path[0]:
            granules = math.ceil(piece / below.granule_bytes) * below.granule_bytes / piece
        # Unpacking an output reads and writes the same amounts in the other order.
        read, write = granules * original / reading, granules * packed / writing
        longest = max(longest, read + write if memory.half_duplex else max(read, write))
    return longest


def contiguous_elements(operand: PackedOperand) -> float:
    """Return the average number of elements of a piece that is contiguous in both layouts."""
    # A part in the middle, so that padding at the ends does not count more than it should.
    count = min(operand.elements, _SAMPLE)
    first = (operand.elements - count) // 2
    places = np.unravel_index(np.arange(first, first + count), operand.shape)
    values = dict(zip((d.name for d in operand.dimensions), places, strict=True))
    address = np.zeros(count, np.int64)
    for index, extent in zip(operand.source, operand.original_shape, strict=True):
        address = address * extent + np.asarray(index.evaluate(values))
    return count / (1 + int(np.count_nonzero(np.diff(address) != 1)))
