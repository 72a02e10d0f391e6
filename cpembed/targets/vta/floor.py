"""What a schedule's program does at least: cycles and transfers, without making the program.

An operand's regions that differ are loaded once each, and again where more of them than its slots
are walked in between (slots are taken least recently used first). Where two loops of one window are
both cut, regions of different steps may be equal: of such an operand only what no program can do
without is counted. Every cycle counted here is spent by one module on one instruction
(``docs/vta.md``, Cycles), so the timed simulator never takes fewer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cpembed.targets.vta.estimate import BIAS_PASSES, Bounds, beats_of, bounds, store_cycles
from cpembed.targets.vta.isa import Memory
from cpembed.targets.vta.regions import Interval, Tile, existing, span_of
from cpembed.targets.vta.schedule import Schedule, largest_regions, loop_tiles, paired_loop
from cpembed.targets.vta.tail import Tail
from cpembed.targets.vta.tiles import TileNest, TileTensor
from cpembed.targets.vta.timing import PIPELINE, MemorySystem
from cpembed.targets.vta.work import Work

LOAD_FLOOR = 6
"""Cycles of a LOAD beside its beats where other bursts hide the memory's delay: command, answer,
SRAM's latency, the next issue."""

_START, _END = 4, 3
"""Cycles before the first instruction beside the memory's delay, and of the LOAD of nothing and
FINISH after all others."""

Trips = Mapping[str, list[Interval]]
"""Each loop's tiles."""


@dataclass(frozen=True)
class Floor:
    """Of a program, at least."""

    cycles: int
    work: Work


@dataclass(frozen=True)
class _Walk:
    """An operand's regions at the trips of the loops that cut them.

    ``inside``: tiles of a region that main memory holds, as a factor of each such loop, by its
    trips; ``rest``, the factor of the dimensions that no loop cuts. ``plain``: regions of different
    trips differ, and each dimension depends on one cut loop at most.
    """

    tensor: TileTensor
    inside: Mapping[str, tuple[int, ...]]
    rest: int
    plain: bool


@dataclass(frozen=True)
class _Loads:
    """Regions that are loaded, tiles of all of them, and the fewest tiles of one."""

    count: int
    tiles: int
    fewest: int


class Floors:
    """Floors of the schedules of a nest."""

    def __init__(self, nest: TileNest, tail: Tail, memory: MemorySystem) -> None:
        self.nest = nest
        self.tail = tail
        self.memory = memory
        self._known: dict[object, int] = {}

    @cached_property
    def least(self) -> Bounds:
        """Of every schedule."""
        return bounds(self.nest, self.tail, self.memory)

    @cached_property
    def leaves(self) -> dict[Memory, bool]:
        """Whether the program accesses an operand outside of what main memory holds."""
        extents, found = self.nest.extents, dict[Memory, bool]()
        for tensor in (*self.nest.factors, self.nest.acc):
            ends = [index.bounds(extents) for index in tensor.access]
            pairs = zip(ends, tensor.shape, strict=True)
            found[tensor.memory] = any(low < 0 or high >= size for (low, high), size in pairs)
        return found

    def of(self, schedule: Schedule) -> Floor:
        """Of a schedule that fits."""
        return _Program(self, schedule).floor()

    def inside(self, tensor: TileTensor, k: int, tile: Tile) -> int:
        """Positions of a region along a dimension that main memory holds; many regions share it."""
        key = tensor.memory, k, *(tile[name] for name in tensor.access[k].iterators)
        if key not in self._known:
            span = span_of(tensor, k, tile)
            self._known[key] = max(0, existing(span, tensor.shape[k])[1])
        return self._known[key]

    def walk(self, tensor: TileTensor, trips: Trips) -> _Walk:
        """Of an affine dimension that one loop cuts nothing but this loop's trip matters."""
        first = {name: tiles[0] for name, tiles in trips.items()}
        inside: dict[str, tuple[int, ...]] = {}
        rest, plain = 1, True
        for k, index in enumerate(tensor.access):
            cut = [name for name in index.iterators if len(trips[name]) > 1]
            if not cut:
                rest *= self.inside(tensor, k, first)
            elif len(cut) > 1 or not index.is_affine:
                plain = False
            else:
                name = cut[0]
                counts = [self.inside(tensor, k, first | {name: at}) for at in trips[name]]
                before = inside.get(name, (1,) * len(counts))
                inside[name] = tuple(a * b for a, b in zip(before, counts, strict=True))
        return _Walk(tensor, inside, rest, plain)


