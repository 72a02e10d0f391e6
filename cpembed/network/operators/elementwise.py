"""Kernels of elementwise operators: expressions, quantization, lookup tables.

Types of expressions are numpy's: Booleans are conditions, a root of integers is float64, and so on.
Infinities, NaNs and signed zeros are numpy's too
(:func:`~cpembed.network.operators.values.float_function`). The compiler contracts a product and a
sum into one rounding; where the definition rounds twice, the product is a
:func:`~cpembed.network.operators.values.rounded_product`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from cpembed.codegen.plan import KernelPlan
from cpembed.errors import LoweringError, WorkloadError
from cpembed.graph import kinds
from cpembed.graph.kinds.base import axis_of
from cpembed.graph.kinds.elementwise import OPERATIONS, Apply, Number, Scalar
from cpembed.ir.index import IndexExpr
from cpembed.network.layout import Layout
from cpembed.network.operators.approximations import APPROXIMATIONS
from cpembed.network.operators.emission import (
    EFFORT,
    FUNCTION_EFFORT,
    LANE,
    Kernel,
    Operands,
    Reduction,
)
from cpembed.network.operators.nest import View, axes, constant, nest_over
from cpembed.network.operators.values import (
    Value,
    cast,
    clamped,
    condition,
    converted,
    extremum,
    flat_storage,
    float_function,
    literal,
    load_as,
    nan_to_zero,
    power_function,
    product_rounded,
    quotient_function,
    round_to_even,
    typed_array,
    whole_cast,
)

# Maximum whole exponent of a constant power that is computed by products.
_LARGEST_EXPONENT = 64

# Time of an operation of an expression relative to copying a byte.
_OPERATION_EFFORT = 0.25

_COMPARISONS = ("equal", "less", "less_equal")


@dataclass(frozen=True)
class _Writer:
    """Writer of expressions into a kernel.

    Attributes
    ----------
    computing : str
        Type of the arithmetic.
    names : dict from (str, str) to str
        Names of values of the current element, by text and type: equal parts are computed once.
    """

    kernel: Kernel
    computing: str
    names: dict[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])

    def value(self, node: Scalar, inputs: Mapping[int, Value]) -> Value:
        """Write an expression and return its value; all but trivial parts are named.

        Raises :class:`WorkloadError` for a wrong number of arguments.
        """
        if isinstance(node, Number):
            if isinstance(node.value, bool):
                return Value(f"T.bool({node.value})", "bool")
            text, is_number = literal(node.value, self.computing), not math.isnan(node.value)
            return Value(text, self.computing, is_number=is_number)
        if not isinstance(node, Apply):
            return inputs[node.number]
        count, _ = OPERATIONS[node.operation]
        if len(node.arguments) != count:
            raise WorkloadError(
                f"{node.operation} takes {count} arguments, not {len(node.arguments)}"
            )
        # Constant powers become products or roots instead of a function.
        if node.operation == "pow" and isinstance(node.arguments[1], Number):
            base = self.value(node.arguments[0], inputs)
            return self._named(self._power(base, node.arguments[1].value))
        arguments = [self.value(argument, inputs) for argument in node.arguments]
        return self._named(self._applied(node.operation, arguments))

    def _named(self, value: Value) -> Value:
        if value.dtype == "bool":
            return value
        key = value.text, value.dtype
        if key not in self.names:
            self.names[key] = self.kernel.opaque(*key)
        return replace(value, text=self.names[key])

    def _applied(self, operation: str, arguments: list[Value]) -> Value:
        if operation in _LOGICAL:
            conditions = [condition(value) for value in arguments]
            return Value(_LOGICAL[operation].format(*conditions), "bool")
        if operation == "where":
            dtype = _common(arguments[1], arguments[2])
            first, second = (cast(value, dtype).text for value in arguments[1:])
            if dtype == "bool":
                test = condition(arguments[0])
                return Value(f"(({test} and {first}) or (not {test} and {second}))", "bool")
            return Value(f"T.Select({condition(arguments[0])}, {first}, {second})", dtype)
        if operation in _BINARY or operation in ("max", "min", "rem"):
            return self._binary(operation, arguments)
        if operation == "fma":
            a, b, c = (cast(value, "float32").text for value in arguments)
            return Value(f"T.fma({a}, {b}, {c})", "float32")
        return self._unary(operation, arguments[0])

    def _binary(self, operation: str, arguments: list[Value]) -> Value:
        dtype = _common(*arguments)
        if dtype == "bool" and operation in _OF_BOOLEANS:
            text = _OF_BOOLEANS[operation].format(*(value.text for value in arguments))
            return Value(text, "bool")
        if operation == "pow" and not dtype.startswith("float"):
            return self._integer_power(*(cast(value, dtype) for value in arguments))
        compares = operation in _COMPARISONS
        if dtype == "bool" and compares:
            dtype = "int32"
        operands = [cast(value, dtype) for value in arguments]
        # Operations that TVM would simplify or compute differently are functions of LLVM or libm.
        if operation in ("div", "rem") and not dtype.startswith("float"):
            return self._quotient(operation, *operands)
        if operation in ("add", "sub"):
            operands = [product_rounded(value) for value in operands]
        texts = [value.text for value in operands]
        if operation in ("max", "min"):
            return Value(_extremum_text(operation, operands, dtype), dtype)
        if operation == "rem":
            function = "fmodf" if dtype == "float32" else "fmod"
            return Value(f'T.call_pure_extern("{dtype}", "{function}", {", ".join(texts)})', dtype)
        if dtype.startswith("float") and operation != "pow":
            name, function = float_function(operation, dtype)
            self.kernel.include(name, function)
            result = "int32" if compares else dtype
            call = f'T.call_pure_extern("{result}", "{name}", {", ".join(texts)})'
            if compares:
                return Value(f"({call} != T.int32(0))", "bool")
            return Value(call, dtype, is_product=operation == "mul")
        text = _BINARY[operation].format(*texts)
        return Value(text, "bool" if compares else dtype)

    def _quotient(self, operation: str, value: Value, divisor: Value) -> Value:
        """Divide integers towards zero."""
        # In LLVM's language, because TVM would hoist the division above the guard against 0.
        if value.dtype == "bool":
            raise LoweringError("Booleans are not divided: convert them to integers")
        name, text = quotient_function(operation, value.dtype)
        self.kernel.include(name, text)
        call = f'T.call_pure_extern("{value.dtype}", "{name}", {value.text}, {divisor.text})'
        return Value(call, value.dtype)

    def _unary(self, operation: str, value: Value) -> Value:
        if value.dtype == "bool":
            value = cast(value, "int32")
        if operation in ("neg", "abs"):
            value = product_rounded(value)
            zero = literal(0, value.dtype)
            if operation == "neg":
                # 0 - x would lose the sign of a float's zero.
                text = f"{value.text} * {literal(-1, value.dtype)}"
                return Value(text if value.is_float else f"({zero} - {value.text})", value.dtype)
            return Value(f"T.abs({value.text})", value.dtype)
        if operation in ("floor", "ceil") and not value.is_float:
            return value
        if not value.is_float:
            value = cast(value, "float64")
        if operation in APPROXIMATIONS and value.dtype == "float32":
            x = product_rounded(value).text
            return Value(APPROXIMATIONS[operation](self.kernel.bind, x), "float32")
        if operation == "sigmoid":
            return Value(f"T.float64(1) / (T.float64(1) + T.exp(-{value.text}))", "float64")
        if operation == "round":
            return Value(round_to_even(value.text, value.dtype), value.dtype)
        # The remaining operations have the same names in TVM.
        return Value(f"T.{operation}({value.text})", value.dtype)

    def _power(self, base: Value, exponent: float | int) -> Value:
        """Return a constant power: products for small whole exponents, a root for 0.5."""
        if base.dtype == "bool":
            base = cast(base, "int32")
        is_whole = math.isfinite(exponent) and exponent == int(exponent)
        if not base.is_float and (exponent < 0 or not is_whole):
            raise LoweringError(f"integers to the power of {exponent}: convert them to floats")
        if base.is_float and abs(exponent) == 0.5:
            # Unlike a root, a power of -infinity is infinite, and one of -0 is 0.
            infinity, least = (literal(x, base.dtype) for x in (math.inf, -math.inf))
            root = f"T.abs(T.sqrt({base.text}))"
            root = self.kernel.bind(f"T.Select({base.text} == {least}, {infinity}, {root})")
            unit = literal(1, base.dtype)
            return Value(root if exponent > 0 else f"{unit} / {root}", base.dtype)
        if not base.is_float and exponent > _LARGEST_EXPONENT:
            return self._integer_power(base, Value(literal(exponent, base.dtype), base.dtype))
        if is_whole and abs(exponent) <= _LARGEST_EXPONENT:
            text = self._whole_power(base, int(abs(exponent)))
            if exponent < 0:
                text = f"{literal(1, base.dtype)} / {text}"
            return Value(text, base.dtype, is_product=base.is_float)
        return Value(f"T.pow({base.text}, {literal(exponent, base.dtype)})", base.dtype)

    def _whole_power(self, base: Value, exponent: int) -> str:
        """Return the product of the squares that the bits of the exponent select."""
        total, square = "", base.text
        while exponent:
            if exponent & 1:
                total = self.kernel.bind(f"{total} * {square}") if total else square
            exponent >>= 1
            if exponent:
                square = self.kernel.bind(f"{square} * {square}")
        return total or literal(1, base.dtype)

    def _integer_power(self, base: Value, exponent: Value) -> Value:
        """Return an integer power by the bits of its exponent."""
        # In LLVM's language: so many nested products would overwhelm TVM's analysis.
        name, text = power_function(base.dtype)
        self.kernel.include(name, text)
        call = f'T.call_pure_extern("{base.dtype}", "{name}", {base.text}, {exponent.text})'
        return Value(call, base.dtype)


def _extremum_text(operation: str, values: Sequence[Value], dtype: str) -> str:
    first, second = values
    if first.is_number or second.is_number:
        # TVM's operation, one comparison, returns the second value if one is NaN. With a number
        # first, that is right.
        first, second = (first, second) if first.is_number else (second, first)
        return f"T.{operation}({first.text}, {second.text})"
    return extremum(operation, first.text, second.text, dtype)


def _common(*values: Value) -> str:
    """Return the type in which numpy computes with both."""
    return str(np.result_type(*(np.dtype(value.dtype) for value in values)))


_LOGICAL = {"and": "({} and {})", "or": "({} or {})", "not": "(not {})"}
_OF_BOOLEANS = {
    "add": "({} or {})",
    "max": "({} or {})",
    "mul": "({} and {})",
    "min": "({} and {})",
}
_BINARY = {
    "add": "({} + {})",
    "sub": "({} - {})",
    "mul": "({} * {})",
    "div": "({} / {})",
    "pow": "T.pow({}, {})",
    "equal": "({} == {})",
    "less": "({} < {})",
    "less_equal": "({} <= {})",
}


def broadcast_index(shape: Sequence[int], rank: int) -> tuple[IndexExpr, ...]:
    """Return the index of a broadcast tensor's element at a point of ``rank`` axes."""
    last = axes(rank)[rank - len(shape) :]
    return tuple(constant(0) if size == 1 else e for size, e in zip(shape, last, strict=True))


