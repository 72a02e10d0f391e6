"""Lower bounds of cycles: of every schedule of a nest, and of one schedule without its program.

Every cycle that is counted is spent by one module on one instruction (``docs/vta.md``, Cycles), so
the timed simulator never takes fewer.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from cpembed.ir.computation import AxisKind
from cpembed.targets.vta.energy import Work
from cpembed.targets.vta.estimate import BIAS_PASSES, beats_of, store_cycles
from cpembed.targets.vta.isa import Memory
from cpembed.targets.vta.program import Numbers
from cpembed.targets.vta.schedule import (
    Interval,
    Schedule,
    Span,
    existing,
    largest_regions,
    loop_tiles,
    paired_loop,
    span_of,
)
from cpembed.targets.vta.tail import Tail
from cpembed.targets.vta.tiles import (
    TileNest,
    TileTensor,
    accessed_tiles,
    executions,
    existence_masks,
)
from cpembed.targets.vta.timing import PIPELINE, MemorySystem


@dataclass(frozen=True)
class Bounds:
    """Lower bounds of a nest's cycles, for any schedule.

    Attributes
    ----------
    gemm
        Products that multiply no padding, and whose result is not discarded.
    compute
        Work of the compute module: these products, resets and the ALU.
    read
        Beats of the operands' tiles that such products access, each read once.
    write
        Cycles of the STOREs of the output, which overlap the reads.
    """

    gemm: int
    compute: int
    read: int
    write: int

    @property
    def gemm_or_dma(self) -> int:
        """Larger of multiplications and transfers, as if both overlapped fully."""
        return max(self.gemm, self.read, self.write)

    @property
    def busiest_module(self) -> int:
        """Larger of the compute module's work and the transfers."""
        return max(self.compute, self.read, self.write)


def bounds(nest: TileNest, tail: Tail, memory: MemorySystem) -> Bounds:
    """Return the lower bounds of a nest's programs.

    Parameters
    ----------
    nest
        Tile nest, with the tail's bias.
    tail
        Operations on the sums before they are stored.
    memory
        Memory system.
    """
    gemm = executions(nest)
    passes = 1 + sum(map(len, tail.phases)) + (0 if nest.bias is None else BIAS_PASSES)
    masks = existence_masks(nest)
    read = 0
    for tensor in nest.inputs:
        # Only factors of products are loaded, but a bias is added to every output.
        tiles = accessed_tiles(nest, tensor, [] if tensor is nest.bias else masks)
        read += int(beats_of(np.array(tiles), tensor.memory, nest.config, memory))
    written = accessed_tiles(nest, nest.acc, [])
    store = int(store_cycles(np.array(written), nest.config, memory))
    return Bounds(gemm, gemm + passes * written, read, len(tail.phases) * store)


# Command, answer, SRAM's latency and the next issue remain if other bursts hide the memory's delay.
LOAD_FLOOR = 6
"""Minimum cycles of a LOAD in addition to its beats."""

# The end is the empty LOAD, of 2 cycles, and FINISH.
_START, _END = 4, 3
"""Cycles before the first instruction, without the memory's delay, and after the last STORE."""


@dataclass(frozen=True)
class Floor:
    """Lower bounds of the cycles and the work of one program."""

    cycles: int
    work: Work


