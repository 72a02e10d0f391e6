"""Scalar expressions of :mod:`cpembed.graph.kinds.elementwise` as TVMScript.

Types are numpy's: Booleans are conditions, a quotient of integers is float64, and so on. The
compiler contracts a product and a sum into one operation with one rounding; where the definition
rounds twice, the product passes through ``llvm.canonicalize``, which keeps it whole and which the
vectoriser knows.

Where NaNs differ from numpy: a maximum or a minimum of a NaN and a number is one of the two, and
converted to an integer a NaN becomes 0 as there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from cpembed.errors import LoweringError, WorkloadError
from cpembed.graph.kinds.elementwise import OPERATIONS, Apply, Number, Scalar
from cpembed.network.generated.approximations import APPROXIMATIONS
from cpembed.network.generated.emission import Kernel
from cpembed.network.generated.intrinsics import nearest, quotient_function, rounded_product
from cpembed.network.generated.placed import stored


@dataclass(frozen=True)
class Value:
    """The text of a value, and its type; ``is_product``: a sum would swallow its rounding;
    ``is_number``: it is a constant."""

    text: str
    dtype: str
    is_product: bool = False
    is_number: bool = False

    @property
    def is_float(self) -> bool:
        return self.dtype.startswith("float")


@dataclass(frozen=True)
class Writer:
    """Writes expressions into a kernel; ``computing`` is the type of numbers in them."""

    kernel: Kernel
    computing: str

    @property
    def let(self) -> Callable[[str], str]:
        return self.kernel.let

    def value(self, node: Scalar, inputs: Mapping[int, Value]) -> Value:
        """The value of an expression, all but trivial parts of it named.

        Raises :class:`WorkloadError` for a wrong number of arguments.
        """
        if isinstance(node, Number):
            if isinstance(node.value, bool):
                return Value(f"T.bool({node.value})", "bool")
            return Value(literal(node.value, self.computing), self.computing, is_number=True)
        if not isinstance(node, Apply):
            return inputs[node.number]
        count, _ = OPERATIONS[node.operation]
        if len(node.arguments) != count:
            raise WorkloadError(
                f"{node.operation} takes {count} arguments, not {len(node.arguments)}"
            )
        if node.operation == "pow" and isinstance(node.arguments[1], Number):
            base = self.value(node.arguments[0], inputs)
            return self._named(self._power(base, node.arguments[1].value))
        arguments = [self.value(argument, inputs) for argument in node.arguments]
        return self._named(self._applied(node.operation, arguments))

    def _named(self, value: Value) -> Value:
        return value if value.dtype == "bool" else replace(value, text=self.let(value.text))

    def _applied(self, operation: str, given: list[Value]) -> Value:
        if operation in _LOGICAL:
            taken = [condition(value) for value in given]
            return Value(_LOGICAL[operation].format(*taken), "bool")
        if operation == "where":
            dtype = _common(given[1], given[2])
            first, second = (self.cast(value, dtype).text for value in given[1:])
            if dtype == "bool":
                test = condition(given[0])
                return Value(f"(({test} and {first}) or (not {test} and {second}))", "bool")
            return Value(f"T.Select({condition(given[0])}, {first}, {second})", dtype)
        if operation in _BINARY or operation == "rem":
            return self._binary(operation, given)
        if operation == "fma":
            a, b, c = (self.cast(value, "float32").text for value in given)
            return Value(f"T.fma({a}, {b}, {c})", "float32")
        return self._unary(operation, given[0])

    def _binary(self, operation: str, given: list[Value]) -> Value:
        dtype = _common(*given)
        if dtype == "bool" and operation in _OF_BOOLEANS:
            text = _OF_BOOLEANS[operation].format(*(value.text for value in given))
            return Value(text, "bool")
        if operation == "pow" and not dtype.startswith("float"):
            return self._integer_power(*(self.cast(value, dtype) for value in given))
        if dtype == "bool" and operation in ("equal", "less", "less_equal"):
            dtype = "int32"
        taken = [self.cast(value, dtype) for value in given]
        if operation in ("div", "rem") and not dtype.startswith("float"):
            return self._quotient(operation, *taken)
        if operation in ("add", "sub"):
            taken = [whole(value) for value in taken]
        if operation in ("max", "min") and taken[1].is_number:
            # Of a NaN and the second one, the second one is taken.
            taken.reverse()
        texts = [value.text for value in taken]
        if operation == "rem":
            function = "fmodf" if dtype == "float32" else "fmod"
            return Value(f'T.call_pure_extern("{dtype}", "{function}", {", ".join(texts)})', dtype)
        text = _BINARY[operation].format(*texts)
        if operation in ("equal", "less", "less_equal"):
            return Value(text, "bool")
        return Value(text, dtype, operation == "mul" and dtype.startswith("float"))

    def _quotient(self, operation: str, value: Value, divisor: Value) -> Value:
        """Of integers, towards zero, in LLVM's language: TVM would compute a quotient before it is
        known whether there is one."""
        if value.dtype == "bool":
            raise LoweringError("Booleans are not divided: convert them to integers")
        name, text = quotient_function(operation, value.dtype)
        self.kernel.include(name, text)
        call = f'T.call_pure_extern("{value.dtype}", "{name}", {value.text}, {divisor.text})'
        return Value(call, value.dtype)

    def _unary(self, operation: str, value: Value) -> Value:
        if value.dtype == "bool":
            value = self.cast(value, "int32")
        if operation in ("neg", "abs"):
            value = whole(value)
            zero = literal(0, value.dtype)
            if operation == "neg":
                # A float's sign is turned, also that of 0.
                text = f"{value.text} * {literal(-1, value.dtype)}"
                return Value(text if value.is_float else f"({zero} - {value.text})", value.dtype)
            return Value(f"T.abs({value.text})", value.dtype)
        if operation in ("floor", "ceil") and not value.is_float:
            return value
        if not value.is_float:
            value = self.cast(value, "float64")
        if operation in APPROXIMATIONS and value.dtype == "float32":
            return Value(APPROXIMATIONS[operation](self.let, whole(value).text), "float32")
        if operation == "sigmoid":
            return Value(f"T.float64(1) / (T.float64(1) + T.exp(-{value.text}))", "float64")
        if operation == "round":
            return Value(nearest(value.text, value.dtype), value.dtype)
        return Value(f"T.{_UNARY[operation]}({value.text})", value.dtype)

    def _power(self, base: Value, exponent: float | int) -> Value:
        """A constant power: products where it is whole and small, a root where it is one."""
        if base.dtype == "bool":
            base = self.cast(base, "int32")
        if not base.is_float and (exponent < 0 or exponent != int(exponent)):
            raise LoweringError(f"integers to the power of {exponent}: convert them to floats")
        if base.is_float and abs(exponent) == 0.5:
            root = f"T.sqrt({base.text})"
            one = literal(1, base.dtype)
            return Value(root if exponent > 0 else f"{one} / {root}", base.dtype)
        if exponent == int(exponent) and (abs(exponent) <= 64 or not base.is_float):
            text = self._whole_power(base, int(abs(exponent)))
            if exponent < 0:
                text = f"{literal(1, base.dtype)} / {text}"
            return Value(text, base.dtype, base.is_float)
        return Value(f"T.pow({base.text}, {literal(exponent, base.dtype)})", base.dtype)

    def _whole_power(self, base: Value, exponent: int) -> str:
        total, square = "", base.text
        while exponent:
            if exponent & 1:
                total = self.let(f"{total} * {square}") if total else square
            exponent >>= 1
            if exponent:
                square = self.let(f"{square} * {square}")
        return total or literal(1, base.dtype)

    def _integer_power(self, base: Value, exponent: Value) -> Value:
        """By the bits of an exponent that is not negative."""
        one, total, square = literal(1, base.dtype), literal(1, base.dtype), base.text
        for bit in range(31):
            odd = (
                f"T.bitwise_and(T.shift_right({exponent.text}, {literal(bit, base.dtype)}), {one})"
            )
            total = self.let(f"{total} * T.Select({odd} == {one}, {square}, {one})")
            square = self.let(f"{square} * {square}")
        return Value(total, base.dtype)

    def cast(self, value: Value, dtype: str) -> Value:
        """As another computing type."""
        if value.dtype == dtype:
            return value
        if value.dtype == "bool" and dtype.startswith("float"):
            # A cast of a condition that is known would be taken for an integer's.
            one, zero = literal(1, dtype), literal(0, dtype)
            return Value(f"T.Select({value.text}, {one}, {zero})", dtype)
        return Value(f'T.cast({value.text}, "{dtype}")', dtype)

    def converted(self, value: Value, dtype: str) -> str:
        """What is stored: floats to integers rounded to the nearest even and saturated."""
        if dtype == "bool":
            return f'T.cast({condition(value)}, "uint8")'
        if value.dtype == "bool":
            value = Value(f'T.cast({value.text}, "int32")', "int32")
        if dtype == "bfloat16":
            return f'T.cast({self._bfloat16_bits(value)}, "uint16")'
        if value.is_float and not dtype.startswith("float"):
            return self._rounded(value, dtype)
        text = value.text
        if value.dtype == "float64" and dtype == "float16":
            text = f'T.cast({text}, "float32")'
        return text if value.dtype == dtype else f'T.cast({text}, "{stored(dtype)}")'

    def _rounded(self, value: Value, dtype: str) -> str:
        limits = np.iinfo(dtype)
        kind = value.dtype
        whole_number = self.let(nearest(self.number(value.text, kind), kind))
        top = np.dtype(kind).type(limits.max)
        if int(top) <= limits.max:
            clipped = limited(whole_number, kind, limits.min, limits.max)
            wide = "int32" if limits.max < 2**31 else "int64"
            text = f'T.cast({clipped}, "{wide}")'
            return text if wide == dtype else f'T.cast({text}, "{dtype}")'
        # The largest integer is no float: what reaches it is chosen apart.
        below = float(np.nextafter(top, np.dtype(kind).type(0)))
        clipped = limited(whole_number, kind, limits.min, below)
        wide = "int64" if dtype in ("uint32", "uint64") else dtype
        if dtype == "uint64":
            below = float(np.nextafter(np.dtype(kind).type(2**63), np.dtype(kind).type(0)))
            clipped = limited(whole_number, kind, 0, below)
        converted = f'T.cast(T.cast({clipped}, "{wide}"), "{dtype}")'
        reached = f"{whole_number} >= {literal(float(top), kind)}"
        exact = float(limits.max)
        # Of 64 bits the largest float64 below it is stored, as the definition says.
        largest = limits.max if int(exact) <= limits.max else int(np.nextafter(exact, 0.0))
        return f"T.Select({reached}, {literal(largest, dtype)}, {converted})"

    def number(self, text: str, dtype: str) -> str:
        """A float, or 0 where it is none."""
        # A comparison of a NaN with itself would be folded: its bits tell.
        value = Value(self.let(text), dtype)
        return self.let(f"T.Select({is_nan(value)}, {literal(0, dtype)}, {value.text})")

    def _bfloat16_bits(self, value: Value) -> str:
        text = self.cast(value, "float32").text
        bits = self.let(f'T.reinterpret({text}, dtype="uint32")')
        odd = f"T.bitwise_and(T.shift_right({bits}, T.uint32(16)), T.uint32(1))"
        rounded = f"T.shift_right({bits} + T.uint32(32767) + {odd}, T.uint32(16))"
        sign = f"T.bitwise_and(T.shift_right({bits}, T.uint32(16)), T.uint32(32768))"
        return f"T.Select({is_nan(Value(text, 'float32'))}, {sign} + T.uint32(32704), {rounded})"


def limited(text: str, dtype: str, low: float, high: float) -> str:
    """A value within limits; a NaN stays one."""
    return f"T.max({literal(low, dtype)}, T.min({literal(high, dtype)}, {text}))"


def is_nan(value: Value) -> str:
    """Whether a float is none, by its bits: the compiler takes numbers to be numbers."""
    bits, infinity = _BITS[value.dtype]
    return f"{_magnitude(value)} > T.{bits}({infinity})"


_BITS = {"float32": ("int32", 0x7F800000), "float64": ("int64", 0x7FF0000000000000)}
"""The integer of a float's bits, and the bits of infinity."""


