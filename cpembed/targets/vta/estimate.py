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
"""Cycles of a LOAD in addition to its beats and the delay of main memory."""

# The RTL reads the second accumulator in a cycle of its own.
BIAS_PASSES = 2
"""Cycles of an addition of two accumulators."""

Counts = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Tilings:
    """Nest at many choices of tile sizes, with the counts that all forms of schedules share.

    ``sizes`` has an entry for each choice, by loop; so have all counts.
    """

    nest: TileNest
    sizes: dict[str, Counts]

    @cached_property
    def tiles(self) -> dict[Memory, Counts]:
        """Tiles of a region of each operand."""
        nest = self.nest
        return {t.memory: region_tiles(t, self.sizes) for t in (*nest.factors, nest.acc)}

    @cached_property
    def transfers(self) -> dict[Memory, Counts]:
        """Transfers of a region of each factor."""
        return {t.memory: transfers(t, self.sizes) for t in self.nest.factors}

    @cached_property
    def executions(self) -> int:
        """Number of products of the nest that do not multiply zero padding."""
        return executions(self.nest)

    @cached_property
    def volume(self) -> Counts:
        """Number of products of a step."""
        return _product(list(self.sizes.values()))

    def schedule(self, form: Schedule, at: int) -> Schedule:
        """Return the schedule of a form at one choice of sizes."""
        return replace(form, tiles={name: int(size[at]) for name, size in self.sizes.items()})

    def has_pairs(self, form: Schedule) -> NDArray[np.bool_]:
        """Return a mask of the schedules with neighbours along the form's thread loop."""
        # With a single tile along it, a schedule is also one of the form without a thread loop.
        if form.thread_loop is None:
            return np.ones(len(self.volume), bool)
        return self.sizes[form.thread_loop] < self.nest.extents[form.thread_loop]

    def needs(self, form: Schedule) -> dict[Memory, Counts]:
        """Return the maximum elements of each buffer that schedules occupy."""
        nest, tiles = self.nest, self.tiles
        acc = form.threads * tiles[Memory.ACC]
        # The bias of an output tile lies in ACC too, once for all threads.
        if nest.bias is not None:
            acc = acc + region_tiles(nest.bias, self.sizes)
        slots = {t.memory: count for t, count in zip(nest.factors, form.slots, strict=True)}
        return {
            Memory.ACC: acc,
            **{memory: count * tiles[memory] for memory, count in slots.items()},
        }

    def fits(self, form: Schedule) -> NDArray[np.bool_]:
        """Return a mask of the schedules that fit their buffers."""
        # Regions of accesses with digits may be smaller than counted: some that fit are left out.
        fitting = self.has_pairs(form)
        for memory, needed in self.needs(form).items():
            fitting = fitting & (needed <= self.nest.config.elements(memory))
        return fitting

    def cycles(self, form: Schedule, tail: Tail, memory: MemorySystem) -> NDArray[np.float64]:
        """Estimate the cycles of schedules that differ in their tiles, even if they do not fit.

        With two slots, loads run ahead by a step, so a step takes the longer of its products and
        the loads of the next step; with more slots only the sums count.

        Parameters
        ----------
        form
            Schedule whose tiles are replaced by each choice of sizes.
        tail
            Operations on the sums before they are stored.
        memory
            Memory system.
        """
        nest, sizes = self.nest, self.sizes
        config = nest.config
        trips = _trips(nest, form, sizes)
        kinds = {loop.name: loop.kind for loop in nest.loops}
        steps = _product([count for _, count in trips])
        outputs = _product([count for name, count in trips if kinds[name] is AxisKind.SPATIAL])
        acc = self.tiles[Memory.ACC]
        loads: list[tuple[Counts, Counts]] = []
        for tensor, slots in zip(nest.factors, form.slots, strict=True):
            beats = beats_of(self.tiles[tensor.memory], tensor.memory, config, memory)
            overhead = memory.dram_delay_cycles + LOAD_OVERHEAD
            load_cycles = beats + overhead * self.transfers[tensor.memory]
            loads.append((_loads(tensor, trips, slots), load_cycles))
        # A step is trimmed only where that is faster, as when it is lowered.
        compute = np.minimum(self.volume + PIPELINE, _trimmed(self, trips, steps))
        # A pass over the accumulators for the reset, and one for each operation of the ALU.
        passes = 1 + sum(map(len, tail.phases))
        ending = passes * (PIPELINE + acc)
        store = len(tail.phases) * store_cycles(acc, config, memory)
        if nest.bias is not None:
            ending = ending + BIAS_PASSES * acc
        if len(tail.phases) > 1:
            # Each further phase of the ALU waits for the stores before it.
            ending = ending + store
        load = sum(count * load_cycles for count, load_cycles in loads)
        # Instructions are fetched on the channel of the loads, one or more for each step.
        fetch = FETCH_CYCLES * steps
        if form.threads == 1:
            cycles = load + steps * compute + outputs * (ending + store)
        else:
            overlapped = (
                steps * compute if min(form.slots) > 2 else _lockstep(steps, compute, loads)
            )
            cycles = np.maximum(overlapped + outputs * ending, np.maximum(load, outputs * store))
            # The first loads and the last end have nothing to overlap with.
            cycles = cycles + sum(load_cycles for _, load_cycles in loads) + ending
        return (cycles + fetch).astype(np.float64)


