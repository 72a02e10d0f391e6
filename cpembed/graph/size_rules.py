"""Rules of operator kinds for :mod:`cpembed.graph.size_relation`, one function each.

A rule sets the factors of its operator's outputs, requests masks, and raises
:class:`~cpembed.graph.size_relation.SizeObstacle` where results at the smaller sizes are no part of
those at the larger ones. A kind without a rule is an obstacle.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from cpembed.graph import kinds
from cpembed.graph.graph import Operator
from cpembed.graph.kinds import Input
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
from cpembed.graph.special_size_rules import SPECIAL_RULES, loop_rule
from cpembed.ir.computation import AxisKind, Computation
from cpembed.ir.dtypes import is_integer, neutral_element


def compare(state: Comparison, before: Operator, after: Operator) -> None:
    """Apply the rule of an operator's kind, and check the factors that it yields.

    Parameters
    ----------
    state : Comparison
    before, after : Operator
        Operator at the smaller and at the larger sizes.

    Raises
    ------
    SizeObstacle
        If the results at the smaller sizes are no part of those at the larger ones.
    """
    rule = _RULES.get(type(after.kind))
    if rule is None:
        raise SizeObstacle("has no rule for open sizes")
    results = rule(state, before, after)
    if not isinstance(results, list):
        results = [results] * len(after.outputs)
    for a, b, axes in zip(before.outputs, after.outputs, results, strict=True):
        small, large = state.small.types[a], state.large.types[b]
        pairs = tuple(zip(small.shape, large.shape, strict=True))
        if small.dtype != large.dtype or pairs != tuple(map(extents_of, axes)):
            raise SizeObstacle(f"yields {small} at one size and {large} at another")
        state.axes[b] = axes
        if is_integer(large.dtype):
            state.finite.add(b)


def _flat(axes: Sequence[Sequence[Factor]]) -> list[Factor]:
    return [factor for axis in axes for factor in axis]


def _moved(state: Comparison, after: Operator, axes: Axes) -> Axes:
    """Propagate fillings, and that elements are finite, from the only input of a movement."""
    source, output = after.inputs[0], after.output
    for factor in _flat(axes):
        if (source, factor.number) in state.fillings:
            state.fillings[output, factor.number] = state.fillings[source, factor.number]
    if source in state.limits:
        state.limits[output] = state.limits[source]
    if source in state.finite:
        state.finite.add(output)
    return axes


# -- movements ------------------------------------------------------------------------------------


def _reshape(state: Comparison, before: Operator, after: Operator) -> Axes:
    small, large = state.small.types[before.output], state.large.types[after.output]
    return _moved(state, after, state.regrouped(state.read(after), small.shape, large.shape))


def _transpose(state: Comparison, before: Operator, after: Operator) -> Axes:
    kind, axes = same_kind(before, after, kinds.Transpose), state.read(after)
    return _moved(state, after, tuple(axes[axis] for axis in kind.order))


def _expand(state: Comparison, before: Operator, after: Operator) -> Axes:
    small, large = state.small.types[before.output].shape, state.large.types[after.output].shape
    axes = state.read(after)
    plain = state.plain(small, large)
    lead = len(plain) - len(axes)
    source = state.large.types[after.inputs[0]].shape
    return tuple(
        axes[k - lead] if k >= lead and source[k - lead] != 1 else new
        for k, new in enumerate(plain)
    )


def _concat(state: Comparison, before: Operator, after: Operator) -> Axes:
    kind = same_kind(before, after, kinds.Concat)
    parts = [state.axes[name] for name in after.inputs]
    axis = axis_of(kind.axis, len(parts[0]))
    result = [
        () if k == axis else state.unified(part[k] for part in parts) for k in range(len(parts[0]))
    ]
    along = [part[axis] for part in parts]
    if any(factor.varies for factor in _flat(along)):
        state.forbid_shifts(_flat(along), "concatenates along")
        # Only what is last may end with filling: in between it would be a gap.
        state.require_fixed(_flat(along[:-1]), "puts elements after the end of")
        if len(along[-1]) != 1:
            raise SizeObstacle("concatenates along a dimension that is joined with another one")
    result[axis] = (state.factor(*map(sum, zip(*map(extents_of, along), strict=True))),)
    return tuple(result)


def _slice(state: Comparison, before: Operator, after: Operator) -> Axes:
    a, b = kinds_of(before, after, kinds.Slice)
    axes = state.read(after)
    small, large = state.small.types[before.inputs[0]], state.large.types[after.inputs[0]]
    result: list[tuple[Factor, ...]] = []
    for k, factors in enumerate(axes):
        first, last = (range(*part) for part in (
            (a.starts[k], a.stops[k], a.steps[k]), (b.starts[k], b.stops[k], b.steps[k])
        ))  # fmt: skip
        if len(first) == small.shape[k] and len(last) == large.shape[k] and b.steps[k] == 1:
            result.append(factors)
            continue
        if any(factor.varies for factor in factors):
            state.forbid_shifts(factors, "takes a part of")
            same = first.start == last.start and first.step == last.step and first.step > 0
            if len(factors) != 1 or not same:
                raise SizeObstacle("takes a part of an open dimension that depends on its size")
        elif first != last:
            raise SizeObstacle("takes a part that depends on the sizes")
        result.append((state.factor(len(first), len(last)),))
    return _moved(state, after, tuple(result))


def _pad(state: Comparison, before: Operator, after: Operator) -> Axes:
    kind = same_kind(before, after, kinds.Pad)
    result: list[tuple[Factor, ...]] = []
    for factors, front, back in zip(state.read(after), kind.before, kind.after, strict=True):
        if not front and not back:
            result.append(factors)
            continue
        added = front + back
        if not any(factor.varies for factor in factors):
            size = extents_of(factors)[0] + added
            result.append((state.factor(size, size),))
            continue
        if len(factors) != 1 or (kind.mode != "constant" and back):
            raise SizeObstacle("pads the end of a dimension whose size is open")
        (factor,) = factors
        state.forbid_shifts(factors, "pads")
        if back:
            # What follows the smaller tensor is padding, so that the filling has its value.
            state.mask(0, factor, kind.value)
        result.append((state.factor(factor.small + added, factor.large + added),))
    return tuple(result)


def _gather(state: Comparison, before: Operator, after: Operator) -> Axes:
    kind = same_kind(before, after, kinds.Gather)
    data, indices = (state.axes[name] for name in after.inputs)
    axis = axis_of(kind.axis, len(data))
    if any(factor.varies for factor in data[axis]):
        _require_inside(state, before, after, data[axis])
    if after.inputs[0] in state.finite:
        state.finite.add(after.output)
    return (*data[:axis], *indices, *data[axis + 1 :])


def _require_inside(
    state: Comparison, before: Operator, after: Operator, along: Sequence[Factor]
) -> None:
    """Require that a gather selects fixed places of an open axis, all before its end."""
    state.forbid_shifts(along, "selects a part of")
    limit = state.limits.get(after.inputs[1])
    if len(along) == 1 and limit is not None and limit[0] <= along[0].small:
        return
    indices = state.large.constants.get(after.inputs[1])
    if indices is None or len(along) != 1:
        raise SizeObstacle("selects by computed indices from a dimension whose size is open")
    same = np.array_equal(indices, state.small.constants[before.inputs[1]])
    if not same or (indices.size and not 0 <= indices.min() <= indices.max() < along[0].small):
        raise SizeObstacle("selects places that depend on a size that is open")


def _resize(state: Comparison, before: Operator, after: Operator) -> Axes:
    kind, axes = same_kind(before, after, kinds.Resize), state.read(after)
    count = len(kind.sizes)
    state.require_fixed(_flat(axes[-count:]), "resizes")
    resized = tuple((state.factor(size, size),) for size in kind.sizes)
    return (*axes[:-count], *resized)


# -- elementwise ----------------------------------------------------------------------------------


def _elementwise(state: Comparison, before: Operator, after: Operator) -> Axes:
    same_kind(before, after, Kind)
    rank = max(len(state.axes[name]) for name in after.inputs)
    result: list[tuple[Factor, ...]] = []
    for k in range(-rank, 0):
        present = [
            state.axes[name][k]
            for name in after.inputs
            if len(state.axes[name]) >= -k and state.axes[name][k]
        ]
        # Along an axis of extent 1 at both sizes an input is repeated.
        result.append(state.unified(present) if present else ())
    axes = tuple(result)
    if len(after.inputs) == 1:
        _evaluated(state, after, axes)
        _bounded(state, after)
    if isinstance(after.kind, kinds.Dequantize):
        state.finite.add(after.output)
    return axes


def _bounded(state: Comparison, after: Operator) -> None:
    """Hand on that elements are indices of an open dimension to their casts."""
    kind, source = after.kind, after.inputs[0]
    dtype = state.large.types[after.output].dtype
    is_cast = isinstance(kind, kinds.Elementwise) and kind.expression == Input(0)
    if not is_cast or source not in state.limits or dtype == "bool" or not is_integer(dtype):
        return
    if state.limits[source][1] - 1 <= np.iinfo(dtype).max:
        state.limits[after.output] = state.limits[source]


def _evaluated(state: Comparison, after: Operator, axes: Axes) -> None:
    """Compute the filling of a function of one input from that of the input."""
    source = after.inputs[0]
    dtype = state.large.types[source].dtype
    for factor in _flat(axes):
        filling = state.fillings.get((source, factor.number))
        if filling is not None and dtype != "bfloat16":
            (value,) = after.kind.evaluate([np.full((1,), filling, dtype)])
            state.fillings[after.output, factor.number] = value.reshape(-1)[0].item()


def _quantization(state: Comparison, before: Operator, after: Operator) -> Axes:
    assert isinstance(after.kind, kinds.Quantize | kinds.Dequantize)
    axes = state.read(after)
    if len(after.kind.scale) > 1 or len(after.kind.zero_point) > 1:
        state.require_fixed(axes[axis_of(after.kind.axis, len(axes))], "has scales along")
        same_kind(before, after, Kind)
        if isinstance(after.kind, kinds.Dequantize):
            state.finite.add(after.output)
        return axes
    return _elementwise(state, before, after)


# -- reductions -----------------------------------------------------------------------------------


def _reduce(state: Comparison, before: Operator, after: Operator) -> Axes:
    kind, axes = same_kind(before, after, kinds.Reduce), state.read(after)
    dtype = state.large.types[after.inputs[0]].dtype
    reduced = {axis_of(axis, len(axes)) for axis in kind.axes}
    varying = [f for axis in sorted(reduced) for f in axes[axis] if f.varies]
    if varying:
        if dtype == "bool" or (kind.operation == "mean" and is_integer(dtype)):
            raise SizeObstacle("combines integers along a dimension whose size is open")
        for factor in varying:
            state.mask(0, factor, neutral_element(kind.operation.removeprefix("arg"), dtype))
        if kind.operation == "mean":
            for factor in varying:
                state.rescale(factor.small, factor.large)
    return tuple(
        () if axis in reduced else factors
        for axis, factors in enumerate(axes)
        if kind.keeps or axis not in reduced
    )


def _softmax(state: Comparison, before: Operator, after: Operator) -> Axes:
    kind, axes = same_kind(before, after, kinds.Softmax), state.read(after)
    for factor in axes[axis_of(kind.axis, len(axes))]:
        if factor.varies:
            state.mask(0, factor, -math.inf)
            if not kind.log:
                state.fillings[after.output, factor.number] = 0.0
    return axes


def _layer_norm(state: Comparison, before: Operator, after: Operator) -> Axes:
    kind, axes = same_kind(before, after, kinds.LayerNorm), state.read(after)
    state.require_fixed(_flat(axes[axis_of(kind.axis, len(axes)) :]), "normalizes along")
    return axes


def _pool(state: Comparison, before: Operator, after: Operator) -> Axes:
    axes, count = state.read(after), len(same_kind(before, after, kinds.Pool).window)
    state.require_fixed(_flat(axes[-count:]), "pools along")
    shape = state.large.types[after.output].shape
    return (*axes[:-count], *((state.factor(n, n),) for n in shape[-count:]))


# -- products -------------------------------------------------------------------------------------


def _product(state: Comparison, before: Operator, after: Operator) -> Axes:
    a, b = kinds_of(before, after, kinds.Product)
    small, large = a.computation, b.computation
    structure = replace(b, computation=small, shape=a.shape) == a
    if not structure or not _same_structure(small, large) or b.epilogue is not None:
        raise SizeObstacle("is another product at another size")
    along = _axis_factors(state, small, large, after)
    _contract(state, large, along, b.zero_points, after)
    store = large.statement.store.index
    stored: list[tuple[Factor, ...]] = []
    for index, size in zip(store, large.output.shape, strict=True):
        terms = index.terms
        is_axis = len(terms) == 1 and terms[0].coefficient == 1 and not index.constant
        if is_axis and terms[0].iterator in along:
            stored.append(along[terms[0].iterator])
            continue
        if any(f.varies for term in terms for f in along.get(term.iterator, ())):
            raise SizeObstacle("stores along a dimension whose size is open")
        stored.append((state.factor(size, size),) if size != 1 else ())
    return state.regrouped(tuple(stored), a.shape, b.shape)


def _same_structure(small: Computation, large: Computation) -> bool:
    """True if computations differ in extents only, and are one sum of products."""
    if len(large.statements) != 1 or small.statements != large.statements:
        return False
    axes = [(axis.name, axis.kind) for axis in small.axes]
    if axes != [(axis.name, axis.kind) for axis in large.axes]:
        return False
    operands = zip(small.operands, large.operands, strict=True)
    return all(replace(b, shape=a.shape) == a for a, b in operands)


def _axis_factors(
    state: Comparison, small: Computation, large: Computation, after: Operator
) -> dict[str, tuple[Factor, ...]]:
    """Return the factors of each axis of a product."""
    along: dict[str, tuple[Factor, ...]] = {}
    windows: list[tuple[int, Factor, str]] = []
    for slot, (a, b) in enumerate(zip(small.inputs, large.inputs, strict=True)):
        dims = state.regrouped(state.axes[after.inputs[slot]], a.shape, b.shape)
        for factors, index in zip(dims, large.access(b.name).index, strict=True):
            names = [term.iterator for term in index.terms]
            is_axis = len(names) == 1 and index.terms[0].coefficient == 1 and not index.constant
            name = names[0] if is_axis else ""
            if is_axis and (small.extents[name], large.extents[name]) == extents_of(factors):
                along[name] = state.unified([factors, along[name]]) if name in along else factors
                continue
            moving = [name for name in names if small.extents[name] != large.extents[name]]
            if not any(f.varies for f in factors):
                if moving:
                    raise SizeObstacle("reads a fixed dimension along an open one")
                continue
            if len(factors) != 1 or len(moving) != 1 or b.spread or not b.zero_outside:
                raise SizeObstacle("reads windows of a dimension whose size is open")
            windows.append((slot, factors[0], moving[0]))
    for slot, factor, name in windows:
        # Reads beyond the end are zero at the smaller size, and so is the filling.
        if large.axis(name).kind is not AxisKind.SPATIAL or name in along:
            raise SizeObstacle("sums windows of a dimension whose size is open")
        state.mask(slot, factor, 0)
        along[name] = (state.factor(small.extents[name], large.extents[name]),)
    for name, extent in large.extents.items():
        if small.extents[name] != extent and name not in along:
            raise SizeObstacle("has an extent that depends on the sizes")
    return along


def _contract(
    state: Comparison,
    large: Computation,
    along: Mapping[str, tuple[Factor, ...]],
    zero_points: tuple[int, int],
    after: Operator,
) -> None:
    """Mask the summed axes: one operand's filling is zero, and the other's finite."""
    for axis in large.axes:
        varying = [f for f in along.get(axis.name, ()) if f.varies]
        if axis.kind is AxisKind.SPATIAL or not varying:
            continue
        first, second = after.inputs[:2]
        for factor in varying:
            zeros = [state.fillings.get((name, factor.number)) == zero
                     for name, zero in zip((first, second), zero_points, strict=True)]  # fmt: skip
            zero = 1 if zeros[1] and not zeros[0] else 0
            state.mask(zero, factor, zero_points[zero])
            second_factor = 1 - zero
            name = after.inputs[second_factor]
            filling = state.fillings.get((name, factor.number))
            if name not in state.finite and not (filling is not None and math.isfinite(filling)):
                state.mask(second_factor, factor, 0)


_RULES: Mapping[type[Kind], Rule] = {
    **SPECIAL_RULES,
    Loop: loop_rule,
    kinds.Bitcast: _elementwise,
    kinds.Reshape: _reshape,
    kinds.Transpose: _transpose,
    kinds.Expand: _expand,
    kinds.Concat: _concat,
    kinds.Slice: _slice,
    kinds.Pad: _pad,
    kinds.Gather: _gather,
    kinds.Resize: _resize,
    kinds.Elementwise: _elementwise,
    kinds.Table: _elementwise,
    kinds.Quantize: _quantization,
    kinds.Dequantize: _quantization,
    kinds.Reduce: _reduce,
    kinds.Softmax: _softmax,
    kinds.LayerNorm: _layer_norm,
    kinds.Pool: _pool,
    kinds.Product: _product,
}
