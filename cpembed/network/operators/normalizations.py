"""Kernels of softmax and layer normalisation: each row's sums first, then its elements.

In float32, of float64 in that; the exponential is a polynomial.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cpembed.codegen.plan import KernelPlan
from cpembed.graph.kinds import LayerNorm, Softmax
from cpembed.graph.kinds.base import axis_of
from cpembed.network.operators.approximations import APPROXIMATIONS, exp_below
from cpembed.network.operators.emission import Kernel, chunks_for
from cpembed.network.operators.lanes import (
    LANE,
    SERIAL,
    VECTORIZED,
    Reduction,
    accumulators,
    local,
    vectorized,
)
from cpembed.network.operators.nest import Nest, View, axes, axis_name, axis_of_loop, nest_over
from cpembed.network.operators.placed import Placed, loaded
from cpembed.network.operators.reductions import join_of, neutral
from cpembed.network.operators.values import Value, converted, literal

_SOFTMAX, _NORM = 16.0, 4.0
"""What a byte takes, of what a byte that is copied takes."""

_Lane = Callable[[str], str]
"""From a lane to the text of its number."""


@dataclass(frozen=True)
class _Rows:
    """Rows of a tensor while their kernel is written; ``wide`` is the type of the arithmetic."""

    kernel: Kernel
    reduction: Reduction
    dtype: str
    wide: str

    def element(self, places: Sequence[str], number: int = 0) -> str:
        """Of an input, the place of which is one after the output's."""
        dtype = self.kernel.inputs[number].dtype
        return loaded(f"in{number}[{places[number + 1]}]", dtype, self.wide)

    def total(self, what: str, value: Callable[[str, Sequence[str]], str]) -> _Lane:
        """The sum or the maximum of the values of a row, from a lane and the places of an
        element."""
        start, join = neutral(what, self.wide), join_of(what, self.wide)
        name = accumulators(self.kernel, self.reduction.size, self.wide, literal(start, self.wide))

        def add(lane: str, places: Sequence[str]) -> None:
            text = join(f"{name}[{lane}]", value(lane, places))
            self.kernel.script.line(f"{name}[{lane}] = {text}")

        self.reduction.sweep(self.kernel, add)
        return self.reduction.combined(self.kernel, name, self.wide, join)

    def each(self, value: Callable[[str], str]) -> _Lane:
        """A number of each row, computed once."""
        size = 1 if self.reduction.is_along else self.reduction.size
        name = local(self.kernel, size, self.wide)
        with vectorized(self.kernel, size, SERIAL):
            self.kernel.script.line(f"{name}[{LANE}] = {value(LANE)}")
        return (
            (lambda lane: f"{name}[0]")
            if self.reduction.is_along
            else lambda lane: f"{name}[{lane}]"
        )

    def store(self, value: Callable[[str, Sequence[str]], str]) -> None:
        """The elements of a row."""

        def one(lane: str, places: Sequence[str]) -> None:
            text = converted(self.kernel.let, Value(value(lane, places), self.wide), self.dtype)
            self.kernel.script.line(f"out0[{places[0]}] = {text}")

        self.reduction.sweep(self.kernel, one, VECTORIZED if self.dtype == self.wide else SERIAL)


def _reduction(nest: Nest, reduced: Sequence[int]) -> Reduction:
    names = {axis_name(axis) for axis in reduced}
    return Reduction.of(nest, lambda loop: axis_of_loop(loop.name) in names)


def _rows(
    kernel: Kernel, nest: Nest, reduced: Sequence[int], source: Placed, output: Placed
) -> _Rows:
    wide = "float64" if source.dtype == "float64" else "float32"
    return _Rows(kernel, _reduction(nest, reduced), output.dtype, wide)


