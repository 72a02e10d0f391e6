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
from cpembed.targets.vta.regions import Interval, Span, existing, span_of
from cpembed.targets.vta.schedule import Schedule, largest_regions, loop_tiles, paired_loop
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
    """Cycles that no schedule of a nest can beat, each for itself.

    ``gemm``: executions that multiply more than zeros for a result that is kept. ``compute``:
    these, resets and the ALU, all in the compute module. ``read``: beats of what such executions
    read of each operand, once. ``write``: the STOREs of what the program writes of the output,
    which go beside the reads.
    """

    gemm: int
    compute: int
    read: int
    write: int

    @property
    def gemm_or_dma(self) -> int:
        """The larger of multiplications and transfers, as if both overlapped wholly."""
        return max(self.gemm, self.read, self.write)

    @property
    def busiest_module(self) -> int:
        """The same with all that the compute module has to do."""
        return max(self.compute, self.read, self.write)


def bounds(nest: TileNest, tail: Tail, memory: MemorySystem) -> Bounds:
    """Lower bounds of the cycles of a nest's programs."""
    gemm = executions(nest)
    passes = 1 + sum(map(len, tail.phases)) + (0 if nest.bias is None else BIAS_PASSES)
    masks = existence_masks(nest)
    read = 0
    for tensor in nest.inputs:
        # What a step multiplies decides which factors it loads; a bias is added to every output.
        tiles = accessed_tiles(nest, tensor, [] if tensor is nest.bias else masks)
        read += int(beats_of(np.array(tiles), tensor.memory, nest.config, memory))
    written = accessed_tiles(nest, nest.acc, [])
    store = int(store_cycles(np.array(written), nest.config, memory))
    return Bounds(gemm, gemm + passes * written, read, len(tail.phases) * store)


LOAD_FLOOR = 6
"""Cycles of a LOAD beside its beats where other bursts hide the memory's delay: command, answer,
SRAM's latency, the next issue."""

_START, _END = 4, 3
"""Cycles before the first instruction beside the memory's delay, and of the LOAD of nothing and
FINISH after all others."""


@dataclass(frozen=True)
class Floor:
    """Of a program, at least."""

    cycles: int
    work: Work