class Floors:
    """Lower bounds of the schedules of one nest."""

    def __init__(self, nest: TileNest, tail: Tail, memory: MemorySystem) -> None:
        self.nest = nest
        self.tail = tail
        self.memory = memory
        self._regions = RegionSpans(nest)

    @cached_property
    def least(self) -> Bounds:
        """Lower bounds of every schedule."""
        return bounds(self.nest, self.tail, self.memory)

    @cached_property
    def _trims(self) -> bool:
        """True if the program reads INP outside main memory, so that products may be left out."""
        ends = [index.bounds(self.nest.extents) for index in self.nest.inp.access]
        pairs = zip(ends, self.nest.inp.shape, strict=True)
        return any(low < 0 or high >= size for (low, high), size in pairs)

    @cached_property
    def _gaps_hide_inputs(self) -> bool:
        """True if a region may have positions in main memory that no product reads."""
        # Positions that a tile accesses are at most the largest coefficient apart: a gap without
        # any takes a dimension shorter than that.
        pairs = zip(self.nest.inp.access, self.nest.inp.shape, strict=True)
        return any(
            size < max((abs(term.coefficient) for term in index.terms), default=0)
            for index, size in pairs
            if index.is_affine
        )

    @property
    def _operations(self) -> int:
        """Operations of the ALU on each accumulator."""
        return sum(map(len, self.tail.phases)) + (self.nest.bias is not None)

    def floor(self, schedule: Schedule) -> Floor:
        """Return the lower bounds of a schedule that fits the buffers."""
        nest, counts = self.nest, StepCounts(self._regions, schedule)
        loads = {tensor.memory: counts.loads(tensor) for tensor in nest.factors}
        trimmed = schedule.trim and self._trims
        products = self.least.gemm if trimmed else counts.products
        transferred = {memory: load.tiles for memory, load in loads.items()}
        transferred[Memory.OUT] = len(self.tail.phases) * counts.stored
        work = Work(products, counts.stored, self._operations * counts.stored, transferred)
        return Floor(self._cycles(counts, products, list(loads.values())), work)

    def _cycles(self, counts: StepCounts, products: int, loads: list[LoadCounts]) -> int:
        """Return the cycles of the longest chain of work that cannot overlap.

        That is the busiest module, or modules that wait for each other: with one thread, an
        output's products wait for the stores before; if an operand has one slot, its loads wait for
        the products before.
        """
        nest, schedule = self.nest, counts.schedule
        steps = int(counts.active.sum())
        trimmed = schedule.trim and self._trims
        # A step without any part loads its operands, but no product waits for them.
        loads_awaited = not (trimmed and self._gaps_hide_inputs)
        if trimmed:
            # Padding thins steps out; this many at least are needed for the products that remain.
            steps = -(-products // math.prod(schedule.tiles.values()))
        multiply = products + PIPELINE * steps
        passes = 1 + sum(map(len, self.tail.phases))
        bias = 0 if nest.bias is None else BIAS_PASSES * counts.stored
        ending = passes * (counts.stored + PIPELINE * counts.outputs) + bias
        pairs = list(zip(nest.factors, loads, strict=True))
        load = [self._load(tensor, count.regions, count.tiles) for tensor, count in pairs]
        begun = counts.begun_before_products
        first = 0
        if begun is not None and loads_awaited:
            first = sum(self._load(tensor, 1, count.first) for tensor, count in pairs)
        phases = len(self.tail.phases)
        store = self.least.write + phases * (counts.outputs - 1)
        # The first product waits for its operands, the end for the last STORE. Outputs that see
        # only zeros may be stored before the first product: then no wait is certain.
        reset = (begun or 0) * (PIPELINE + largest_regions(nest, schedule)[Memory.ACC])
        last = phases * int(store_cycles(np.array(1), nest.config, self.memory))
        chains = [max(0, first - reset) + multiply + ending + last, first + store]
        if loads_awaited:
            one_slot = [c for c, slots in zip(load, schedule.slots, strict=True) if slots == 1]
            chains += [sum(load) + PIPELINE + last, multiply + sum(one_slot)]
        if schedule.threads == 1:
            chains.append(multiply + ending + store)
        return self.memory.dram_delay_cycles + _START + max(chains) + _END

    def _load(self, tensor: TileTensor, regions: int, tiles: int) -> int:
        """Return the least cycles of loading some regions with some tiles together."""
        beats = beats_of(np.array(tiles), tensor.memory, self.nest.config, self.memory)
        return int(beats) + LOAD_FLOOR * regions


# Few regions that are in a slot were last used before that; otherwise slots are replayed.
_LOOK_BACK = 3
"""Number of earlier uses to compare, per slot."""


@dataclass(frozen=True)
class LoadCounts:
    """Number of regions to load, and their tiles in main memory: of all, and of the ``first``."""

    regions: int
    tiles: int
    first: int


@dataclass(frozen=True, eq=False)
class _OperandSteps:
    """Operand at each step: a number for its region, and the region's tiles in main memory."""

    region: Numbers
    tiles: Numbers


class RegionSpans:
    """Spans of a nest's regions, which the schedules of the nest share."""

    def __init__(self, nest: TileNest) -> None:
        self.nest = nest
        self._spans: dict[object, tuple[Span, int]] = {}

    def span(self, tensor: TileTensor, k: int, tile: Mapping[str, Interval]) -> tuple[Span, int]:
        """Return a region along a dimension, and the number of its positions in main memory.

        Parameters
        ----------
        tensor
            Operand of the nest.
        k
            Dimension of the operand.
        tile
            Interval of each loop.
        """
        key = tensor.memory, k, *(tile[name] for name in tensor.access[k].iterators)
        if key not in self._spans:
            span = span_of(tensor, k, tile)
            self._spans[key] = span, max(0, existing(span, tensor.shape[k])[1])
        return self._spans[key]


class StepCounts:
    """Counts of a schedule's steps, without its program.

    All steps are arrays, in the order in which they execute. The loads that are left out, because
    their region lies in SRAM, follow from the order of the regions.
    """

    def __init__(self, spans: RegionSpans, schedule: Schedule) -> None:
        self.nest = spans.nest
        self.schedule = schedule
        self._spans = spans
        extents = self.nest.extents
        self._cuts = {n: loop_tiles(extents[n], schedule.tiles[n]) for n in schedule.order}

    @cached_property
    def trips(self) -> dict[str, Numbers]:
        """Number of the tile of each loop at each step."""
        paired = paired_loop(self.nest, self.schedule)
        counts = {name: len(tiles) for name, tiles in self._cuts.items()}
        shape = [-(-counts[n] // 2) if n == paired else counts[n] for n in self.schedule.order]
        # Of a thread loop the digits are the pair, at its place, and innermost the tile of it.
        grid = (*shape, 2) if paired else shape
        grids = np.unravel_index(np.arange(math.prod(grid)), grid)
        trips = dict(zip(self.schedule.order, grids, strict=False))
        if paired is None:
            return trips
        trips[paired] = 2 * trips[paired] + grids[-1]
        # The last pair has one tile if their number is odd.
        exist = trips[paired] < counts[paired]
        return {name: numbers[exist] for name, numbers in trips.items()}

    @cached_property
    def operands(self) -> dict[Memory, _OperandSteps]:
        tensors = (*self.nest.factors, self.nest.acc)
        return {tensor.memory: self._operand(tensor) for tensor in tensors}

    @cached_property
    def active(self) -> NDArray[np.bool_]:
        """Mask of the steps at which every operand has tiles in main memory: no other executes."""
        inp, wgt, acc = (operand.tiles > 0 for operand in self.operands.values())
        return inp & wgt & acc

    @cached_property
    def _begins(self) -> NDArray[np.bool_]:
        """Mask of the steps that begin an output tile that is not discarded."""
        return self._at_reductions(0) & (self.operands[Memory.ACC].tiles > 0)

    @property
    def outputs(self) -> int:
        """Number of output tiles that are not discarded."""
        return int(self._begins.sum())

    @property
    def stored(self) -> int:
        """Number of accumulators that all output tiles store."""
        return int(self.operands[Memory.ACC].tiles[self._begins].sum())

    @property
    def begun_before_products(self) -> int | None:
        """Number of output tiles that are reset up to the first active step, None if unknown."""
        if not self.active.any():
            return None
        first = int(np.argmax(self.active))
        # An output tile of zeros that ends before may be stored while the first operands load.
        if self._at_reductions(-1)[:first].any():
            return None
        return int(self._begins[: first + 1].sum())

    def _at_reductions(self, place: int) -> NDArray[np.bool_]:
        """Return a mask of the steps at the first (0) or last (-1) tile of every reduction loop."""
        mask = np.ones(len(self.operands[Memory.ACC].tiles), bool)
        for loop in self.nest.loops:
            if loop.kind is AxisKind.REDUCTION:
                mask &= self.trips[loop.name] == range(len(self._cuts[loop.name]))[place]
        return mask

    @cached_property
    def products(self) -> int:
        """Number of products of whole tiles at all active steps."""
        sizes = [
            np.array([size for _, size in tiles])[self.trips[name]]
            for name, tiles in self._cuts.items()
        ]
        return int(np.prod(sizes, axis=0)[self.active].sum())

    def loads(self, tensor: TileTensor) -> LoadCounts:
        """Return the loads of a factor, whose slots keep the regions that were used last."""
        operand = self.operands[tensor.memory]
        region, tiles = operand.region[self.active], operand.tiles[self.active]
        if not len(region):
            return LoadCounts(0, 0, 0)
        if self.schedule.reuse:
            # Consecutive uses of one region load it once.
            changes = np.append(True, region[1:] != region[:-1])
            region, tiles = region[changes], tiles[changes]
            slots = self.schedule.slots[self.nest.factors.index(tensor)]
            tiles = tiles[_misses(region, slots)]
        return LoadCounts(len(tiles), int(tiles.sum()), int(tiles[0]))

    def _operand(self, tensor: TileTensor) -> _OperandSteps:
        # Loops of one tile do not tell steps apart.
        first = {name: tiles[0] for name, tiles in self._cuts.items()}
        steps = len(next(iter(self.trips.values())))
        region, exist = np.zeros(steps, np.int64), np.ones(steps, np.int64)
        for k, index in enumerate(tensor.access):
            names = [name for name in index.iterators if len(self._cuts[name]) > 1]
            numbers: dict[Span, int] = {}
            # Few distinct tiles of the loops, many steps: spans are computed once for each.
            table: list[tuple[int, int]] = []
            for place in itertools.product(*(self._cuts[name] for name in names)):
                span, inside = self._spans.span(
                    tensor, k, first | dict(zip(names, place, strict=True))
                )
                table.append((numbers.setdefault(span, len(numbers)), inside))
            at = np.zeros(steps, np.int64)
            for name in names:
                at = at * len(self._cuts[name]) + self.trips[name]
            number, inside = np.array(table).T
            # A box is determined by its spans, so numbers of spans combine to one of the box.
            region = region * len(numbers) + number[at]
            exist = exist * inside[at]
        return _OperandSteps(region, exist)


def _misses(region: Numbers, slots: int) -> NDArray[np.bool_]:
    """Return a mask of the regions, no two neighbours equal, that are in no slot."""
    # A region was replaced if as many others as there are slots were used since its last use.
    misses = np.ones(len(region), bool)
    if slots < 2:
        return misses
    distinct = np.zeros(len(region), np.int64)
    undecided = np.ones(len(region), bool)
    between: list[Numbers] = []
    for back in range(1, min(len(region), _LOOK_BACK * slots)):
        earlier = np.append(np.full(back, -1), region[:-back])
        reused = undecided & (earlier == region)
        misses[reused] = distinct[reused] >= slots
        undecided &= ~reused & (earlier >= 0) & (distinct < slots)
        if not undecided.any():
            return misses
        distinct += np.all([earlier != later for later in between], axis=0) if between else 1
        between.append(earlier)
    return _replayed(region, slots)


def _replayed(region: Numbers, slots: int) -> NDArray[np.bool_]:
    """Return the mask of :func:`_misses` by replaying the slots, one region after the other."""
    misses = np.ones(len(region), bool)
    resident: dict[int, None] = {}
    for at, number in enumerate(region.tolist()):
        if number in resident:
            misses[at] = False
            del resident[number]
        elif len(resident) == slots:
            del resident[next(iter(resident))]
        resident[number] = None
    return misses
