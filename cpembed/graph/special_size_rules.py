"""Rules for open sizes of operators with several results, packed weights, lines, and loops.

They complete :mod:`cpembed.graph.size_rules`, whose rules are those of movements, of functions of
elements, and of sums. Along a dimension that a loop runs along, the larger graph executes fewer
steps. Everything else that is open in a loop is compared in its body, in which nothing is known of
the states but their axes: these are the same before and after each step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from cpembed.graph import kinds
from cpembed.graph.graph import Operator
from cpembed.graph.kinds.base import Kind, axis_of
from cpembed.graph.loop import Loop
from cpembed.graph.size_relation import (
    Axes,
    Comparison,
    Factor,
    Rule,
    SizeObstacle,
    extents_of,
    kinds_of,
    same_kind,
)
from cpembed.ir.dtypes import is_integer, neutral_element


def _dtype(state: Comparison, after: Operator, slot: int = 0) -> str:
    return state.large.types[after.inputs[slot]].dtype


# -- quantization ---------------------------------------------------------------------------------


def _dynamic_quantize(state: Comparison, before: Operator, after: Operator) -> list[Axes]:
    axes = state.read(after)
    for factors in axes:
        for factor in factors:
            if factor.varies:
                # The range contains 0 whatever the elements are.
                state.mask(0, factor, 0)
    return [axes, (), ()]


def _block_dequantize(state: Comparison, before: Operator, after: Operator) -> Axes:
    same_kind(before, after, kinds.BlockDequantize)
    for slot in range(len(after.inputs)):
        for factors in state.read(after, slot):
            state.require_fixed(factors, "has scales along")
    state.finite.add(after.output)
    return state.read(after)


# -- packed weights -------------------------------------------------------------------------------


def _rows(state: Comparison, axes: Axes, columns: int) -> Axes:
    """Return the axes of rows of some columns, which are the last axis."""
    last = axes[-1] if axes else ()
    if any(factor.varies for factor in last) or extents_of(last)[1] != columns:
        raise SizeObstacle("reads rows across a dimension whose size is open")
    return axes[:-1]


def _grouped_product(state: Comparison, before: Operator, after: Operator) -> Axes:
    a, b = kinds_of(before, after, kinds.GroupedProduct)
    if replace(b, shape=a.shape) != a:
        raise SizeObstacle("is another product at another size")
    # Of integers of groups, the first axis has the rows.
    axes = state.read(after)
    rows = axes[:1] if b.integers else _rows(state, axes, b.weights.columns)
    result = (*rows, (state.factor(b.weights.rows, b.weights.rows),))
    return state.regrouped(result, a.shape, b.shape)


def _group_quantize(state: Comparison, before: Operator, after: Operator) -> list[Axes]:
    kind = same_kind(before, after, kinds.GroupQuantize)
    rows = _rows(state, state.read(after), kind.columns)
    small, large = extents_of(factor for factors in rows for factor in factors)
    (first,) = state.regrouped(rows, [small], [large])
    groups = (state.factor(kind.groups, kind.groups),) if kind.groups != 1 else ()
    padded = (state.factor(kind.padded, kind.padded),) if kind.padded != 1 else ()
    return [(first, groups, padded), (first, groups), (first, groups)]


def _grouped_gather(state: Comparison, before: Operator, after: Operator) -> Axes:
    a, b = kinds_of(before, after, kinds.GroupedGather)
    if replace(b, shape=a.shape) != a:
        raise SizeObstacle("selects from other weights at another size")
    indices = state.read(after, len(after.inputs) - 1)
    columns = state.factor(b.weights.columns, b.weights.columns)
    return state.regrouped((*indices, (columns,)), a.shape, b.shape)


def _cache_update(state: Comparison, before: Operator, after: Operator) -> Axes:
    kind = same_kind(before, after, kinds.CacheUpdate)
    cache, update = state.read(after), state.read(after, 1)
    # Filling behind the new elements would replace elements of the cache.
    state.require_fixed((*cache[kind.axis], *update[kind.axis]), "replaces elements along")
    return tuple(
        cache[axis] if axis == kind.axis else state.unified([cache[axis], update[axis]])
        for axis in range(len(cache))
    )


# -- lines ----------------------------------------------------------------------------------------


def _line(state: Comparison, after: Operator, axis: int) -> tuple[int, Factor | None]:
    """Return the number of the axis of a line, and its factor if its size is open."""
    axes = state.read(after)
    axis = axis_of(axis, len(axes))
    if not any(factor.varies for factor in axes[axis]):
        return axis, None
    if len(axes[axis]) != 1:
        raise SizeObstacle("has lines along a dimension that is joined with another one")
    return axis, axes[axis][0]


def _sort(state: Comparison, before: Operator, after: Operator) -> list[Axes]:
    a, b = kinds_of(before, after, kinds.Sort)
    if replace(b, count=a.count) != a:
        raise SizeObstacle("has attributes that depend on the sizes")
    axis, factor = _line(state, after, b.axis)
    axes = list(state.read(after))
    if factor is not None:
        # What is equal stays in the order of its indices, so that the filling comes last.
        dtype = _dtype(state, after)
        last = neutral_element("min", dtype) if is_integer(dtype) else math.nan
        state.mask(0, factor, neutral_element("max", dtype) if b.descending else last)
    is_complete = factor is not None and (a.count, b.count) == (factor.small, factor.large)
    if not is_complete and a.count != b.count:
        raise SizeObstacle("returns a number of elements that depends on the sizes")
    if not is_complete:
        axes[axis] = (state.factor(b.count, b.count),) if b.count != 1 else ()
    return [tuple(axes), tuple(axes)]


def _scan(state: Comparison, before: Operator, after: Operator) -> Axes:
    kind = same_kind(before, after, kinds.Scan)
    _, factor = _line(state, after, kind.axis)
    if factor is not None:
        state.forbid_shifts([factor], "runs along")
        if kind.reverse:
            state.mask(0, factor, neutral_element(kind.operation, _dtype(state, after)))
    return state.read(after)


def _scatter(state: Comparison, before: Operator, after: Operator) -> Axes:
    same_kind(before, after, kinds.Scatter)
    data, indices, rows = (state.read(after, slot) for slot in range(3))
    state.require_fixed(data[0], "scatters along")
    for factor in indices[0]:
        if factor.varies:
            # A row whose index is beyond the tensor is left out.
            state.mask(1, factor, neutral_element("min", _dtype(state, after, 1)))
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


# -- loops -----------------------------------------------------------------------------------------


def loop_rule(state: Comparison, before: Operator, after: Operator) -> list[Axes]:
    """Compare the bodies of a loop, and return the axes of its final states and results.

    Parameters
    ----------
    state : Comparison
    before, after : Operator
        Loop at the smaller and at the larger sizes.

    Raises
    ------
    SizeObstacle
        If a step at the smaller sizes is no part of one at the larger ones.
    """
    small, large = kinds_of(before, after, Loop)
    if _attributes(small) != _attributes(large):
        raise SizeObstacle("is another loop at another size")
    steps = _steps(state, small, large)
    inner = state.nested(small.body, large.body)
    _begin(state, inner, after, steps)
    outputs = inner.outputs(dict(zip(small.body.inputs, large.body.inputs, strict=True)))
    _, states, _, _ = large.split_inputs(after.inputs)
    first = int(large.conditional)
    finals: list[Axes] = []
    for initial, axes in zip(states, outputs[first : first + large.states], strict=True):
        pairs = zip(state.axes[initial], axes, strict=True)
        finals.append(tuple(state.unified(pair) for pair in pairs))
    results: list[Axes] = [
        ((steps,) if (steps.small, steps.large) != (1, 1) else (), *axes)
        for axes in outputs[first + large.states :]
    ]
    _end(state, inner, after, steps)
    return [*finals, *results]


def _attributes(kind: Loop) -> tuple[object, ...]:
    """Return the attributes that loops at two sizes share, without their bodies."""
    flags = kind.numbered, kind.limited, kind.conditional, kind.padded
    return (kind.states, kind.scanned, kind.results, kind.steps is None, *flags)


def _steps(state: Comparison, small: Loop, large: Loop) -> Factor:
    """Return the factor of the steps, and request their number if it varies."""
    steps = state.factor(small.steps or 0, large.steps or 0)
    if steps.varies:
        if large.limited:
            raise SizeObstacle("has a number of steps that is computed, and one that is open")
        state.count(steps.small, steps.large)
    return steps


def _begin(state: Comparison, inner: Comparison, after: Operator, steps: Factor) -> None:
    """Name the factors of the inputs of a body."""
    kind = after.kind
    assert isinstance(kind, Loop)
    _, states, scanned, invariant = kind.split_inputs(after.inputs)
    numbers, state_names, slices, same = kind.body_inputs
    for name in numbers:
        inner.axes[name] = ()
        if steps.varies:
            inner.limits[name] = steps.small, steps.large
    for name, tensor in zip(state_names, states, strict=True):
        inner.axes[name] = state.axes[tensor]
    for name, tensor in zip(slices, scanned, strict=True):
        along, *rest = state.axes[tensor]
        if steps.varies and len(along) != 1:
            raise SizeObstacle("runs along a dimension that is joined with another one")
        inner.axes[name] = tuple(rest)
        _hand_on(state, inner, tensor, name, rest)
    for name, tensor in zip(same, invariant, strict=True):
        inner.axes[name] = state.axes[tensor]
        _hand_on(state, inner, tensor, name, state.axes[tensor])
        if tensor in state.limits:
            inner.limits[name] = state.limits[tensor]
    for name, tensor in kind.body.inputs.items():
        if is_integer(tensor.dtype):
            inner.finite.add(name)


def _end(state: Comparison, inner: Comparison, after: Operator, steps: Factor) -> None:
    """Propagate the facts about a body's outputs, which are zero after the last step."""
    kind = after.kind
    assert isinstance(kind, Loop)
    _, states, _, _ = kind.split_inputs(after.inputs)
    _, new_states, parts = kind.body_outputs
    finals, results = after.outputs[: kind.states], after.outputs[kind.states :]
    for initial, new, final in zip(states, new_states, finals, strict=True):
        if initial in state.finite and new in inner.finite:
            state.finite.add(final)
    for part, result in zip(parts, results, strict=True):
        if steps.varies:
            state.fillings[result, steps.number] = 0
        for factor in (factor for axis in inner.axes[part] for factor in axis):
            value = inner.fillings.get((part, factor.number))
            if value is not None and (not steps.varies or value == 0):
                state.fillings[result, factor.number] = value
        if part in inner.finite:
            state.finite.add(result)


def _hand_on(
    state: Comparison, inner: Comparison, tensor: str, name: str, axes: Sequence[Sequence[Factor]]
) -> None:
    """Propagate a tensor's fillings, and that it is finite, to a tensor of the body."""
    for factor in (factor for axis in axes for factor in axis):
        if (tensor, factor.number) in state.fillings:
            inner.fillings[name, factor.number] = state.fillings[tensor, factor.number]
    if tensor in state.finite:
        inner.finite.add(name)
