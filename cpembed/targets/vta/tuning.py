"""Tuning on a VTA: schedules as a search space, and trials with their simulated cycles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from cpembed.embedding.constraint_set import ConstraintSet
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import AxisKind, Computation
from cpembed.runtime.measurement.environment import versions
from cpembed.runtime.tuning.database import Trial, problem_key, sources_digest
from cpembed.runtime.tuning.space import Scored, Space
from cpembed.stores import Count, Positive
from cpembed.targets.vta.bounds import Bounds, bounds
from cpembed.targets.vta.estimate import Tilings, ranked_schedules
from cpembed.targets.vta.isa import VtaConfig
from cpembed.targets.vta.lower import LoweredVta, lower
from cpembed.targets.vta.schedule import Schedule, check_schedule
from cpembed.targets.vta.tail import Tail, check_tail
from cpembed.targets.vta.tiles import TileNest, TileTensor, tile_nest, with_bias
from cpembed.targets.vta.timing import MemorySystem
from cpembed.transform.program import DerivedProgram

# With one slot loads wait for products, which estimates do not count; ranking tries up to 4.
MIN_SLOTS, MAX_SLOTS = 2, 8
"""Minimum and maximum number of an operand's regions in SRAM at a time, with two threads."""

_RANKED = 512
"""Number of schedules to rank by default."""

_KNOBS = ("tile", "tile", "order", "threads", "slots")
"""Knobs that a neighbour may differ in; tile sizes, which have many values, twice as often."""

_ANOTHER = 0.4
"""Probability that a neighbour differs in one more knob."""


@dataclass(frozen=True)
class Machine:
    """Machine that a program runs on, and the tail of its results."""

    config: VtaConfig
    memory: MemorySystem
    tail: Tail


@dataclass(frozen=True)
class Nest:
    """Derived program as a nest over a machine's tiles."""

    program: DerivedProgram
    nest: TileNest
    machine: Machine

    @classmethod
    def from_program(cls, program: DerivedProgram, machine: Machine) -> Nest:
        """Return the nest of a derived program.

        Raises :class:`LoweringError` if the program's tiles are not the configuration's, or the
        tail's results are not the workload's.
        """
        check_tail(program.unfused, machine.tail)
        return cls(program, tile_nest(program, machine.config), machine)

    def lowered(self, schedule: Schedule) -> LoweredVta:
        """Return the program of a schedule; raises :class:`LoweringError` if it does not fit."""
        return lower(self.program, self.machine.config, schedule, self.machine.tail)


class VtaSpace(Space[Schedule]):
    """Schedules of a tile nest, estimated in cycles."""

    def __init__(self, nest: Nest) -> None:
        self.nest = nest.nest
        self.machine = nest.machine

    @cached_property
    def bounds(self) -> Bounds:
        """Lower bounds of every schedule of the nest."""
        return bounds(self.nest, self.machine.tail, self.machine.memory)

    @property
    def lower_bound(self) -> float:
        return self.bounds.busiest_module

    def ranked(self, limit: int | None = None) -> list[Scored[Schedule]]:
        machine = self.machine
        ranking = ranked_schedules(self.nest, machine.tail, limit or _RANKED, machine.memory)
        return [Scored(cycles, schedule) for cycles, schedule in ranking]

    def scored(self, schedule: Schedule) -> Scored[Schedule]:
        # The space's nest is without the bias, which takes accumulators too.
        check_schedule(with_bias(self.nest, self.machine.tail.bias), schedule)
        return Scored(self.estimated(schedule), schedule)

    def estimated(self, schedule: Schedule) -> float:
        """Return a schedule's estimated cycles; infinite if it seems not to fit."""
        sizes = {name: np.array([size], np.int64) for name, size in schedule.tiles.items()}
        tilings = Tilings(self.nest, sizes)
        if not tilings.fits(schedule)[0]:
            return np.inf
        return float(tilings.cycles(schedule, self.machine.tail, self.machine.memory)[0])

    def canonical(self, schedule: Schedule) -> Schedule:
        return canonical(self.nest, schedule)

    def neighbour(self, schedule: Schedule, random: Random) -> Schedule:
        return neighbour(self.nest, schedule, random)

    def form(self) -> object:
        """Return a key that nests share if they differ in packing only, which takes no cycles."""
        # Embeddings of equal loops and accesses have the same instructions: one is simulated.
        nest = self.nest
        tensors = (*nest.inputs, nest.acc)
        return (nest.loops, *((t.memory, t.shape, t.access, t.padded_x) for t in tensors))


