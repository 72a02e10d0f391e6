"""Kernels over rows of a tensor: reductions, indices of extrema, softmax, layer normalization.

Softmax and layer normalization pass over each row several times: first for its sums, then for its
elements. Arithmetic is float32 (float64 for float64); the exponential is a polynomial.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np

from cpembed.codegen.approximations import APPROXIMATIONS, exp_below
from cpembed.codegen.plan import KernelPlan
from cpembed.codegen.values import (
    Value,
    converted,
    extremum,
    is_nan,
    literal,
    load_as,
    round_to_even,
    storage_type,
    whole_cast,
)
from cpembed.graph.kinds import LayerNorm, Reduce, Softmax
from cpembed.graph.kinds.base import axis_of
from cpembed.ir.dtypes import neutral_element
from cpembed.network.layout import Layout
from cpembed.network.operators.emission import (
    EFFORT,
    LANE,
    LANES,
    SERIAL,
    VECTORIZED,
    Join,
    Kernel,
    Operands,
    Reduction,
)
from cpembed.network.operators.nest import (
    Nest,
    PlacedTensor,
    Tensors,
    View,
    axes,
    axis_name,
    axis_of_loop,
    broadcast_nest,
    constant,
    nest_over,
)


def join_of(operation: str, dtype: str, lanes: int = 1) -> Join:
    """Return the combination of two partial results of a reduction.

    Parameters
    ----------
    operation : str
        ``max``, ``min``, ``prod``, ``sum`` or ``mean``.
    dtype : str
        Type of the results.
    lanes : int, default 1
        Length of the vectors that are combined.
    """
    if operation in ("max", "min"):
        return lambda a, b: extremum(operation, a, b, dtype, lanes)
    sign = "*" if operation == "prod" else "+"
    return lambda a, b: f"({a} {sign} {b})"


def reduce_plan(kind: Reduce, operands: Operands) -> KernelPlan:
    """Return the kernel of a reduction, or of the index of an extremum.

    Integers are summed exactly, floats in float32 or float64.
    """
    if kind.is_index:
        return _extremum_plan(kind, operands)
    (source,), (output,) = operands.inputs, operands.outputs
    reduction = reduction_to(kind, source, output)
    count = math.prod(
        source.shape[axis] for axis in {axis_of(k, len(source.shape)) for k in kind.axes}
    )
    dtype = accumulator_dtype(kind.operation, source.dtype, count)
    join = join_of(kind.operation, dtype)
    kernel = Kernel(operands, operands.chunks(2.0))
    with kernel.body(), reduction.rows(kernel):
        start = literal(neutral_element(kind.operation, dtype), dtype)
        name = kernel.accumulators(reduction.size, dtype, start)

        def add(lane: str, places: Sequence[str]) -> None:
            element = load_as(f"in0[{places[1]}]", source.dtype, dtype)
            joined = join(f"{name}[{lane}]", element)
            kernel.script.line(f"{name}[{lane}] = {joined}")

        reduction.sweep(kernel, add)
        total = reduction.combined(kernel, name, dtype, join)

        def store(lane: str, places: Sequence[str]) -> None:
            value = _result(kernel, kind.operation, Value(total(lane), dtype), count, output.dtype)
            kernel.script.line(f"out0[{places[0]}] = {value}")

        # Conversions name integers, which TVM's vectors do not allow.
        converts = output.storage_dtype != dtype and (
            source.dtype == "bool" or dtype.startswith("float")
        )
        reduction.once(kernel, store, SERIAL if converts else VECTORIZED)
    return kernel.plan(kind.label)


def reduction_to(kind: Reduce, source: PlacedTensor, output: PlacedTensor) -> Reduction:
    """Return the reduction of a tensor to another one.

    Parameters
    ----------
    kind : Reduce
        Reduction to values of elements.
    source, output : PlacedTensor
    """
    reduced = [axis_of(axis, len(source.shape)) for axis in kind.axes]
    views = _reduced_views(kind, source, output, reduced)
    # The input is the larger tensor, so its memory gives the order of the loops.
    return reduction_of(nest_over(source.shape, views, ordered_by=1, separate=reduced), reduced)


def _reduced_views(
    kind: Reduce, source: PlacedTensor, output: PlacedTensor, reduced: Collection[int]
) -> list[View]:
    """Return the views of output and input of a reduction, over the input's indices."""
    indices = axes(len(source.shape))
    index = [
        constant(0) if axis in reduced else e
        for axis, e in enumerate(indices)
        if kind.keeps or axis not in reduced
    ]
    return [View(output.layout, tuple(index)), View(source.layout, indices)]