def _effort(node: Scalar) -> float:
    """Return the time per byte of an expression's operands relative to copying it."""
    if not isinstance(node, Apply):
        return 1.0
    top = FUNCTION_EFFORT if node.operation in APPROXIMATIONS else _OPERATION_EFFORT
    return top + sum(_effort(argument) - 1.0 for argument in node.arguments) + 1.0


def elementwise_plan(kind: kinds.Elementwise, operands: Operands) -> KernelPlan:
    """Return the kernel of an expression."""
    (output,) = operands.outputs
    rank = len(output.shape)
    views = [View(output.layout, axes(rank))]
    views += [View(x.layout, broadcast_index(x.shape, rank)) for x in operands.inputs]
    # Loops follow the memory of the first view, the output.
    nest = nest_over(output.shape, views)
    kernel = Kernel(operands, operands.chunks(_effort(kind.expression)))
    computing = kind.computes_in([x.dtype for x in operands.inputs])
    writer = _Writer(kernel, computing)
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
    indices = axes(len(output.shape))
    nest = nest_over(output.shape, [View(output.layout, indices), View(source.layout, indices)])
    kernel = Kernel(operands, operands.chunks(EFFORT[kinds.Table]))
    entries = flat_storage(typed_array(kind.entries, kind.dtype))
    with kernel.body(), kernel.points(nest):
        # The first entry is that of the least integer.
        least = np.iinfo(source.dtype).min
        position = f'T.cast(in0[{nest.places[1]}], "int32") - {least}'
        kernel.script.line(f"out0[{nest.places[0]}] = {kernel.constant(entries, position)}")
    return kernel.plan("table")


def dynamic_quantize_plan(kind: kinds.DynamicQuantize, operands: Operands) -> KernelPlan:
    """Return the kernel that quantizes a tensor by its own range.

    NaNs are ignored in the range and stored as 0.
    """
    source, output = operands.inputs[0], operands.outputs[0]
    indices = axes(len(source.shape))
    views = [View(output.layout, indices), View(source.layout, indices)]
    reduction = Reduction.split(nest_over(source.shape, views, ordered_by=1), lambda loop: True)
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
        nest = nest_over(source.shape, views)
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
