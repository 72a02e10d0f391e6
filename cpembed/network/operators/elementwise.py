"""Kernels of what is computed at every element: expressions, quantization, tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from cpembed.codegen.plan import KernelPlan
from cpembed.graph.kinds import (
    Apply,
    Dequantize,
    DynamicQuantize,
    Elementwise,
    Quantize,
    Scalar,
    Table,
)
from cpembed.graph.kinds.base import axis_of
from cpembed.ir.index import IndexExpr
from cpembed.network.layout import Layout
from cpembed.network.operators.approximations import APPROXIMATIONS
from cpembed.network.operators.emission import (
    LANE,
    Kernel,
    Reduction,
    accumulators,
    chunks_for,
    local,
    vectorized,
)
from cpembed.network.operators.expressions import Writer
from cpembed.network.operators.nest import Placed, View, axes, constant, nest_over
from cpembed.network.operators.values import (
    Value,
    converted,
    limited,
    literal,
    loaded,
    memory_of,
    nearest,
    number,
    numbers,
)


def broadcast_index(shape: Sequence[int], rank: int) -> tuple[IndexExpr, ...]:
    """Which element of a tensor of a shape belongs to a point of ``rank`` axes, as numpy
    broadcasts."""
    last = axes(rank)[rank - len(shape) :]
    return tuple(constant(0) if size == 1 else e for size, e in zip(shape, last, strict=True))


_ROUNDED, _LOOKED_UP = 2.0, 8.0
"""What a byte takes that is quantized, or looked up, of what a byte that is copied takes."""
_FUNCTION, _OPERATION = 4.0, 0.25
"""What a function, and another operation, of an expression adds to that."""


def _effort(node: Scalar) -> float:
    """What a byte of an expression's operands takes."""
    if not isinstance(node, Apply):
        return 1.0
    own = _FUNCTION if node.operation in APPROXIMATIONS else _OPERATION
    return own + sum(_effort(argument) - 1.0 for argument in node.arguments) + 1.0


def elementwise_plan(
    kind: Elementwise, inputs: Sequence[Placed], outputs: Sequence[Placed], threads: int
) -> KernelPlan:
    (output,) = outputs
    rank = len(output.shape)
    views = [View(output.layout, axes(rank))]
    views += [View(given.layout, broadcast_index(given.shape, rank)) for given in inputs]
    nest = nest_over(output.shape, views)
    kernel = Kernel(inputs, outputs, chunks_for(inputs, outputs, threads, _effort(kind.expression)))
    computing = kind.computes_in([given.dtype for given in inputs])
    writer = Writer(kernel, computing)
    with kernel.written(), kernel.points(nest):
        values: dict[int, Value] = {}
        for number, given in enumerate(inputs):
            dtype = "bool" if given.dtype == "bool" else computing
            text = loaded(f"in{number}[{nest.places[number + 1]}]", given.dtype, dtype)
            values[number] = Value(text if dtype == "bool" else kernel.let(text), dtype)
        result = writer.value(kind.expression, values)
        text = converted(kernel.let, result, output.dtype)
        kernel.script.line(f"out0[{nest.places[0]}] = {text}")
    return kernel.plan("elementwise")


def quantize_plan(
    kind: Quantize, inputs: Sequence[Placed], outputs: Sequence[Placed], threads: int
) -> KernelPlan:
    limits = np.iinfo(kind.dtype)
    wide = limits.max > 2**15
    # Beyond 2^24, a sum in float32 is not exact: integers of 32 bits are put together in float64.
    kind_of_sum = "float64" if wide else "float32"

    def body(kernel: Kernel, element: str, parameters: Mapping[str, str]) -> str:
        x = loaded(element, inputs[0].dtype, "float32")
        rounded = kernel.let(nearest(f"{x} / {parameters['scale']}"))
        zero = f'T.cast({parameters["zero"]}, "{kind_of_sum}")'
        rounded = f'T.cast({rounded}, "float64")' if wide else rounded
        if wide:
            return converted(kernel.let, Value(f"({rounded} + {zero})", "float64"), kind.dtype)
        # Limited before the sum, which is then exact.
        far = 2.0**23
        near = kernel.let(limited(rounded, "float32", -far, far))
        near = number(kernel.let, f"{near} + {zero}", "float32")
        clipped = limited(near, "float32", limits.min, limits.max)
        return f'T.cast(T.cast({clipped}, "int32"), "{kind.dtype}")'

    return _parametrised(kind, inputs, outputs, threads, body, "int32")


def dequantize_plan(
    kind: Dequantize, inputs: Sequence[Placed], outputs: Sequence[Placed], threads: int
) -> KernelPlan:
    narrow = np.dtype(inputs[0].dtype).itemsize < 4 or not any(kind.zero_point)
    wide = "int32" if narrow else "int64"
    if inputs[0].dtype in ("uint32", "uint64", "int64"):
        wide = "int64"

    def body(kernel: Kernel, element: str, parameters: Mapping[str, str]) -> str:
        moved = f"({loaded(element, inputs[0].dtype, wide)} - {parameters['zero']})"
        return f'T.cast({moved}, "float32") * {parameters["scale"]}'

    return _parametrised(kind, inputs, outputs, threads, body, wide)


