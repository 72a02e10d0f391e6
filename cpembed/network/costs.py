"""Costs of kernels and of layout conversions, in microseconds: estimated or measured.

Estimates are copies by the calibration of the target. Measurements compile and time each kernel in
the worker, on zeros, with operands as close as the caches keep them; medians are cached.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cpembed.codegen import runtime
from cpembed.codegen.compiled import in_turn
from cpembed.codegen.epilogue import channel_axes
from cpembed.codegen.plan import KernelPlan
from cpembed.codegen.recorded import Memory, RecordedCall
from cpembed.errors import CpembedError
from cpembed.graph.kinds import (
    Apply,
    DynamicQuantize,
    Elementwise,
    Gather,
    Kind,
    LayerNorm,
    Pool,
    Quantize,
    Scalar,
    Softmax,
    Table,
)
from cpembed.ir.dtypes import numpy_dtype, size_bytes
from cpembed.network.kernel_cache import Cache, Progress, digest_of, symbol_of
from cpembed.network.operators import PlacedTensor
from cpembed.network.product_kernels import ProductKernel, recorded_kernel
from cpembed.runtime import worker
from cpembed.runtime.measurement.environment import machine
from cpembed.runtime.measurement.runner import time_work
from cpembed.steps import step
from cpembed.targets.base import Target
from cpembed.targets.capabilities import copy_us

# Time of a kind relative to copying the same bytes (measured on Zen 5, one thread:
# ``benchmarks/generated.py``). Other kinds count as copies.
_TIMES_A_COPY: Mapping[type[Kind], float] = {
    Softmax: 16.0,
    Table: 8.0,
    LayerNorm: 4.0,
    Quantize: 2.0,
    DynamicQuantize: 4.0,
}

# Time of an exponential, an error function or a hyperbolic tangent relative to a copy.
_OF_A_FUNCTION = 4.0

_POLYNOMIALS = frozenset({"exp", "log", "erf", "tanh", "sigmoid", "sin", "cos", "pow"})

# Copied bytes per microsecond and thread, for targets without calibration.
_BYTES_PER_US = 4000.0

AnyTarget = Target[Any, Any, Any]


def estimate_conversion_us(
    target: AnyTarget, source: PlacedTensor, destination: PlacedTensor, threads: int
) -> float:
    """Return the estimated cost of copying a tensor into another layout.

    Parameters
    ----------
    target : Target
    source, destination : PlacedTensor
    threads : int
    """
    return _moved_us(target, [source], [destination], threads)


def estimate_operator_us(
    target: AnyTarget,
    kind: Kind,
    inputs: Sequence[PlacedTensor],
    outputs: Sequence[PlacedTensor],
    threads: int,
) -> float:
    """Return the estimated cost of an operator that is no product.

    Parameters
    ----------
    target : Target
    kind : Kind
    inputs, outputs : sequence of PlacedTensor
    threads : int
    """
    passes = _TIMES_A_COPY.get(type(kind), 1.0)
    if isinstance(kind, Elementwise):
        passes += _OF_A_FUNCTION * functions(kind.expression)
    if isinstance(kind, Pool):
        taps, strides = 1, 1
        for window, stride in zip(kind.window, kind.strides, strict=True):
            taps, strides = taps * window, strides * stride
        # Overlapping windows read each element several times.
        overlapping = tuple(kind.window) != inputs[0].shape[-len(kind.window) :]
        passes = max(1.0, taps / strides) if overlapping else 1.0
    # A table of rows is read where its rows are taken.
    read = outputs if isinstance(kind, Gather) else inputs
    return _moved_us(target, read, outputs, threads) * passes


def functions(expression: Scalar) -> int:
    """Return the number of functions in an expression that polynomials compute."""
    if not isinstance(expression, Apply):
        return 0
    inside = sum(functions(argument) for argument in expression.arguments)
    return inside + (expression.operation in _POLYNOMIALS)


def _moved_us(
    target: AnyTarget, inputs: Sequence[PlacedTensor], outputs: Sequence[PlacedTensor], threads: int
) -> float:
    tensors = [*inputs, *outputs]
    size = sum(tensor.type.elements * size_bytes(tensor.storage_dtype) for tensor in tensors)
    orders = {_order(tensor) for tensor in tensors if tensor.type.elements > 1}
    calibrated = copy_us(target, size, threads, reordered=len(orders) > 1)
    return size / (_BYTES_PER_US * threads) if calibrated is None else calibrated


def _order(tensor: PlacedTensor) -> tuple[tuple[int, ...], int]:
    """Return the order of the axes that have several elements."""
    layout = tensor.layout
    order = tuple(axis for axis in layout.order if layout.shape[axis] > 1)
    return order, layout.block


_ROUNDS, _ROUND_MS = 7, 4.0


@dataclass
class KernelTimer:
    """Timer of kernels; ``progress`` counts those that are measured in this process."""

    cache: Cache
    threads: int
    progress: Progress
    measured: int = 0
    microseconds: dict[str, float] = field(default_factory=dict[str, float])

    def product_us(self, kernel: ProductKernel) -> float:
        """Return the cost of a product, packing included; infinite if it cannot be measured."""
        workload = kernel.candidate.program.unfused
        constants: dict[str, Any] = {
            operand.name: np.zeros(operand.shape, numpy_dtype(operand.dtype))
            for operand in workload.inputs[1:]
            if not operand.varies
        }
        epilogue = kernel.epilogue
        if epilogue is not None:
            shape = tuple(workload.extents[axis] for axis in channel_axes(workload))
            for name in epilogue.vectors:
                dtype = epilogue.vector_dtype(name, workload.output.dtype)
                constants[name] = np.zeros(shape, numpy_dtype(dtype))
        return self._us(recorded_kernel(kernel, epilogue, constants, self.threads).run)

    def plan_us(self, plan: KernelPlan, tensors: Sequence[PlacedTensor]) -> float:
        """Return the cost of a kernel on tensors."""
        buffers = tuple(
            Memory(max(1, tensor.layout.elements), tensor.storage_dtype) for tensor in tensors
        )
        return self._us([RecordedCall(plan, buffers)])

    def _us(self, calls: Sequence[RecordedCall]) -> float:
        symbols = [symbol_of(call.plan) for call in calls]
        shapes = [[(m.elements, m.dtype) for m in call.buffers] for call in calls]
        # Times of another machine, or of another number of threads, do not count.
        key = digest_of("measured", symbols, shapes, self.threads, machine())
        if key not in self.microseconds:
            cached = self.cache.get(float, key)
            if cached is None:
                cached = self._measured(calls)
                self.cache.put(key, cached)
                self.measured += 1
                self.progress("measuring kernels", self.measured, 0)
            self.microseconds[key] = cached
        return self.microseconds[key]

    def _measured(self, calls: Sequence[RecordedCall]) -> float:
        try:
            return worker.call(_timed, calls)
        except CpembedError:
            # A kernel that does not compile, or ends the worker, is not chosen.
            return math.inf


def _timed(calls: Sequence[RecordedCall]) -> float:
    """Return the median microseconds of calls, one after the other; runs in the worker."""
    buffers: dict[int, Any] = {}
    for memory in (memory for call in calls for memory in call.buffers):
        if id(memory) not in buffers:
            buffers[id(memory)] = (
                runtime.empty(memory.elements, memory.dtype)
                if memory.contents is None
                else runtime.from_array(memory.contents)
            )
    with step("compiling a network's kernel"):
        bound = [
            runtime.compile_plan(call.plan).bound(*(buffers[id(memory)] for memory in call.buffers))
            for call in calls
        ]
    with step("timing a network's kernel"):
        return time_work(in_turn(bound), _ROUNDS, _ROUND_MS).median
