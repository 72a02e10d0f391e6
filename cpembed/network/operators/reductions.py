"""Kernels of reductions: sums, means, extrema and products over axes of a tensor."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from cpembed.codegen.plan import KernelPlan
from cpembed.graph.kinds import LayerNorm, Reduce, Softmax
from cpembed.graph.kinds.base import axis_of
from cpembed.network.layout import Layout
from cpembed.network.operators.approximations import APPROXIMATIONS, exp_below
from cpembed.network.operators.emission import (
    LANE,
    LANES,
    SERIAL,
    VECTORIZED,
    Join,
    Kernel,
    Reduction,
    accumulators,
    chunks_for,
    local,
    vectorized,
)
from cpembed.network.operators.nest import (
    Nest,
    Placed,
    View,
    axes,
    axis_name,
    axis_of_loop,
    constant,
    nest_over,
)
from cpembed.network.operators.values import (
    Value,
    converted,
    is_nan,
    literal,
    loaded,
    maximum,
    minimum,
    nearest,
    stored,
)


def join_of(what: str, dtype: str, lanes: int = 1) -> Join:
    """How two partial results of a reduction become one; of vectors with so many ``lanes``."""
    if what == "max":
        return lambda a, b: maximum(a, b, dtype, lanes)
    if what == "min":
        return lambda a, b: minimum(a, b, dtype, lanes)
    sign = "*" if what == "prod" else "+"
    return lambda a, b: f"({a} {sign} {b})"


def reduce_plan(
    kind: Reduce, inputs: Sequence[Placed], outputs: Sequence[Placed], threads: int
) -> KernelPlan:
    """Integers are summed exactly, floats in float32 (of float64 in that)."""
    (source,), (output,) = inputs, outputs
    rank = len(source.shape)
    gone = {axis_of(axis, rank) for axis in kind.axes}
    given = axes(rank)
    index = [
        constant(0) if axis in gone else e
        for axis, e in enumerate(given)
        if kind.keeps or axis not in gone
    ]
    views = [View(output.layout, tuple(index)), View(source.layout, given)]
    nest = nest_over(source.shape, views, ordered_by=1, apart=tuple(gone))
    names = {axis_name(axis) for axis in gone}
    reduction = Reduction.of(nest, lambda loop: axis_of_loop(loop.name) in names)
    count = math.prod(source.shape[axis] for axis in gone)
    dtype = accumulator_dtype(kind.operation, source.dtype, count)
    join = join_of(kind.operation, dtype)
    kernel = Kernel(inputs, outputs, chunks_for(inputs, outputs, threads, 2.0))
    with kernel.written(), reduction.rows(kernel):
        start = literal(neutral(kind.operation, dtype), dtype)
        name = accumulators(kernel, reduction.size, dtype, start)

        def add(lane: str, places: Sequence[str]) -> None:
            element = loaded(f"in0[{places[1]}]", source.dtype, dtype)
            joined = join(f"{name}[{lane}]", element)
            kernel.script.line(f"{name}[{lane}] = {joined}")

        reduction.sweep(kernel, add)
        total = reduction.combined(kernel, name, dtype, join)

        def store(lane: str, places: Sequence[str]) -> None:
            value = _result(kernel, kind.operation, Value(total(lane), dtype), count, output.dtype)
            kernel.script.line(f"out0[{places[0]}] = {value}")

        converts = output.stored != dtype and (source.dtype == "bool" or dtype.startswith("float"))
        reduction.once(kernel, store, SERIAL if converts else VECTORIZED)
    return kernel.plan(kind.label)


def _result(kernel: Kernel, what: str, total: Value, count: int, dtype: str) -> str:
    if what == "mean":
        if total.is_float:
            total = Value(f"{total.text} / {literal(count, total.dtype)}", total.dtype)
        else:
            mean = f'T.cast({total.text}, "float64") / {literal(count, "float64")}'
            total = Value(mean, "float64")
            if dtype != "bool":
                kind = "int64" if np.dtype(dtype).itemsize == 8 else "int32"
                whole = f'T.cast({nearest(total.text, "float64")}, "{kind}")'
                return whole if kind == dtype else f'T.cast({whole}, "{dtype}")'
    if dtype == "bool" or total.dtype != stored(dtype):
        return converted(kernel.let, total, dtype)
    return total.text


def accumulator_dtype(what: str, dtype: str, count: int) -> str:
    """The type in which ``count`` elements are put together."""
    if dtype in ("bfloat16", "float16", "float32", "float64"):
        return "float64" if dtype == "float64" else "float32"
    if what in ("max", "min"):
        return stored(dtype)
    size = 8 * np.dtype(dtype).itemsize
    if what == "mean":
        # Exact, whatever the elements are.
        return "int32" if size < 32 and count < 2 ** (31 - size) else "int64"
    # Sums and products are stored without what exceeds the type.
    if dtype == "bool":
        return "int32" if what == "sum" else "uint8"
    return "int64" if size == 64 else "int32"


def neutral(what: str, dtype: str) -> float | int:
    """What changes no result."""
    if what in ("sum", "mean"):
        return 0
    if what == "prod":
        return 1
    if dtype.startswith("float"):
        return -math.inf if what == "max" else math.inf
    limits = np.iinfo(dtype)
    return int(limits.min if what == "max" else limits.max)


def extremum_plan(
    kind: Reduce, inputs: Sequence[Placed], outputs: Sequence[Placed], threads: int
) -> KernelPlan:
    """Along contiguous elements one after the other; else a vector of results at a time."""
    (source,), (output,) = inputs, outputs
    rank = len(source.shape)
    gone = axis_of(kind.axes[0], rank)
    given = axes(rank)
    index = [
        constant(0) if a == gone else e for a, e in enumerate(given) if kind.keeps or a != gone
    ]
    views = [View(output.layout, tuple(index)), View(source.layout, given)]
    # An element's index along the axis is its place in a vector of the axis's size.
    views.append(View(Layout.plain((source.shape[gone],)), (given[gone],)))
    nest = nest_over(source.shape, views, ordered_by=1, apart=[gone])
    reduction = Reduction.of(nest, lambda loop: axis_of_loop(loop.name) == axis_name(gone))
    reduction = reduction.by(1 if reduction.is_along else LANES)
    what = kind.operation.removeprefix("arg")
    dtype = accumulator_dtype(what, source.dtype, source.shape[gone])
    better = ">" if what == "max" else "<"
    kernel = Kernel(inputs, outputs, chunks_for(inputs, outputs, threads, 8.0))
    script = kernel.script
    with kernel.written(), reduction.rows(kernel):
        start = literal(neutral(what, dtype), dtype)
        best = accumulators(kernel, reduction.size, dtype, start)
        found = accumulators(kernel, reduction.size, "int32", "T.int32(0)")

        def take(lane: str, places: Sequence[str]) -> None:
            element = loaded(f"in0[{places[1]}]", source.dtype, dtype)
            taken = f"{element} {better} {best}[{lane}]"
            if dtype.startswith("float"):
                first = f"not {is_nan(Value(f'{best}[{lane}]', dtype))}"
                taken = f"({taken} or {is_nan(Value(element, dtype))}) and {first}"
            script.line(f"{found}[{lane}] = T.Select({taken}, {places[2]}, {found}[{lane}])")
            joined = join_of(what, dtype)(f"{best}[{lane}]", element)
            script.line(f"{best}[{lane}] = {joined}")

        def store(lane: str, places: Sequence[str]) -> None:
            script.line(f'out0[{places[0]}] = T.cast({found}[{lane}], "int64")')

        reduction.sweep(kernel, take)
        reduction.once(kernel, store)
    return kernel.plan(kind.label)


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
