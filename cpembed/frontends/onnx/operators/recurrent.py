"""Recurrent layers of a fixed length, written out step by step: the product of all inputs at once,
then in every step a product of the state, and elementwise operators.

Layout 0 has inputs [steps, batch, size] and results [steps, directions, batch, state]; layout 1 has
the batch first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from cpembed.frontends import expressions as e
from cpembed.frontends.convolutions import matmul as product
from cpembed.frontends.expressions import X, Y, Z, add, apply, mul, sub
from cpembed.frontends.onnx.site import Site, Translation
from cpembed.graph.kinds import Concat, Input, Scalar


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


_ACTIVATIONS: dict[str, Callable[[Scalar, float | None, float | None], Scalar]] = {
    "sigmoid": lambda x, a, b: apply("sigmoid", x),
    "tanh": lambda x, a, b: apply("tanh", x),
    "relu": lambda x, a, b: e.relu(x),
    "hardsigmoid": lambda x, a, b: e.hard_sigmoid(x, _or(a, 0.2), _or(b, 0.5)),
    "affine": lambda x, a, b: add(mul(x, _or(a, 1.0)), _or(b, 0.0)),
    "leakyrelu": lambda x, a, b: e.leaky_relu(x, _or(a, 0.01)),
    "elu": lambda x, a, b: e.elu(x, _or(a, 1.0)),
    "softsign": lambda x, a, b: e.softsign(x),
    "softplus": lambda x, a, b: e.softplus(x),
}  # fmt: skip
"""By the format's names, with the parameters alpha and beta that some have."""

Function = Callable[[Scalar], Scalar]


@dataclass(frozen=True)
class Cell:
    """A direction of a layer. ``weights`` [gates * state, size] and ``recurrent`` [gates * state,
    state], ``bias`` of each (None without), the functions of its gates and their limit."""

    site: Site
    state: int
    weights: str
    recurrent: str
    bias: str | None
    recurrent_bias: str | None
    functions: Sequence[Function]
    limit: float | None
    peepholes: str | None = None

    def act(self, k: int, x: Scalar) -> Scalar:
        """Of a gate's sum, limited, the ``k``-th function."""
        x = x if self.limit is None else e.clip(x, -self.limit, self.limit)
        return self.functions[k](x)

    def gates(self, sums: str, parts: Sequence[int]) -> list[str]:
        """The parts of a row that belong to each gate."""
        h = self.state
        return [self.site.part(sums, 1, k * h, (k + 1) * h) for k in parts]

    def of_inputs(self, rows: str) -> str:
        """The product of inputs [rows, size] with the weights."""
        sums = product(self.site, rows, self.weights, transposed=True)
        return sums if self.bias is None else self.site.elementwise(add(X, Y), sums, self.bias)

    def of_state(self, h: str) -> str:
        sums = product(self.site, h, self.recurrent, transposed=True)
        if self.recurrent_bias is None:
            return sums
        return self.site.elementwise(add(X, Y), sums, self.recurrent_bias)

    def seeing(self, gate: str, k: int, c: str) -> str:
        """A gate that sees the cell through the ``k``-th part of the peepholes, if there are any:
        of the input, the output and the forget gate."""
        if self.peepholes is None:
            return gate
        factor = self.site.part(self.peepholes, 0, k * self.state, (k + 1) * self.state)
        return self.site.elementwise(add(X, mul(Y, Z)), gate, factor, c)


def lstm_step(cell: Cell, x: str, states: Sequence[str]) -> tuple[str, ...]:
    """Gates in the format's order: input, output, forget, cell."""
    site, (h, c) = cell.site, states
    both = site.elementwise(add(X, Y), x, cell.of_state(h))
    i, o, f, g = cell.gates(both, range(4))
    i, f = cell.seeing(i, 0, c), cell.seeing(f, 2, c)
    kept = mul(cell.act(0, X), Y)
    new = add(kept, mul(cell.act(0, Z), cell.act(1, Input(3))))
    c = site.elementwise(new, f, c, i, g)
    o = cell.seeing(o, 1, c)
    h = site.elementwise(mul(cell.act(0, X), cell.functions[2](Y)), o, c)
    return h, c


