"""Measured costs of kernels and of layout conversions, in microseconds.

Each kernel is compiled and timed in the worker, on zeros, with operands as close as the caches keep
them; medians are cached. Estimates are :mod:`cpembed.network.operator_costs`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cpembed.codegen import runtime
from cpembed.codegen.compiled import in_turn
from cpembed.codegen.epilogue import Epilogue, channel_axes
from cpembed.codegen.plan import KernelPlan
from cpembed.codegen.recorded import Memory, RecordedCall
from cpembed.errors import CpembedError
from cpembed.ir.computation import Computation
from cpembed.ir.dtypes import numpy_dtype
from cpembed.network.convolution_methods import ConvolutionMethod
from cpembed.network.kernel_cache import Cache, digest_of, symbol_of
from cpembed.network.operators.nest import Tensors
from cpembed.network.pair_parts import ProductPart
from cpembed.network.pairs import PairKernel
from cpembed.network.product_kernel import ProductKernel, recorded_kernel
from cpembed.runtime import worker
from cpembed.runtime.measurement.environment import machine
from cpembed.runtime.measurement.runner import time_work
from cpembed.steps import Progress, step

# Number of timed rounds of a kernel, whose median counts, and milliseconds per round.
_ROUNDS, _ROUND_MS = 7, 4.0


@dataclass
class KernelTimer:
    """Timer of kernels.

    Attributes
    ----------
    cache : Cache
        Cache of measured times.
    progress : Progress
        Called with the number of kernels that this process measured.
    microseconds : dict from str to float
        Times in this process by cache key.
    """

    cache: Cache
    threads: int
    progress: Progress
    measured: int = 0
    microseconds: dict[str, float] = field(default_factory=dict[str, float])

    def product_us(self, kernel: ProductKernel) -> float:
        """Return the cost of a product, packing included; infinite if it cannot be measured."""
        constants = _zeros(kernel.candidate.program.unfused, kernel.epilogue)
        return self._us(recorded_kernel(kernel, kernel.epilogue, constants, self.threads).run)

    def method_us(self, method: ConvolutionMethod, kernel: ProductKernel) -> float:
        """Return the cost of a method, all parts included; infinite if it cannot be measured."""
        constants = _zeros(method.kind.computation, method.kind.epilogue)
        return self._us(method.recorded(kernel, constants, self.threads).run)

    def pair_us(self, pair: PairKernel) -> float:
        """Return the cost of a pair in one kernel; infinite if it cannot be measured."""
        constants: list[dict[str, Any]] = [
            _zeros(part.band.kind.computation, part.band.kind.epilogue)
            if isinstance(part, ProductPart)
            else {}
            for part in pair.parts
        ]
        planned = pair.planned(constants)
        return self.call_us(RecordedCall(planned.plan, tuple(planned.memory.values())))

    def plan_us(self, plan: KernelPlan, tensors: Tensors) -> float:
        """Return the cost of a kernel on tensors; infinite if it cannot be measured."""
        buffers = tuple(
            Memory(max(1, tensor.layout.elements), tensor.storage_dtype) for tensor in tensors
        )
        return self.call_us(RecordedCall(plan, buffers))

    def call_us(self, call: RecordedCall) -> float:
        """Return the cost of a kernel's call; infinite if it cannot be measured."""
        return self._us([call])

    def _us(self, calls: Sequence[RecordedCall]) -> float:
        symbols = [symbol_of(call.plan, self.cache) for call in calls]
        shapes = [[(m.elements, m.dtype) for m in call.buffers] for call in calls]
        # Times of another machine, or of another number of threads, do not count.
        key = digest_of("measured", symbols, shapes, self.threads, machine())
        if key not in self.microseconds:
            cached = self.cache.get(float, key)
            if cached is None:
                cached = self._measured(calls)
                self.cache.store(key, cached)
                self.measured += 1
                self.progress("measuring kernels", self.measured, 0)
            self.microseconds[key] = cached
        return self.microseconds[key]

    def _measured(self, calls: Sequence[RecordedCall]) -> float:
        try:
            return worker.call(_timed, calls)
        except CpembedError:
            # A kernel that does not compile or crashes the worker must not end the planning; at an
            # infinite cost it is left out.
            return math.inf


def _zeros(workload: Computation, epilogue: Epilogue | None) -> dict[str, Any]:
    """Return zeros for the constant factors of a workload and the vectors of an epilogue."""
    constants: dict[str, Any] = {
        operand.name: np.zeros(operand.shape, numpy_dtype(operand.dtype))
        for operand in workload.inputs[1:]
        if not operand.varies
    }
    if epilogue is not None:
        shape = tuple(workload.extents[axis] for axis in channel_axes(workload))
        for name in epilogue.vectors:
            dtype = epilogue.vector_dtype(name, workload.output.dtype)
            constants[name] = np.zeros(shape, numpy_dtype(dtype))
    return constants


def _timed(calls: Sequence[RecordedCall]) -> float:
    """Return the median microseconds of a sequence of calls; runs in the worker."""
    # Calls share memory, which is the same object: one may write what the next one reads.
    buffers: dict[int, Any] = {}
    for memory in (memory for call in calls for memory in call.buffers):
        if id(memory) not in buffers:
            buffers[id(memory)] = (
                runtime.empty(memory.elements, memory.dtype)
                if memory.contents is None
                else runtime.from_array(memory.contents)
            )
    with step("compiling a network's kernel"):
        # Blocks of a method call the same kernels.
        plans = {id(call.plan): call.plan for call in calls}
        kernels = {number: runtime.compile_plan(plan) for number, plan in plans.items()}
        bound = [
            kernels[id(call.plan)].bound(*(buffers[id(memory)] for memory in call.buffers))
            for call in calls
        ]
    with step("timing a network's kernel"):
        return time_work(in_turn(bound), _ROUNDS, _ROUND_MS).median
