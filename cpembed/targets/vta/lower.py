"""From a derived program to VTA programs: instructions once, then an image for each set of inputs.

>>> from cpembed.api.solve import solve, workload
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

from cpembed.errors import WorkloadError
from cpembed.kernel import runtime
from cpembed.kernel.layout_transform import Direction
from cpembed.kernel.packing import packed_before, packing_source
from cpembed.kernel.plan import KernelPlan
from cpembed.kernel.runtime import aligned
from cpembed.measure.runner import Timing, time_work
from cpembed.provenance import Provenance
from cpembed.targets.cpu.calibration import calibration
from cpembed.targets.cpu.layout_cost import threads_worth
from cpembed.targets.vta.emit import Addresses, emit
from cpembed.targets.vta.encoding import pack_uops
from cpembed.targets.vta.estimate import default_schedule
from cpembed.targets.vta.isa import Instruction, Memory, VtaConfig
from cpembed.targets.vta.program import Role, Tensor, VtaProgram
from cpembed.targets.vta.schedule import Schedule
from cpembed.targets.vta.tail import Tail, check_tail, default_tail
from cpembed.targets.vta.tiles import TileNest, TileTensor, tile_nest, with_bias
from cpembed.transform.data import pack, source_elements
from cpembed.transform.program import DerivedProgram, PackedOperand

Array = NDArray[Any]
PAGE = 4096
"""Bytes at a multiple of which each tensor begins: a multiple of every element and burst."""


@dataclass(frozen=True, eq=False)
class LoweredVta:
    """Instructions for a derived program, and where its tensors lie in main memory.

    :meth:`image` makes a runnable program of packed inputs, :meth:`unpack` a result of the memory
    that it leaves.
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
        """The output as it is stored, with the element type of the result."""
        return replace(self.nest.acc.packed, dtype=self.tail.dtype)

    def input(self, name: str) -> PackedOperand:
        """An input as main memory holds it; ``O.bias`` is the bias of an output ``O``."""
        return next(t.packed for t in self.nest.inputs if t.name == name)

    def pack(self, name: str, array: Array) -> Array:
        """An input in the layout that main memory holds; weights can be packed ahead."""
        return pack(self.input(name), array)

    def empty_image(self) -> VtaProgram:
        """The program with zeros for its inputs."""
        size = max(tensor.offset + tensor.size_bytes for tensor in self.tensors.values())
        memory = aligned((size,), "uint8")
        program = VtaProgram(self.nest.config, self.instructions, memory, self.tensors)
        program.tensor(_uops_name(self.nest))[...] = self.uops
        return program

    def image(self, packed: Mapping[str, Array]) -> VtaProgram:
        """The program with packed inputs in its memory."""
        program = self.empty_image()
        for tensor in self.nest.inputs:
            program.tensor(tensor.name)[...] = packed[tensor.name]
        return program

    def build(self, inputs: Mapping[str, Array]) -> VtaProgram:
        """The program for inputs in their original layouts."""
        return self.image({t.name: self.pack(t.name, inputs[t.name]) for t in self.nest.inputs})

    def combine(self, program: VtaProgram, dram: NDArray[np.uint8]) -> Array:
        """The packed output from the memory that a run leaves."""
        names = _output_names(self.nest, self.tail)
        return self.tail.combine([program.tensor(name, dram) for name in names])

    def unpack(self, packed: Array) -> Array:
        """The output in its original layout."""
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
    """A VTA program for a proven embedding.

    ``schedule`` None takes :func:`~cpembed.targets.vta.estimate.default_schedule`; ``tail`` None
    takes :func:`~cpembed.targets.vta.tail.default_tail`.

    Raises :class:`LoweringError` where the program's tiles are not the configuration's, or the
    schedule does not fit.
    """
    workload = program.unfused
    ending = tail or default_tail(workload)
    check_tail(workload, ending)
    nest = with_bias(tile_nest(program, config), ending.bias)
    chosen = schedule or default_schedule(nest, ending)
    tensors = _placed(nest, ending, packed_before(program.workload))
    emitted = emit(nest, chosen, ending, _addresses(nest, ending, tensors))
    uops = pack_uops(*emitted.uops.T, config=config)
    name = _uops_name(nest)
    tensors[name] = structs.replace(tensors[name], shape=(len(uops),))
    return LoweredVta(program, nest, chosen, ending, emitted.instructions, uops, tensors)


def _output_names(nest: TileNest, tail: Tail) -> list[str]:
    phases = len(tail.phases)
    return [nest.acc.name] if phases == 1 else [f"{nest.acc.name}.byte{k}" for k in range(phases)]


def _uops_name(nest: TileNest) -> str:
    """Of the micro-ops in main memory: none that an operand has."""
    taken = {tensor.name for tensor in (*nest.inputs, nest.acc)}
    name = "uops"
    while name in taken:
        name += "_"
    return name


