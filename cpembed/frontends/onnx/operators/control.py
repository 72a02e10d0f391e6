"""Loops, scans and branches.

A loop becomes one operator with the body's graph inside. A branch whose condition is computed is a
loop of at most one step. Bodies whose tensors change their types from step to step have no such
graph: they are written out, if the number of steps is constant and small.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from cpembed.errors import CpembedError, ModelError
from cpembed.frontends.loops import LoopBody, branched
from cpembed.frontends.onnx.call import Call, Translation
from cpembed.frontends.onnx.model import Body
from cpembed.graph.graph import Array, needed_operators
from cpembed.graph.kinds import Reshape
from cpembed.graph.kinds.base import axis_of

_MOST_STEPS, _MOST_NODES = 64, 2048
"""Maximum number of steps, and of nodes in all steps, of a loop that is written out."""

_LARGEST_COUNT = 1 << 62
"""Number of steps that stands for any number: exporters write the largest integer."""


def _body(call: Call, name: str) -> Body:
    body = call.attribute(name)
    if not isinstance(body, Body):
        call.reject(f"it has no {name}: the file is damaged")
    return body


# -- branches -------------------------------------------------------------------------------------


def _if(call: Call) -> Sequence[str]:
    """Translate the branch that a constant condition takes, or else both branches."""
    condition = call.builder.value(call.input())
    if condition is not None:
        return call.run(_body(call, "then_branch" if condition.reshape(-1)[0] else "else_branch"))
    condition = call.reshaped(call.cast(call.input(), "bool"), ())

    def branch(name: str) -> Callable[[LoopBody], Sequence[str]]:
        return lambda loop: call.run_loop(_body(call, name), loop, ())

    bodies = [branch("then_branch"), branch("else_branch")]
    try:
        return branched(call.builder, call.place_name, condition, bodies)
    except CpembedError as error:
        # The branch that is never taken may not even fit the shapes of the inputs.
        deciding = _inputs_before(call, condition)
        if not deciding:
            raise
        raise ModelError(
            f"{error}; the condition of {call.node} depends on {', '.join(deciding)}: with --set "
            f"{deciding[0]}=VALUE one branch is left"
        ) from error


def _inputs_before(call: Call, tensor: str) -> list[str]:
    """Return the inputs of the network from which a tensor is computed."""
    operators = needed_operators(call.builder.operators, (tensor,))
    read = {name for operator in operators for name in operator.inputs} | {tensor}
    return [name for name in call.builder.inputs if name in read]


# -- loops ----------------------------------------------------------------------------------------


def _loop(call: Call) -> Sequence[str]:
    """Translate a loop with states and results that are collected from all steps."""
    body, states = _body(call, "body"), call.all_inputs_from(2)
    count, condition = call.optional(0), call.optional(1)
    trips = None if count is None else call.builder.value(count)
    steps = None if trips is None else max(0, int(trips.reshape(-1)[0]))
    steps = None if steps is not None and steps >= _LARGEST_COUNT else steps
    begins = None if condition is None else call.builder.value(condition)
    if begins is not None:
        steps, condition = (steps if begins.reshape(-1)[0] else 0), None
    limit = count if count is not None and trips is None else None
    try:
        return _real_loop(call, body, states, (steps, limit, condition))
    except CpembedError as error:
        if limit is not None or condition is not None or steps is None:
            raise
        if steps > _MOST_STEPS or steps * len(body.nodes) > _MOST_NODES:
            raise
        try:
            return _written_out(call, body, states, steps)
        except CpembedError as inner:
            # The second attempt may fail for another reason, which is the nearer one.
            raise ModelError(f"{error}; written out: {inner}") from error


def _real_loop(
    call: Call,
    body: Body,
    initial: Sequence[str],
    control: tuple[int | None, str | None, str | None],
) -> Sequence[str]:
    """Emit a loop; ``control`` is the number of steps, its tensor, and the first condition."""
    steps, limit, condition = control
    if limit is not None:
        limit = call.reshaped(call.cast(limit, "int64"), ())
    if condition is not None:
        condition = call.reshaped(call.cast(condition, "bool"), ())
    loop = LoopBody(call.builder, call.place_name, steps, limit=limit, condition=condition)
    states = [loop.state(tensor) for tensor in initial]
    # A step is executed only if the condition is true, so the body reads a constant.
    goes_on = loop.builder.constant(np.asarray(True), "condition")
    outputs = call.run_loop(body, loop, [loop.number(), goes_on, *states])
    again, after, results = outputs[0], outputs[1 : len(initial) + 1], outputs[len(initial) + 1 :]
    again_value = loop.builder.value(again)
    if again_value is None and condition is None and limit is None:
        counted = counted_steps(loop, again, initial, states, after)
        if counted is not None:
            loop.steps = counted if steps is None else min(steps, counted)
            again_value = np.asarray(True)
    if again_value is not None:
        if not again_value.reshape(-1)[0]:
            loop.steps = 1 if steps is None else min(steps, 1)
        elif loop.steps is None and limit is None:
            call.reject(
                "its condition is always true, and it has no number of steps: it never ends"
            )
    if again_value is None or condition is not None:
        if condition is None:
            loop.condition = call.tensor(np.asarray(True))
        again = _scalar(loop, again)
    else:
        again = None
    finals, collected = loop.emit(after, [(tensor, False) for tensor in results], again)
    return [*finals, *collected]


def _scalar(loop: LoopBody, tensor: str) -> str:
    """Reshape a condition of one element to none."""
    if not loop.builder.types[tensor].shape:
        return tensor
    return loop.builder.add(Reshape(()), [tensor], "condition")


def _written_out(call: Call, body: Body, initial: Sequence[str], steps: int) -> Sequence[str]:
    """Emit the steps of a loop one after the other, with constant numbers."""
    states = [*initial]
    collected: list[list[str]] = []
    for number in range(steps):
        inputs = [call.tensor(number, "int64"), call.tensor(np.asarray(True)), *states]
        outputs = call.run_unrolled(body, inputs)
        states, parts = [*outputs[1 : len(states) + 1]], outputs[len(states) + 1 :]
        collected.append([call.reshaped(t, (1, *call.shape(t))) for t in parts])
        goes_on = call.builder.value(outputs[0])
        if goes_on is None:
            call.reject("its condition is computed while the network runs")
        if not goes_on.reshape(-1)[0]:
            break
    if not collected and len(body.outputs) > len(states) + 1:
        call.reject("a loop of no steps has results of no known shape")
    return [*states, *(call.joined(parts, 0) for parts in zip(*collected, strict=True))]


# -- scans ----------------------------------------------------------------------------------------


def _scan(call: Call) -> Sequence[str]:
    """Translate a loop over slices of tensors."""
    if call.version < 9:
        call.reject("scans of version 8, over batches of sequences, are not read: use version 9")
    body, inputs = _body(call, "body"), call.all_inputs()
    scans = call.integer("num_scan_inputs", 0)
    initial, scanned = inputs[: len(inputs) - scans], inputs[len(inputs) - scans :]
    results = len(body.outputs) - len(initial)
    axes = call.list_of("scan_input_axes", (0,) * scans)
    backwards = call.list_of("scan_input_directions", (0,) * scans)
    result_axes = call.list_of("scan_output_axes", (0,) * results)
    result_backwards = call.list_of("scan_output_directions", (0,) * results)
    counts = (len(axes), len(backwards), len(result_axes), len(result_backwards))
    if not scans or counts != (scans, scans, results, results):
        call.reject("it has axes or directions for other inputs than it scans: the file is damaged")
    first = [
        call.moved(tensor, axis_of(axis, len(call.shape(tensor))), 0)
        for tensor, axis in zip(scanned, axes, strict=True)
    ]
    lengths = {call.shape(tensor)[0] for tensor in first}
    if len(lengths) != 1:
        call.reject(f"it scans tensors of {sorted(lengths)} steps: give equal ones")
    loop = LoopBody(call.builder, call.place_name, lengths.pop())
    states = [loop.state(tensor) for tensor in initial]
    slices = [loop.slice(t, bool(b)) for t, b in zip(first, backwards, strict=True)]
    outputs = call.run_loop(body, loop, [*states, *slices])
    parts = zip(outputs[len(states) :], map(bool, result_backwards), strict=True)
    finals, collected = loop.emit(outputs[: len(states)], [*parts])
    return [
        *finals,
        *(
            call.moved(tensor, 0, axis_of(axis, len(call.shape(tensor))))
            for tensor, axis in zip(collected, result_axes, strict=True)
        ),
    ]


TABLE: dict[str, Translation] = {"If": _if, "Loop": _loop, "Scan": _scan}


_MOST_COUNTED, _MOST_ELEMENTS = 1 << 14, 1 << 10
"""Maximum number of steps that are counted, and of elements of a tensor that decides about them."""


def counted_steps(
    loop: LoopBody, again: str, initial: Sequence[str], states: Sequence[str], after: Sequence[str]
) -> int | None:
    """Return the number of steps of a loop whose first step runs; None if it is not constant.

    Parameters
    ----------
    loop : LoopBody
        Loop whose body is written.
    again : str
        Condition of the next step, a tensor of the body.
    initial : sequence of str
        Initial states, tensors of the outer graph.
    states, after : sequence of str
        States before and after a step, tensors of the body.
    """
    builder = loop.builder
    # States that the condition depends on: their values, and what they are after a step.
    values: dict[str, Array] = {}
    updates: dict[str, str] = {}
    while True:
        results = (again, *updates.values())
        operators = needed_operators(builder.operators, results)
        written = {name for operator in operators for name in operator.outputs}
        read = {name for operator in operators for name in operator.inputs} | {*results}
        pending = read - written - {*updates, *builder.constants, loop.number()}
        if not pending:
            break
        for name in pending:
            first = loop.outer.value(initial[states.index(name)]) if name in states else None
            if first is None or builder.types[name].elements > _MOST_ELEMENTS:
                return None
            values[name] = np.asarray(first)
            updates[name] = after[states.index(name)]
    if any(builder.types[n].elements > _MOST_ELEMENTS for o in operators for n in o.outputs):
        return None
    for step in range(_MOST_COUNTED):
        computed = {**builder.constants, **values, loop.number(): np.asarray(step, np.int64)}
        for operator in operators:
            outputs = operator.kind.evaluate([computed[name] for name in operator.inputs])
            computed |= zip(operator.outputs, outputs, strict=True)
        if not np.asarray(computed[again]).reshape(-1)[0]:
            return step + 1
        values = {name: computed[update] for name, update in updates.items()}
    return None
