"""Kernels of elementwise operators: expressions, quantization, lookup tables.

Expressions are written by :class:`~cpembed.codegen.scalar_text.ScalarWriter`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from cpembed.codegen.approximations import APPROXIMATIONS
from cpembed.codegen.plan import KernelPlan
from cpembed.codegen.scalar_text import ScalarWriter
from cpembed.codegen.values import (
    Value,
    clamped,
    converted,
    flat_storage,
    literal,
    load_as,
    nan_to_zero,
    round_to_even,
    typed_array,
    whole_cast,
)
from cpembed.graph import kinds
from cpembed.graph.kinds.base import axis_of
from cpembed.ir.scalars import Apply, Scalar
from cpembed.network.layout import Layout
from cpembed.network.operators.emission import (
    EFFORT,
    FUNCTION_EFFORT,
    LANE,
    Kernel,
    Operands,
    Reduction,
)
from cpembed.network.operators.nest import View, axes, broadcast_nest, nest_over

# Time of an operation of an expression relative to copying a byte.
_OPERATION_EFFORT = 0.25


def expression_effort(node: Scalar) -> float:
    """Return the time per byte of an expression's operands relative to copying it."""
    if not isinstance(node, Apply):
        return 1.0
    top = FUNCTION_EFFORT if node.operation in APPROXIMATIONS else _OPERATION_EFFORT
    return top + sum(expression_effort(argument) - 1.0 for argument in node.arguments) + 1.0


def elementwise_plan(kind: kinds.Elementwise, operands: Operands) -> KernelPlan:
    """Return the kernel of an expression."""
    (output,) = operands.outputs
    nest = broadcast_nest([output, *operands.inputs])
    kernel = Kernel(operands, operands.chunks(expression_effort(kind.expression)))
    computing = kind.computes_in([x.dtype for x in operands.inputs])
    writer = ScalarWriter(kernel, computing)
    with kernel.body(), kernel.points(nest):
        values: dict[int, Value] = {}
        for number, x in enumerate(operands.inputs):
            dtype = "bool" if x.dtype == "bool" else computing
            text = load_as(f"in{number}[{nest.places[number + 1]}]", x.dtype, dtype)
            values[number] = Value(text if dtype == "bool" else kernel.bind(text), dtype)
        result = writer.value(kind.expression, values)
        text = converted(kernel.bind, result, output.dtype)
        kernel.script.line(f"out0[{nest.places[0]}] = {text}")
    return kernel.plan("elementwise")


def quantize_plan(kind: kinds.Quantize, operands: Operands) -> KernelPlan:
    """Return the kernel of a quantization."""
    limits = np.iinfo(kind.dtype)
    # Beyond 2^24 a sum in float32 is not exact, so integers of 32 bits are computed in float64.
    is_wide = limits.max > 2**15
    sum_dtype = "float64" if is_wide else "float32"

    def body(kernel: Kernel, element: str, parameters: Mapping[str, str]) -> str:
        x = load_as(element, operands.inputs[0].dtype, "float32")
        rounded = kernel.bind(round_to_even(f"{x} / {parameters['scale']}"))
        zero = f'T.cast({parameters["zero"]}, "{sum_dtype}")'
        if is_wide:
            total = f'(T.cast({rounded}, "float64") + {zero})'
            return converted(kernel.bind, Value(total, "float64"), kind.dtype)
        # Clamped before the zero point is added, whose sum is then exact.
        far = 2.0**23
        near = kernel.bind(clamped(rounded, "float32", -far, far))
        near = nan_to_zero(kernel.bind, f"{near} + {zero}", "float32")
        return whole_cast(clamped(near, "float32", limits.min, limits.max), kind.dtype)

    return _parametrized(kind, operands, body, "int32")


def dequantize_plan(kind: kinds.Dequantize, operands: Operands) -> KernelPlan:
    """Return the kernel of a dequantization."""
    dtype = operands.inputs[0].dtype
    # The difference from the zero point has to be exact, which takes a wider type.
    is_narrow = np.dtype(dtype).itemsize < 4 or not any(kind.zero_point)
    wide = "int32" if is_narrow and dtype not in ("uint32", "uint64", "int64") else "int64"

    def body(kernel: Kernel, element: str, parameters: Mapping[str, str]) -> str:
        centred = f"({load_as(element, dtype, wide)} - {parameters['zero']})"
        return f'T.cast({centred}, "float32") * {parameters["scale"]}'

    return _parametrized(kind, operands, body, wide)


# Function from the kernel, an input's element, and the texts of ``scale`` and ``zero`` to the
# result.
_Body = Callable[[Kernel, str, Mapping[str, str]], str]


