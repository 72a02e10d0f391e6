"""Kernels of a product, run by the executor of CUDA text on this machine's processor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.codegen import runtime
from cpembed.codegen.epilogue import RESIDUAL
from cpembed.errors import BackendUnavailable
from cpembed.ir.dtypes import numpy_dtype
from cpembed.targets.cuda.build import CudaText
from cpembed.targets.cuda.executor import Counters, Order, compile_text
from cpembed.targets.cuda.executor.compiler import compiler
from cpembed.targets.cuda.schedule import Plan
from cpembed.targets.cuda.writer import PARAMETERS, VECTORS

Array = NDArray[Any]


def missing() -> tuple[str, ...]:
    """What this machine lacks to execute CUDA text, in words; empty where nothing."""
    try:
        compiler()
    except BackendUnavailable as error:
        return (str(error),)
    return ()


@dataclass(eq=False)
class CudaKernels:
    """What a schedule became; ``counted``: what each kernel did in the last run, by its name."""

    plan: Plan
    text: CudaText
    counted: dict[str, Counters] = field(default_factory=dict[str, Counters])

    @property
    def counters(self) -> Counters:
        """Of the last run, of all kernels."""
        return sum(self.counted.values(), Counters())

    def run(self, inputs: Mapping[str, Array], order: Order | int = Order.FORWARD) -> Array:
        """The output, in its original layout, of inputs in theirs, by operand of the workload.

        Raises :class:`~cpembed.errors.ExecutionFault` where the kernels do what a GPU does not
        define.
        """
        memory, program = self._memory(inputs), compile_text(self.text.source)
        self.counted = {}
        for kernel in self.text.kernels:
            arguments = [
                memory.setdefault(p.name, unwritten(p.elements, p.dtype)) for p in kernel.parameters
            ]
            name = kernel.launch.kernel
            self.counted[name] = program.run(kernel.launch, arguments, order=order)
        product = self.plan.product
        found = memory["C"].view(numpy_dtype(product.stored_dtype))
        return found.reshape(product.output.layout.original_shape)

    def _memory(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """What the first kernels read, by the names of their parameters."""
        product, workload = self.plan.product, self.plan.product.program.workload
        memory: dict[str, Array] = {}
        for name, stored in zip(PARAMETERS, (self.plan.first, self.plan.second), strict=True):
            given = flat(inputs[workload.operand(stored.layout.name).tensor])
            memory[f"{name}_original" if stored.needs_packing else name] = given
        epilogue = product.epilogue
        if epilogue is not None:
            for name in epilogue.vectors:
                memory[VECTORS[name]] = flat(inputs[name])
            if epilogue.residual is not None:
                memory["Residual"] = flat(inputs[RESIDUAL])
        return memory


def flat(array: Array) -> Array:
    """Its elements as they are stored, one after the other; the same memory where it is so."""
    return runtime.bits(array).reshape(-1)


def unwritten(elements: int, dtype: str) -> Array:
    """Memory whose contents no result may depend on."""
    return np.full(elements * np.dtype(dtype).itemsize, 0xA5, np.uint8).view(dtype)