def softmax_plan(
    kind: Softmax, inputs: Sequence[Placed], outputs: Sequence[Placed], threads: int
) -> KernelPlan:
    (source,), (output,) = inputs, outputs
    rank = len(source.shape)
    given = axes(rank)
    axis = axis_of(kind.axis, rank)
    views = [View(output.layout, given), View(source.layout, given)]
    nest = nest_over(source.shape, views, ordered_by=1, apart=[axis])
    kernel = Kernel(inputs, outputs, chunks_for(inputs, outputs, threads, _SOFTMAX))
    rows = _rows(kernel, nest, [axis], source, output)
    # The powers wait in the result for their sum, where it holds them.
    waits = not kind.log and output.dtype == rows.wide
    with kernel.written(), rows.reduction.rows(kernel):
        top = rows.total("max", lambda lane, places: rows.element(places))

        def shifted(lane: str, places: Sequence[str]) -> str:
            return f"{rows.element(places)} - {top(lane)}"

        def power(lane: str, places: Sequence[str]) -> str:
            text = shifted(lane, places)
            if rows.wide != "float32":
                return kernel.let(f"T.exp({text})")
            return exp_below(kernel.let, kernel.let(text))

        def kept(lane: str, places: Sequence[str]) -> str:
            value = power(lane, places)
            if waits:
                kernel.script.line(f"out0[{places[0]}] = {value}")
            return value

        total = rows.total("sum", kept)
        if kind.log:
            rows.store(_logarithms(kernel, rows, total, shifted))
        else:
            share = rows.each(lambda lane: f"{literal(1, rows.wide)} / {total(lane)}")

            def part(lane: str, places: Sequence[str]) -> str:
                value = f"out0[{places[0]}]" if waits else power(lane, places)
                return f"{value} * {share(lane)}"

            rows.store(part)
    return kernel.plan("softmax")


def _logarithms(
    kernel: Kernel, rows: _Rows, total: _Lane, shifted: Callable[[str, Sequence[str]], str]
) -> Callable[[str, Sequence[str]], str]:
    def logarithm(lane: str) -> str:
        if rows.wide != "float32":
            return f"T.log({total(lane)})"
        return APPROXIMATIONS["log"](kernel.let, kernel.let(total(lane)))

    of_sum = rows.each(logarithm)
    return lambda lane, places: f"{shifted(lane, places)} - {of_sum(lane)}"


def layer_norm_plan(
    kind: LayerNorm, inputs: Sequence[Placed], outputs: Sequence[Placed], threads: int
) -> KernelPlan:
    """The variance is that of the differences from the mean, summed in a second walk."""
    source, (output,) = inputs[0], outputs
    rank = len(source.shape)
    given = axes(rank)
    first = axis_of(kind.axis, rank)
    views = [View(output.layout, given), View(source.layout, given)]
    views += [View(vector.layout, given[rank - len(vector.shape) :]) for vector in inputs[1:]]
    reduced = range(first, rank)
    nest = nest_over(source.shape, views, ordered_by=1, apart=reduced)
    kernel = Kernel(inputs, outputs, chunks_for(inputs, outputs, threads, _NORM))
    rows = _rows(kernel, nest, reduced, source, output)
    count = literal(math.prod(source.shape[first:]), rows.wide)
    epsilon = literal(kind.epsilon, rows.wide)
    with kernel.written(), rows.reduction.rows(kernel):
        total = rows.total("sum", lambda lane, places: rows.element(places))
        mean = rows.each(lambda lane: f"{total(lane)} / {count}")

        def centred(lane: str, places: Sequence[str]) -> str:
            return kernel.let(f"{rows.element(places)} - {mean(lane)}")

        def square(lane: str, places: Sequence[str]) -> str:
            value = centred(lane, places)
            return f"{value} * {value}"

        squares = rows.total("sum", square)
        share = rows.each(
            lambda lane: f"{literal(1, rows.wide)} / T.sqrt({squares(lane)} / {count} + {epsilon})"
        )

        def result(lane: str, places: Sequence[str]) -> str:
            value = kernel.let(f"{centred(lane, places)} * {share(lane)}")
            return f"T.fma({value}, {rows.element(places, 1)}, {rows.element(places, 2)})"

        rows.store(result)
    return kernel.plan("layer norm")
