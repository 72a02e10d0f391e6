"""Recurrent layers of a fixed length, unrolled.

One product takes all inputs; then every step has a product of the state and elementwise operators.
Layout 0 has inputs [steps, batch, size] and results [steps, directions, batch, state]; layout 1 has
the batch first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from cpembed.frontends import expressions as e
from cpembed.frontends.expressions import X, Y, Z, add, mul, sub
from cpembed.frontends.onnx.call import Call, Translation
from cpembed.graph.kinds import Input, Scalar

Function = Callable[[Scalar], Scalar]


def _affine(x: Scalar, alpha: float, beta: float) -> Scalar:
    return add(mul(x, alpha), beta)


_ACTIVATIONS: dict[str, tuple[Callable[..., Scalar], tuple[float, ...]]] = {
    "sigmoid": (e.function("sigmoid"), ()),
    "tanh": (e.function("tanh"), ()),
    "relu": (e.relu, ()),
    "hardsigmoid": (e.hard_sigmoid, (0.2, 0.5)),
    "affine": (_affine, (1.0, 0.0)),
    "leakyrelu": (e.leaky_relu, (0.01,)),
    "elu": (e.elu, (1.0,)),
    "softsign": (e.softsign, ()),
    "softplus": (e.softplus, ()),
}
"""Activations by the format's names, with the defaults of their parameters alpha and beta."""

_LONGEST = 4096
"""Maximum number of steps that are unrolled."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One direction of a layer.

    Attributes
    ----------
    state : int
        Size of the state.
    weights, recurrent : str
        Tensors [gates * state, size] and [gates * state, state].
    bias, recurrent_bias : str, optional
        Tensors [gates * state].
    functions : sequence of callable
        Activations of the gates.
    limit : float, optional
        Absolute limit of the gates' sums.
    peepholes : str, optional
        Tensor [3 * state]: weights of the cell state in the input, output and forget gate.
    """

    call: Call
    state: int
    weights: str
    recurrent: str
    bias: str | None
    recurrent_bias: str | None
    functions: Sequence[Function]
    limit: float | None
    peepholes: str | None

    def activate(self, k: int, x: Scalar) -> Scalar:
        """Apply the ``k``-th function to the clipped sum of a gate."""
        x = x if self.limit is None else e.clip(x, -self.limit, self.limit)
        return self.functions[k](x)

    def gates(self, sums: str, count: int) -> list[str]:
        """Split rows [rows, gates * state] into the first ``count`` gates."""
        return [self.block(sums, 1, k) for k in range(count)]

    def block(self, tensor: str, axis: int, first: int, count: int = 1) -> str:
        """Slice ``count`` parts of the state's size along an axis."""
        n = self.state
        return self.call.part(tensor, axis, first * n, (first + count) * n)

    def product(self, rows: str, weights: str, bias: str | None) -> str:
        """Multiply rows [rows, size] by the transposed weights and add the bias."""
        sums = self.call.matmul(rows, weights, transposed=True)
        return sums if bias is None else self.call.elementwise(add(X, Y), sums, bias)

    def product_of_state(self, state: str) -> str:
        return self.product(state, self.recurrent, self.recurrent_bias)

    def with_peephole(self, gate: str, k: int, c: str) -> str:
        """Add the cell state times the peephole weights of a gate, if there are any.

        ``k`` is 0 for the input, 1 for the output and 2 for the forget gate.
        """
        if self.peepholes is None:
            return gate
        factor = self.block(self.peepholes, 0, k)
        return self.call.elementwise(add(X, mul(Y, Z)), gate, factor, c)


Step = Callable[[Cell, str, Sequence[str]], tuple[str, ...]]
"""One step: the new states from a cell, its product of the inputs, and the states."""


def _lstm_step(cell: Cell, x: str, states: Sequence[str]) -> tuple[str, ...]:
    """Emit a step of an LSTM, whose gates are in the order input, output, forget, cell."""
    call, (h, c) = cell.call, states
    sums = call.elementwise(add(X, Y), x, cell.product_of_state(h))
    i, o, f, g = cell.gates(sums, 4)
    i, f = cell.with_peephole(i, 0, c), cell.with_peephole(f, 2, c)
    added = mul(cell.activate(0, Z), cell.activate(1, Input(3)))
    c = call.elementwise(add(mul(cell.activate(0, X), Y), added), f, c, i, g)
    o = cell.with_peephole(o, 1, c)
    h = call.elementwise(mul(cell.activate(0, X), cell.functions[2](Y)), o, c)
    return h, c


def _gru_step(cell: Cell, x: str, states: Sequence[str]) -> tuple[str, ...]:
    """Emit a step of a GRU, whose gates are in the order update, reset, hidden."""
    call, h = cell.call, states[0]
    xz, xr, xh = cell.gates(x, 3)
    # The reset gate scales either what the product makes of the state, or the state before it: then
    # the hidden gate needs a product of its own.
    if call.flag("linear_before_reset"):
        hz, hr, hh = cell.gates(cell.product_of_state(h), 3)
        r = call.elementwise(cell.activate(0, add(X, Y)), xr, hr)
        new = call.elementwise(cell.activate(1, add(X, mul(Y, Z))), xh, r, hh)
    else:
        update_reset = cell.block(cell.recurrent, 0, 0, 2)
        rest = cell.block(cell.recurrent, 0, 2)
        hz, hr = cell.gates(cell.product(h, update_reset, None), 2)
        bias = cell.recurrent_bias or call.tensor(np.zeros(3 * cell.state), "float32")
        bz, br, bh = (cell.block(bias, 0, k) for k in range(3))
        hz = call.elementwise(add(X, Y), hz, bz)
        r = call.elementwise(cell.activate(0, add(X, add(Y, Z))), xr, hr, br)
        hidden = cell.product(call.elementwise(mul(X, Y), r, h), rest, None)
        new = call.elementwise(cell.activate(1, add(X, add(Y, Z))), xh, hidden, bh)
    z = call.elementwise(cell.activate(0, add(X, Y)), xz, hz)
    return (call.elementwise(add(mul(sub(1.0, X), Y), mul(X, Z)), z, new, h),)


