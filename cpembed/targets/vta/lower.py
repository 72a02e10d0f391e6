"""Lowering of a derived program to VTA: instructions, and an image for each set of inputs.

Each step of a schedule loads the regions of INP and WGT that are not in SRAM yet, and multiplies;
the last step of an output tile ends with the tail and the stores. SRAM is cut into slots
(:class:`~cpembed.targets.vta.schedule.Ring`); what must wait for what goes to
:class:`~cpembed.targets.vta.tokens.Dependences`.

>>> from cpembed.driver.solve import solve
>>> from cpembed.driver.named import workload
>>> from cpembed.targets.vta.isa import VtaConfig
>>> layer = workload("gemm m=8 n=32 k=32", target="vta_1x16x16")
>>> solved = solve(layer, "vta_1x16x16", constraints="strict")
>>> lowered = lower(solved.embeddings[0].candidate.program, VtaConfig())
>>> lowered.tail, len(lowered.instructions) > 4
(Requantized(shift=10, low=-128, high=127, bias=()), True)
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from cpembed.codegen.packing import packed_before
from cpembed.codegen.runtime import aligned
from cpembed.targets.vta import isa
from cpembed.targets.vta.encoding import pack_uops
from cpembed.targets.vta.estimate import default_schedule
from cpembed.targets.vta.program import Role, Tensor, VtaProgram
from cpembed.targets.vta.schedule import (
    Region,
    Ring,
    Schedule,
    Slot,
    Step,
    Tile,
    check_schedule,
    largest_regions,
    region_of,
    steps,
)
from cpembed.targets.vta.tail import Tail, check_tail, default_tail
from cpembed.targets.vta.tiles import TileNest, TileTensor, tile_nest, with_bias
from cpembed.targets.vta.tokens import Dependences
from cpembed.targets.vta.uop_loops import (
    Indices,
    MicroOps,
    UopLoop,
    bias_loops,
    consecutive_loops,
    gemm_loops,
    trimmed_tiles,
)
from cpembed.transform.program import DerivedProgram, PackedOperand, pack, source_elements


@dataclass(frozen=True)
class Addresses:
    """Addresses in main memory, in elements of the memory that each tensor is loaded to.

    ``outputs`` has an address for each STORE of the tail.
    """

    inp: int
    wgt: int
    outputs: tuple[int, ...]
    uops: int
    bias: int = 0


@dataclass(frozen=True, eq=False)
class Emitted:
    """Instructions, and the micro-ops that they load, as rows (dst, src, wgt)."""

    instructions: tuple[isa.Instruction, ...]
    uops: Indices


def emit(nest: TileNest, schedule: Schedule, tail: Tail, addresses: Addresses) -> Emitted:
    """Return the instructions of a nest.

    Parameters
    ----------
    nest
        Tile nest, with the bias of the tail.
    schedule
        Schedule of the nest.
    tail
        Operations on the sums before they are stored.
    addresses
        Places of the tensors in main memory.

    Raises
    ------
    LoweringError
        If the schedule does not belong to the nest or does not fit.
    """
    emitter = Emitter(nest, schedule, tail, addresses)
    for step in steps(nest, schedule):
        emitter.step(step)
    return emitter.emitted()


class Emitter:
    """Program under construction, to which the operations of a tile nest append instructions."""

    def __init__(
        self, nest: TileNest, schedule: Schedule, tail: Tail, addresses: Addresses
    ) -> None:
        check_schedule(nest, schedule)
        self.program = Dependences()
        self._nest = nest
        self._tail = tail
        self._uop_limit = nest.config.usable_uops
        self.uops = MicroOps(self.program, self._uop_limit, addresses.uops)
        self._dram = {
            isa.Memory.INP: addresses.inp,
            isa.Memory.WGT: addresses.wgt,
            isa.Memory.ACC: addresses.bias,
        }
        self._outputs = addresses.outputs
        sizes = largest_regions(nest, schedule)
        self._rings = {
            tensor.memory: Ring(count, sizes[tensor.memory])
            for tensor, count in zip(nest.factors, schedule.slots, strict=True)
        }
        self._reuse, self._trim = schedule.reuse, schedule.trim
        size = sizes[isa.Memory.ACC]
        self._accumulators = [thread * size for thread in range(schedule.threads)]
        """First accumulator of each thread."""
        # A bias is accumulators too, behind those of all threads.
        self._bias = Slot(schedule.threads * size)
        self._written: list[int | None] = [None] * schedule.threads
        """Last instruction of each thread that wrote its accumulators since their reset."""
        self._untouched: list[set[int]] = [set() for _ in range(schedule.threads)]
        """Accumulators of each thread that only their reset wrote."""
        self._stored: list[int | None] = [None] * schedule.threads
        """Last STORE of each thread."""
        self._loops: dict[object, list[UopLoop]] = {}
        """GEMM instructions of a tile, by everything that they depend on."""
        tensors = (*nest.factors, nest.acc)
        self._digits = tuple({name: None for tensor in tensors for name in tensor.digit_loops})
        self._regions: dict[tuple[object, ...], Region] = {}

    def emitted(self) -> Emitted:
        """Return the program, which ends when its stores have arrived."""
        # FINISH takes no tokens, so an empty LOAD in the same module waits in its place.
        if any(stored is not None for stored in self._stored):
            empty = isa.Load(isa.Memory.UOP, sram=0, dram=0, y=0, x=0, x_stride=0)
            self.program.append(empty, *self._stored)
        self.program.append(isa.Finish())
        return Emitted(self.program.instructions(), self.uops.image)

    def step(self, step: Step) -> None:
        """Append all instructions of a step."""
        if step.begins:
            self.reset(step.thread, step.tile)
        for tensor in self._nest.factors:
            self.load(tensor, step.tile)
        self.multiply(step.thread, step.tile)
        if step.ends:
            self.finish(step.thread, step.tile)

    def reset(self, thread: int, tile: Tile) -> None:
        """Clear a thread's accumulators after the stores of their last content."""
        stored, self._written[thread] = self._stored[thread], None
        acc = self._region(self._nest.acc, tile)
        # No one reads the accumulators of an output tile that is discarded whole.
        if acc.is_empty:
            return
        base = self._accumulators[thread]
        self._untouched[thread].update(range(base, base + acc.tiles))
        for loop in consecutive_loops(base, acc.tiles, reads=False):
            begin, end = self.uops.place(loop.uops)
            gemm = isa.Gemm(begin, end, loop.outer, loop.inner, dst=loop.dst, reset=True)
            self.program.append(gemm, stored)

    def load(self, tensor: TileTensor, tile: Tile) -> None:
        """Load a factor's region, unless it lies in SRAM or the step multiplies nothing."""
        if not self._reuse:
            self._rings[tensor.memory].forget()
        if not self._is_idle(tile):
            self._resident(self._region(tensor, tile))

    def _is_idle(self, tile: Tile) -> bool:
        """True if a step multiplies only zeros, or its whole result is discarded."""
        tensors = (*self._nest.factors, self._nest.acc)
        return any(self._region(tensor, tile).is_empty for tensor in tensors)

    def multiply(self, thread: int, tile: Tile) -> None:
        """Multiply a step, whose regions :meth:`load` loaded."""
        if self._is_idle(tile):
            return
        acc = self._region(self._nest.acc, tile)
        inp, wgt = (self._region(tensor, tile) for tensor in self._nest.factors)
        slots = [self._resident(region) for region in (inp, wgt)]
        bases = (self._accumulators[thread], slots[0].base, slots[1].base)
        for loop in self._fastest_loops(tile, (acc, inp, wgt), bases):
            begin, end = self.uops.place(loop.uops)
            number = self.program.append(
                isa.Gemm(
                    begin, end, loop.outer, loop.inner, dst=loop.dst, src=loop.src, wgt=loop.wgt
                ),
                *(slot.loaded for slot in slots),
            )
            self._written[thread] = number
            # Most steps touch what earlier steps touched: then no set has to be computed.
            if self._untouched[thread]:
                self._untouched[thread] -= loop.accumulators
            for slot in slots:
                slot.used = number

    def _region(self, tensor: TileTensor, tile: Tile) -> Region:
        """Return a tensor's region for a tile; many steps share it, so it is cached."""
        key = tensor.name, *(tile[name] for name in tensor.loops)
        if key not in self._regions:
            self._regions[key] = region_of(tensor, tile)
        return self._regions[key]

    def _resident(self, region: Region) -> Slot:
        """Return the slot of a region, after loading it if necessary."""
        slot, loaded = self._rings[region.tensor.memory].find(region)
        if not loaded:
            self._load(region, slot)
        return slot

    def _load(self, region: Region, slot: Slot) -> None:
        memory = region.tensor.memory
        for box in region.loads:
            at, dram = slot.base + box.sram, self._dram[memory] + box.dram
            load = isa.Load(memory, at, dram, *box[2:])
            # The last GEMM on the slot's old content must have read it.
            slot.loaded = self.program.append(load, slot.used)
        slot.content, slot.used = region, None

    def _fastest_loops(
        self, tile: Tile, regions: tuple[Region, Region, Region], bases: tuple[int, int, int]
    ) -> list[UopLoop]:
        """Return the GEMM instructions of a tile, or of its parts without padding if faster."""
        parts = trimmed_tiles(self._nest.inp, tile) if self._trim else [tile]
        # Tiles of equal sizes and parts have equal instructions, unless an access takes digits.
        key = (
            bases,
            tuple(size for _, size in tile.values()),
            tuple(tile[name][0] for name in self._digits),
            tuple((at - tile[name][0], n) for part in parts for name, (at, n) in part.items()),
        )
        if key not in self._loops:
            # Parts multiply less, and each costs an instruction, its pipeline and its fetch.
            choices = [
                [
                    loop
                    for part in cut
                    for loop in gemm_loops(self._nest, part, regions, bases, self._uop_limit)
                ]
                for cut in ([[tile], parts] if parts != [tile] else [[tile]])
            ]
            self._loops[key] = min(choices, key=lambda loops: sum(loop.cycles for loop in loops))
        return self._loops[key]

    def finish(self, thread: int, tile: Tile) -> None:
        """Append the bias, and each phase of the tail with its stores."""
        acc = self._region(self._nest.acc, tile)
        if acc.is_empty:
            return
        base = self._accumulators[thread]
        if self._nest.bias is not None:
            # No token is needed: the LOAD of ACC is in the compute module too.
            bias = self._region(self._nest.bias, tile)
            if self._bias.content != bias:
                self._load(bias, self._bias)
            self._alu(thread, isa.AluOp.ADD, bias_loops(acc, bias, base, self._bias.base))
        stored: int | None = None
        for phase, output in zip(self._tail.phases, self._outputs, strict=True):
            # A phase changes what the stores of the phase before still read.
            for op, immediate in phase:
                self._alu(thread, op, consecutive_loops(base, acc.tiles), immediate, stored)
            if self._untouched[thread]:
                # A reset does not reach what STORE reads, and some outputs see only padding.
                self._alu(thread, isa.AluOp.ADD, consecutive_loops(base, acc.tiles), 0, stored)
            for box in acc.stores:
                store = isa.Store(isa.Memory.OUT, base + box.sram, output + box.dram, *box[2:5])
                stored = self.program.append(store, self._written[thread])
        self._stored[thread] = stored

    def _alu(
        self,
        thread: int,
        op: isa.AluOp,
        loops: list[UopLoop],
        immediate: int | None = None,
        waits_for: int | None = None,
    ) -> None:
        """Append an operation on a thread's accumulators, with an immediate or a second operand."""
        self._untouched[thread].clear()
        for loop in loops:
            begin, end = self.uops.place(loop.uops)
            alu = isa.Alu(
                op,
                uop_begin=begin,
                uop_end=end,
                outer=loop.outer,
                inner=loop.inner,
                dst=loop.dst,
                src=loop.src,
                use_immediate=immediate is not None,
                immediate=immediate or 0,
            )
            self._written[thread] = self.program.append(alu, waits_for)


