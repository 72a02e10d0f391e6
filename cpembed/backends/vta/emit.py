"""From a tile nest and a schedule to VTA's instructions.

Each step loads the regions of INP and WGT that are not in SRAM yet, and multiplies; the last step
of an output tile ends with the tail and the stores. SRAM is cut into slots (schedule.py); what
must wait for what goes to :class:`~cpembed.backends.vta.tokens.Dependences`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from cpembed.backends.vta.bias import bias_kernels
from cpembed.backends.vta.gemm_kernels import MAX_ITERATIONS, Indices, Kernel, gemm_kernels
from cpembed.backends.vta.isa import (
    Alu,
    AluOp,
    Factors,
    Finish,
    Gemm,
    Instruction,
    Load,
    Memory,
    Store,
)
from cpembed.backends.vta.legality import uops_kept
from cpembed.backends.vta.regions import Region, is_empty, loads, region_of, stores
from cpembed.backends.vta.schedule import Schedule, Step, check_schedule, occupancy, steps
from cpembed.backends.vta.tail import Tail
from cpembed.backends.vta.tiles import TileNest, TileTensor
from cpembed.backends.vta.tokens import Dependences


@dataclass(frozen=True)
class Addresses:
    """Where things lie in main memory, each in elements of its memory: INP and WGT, an output
    per STORE of the tail, the micro-ops, and the bias."""

    inp: int
    wgt: int
    outputs: tuple[int, ...]
    uops: int
    bias: int = 0


@dataclass(frozen=True, eq=False)
class Emitted:
    """Instructions, and the micro-ops that they load, as rows (dst, src, wgt)."""

    instructions: tuple[Instruction, ...]
    uops: Indices


def emit(nest: TileNest, schedule: Schedule, tail: Tail, addresses: Addresses) -> Emitted:
    """The program of a nest.

    Raises :class:`LoweringError` where the schedule does not belong to the nest or does not fit.
    """
    check_schedule(nest, schedule)
    emitter = _Emitter(nest, schedule, tail, addresses)
    for step in steps(nest, schedule):
        emitter.step(step)
    emitter.program.append(Finish())
    return Emitted(emitter.program.instructions(), emitter.uops.image)


@dataclass
class _Slot:
    """A part of INP or WGT: what lies there, the LOAD that completed it, its last GEMM."""

    base: int
    holds: Region | None = None
    loaded: int | None = None
    used: int | None = None


class _Ring:
    """The slots of a buffer, the one used longest ago first."""

    def __init__(self, count: int, size: int) -> None:
        self._slots = [_Slot(k * size) for k in range(count)]

    def find(self, region: Region) -> tuple[_Slot, bool]:
        """The slot that holds a region, or the one to overwrite with it."""
        held = next((slot for slot in self._slots if slot.holds == region), None)
        slot = held or self._slots[0]
        self._slots.remove(slot)
        self._slots.append(slot)
        return slot, held is not None


class _Uops:
    """Micro-ops in main memory and in SRAM, each list once.

    SRAM is filled from its start; where a list does not fit, it is filled from its start again:
    loads of micro-ops and what uses them execute in order in one module.
    """

    def __init__(self, program: Dependences, capacity: int, dram: int) -> None:
        self._program = program
        self._capacity = capacity
        self._dram = dram
        self._lists: list[Indices] = []
        self._length = 0
        self._stored: dict[bytes, int] = {}
        self._resident: dict[bytes, int] = {}
        self._free = 0

    @property
    def image(self) -> Indices:
        """Every list, as it lies in main memory."""
        return np.concatenate([np.empty((0, 3), np.int64), *self._lists])

    def place(self, uops: Indices) -> int:
        """Where in SRAM a list lies, after loading it if need be."""
        key = uops.tobytes()
        if key in self._resident:
            return self._resident[key]
        if key not in self._stored:
            self._stored[key] = self._length
            self._lists.append(uops)
            self._length += len(uops)
        count = len(uops)
        if self._free + count > self._capacity:
            self._resident.clear()
            self._free = 0
        at = self._resident[key] = self._free
        self._free += count
        self._program.append(Load(Memory.UOP, at, self._dram + self._stored[key], 1, count, count))
        return at


class _Emitter:
    def __init__(
        self, nest: TileNest, schedule: Schedule, tail: Tail, addresses: Addresses
    ) -> None:
        self.program = Dependences()
        config = nest.config
        self._nest = nest
        self._tail = tail
        self._uop_limit = uops_kept(config)
        self.uops = _Uops(self.program, self._uop_limit, addresses.uops)
        self._dram = {
            Memory.INP: addresses.inp,
            Memory.WGT: addresses.wgt,
            Memory.ACC: addresses.bias,
        }
        self._outputs = addresses.outputs
        taken = {memory: needed for memory, (needed, _) in occupancy(nest, schedule).items()}
        self._rings = {
            tensor.memory: _Ring(count, taken[tensor.memory] // count)
            for tensor, count in zip(nest.factors, schedule.slots, strict=True)
        }
        tile = {name: (0, size) for name, size in schedule.tiles.items()}
        half = region_of(nest.acc, tile).tiles
        self._accumulators = [thread * half for thread in range(schedule.threads)]
        self._bias = _Slot(schedule.threads * half)
        self._written: list[int | None] = [None] * schedule.threads
        """The last instruction since its reset that wrote a half, other than the reset."""
        self._stored: list[int | None] = [None] * schedule.threads
        """The last STORE of a half."""
        self._kernels: dict[object, list[Kernel]] = {}
        self._digits = _digit_loops(nest)

    def step(self, step: Step) -> None:
        acc = region_of(self._nest.acc, step.tile)
        if is_empty(acc):
            return
        if step.begins:
            self._reset(step.thread, acc)
        inp, wgt = (region_of(tensor, step.tile) for tensor in self._nest.factors)
        if not is_empty(inp) and not is_empty(wgt):
            self._multiply(step, acc, inp, wgt)
        if step.ends:
            if self._nest.bias is not None:
                self._add(step.thread, acc, region_of(self._nest.bias, step.tile))
            self._finish(step.thread, acc)

    def _reset(self, thread: int, acc: Region) -> None:
        stored, self._written[thread] = self._stored[thread], None
        for first, count in _runs(self._accumulators[thread], acc.tiles):
            begin = self.uops.place(np.array([[first, 0, 0]]))
            self.program.append(
                Gemm(begin, begin + 1, 1, count, Factors(0, int(count > 1)), reset=True), stored
            )

    def _multiply(self, step: Step, acc: Region, inp: Region, wgt: Region) -> None:
        slots = [self._loaded(region) for region in (inp, wgt)]
        bases = (self._accumulators[step.thread], slots[0].base, slots[1].base)
        for kernel in self._kernel(step.tile, (acc, inp, wgt), bases):
            begin = self.uops.place(kernel.uops)
            number = self.program.append(
                Gemm(
                    begin,
                    begin + len(kernel.uops),
                    kernel.outer,
                    kernel.inner,
                    kernel.dst,
                    kernel.src,
                    kernel.wgt,
                ),
                *(slot.loaded for slot in slots),
            )
            self._written[step.thread] = number
            for slot in slots:
                slot.used = number

    def _loaded(self, region: Region) -> _Slot:
        slot, is_held = self._rings[region.tensor.memory].find(region)
        if not is_held:
            self._load(region, slot)
        return slot

    def _load(self, region: Region, slot: _Slot) -> None:
        memory = region.tensor.memory
        for box in loads(region):
            load = Load(
                memory,
                slot.base + box.sram,
                self._dram[memory] + box.dram,
                box.y,
                box.x,
                box.x_stride,
                box.y_before,
                box.y_after,
                box.x_before,
                box.x_after,
            )
            slot.loaded = self.program.append(load, slot.used)
        slot.holds, slot.used = region, None

    def _kernel(
        self,
        tile: Mapping[str, tuple[int, int]],
        regions: tuple[Region, Region, Region],
        bases: tuple[int, int, int],
    ) -> list[Kernel]:
        """Equal for tiles of equal sizes, unless an access has digits of a loop."""
        sizes = tuple(size for _, size in tile.values())
        key = (sizes, bases, tuple(tile[name][0] for name in self._digits))
        if key not in self._kernels:
            self._kernels[key] = gemm_kernels(self._nest, tile, regions, bases, self._uop_limit)
        return self._kernels[key]

    def _add(self, thread: int, acc: Region, bias: Region) -> None:
        """Add the bias; all of this is in the compute module, in order."""
        if self._bias.holds != bias:
            self._load(bias, self._bias)
        for kernel in bias_kernels(acc, bias, self._accumulators[thread], self._bias.base):
            begin = self.uops.place(kernel.uops)
            self._written[thread] = self.program.append(
                Alu(
                    AluOp.ADD,
                    begin,
                    begin + len(kernel.uops),
                    kernel.outer,
                    kernel.inner,
                    kernel.dst,
                    kernel.src,
                )
            )

    def _finish(self, thread: int, acc: Region) -> None:
        """Each phase of the tail with its stores; a phase waits for the stores before it."""
        base = self._accumulators[thread]
        stored: int | None = None
        for phase, output in zip(self._tail.phases, self._outputs, strict=True):
            for op, immediate in phase:
                self._alu(thread, acc, op, immediate, stored)
            if self._written[thread] is None:
                # A reset does not reach what STORE reads; all inputs of the tile were zeros.
                self._alu(thread, acc, AluOp.ADD, 0, stored)
            for box in stores(acc):
                store = Store(
                    Memory.OUT, base + box.sram, output + box.dram, box.y, box.x, box.x_stride
                )
                stored = self.program.append(store, self._written[thread])
        self._stored[thread] = stored

    def _alu(
        self, thread: int, acc: Region, op: AluOp, immediate: int, waits_for: int | None
    ) -> None:
        for first, count in _runs(self._accumulators[thread], acc.tiles):
            begin = self.uops.place(np.array([[first, first, 0]]))
            step = Factors(0, int(count > 1))
            self._written[thread] = self.program.append(
                Alu(op, begin, begin + 1, 1, count, step, step, True, immediate), waits_for
            )


def _digit_loops(nest: TileNest) -> tuple[str, ...]:
    """Loops of which an access takes digits."""
    tensors: tuple[TileTensor, ...] = (*nest.factors, nest.acc)
    terms = [term for tensor in tensors for index in tensor.access for term in index.terms]
    names = [name for term in terms if not term.is_affine for name in term.iterators]
    return tuple(dict.fromkeys(names))


def _runs(base: int, tiles: int) -> list[tuple[int, int]]:
    """Consecutive accumulators, as many at a time as an instruction iterates over."""
    return [
        (base + first, min(MAX_ITERATIONS, tiles - first))
        for first in range(0, tiles, MAX_ITERATIONS)
    ]
