"""What moving elements takes, by the figures of the machine: of operators between products, and of
conversions from one layout to another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

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
from cpembed.ir.dtypes import size_bytes
from cpembed.network.operators import Placed
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