def row_reduction(tensors: Tensors, reduced: Sequence[int]) -> Reduction:
    """Return the reduction over some axes of an output and what broadcasts to it, its input first.

    The input gives the order of the loops.
    """
    return reduction_of(broadcast_nest(tensors, ordered_by=1, separate=reduced), reduced)


def reduction_of(nest: Nest, reduced: Collection[int]) -> Reduction:
    """Return the reduction of a nest over some axes of its shape."""
    names = {axis_name(axis) for axis in reduced}
    return Reduction.split(nest, lambda loop: axis_of_loop(loop.name) in names)


def _result(kernel: Kernel, operation: str, total: Value, count: int, dtype: str) -> str:
    if operation == "mean":
        if total.is_float:
            total = Value(f"{total.text} / {literal(count, total.dtype)}", total.dtype)
        else:
            mean = f'T.cast({total.text}, "float64") / {literal(count, "float64")}'
            total = Value(mean, "float64")
            if dtype != "bool":
                return whole_cast(round_to_even(total.text, "float64"), dtype)
    if dtype == "bool" or total.dtype != storage_type(dtype):
        return converted(kernel.bind, total, dtype)
    return total.text


def accumulator_dtype(operation: str, dtype: str, count: int) -> str:
    """Return the type in which ``count`` elements are accumulated.

    Parameters
    ----------
    operation : str
        ``max``, ``min``, ``prod``, ``sum`` or ``mean``.
    dtype : str
        Type of the elements.
    count : int
    """
    if dtype in ("bfloat16", "float16", "float32", "float64"):
        return "float64" if dtype == "float64" else "float32"
    if operation in ("max", "min"):
        return storage_type(dtype)
    size = 8 * np.dtype(dtype).itemsize
    if operation == "mean":
        # The sum is exact, whatever the elements are.
        return "int32" if size < 32 and count < 2 ** (31 - size) else "int64"
    # Sums and products wrap to the type of the result, and so may their partial results.
    if dtype == "bool":
        return "int32" if operation == "sum" else "uint8"
    return "int64" if size == 64 else "int32"


