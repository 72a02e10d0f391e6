"""Recurrent layers of ONNX.

Layout 0 has inputs [steps, batch, size] and results [steps, directions, batch, state]; layout 1 has
the batch first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from dataclasses import fields as dataclass_fields

import numpy as np

from cpembed.frontends.expressions import add, mul
from cpembed.frontends.loops import LoopBody
from cpembed.frontends.onnx.call import Call, Translation
from cpembed.frontends.onnx.operators.elementwise import ACTIVATIONS
from cpembed.frontends.onnx.operators.quantization import dynamic_product
from cpembed.frontends.recurrences import (
    Cell,
    Function,
    Recurrence,
    Step,
    gru_step,
    lstm_step,
    reader,
    rnn_step,
)
from cpembed.graph.kinds import Scalar


def _affine(x: Scalar, alpha: float, beta: float) -> Scalar:
    return add(mul(x, alpha), beta)


_ACTIVATIONS = {
    **{name.lower(): activation for name, activation in ACTIVATIONS.items()},
    "affine": (_affine, (1.0, 0.0)),
}
"""Activations by the format's names, with the defaults of their parameters alpha and beta."""


@dataclass(frozen=True, kw_only=True)
class _QuantizedCell(Cell):
    """Cell whose weights are integers, [size, gates * state] and [state, gates * state].

    Attributes
    ----------
    scales, zero_points : tuple of str
        Of the weights and the recurrent weights; a zero point may be missing.
    """

    call: Call
    scales: tuple[str, str]
    zero_points: tuple[str | None, str | None]

    def inside(self, loop: LoopBody) -> _QuantizedCell:
        cell = super().inside(loop)
        assert isinstance(cell, _QuantizedCell)
        scales = self.scales[0], loop.read(self.scales[1])
        zero_points = None, reader(loop)(self.zero_points[1])
        return replace(cell, scales=scales, zero_points=zero_points)

    def product_of_inputs(self, rows: str) -> str:
        weights = self.weights, self.scales[0], self.zero_points[0]
        return dynamic_product(self.call, rows, weights, self.bias)

    def product_of_state(self, state: str) -> str:
        weights = self.recurrent, self.scales[1], self.zero_points[1]
        return dynamic_product(self.call, state, weights, self.recurrent_bias)