def canonical(nest: TileNest, schedule: Schedule) -> Schedule:
    """Return the representative of all schedules with the same program.

    Loops with a single tile come last among their kind, a thread loop has several tiles, and there
    are at most as many slots as regions, but at least two.
    """
    trips = {name: -(-nest.extents[name] // schedule.tiles[name]) for name in schedule.order}
    kinds = {loop.name: loop.kind for loop in nest.loops}
    # A loop of one trip has no effect wherever it stands.
    uncut = [loop.name for loop in nest.loops if trips[loop.name] == 1]
    order = tuple(
        name
        for kind in (AxisKind.SPATIAL, AxisKind.REDUCTION)
        for names in ([n for n in schedule.order if trips[n] > 1], uncut)
        for name in names
        if kinds[name] is kind
    )
    pairs = schedule.thread_loop is not None and trips[schedule.thread_loop] > 1
    inp, wgt = (
        min(slots, max(MIN_SLOTS, _regions(tensor, trips)))
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
    """Return the number of an operand's distinct regions."""
    names = {name for index in tensor.access for name in index.iterators}
    return int(np.prod([trips[name] for name in names], dtype=np.int64))


def neighbour(nest: TileNest, schedule: Schedule, random: Random) -> Schedule:
    """Return a schedule that differs in one knob or a few, and that may not fit.

    Parameters
    ----------
    nest
        Tile nest.
    schedule
        Schedule to start from.
    random
        Source of the random choices.
    """
    changed = _changed(nest, schedule, random)
    while random.random() < _ANOTHER:
        changed = _changed(nest, changed, random)
    # A change of threads may leave fewer slots than two threads need.
    minimum = MIN_SLOTS if changed.threads == 2 else 1
    inp, wgt = (max(minimum, slots) for slots in changed.slots)
    return canonical(nest, replace(changed, slots=(inp, wgt)))


def _changed(nest: TileNest, schedule: Schedule, random: Random) -> Schedule:
    """Return a schedule that differs in one random knob."""
    knob = random.choice(_KNOBS)
    if knob == "tile":
        name = random.choice([loop.name for loop in nest.loops])
        size = _similar_size(nest.extents[name], schedule.tiles[name], random)
        return replace(schedule, tiles={**schedule.tiles, name: size})
    if knob == "order":
        return replace(schedule, order=_swapped(nest, schedule.order, random))
    if knob == "slots":
        # The lower limit depends on the threads, which a further change may alter: see neighbour.
        inp, wgt = (min(MAX_SLOTS, s + random.choice((-1, 0, 1))) for s in schedule.slots)
        return replace(schedule, slots=(inp, wgt))
    # One thread is never tried: with two, loads and stores overlap products.
    spatial = [loop.name for loop in nest.loops if loop.kind is AxisKind.SPATIAL]
    thread_loop = random.choice([None, *(n for n in spatial if nest.extents[n] > 1)])
    return replace(schedule, threads=2, thread_loop=thread_loop)


def _similar_size(extent: int, size: int, random: Random) -> int:
    """Return half or double of a size, one more or less, or the size of one tile more or less."""
    parts = -(-extent // size)
    sizes = {size // 2, 2 * size, size - 1, size + 1, -(-extent // (parts + 1))}
    if parts > 1:
        sizes.add(-(-extent // (parts - 1)))
    # Sorted, because the order of a set would make a seeded search differ between processes.
    return random.choice(sorted({max(1, min(extent, s)) for s in sizes}))


def _swapped(nest: TileNest, order: tuple[str, ...], random: Random) -> tuple[str, ...]:
    """Return an order with two random loops of one kind swapped."""
    kinds = {loop.name: loop.kind for loop in nest.loops}
    kind = random.choice(list(AxisKind))
    places = [k for k, name in enumerate(order) if kinds[name] is kind]
    if len(places) < 2:
        return order
    first, second = random.sample(places, 2)
    names = list(order)
    names[first], names[second] = names[second], names[first]
    return tuple(names)


_SOURCES = Path(__file__).resolve().parent
"""Sources of lowering and timing: within a version of the package, cycles change only with them."""


class VtaTrial(Trial, frozen=True):
    """Schedule of an embedding and its simulated cycles, None if it has no program.

    ``lower_bound`` is the larger of the embedding's GEMM and DMA cycles, ``busiest_module`` the
    least cycles of its busiest module. ``estimate`` is None if it is not finite.
    """

    kind = "vta"

    schedule: Schedule
    estimate: Positive | None
    cycles: Count | None
    lower_bound: Count
    busiest_module: Count

    def flaw(self) -> str | None:
        schedule = self.schedule
        if sorted(schedule.order) != sorted(schedule.tiles):
            return "schedule.order: not an order of the tiles' loops"
        if schedule.thread_loop is not None and schedule.thread_loop not in schedule.tiles:
            return f"schedule.thread_loop: {schedule.thread_loop} is no loop"
        return super().flaw()

    @property
    def key(self) -> str:
        return f"{self.identifier} {self.schedule!r}"

    @property
    def cost(self) -> float | None:
        return self.cycles

    @property
    def estimated(self) -> float | None:
        return self.estimate

    @property
    def lower_bound_ratio(self) -> float:
        """Cycles over the larger of GEMM and DMA cycles; 0 without a program."""
        return (self.cycles or 0) / self.lower_bound

    @property
    def busiest_module_ratio(self) -> float:
        """Cycles over those that the busiest module needs; 0 without a program."""
        return (self.cycles or 0) / self.busiest_module

    def standing(self, objective: str | None = None) -> str:
        ratio = f"{self.lower_bound_ratio:.3f} times what GEMM or DMA alone takes"
        return f"best {self.cycles or 0:,} cycles, {ratio}"

    @classmethod
    def is_current(cls, key: Mapping[str, Any]) -> bool:
        return (key["version"], key.get("model")) == (versions()["cpembed"], _model_digest())


def result_form(tail: Tail) -> str:
    """Return the parts of a tail that cycles depend on, as text.

    These are the operations of each phase, without their immediates, and the bias' dimensions.

    >>> from cpembed.targets.vta.tail import Exact, Requantized
    >>> result_form(Requantized(9)), result_form(Exact())
    ('requantized: SHR MIN MAX', 'exact:; SHR; SHR; SHR')
    """
    phases = ";".join(" ".join(("", *(op.name for op, _ in phase))) for phase in tail.phases)
    bias = f" with bias over {', '.join(map(str, tail.bias))}" if tail.bias else ""
    return f"{type(tail).__name__.lower()}{bias}:{phases}"


def key_of(
    workload: Computation, spec: HardwareSpec, tail: Tail, constraints: ConstraintSet
) -> dict[str, Any]:
    """Return everything that the trials of a file depend on.

    Parameters
    ----------
    workload
        Computation to tune.
    spec
        Hardware specification of the target.
    tail
        Operations on the sums before they are stored.
    constraints
        Constraints on the embeddings.
    """
    return {
        **problem_key(workload, spec, constraints),
        "kind": VtaTrial.kind,
        "form": result_form(tail),
        # Cycles of another version of the simulators are no trials of this one.
        "version": versions()["cpembed"],
        "model": _model_digest(),
    }


@cache
def _model_digest() -> str:
    return sources_digest(_SOURCES.rglob("*.py"))
