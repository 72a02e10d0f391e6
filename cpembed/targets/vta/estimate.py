"""Cycles of many schedules at once, without their programs, and the schedules of least estimates.

Arrays have an entry for each choice of tile sizes. Cycles of the compute, load and store modules
follow the cycle table of VTA's RTL, each alone; with two threads they overlap and the slowest
module decides.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from cpembed.errors import LoweringError
from cpembed.ir.computation import AxisKind
from cpembed.ir.index import IndexExpr
from cpembed.targets.vta.isa import Memory, VtaConfig
from cpembed.targets.vta.schedule import Schedule
from cpembed.targets.vta.tail import Tail
from cpembed.targets.vta.tiles import TileNest, TileTensor, executions
from cpembed.targets.vta.timing import PIPELINE, MemorySystem, write_cycles
from cpembed.targets.vta.uop_loops import FETCH_CYCLES

LOAD_OVERHEAD = 7
"""Cycles of a LOAD beside the delay of main memory and its beats."""

BIAS_PASSES = 2
"""Cycles of an addition of two accumulators."""

Counts = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Tilings:
    """A nest at many choices of tile sizes, ``sizes`` by loop: what all forms share."""

    nest: TileNest
    sizes: dict[str, Counts]

    @cached_property
    def tiles(self) -> dict[Memory, Counts]:
        """Of a region of each operand."""
        nest = self.nest
        return {t.memory: region_tiles(t, self.sizes) for t in (*nest.factors, nest.acc)}

    @cached_property
    def transfers(self) -> dict[Memory, Counts]:
        """Of a region of each factor."""
        return {t.memory: transfers(t, self.sizes) for t in self.nest.factors}

    @cached_property
    def executions(self) -> int:
        """Products of the nest that multiply more than zeros."""
        return executions(self.nest)

    @cached_property
    def volume(self) -> Counts:
        """Products of a step."""
        return _product(list(self.sizes.values()))


def estimate(
    tilings: Tilings, form: Schedule, tail: Tail, memory: MemorySystem
) -> NDArray[np.float64]:
    """Cycles of schedules of one ``form``, which differ in their tiles; infinite where one does not
    fit."""
    return np.where(fits(tilings, form), estimated_cycles(tilings, form, tail, memory), np.inf)


def estimated_cycles(
    tilings: Tilings, form: Schedule, tail: Tail, memory: MemorySystem
) -> NDArray[np.float64]:
    """Cycles of schedules, whether or not they fit.

    Loads run ahead by a step where there are two slots, so a step takes as long as the longer of
    its products and the next one's loads; with more slots only the sums count.
    """
    nest, sizes = tilings.nest, tilings.sizes
    config = nest.config
    trips = _trips(nest, form, sizes)
    kinds = {loop.name: loop.kind for loop in nest.loops}
    steps = _product([count for _, count in trips])
    outputs = _product([count for name, count in trips if kinds[name] is AxisKind.SPATIAL])
    acc = tilings.tiles[Memory.ACC]
    loads: list[tuple[Counts, Counts]] = []
    for tensor, slots in zip(nest.factors, form.slots, strict=True):
        beats = beats_of(tilings.tiles[tensor.memory], tensor.memory, config, memory)
        overhead = memory.dram_delay_cycles + LOAD_OVERHEAD
        one = beats + overhead * tilings.transfers[tensor.memory]
        loads.append((_loads(tensor, trips, slots), one))
    compute = np.minimum(tilings.volume + PIPELINE, _trimmed(tilings, trips, steps))
    passes = 1 + sum(map(len, tail.phases))
    ending = passes * (PIPELINE + acc)
    store = len(tail.phases) * store_cycles(acc, config, memory)
    if nest.bias is not None:
        ending = ending + BIAS_PASSES * acc
    if len(tail.phases) > 1:
        # Each further phase of the ALU waits for the stores before it.
        ending = ending + store
    load = sum(count * one for count, one in loads)
    fetch = FETCH_CYCLES * steps
    if form.threads == 1:
        cycles = load + steps * compute + outputs * (ending + store)
    else:
        overlapped = steps * compute if min(form.slots) > 2 else _lockstep(steps, compute, loads)
        cycles = np.maximum(overlapped + outputs * ending, np.maximum(load, outputs * store))
        cycles = cycles + sum(one for _, one in loads) + ending
    return (cycles + fetch).astype(np.float64)


def estimate_schedule(
    nest: TileNest, schedule: Schedule, tail: Tail, memory: MemorySystem
) -> float:
    """Cycles of one schedule; infinite where it does not fit."""
    sizes = {name: np.array([size], np.int64) for name, size in schedule.tiles.items()}
    return float(estimate(Tilings(nest, sizes), schedule, tail, memory)[0])


def _trimmed(tilings: Tilings, trips: list[tuple[str, Counts]], steps: Counts) -> Counts:
    """Cycles of a step, on average, where products with zero padding are left out: a part for each
    value of all but the longest loop of a padded dimension, in the tiles at its borders."""
    nest, sizes = tilings.nest, tilings.sizes
    parts = np.ones(len(steps))
    for index, extent in zip(nest.inp.access, nest.inp.shape, strict=True):
        low, high = index.bounds(nest.extents)
        names = index.iterators
        if not names or (low >= 0 and high < extent):
            continue
        walked = np.stack([sizes[name] for name in names])
        cuts = _product([count for name, count in trips if name in names])
        touching = np.minimum(1, ((low < 0) + (high >= extent)) / cuts)
        parts *= 1 + (walked.prod(axis=0) // walked.max(axis=0) - 1) * touching
    products = -(-tilings.executions // steps)
    return products + PIPELINE + np.ceil((parts - 1) * (PIPELINE + FETCH_CYCLES)).astype(np.int64)


def fits(tilings: Tilings, form: Schedule) -> NDArray[np.bool_]:
    """Which schedules' regions fit their buffers; a little strict where an access has digits."""
    config, found = tilings.nest.config, pairs(tilings, form)
    for memory, needed in needs(tilings, form).items():
        found = found & (needed <= config.elements(memory))
    return found


