"""What kernels of a network take on this machine, measured, for the choice among layouts.

Each is compiled and timed by itself in the worker, on memory that holds zeros, its operands as near
as the caches keep them; the median of rounds is kept, so that the same command measures once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cpembed.codegen import runtime
from cpembed.codegen.compiled import in_turn
from cpembed.codegen.epilogue import channel_axes
from cpembed.codegen.plan import KernelPlan
from cpembed.codegen.recorded import Memory, RecordedCall
from cpembed.errors import CpembedError
from cpembed.ir.dtypes import numpy_dtype
from cpembed.network.cache import Cache, digest_of
from cpembed.network.layer import Layer, recorded
from cpembed.network.objects import symbol_of
from cpembed.network.operators import Placed
from cpembed.runtime import worker
from cpembed.runtime.measurement.environment import machine
from cpembed.runtime.measurement.runner import time_work
from cpembed.steps import Progress, step

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
