"""Lowering of a derived program to VTA: instructions once, then an image for each set of inputs.

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

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from cpembed.codegen import runtime
from cpembed.codegen.packing import Direction, packed_before, packing_source
from cpembed.codegen.plan import KernelPlan
from cpembed.codegen.runtime import aligned
from cpembed.errors import WorkloadError
from cpembed.provenance import Provenance
from cpembed.runtime.measurement.runner import Timing, time_work
from cpembed.targets.cpu.calibration import calibration
from cpembed.targets.cpu.estimate import threads_worth
from cpembed.targets.vta.emit import Addresses, emit
from cpembed.targets.vta.encoding import pack_uops
from cpembed.targets.vta.estimate import default_schedule
from cpembed.targets.vta.isa import Instruction, Memory, VtaConfig
from cpembed.targets.vta.program import Role, Tensor, VtaProgram
from cpembed.targets.vta.schedule import Schedule
from cpembed.targets.vta.tail import Tail, check_tail, default_tail
from cpembed.targets.vta.tiles import TileNest, TileTensor, tile_nest, with_bias
from cpembed.transform.program import DerivedProgram, PackedOperand, pack, source_elements

Array = NDArray[Any]
PAGE = 4096
"""Alignment of tensors in main memory, in bytes: a multiple of every element and burst."""


@dataclass(frozen=True, eq=False)
class LoweredVta:
    """Instructions for a derived program, and the places of its tensors in main memory.

    :meth:`image` makes a runnable program from packed inputs. :meth:`combine` and :meth:`unpack`
    make the result from the memory that a run leaves.
    """

    program: DerivedProgram
    nest: TileNest
    schedule: Schedule
    tail: Tail
    instructions: tuple[Instruction, ...]
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

    def image(self, packed: Mapping[str, Array]) -> VtaProgram:
        """Return the program with packed inputs in its memory."""
        program = self.empty_image()
        for tensor in self.nest.inputs:
            program.tensor(tensor.name)[...] = packed[tensor.name]
        return program

    def build(self, inputs: Mapping[str, Array]) -> VtaProgram:
        """Return the program with inputs in their original layouts, packed by numpy."""
        return self.image({t.name: self.pack(t.name, inputs[t.name]) for t in self.nest.inputs})

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
    config: VtaConfig,
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
    workload = program.unfused
    tail = tail or default_tail(workload)
    check_tail(workload, tail)
    nest = with_bias(tile_nest(program, config), tail.bias)
    schedule = schedule or default_schedule(nest, tail)
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
    """Place inputs, outputs and micro-ops in main memory; ``weights`` names the inputs that are the
    same in every run.
    """
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
    def element(name: str, memory: Memory) -> int:
        return tensors[name].offset // nest.config.element_bytes(memory)

    def factor(tensor: TileTensor) -> int:
        return element(tensor.name, tensor.memory)

    outputs = tuple(element(name, Memory.OUT) for name in _output_names(nest, tail))
    bias = 0 if nest.bias is None else factor(nest.bias)
    uops = element(_uops_name(nest), Memory.UOP)
    return Addresses(factor(nest.inp), factor(nest.wgt), outputs, uops, bias=bias)


@dataclass(frozen=True, eq=False)
class LayoutCopy:
    """Copy between layouts that can run any number of times and writes ``target``."""

    run: Callable[[], None]
    target: Array


def copy_source(operand: PackedOperand, direction: Direction) -> str:
    """Return TVMScript of a copy between layouts, on as many threads as it is worth."""
    threads = threads_worth(operand, calibration(), runtime.thread_count())
    return packing_source(operand, threads, direction)


class HostPacking:
    """Packing of a program's inputs and unpacking of its output, compiled on first use.

    :mod:`cpembed.transform.program` does the same in numpy, slower.
    """

    def __init__(self, lowered: LoweredVta) -> None:
        self._lowered = lowered
        self._kernels: dict[str, runtime.Function] = {}

    def input_copy(self, name: str, array: Array, target: Array | None = None) -> LayoutCopy:
        """Return the copy that packs an input.

        Parameters
        ----------
        name
            Name of the input.
        array
            Input in its original layout.
        target
            Array to pack into, aligned as :func:`runtime.aligned` does; by default a new one.

        Raises
        ------
        WorkloadError
            If the array has another shape or element type than the operand.
        """
        operand = self._lowered.input(name)
        if target is None:
            target = runtime.aligned(operand.shape, operand.dtype)
        return self._copy(operand, Direction.PACK, self._original(operand, array), target)

    def output_copy(self, packed: Array) -> LayoutCopy:
        """Return the copy that unpacks a result of :meth:`LoweredVta.combine`."""
        operand = self._lowered.stored
        source = runtime.aligned(operand.shape, operand.dtype)
        source[...] = packed
        target = runtime.aligned(operand.original_shape, operand.dtype)
        return self._copy(operand, Direction.UNPACK, source, target)

    def build(self, inputs: Mapping[str, Array]) -> VtaProgram:
        """Return the program with inputs in their original layouts, packed into its memory."""
        program = self._lowered.empty_image()
        for tensor in self._lowered.nest.inputs:
            self.input_copy(tensor.name, inputs[tensor.name], program.tensor(tensor.name)).run()
        return program

    def unpack(self, packed: Array) -> Array:
        """Return the output in its original layout."""
        copy = self.output_copy(packed)
        copy.run()
        return copy.target

    def time(
        self,
        program: VtaProgram,
        memory: NDArray[np.uint8],
        inputs: Mapping[str, NDArray[Any]],
        *,
        packed_ahead: Collection[str] | None = None,
        rounds: int = 15,
        round_ms: float = 10.0,
    ) -> Timing:
        """Time the packing of inputs and the unpacking of the output on this machine.

        A layout that is the same memory as the original one costs nothing. Unpacking includes
        combining bytes that were stored separately.

        Parameters
        ----------
        program
            Image of the program that ran, for the places of tensors.
        memory
            Main memory after the run.
        inputs
            Inputs by name, in their original layouts.
        packed_ahead
            Names of the inputs that are packed ahead, and not timed; by default the second input,
            as in :func:`~cpembed.runtime.measurement.runner.measure`.
        rounds
            Number of rounds of each measurement.
        round_ms
            Milliseconds of a round.

        Returns
        -------
        Timing
            Times of packing and unpacking; the program's latency is left out.
        """
        lowered = self._lowered
        if packed_ahead is None:
            packed_ahead = packed_before(lowered.program.workload)
        operands = [tensor.packed for tensor in lowered.nest.inputs]
        ahead = tuple(operand.name for operand in operands if operand.name in packed_ahead)
        timed = [
            time_work(self.input_copy(operand.name, inputs[operand.name]).run, rounds, round_ms)
            for operand in operands
            if operand.name not in ahead and not operand.is_identity
        ]
        packing_us = sum(times.median for times in timed)
        unpacking_us = 0.0
        if len(lowered.tail.phases) > 1:
            timed.append(time_work(lambda: lowered.combine(program, memory), rounds, round_ms))
            unpacking_us += timed[-1].median
        if not lowered.stored.is_identity:
            packed = lowered.combine(program, memory)
            timed.append(time_work(self.output_copy(packed).run, rounds, round_ms))
            unpacking_us += timed[-1].median
        noisy = any(times.is_noisy for times in timed)
        macs = lowered.program.unfused.macs
        return Timing(Provenance.SIMULATED, macs, None, packing_us, unpacking_us, ahead, noisy)

    def _copy(
        self, operand: PackedOperand, direction: Direction, source: Array, target: Array
    ) -> LayoutCopy:
        if operand.name not in self._kernels:
            plan = KernelPlan("packing", copy_source(operand, direction))
            self._kernels[operand.name] = runtime.compile_plan(plan)
        kernel = self._kernels[operand.name]
        buffers = runtime.shared(source.reshape(-1)), runtime.shared(target.reshape(-1))
        return LayoutCopy(lambda: kernel(*buffers), target)

    @staticmethod
    def _original(operand: PackedOperand, array: Array) -> Array:
        if array.shape != operand.original_shape or array.dtype != np.dtype(operand.dtype):
            raise WorkloadError(
                f"operand {operand.name} is {array.dtype} {array.shape}, "
                f"the workload has {operand.dtype} {operand.original_shape}"
            )
        source = runtime.aligned(array.shape, operand.dtype)
        source[...] = array
        return source
