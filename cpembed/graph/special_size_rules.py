"""Rules for open sizes of operators with several results, of packed weights, and of lines.

They complete :mod:`cpembed.graph.size_rules`, whose rules are those of movements, of functions of
elements, and of sums.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from cpembed.graph import kinds
from cpembed.graph.graph import Operator
from cpembed.graph.kinds.base import Kind, axis_of
from cpembed.graph.size_relation import Axes, Comparison, Factor, Rule, SizeObstacle, require_same
from cpembed.ir.dtypes import element_info, is_integer


def least(dtype: str) -> float | int:
    """Return the least value of a type."""
    return element_info(dtype).integer_range[0] if is_integer(dtype) else -math.inf


def largest(dtype: str) -> float | int:
    """Return the largest value of a type."""
    return element_info(dtype).integer_range[1] if is_integer(dtype) else math.inf


def _dtype(state: Comparison, after: Operator, slot: int = 0) -> str:
    return state.large.types[after.inputs[slot]].dtype


def _read(state: Comparison, after: Operator, slot: int = 0) -> Axes:
    return state.axes[after.inputs[slot]]


# -- quantization ---------------------------------------------------------------------------------


def _dynamic_quantize(state: Comparison, before: Operator, after: Operator) -> list[Axes]:
    axes = _read(state, after)
    for factors in axes:
        for factor in factors:
            if factor.varies:
                # The range contains 0 whatever the elements are.
                state.mask(0, factor, 0)
    return [axes, (), ()]


def _block_dequantize(state: Comparison, before: Operator, after: Operator) -> Axes:
    require_same(before, after)
    for slot in range(len(after.inputs)):
        for factors in _read(state, after, slot):
            state.require_fixed(factors, "has scales along")
    state.finite.add(after.output)
    return _read(state, after)


# -- packed weights -------------------------------------------------------------------------------


def _rows(state: Comparison, axes: Axes, columns: int) -> Axes:
    """Return the axes of rows of some columns, which are the last axis."""
    last = axes[-1] if axes else ()
    if any(factor.varies for factor in last) or math.prod(f.large for f in last) != columns:
        raise SizeObstacle("reads rows across a dimension whose size is open")
    return axes[:-1]


def _grouped_product(state: Comparison, before: Operator, after: Operator) -> Axes:
    a, b = before.kind, after.kind
    assert isinstance(a, kinds.GroupedProduct)
    assert isinstance(b, kinds.GroupedProduct)
    if replace(b, shape=a.shape) != a:
        raise SizeObstacle("is another product at another size")
    # Of integers of groups, the first axis has the rows.
    axes = _read(state, after)
    rows = axes[:1] if b.integers else _rows(state, axes, b.weights.columns)
    result = (*rows, (state.factor(b.weights.rows, b.weights.rows),))
    return state.regrouped(result, a.shape, b.shape)


def _group_quantize(state: Comparison, before: Operator, after: Operator) -> list[Axes]:
    require_same(before, after)
    kind = after.kind
    assert isinstance(kind, kinds.GroupQuantize)
    rows = _rows(state, _read(state, after), kind.columns)
    counts = [
        math.prod(getattr(factor, side) for factors in rows for factor in factors)
        for side in ("small", "large")
    ]
    (first,) = state.regrouped(rows, counts[:1], counts[1:])
    groups = (state.factor(kind.groups, kind.groups),) if kind.groups != 1 else ()
    padded = (state.factor(kind.padded, kind.padded),) if kind.padded != 1 else ()
    return [(first, groups, padded), (first, groups), (first, groups)]


def _grouped_gather(state: Comparison, before: Operator, after: Operator) -> Axes:
    a, b = before.kind, after.kind
    assert isinstance(a, kinds.GroupedGather)
    assert isinstance(b, kinds.GroupedGather)
    if replace(b, shape=a.shape) != a:
        raise SizeObstacle("selects from other weights at another size")
    indices = _read(state, after, len(after.inputs) - 1)
    columns = state.factor(b.weights.columns, b.weights.columns)
    return state.regrouped((*indices, (columns,)), a.shape, b.shape)


def _cache_update(state: Comparison, before: Operator, after: Operator) -> Axes:
    require_same(before, after)
    kind = after.kind
    assert isinstance(kind, kinds.CacheUpdate)
    cache, update = _read(state, after), _read(state, after, 1)
    # Filling behind the new elements would replace elements of the cache.
    state.require_fixed((*cache[kind.axis], *update[kind.axis]), "replaces elements along")
    return tuple(
        cache[axis] if axis == kind.axis else state.unified([cache[axis], update[axis]])
        for axis in range(len(cache))
    )


# -- lines ----------------------------------------------------------------------------------------


def _line(state: Comparison, after: Operator, axis: int) -> tuple[int, Factor | None]:
    """Return the number of the axis of a line, and its factor if its size is open."""
    axes = _read(state, after)
    axis = axis_of(axis, len(axes))
    if not any(factor.varies for factor in axes[axis]):
        return axis, None
    if len(axes[axis]) != 1:
        raise SizeObstacle("has lines along a dimension that is joined with another one")
    return axis, axes[axis][0]


def _sort(state: Comparison, before: Operator, after: Operator) -> list[Axes]:
    a, b = before.kind, after.kind
    assert isinstance(a, kinds.Sort)
    assert isinstance(b, kinds.Sort)
    if replace(b, count=a.count) != a:
        raise SizeObstacle("has attributes that depend on the sizes")
    axis, factor = _line(state, after, b.axis)
    axes = list(_read(state, after))
    if factor is not None:
        # What is equal stays in the order of its indices, so that the filling comes last.
        dtype = _dtype(state, after)
        last = largest(dtype) if is_integer(dtype) else math.nan
        state.mask(0, factor, least(dtype) if b.descending else last)
    is_complete = factor is not None and (a.count, b.count) == (factor.small, factor.large)
    if not is_complete and a.count != b.count:
        raise SizeObstacle("returns a number of elements that depends on the sizes")
    if not is_complete:
        axes[axis] = (state.factor(b.count, b.count),) if b.count != 1 else ()
    return [tuple(axes), tuple(axes)]


def _scan(state: Comparison, before: Operator, after: Operator) -> Axes:
    require_same(before, after)
    kind = after.kind
    assert isinstance(kind, kinds.Scan)
    _, factor = _line(state, after, kind.axis)
    if factor is not None:
        state.forbid_shifts([factor], "runs along")
        if kind.reverse:
            dtype = _dtype(state, after)
            neutral = {"sum": 0, "prod": 1, "max": least(dtype), "min": largest(dtype)}
            state.mask(0, factor, neutral[kind.operation])
    return _read(state, after)


def _scatter(state: Comparison, before: Operator, after: Operator) -> Axes:
    require_same(before, after)
    data, indices, rows = (_read(state, after, slot) for slot in range(3))
    state.require_fixed(data[0], "scatters along")
    for factor in indices[0]:
        if factor.varies:
            # A row whose index is beyond the tensor is left out.
            state.mask(1, factor, largest(_dtype(state, after, 1)))
    inner = zip(data[1:], rows[1:], strict=True)
    return (data[0], *(state.unified(pair) for pair in inner))


SPECIAL_RULES: Mapping[type[Kind], Rule] = {
    kinds.BlockDequantize: _block_dequantize,
    kinds.CacheUpdate: _cache_update,
    kinds.DynamicQuantize: _dynamic_quantize,
    kinds.GroupQuantize: _group_quantize,
    kinds.GroupedGather: _grouped_gather,
    kinds.GroupedProduct: _grouped_product,
    kinds.Scan: _scan,
    kinds.Scatter: _scatter,
    kinds.Sort: _sort,
}
"""Rules by the kind of an operator."""
