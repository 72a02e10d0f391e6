"""From a derived program to VTA programs: instructions once, then an image for each set of inputs.

>>> from cpembed.driver.solve import solve
>>> from cpembed.driver.named import workload
>>> from cpembed.targets.vta.config import VtaConfig
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

from cpembed.kernel.packing import packed_before
from cpembed.kernel.runtime import aligned
from cpembed.targets.vta.bias import with_bias
from cpembed.targets.vta.config import VtaConfig
from cpembed.targets.vta.emit import Addresses, emit
from cpembed.targets.vta.encoding import pack_uops
from cpembed.targets.vta.isa import Instruction, Memory
from cpembed.targets.vta.planner import default_schedule
from cpembed.targets.vta.program import Role, Tensor, VtaProgram
from cpembed.targets.vta.schedule import Schedule
from cpembed.targets.vta.tail import Tail, check_tail, default_tail
from cpembed.targets.vta.tiles import TileNest, TileTensor, tile_nest
from cpembed.transform.program import DerivedProgram, PackedOperand, pack, source_elements

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

    ``schedule`` None takes :func:`~cpembed.targets.vta.planner.default_schedule`; ``tail`` None
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
