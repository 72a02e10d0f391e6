"""Rule for open sizes of loops, for :mod:`cpembed.graph.size_relation`.

Along a dimension that a loop runs along, the larger graph executes fewer steps. Everything else
that is open in a loop is compared in its body, in which nothing is known of the states but their
axes: these are the same before and after each step.
"""

from __future__ import annotations

from collections.abc import Sequence

from cpembed.graph.graph import Operator
from cpembed.graph.loop import Loop
from cpembed.graph.size_relation import Axes, Comparison, Factor, SizeObstacle


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
    small, large = before.kind, after.kind
    assert isinstance(small, Loop)
    assert isinstance(large, Loop)
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
        if not tensor.dtype.startswith(("float", "bfloat")):
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