Array = NDArray[Any]

# A multiple of every element and burst, so that tensors begin with both.
PAGE = 4096
"""Alignment of tensors in main memory, in bytes."""


@dataclass(frozen=True, eq=False)
class LoweredVta:
    """Instructions for a derived program, and the places of its tensors in main memory.

    :meth:`build` makes a runnable program from inputs; :meth:`combine` and :meth:`unpack` make the
    result from the memory that a run leaves.
    """

    program: DerivedProgram
    nest: TileNest
    schedule: Schedule
    tail: Tail
    instructions: tuple[isa.Instruction, ...]
    uops: NDArray[np.uint32]
    tensors: Mapping[str, Tensor]

    @property
    def stored(self) -> PackedOperand:
        """Packed output, with the element type of the result."""
        return replace(self.nest.acc.packed, dtype=self.tail.dtype)

    def input(self, name: str) -> PackedOperand:
        """Return an input as main memory holds it; ``O.bias`` is the bias of an output ``O``."""
        return next(t.packed for t in self.nest.inputs if t.name == name)

    def pack(self, name: str, array: Array) -> Array:
        """Return an input in the layout of main memory; weights can be packed ahead."""
        return pack(self.input(name), array)

    def empty_image(self) -> VtaProgram:
        """Return the program with zeros as its inputs."""
        size = max(tensor.offset + tensor.size_bytes for tensor in self.tensors.values())
        memory = aligned((size,), "uint8")
        program = VtaProgram(self.nest.config, self.instructions, memory, self.tensors)
        program.tensor(_uops_name(self.nest))[...] = self.uops
        return program

    def build(self, inputs: Mapping[str, Array]) -> VtaProgram:
        """Return the program with inputs in their original layouts, packed by numpy."""
        program = self.empty_image()
        for tensor in self.nest.inputs:
            program.tensor(tensor.name)[...] = self.pack(tensor.name, inputs[tensor.name])
        return program

    def combine(self, program: VtaProgram, dram: NDArray[np.uint8]) -> Array:
        """Return the packed output from the memory that a run leaves."""
        names = _output_names(self.nest, self.tail)
        return self.tail.combine([program.tensor(name, dram) for name in names])

    def unpack(self, packed: Array) -> Array:
        """Return the output in its original layout, unpacked by numpy."""
        indices, inside = source_elements(self.stored)
        result = np.zeros(self.stored.original_shape, packed.dtype)
        result[(*(index[inside] for index in indices), ...)] = packed[inside]
        return result