@dataclass(frozen=True)
class _Program:
    """A schedule's program, as far as it is known without making it."""

    floors: Floors
    schedule: Schedule

    @property
    def nest(self) -> TileNest:
        return self.floors.nest

    @cached_property
    def trips(self) -> dict[str, list[Interval]]:
        tiles = self.schedule.tiles
        return {
            name: loop_tiles(self.nest.extents[name], tiles[name]) for name in self.schedule.order
        }

    @cached_property
    def walks(self) -> dict[Memory, _Walk]:
        tensors = (*self.nest.factors, self.nest.acc)
        return {tensor.memory: self.floors.walk(tensor, self.trips) for tensor in tensors}

    @cached_property
    def active(self) -> dict[str, list[bool]] | None:
        """Trips of each loop at which no operand is outside of main memory; None where it takes
        several loops to know."""
        found = {name: [True] * len(tiles) for name, tiles in self.trips.items()}
        for walk in self.walks.values():
            if not walk.rest or (not walk.plain and self.floors.leaves[walk.tensor.memory]):
                return None
            for name, counts in walk.inside.items():
                found[name] = [a and c > 0 for a, c in zip(found[name], counts, strict=True)]
        return found

    @property
    def passes(self) -> int:
        """Cycles for each accumulator beside its products."""
        bias = 0 if self.nest.bias is None else BIAS_PASSES
        return 1 + sum(map(len, self.floors.tail.phases)) + bias

    def floor(self) -> Floor:
        nest, phases = self.nest, self.floors.tail.phases
        loads = [self._loads(self.walks[tensor.memory]) for tensor in self.nest.factors]
        products = self._products()
        moved = {t.memory: one.tiles for t, one in zip(nest.factors, loads, strict=True)}
        moved[Memory.OUT] = len(phases) * nest.acc.tiles
        operations = sum(map(len, phases)) + bool(nest.bias)
        work = Work(products, nest.acc.tiles, operations * nest.acc.tiles, moved)
        return Floor(self._cycles(products, loads), work)

    def _loads(self, walk: _Walk) -> _Loads:
        active = self.active
        if active is None or not walk.plain:
            return _Loads(1, walk.tensor.tiles, 1)
        count = tiles = fewest = 1
        for name, counts in walk.inside.items():
            used = [c for c, a in zip(counts, active[name], strict=True) if a]
            count, tiles, fewest = (
                count * len(used),
                tiles * sum(used),
                fewest * min(used, default=0),
            )
        again = self._repeated(walk, {name: sum(trips) for name, trips in active.items()})
        return _Loads(count * again, tiles * walk.rest * again, fewest * walk.rest)

    def _repeated(self, walk: _Walk, trips: Mapping[str, int]) -> int:
        """How often each region is loaded: of the loops that it does not depend on, those count
        within which more regions than slots are walked.

        Of a pair that shares its reductions one is counted: the other only makes it more.
        """
        paired = paired_loop(self.nest, self.schedule)
        slots = self.schedule.slots[self.nest.factors.index(walk.tensor)]
        distinct = again = 1
        for name in reversed(self.schedule.order):
            count = -(-trips[name] // 2) if name == paired else trips[name]
            if name in walk.inside:
                distinct *= count
            elif not self.schedule.reuse:
                again *= trips[name]
            elif distinct > slots:
                again *= count
        return again

    def _products(self) -> int:
        """Executions: those that multiply more than zeros, or of whole tiles."""
        if self.schedule.trim or self.active is None:
            return self.floors.least.gemm
        sizes = [
            sum(size for (_, size), used in zip(self.trips[name], trips, strict=True) if used)
            for name, trips in self.active.items()
        ]
        return math.prod(sizes)

    def _steps(self, products: int) -> int:
        """GEMM instructions."""
        steps = -(-products // math.prod(self.schedule.tiles.values()))
        if self.active is None or self.floors.leaves[Memory.INP]:
            return steps
        return max(steps, math.prod(sum(trips) for trips in self.active.values()))

    def _outputs(self) -> int:
        """Output tiles of which something is stored."""
        walk = self.walks[Memory.ACC]
        if not walk.plain:
            return 1
        return math.prod(sum(c > 0 for c in counts) for counts in walk.inside.values())

    def _cycles(self, products: int, loads: list[_Loads]) -> int:
        """Of the busiest module, or of modules that wait for each other: with one thread an
        output's products wait for the stores before, and where an operand has one slot, its loads
        for the products before."""
        nest, schedule = self.nest, self.schedule
        outputs, phases = self._outputs(), len(self.floors.tail.phases)
        multiply = products + PIPELINE * self._steps(products)
        ending = self.passes * nest.acc.tiles
        ending += (
            PIPELINE * outputs * (1 + sum(map(len, self.floors.tail.phases)) + bool(nest.bias))
        )
        load = [self._load(t, one) for t, one in zip(nest.factors, loads, strict=True)]
        first = sum(
            self._load(t, _Loads(1, one.fewest, 1))
            for t, one in zip(nest.factors, loads, strict=True)
        )
        store = self.floors.least.write + phases * (outputs - 1)
        reset = PIPELINE + largest_regions(nest, schedule)[Memory.ACC]
        last = phases * int(store_cycles(np.array(1), nest.config, self.floors.memory))
        chains = [
            max(0, first - reset) + multiply + ending + last,
            sum(load) + PIPELINE + last,
            first + store,
            multiply + sum(c for c, slots in zip(load, schedule.slots, strict=True) if slots == 1),
        ]
        if schedule.threads == 1:
            chains.append(multiply + ending + store)
        return self.floors.memory.dram_delay_cycles + _START + max(chains) + _END

    def _load(self, tensor: TileTensor, loads: _Loads) -> int:
        tiles = np.array(loads.tiles)
        beats = int(beats_of(tiles, tensor.memory, self.nest.config, self.floors.memory))
        return beats + LOAD_FLOOR * loads.count
