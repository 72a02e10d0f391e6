"""Recurrent layers as loops.

One product takes the inputs of all steps; the body of the loop has a product of the state and
elementwise operators. Steps beyond the length of a sequence leave its states as they are, and their
results are 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cpembed.frontends import expressions as e
from cpembed.frontends.composites import Composites
from cpembed.frontends.expressions import X, Y, Z, add, less, mul, sub, where
from cpembed.frontends.loops import LoopBody
from cpembed.graph.kinds import Input, Scalar

Function = Callable[[Scalar], Scalar]


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
    linear_before_reset : bool
        True if the reset gate of a GRU scales what the product makes of the state.
    """

    call: Composites
    state: int
    weights: str
    recurrent: str
    bias: str | None
    recurrent_bias: str | None
    functions: Sequence[Function]
    limit: float | None
    peepholes: str | None
    linear_before_reset: bool = False

    def inside(self, loop: LoopBody) -> Cell:
        """Return the cell with its parameters as the body of a loop reads them."""
        read = reader(loop)
        return replace(
            self,
            call=self.call.inside(loop.builder),
            recurrent=loop.read(self.recurrent),
            recurrent_bias=read(self.recurrent_bias),
            peepholes=read(self.peepholes),
        )

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

    def product_of_inputs(self, rows: str) -> str:
        """Multiply the inputs of all steps by their weights."""
        return self.product(rows, self.weights, self.bias)

    def product_of_state(self, state: str) -> str:
        """Multiply the state by the recurrent weights."""
        return self.product(state, self.recurrent, self.recurrent_bias)

    def with_peephole(self, gate: str, k: int, c: str) -> str:
        """Add the cell state times the peephole weights of a gate, if there are any.

        ``k`` is 0 for the input, 1 for the output and 2 for the forget gate.
        """
        if self.peepholes is None:
            return gate
        factor = self.block(self.peepholes, 0, k)
        return self.call.elementwise(add(X, mul(Y, Z)), gate, factor, c)


def reader(loop: LoopBody) -> Callable[[str | None], str | None]:
    """Return a function that reads tensors, which may be missing, in the body of a loop."""
    return lambda tensor: None if tensor is None else loop.read(tensor)


Step = Callable[[Cell, str, Sequence[str]], tuple[str, ...]]
"""One step: the new states from a cell, its product of the inputs, and the states."""


def lstm_step(cell: Cell, x: str, states: Sequence[str]) -> tuple[str, ...]:
    """Emit a step of an LSTM, whose gates are in the order input, output, forget, cell.

    Parameters
    ----------
    cell : Cell
    x : str
        Product of the step's input.
    states : sequence of str
        Hidden state and cell state.
    """
    call, (h, c) = cell.call, states
    sums = call.elementwise(add(X, Y), x, cell.product_of_state(h))
    i, o, f, g = cell.gates(sums, 4)
    i, f = cell.with_peephole(i, 0, c), cell.with_peephole(f, 2, c)
    added = mul(cell.activate(0, Z), cell.activate(1, Input(3)))
    c = call.elementwise(add(mul(cell.activate(0, X), Y), added), f, c, i, g)
    o = cell.with_peephole(o, 1, c)
    h = call.elementwise(mul(cell.activate(0, X), cell.functions[2](Y)), o, c)
    return h, c


def gru_step(cell: Cell, x: str, states: Sequence[str]) -> tuple[str, ...]:
    """Emit a step of a GRU, whose gates are in the order update, reset, hidden.

    Parameters
    ----------
    cell : Cell
    x : str
        Product of the step's input.
    states : sequence of str
        Hidden state.
    """
    call, h = cell.call, states[0]
    xz, xr, xh = cell.gates(x, 3)
    # The reset gate scales either what the product makes of the state, or the state before it: then
    # the hidden gate needs a product of its own.
    if cell.linear_before_reset:
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


def rnn_step(cell: Cell, x: str, states: Sequence[str]) -> tuple[str, ...]:
    """Emit a step of a plain recurrent layer.

    Parameters
    ----------
    cell : Cell
    x : str
        Product of the step's input.
    states : sequence of str
        Hidden state.
    """
    total = cell.activate(0, add(X, Y))
    return (cell.call.elementwise(total, x, cell.product_of_state(states[0])),)


@dataclass(frozen=True)
class Recurrence:
    """Loop over one direction of a layer.

    Attributes
    ----------
    name : str
        Name of the loop.
    step : callable
        Function that emits a step.
    sums : str
        Product of the inputs of all steps [steps, batch, gates * state].
    lengths : str, optional
        Tensor [batch, 1] of int32: steps of each sequence; None if all have all steps.
    is_collected : bool
        True if the states after all steps are read.
    """

    name: str
    cell: Cell
    step: Step
    sums: str
    reverse: bool
    lengths: str | None = None
    is_collected: bool = True

    def emit(self, initial: Sequence[str]) -> tuple[str | None, list[str]]:
        """Emit the loop; return the state after each step, if collected, and the last states."""
        call = self.cell.call
        steps = call.shape(self.sums)[0]
        loop = LoopBody(call.builder, self.name, steps)
        x = loop.slice(self.sums, self.reverse)
        states = [loop.state(tensor) for tensor in initial]
        cell = self.cell.inside(loop)
        new = [*self.step(cell, x, states)]
        result = new[0]
        if self.lengths is not None:
            numbers = call.tensor(np.arange(steps).reshape(steps, 1, 1), "int32")
            number, lengths = loop.slice(numbers, self.reverse), loop.read(self.lengths)
            select = cell.call.elementwise
            is_inside = select(less(X, Y), number, lengths, dtype="bool")
            dtype = call.dtype(self.sums)
            new = [
                select(where(X, Y, Z), is_inside, after, before, dtype=dtype)
                for after, before in zip(new, states, strict=True)
            ]
            result = select(where(X, Y, 0.0), is_inside, result, dtype=dtype)
        results = [(result, self.reverse)] if self.is_collected else []
        finals, sequences = loop.emit(new, results)
        return (sequences[0] if sequences else None), finals