def _extremum_plan(kind: Reduce, operands: Operands) -> KernelPlan:
    """Return the kernel of the index of an extremum, the first one of several.

    NaN counts as extreme, as in numpy.
    """
    (source,), (output,) = operands.inputs, operands.outputs
    rank = len(source.shape)
    reduced_axis = axis_of(kind.axes[0], rank)
    views = _reduced_views(kind, source, output, {reduced_axis})
    # An element's index along the axis is its place in a vector of the axis's size.
    views.append(View(Layout.plain((source.shape[reduced_axis],)), (axes(rank)[reduced_axis],)))
    nest = nest_over(source.shape, views, ordered_by=1, separate=[reduced_axis])
    reduction = reduction_of(nest, {reduced_axis})
    # Each lane has an extremum and its position, in twice the registers of other reductions.
    reduction = reduction.with_lanes(LANES // 2)
    operation = kind.operation.removeprefix("arg")
    dtype = accumulator_dtype(operation, source.dtype, source.shape[reduced_axis])
    better = ">" if operation == "max" else "<"
    kernel = Kernel(operands, operands.chunks(8.0))
    script = kernel.script
    with kernel.body(), reduction.rows(kernel):
        start = literal(neutral_element(operation, dtype), dtype)
        best = kernel.accumulators(reduction.size, dtype, start)
        position = kernel.accumulators(reduction.size, "int32", "T.int32(0)")

        def is_improved(element: str, lane: str) -> str:
            improved = f"{element} {better} {best}[{lane}]"
            if dtype.startswith("float"):
                is_number = f"not {is_nan(Value(f'{best}[{lane}]', dtype))}"
                improved = f"({improved} or {is_nan(Value(element, dtype))}) and {is_number}"
            return improved

        def join(lane: str, element: str, place: str, wins: str) -> None:
            script.line(f"{position}[{lane}] = T.Select({wins}, {place}, {position}[{lane}])")
            joined = join_of(operation, dtype)(f"{best}[{lane}]", element)
            script.line(f"{best}[{lane}] = {joined}")

        def take(lane: str, places: Sequence[str]) -> None:
            element = load_as(f"in0[{places[1]}]", source.dtype, dtype)
            join(lane, element, places[2], is_improved(element, lane))

        def store(lane: str, places: Sequence[str]) -> None:
            script.line(f'out0[{places[0]}] = T.cast({position}[{lane}], "int64")')

        reduction.sweep(kernel, take)
        size = reduction.size if reduction.is_along else 1
        while size > 1:
            # The upper half joins the lower one: of equal extrema, the first one counts.
            size //= 2
            with kernel.vectorized(size):
                lane, upper = LANE, f"{LANE} + {size}"
                element, at = f"{best}[{upper}]", f"{position}[{upper}]"
                is_tie = f"{element} == {best}[{lane}]"
                if dtype.startswith("float"):
                    both = (Value(x, dtype) for x in (element, f"{best}[{lane}]"))
                    is_tie = f"({is_tie} or ({' and '.join(map(is_nan, both))}))"
                is_earlier = f"({is_tie} and {at} < {position}[{lane}])"
                join(lane, element, at, f"({is_improved(element, lane)}) or {is_earlier}")
        reduction.once(kernel, store)
    return kernel.plan(kind.label)


# Function from a lane to the text of its value.
_Lane = Callable[[str], str]

# Function from a lane and the operands' places to the text of an element.
_Element = Callable[[str, Sequence[str]], str]


@dataclass(frozen=True)
class _Rows:
    """Rows of a tensor while their kernel is written.

    Attributes
    ----------
    dtype, wide : str
        Types of the result and of the arithmetic.
    """

    kernel: Kernel
    reduction: Reduction
    dtype: str
    wide: str

    @classmethod
    def over(cls, kernel: Kernel, reduced: Sequence[int]) -> _Rows:
        """Return the rows of the first input of a kernel along some of its axes."""
        wide = "float64" if kernel.inputs[0].dtype == "float64" else "float32"
        reduction = row_reduction([kernel.outputs[0], *kernel.inputs], reduced)
        return cls(kernel, reduction, kernel.outputs[0].dtype, wide)

    def element(self, places: Sequence[str], number: int = 0) -> str:
        """Load an input's element; the places of inputs follow that of the output."""
        dtype = self.kernel.inputs[number].dtype
        return load_as(f"in{number}[{places[number + 1]}]", dtype, self.wide)

    def total(self, operation: str, value: _Element) -> _Lane:
        """Write the sum or maximum of a row's values, and return it per lane."""
        start, join = neutral_element(operation, self.wide), join_of(operation, self.wide)
        name = self.kernel.accumulators(self.reduction.size, self.wide, literal(start, self.wide))

        def add(lane: str, places: Sequence[str]) -> None:
            text = join(f"{name}[{lane}]", value(lane, places))
            self.kernel.script.line(f"{name}[{lane}] = {text}")

        self.reduction.sweep(self.kernel, add)
        return self.reduction.combined(self.kernel, name, self.wide, join)

    def each(self, value: _Lane) -> _Lane:
        """Write a value that is computed once per row, and return it per lane."""
        size = 1 if self.reduction.is_along else self.reduction.size
        name = self.kernel.local(size, self.wide)
        with self.kernel.vectorized(size, SERIAL):
            self.kernel.script.line(f"{name}[{LANE}] = {value(LANE)}")
        return lambda lane: f"{name}[{0 if self.reduction.is_along else lane}]"

    def store(self, value: _Element) -> None:
        """Write the elements of a row."""

        def write(lane: str, places: Sequence[str]) -> None:
            text = converted(self.kernel.bind, Value(value(lane, places), self.wide), self.dtype)
            self.kernel.script.line(f"out0[{places[0]}] = {text}")

        self.reduction.sweep(self.kernel, write, VECTORIZED if self.dtype == self.wide else SERIAL)


def softmax_plan(kind: Softmax, operands: Operands) -> KernelPlan:
    """Return the kernel of a softmax or its logarithm."""
    (source,), (output,) = operands.inputs, operands.outputs
    kernel = Kernel(operands, operands.chunks(EFFORT[Softmax]))
    rows = _Rows.over(kernel, [axis_of(kind.axis, len(source.shape))])
    # The powers are stored in the result until their sum is known, if its type holds them;
    # otherwise they are computed twice.
    keeps_powers = not kind.log and output.dtype == rows.wide
    with kernel.body(), rows.reduction.rows(kernel):
        # No power of a difference from the maximum overflows.
        top = rows.total("max", lambda lane, places: rows.element(places))

        def shifted(lane: str, places: Sequence[str]) -> str:
            return f"{rows.element(places)} - {top(lane)}"

        def power(lane: str, places: Sequence[str]) -> str:
            text = shifted(lane, places)
            if rows.wide != "float32":
                return kernel.bind(f"T.exp({text})")
            return exp_below(kernel.bind, kernel.bind(text))

        def stored_power(lane: str, places: Sequence[str]) -> str:
            value = power(lane, places)
            if keeps_powers:
                kernel.script.line(f"out0[{places[0]}] = {value}")
            return value

        total = rows.total("sum", stored_power)
        if kind.log:
            rows.store(_logarithms(kernel, rows, total, shifted))
        else:
            # One division per row; elements are multiplied.
            share = rows.each(lambda lane: f"{literal(1, rows.wide)} / {total(lane)}")

            def part(lane: str, places: Sequence[str]) -> str:
                value = f"out0[{places[0]}]" if keeps_powers else power(lane, places)
                return f"{value} * {share(lane)}"

            rows.store(part)
    return kernel.plan("softmax")


def _logarithms(kernel: Kernel, rows: _Rows, total: _Lane, shifted: _Element) -> _Element:
    """Return the differences of shifted elements from the logarithm of a row's sum of powers."""

    def logarithm(lane: str) -> str:
        if rows.wide != "float32":
            return f"T.log({total(lane)})"
        return APPROXIMATIONS["log"](kernel.bind, kernel.bind(total(lane)))

    log_total = rows.each(logarithm)
    return lambda lane, places: f"{shifted(lane, places)} - {log_total(lane)}"


def layer_norm_plan(kind: LayerNorm, operands: Operands) -> KernelPlan:
    """Return the kernel of a layer normalization, or of one by the root mean square."""
    shape = operands.inputs[0].shape
    first = axis_of(kind.axis, len(shape))
    kernel = Kernel(operands, operands.chunks(EFFORT[LayerNorm]))
    rows = _Rows.over(kernel, range(first, len(shape)))
    count = literal(math.prod(shape[first:]), rows.wide)
    epsilon = literal(kind.epsilon, rows.wide)
    with kernel.body(), rows.reduction.rows(kernel):
        mean: _Lane | None = None
        if kind.centres:
            total = rows.total("sum", lambda lane, places: rows.element(places))
            mean = rows.each(lambda lane: f"{total(lane)} / {count}")

        def centred(lane: str, places: Sequence[str]) -> str:
            element = rows.element(places)
            return kernel.bind(element if mean is None else f"{element} - {mean(lane)}")

        def square(lane: str, places: Sequence[str]) -> str:
            value = centred(lane, places)
            return f"{value} * {value}"

        # A second pass: the mean of the squares minus the square of the mean would cancel.
        squares = rows.total("sum", square)
        share = rows.each(
            lambda lane: f"{literal(1, rows.wide)} / T.sqrt({squares(lane)} / {count} + {epsilon})"
        )

        def result(lane: str, places: Sequence[str]) -> str:
            value = kernel.bind(f"{centred(lane, places)} * {share(lane)}")
            return f"T.fma({value}, {rows.element(places, 1)}, {rows.element(places, 2)})"

        rows.store(result)
    return kernel.plan(kind.label)
