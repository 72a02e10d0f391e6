"""Values of generated kernels as TVMScript: constants, conditions, conversions between types.

The compiler takes floats to be numbers: where a NaN matters, its bits tell.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from cpembed.codegen.script import read, storage_dtype
from cpembed.errors import LoweringError
from cpembed.graph.kinds.base import Array


def nearest(value: str, dtype: str = "float32") -> str:
    """A float rounded to the nearest whole number, to the even one of two."""
    return _intrinsic("nearbyint", value, dtype)


def rounded_product(value: str, dtype: str = "float32") -> str:
    """A product that is rounded by itself. The compiler contracts a product and a sum into one
    operation with one rounding; here that becomes one with the product times :func:`one_function`,
    which the compiler does not know to be 1, and rounds as both would. (``llvm.canonicalize`` would
    do as well, but ends LLVM's code generator for x86 where vectors are of two floats.)"""
    return f"({value}) * {ones(dtype)}"


def maximum(first: str, second: str, dtype: str, lanes: int = 1) -> str:
    """The larger of two, of floats a NaN where one of both is (TVM's would be the second one); of
    vectors with so many ``lanes``."""
    return _extremum("max", first, second, dtype, lanes)


def minimum(first: str, second: str, dtype: str, lanes: int = 1) -> str:
    """The smaller of two, likewise."""
    return _extremum("min", first, second, dtype, lanes)


def _extremum(what: str, first: str, second: str, dtype: str, lanes: int) -> str:
    if not dtype.startswith("float"):
        return f"T.{what}({first}, {second})"
    kind = dtype if lanes == 1 else f"{dtype}x{lanes}"
    return _intrinsic(f"{what}imum", f"{first}, {second}", kind)


_FLOAT_OPERATIONS = {
    "add": "fadd",
    "sub": "fsub",
    "mul": "fmul",
    "div": "fdiv",
    "equal": "fcmp oeq",
    "less": "fcmp olt",
    "less_equal": "fcmp ole",
}


def float_function(operation: str, dtype: str) -> tuple[str, str]:
    """The name and the text of an operation on two floats, a comparison as 0 or 1 (int32). TVM's
    simplifications take floats for numbers: x - x, x * 0 and 0 / x would become 0, and what is not
    less would be at least as large. LLVM keeps to the standard."""
    kind, name = {"float32": "float", "float64": "double"}[dtype], f"cpembed_{operation}_{dtype}"
    instruction = _FLOAT_OPERATIONS[operation]
    result = "i32" if instruction.startswith("fcmp") else kind
    last = "  %result = zext i1 %value to i32\n" if result != kind else ""
    return (
        name,
        f"""
define internal {result} @{name}({kind} %a, {kind} %b) alwaysinline {{
  {"%value" if last else "%result"} = {instruction} {kind} %a, %b
{last}  ret {result} %result
}}
""",
    )


def ones(dtype: str) -> str:
    """The name of 1 in a kernel that multiplies by it."""
    return f"one_{dtype}"


def one_function(dtype: str) -> tuple[str, str]:
    """The name and the text of a function that returns 1, of which the compiler knows nothing."""
    kind, name = {"float32": "float", "float64": "double"}[dtype], f"cpembed_one_{dtype}"
    return (
        name,
        f"""
define internal {kind} @{name}() alwaysinline {{
  %place = alloca {kind}
  store volatile {kind} 1.0, ptr %place
  %result = load volatile {kind}, ptr %place
  ret {kind} %result
}}
""",
    )


def _intrinsic(name: str, value: str, dtype: str) -> str:
    number = f'T.llvm_lookup_intrinsic_id("llvm.{name}")'
    return f'T.call_llvm_pure_intrin({number}, {value}, dtype="{dtype}")'


def quotient_function(operation: str, dtype: str) -> tuple[str, str]:
    """The name and the text of a division of integers towards zero (``div``) or of its remainder
    (``rem``): 0 where the divisor is, and without the one quotient that is no number of the
    type, which processors refuse as well."""
    kind, name = f"i{dtype.removeprefix('int')}", f"cpembed_{operation}_{dtype}"
    of_minus = f"sub {kind} 0, %a" if operation == "div" else f"and {kind} %a, 0"
    return (
        name,
        f"""
define internal {kind} @{name}({kind} %a, {kind} %b) alwaysinline {{
  %none = icmp eq {kind} %b, 0
  %minus = icmp eq {kind} %b, -1
  %refused = or i1 %none, %minus
  %divisor = select i1 %refused, {kind} 1, {kind} %b
  %usual = s{operation} {kind} %a, %divisor
  %opposite = {of_minus}
  %other = select i1 %minus, {kind} %opposite, {kind} %usual
  %result = select i1 %none, {kind} 0, {kind} %other
  ret {kind} %result
}}
""",
    )


def power_function(dtype: str) -> tuple[str, str]:
    """The name and the text of an integer's power, of which the lowest bits are kept; of a negative
    exponent it is 1."""
    kind, name = f"i{dtype.removeprefix('int')}", f"cpembed_power_{dtype}"
    return (
        name,
        f"""
define internal {kind} @{name}({kind} %base, {kind} %exponent) {{
start:
  %any = icmp sgt {kind} %exponent, 0
  br i1 %any, label %step, label %done
step:
  %left = phi {kind} [ %exponent, %start ], [ %fewer, %step ]
  %square = phi {kind} [ %base, %start ], [ %next, %step ]
  %total = phi {kind} [ 1, %start ], [ %taken, %step ]
  %bit = and {kind} %left, 1
  %odd = icmp ne {kind} %bit, 0
  %product = mul {kind} %total, %square
  %taken = select i1 %odd, {kind} %product, {kind} %total
  %next = mul {kind} %square, %square
  %fewer = lshr {kind} %left, 1
  %more = icmp ne {kind} %fewer, 0
  br i1 %more, label %step, label %done
done:
  %result = phi {kind} [ 1, %start ], [ %taken, %step ]
  ret {kind} %result
}}
""",
    )


def stored(dtype: str) -> str:
    """The element type in memory.

    >>> stored("bool"), stored("bfloat16"), stored("int8")
    ('uint8', 'uint16', 'int8')

    Raises :class:`LoweringError` for a type that kernels do not hold.
    """
    return "uint8" if dtype == "bool" else storage_dtype(dtype)


def memory_of(values: Array) -> Array:
    """A flat array as memory holds it."""
    values = np.ascontiguousarray(values).reshape(-1)
    if values.dtype == np.bool_:
        return values.astype(np.uint8)
    return values.view(np.uint16) if values.dtype.name == "bfloat16" else values


def numbers(values: Sequence[float | int], dtype: str) -> Array:
    """An array of a type, bfloat16 included."""
    if dtype != "bfloat16":
        return np.asarray(values, dtype)
    import ml_dtypes

    return np.asarray(values, ml_dtypes.bfloat16)


def loaded(element: str, dtype: str, into: str) -> str:
    """An element in memory, as a value of another type (``bool``: a condition).

    >>> loaded("A[i]", "bool", "bool"), loaded("A[i]", "uint8", "int32")
    ('(A[i] != T.uint8(0))', 'T.cast(A[i], "int32")')
    """
    if into == "bool":
        if dtype != "bool":
            raise LoweringError(f"an element of {dtype} is no Boolean: convert it first")
        return f"({element} != T.uint8(0))"
    if dtype == "bool":
        return f'T.cast({element}, "{into}")'
    return read(element, dtype, into)


Let = Callable[[str], str]
"""Gives a name to the text of a value."""


@dataclass(frozen=True)
class Value:
    """The text of a value, and its type; ``is_product``: a sum would swallow its rounding;
    ``is_number``: it is a constant that is no NaN."""

    text: str
    dtype: str
    is_product: bool = False
    is_number: bool = False

    @property
    def is_float(self) -> bool:
        return self.dtype.startswith("float")


def cast(value: Value, dtype: str) -> Value:
    """As another computing type."""
    if value.dtype == dtype:
        return value
    if value.dtype == "bool" and dtype.startswith("float"):
        # A cast of a condition that is known would be taken for an integer's.
        one, zero = literal(1, dtype), literal(0, dtype)
        return Value(f"T.Select({value.text}, {one}, {zero})", dtype)
    return Value(f'T.cast({value.text}, "{dtype}")', dtype)


def converted(let: Let, value: Value, dtype: str) -> str:
    """What is stored: floats to integers rounded to the nearest even and saturated."""
    if dtype == "bool":
        return f'T.cast({condition(value)}, "uint8")'
    if value.dtype == "bool":
        value = Value(f'T.cast({value.text}, "int32")', "int32")
    if dtype == "bfloat16":
        return f'T.cast({_bfloat16_bits(let, value)}, "uint16")'
    if value.is_float and not dtype.startswith("float"):
        return _rounded(let, value, dtype)
    text = value.text
    if value.dtype == "float64" and dtype == "float16":
        text = f'T.cast({text}, "float32")'
    return text if value.dtype == dtype else f'T.cast({text}, "{stored(dtype)}")'


def _rounded(let: Let, value: Value, dtype: str) -> str:
    limits = np.iinfo(dtype)
    kind = value.dtype
    whole_number = let(nearest(number(let, value.text, kind), kind))
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
    converted = f'T.cast(T.cast({clipped}, "{wide}"), "{dtype}")'
    if dtype == "uint64":
        converted = _unsigned(let, whole_number, kind)
    reached = f"{whole_number} >= {literal(float(top), kind)}"
    exact = float(limits.max)
    # Of 64 bits the largest float64 below it is stored, as the definition says.
    largest = limits.max if int(exact) <= limits.max else int(np.nextafter(exact, 0.0))
    return f"T.Select({reached}, {literal(largest, dtype)}, {converted})"


def _unsigned(let: Let, whole_number: str, kind: str) -> str:
    """As uint64, by conversions to int64: what is 2^63 or more without its highest bit."""
    half = literal(2.0**63, kind)
    below = float(np.nextafter(np.dtype(kind).type(2**63), np.dtype(kind).type(0)))
    is_upper = let(f"{whole_number} >= {half}")
    rest = let(f"T.Select({is_upper}, {whole_number} - {half}, {whole_number})")
    lower = f'T.cast(T.cast({limited(rest, kind, 0, below)}, "int64"), "uint64")'
    return f"{lower} + T.Select({is_upper}, {literal(2**63, 'uint64')}, T.uint64(0))"


def number(let: Let, text: str, dtype: str) -> str:
    """A float, or 0 where it is none."""
    # A comparison of a NaN with itself would be folded: its bits tell.
    value = Value(let(text), dtype)
    return let(f"T.Select({is_nan(value)}, {literal(0, dtype)}, {value.text})")


def _bfloat16_bits(let: Let, value: Value) -> str:
    text = cast(value, "float32").text
    bits = let(f'T.reinterpret({text}, dtype="uint32")')
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
        if value > np.iinfo(np.int64).max:
            # TVMScript has no larger numbers.
            return f"T.bitwise_not(T.uint64({2**64 - 1 - int(value)}))"
        return f"T.{dtype}({int(value)})"
    with np.errstate(over="ignore"):
        exact = float(np.dtype(dtype).type(value))
    return f"T.{dtype}({exact!r})" if math.isfinite(exact) else f'T.{dtype}("{exact}")'