def gru_step(linear_before: bool) -> Callable[[Cell, str, Sequence[str]], tuple[str, ...]]:
    def step(cell: Cell, x: str, states: Sequence[str]) -> tuple[str, ...]:
        """Gates in the format's order: update, reset, hidden."""
        site, h = cell.site, states[0]
        xz, xr, xh = cell.gates(x, range(3))
        if linear_before:
            hz, hr, hh = cell.gates(cell.of_state(h), range(3))
            r = site.elementwise(cell.act(0, add(X, Y)), xr, hr)
            new = site.elementwise(cell.act(1, add(X, mul(Y, Z))), xh, r, hh)
        else:
            n = cell.state
            both = site.part(cell.recurrent, 0, 0, 2 * n)
            rest = site.part(cell.recurrent, 0, 2 * n, 3 * n)
            hz, hr = cell.gates(product(site, h, both, transposed=True), range(2))
            bias = cell.recurrent_bias or site.tensor(np.zeros(3 * n), "float32")
            bz, br, bh = (site.part(bias, 0, k * n, (k + 1) * n) for k in range(3))
            hz = site.elementwise(add(X, Y), hz, bz)
            r = site.elementwise(cell.act(0, add(X, add(Y, Z))), xr, hr, br)
            hidden = product(site, site.elementwise(mul(X, Y), r, h), rest, transposed=True)
            new = site.elementwise(cell.act(1, add(X, add(Y, Z))), xh, hidden, bh)
        z = site.elementwise(cell.act(0, add(X, Y)), xz, hz)
        return (site.elementwise(add(mul(sub(1.0, X), Y), mul(X, Z)), z, new, h),)

    return step


def rnn_step(cell: Cell, x: str, states: Sequence[str]) -> tuple[str, ...]:
    summed = cell.act(0, add(X, Y))
    return (cell.site.elementwise(summed, x, cell.of_state(states[0])),)


@dataclass(frozen=True)
class Layer:
    """What a recurrent operator has: so many gates and states, the functions of its gates."""

    gates: int
    states: int
    functions: tuple[str, ...]


LSTM = Layer(4, 2, ("Sigmoid", "Tanh", "Tanh"))
GRU = Layer(3, 1, ("Sigmoid", "Tanh"))
RNN = Layer(1, 1, ("Tanh",))

_MOST_STEPS = 4096


def _functions(site: Site, layer: Layer, directions: int) -> list[list[Function]]:
    """Of each direction, those of its gates."""
    names = site.attribute("activations") or layer.functions * directions
    alphas, betas = (
        [*(site.attribute("activation_alpha") or ())],
        [*(site.attribute("activation_beta") or ())],
    )
    if len(names) != len(layer.functions) * directions:
        site.refuse(f"{len(names)} activations of {len(layer.functions) * directions}")
    found: list[Function] = []
    for name in names:
        key = str(name).lower()
        if key not in _ACTIVATIONS:
            site.refuse(f"activation {name} is not known: use Sigmoid, Tanh or Relu")
        takes_alpha = key in ("hardsigmoid", "affine", "leakyrelu", "elu")
        a = alphas.pop(0) if takes_alpha and alphas else None
        b = betas.pop(0) if key in ("hardsigmoid", "affine") and betas else None
        found.append(_bound(key, a, b))
    each = len(layer.functions)
    return [found[k * each : (k + 1) * each] for k in range(directions)]


def _bound(name: str, a: float | None, b: float | None) -> Function:
    return lambda x: _ACTIVATIONS[name](x, a, b)