class Floors:
    """Floors of the schedules of a nest."""

    def __init__(self, nest: TileNest, tail: Tail, memory: MemorySystem) -> None:
        self.nest = nest
        self.tail = tail
        self.memory = memory
        self._walker = Walker(nest)

    @cached_property
    def least(self) -> Bounds:
        """Of every schedule."""
        return bounds(self.nest, self.tail, self.memory)

    @cached_property
    def _trims(self) -> bool:
        """Whether the program reads INP outside of what main memory holds: such products may be
        left out."""
        ends = [index.bounds(self.nest.extents) for index in self.nest.inp.access]
        pairs = zip(ends, self.nest.inp.shape, strict=True)
        return any(low < 0 or high >= size for (low, high), size in pairs)

    @cached_property
    def _gaps_hide_inputs(self) -> bool:
        """Whether a region may lie partly in main memory where no product reads it: positions that
        a tile accesses are at most the largest coefficient apart, so the dimension is shorter."""
        pairs = zip(self.nest.inp.access, self.nest.inp.shape, strict=True)
        return any(
            size < max((abs(term.coefficient) for term in index.terms), default=0)
            for index, size in pairs
            if index.is_affine
        )

    @property
    def _operations(self) -> int:
        """Of the ALU on each accumulator."""
        return sum(map(len, self.tail.phases)) + (self.nest.bias is not None)

    def of(self, schedule: Schedule) -> Floor:
        """Of a schedule that fits."""
        nest, walked = self.nest, self._walker.walk(schedule)
        loads = {tensor.memory: walked.loaded(tensor) for tensor in nest.factors}
        trimmed = schedule.trim and self._trims
        products = self.least.gemm if trimmed else walked.products
        moved = {memory: loaded.tiles for memory, loaded in loads.items()}
        moved[Memory.OUT] = len(self.tail.phases) * walked.stored
        work = Work(products, walked.stored, self._operations * walked.stored, moved)
        return Floor(self._cycles(walked, products, list(loads.values())), work)

    def _cycles(self, walked: Walked, products: int, loads: list[Loaded]) -> int:
        """Of the busiest module, or of modules that wait for each other: with one thread an
        output's products wait for the stores before, and where an operand has one slot, its loads
        for the products before."""
        nest, schedule = self.nest, walked.schedule
        steps = int(walked.active.sum())
        trimmed = schedule.trim and self._trims
        # A step that is trimmed to nothing loads its operands, and nothing waits for them.
        loads_awaited = not (trimmed and self._gaps_hide_inputs)
        if trimmed:
            steps = -(-products // math.prod(schedule.tiles.values()))
        multiply = products + PIPELINE * steps
        passes = 1 + sum(map(len, self.tail.phases))
        bias = 0 if nest.bias is None else BIAS_PASSES * walked.stored
        ending = passes * (walked.stored + PIPELINE * walked.outputs) + bias
        pairs = list(zip(nest.factors, loads, strict=True))
        load = [self._load(tensor, one.regions, one.tiles) for tensor, one in pairs]
        begun = walked.begun_before_products
        first = 0
        if begun is not None and loads_awaited:
            first = sum(self._load(tensor, 1, one.first) for tensor, one in pairs)
        phases = len(self.tail.phases)
        store = self.least.write + phases * (walked.outputs - 1)
        # The first product waits for its operands, the end for the last STORE. Outputs that see
        # only zeros may be stored before the first product: then nothing is known to wait.
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
        beats = beats_of(np.array(tiles), tensor.memory, self.nest.config, self.memory)
        return int(beats) + LOAD_FLOOR * regions


Numbers = NDArray[np.int64]
_LOOKED_BACK = 3
"""Times the slots: how far back most uses of a region are, where it is in a slot."""


@dataclass(frozen=True)
class Loaded:
    """Regions that are loaded, tiles of all of them that main memory holds, and of the first."""

    regions: int
    tiles: int
    first: int


@dataclass(frozen=True, eq=False)
class _Walk:
    """An operand at each step: a number for its region, and the tiles of that which exist."""

    region: Numbers
    tiles: Numbers


class Walker:
    """The schedules of a nest; what regions of theirs share is looked at once."""

    def __init__(self, nest: TileNest) -> None:
        self.nest = nest
        self._spans: dict[object, tuple[Span, int]] = {}

    def walk(self, schedule: Schedule) -> Walked:
        return Walked(self, schedule)

    def span(self, tensor: TileTensor, k: int, tile: Mapping[str, Interval]) -> tuple[Span, int]:
        """A region along a dimension, and how much of it exists."""
        key = tensor.memory, k, *(tile[name] for name in tensor.access[k].iterators)
        found = self._spans.get(key)
        if found is None:
            span = span_of(tensor, k, tile)
            found = self._spans[key] = span, max(0, existing(span, tensor.shape[k])[1])
        return found


class Walked:
    """A schedule's steps."""

    def __init__(self, walker: Walker, schedule: Schedule) -> None:
        self.nest = walker.nest
        self.schedule = schedule
        self._walker = walker
        extents = self.nest.extents
        self._cuts = {n: loop_tiles(extents[n], schedule.tiles[n]) for n in schedule.order}

    @cached_property
    def trips(self) -> dict[str, Numbers]:
        """Which tile of each loop a step has: of those that share their reductions, one after the
        other."""
        paired = paired_loop(self.nest, self.schedule)
        counts = {name: len(tiles) for name, tiles in self._cuts.items()}
        shape = [-(-counts[n] // 2) if n == paired else counts[n] for n in self.schedule.order]
        grids = np.unravel_index(np.arange(math.prod(shape) * (2 if paired else 1)),
                                 (*shape, 2) if paired else shape)  # fmt: skip
        found = dict(zip(self.schedule.order, grids, strict=False))
        if paired is None:
            return found
        found[paired] = 2 * found[paired] + grids[-1]
        exist = found[paired] < counts[paired]
        return {name: trips[exist] for name, trips in found.items()}

    @cached_property
    def walks(self) -> dict[Memory, _Walk]:
        tensors = (*self.nest.factors, self.nest.acc)
        return {tensor.memory: self._walk(tensor) for tensor in tensors}

    @cached_property
    def active(self) -> NDArray[np.bool_]:
        """Steps at which every operand has something that exists; others are left out."""
        inp, wgt, acc = (walk.tiles > 0 for walk in self.walks.values())
        return inp & wgt & acc

    @cached_property
    def _begins(self) -> NDArray[np.bool_]:
        """Steps that begin an output tile of which something is stored."""
        return self._at_reductions(0) & (self.walks[Memory.ACC].tiles > 0)

    @property
    def outputs(self) -> int:
        """Output tiles of which something is stored."""
        return int(self._begins.sum())

    @property
    def stored(self) -> int:
        """Tiles of ACC that all output tiles store, each once."""
        return int(self.walks[Memory.ACC].tiles[self._begins].sum())

    @property
    def begun_before_products(self) -> int | None:
        """Output tiles that are reset before the first step that is not left out; None where there
        is no such step, or an output tile has ended before it."""
        if not self.active.any():
            return None
        first = int(np.argmax(self.active))
        if self._at_reductions(-1)[:first].any():
            return None
        return int(self._begins[: first + 1].sum())

    def _at_reductions(self, place: int) -> NDArray[np.bool_]:
        """Steps at the first (0) or last (-1) tile of every reduction loop."""
        found = np.ones(len(self.walks[Memory.ACC].tiles), bool)
        for loop in self.nest.loops:
            if loop.kind is AxisKind.REDUCTION:
                found &= self.trips[loop.name] == range(len(self._cuts[loop.name]))[place]
        return found

    @cached_property
    def products(self) -> int:
        """Of whole tiles, at all steps that are not left out."""
        sizes = [
            np.array([size for _, size in tiles])[self.trips[name]]
            for name, tiles in self._cuts.items()
        ]
        return int(np.prod(sizes, axis=0)[self.active].sum())

    def loaded(self, tensor: TileTensor) -> Loaded:
        """A region that lies in one of the operand's slots is not loaded again; the one used
        longest ago makes room."""
        walk = self.walks[tensor.memory]
        region, tiles = walk.region[self.active], walk.tiles[self.active]
        if not len(region):
            return Loaded(0, 0, 0)
        if self.schedule.reuse:
            changes = np.append(True, region[1:] != region[:-1])
            region, tiles = region[changes], tiles[changes]
            slots = self.schedule.slots[self.nest.factors.index(tensor)]
            tiles = tiles[_misses(region, slots)]
        return Loaded(len(tiles), int(tiles.sum()), int(tiles[0]))

    def _walk(self, tensor: TileTensor) -> _Walk:
        first = {name: tiles[0] for name, tiles in self._cuts.items()}
        steps = len(next(iter(self.trips.values())))
        region, exist = np.zeros(steps, np.int64), np.ones(steps, np.int64)
        for k, index in enumerate(tensor.access):
            names = [name for name in index.iterators if len(self._cuts[name]) > 1]
            numbers: dict[Span, int] = {}
            table: list[tuple[int, int]] = []
            for place in itertools.product(*(self._cuts[name] for name in names)):
                span, inside = self._walker.span(
                    tensor, k, first | dict(zip(names, place, strict=True))
                )
                table.append((numbers.setdefault(span, len(numbers)), inside))
            at = np.zeros(steps, np.int64)
            for name in names:
                at = at * len(self._cuts[name]) + self.trips[name]
            number, inside = np.array(table).T
            region = region * len(numbers) + number[at]
            exist = exist * inside[at]
        return _Walk(region, exist)


def _misses(region: Numbers, slots: int) -> NDArray[np.bool_]:
    """Which of consecutive regions, no two neighbours equal, are not in the slots: as many others
    as there are slots, or more, were used since their last use."""
    found = np.ones(len(region), bool)
    if slots < 2:
        return found
    others = np.zeros(len(region), np.int64)
    undecided = np.ones(len(region), bool)
    before: list[Numbers] = []
    for back in range(1, min(len(region), _LOOKED_BACK * slots)):
        earlier = np.append(np.full(back, -1), region[:-back])
        here = undecided & (earlier == region)
        found[here] = others[here] >= slots
        undecided &= ~here & (earlier >= 0) & (others < slots)
        if not undecided.any():
            return found
        others += np.all([earlier != other for other in before], axis=0) if before else 1
        before.append(earlier)
    return _replayed(region, slots)


def _replayed(region: Numbers, slots: int) -> NDArray[np.bool_]:
    """The same, one after the other."""
    found = np.ones(len(region), bool)
    held: dict[int, None] = {}
    for at, number in enumerate(region.tolist()):
        if number in held:
            found[at] = False
            del held[number]
        elif len(held) == slots:
            del held[next(iter(held))]
        held[number] = None
    return found
