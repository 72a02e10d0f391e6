"""What a search on a VTA chooses from: embeddings with their schedules, and neighbours of these."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from random import Random

import numpy as np

from cpembed.ir.computation import AxisKind
from cpembed.targets.vta.bias import with_bias
from cpembed.targets.vta.config import VtaConfig
from cpembed.targets.vta.estimate import Bounds, bounds, estimate_schedule
from cpembed.targets.vta.lower import LoweredVta, lower
from cpembed.targets.vta.planner import ranked_schedules
from cpembed.targets.vta.schedule import Schedule, check_schedule
from cpembed.targets.vta.tail import Tail, check_tail
from cpembed.targets.vta.tiles import TileNest, TileTensor, tile_nest
from cpembed.targets.vta.timing import MemorySystem
from cpembed.transform.program import DerivedProgram
from cpembed.tuning.space import Scored, Space

FEWEST_SLOTS, MOST_SLOTS = 2, 8
"""Regions of an operand in SRAM at a time, with two threads: with one, loads wait for products,
which estimates do not know; the enumerated schedules go to 4."""

_RANKED = 512
"""Schedules that are ranked where no number is asked for."""

_KNOBS = ("tile", "tile", "order", "threads", "slots")
"""What a neighbour differs in; tile sizes, of which there are many, twice as often."""

_ANOTHER = 0.4
"""Probability that a neighbour differs in one more knob."""


@dataclass(frozen=True)
class Machine:
    """What cycles depend on besides the program: configuration, memory system, form of the
    result."""

    config: VtaConfig
    memory: MemorySystem
    tail: Tail


@dataclass(frozen=True)
class Nest:
    """A derived program as a nest over a machine's tiles."""

    program: DerivedProgram
    nest: TileNest
    machine: Machine

    @classmethod
    def of(cls, program: DerivedProgram, machine: Machine) -> Nest:
        """Raises :class:`LoweringError` where a program's tiles are not the configuration's, or its
        results not the workload's."""
        check_tail(program.unfused, machine.tail)
        return cls(program, tile_nest(program, machine.config), machine)

    def lowered(self, schedule: Schedule) -> LoweredVta:
        """Raises :class:`LoweringError` for a schedule that does not fit."""
        return lower(self.program, self.machine.config, schedule, self.machine.tail)


class VtaSpace(Space[Schedule]):
    """The schedules of a tile nest, estimated in cycles."""

    def __init__(self, nest: Nest) -> None:
        self.nest = nest.nest
        self.machine = nest.machine

    @cached_property
    def bounds(self) -> Bounds:
        """What no schedule of the nest can beat."""
        return bounds(self.nest, self.machine.tail, self.machine.memory)

    @property
    def lower_bound(self) -> float:
        return self.bounds.busiest_module

    def ranked(self, limit: int | None = None) -> list[Scored[Schedule]]:
        machine = self.machine
        found = ranked_schedules(self.nest, machine.tail, limit or _RANKED, machine.memory)
        return [Scored(cycles, schedule) for cycles, schedule in found]

    def scored(self, schedule: Schedule) -> Scored[Schedule]:
        check_schedule(with_bias(self.nest, self.machine.tail.bias), schedule)
        return Scored(self.estimated(schedule), schedule)

    def estimated(self, schedule: Schedule) -> float:
        """Cycles by the analytical model; infinite where it takes the schedule for one that does
        not fit."""
        machine = self.machine
        return estimate_schedule(self.nest, schedule, machine.tail, machine.memory)

    def canonical(self, schedule: Schedule) -> Schedule:
        return canonical(self.nest, schedule)

    def neighbour(self, schedule: Schedule, random: Random) -> Schedule:
        return neighbour(self.nest, schedule, random)

    def form(self) -> object:
        """Nests that differ only in what packing does, which takes no cycles."""
        nest = self.nest
        tensors = (*nest.inputs, nest.acc)
        return (nest.loops, *((t.memory, t.shape, t.access, t.padded_x) for t in tensors))


