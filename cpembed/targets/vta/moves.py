"""Packing and unpacking for VTA by compiled kernels: the layout moves that the host does.

:func:`cpembed.transform.program.pack` does the same in numpy, slower.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.errors import WorkloadError
from cpembed.kernel import runtime
from cpembed.kernel.layout_transform import Direction
from cpembed.kernel.packing import packing_source
from cpembed.kernel.plan import KernelPlan
from cpembed.targets.cpu.calibration import calibration
from cpembed.targets.cpu.layout_cost import threads_worth
from cpembed.targets.vta.lower import LoweredVta
from cpembed.targets.vta.program import VtaProgram
from cpembed.transform.program import PackedOperand

Array = NDArray[Any]


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