def _magnitude(value: Value) -> str:
    """The bits of a float without its sign."""
    bits, _ = _BITS[value.dtype]
    pattern = f'T.reinterpret({value.text}, dtype="{bits}")'
    return f"T.bitwise_and({pattern}, T.{bits}({np.iinfo(bits).max}))"


def whole(value: Value) -> Value:
    """A product that is rounded before it is added to."""
    if not value.is_product:
        return value
    return Value(rounded_product(value.text, value.dtype), value.dtype)


def condition(value: Value) -> str:
    if value.dtype == "bool":
        return value.text
    if value.dtype in _BITS:
        # A NaN is not 0, which the compiler does not know.
        return f"({_magnitude(value)} != T.{_BITS[value.dtype][0]}(0))"
    return f"({value.text} != {literal(0, value.dtype)})"


def literal(value: float | int, dtype: str) -> str:
    """A constant that is this number and no neighbour.

    >>> literal(3, "int32"), literal(0.1, "float32"), literal(-np.inf, "float32")
    ('T.int32(3)', 'T.float32(0.10000000149011612)', 'T.float32("-inf")')
    """
    if dtype == "bool":
        return f"T.bool({bool(value)})"
    if not dtype.startswith("float"):
        return f"T.{dtype}({int(value)})"
    with np.errstate(over="ignore"):
        exact = float(np.dtype(dtype).type(value))
    return f"T.{dtype}({exact!r})" if math.isfinite(exact) else f'T.{dtype}("{exact}")'


def _common(*values: Value) -> str:
    """The type in which numpy computes with both."""
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
    "max": "T.max({}, {})",
    "min": "T.min({}, {})",
    "pow": "T.pow({}, {})",
    "equal": "({} == {})",
    "less": "({} < {})",
    "less_equal": "({} <= {})",
}
_UNARY = {
    "exp": "exp",
    "log": "log",
    "sqrt": "sqrt",
    "erf": "erf",
    "tanh": "tanh",
    "sin": "sin",
    "cos": "cos",
    "floor": "floor",
    "ceil": "ceil",
}
