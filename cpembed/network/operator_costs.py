"""Estimated times of operators between products and of layout conversions, in microseconds.

A kernel computes (:mod:`cpembed.network.operators.work`) while it moves its tensors through the
nearest cache that holds all of them; the slower of the two counts, divided among its threads, and
the call on top. ``benchmarks/operator_predictions.py`` compares estimates with measured times.
"""

from __future__ import annotations

import math
from functools import lru_cache

from cpembed.graph.kinds import (
    CacheUpdate,
    Elementwise,
    Gather,
    GroupedGather,
    GroupedProduct,
    Kind,
    Pool,
)
from cpembed.network.operators import EFFORT, PlacedTensor
from cpembed.network.operators.elementwise import expression_effort
from cpembed.network.operators.emission import Operands
from cpembed.network.operators.movement import COPIES
from cpembed.network.operators.nest import Tensors
from cpembed.network.operators.work import Work, conversion_work, work_of
from cpembed.targets.capabilities import AnyTarget, HostTimes, host_times

_LINE_BYTES = 64

# Operations that take as long as an element that is moved alone, one whose place is computed, and
# the beginning of an innermost loop.
_SCATTERED, _COMPUTED, _ROW = 3.0, 12.0, 3.0
# Microseconds of a call: a library's, in C, has less around it than one that is calibrated.
_CALL_US = 0.2
# Multiply-accumulates of a microsecond and thread where many rows share packed weights (measured on
# a Zen 3 with 8 lanes of float32: 32 GMAC/s).
_GROUPED_MACS_PER_US = 32_000.0
# Operations of a byte of a kind whose work is not described, relative to its effort.
_UNDESCRIBED = 0.25


def estimate_operator_us(
    target: AnyTarget,
    kind: Kind,
    inputs: Tensors,
    outputs: Tensors,
    threads: int,
) -> float:
    """Estimate the time of an operator that is no product.

    Parameters
    ----------
    target : Target
        Target whose calibration is used.
    kind : Kind
    inputs, outputs : sequence of PlacedTensor
    threads : int
    """
    return _operator_us(kind, tuple(inputs), tuple(outputs), threads, host_times(target))


def estimate_nearby_us(target: AnyTarget, kind: Kind, inputs: Tensors, outputs: Tensors) -> float:
    """Estimate the time of an operator on one thread, on inputs in the second-level cache.

    Parameters
    ----------
    target : Target
        Target whose calibration is used.
    kind : Kind
    inputs, outputs : sequence of PlacedTensor
    """
    times, work = host_times(target), work_of(kind, inputs, outputs) or Work()
    lines_ns = sum(tensor.bytes for tensor in inputs) * times.load_line_ns[1] / _LINE_BYTES
    return max(_operations(work) * times.operation_ns, lines_ns) / 1e3


# Layers of a network repeat, and so do their layouts.
@lru_cache(maxsize=1 << 14)
def _operator_us(
    kind: Kind,
    inputs: tuple[PlacedTensor, ...],
    outputs: tuple[PlacedTensor, ...],
    threads: int,
    times: HostTimes,
) -> float:
    if isinstance(kind, CacheUpdate):
        # In place, which is how callers pass caches, only the new elements are moved.
        return _us(Work(), inputs[1:2], inputs[1:2], 1, times)
    if isinstance(kind, GroupedProduct):
        # A stream of the weights, unless so many rows share them that multiplying takes longer.
        streamed = _us(Work(), inputs, outputs, threads, times)
        return max(streamed, kind.macs / (_GROUPED_MACS_PER_US * threads))
    work = work_of(kind, inputs, outputs)
    # A gather reads only the rows that it selects, as many bytes as it writes.
    read = outputs if isinstance(kind, Gather | GroupedGather) else inputs
    if work is None:
        moved = sum(tensor.bytes for tensor in (*read, *outputs))
        work = Work(operations=_UNDESCRIBED * EFFORT.get(type(kind), 1.0) * moved)
    chunks = _chunks(kind, Operands(inputs, outputs, threads))
    return _us(work, read, outputs, chunks, times)


def _chunks(kind: Kind, operands: Operands) -> int:
    """Return the number of parts of an operator's kernel, as its generator divides it."""
    output = operands.outputs[0]
    if isinstance(kind, COPIES):
        return operands.chunks(tensors=[output, output])
    if isinstance(kind, Elementwise):
        return operands.chunks(expression_effort(kind.expression))
    if isinstance(kind, Pool):
        return operands.chunks(max(1.0, math.prod(kind.window) / math.prod(kind.strides)))
    return operands.chunks(EFFORT.get(type(kind), 2.0))


def estimate_copy_us(
    target: AnyTarget, source: PlacedTensor, destination: PlacedTensor, threads: int
) -> float:
    """Estimate the time of a copy of a tensor into another layout.

    Parameters
    ----------
    target : Target
        Target whose calibration is used.
    source, destination : PlacedTensor
        The same tensor in two layouts.
    threads : int
    """
    return _copy_us(source, destination, threads, host_times(target))


@lru_cache(maxsize=1 << 14)
def _copy_us(
    source: PlacedTensor, destination: PlacedTensor, threads: int, times: HostTimes
) -> float:
    chunks = Operands([source], [destination], threads).chunks()
    work = conversion_work(source, destination)
    return _us(work, [source], [destination], chunks, times)


def _operations(work: Work) -> float:
    """Return the operations that take as long as some work."""
    moved = _SCATTERED * work.scattered + _COMPUTED * work.computed
    return work.operations + moved + _ROW * work.rows


def _us(
    work: Work,
    read: Tensors,
    written: Tensors,
    chunks: int,
    times: HostTimes,
) -> float:
    """Return the time of a kernel in some parallel parts."""
    loaded, stored = (sum(t.bytes for t in tensors) for tensors in (read, written))
    level = times.level((loaded + stored) / chunks)
    lines_ns = loaded * times.load_line_ns[level] + stored * times.store_line_ns[min(level, 2)]
    busy_ns = max(_operations(work) * times.operation_ns, lines_ns / _LINE_BYTES)
    launch = times.launch_us if chunks > 1 else min(_CALL_US, times.call_us)
    return launch + busy_ns / chunks / 1e3
