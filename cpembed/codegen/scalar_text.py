"""Text of scalar expressions: what elementwise kernels and epilogues of products compute.

Types of expressions are numpy's: Booleans are conditions, a root of integers is float64, and so on.
Infinities, NaNs and signed zeros are numpy's too (:func:`~cpembed.codegen.values.float_function`).
The compiler contracts a product and a sum into one rounding; where the definition rounds twice, the
product is a :func:`~cpembed.codegen.values.rounded_product`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from cpembed.codegen.approximations import APPROXIMATIONS
from cpembed.codegen.plan import Script
from cpembed.codegen.values import (
    Value,
    cast,
    condition,
    extremum,
    float_function,
    literal,
    power_function,
    product_rounded,
    quotient_function,
    round_to_even,
)
from cpembed.errors import LoweringError, WorkloadError
from cpembed.ir.scalars import OF_BITS, OPERATIONS, Apply, Number, Scalar

# Maximum whole exponent of a constant power that is computed by products.
_LARGEST_EXPONENT = 64

_COMPARISONS = ("equal", "less", "less_equal")
_OF_TWO_BITS = OF_BITS - {"bit_not"}


class Statements:
    """Statements of a kernel, and the functions in LLVM's language that they call.

    Attributes
    ----------
    functions : dict from str to str
        Text of each function by its name.
    """

    def __init__(self, script: Script) -> None:
        self.script = script
        self.functions: dict[str, str] = {}
        self._names = 0

    def name(self, start: str) -> str:
        """Return a name that nothing else has."""
        self._names += 1
        return f"{start}{self._names}"

    def bind(self, value: str) -> str:
        """Write the computation of a value and return its name."""
        name = self.name("v")
        self.script.line(f"{name}: T.let = {value}")
        return name

    def opaque(self, value: str, dtype: str) -> str:
        """Name a value so that TVM's analysis does not look through the name.

        It must not be used in vectorized loops.
        """
        # The analysis expands named values again and again, in time exponential in their nesting;
        # it does not expand elements of a buffer. A buffer of another than the default scope would
        # be taken from the workspace, of which a library has few blocks, instead of registers.
        name = self.name("kept")
        self.script.line(f'{name} = T.alloc_buffer((1,), "{dtype}")')
        self.script.line(f"{name}[0] = {value}")
        return f"{name}[0]"

    def include(self, name: str, text: str) -> None:
        """Add a function in LLVM's language that the kernel calls."""
        self.functions[name] = text


@dataclass(frozen=True)
class ScalarWriter:
    """Writer of expressions into a kernel.

    Attributes
    ----------
    computing : str
        Type of the arithmetic.
    names : dict from (str, str) to str
        Names of values of the current element, by text and type: equal parts are computed once.
    """

    kernel: Statements
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
        if operation in _BINARY or operation in ("max", "min", "rem") or operation in _OF_TWO_BITS:
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
        if dtype == "bool" and (compares or operation in OF_BITS):
            dtype = "int32"
        operands = [cast(value, dtype) for value in arguments]
        # Operations that TVM would simplify or compute differently are functions of LLVM or libm.
        if operation in ("div", "rem") and not dtype.startswith("float"):
            return self._quotient(operation, *operands)
        if operation in ("add", "sub"):
            operands = [product_rounded(value) for value in operands]
        texts = [value.text for value in operands]
        if operation in OF_BITS:
            return self._of_bits(operation, texts, dtype)
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

    def _of_bits(self, operation: str, texts: list[str], dtype: str) -> Value:
        if dtype.startswith("float"):
            raise LoweringError(f"{operation} of {dtype}, whose bits are no integer")
        if not operation.startswith("shift"):
            return Value(f"T.{operation.replace('bit_', 'bitwise_')}({', '.join(texts)})", dtype)
        # A processor takes the count modulo the bits, so it is kept within them.
        value, count = texts
        bits = 8 * np.dtype(dtype).itemsize
        inside = f"({count} >= {literal(0, dtype)} and {count} < {literal(bits, dtype)})"
        last = literal(bits - 1, dtype)
        if operation == "shift_right":
            return Value(f"T.shift_right({value}, T.Select({inside}, {count}, {last}))", dtype)
        shifted = f"T.shift_left({value}, T.Select({inside}, {count}, {literal(0, dtype)}))"
        return Value(f"T.Select({inside}, {shifted}, {literal(0, dtype)})", dtype)

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
        if operation == "bit_not":
            return self._of_bits(operation, [value.text], value.dtype)
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