def _trimmed(tilings: Tilings, trips: list[tuple[str, Counts]], steps: Counts) -> Counts:
    """Return the average cycles of a step without the products that multiply zero padding.

    A tile at the border of a padded dimension has a part for each value of all but the longest of
    the dimension's loops (:func:`~cpembed.targets.vta.uop_loops.trimmed_tiles`).
    """
    nest, sizes = tilings.nest, tilings.sizes
    parts = np.ones(len(steps))
    for index, extent in zip(nest.inp.access, nest.inp.shape, strict=True):
        low, high = index.bounds(nest.extents)
        names = index.iterators
        if not names or (low >= 0 and high < extent):
            continue
        extents = np.stack([sizes[name] for name in names])
        cuts = _product([count for name, count in trips if name in names])
        touching = np.minimum(1, ((low < 0) + (high >= extent)) / cuts)
        parts *= 1 + (extents.prod(axis=0) // extents.max(axis=0) - 1) * touching
    # On average: steps at a border multiply less than others, and each part is an instruction.
    products = -(-tilings.executions // steps)
    return products + PIPELINE + np.ceil((parts - 1) * (PIPELINE + FETCH_CYCLES)).astype(np.int64)


def _lockstep(steps: Counts, compute: Counts, loads: list[tuple[Counts, Counts]]) -> Counts:
    """Return the cycles of steps, each the longer of its products and the next step's loads.

    Some steps load both operands, some only the operand that is loaded more often, the others none.
    ``loads`` has the number of loads of each operand and the cycles of one.
    """
    (inp_count, inp_cycles), (wgt_count, wgt_cycles) = loads
    both = np.minimum(inp_count, wgt_count)
    frequent = np.where(inp_count > wgt_count, inp_cycles, wgt_cycles)
    # Loads of both operands coincide as often as possible, because loops are nested: the step that
    # changes the rarer operand usually begins a new round of the other.
    any_load = np.maximum(inp_count, wgt_count)
    return (
        both * np.maximum(compute, inp_cycles + wgt_cycles)
        + (any_load - both) * np.maximum(compute, frequent)
        + (steps - any_load) * compute
    )


def store_cycles(acc: Counts, config: VtaConfig, memory: MemorySystem) -> Counts:
    """Return the cycles of a STORE of a region that is contiguous in DRAM.

    Parameters
    ----------
    acc
        Accumulators of the region.
    config
        Configuration, which has the size of a tile.
    memory
        Memory system.
    """
    beats = beats_of(acc, Memory.OUT, config, memory)
    return 1 + write_cycles(-(-beats // memory.burst_beats), beats, config, memory)


def beats_of(tiles: Counts, kind: Memory, config: VtaConfig, memory: MemorySystem) -> Counts:
    """Return the beats of contiguous tiles, of which a beat may hold several.

    Parameters
    ----------
    tiles
        Number of tiles.
    kind
        Memory of the tiles.
    config
        Configuration, which has the size of a tile.
    memory
        Memory system, which has the size of a beat.
    """
    return -(-tiles * config.element_bytes(kind) // memory.beat_bytes)


def _product(counts: Sequence[Counts]) -> Counts:
    total = np.ones(len(counts[0]) if counts else 1, np.int64)
    for count in counts:
        total = total * count
    return total


def _trips(nest: TileNest, form: Schedule, sizes: dict[str, Counts]) -> list[tuple[str, Counts]]:
    """Return the loops over tiles, outermost first, each with its number of iterations."""
    trips = [(name, -(-nest.extents[name] // sizes[name])) for name in form.order]
    if form.thread_loop is None:
        return trips
    # The loop is two: over pairs in its place, and within a pair inside of all reductions.
    pairs = [(name, -(-count // 2) if name == form.thread_loop else count) for name, count in trips]
    count = dict(trips)[form.thread_loop]
    return [*pairs, (form.thread_loop, np.minimum(count, 2))]


def _loads(tensor: TileTensor, trips: list[tuple[str, Counts]], slots: int) -> Counts:
    """Return the number of loads of an operand."""
    # From the innermost loop outwards: a loop that regions do not depend on repeats no loads as
    # long as all distinct regions inside it fit the slots.
    distinct = loads = np.ones_like(trips[0][1])
    for name, count in reversed(trips):
        if name in tensor.loops:
            distinct, loads = distinct * count, loads * count
        else:
            loads = np.where(distinct <= slots, loads, loads * count)
    return loads


def region_tiles(tensor: TileTensor, sizes: dict[str, Counts]) -> Counts:
    """Return the tiles of a region, by the sizes of the loops' tiles."""
    counts = [_span(tensor, k, index, sizes) for k, index in enumerate(tensor.access)]
    return _product([next(iter(sizes.values())) * 0 + 1, *counts])


def _span(tensor: TileTensor, k: int, index: IndexExpr, sizes: dict[str, Counts]) -> Counts:
    """Return the extent of a region along dimension ``k``, as ``schedule.span_of`` counts it."""
    zero = next(iter(sizes.values())) * 0
    step, reach = zero, zero
    for term in index.terms:
        points = math.prod(sizes[name] for name in term.iterators)
        coefficient = abs(term.coefficient)
        # A digit may take one value more than its loop's tile has whole steps, and may start over;
        # where the tile begins is not known here.
        values = -(-(points - 1) // term.divisor)
        if term.modulus is not None:
            values = np.where(values > 0, term.modulus - 1, 0)
        step = np.gcd(step, np.where(values > 0, coefficient, 0))
        reach = reach + coefficient * values
    if k == tensor.padded_x:
        step = np.minimum(step, 1)
    return reach // np.maximum(step, 1) + 1


def transfers(tensor: TileTensor, sizes: dict[str, Counts]) -> Counts:
    """Return the transfers of a region.

    One covers its two innermost dimensions longer than 1, after joining dimensions that continue
    each other.
    """
    spans = [_span(tensor, k, index, sizes) for k, index in enumerate(tensor.access)]
    runs = np.ones_like(next(iter(sizes.values())))
    covered = np.zeros_like(runs)
    joins = np.ones_like(runs, dtype=bool)
    for k in reversed(range(len(spans))):
        longer = spans[k] > 1
        separate = longer & ~(joins & (covered > 0))
        # Tiles that do not follow each other are rows of one tile, which occupies x.
        single = longer & (covered == 0) & (tensor.strides[k] != 1)
        covered = covered + separate + single
        runs = np.where(longer & (covered > 2), runs * spans[k], runs)
        complete = (spans[k] == tensor.shape[k]) & (k != tensor.padded_x)
        joins = np.where(longer, complete, joins & (tensor.shape[k] == 1))
    return runs


DEFAULT_MEMORY = MemorySystem()
SLOTS = (2, 4)
"""Numbers of regions of INP and of WGT in SRAM at a time that are tried with two threads."""

MAX_COMBINATIONS = 1 << 16
"""Maximum number of combinations of tile sizes; loops get fewer choices to stay below it."""


def default_schedule(nest: TileNest, tail: Tail, memory: MemorySystem = DEFAULT_MEMORY) -> Schedule:
    """Return the schedule with the least estimate; see :func:`ranked_schedules`.

    Parameters
    ----------
    nest
        Tile nest.
    tail
        Operations on the sums before they are stored.
    memory
        Memory system, by default the RTL's.
    """
    return ranked_schedules(nest, tail, 1, memory)[0][1]


def ranked_schedules(
    nest: TileNest, tail: Tail, limit: int, memory: MemorySystem = DEFAULT_MEMORY
) -> list[tuple[float, Schedule]]:
    """Return the legal schedules of least estimates in cycles, best first, each program once.

    Parameters
    ----------
    nest
        Tile nest.
    tail
        Operations on the sums before they are stored.
    limit
        Maximum number of schedules.
    memory
        Memory system, by default the RTL's.

    Raises
    ------
    LoweringError
        If not even single tiles fit the buffers.
    """
    ranking: list[tuple[float, int, Schedule]] = []
    tilings = Tilings(nest, combinations(tile_sizes(nest)))
    for form in forms(nest):
        cycles = np.where(tilings.fits(form), tilings.cycles(form, tail, memory), np.inf)
        best = np.argsort(cycles, kind="stable")[:limit]
        ranking += [(float(cycles[at]), int(at), form) for at in best if np.isfinite(cycles[at])]
    if not ranking:
        raise LoweringError("no schedule: single tiles exceed the buffers of the configuration")
    ranking.sort(key=lambda item: item[0])
    distinct: dict[object, tuple[float, Schedule]] = {}
    for cycles, at, form in ranking:
        schedule = tilings.schedule(form, at)
        distinct.setdefault(_program(nest, schedule), (cycles, schedule))
    return list(distinct.values())[:limit]


def _program(nest: TileNest, schedule: Schedule) -> object:
    """Return a key that schedules of equal programs share."""
    # The place of a loop with a single tile does not matter.
    order = tuple(n for n in schedule.order if schedule.tiles[n] < nest.extents[n])
    tiles = tuple(schedule.tiles.items())
    return order, tiles, schedule.threads, schedule.thread_loop, schedule.slots


def forms(nest: TileNest) -> Iterator[Schedule]:
    """Yield schedules without tiles: orders of the loops with one thread or two."""
    spatial = [loop.name for loop in nest.loops if loop.kind is AxisKind.SPATIAL]
    reduction = [loop.name for loop in nest.loops if loop.kind is AxisKind.REDUCTION]
    # Two orders: one operand's regions stay while the inner spatial loops change the other's.
    orders = {
        (*sorted(spatial, key=lambda name: (name in nest.wgt.loops) is inside), *reduction)
        for inside in (False, True)
    }
    for order in sorted(orders):
        yield Schedule({}, order, threads=1, slots=(1, 1))
        for loop in (None, *(n for n in spatial if nest.extents[n] > 1)):
            for slots in SLOTS:
                yield Schedule({}, order, thread_loop=loop, slots=(slots, slots))


def tile_sizes(nest: TileNest, limit: int = MAX_COMBINATIONS) -> dict[str, list[int]]:
    """Return sizes that cut each loop into nearly equal parts, at most ``limit`` combinations."""
    # One size for each number of parts: others leave a short last tile and the same trips.
    choices = {
        loop.name: sorted({-(-loop.extent // parts) for parts in range(1, loop.extent + 1)})
        for loop in nest.loops
    }
    while math.prod(map(len, choices.values())) > limit:
        longest = max(choices, key=lambda name: len(choices[name]))
        # Every other size is dropped, but never a single iteration or the whole loop.
        smallest, *larger = choices[longest]
        choices[longest] = [smallest, *larger[::-2][::-1]]
    return choices


def combinations(choices: dict[str, list[int]]) -> dict[str, Counts]:
    """Return all combinations of a size for each loop, as arrays by loop."""
    grids = np.meshgrid(*(np.array(c, np.int64) for c in choices.values()), indexing="ij")
    return {name: grid.reshape(-1) for name, grid in zip(choices, grids, strict=True)}