_Body = Callable[[Kernel, str, Mapping[str, str]], str]


def _parametrised(
    kind: Quantize | Dequantize,
    inputs: Sequence[Placed],
    outputs: Sequence[Placed],
    threads: int,
    body: _Body,
    zero_dtype: str,
) -> KernelPlan:
    """A scale and a zero point for all elements, or for each index of an axis."""
    (output,) = outputs
    rank = len(output.shape)
    given = axes(rank)
    parameters = {
        "scale": np.asarray(kind.scale, "float32"),
        "zero": np.asarray(kind.zero_point, zero_dtype),
    }
    for name, values in parameters.items():
        if (values == values[:1]).all():
            parameters[name] = values[:1]
    views = [View(output.layout, given), View(inputs[0].layout, given)]
    for values in parameters.values():
        along = (given[axis_of(kind.axis, rank)],) if values.size > 1 else ()
        views.append(View(Layout.plain((values.size,) if along else ()), along))
    nest = nest_over(output.shape, views)
    kernel = Kernel(inputs, outputs, chunks_for(inputs, outputs, threads, _ROUNDED))
    with kernel.written(), kernel.points(nest):
        texts = {
            name: kernel.constant(values, str(place))
            if values.size > 1
            else literal(values[0].item(), str(values.dtype))
            for (name, values), place in zip(parameters.items(), nest.places[2:], strict=True)
        }
        value = body(kernel, f"in0[{nest.places[1]}]", texts)
        kernel.script.line(f"out0[{nest.places[0]}] = {value}")
    return kernel.plan(kind.label)


def table_plan(
    kind: Table, inputs: Sequence[Placed], outputs: Sequence[Placed], threads: int
) -> KernelPlan:
    (output,) = outputs
    given = axes(len(output.shape))
    nest = nest_over(output.shape, [View(output.layout, given), View(inputs[0].layout, given)])
    kernel = Kernel(inputs, outputs, chunks_for(inputs, outputs, threads, _LOOKED_UP))
    entries = memory_of(numbers(kind.entries, kind.dtype))
    with kernel.written(), kernel.points(nest):
        least = np.iinfo(inputs[0].dtype).min
        place = f'T.cast(in0[{nest.places[1]}], "int32") - {least}'
        kernel.script.line(f"out0[{nest.places[0]}] = {kernel.constant(entries, place)}")
    return kernel.plan("table")


def dynamic_quantize_plan(
    kind: DynamicQuantize, inputs: Sequence[Placed], outputs: Sequence[Placed], threads: int
) -> KernelPlan:
    """A NaN is passed over where the range is taken, and stored as 0."""
    source, output = inputs[0], outputs[0]
    given = axes(len(source.shape))
    views = [View(output.layout, given), View(source.layout, given)]
    nest = nest_over(source.shape, views, ordered_by=1)
    reduction = Reduction.of(nest, lambda loop: True)
    kernel = Kernel(inputs, outputs, 1)
    script = kernel.script
    with kernel.written():
        low, high = (_extreme(kernel, reduction, what) for what in ("min", "max"))
        scale = local(kernel, 1, "float32")
        script.line(f"{scale}[0] = ({high} - {low}) / T.float32(255.0)")
        script.line(
            f"{scale}[0] = T.Select({scale}[0] == T.float32(0.0), T.float32(1.0), {scale}[0])"
        )
        zero = local(kernel, 1, "float32")
        value = nearest(f"(T.float32(0.0) - {low}) / {scale}[0]")
        value = number(kernel.let, value, "float32")
        script.line(f"{zero}[0] = {limited(value, 'float32', 0, 255)}")
        script.line(f"out1[0] = {scale}[0]")
        script.line(f'out2[0] = T.cast(T.cast({zero}[0], "int32"), "uint8")')
        points = nest_over(source.shape, views)
        with kernel.points(points):
            rounded = nearest(f"in0[{points.places[1]}] / {scale}[0]")
            moved = number(kernel.let, f"{rounded} + {zero}[0]", "float32")
            kept = limited(moved, "float32", 0, 255)
            script.line(f'out0[{points.places[0]}] = T.cast(T.cast({kept}, "int32"), "uint8")')
    return kernel.plan("dynamic quantize")


def _extreme(kernel: Kernel, reduction: Reduction, what: str) -> str:
    """The least or largest element, and 0."""

    def join(first: str, second: str) -> str:
        # Of a NaN and another number, TVM takes the second.
        return f"T.{what}({second}, {first})"

    name = accumulators(kernel, reduction.size, "float32", "T.float32(0.0)")

    def take(lane: str, places: Sequence[str]) -> None:
        kernel.script.line(f"{name}[{lane}] = {join(f'{name}[{lane}]', f'in0[{places[1]}]')}")

    reduction.sweep(kernel, take)
    total = reduction.combined(kernel, name, "float32", join)
    found = local(kernel, 1, "float32")
    with vectorized(kernel, 1):
        kernel.script.line(f"{found}[0] = {total(LANE)}")
    return f"{found}[0]"