def needs(tilings: Tilings, form: Schedule) -> dict[Memory, Counts]:
    """Elements of each buffer that schedules take; rather more where an access has digits."""
    nest, tiles = tilings.nest, tilings.tiles
    acc = form.threads * tiles[Memory.ACC]
    if nest.bias is not None:
        acc = acc + region_tiles(nest.bias, tilings.sizes)
    slots = {t.memory: count for t, count in zip(nest.factors, form.slots, strict=True)}
    return {Memory.ACC: acc, **{memory: count * tiles[memory] for memory, count in slots.items()}}


def pairs(tilings: Tilings, form: Schedule) -> NDArray[np.bool_]:
    """Which schedules have what their form says: a single tile along a thread loop pairs nothing,
    which is the form without one."""
    if form.thread_loop is None:
        return np.ones(len(tilings.volume), bool)
    return tilings.sizes[form.thread_loop] < tilings.nest.extents[form.thread_loop]


def _lockstep(steps: Counts, compute: Counts, loads: list[tuple[Counts, Counts]]) -> Counts:
    """Cycles of steps, each the longer of its products and the loads of the step after it: some
    load both operands, some the one that is loaded more often, the others none."""
    (first, one), (second, other) = loads
    both = np.minimum(first, second)
    either = np.where(first > second, one, other)
    most = np.maximum(first, second)
    return (
        both * np.maximum(compute, one + other)
        + (most - both) * np.maximum(compute, either)
        + (steps - most) * compute
    )


