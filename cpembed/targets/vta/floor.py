"""What a schedule's program does at least: cycles and transfers, without making the program.

Every cycle that is counted is spent by one module on one instruction (``docs/vta.md``, Cycles), so
the timed simulator never takes fewer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cpembed.targets.vta.estimate import BIAS_PASSES, Bounds, beats_of, bounds, store_cycles
from cpembed.targets.vta.isa import Memory
from cpembed.targets.vta.loads import Loaded, Walked, Walker
from cpembed.targets.vta.schedule import Schedule, largest_regions
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
