"""Recurrent layers of PyTorch: stacks of layers, each a loop for each direction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cpembed.frontends import expressions as e
from cpembed.frontends.recurrences import (
    Cell,
    Function,
    Recurrence,
    Step,
    gru_step,
    lstm_step,
    rnn_step,
)
from cpembed.frontends.torch.call import Call, Handler, Results, table

_GATES: dict[Step, tuple[int, ...]] = {
    lstm_step: (0, 3, 1, 2),
    gru_step: (1, 0, 2),
    rnn_step: (0,),
}
"""Gates of PyTorch in the order of the steps, which is that of ONNX."""


def _layers(call: Call, step: Step, functions: Sequence[Function]) -> Results:
    """Emit a stack of layers; return the last one's results, and the final states of all."""
    x: str = call["input"]
    states: Any = call["hx"]
    initial: list[str] = [states] if isinstance(states, str) else list(states)
    drops = call["dropout"]
    if call["train"] and drops:
        call.reject("its dropout is that of training: export the model after eval()")
    if call["batch_first"]:
        x = call.transposed(x, (1, 0, 2))
    directions, layers = 2 if call["bidirectional"] else 1, call["num_layers"]
    parameters: list[str] = list(call["params"])
    count, rest = divmod(len(parameters), layers * directions)
    if rest or count != (4 if call["has_biases"] else 2):
        call.reject("its states are projected, which is not known: leave proj_size out")
    finals: list[list[str]] = [[] for _ in initial]
    for layer in range(layers):
        sequences: list[str] = []
        for direction in range(directions):
            number = layer * directions + direction
            cell = _cell(call, parameters[count * number : count * (number + 1)], step, functions)
            begun = [_state(call, tensor, number) for tensor in initial]
            name = f"{call.place}/{number}"
            sequence, ends = _recurrence(name, cell, step, x, direction == 1).emit(begun)
            assert sequence is not None
            sequences.append(sequence)
            for collected, end in zip(finals, ends, strict=True):
                collected.append(call.reshaped(end, (1, *call.shape(end))))
        x = call.joined(sequences, 2)
    if call["batch_first"]:
        x = call.transposed(x, (1, 0, 2))
    return (x, *(call.joined(tensors, 0) for tensors in finals))


def _cell(call: Call, parameters: Sequence[str], step: Step, functions: Sequence[Function]) -> Cell:
    ordered = [_ordered(call, tensor, _GATES[step]) for tensor in parameters]
    biases = ordered[2:] or [None, None]
    return Cell(
        call=call,
        state=call.shape(parameters[1])[1],
        weights=ordered[0],
        recurrent=ordered[1],
        bias=biases[0],
        recurrent_bias=biases[1],
        functions=functions,
        limit=None,
        peepholes=None,
        linear_before_reset=True,
    )


def _ordered(call: Call, parameter: str, order: Sequence[int]) -> str:
    """Reorder the gates of a parameter."""
    size = call.shape(parameter)[0] // len(order)
    parts = [call.part(parameter, 0, k * size, (k + 1) * size) for k in order]
    return call.joined(parts, 0)


def _state(call: Call, tensor: str, number: int) -> str:
    return call.reshaped(call.part(tensor, 0, number, number + 1), call.shape(tensor)[1:])


def _recurrence(name: str, cell: Cell, step: Step, x: str, reverse: bool) -> Recurrence:
    call = cell.call
    steps, batch, size = call.shape(x)
    sums = cell.product_of_inputs(call.reshaped(x, (steps * batch, size)))
    sums = call.reshaped(sums, (steps, batch, call.shape(sums)[-1]))
    return Recurrence(name, cell, step, sums, reverse)


def _handler(step: Step, *functions: Function) -> Handler:
    return lambda call: _layers(call, step, functions)


_SIGMOID, _TANH = e.function("sigmoid"), e.function("tanh")

HANDLERS: dict[str, Handler] = table(
    {
        "lstm.input": _handler(lstm_step, _SIGMOID, _TANH, _TANH),
        "gru.input": _handler(gru_step, _SIGMOID, _TANH),
        "rnn_tanh.input": _handler(rnn_step, _TANH),
        "rnn_relu.input": _handler(rnn_step, e.relu),
    }
)
"""Handlers of recurrent layers by their operators."""