def _parametrized(
    kind: kinds.Quantize | kinds.Dequantize, operands: Operands, body: _Body, zero_dtype: str
) -> KernelPlan:
    """Return a kernel with a scale and a zero point for all elements, or per index of an axis."""
    (source, *_), (output,) = operands.inputs, operands.outputs
    rank = len(output.shape)
    indices = axes(rank)
    parameters = {
        "scale": np.asarray(kind.scale, "float32"),
        "zero": np.asarray(kind.zero_point, zero_dtype),
    }
    # One value for all elements is a literal; several are an array that is part of the code.
    for name, values in parameters.items():
        if (values == values[:1]).all():
            parameters[name] = values[:1]
    views = [View(output.layout, indices), View(source.layout, indices)]
    for values in parameters.values():
        index = (indices[axis_of(kind.axis, rank)],) if values.size > 1 else ()
        views.append(View(Layout.plain((values.size,) if index else ()), index))
    nest = nest_over(output.shape, views)
    kernel = Kernel(operands, operands.chunks(EFFORT[kinds.Quantize]))
    with kernel.body(), kernel.points(nest):
        texts = {
            name: kernel.constant(values, str(place))
            if values.size > 1
            else literal(values[0].item(), str(values.dtype))
            for (name, values), place in zip(parameters.items(), nest.places[2:], strict=True)
        }
        value = body(kernel, f"in0[{nest.places[1]}]", texts)
        kernel.script.line(f"out0[{nest.places[0]}] = {value}")
    return kernel.plan(kind.label)


def table_plan(kind: kinds.Table, operands: Operands) -> KernelPlan:
    """Return the kernel of a lookup table."""
    (source,), (output,) = operands.inputs, operands.outputs
    nest = broadcast_nest([output, source])
    kernel = Kernel(operands, operands.chunks(EFFORT[kinds.Table]))
    entries = flat_storage(typed_array(kind.entries, kind.dtype))
    with kernel.body(), kernel.points(nest):
        # The first entry is that of the least integer.
        least = np.iinfo(source.dtype).min
        position = f'T.cast(in0[{nest.places[1]}], "int32") - {least}'
        if kind.is_shift:
            # A sum, of which LLVM makes vectors.
            entry = f'T.cast({position} + {int(kind.entries[0])}, "{kind.dtype}")'
        else:
            entry = kernel.constant(entries, position)
        kernel.script.line(f"out0[{nest.places[0]}] = {entry}")
    return kernel.plan("table")


def dynamic_quantize_plan(kind: kinds.DynamicQuantize, operands: Operands) -> KernelPlan:
    """Return the kernel that quantizes a tensor by its own range.

    NaNs are ignored in the range and stored as 0.
    """
    source, output = operands.inputs[0], operands.outputs[0]
    reduction = Reduction.split(broadcast_nest([output, source], 1), lambda loop: True)
    # One thread: the second pass needs the result of the first, and threads of one kernel have no
    # barrier.
    kernel = Kernel(operands, 1)
    script = kernel.script
    with kernel.body():
        low, high = (_extreme(kernel, reduction, operation) for operation in ("min", "max"))
        scale = kernel.local(1, "float32")
        script.line(f"{scale}[0] = ({high} - {low}) / T.float32(255.0)")
        script.line(
            f"{scale}[0] = T.Select({scale}[0] == T.float32(0.0), T.float32(1.0), {scale}[0])"
        )
        zero = kernel.local(1, "float32")
        value = round_to_even(f"(T.float32(0.0) - {low}) / {scale}[0]")
        value = nan_to_zero(kernel.bind, value, "float32")
        script.line(f"{zero}[0] = {clamped(value, 'float32', 0, 255)}")
        script.line(f"out1[0] = {scale}[0]")
        script.line(f"out2[0] = {whole_cast(f'{zero}[0]', 'uint8')}")
        nest = broadcast_nest([output, source])
        with kernel.points(nest):
            rounded = round_to_even(f"in0[{nest.places[1]}] / {scale}[0]")
            value = nan_to_zero(kernel.bind, f"{rounded} + {zero}[0]", "float32")
            value = whole_cast(clamped(value, "float32", 0, 255), "uint8")
            script.line(f"out0[{nest.places[0]}] = {value}")
    return kernel.plan("dynamic quantize")


def _extreme(kernel: Kernel, reduction: Reduction, operation: str) -> str:
    """Write the least or largest of 0 and all elements, and return its name."""

    def join(first: str, second: str) -> str:
        # TVM's operation returns the second argument if one is NaN, which keeps NaNs out.
        return f"T.{operation}({second}, {first})"

    name = kernel.accumulators(reduction.size, "float32", "T.float32(0.0)")

    def accumulate(lane: str, places: Sequence[str]) -> None:
        kernel.script.line(f"{name}[{lane}] = {join(f'{name}[{lane}]', f'in0[{places[1]}]')}")

    reduction.sweep(kernel, accumulate)
    total = reduction.combined(kernel, name, "float32", join)
    extreme = kernel.local(1, "float32")
    with kernel.vectorized(1):
        kernel.script.line(f"{extreme}[0] = {total(LANE)}")
    return f"{extreme}[0]"