def store_cycles(acc: Counts, config: VtaConfig, memory: MemorySystem) -> Counts:
    """Of the STORE of a region that is in one piece in DRAM."""
    beats = beats_of(acc, Memory.OUT, config, memory)
    return 1 + write_cycles(-(-beats // memory.burst_beats), beats, config, memory)


def beats_of(tiles: Counts, kind: Memory, config: VtaConfig, memory: MemorySystem) -> Counts:
    """Of tiles one after the other; a beat may hold several."""
    return -(-tiles * config.element_bytes(kind) // memory.beat_bytes)


def _product(counts: Sequence[Counts]) -> Counts:
    total = np.ones(len(counts[0]) if counts else 1, np.int64)
    for count in counts:
        total = total * count
    return total


def _trips(nest: TileNest, form: Schedule, sizes: dict[str, Counts]) -> list[tuple[str, Counts]]:
    """The loops over tiles, outermost first, each with its number of iterations."""
    trips = [(name, -(-nest.extents[name] // sizes[name])) for name in form.order]
    if form.thread_loop is None:
        return trips
    pairs = [(name, -(-count // 2) if name == form.thread_loop else count) for name, count in trips]
    count = dict(trips)[form.thread_loop]
    return [*pairs, (form.thread_loop, np.minimum(count, 2))]


def _loads(tensor: TileTensor, trips: list[tuple[str, Counts]], slots: int) -> Counts:
    """How often a region is loaded: a loop that it does not depend on costs nothing while all its
    regions inside that loop lie in the slots."""
    distinct = loads = np.ones_like(trips[0][1])
    for name, count in reversed(trips):
        if name in tensor.loops:
            distinct, loads = distinct * count, loads * count
        else:
            loads = np.where(distinct <= slots, loads, loads * count)
    return loads


def region_tiles(tensor: TileTensor, sizes: dict[str, Counts]) -> Counts:
    """Tiles of a region, by the sizes of the loops' tiles."""
    counts = [_span(tensor, k, index, sizes) for k, index in enumerate(tensor.access)]
    return _product([next(iter(sizes.values())) * 0 + 1, *counts])


def _span(tensor: TileTensor, k: int, index: IndexExpr, sizes: dict[str, Counts]) -> Counts:
    zero = next(iter(sizes.values())) * 0
    step, reach = zero, zero
    for term in index.terms:
        walked = math.prod(sizes[name] for name in term.iterators)
        coefficient = abs(term.coefficient)
        # A digit may take one value more than its loop's tile has whole steps, and may start over.
        values = -(-(walked - 1) // term.divisor)
        if term.modulus is not None:
            values = np.where(values > 0, term.modulus - 1, 0)
        step = np.gcd(step, np.where(values > 0, coefficient, 0))
        reach = reach + coefficient * values
    if k == tensor.padded_x:
        step = np.minimum(step, 1)
    return reach // np.maximum(step, 1) + 1


def transfers(tensor: TileTensor, sizes: dict[str, Counts]) -> Counts:
    """Transfers of a region: one for all dimensions beyond its two innermost longer ones."""
    spans = [_span(tensor, k, index, sizes) for k, index in enumerate(tensor.access)]
    runs = np.ones_like(next(iter(sizes.values())))
    # Dimensions that continue each other, from the innermost, and then one more, are a transfer.
    seen = np.zeros_like(runs)
    joins = np.ones_like(runs, dtype=bool)
    for k in reversed(range(len(spans))):
        longer = spans[k] > 1
        own = longer & ~(joins & (seen > 0))
        # Tiles that do not follow each other are rows of one tile: x is taken by a single one.
        single = longer & (seen == 0) & (tensor.strides[k] != 1)
        seen = seen + own + single
        runs = np.where(longer & (seen > 2), runs * spans[k], runs)
        whole = (spans[k] == tensor.shape[k]) & (k != tensor.padded_x)
        joins = np.where(longer, whole, joins & (tensor.shape[k] == 1))
    return runs


DEFAULT_MEMORY = MemorySystem()
SLOTS = (2, 4)
"""Regions of INP and of WGT in SRAM at a time, with two threads."""

MAX_COMBINATIONS = 1 << 16
"""Tile sizes tried together at most; above that, loops get fewer choices."""


def default_schedule(nest: TileNest, tail: Tail, memory: MemorySystem = DEFAULT_MEMORY) -> Schedule:
    """The schedule with the smallest estimate; see :func:`ranked_schedules`."""
    return ranked_schedules(nest, tail, 1, memory)[0][1]


def ranked_schedules(
    nest: TileNest, tail: Tail, limit: int, memory: MemorySystem = DEFAULT_MEMORY
) -> list[tuple[float, Schedule]]:
    """The legal schedules of smallest estimates, in cycles, best first; each program once.

    Raises :class:`LoweringError` where not even single tiles fit the buffers.
    """
    choices = tile_sizes(nest)
    sizes = combinations(choices)
    found: list[tuple[float, int, Schedule]] = []
    tilings = Tilings(nest, sizes)
    for form in forms(nest):
        cycles = estimate(tilings, form, tail, memory)
        best = np.argsort(cycles, kind="stable")[:limit]
        found += [(float(cycles[at]), int(at), form) for at in best if np.isfinite(cycles[at])]
    if not found:
        raise LoweringError("no schedule: single tiles exceed the buffers of the configuration")
    found.sort(key=lambda item: item[0])
    distinct: dict[object, tuple[float, Schedule]] = {}
    for cycles, at, form in found:
        schedule = with_tiles(form, sizes, at)
        distinct.setdefault(_program(nest, schedule), (cycles, schedule))
    return list(distinct.values())[:limit]


def _program(nest: TileNest, schedule: Schedule) -> object:
    """Equal for schedules of equal programs: where a loop with a single tile stands is nothing."""
    walked = tuple(n for n in schedule.order if schedule.tiles[n] < nest.extents[n])
    tiles = tuple(schedule.tiles.items())
    return walked, tiles, schedule.threads, schedule.thread_loop, schedule.slots


def forms(nest: TileNest) -> Iterator[Schedule]:
    """Schedules without their tiles: orders that keep one operand's regions while the other's
    change, with one thread or two."""
    spatial = [loop.name for loop in nest.loops if loop.kind is AxisKind.SPATIAL]
    reduction = [loop.name for loop in nest.loops if loop.kind is AxisKind.REDUCTION]
    orders = {
        (*sorted(spatial, key=lambda name: (name in nest.wgt.loops) is inside), *reduction)
        for inside in (False, True)
    }
    for order in sorted(orders):
        yield Schedule({}, order, 1, None, (1, 1))
        for loop in (None, *(n for n in spatial if nest.extents[n] > 1)):
            for slots in SLOTS:
                yield Schedule({}, order, 2, loop, (slots, slots))


def tile_sizes(nest: TileNest, most: int = MAX_COMBINATIONS) -> dict[str, list[int]]:
    """Sizes that cut each loop into equal parts, as nearly as can be; ``most`` combinations."""
    choices = {
        loop.name: sorted({-(-loop.extent // parts) for parts in range(1, loop.extent + 1)})
        for loop in nest.loops
    }
    while math.prod(map(len, choices.values())) > most:
        longest = max(choices, key=lambda name: len(choices[name]))
        # Every other size, always with a single iteration and the whole loop.
        first, *others = choices[longest]
        choices[longest] = [first, *others[::-2][::-1]]
    return choices


def combinations(choices: dict[str, list[int]]) -> dict[str, Counts]:
    """Every choice of a size for each loop, as arrays."""
    grids = np.meshgrid(*(np.array(c, np.int64) for c in choices.values()), indexing="ij")
    return {name: grid.reshape(-1) for name, grid in zip(choices, grids, strict=True)}


def with_tiles(form: Schedule, sizes: dict[str, Counts], at: int) -> Schedule:
    """The schedule of a form with one of the choices of sizes."""
    return replace(form, tiles={name: int(size[at]) for name, size in sizes.items()})
