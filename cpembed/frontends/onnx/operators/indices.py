"""Operators along lines and at indices: sorting, running results, scattering."""

from __future__ import annotations

from functools import partial

import numpy as np

from cpembed.errors import WorkloadError
from cpembed.frontends.indexed import (
    one_hot_rows,
    reversed_prefixes,
    scattered_at,
    scattered_elements,
    sorted_along,
)
from cpembed.frontends.onnx.call import Call, Translation
from cpembed.graph.kinds import Gather
from cpembed.graph.kinds.base import axis_of

_REDUCTIONS = {"none": "set", "add": "add", "mul": "mul", "max": "max", "min": "min"}
"""Operations of scattering by the format's names."""

CUT = "cut the network before it with --outputs"
"""Remedy for an operator that no kernel computes, and whose results have no fixed sizes."""

CUT_OR_RUN = f"{CUT}, or run it with --fallback onnxruntime"
"""Remedy for an operator that no kernel computes."""


def _top_k(call: Call) -> list[str]:
    count = call.integer("k", 0) if call.version < 10 else call.integers(1, "the count")[0]
    axis, largest = call.axis(-1), call.flag("largest", True)
    # In any order where they need not be sorted.
    call.flag("sorted", True)
    return list(sorted_along(call, call.input(), axis, count, descending=largest))


def _cumulated(call: Call, operation: str) -> str:
    axis = axis_of(call.integers(1, "the axis")[0], call.rank())
    exclusive, reverse = call.flag("exclusive"), call.flag("reverse")
    return call.cumulated(operation, call.input(), axis, exclusive=exclusive, reverse=reverse)


def _operation(call: Call) -> str:
    return _REDUCTIONS[call.text("reduction", "none", tuple(_REDUCTIONS))]


def _scatter_elements(call: Call) -> str:
    data, index, updates = (call.input(k) for k in range(3))
    return scattered_elements(call, data, index, updates, call.axis(), _operation(call))


def _scatter_nd(call: Call) -> str:
    data, index, updates = (call.input(k) for k in range(3))
    shape, index_shape = call.shape(data), call.shape(index)
    depth = index_shape[-1] if index_shape else 0
    tail = shape[depth:]
    if not 0 < depth <= len(shape) or call.shape(updates) != (*index_shape[:-1], *tail):
        raise WorkloadError(
            f"{list(call.shape(updates))} at indices {list(index_shape)} of a tensor {list(shape)}"
        )
    last = len(index_shape) - 1
    columns = [
        call.reshaped(call.part(index, last, k, k + 1), index_shape[:-1]) for k in range(depth)
    ]
    return scattered_at(call, data, columns, updates, _operation(call))


def _reverse_sequence(call: Call) -> str:
    axis, batch_axis = call.integer("time_axis", 0), call.integer("batch_axis", 1)
    axis, batch_axis = axis_of(axis, call.rank()), axis_of(batch_axis, call.rank())
    return reversed_prefixes(call, call.input(0), call.input(1), axis, batch_axis)


def _hardmax(call: Call) -> str:
    shape, axis = call.type().shape, call.axis(-1 if call.version >= 13 else 1)
    if call.version >= 13:
        return one_hot_rows(call, call.input(), axis)
    # Before version 13 the axes from this one on count as one.
    rows = int(np.prod(shape[:axis])), int(np.prod(shape[axis:]))
    return call.reshaped(one_hot_rows(call, call.reshaped(call.input(), rows), 1), shape)


# -- results whose size depends on elements -------------------------------------------------------


def _non_zero(call: Call) -> str:
    value = call.builder.value(call.input())
    if value is None:
        call.reject(f"the number of its results depends on the elements of its input: {CUT}")
    return call.tensor(np.asarray(np.nonzero(value)), "int64")


def _compress(call: Call) -> str:
    """Gather the elements where a constant condition is true."""
    condition = call.builder.value(call.input(1))
    if condition is None:
        call.reject(f"the number of its results depends on its condition: {CUT}")
    x, axis = call.input(0), 0
    if call.attribute("axis") is None:
        x = call.reshaped(x, (call.type(0).elements,))
    else:
        axis = call.axis()
    places = np.flatnonzero(condition)
    if places.size and places[-1] >= call.shape(x)[axis]:
        raise WorkloadError(f"{condition.size} conditions of an axis of {call.shape(x)[axis]}")
    return call.emit(Gather(axis), x, call.tensor(places))


def _unique(call: Call) -> list[str]:
    x = call.builder.value(call.input())
    if x is None:
        call.reject(f"the number of its results depends on the elements of its input: {CUT}")
    axis = call.attribute("axis")
    axis = None if axis is None else axis_of(axis, x.ndim)
    values, first, inverse, counts = np.unique(
        x.astype(np.float32) if x.dtype.name == "bfloat16" else x, True, True, True, axis=axis
    )
    if not call.flag("sorted", True):
        order = np.argsort(first, kind="stable")
        values = np.take(values, order, 0 if axis is None else axis)
        first, counts = first[order], counts[order]
        inverse = np.argsort(order)[inverse]
    results = [call.cast(call.tensor(values), call.type().dtype)]
    return results + [call.tensor(part.reshape(-1), "int64") for part in (first, inverse, counts)]


TABLE: dict[str, Translation] = {
    "TopK": _top_k,
    "CumSum": partial(_cumulated, operation="sum"),
    "CumProd": partial(_cumulated, operation="prod"),
    "ScatterElements": _scatter_elements,
    "Scatter": _scatter_elements,
    "ScatterND": _scatter_nd,
    "ReverseSequence": _reverse_sequence,
    "Hardmax": _hardmax,
    "NonZero": _non_zero,
    "Compress": _compress,
    "Unique": _unique,
}