def _placed(nest: TileNest, tail: Tail, weights: Collection[str]) -> dict[str, Tensor]:
    """Inputs, weights, outputs, then micro-ops, which are the last because there are as many as
    there will be. ``weights`` names those of the inputs that are the same at every run."""
    found: dict[str, Tensor] = {}
    end = 0

    def place(name: str, shape: tuple[int, ...], dtype: str, role: Role) -> None:
        nonlocal end
        found[name] = Tensor(-(-end // PAGE) * PAGE, shape, dtype, role)
        end = found[name].offset + found[name].size_bytes

    for tensor in nest.inputs:
        is_weight = tensor is nest.bias or tensor.name in weights
        role = Role.WEIGHT if is_weight else Role.INPUT
        place(tensor.name, tensor.packed.shape, tensor.packed.dtype, role)
    for name in _output_names(nest, tail):
        place(name, nest.acc.packed.shape, "int8", Role.OUTPUT)
    place(_uops_name(nest), (0,), "uint32", Role.UOPS)
    return found


def _addresses(nest: TileNest, tail: Tail, tensors: Mapping[str, Tensor]) -> Addresses:
    def element(name: str, memory: Memory) -> int:
        return tensors[name].offset // nest.config.element_bytes(memory)

    def factor(tensor: TileTensor) -> int:
        return element(tensor.name, tensor.memory)

    outputs = tuple(element(name, Memory.OUT) for name in _output_names(nest, tail))
    bias = 0 if nest.bias is None else factor(nest.bias)
    uops = element(_uops_name(nest), Memory.UOP)
    return Addresses(factor(nest.inp), factor(nest.wgt), outputs, uops, bias)


@dataclass(frozen=True, eq=False)
class Move:
    """A move that is ready to run, any number of times; ``target`` is what it writes."""

    run: Callable[[], None]
    target: Array


def move_source(operand: PackedOperand, direction: Direction) -> str:
    """TVMScript of a move, on as many threads as it is worth."""
    threads = threads_worth(operand, calibration(), runtime.thread_count())
    return packing_source(operand, threads, direction)


class Moves:
    """The packing of a program's inputs and the unpacking of its output, compiled on first use."""

    def __init__(self, lowered: LoweredVta) -> None:
        self._lowered = lowered
        self._kernels: dict[str, runtime.Function] = {}

    def packing(self, name: str, array: Array, target: Array | None = None) -> Move:
        """Packs an input into ``target``, an array of :func:`runtime.aligned` or one that begins at
        a multiple of its alignment in such an array; by default into a new one.

        Raises :class:`WorkloadError` where the array is not the operand.
        """
        operand = self._lowered.input(name)
        if target is None:
            target = runtime.aligned(operand.shape, operand.dtype)
        return self._move(operand, Direction.PACK, self._original(operand, array), target)

    def unpacking(self, packed: Array) -> Move:
        """Unpacks what :meth:`LoweredVta.combine` returns."""
        operand = self._lowered.stored
        source = runtime.aligned(operand.shape, operand.dtype)
        source[...] = packed
        target = runtime.aligned(operand.original_shape, operand.dtype)
        return self._move(operand, Direction.UNPACK, source, target)

    def build(self, inputs: Mapping[str, Array]) -> VtaProgram:
        """The program for inputs in their original layouts, packed straight into its memory."""
        program = self._lowered.empty_image()
        for tensor in self._lowered.nest.inputs:
            self.packing(tensor.name, inputs[tensor.name], program.tensor(tensor.name)).run()
        return program

    def unpack(self, packed: Array) -> Array:
        """The output in its original layout."""
        move = self.unpacking(packed)
        move.run()
        return move.target

    def _move(
        self, operand: PackedOperand, direction: Direction, source: Array, target: Array
    ) -> Move:
        if operand.name not in self._kernels:
            plan = KernelPlan("packing", move_source(operand, direction))
            self._kernels[operand.name] = runtime.compile_plan(plan)
        kernel = self._kernels[operand.name]
        buffers = runtime.shared(source.reshape(-1)), runtime.shared(target.reshape(-1))
        return Move(lambda: kernel(*buffers), target)

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


def measure_moves(
    lowered: LoweredVta,
    moves: Moves,
    program: VtaProgram,
    memory: NDArray[np.uint8],
    inputs: Mapping[str, NDArray[Any]],
    *,
    packed_ahead: Collection[str] | None = None,
    rounds: int = 15,
    round_ms: float = 10.0,
) -> Timing:
    """Time the packing of ``inputs`` and the unpacking of what a run left in ``memory``, on this
    machine: the rest of the timing is left out.

    ``packed_ahead`` is as for :func:`~cpembed.measure.runner.measure`. A layout that is the same
    memory as the original one costs nothing; unpacking includes putting bytes together that were
    stored apart.
    """
    if packed_ahead is None:
        packed_ahead = packed_before(lowered.program.workload)
    operands = [tensor.packed for tensor in lowered.nest.inputs]
    ahead = tuple(operand.name for operand in operands if operand.name in packed_ahead)
    timed = [
        time_work(moves.packing(operand.name, inputs[operand.name]).run, rounds, round_ms)
        for operand in operands
        if operand.name not in ahead and not operand.is_identity
    ]
    packing = sum(times.median for times in timed)
    unpacking = 0.0
    if len(lowered.tail.phases) > 1:
        timed.append(time_work(lambda: lowered.combine(program, memory), rounds, round_ms))
        unpacking += timed[-1].median
    if not lowered.stored.is_identity:
        packed = lowered.combine(program, memory)
        timed.append(time_work(moves.unpacking(packed).run, rounds, round_ms))
        unpacking += timed[-1].median
    noisy = any(times.is_noisy for times in timed)
    macs = lowered.program.unfused.macs
    return Timing(Provenance.SIMULATED, macs, None, packing, unpacking, ahead, noisy)