def recurrent(
    layer: Layer, step_of: Callable[[Site], Callable[[Cell, str, Sequence[str]], tuple[str, ...]]]
) -> Translation:
    def translate(site: Site) -> list[str]:
        x, batch_first = site.input(0), site.flag("layout")
        if batch_first:
            x = site.transposed(x, (1, 0, 2))
        steps, batch, size = site.shape(x)
        _check_lengths(site, steps)
        directions = site.type(1).shape[0]
        order = site.text("direction", "forward", ("forward", "reverse", "bidirectional"))
        if directions != (2 if order == "bidirectional" else 1):
            site.refuse(f"direction {order} with weights of {directions} directions")
        if site.whole("hidden_size", site.type(2).shape[2]) != site.type(2).shape[2]:
            site.refuse("hidden_size is not that of the recurrent weights")
        functions = _functions(site, layer, directions)
        step, rows = step_of(site), site.reshaped(x, (steps * batch, size))
        every: list[str] = []
        last: list[list[str]] = []
        for k in range(directions):
            cell = _cell(site, layer, k, functions[k])
            turned = order == "reverse" or k == 1
            results, states = _unrolled(cell, layer, step, rows, (steps, batch), k, turned)
            every.append(_stacked(site, results, (1, 1, batch, cell.state), 0))
            last.append(states)
        whole = every[0] if directions == 1 else site.emit(Concat(1), *every)
        found = [whole] + [
            _stacked(site, [states[s] for states in last], (1, batch, site.type(2).shape[2]), 0)
            for s in range(layer.states)
        ]
        if batch_first:
            found = [site.transposed(found[0], (2, 0, 1, 3))] + [
                site.transposed(tensor, (1, 0, 2)) for tensor in found[1:]
            ]
        return found

    return translate


def _check_lengths(site: Site, steps: int) -> None:
    lengths = site.optional_constant(4, "the lengths of the sequences")
    if lengths is not None and (lengths != steps).any():
        site.refuse(f"sequences shorter than the {steps} steps are not read: leave the lengths out")
    if steps > _MOST_STEPS:
        site.refuse(f"{steps} steps would be written out: give at most {_MOST_STEPS}")
    if steps < 1:
        site.refuse("a sequence of no steps has no last state: give at least one")
    if site.flag("input_forget"):
        site.refuse("coupled input and forget gates are not read: use separate ones")


def _of_direction(site: Site, tensor: str, k: int) -> str:
    """A direction's part of a parameter [directions, …]."""
    return site.reshaped(site.part(tensor, 0, k, k + 1), site.shape(tensor)[1:])


def _cell(site: Site, layer: Layer, k: int, functions: Sequence[Function]) -> Cell:
    weights, recurrent = (_of_direction(site, site.input(place), k) for place in (1, 2))
    state = site.shape(recurrent)[1]
    biases: list[str | None] = [None, None]
    if (bias := site.optional(3)) is not None:
        both, n = _of_direction(site, bias, k), layer.gates * state
        biases = [site.part(both, 0, 0, n), site.part(both, 0, n, 2 * n)]
    limit = site.attribute("clip")
    peepholes = site.optional(7) if layer is LSTM else None
    peepholes = None if peepholes is None else _of_direction(site, peepholes, k)
    return Cell(
        site, state, weights, recurrent, biases[0], biases[1], functions, limit, peepholes
    )  # fmt: skip


def _unrolled(
    cell: Cell,
    layer: Layer,
    step: Callable[[Cell, str, Sequence[str]], tuple[str, ...]],
    rows: str,
    sizes: tuple[int, int],
    direction: int,
    turned: bool,
) -> tuple[list[str], list[str]]:
    """The state after each step, in the order of the inputs, and the states at the end."""
    site, (steps, batch) = cell.site, sizes
    sums = cell.of_inputs(rows)
    states = [_initial(cell, k, direction, batch) for k in range(layer.states)]
    results = [""] * steps
    for at in reversed(range(steps)) if turned else range(steps):
        here = site.part(sums, 0, at * batch, (at + 1) * batch)
        states = list(step(cell, here, states))
        results[at] = states[0]
    return results, states


def _initial(cell: Cell, k: int, direction: int, batch: int) -> str:
    site, given = cell.site, cell.site.optional(5 + k)
    if given is None:
        return site.tensor(np.zeros((batch, cell.state)), site.type().dtype)
    if site.flag("layout"):
        given = site.transposed(given, (1, 0, 2))
    return _of_direction(site, given, direction)


def _stacked(site: Site, tensors: Sequence[str], shape: tuple[int, ...], axis: int) -> str:
    parts = [site.reshaped(tensor, shape) for tensor in tensors]
    return parts[0] if len(parts) == 1 else site.emit(Concat(axis), *parts)


TABLE: dict[str, Translation] = {
    "LSTM": recurrent(LSTM, lambda site: lstm_step),
    "GRU": recurrent(GRU, lambda site: gru_step(site.flag("linear_before_reset"))),
    "RNN": recurrent(RNN, lambda site: rnn_step),
}