def lower(
    program: DerivedProgram,
    config: isa.VtaConfig,
    schedule: Schedule | None = None,
    tail: Tail | None = None,
) -> LoweredVta:
    """Return a VTA program for a proven embedding.

    Parameters
    ----------
    program
        Derived program of the embedding.
    config
        Configuration of the VTA.
    schedule
        Schedule of the tile nest; by default that of the least estimate.
    tail
        Operations on the sums before they are stored; by default those that fit the workload's
        output type.

    Raises
    ------
    LoweringError
        If the program's tiles are not the configuration's, or the schedule does not fit.
    """
    # The workload before axes were fused: its output is the one that a tail describes.
    workload = program.unfused
    tail = tail or default_tail(workload)
    check_tail(workload, tail)
    nest = with_bias(tile_nest(program, config), tail.bias)
    schedule = schedule or default_schedule(nest, tail)
    # Instructions hold addresses, so tensors are placed first; the number of micro-ops follows.
    tensors = _placed(nest, tail, packed_before(program.workload))
    emitted = emit(nest, schedule, tail, _addresses(nest, tail, tensors))
    uops = pack_uops(*emitted.uops.T, config=config)
    name = _uops_name(nest)
    tensors[name] = structs.replace(tensors[name], shape=(len(uops),))
    return LoweredVta(
        program=program,
        nest=nest,
        schedule=schedule,
        tail=tail,
        instructions=emitted.instructions,
        uops=uops,
        tensors=tensors,
    )