def _rnn_step(cell: Cell, x: str, states: Sequence[str]) -> tuple[str, ...]:
    """Emit a step of a plain recurrent layer."""
    total = cell.activate(0, add(X, Y))
    return (cell.call.elementwise(total, x, cell.product_of_state(states[0])),)


@dataclass(frozen=True)
class Layer:
    """A recurrent operator: number of gates and states, default activations, and its step."""

    gates: int
    states: int
    activations: tuple[str, ...]
    step: Step

    def translate(self, call: Call) -> list[str]:
        """Emit all steps; return the states of all steps, and each state after the last one."""
        x, batch_first = call.input(0), call.flag("layout")
        if batch_first:
            x = call.transposed(x, (1, 0, 2))
        steps, batch, size = call.shape(x)
        _check_steps(call, steps)
        directions, state = call.type(1).shape[0], call.type(2).shape[2]
        order = call.text("direction", "forward", ("forward", "reverse", "bidirectional"))
        if directions != (2 if order == "bidirectional" else 1):
            call.reject(f"direction {order} with weights of {directions} directions")
        if call.integer("hidden_size", state) != state:
            call.reject("hidden_size is not that of the recurrent weights")
        functions = self._functions(call, directions)
        rows = call.reshaped(x, (steps * batch, size))
        sequences: list[str] = []
        last: list[list[str]] = []
        for k in range(directions):
            cell = self._cell(call, k, functions[k])
            # The second direction of a bidirectional layer runs backwards.
            reverse = order == "reverse" or k == 1
            results, states = self._unrolled(cell, rows, (steps, batch), k, reverse)
            parts = [call.reshaped(tensor, (1, 1, batch, state)) for tensor in results]
            sequences.append(call.joined(parts, 0))
            last.append(states)
        outputs = [call.joined(sequences, 1)]
        for k in range(self.states):
            parts = [call.reshaped(states[k], (1, batch, state)) for states in last]
            outputs.append(call.joined(parts, 0))
        if batch_first:
            # Layout 1 has the batch first in the results as well.
            orders = [(2, 0, 1, 3), *[(1, 0, 2)] * self.states]
            outputs = [call.transposed(t, o) for t, o in zip(outputs, orders, strict=True)]
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
        state = call.shape(recurrent)[1]
        biases: list[str | None] = [None, None]
        if (bias := call.optional(3)) is not None:
            both, n = _direction(call, bias, k), self.gates * state
            # One input holds the bias of the inputs, then that of the state.
            biases = [call.part(both, 0, 0, n), call.part(both, 0, n, 2 * n)]
        peepholes = call.optional(7) if self.step is _lstm_step else None
        return Cell(
            call=call,
            state=state,
            weights=weights,
            recurrent=recurrent,
            bias=biases[0],
            recurrent_bias=biases[1],
            functions=functions,
            limit=call.attribute("clip"),
            peepholes=None if peepholes is None else _direction(call, peepholes, k),
        )

    def _unrolled(
        self, cell: Cell, rows: str, sizes: tuple[int, int], direction: int, reverse: bool
    ) -> tuple[list[str], list[str]]:
        """Return the state after each step, in the order of the inputs, and the last states."""
        call, (steps, batch) = cell.call, sizes
        # All steps' inputs are known: one large product is far faster than one in each step.
        sums = cell.product(rows, cell.weights, cell.bias)
        states = [_initial(cell, k, direction, batch) for k in range(self.states)]
        results = [""] * steps
        for step in reversed(range(steps)) if reverse else range(steps):
            x = call.part(sums, 0, step * batch, (step + 1) * batch)
            states = list(self.step(cell, x, states))
            results[step] = states[0]
        return results, states


def _bound(function: Callable[..., Scalar], parameters: Sequence[float]) -> Function:
    return lambda x: function(x, *parameters)


def _check_steps(call: Call, steps: int) -> None:
    lengths = call.optional_constant(4, "the lengths of the sequences")
    if lengths is not None and (lengths != steps).any():
        call.reject(f"sequences shorter than the {steps} steps are not read: leave the lengths out")
    if steps > _LONGEST:
        call.reject(f"{steps} steps would be written out: give at most {_LONGEST}")
    if steps < 1:
        call.reject("a sequence of no steps has no last state: give at least one")
    if call.flag("input_forget"):
        call.reject("coupled input and forget gates are not read: use separate ones")


def _direction(call: Call, tensor: str, k: int) -> str:
    """Slice a direction from a parameter [directions, …]."""
    return call.reshaped(call.part(tensor, 0, k, k + 1), call.shape(tensor)[1:])


def _initial(cell: Cell, k: int, direction: int, batch: int) -> str:
    """Return the initial ``k``-th state, zeros by default."""
    call, initial = cell.call, cell.call.optional(5 + k)
    if initial is None:
        return call.tensor(np.zeros((batch, cell.state)), call.type().dtype)
    if call.flag("layout"):
        initial = call.transposed(initial, (1, 0, 2))
    return _direction(call, initial, direction)


TABLE: dict[str, Translation] = {
    "LSTM": Layer(4, 2, ("Sigmoid", "Tanh", "Tanh"), _lstm_step).translate,
    "GRU": Layer(3, 1, ("Sigmoid", "Tanh"), _gru_step).translate,
    "RNN": Layer(1, 1, ("Tanh",), _rnn_step).translate,
}
