"""What kernels of a network take on this machine, measured, for the choice among layouts.

Each is compiled and timed by itself in the worker, on memory that holds zeros, its operands as near
as the caches keep them; the median of rounds is kept, so that the same command measures once.
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
from cpembed.network.operators import Placed
from cpembed.network.product_kernels import Layer, recorded
from cpembed.runtime import worker
from cpembed.runtime.measurement.environment import machine
from cpembed.runtime.measurement.runner import time_work
from cpembed.steps import step
from cpembed.targets.base import Target
from cpembed.targets.capabilities import copy_us

_TIMES_A_COPY: Mapping[type[Kind], float] = {
    Softmax: 16.0,
    Table: 8.0,
    LayerNorm: 4.0,
    Quantize: 2.0,
    DynamicQuantize: 4.0,
}
"""What a kind takes in units of a copy of the same bytes (measured on Zen 5, one thread:
``benchmarks/generated.py``); others are copies, as far as this goes."""

_OF_A_FUNCTION = 4.0
"""The same, of an exponential, an error function or a hyperbolic tangent."""

_POLYNOMIALS = frozenset({"exp", "log", "erf", "tanh", "sigmoid", "sin", "cos", "pow"})

_BYTES_PER_US = 4000.0
"""Of a thread, where the target has no figures."""

AnyTarget = Target[Any, Any, Any]


def conversion_us(target: AnyTarget, source: Placed, into: Placed, threads: int) -> float:
    """Microseconds of copying a tensor into another layout."""
    return _moved_us(target, [source], [into], threads)


def estimate_us(
    target: AnyTarget,
    kind: Kind,
    inputs: Sequence[Placed],
    outputs: Sequence[Placed],
    threads: int,
) -> float:
    """Microseconds of an operator that is no product."""
    passes = _TIMES_A_COPY.get(type(kind), 1.0)
    if isinstance(kind, Elementwise):
        passes += _OF_A_FUNCTION * functions(kind.expression)
    if isinstance(kind, Pool):
        taps, strides = 1, 1
        for window, stride in zip(kind.window, kind.strides, strict=True):
            taps, strides = taps * window, strides * stride
        overlapping = tuple(kind.window) != inputs[0].shape[-len(kind.window) :]
        passes = max(1.0, taps / strides) if overlapping else 1.0
    # A table of rows is read where its rows are taken.
    read = outputs if isinstance(kind, Gather) else inputs
    return _moved_us(target, read, outputs, threads) * passes


def functions(expression: Scalar) -> int:
    """How many functions that polynomials compute an expression has."""
    if not isinstance(expression, Apply):
        return 0
    inside = sum(functions(argument) for argument in expression.arguments)
    return inside + (expression.operation in _POLYNOMIALS)


def _moved_us(
    target: AnyTarget, inputs: Sequence[Placed], outputs: Sequence[Placed], threads: int
) -> float:
    tensors = [*inputs, *outputs]
    size = sum(tensor.type.elements * size_bytes(tensor.stored) for tensor in tensors)
    orders = {_order(tensor) for tensor in tensors if tensor.type.elements > 1}
    known = copy_us(target, size, threads, reordered=len(orders) > 1)
    return size / (_BYTES_PER_US * threads) if known is None else known


def _order(tensor: Placed) -> tuple[tuple[int, ...], int]:
    """The order of the axes that have more than one element."""
    layout = tensor.layout
    order = tuple(axis for axis in layout.order if layout.shape[axis] > 1)
    return order, layout.block


_ROUNDS, _ROUND_MS = 7, 4.0


@dataclass
class Measuring:
    """Microseconds of kernels. ``progress`` counts those that were measured now."""

    cache: Cache
    threads: int
    progress: Progress
    done: int = 0
    known: dict[str, float] = field(default_factory=dict[str, float])

    def layer_us(self, layer: Layer) -> float:
        """Of a product, packing and unpacking included; infinite where it cannot be measured."""
        workload = layer.candidate.program.unfused
        constants: dict[str, Any] = {
            operand.name: np.zeros(operand.shape, numpy_dtype(operand.dtype))
            for operand in workload.inputs[1:]
            if not operand.varies
        }
        epilogue = layer.epilogue
        if epilogue is not None:
            shape = tuple(workload.extents[axis] for axis in channel_axes(workload))
            for name in epilogue.vectors:
                dtype = epilogue.vector_dtype(name, workload.output.dtype)
                constants[name] = np.zeros(shape, numpy_dtype(dtype))
        return self._us(recorded(layer, epilogue, constants, self.threads).run)

    def plan_us(self, plan: KernelPlan, placed: Sequence[Placed]) -> float:
        """Of a kernel on tensors."""
        buffers = tuple(Memory(max(1, one.layout.elements), one.stored) for one in placed)
        return self._us([RecordedCall(plan, buffers)])

    def _us(self, calls: Sequence[RecordedCall]) -> float:
        symbols = [symbol_of(call.plan) for call in calls]
        shapes = [[(m.elements, m.dtype) for m in call.buffers] for call in calls]
        key = digest_of("measured", symbols, shapes, self.threads, machine())
        if key not in self.known:
            kept = self.cache.get(float, key)
            if kept is None:
                kept = self._measured(calls)
                self.cache.put(key, kept)
                self.done += 1
                self.progress("measuring kernels", self.done, 0)
            self.known[key] = kept
        return self.known[key]

    def _measured(self, calls: Sequence[RecordedCall]) -> float:
        try:
            return worker.call(_timed, calls)
        except CpembedError:
            # A kernel that does not compile, or ends the worker, is not chosen.
            return math.inf


def _timed(calls: Sequence[RecordedCall]) -> float:
    """The median microseconds of calls, one after the other; in the worker."""
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