def canonical(nest: TileNest, schedule: Schedule) -> Schedule:
    """The same program by one name: loops that are not cut stand last among their kind, a thread
    loop is cut, and there are no more slots than regions, or two."""
    trips = {name: -(-nest.extents[name] // schedule.tiles[name]) for name in schedule.order}
    kinds = {loop.name: loop.kind for loop in nest.loops}
    whole = [loop.name for loop in nest.loops if trips[loop.name] == 1]
    order = tuple(
        name
        for kind in (AxisKind.SPATIAL, AxisKind.REDUCTION)
        for names in ([n for n in schedule.order if trips[n] > 1], whole)
        for name in names
        if kinds[name] is kind
    )
    pairs = schedule.thread_loop is not None and trips[schedule.thread_loop] > 1
    inp, wgt = (
        min(slots, max(FEWEST_SLOTS, _regions(tensor, trips)))
        for tensor, slots in zip(nest.factors, schedule.slots, strict=True)
    )
    return replace(
        schedule,
        tiles={loop.name: schedule.tiles[loop.name] for loop in nest.loops},
        order=order,
        thread_loop=schedule.thread_loop if pairs else None,
        slots=(inp, wgt),
    )


def _regions(tensor: TileTensor, trips: dict[str, int]) -> int:
    """Regions of an operand that differ."""
    own = {name for index in tensor.access for name in index.iterators}
    return int(np.prod([trips[name] for name in own], dtype=np.int64))


def neighbour(nest: TileNest, schedule: Schedule, random: Random) -> Schedule:
    """A schedule that differs in a knob or a few; whether it fits is not asked."""
    changed = _changed(nest, schedule, random)
    while random.random() < _ANOTHER:
        changed = _changed(nest, changed, random)
    fewest = FEWEST_SLOTS if changed.threads == 2 else 1
    inp, wgt = (max(fewest, slots) for slots in changed.slots)
    return canonical(nest, replace(changed, slots=(inp, wgt)))


def _changed(nest: TileNest, schedule: Schedule, random: Random) -> Schedule:
    knob = random.choice(_KNOBS)
    if knob == "tile":
        name = random.choice([loop.name for loop in nest.loops])
        size = _other_size(nest.extents[name], schedule.tiles[name], random)
        return replace(schedule, tiles={**schedule.tiles, name: size})
    if knob == "order":
        return replace(schedule, order=_swapped(nest, schedule.order, random))
    if knob == "slots":
        inp, wgt = (min(MOST_SLOTS, s + random.choice((-1, 0, 1))) for s in schedule.slots)
        return replace(schedule, slots=(inp, wgt))
    spatial = [loop.name for loop in nest.loops if loop.kind is AxisKind.SPATIAL]
    thread_loop = random.choice([None, *(n for n in spatial if nest.extents[n] > 1)])
    return replace(schedule, threads=2, thread_loop=thread_loop)


def _other_size(extent: int, size: int, random: Random) -> int:
    """Half or double of it, one more or less, or the size for a part more or less."""
    parts = -(-extent // size)
    sizes = {size // 2, 2 * size, size - 1, size + 1, -(-extent // (parts + 1))}
    if parts > 1:
        sizes.add(-(-extent // (parts - 1)))
    return random.choice(sorted({max(1, min(extent, s)) for s in sizes}))


def _swapped(nest: TileNest, order: tuple[str, ...], random: Random) -> tuple[str, ...]:
    """Two loops of one kind exchanged."""
    kinds = {loop.name: loop.kind for loop in nest.loops}
    kind = random.choice(list(AxisKind))
    places = [k for k, name in enumerate(order) if kinds[name] is kind]
    if len(places) < 2:
        return order
    one, other = random.sample(places, 2)
    names = list(order)
    names[one], names[other] = names[other], names[one]
    return tuple(names)
