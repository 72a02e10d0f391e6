"""The time of a program on a described machine: an estimate from the specification alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from cpembed.cost.machine.nest import TileNest, tile_nest
from cpembed.cost.machine.packing import packing_cycles
from cpembed.cost.machine.search import ROWS, best_tilings
from cpembed.cost.machine.times import MemoryTime, compute_time, memory_times
from cpembed.cost.machine.traffic import Tilings
from cpembed.errors import SpecError
from cpembed.hw.instruction import HardwareSpec
from cpembed.hw.machine import Hierarchy, Layouts
from cpembed.provenance import Provenance
from cpembed.transform.program import DerivedProgram


@dataclass(frozen=True)
class LevelEstimate:
    """Cycles of one unit of ``memory`` with all below it: what that computes meanwhile, what it
    reads from the memory and writes to it, and the three ``cycles`` together. Bytes are those that
    are read from all units of the memory, and written to them, by the memories below, counted tile
    by tile."""

    memory: str
    computing: float
    reading: float
    writing: float
    cycles: float
    read_bytes: float
    written_bytes: float


@dataclass(frozen=True)
class LevelTiling:
    """The tile that the memories of a level hold: iterations by loop, and the loops around it
    within the next tile, the innermost first; those of one iteration are left out. ``units`` of
    the level have work."""

    memories: tuple[str, ...]
    tile: Mapping[str, int]
    order: tuple[str, ...]
    units: int


@dataclass(frozen=True)
class Estimate:
    """The time of a program on a machine.

    ``cycles`` and ``us`` are those of the executions with the transfers that feed them;
    ``packing_us`` has, by operand, what bringing it into its layout, or out of it, takes beside
    that. ``bound`` says what takes the longest: ``compute``, ``latency``, ``issue``, ``read from``
    or ``write to`` a memory. ``levels`` and ``tiling`` are innermost first; ``exact``: no tiling
    takes fewer cycles by this model, whatever its sizes, its orders and what units share; else the
    best of those that were compared.
    """

    machine: str
    cycles: float
    us: float
    bound: str
    levels: tuple[LevelEstimate, ...]
    tiling: tuple[LevelTiling, ...]
    packing_us: Mapping[str, float]
    exact: bool
    provenance: Provenance = Provenance.ESTIMATED

    @property
    def total_us(self) -> float:
        """With packing and unpacking."""
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
            "levels": [
                {
                    "memory": level.memory,
                    "computing_cycles": level.computing,
                    "reading_cycles": level.reading,
                    "writing_cycles": level.writing,
                    "cycles": level.cycles,
                    "read_bytes": level.read_bytes,
                    "written_bytes": level.written_bytes,
                }
                for level in self.levels
            ],
            "tiling": [
                {
                    "memories": list(level.memories),
                    "tile": dict(level.tile),
                    "order": list(level.order),
                    "units": level.units,
                }
                for level in self.tiling
            ],
            "exact": self.exact,
        }


def machine_of(spec: HardwareSpec, name: str | None = None) -> Hierarchy:
    """A machine of a target by name, its first one where none is given.

    Raises :class:`SpecError` where the target has no such machine, or none at all.
    """
    if not spec.machines:
        where = f"{spec.path}: " if spec.path else ""
        scopes = dict.fromkeys(m.scope for m in spec.instruction.memory.values())
        raise SpecError(
            f"{where}{spec.name} has no figures to estimate from: add [machines.NAME] with source, "
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
    rows: int = ROWS,
) -> Estimate:
    """The time of a program on a machine, with the best tiling that is found.

    ``ahead`` names operands that are packed once, ahead of time, and cost nothing; ``rows`` bounds
    how many tilings of a level are compared.

    Raises :class:`~cpembed.errors.TransformError` where a memory does not hold what one execution
    takes.
    """
    nest = tile_nest(program, machine.layouts)
    found = best_tilings(nest, machine, rows)
    computing = compute_time(found.tilings, nest, machine)
    times = list(memory_times(found.tilings, nest, machine, computing.longest))
    total = float(times[-1].together[0])
    parts = {
        "compute": computing.executing[0],
        "latency": computing.waiting[0],
        "issue": computing.issuing[0],
    }
    packing = {
        operand.name: packing_cycles(operand, scope, machine) / machine.clock_mhz
        for operand, scope in ((program.operand(o.name), o.scope) for o in nest.operands)
        if machine.layouts is Layouts.PACKED
        and operand.name not in ahead
        and not operand.is_identity
    }
    return Estimate(
        machine.name,
        total,
        total / machine.clock_mhz,
        _bound(max(parts, key=lambda name: parts[name]), times),
        tuple(
            LevelEstimate(
                t.memory,
                float(t.computing[0]),
                float(t.reading[0]),
                float(t.writing[0]),
                float(t.together[0]),
                float(t.read_bytes[0]),
                float(t.written_bytes[0]),
            )
            for t in times
        ),
        _tiling(found.tilings, nest, machine),
        packing,
        found.exact,
    )


def _bound(computing: str, times: list[MemoryTime]) -> str:
    """What the time of the outermost level comes down to."""
    bound = computing
    for time in times:
        if time.waits[0]:
            reads = time.reading[0] >= time.writing[0]
            bound = f"read from {time.memory}" if reads else f"write to {time.memory}"
    return bound


def _tiling(tilings: Tilings, nest: TileNest, machine: Hierarchy) -> tuple[LevelTiling, ...]:
    found: list[LevelTiling] = []
    around = {loop.name: loop.extent for loop in nest.loops}
    for stage, busy in zip(tilings.stages, reversed(tilings.busy[:-1]), strict=True):
        tile = {name: int(size[0]) for name, size in stage.sizes.items()}
        order = sorted(tile, key=lambda name, ranks=stage.ranks: float(ranks[name][0]))
        outside = tuple(name for name in order if tile[name] < around[name])
        names = tuple(memory.name for memory in machine.levels[stage.level])
        shown = {name: size for name, size in tile.items() if size > 1}
        found.append(LevelTiling(names, shown, outside, round(busy[0])))
        around = tile
    return tuple(reversed(found))