def _output_names(nest: TileNest, tail: Tail) -> list[str]:
    phases = len(tail.phases)
    return [nest.acc.name] if phases == 1 else [f"{nest.acc.name}.byte{k}" for k in range(phases)]


def _uops_name(nest: TileNest) -> str:
    """Return the name of the micro-ops in main memory, which no operand has."""
    operands = {tensor.name for tensor in (*nest.inputs, nest.acc)}
    name = "uops"
    while name in operands:
        name += "_"
    return name


def _placed(nest: TileNest, tail: Tail, weights: Collection[str]) -> dict[str, Tensor]:
    """Place tensors in main memory; ``weights`` are the inputs that are the same in every run."""
    tensors: dict[str, Tensor] = {}
    end = 0

    def place(name: str, shape: tuple[int, ...], dtype: str, role: Role) -> None:
        nonlocal end
        tensors[name] = Tensor(-(-end // PAGE) * PAGE, shape, dtype, role)
        end = tensors[name].offset + tensors[name].size_bytes

    for tensor in nest.inputs:
        is_weight = tensor is nest.bias or tensor.name in weights
        role = Role.WEIGHT if is_weight else Role.INPUT
        place(tensor.name, tensor.packed.shape, tensor.packed.dtype, role)
    for name in _output_names(nest, tail):
        place(name, nest.acc.packed.shape, "int8", Role.OUTPUT)
    # Micro-ops come last, because their number is known only after instructions are emitted.
    place(_uops_name(nest), (0,), "uint32", Role.UOPS)
    return tensors


def _addresses(nest: TileNest, tail: Tail, tensors: Mapping[str, Tensor]) -> Addresses:
    def element(name: str, memory: isa.Memory) -> int:
        return tensors[name].offset // nest.config.element_bytes(memory)

    inputs = {tensor.memory: element(tensor.name, tensor.memory) for tensor in nest.inputs}
    outputs = tuple(element(name, isa.Memory.OUT) for name in _output_names(nest, tail))
    return Addresses(
        inputs[isa.Memory.INP],
        inputs[isa.Memory.WGT],
        outputs,
        element(_uops_name(nest), isa.Memory.UOP),
        bias=inputs.get(isa.Memory.ACC, 0),
    )