@dataclass(frozen=True)
class Layer:
    """A recurrent operator: number of gates and states, default activations, and its step.

    A quantized one has weights of integers, and quantizes inputs and states by their ranges.
    """

    gates: int
    states: int
    activations: tuple[str, ...]
    step: Step
    is_quantized: bool = False

    def translate(self, call: Call) -> list[str]:
        """Emit all steps; return the states of all steps, and each state after the last one."""
        x, batch_first = call.input(0), call.flag("layout")
        if call.rank() != 3:
            call.reject(
                f"its input {list(call.shape(x))} has no axes of steps, batch and features: give "
                "the network inputs of other shapes (--shape)"
            )
        if batch_first:
            x = call.transposed(x, (1, 0, 2))
        steps, batch, size = call.shape(x)
        if call.flag("input_forget"):
            call.reject("coupled input and forget gates are not read: use separate ones")
        directions, state = call.type(1).shape[0], call.type(2).shape[1 if self.is_quantized else 2]
        order = call.text("direction", "forward", ("forward", "reverse", "bidirectional"))
        if directions != (2 if order == "bidirectional" else 1):
            call.reject(f"direction {order} with weights of {directions} directions")
        if call.integer("hidden_size", state) != state:
            call.reject("hidden_size is not that of the recurrent weights")
        functions = self._functions(call, directions)
        lengths = _lengths(call, steps)
        rows = call.reshaped(x, (steps * batch, size))
        sequences: list[str] = []
        last: list[list[str]] = []
        for k in range(directions):
            cell = self._cell(call, k, functions[k])
            # The second direction of a bidirectional layer runs backwards.
            reverse = order == "reverse" or k == 1
            states = [_initial(call, state, number, k, batch) for number in range(self.states)]
            sums = cell.product_of_inputs(rows)
            sums = call.reshaped(sums, (steps, batch, call.shape(sums)[-1]))
            loop = Recurrence(
                name=call.place_name if directions == 1 else f"{call.place_name}/{k}",
                cell=cell,
                step=self.step,
                sums=sums,
                reverse=reverse,
                lengths=lengths,
                is_collected=call.is_read[0],
            )
            sequence, states = loop.emit(states)
            if sequence is not None:
                sequences.append(call.reshaped(sequence, (steps, 1, batch, state)))
            last.append(states)
        outputs = [call.joined(sequences, 1) if sequences else ""]
        for k in range(self.states):
            parts = [call.reshaped(states[k], (1, batch, state)) for states in last]
            outputs.append(call.joined(parts, 0))
        if batch_first:
            # Layout 1 has the batch first in the results as well.
            orders = [(2, 0, 1, 3), *[(1, 0, 2)] * self.states]
            outputs = [
                call.transposed(t, o) if t else t for t, o in zip(outputs, orders, strict=True)
            ]
        return outputs

    def _functions(self, call: Call, directions: int) -> list[list[Function]]:
        """Return the activations of the gates of each direction."""
        names = call.attribute("activations") or self.activations * directions
        count = len(self.activations)
        if len(names) != count * directions:
            call.reject(f"{len(names)} activations of {count * directions}")
        parameters = [[*(call.attribute(f"activation_{p}") or ())] for p in ("alpha", "beta")]
        functions: list[Function] = []
        for name in names:
            if str(name).lower() not in _ACTIVATIONS:
                call.reject(f"activation {name} is not known: use Sigmoid, Tanh or Relu")
            function, defaults = _ACTIVATIONS[str(name).lower()]
            # Each list holds the parameters of those activations that have one.
            pairs = zip(parameters, defaults, strict=False)
            bound = [values.pop(0) if values else default for values, default in pairs]
            functions.append(_bound(function, bound))
        return [functions[k * count : (k + 1) * count] for k in range(directions)]

    def _cell(self, call: Call, k: int, functions: Sequence[Function]) -> Cell:
        weights, recurrent = (_direction(call, call.input(place), k) for place in (1, 2))
        state = call.shape(recurrent)[0 if self.is_quantized else 1]
        biases: list[str | None] = [None, None]
        if (bias := call.optional(3)) is not None:
            both, n = _direction(call, bias, k), self.gates * state
            # One input holds the bias of the inputs, then that of the state.
            biases = [call.part(both, 0, 0, n), call.part(both, 0, n, 2 * n)]
        peepholes = call.optional(7) if self.step is lstm_step else None
        cell = Cell(
            call=call,
            state=state,
            weights=weights,
            recurrent=recurrent,
            bias=biases[0],
            recurrent_bias=biases[1],
            functions=functions,
            limit=call.attribute("clip"),
            peepholes=None if peepholes is None else _direction(call, peepholes, k),
            linear_before_reset=self.step is gru_step and call.flag("linear_before_reset"),
        )
        if not self.is_quantized:
            return cell
        scales = [_direction(call, call.input(place), k) for place in (8, 10)]
        zeros = [call.optional(place) for place in (9, 11)]
        zeros = [None if zero is None else _direction(call, zero, k) for zero in zeros]
        fields = {each.name: getattr(cell, each.name) for each in dataclass_fields(cell)}
        return _QuantizedCell(
            **fields, scales=(scales[0], scales[1]), zero_points=(zeros[0], zeros[1])
        )


def _bound(function: Callable[..., Scalar], parameters: Sequence[float]) -> Function:
    return lambda x: function(x, *parameters)


def _lengths(call: Call, steps: int) -> str | None:
    """Return the lengths of the sequences as a column; None if all are as long as the input."""
    lengths = call.optional(4)
    if lengths is None:
        return None
    value = call.builder.value(lengths)
    if value is not None and (value == steps).all():
        return None
    return call.cast(call.reshaped(lengths, (call.shape(lengths)[0], 1)), "int32")


def _direction(call: Call, tensor: str, k: int) -> str:
    """Slice a direction from a parameter [directions, …]."""
    return call.reshaped(call.part(tensor, 0, k, k + 1), call.shape(tensor)[1:])


def _initial(call: Call, state: int, k: int, direction: int, batch: int) -> str:
    """Return the initial ``k``-th state of a direction, zeros by default."""
    initial = call.optional(5 + k)
    if initial is None:
        return call.tensor(np.zeros((batch, state)), call.type().dtype)
    if call.flag("layout"):
        initial = call.transposed(initial, (1, 0, 2))
    return _direction(call, initial, direction)


TABLE: dict[str, Translation] = {
    "LSTM": Layer(4, 2, ("Sigmoid", "Tanh", "Tanh"), lstm_step).translate,
    "GRU": Layer(3, 1, ("Sigmoid", "Tanh"), gru_step).translate,
    "com.microsoft.DynamicQuantizeLSTM": Layer(
        4, 2, ("Sigmoid", "Tanh", "Tanh"), lstm_step, is_quantized=True
    ).translate,
    "RNN": Layer(1, 1, ("Tanh",), rnn_step).translate,
}
