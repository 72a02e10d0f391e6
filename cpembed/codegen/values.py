"""Values in the text of generated kernels: literals, conversions, operations written for LLVM.

TVM simplifies expressions as if floats were real numbers. Where NaNs, infinities or signed zeros
matter, kernels test bits or call functions in LLVM's language, which TVM does not simplify.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from cpembed.codegen.plan import bfloat16_bits, read, storage_dtype
from cpembed.errors import LoweringError
from cpembed.ir.dtypes import as_stored
from cpembed.ir.scalars import Array

Bind = Callable[[str], str]
"""Function that names the text of a value and returns the name."""


def round_to_even(value: str, dtype: str = "float32") -> str:
    """Round a float to the nearest whole number, ties to even."""
    return _intrinsic("nearbyint", value, dtype)


def rounded_product(value: str, dtype: str = "float32") -> str:
    """Return a product that is rounded before something is added to it.

    LLVM contracts a product and a sum into one operation with one rounding. If the product is
    multiplied by a 1 that the compiler does not know (:func:`one_function`), the contraction of
    that multiplication rounds like the two operations.
    """
    # ``llvm.canonicalize`` would do as well, but crashes LLVM's code generator for x86 on vectors
    # of two floats.
    return f"({value}) * {one_name(dtype)}"


def extremum(operation: str, first: str, second: str, dtype: str, lanes: int = 1) -> str:
    """Return the larger (``max``) or smaller (``min``) of two values; NaN if one is NaN.

    Parameters
    ----------
    operation : str
    first, second : str
        Texts of the values.
    dtype : str
    lanes : int, default 1
        Length of the vectors that are compared.
    """
    if not dtype.startswith("float"):
        return f"T.{operation}({first}, {second})"
    # TVM's operation would return the second value if one is NaN.
    kind = dtype if lanes == 1 else f"{dtype}x{lanes}"
    return _intrinsic(f"{operation}imum", f"{first}, {second}", kind)


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
    """Return name and text of an operation on two floats; comparisons yield 0 or 1 (int32)."""
    # TVM would simplify x - x, x * 0 and 0 / x to 0, and "not less" to "at least". LLVM keeps to
    # the standard.
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


def one_name(dtype: str) -> str:
    """Return the name of the 1 in a kernel that multiplies by it."""
    return f"one_{dtype}"


def one_function(dtype: str) -> tuple[str, str]:
    """Return name and text of a function whose result, 1, the compiler does not know."""
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
    """Return name and text of a division of integers towards zero (``div``), or the remainder.

    The result is 0 for divisor 0. Processors trap on the one quotient that exceeds the type, the
    least integer by -1, so quotients by -1 are computed without dividing.
    """
    kind, name = f"i{dtype.removeprefix('int')}", f"cpembed_{operation}_{dtype}"
    negated = f"sub {kind} 0, %a" if operation == "div" else f"and {kind} %a, 0"
    return (
        name,
        f"""
define internal {kind} @{name}({kind} %a, {kind} %b) alwaysinline {{
  %none = icmp eq {kind} %b, 0
  %minus = icmp eq {kind} %b, -1
  %refused = or i1 %none, %minus
  %divisor = select i1 %refused, {kind} 1, {kind} %b
  %usual = s{operation} {kind} %a, %divisor
  %opposite = {negated}
  %other = select i1 %minus, {kind} %opposite, {kind} %usual
  %result = select i1 %none, {kind} 0, {kind} %other
  ret {kind} %result
}}
""",
    )


def power_function(dtype: str) -> tuple[str, str]:
    """Return name and text of an integer power, modulo the type; 1 for negative exponents."""
    # Repeated squaring: the loop runs once per bit of the exponent.
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


def storage_type(dtype: str) -> str:
    """Return the element type in memory; raise :class:`LoweringError` if there is none.

    >>> storage_type("bool"), storage_type("bfloat16"), storage_type("int8")
    ('uint8', 'uint16', 'int8')
    """
    return "uint8" if dtype == "bool" else storage_dtype(dtype)


def flat_storage(values: Array) -> Array:
    """Return elements as a flat array of their storage type."""
    return as_stored(np.ascontiguousarray(values).reshape(-1))


def typed_array(values: Sequence[float | int], dtype: str) -> Array:
    """Return an array of a type, bfloat16 included."""
    if dtype != "bfloat16":
        return np.asarray(values, dtype)
    import ml_dtypes

    return np.asarray(values, ml_dtypes.bfloat16)


def load_as(element: str, dtype: str, target: str) -> str:
    """Return an element in memory as a value of another type (``bool``: a condition).

    Parameters
    ----------
    element : str
        Text of the element.
    dtype : str
        Type of the tensor.
    target : str
        Type of the value.

    Examples
    --------
    >>> load_as("A[i]", "bool", "bool"), load_as("A[i]", "uint8", "int32")
    ('(A[i] != T.uint8(0))', 'T.cast(A[i], "int32")')
    """
    if target == "bool":
        if dtype != "bool":
            raise LoweringError(f"an element of {dtype} is no Boolean: convert it first")
        return f"({element} != T.uint8(0))"
    if dtype == "bool":
        return f'T.cast({element}, "{target}")'
    return read(element, dtype, target)


@dataclass(frozen=True)
class Value:
    """Text of a value, and its type.

    Attributes
    ----------
    is_product : bool
        True if a sum would be contracted with it and drop its rounding.
    is_number : bool
        True for a constant other than NaN.
    """

    text: str
    dtype: str
    is_product: bool = False
    is_number: bool = False

    @property
    def is_float(self) -> bool:
        """True if the value is a float."""
        return self.dtype.startswith("float")


def cast(value: Value, dtype: str) -> Value:
    """Convert a value to another type of arithmetic."""
    if value.dtype == dtype:
        return value
    if value.dtype == "bool" and dtype.startswith("float"):
        # TVM would take the cast of a constant condition for that of an integer.
        unit, zero = literal(1, dtype), literal(0, dtype)
        return Value(f"T.Select({value.text}, {unit}, {zero})", dtype)
    return Value(f'T.cast({value.text}, "{dtype}")', dtype)


def converted(bind: Bind, value: Value, dtype: str) -> str:
    """Return a value in the storage type of a tensor; floats are rounded to integers and saturated.

    Parameters
    ----------
    bind : callable
        Function that names a value.
    value : Value
    dtype : str
        Type of the tensor.
    """
    if dtype == "bool":
        return f'T.cast({condition(value)}, "uint8")'
    if value.dtype == "bool":
        value = Value(f'T.cast({value.text}, "int32")', "int32")
    if dtype == "bfloat16":
        text = cast(value, "float32").text
        bits = bind(f'T.reinterpret({text}, dtype="uint32")')
        return f'T.cast({bfloat16_bits(text, bits)}, "uint16")'
    if value.is_float and not dtype.startswith("float"):
        return _rounded(bind, value, dtype)
    text = value.text
    if value.dtype == "float64" and dtype == "float16":
        # By way of float32, as the definition rounds.
        text = f'T.cast({text}, "float32")'
    return text if value.dtype == dtype else f'T.cast({text}, "{storage_type(dtype)}")'


def _rounded(bind: Bind, value: Value, dtype: str) -> str:
    limits = np.iinfo(dtype)
    kind = value.dtype
    whole_number = bind(round_to_even(nan_to_zero(bind, value.text, kind), kind))
    top = np.dtype(kind).type(limits.max)
    if int(top) <= limits.max:
        clipped = clamped(whole_number, kind, limits.min, limits.max)
        wide = "int32" if limits.max < 2**31 else "int64"
        text = f'T.cast({clipped}, "{wide}")'
        return text if wide == dtype else f'T.cast({text}, "{dtype}")'
    # The largest integer is no float of this type: values that reach it are selected in the end,
    # and all others are clamped to the next float below it.
    below = float(np.nextafter(top, np.dtype(kind).type(0)))
    clipped = clamped(whole_number, kind, limits.min, below)
    wide = "int64" if dtype in ("uint32", "uint64") else dtype
    result = f'T.cast(T.cast({clipped}, "{wide}"), "{dtype}")'
    if dtype == "uint64":
        result = _unsigned(bind, whole_number, kind)
    reached = f"{whole_number} >= {literal(float(top), kind)}"
    exact = float(limits.max)
    # For 64 bits the definition saturates at the largest float64 below the integer.
    largest = limits.max if int(exact) <= limits.max else int(np.nextafter(exact, 0.0))
    return f"T.Select({reached}, {literal(largest, dtype)}, {result})"


def whole_cast(text: str, dtype: str) -> str:
    """Convert a float that is a whole number within an integer type to that type."""
    wide = "int64" if np.dtype(dtype).itemsize == 8 else "int32"
    integer = f'T.cast({text}, "{wide}")'
    return integer if wide == dtype else f'T.cast({integer}, "{dtype}")'


def _unsigned(bind: Bind, whole_number: str, kind: str) -> str:
    """Convert to uint64 by way of int64; from 2^63 on the highest bit is added afterwards."""
    half = literal(2.0**63, kind)
    below = float(np.nextafter(np.dtype(kind).type(2**63), np.dtype(kind).type(0)))
    is_upper = bind(f"{whole_number} >= {half}")
    rest = bind(f"T.Select({is_upper}, {whole_number} - {half}, {whole_number})")
    lower = f'T.cast(T.cast({clamped(rest, kind, 0, below)}, "int64"), "uint64")'
    return f"{lower} + T.Select({is_upper}, {literal(2**63, 'uint64')}, T.uint64(0))"


def nan_to_zero(bind: Bind, text: str, dtype: str) -> str:
    """Return a float, or 0 for NaN.

    Parameters
    ----------
    bind : callable
        Function that names a value.
    text, dtype : str
        Value and its type.
    """
    value = Value(bind(text), dtype)
    return bind(f"T.Select({is_nan(value)}, {literal(0, dtype)}, {value.text})")


def clamped(text: str, dtype: str, low: float, high: float) -> str:
    """Return a value clamped to limits; NaN stays NaN.

    Parameters
    ----------
    text, dtype : str
        Value and its type.
    low, high : float
        Limits.
    """
    return f"T.max({literal(low, dtype)}, T.min({literal(high, dtype)}, {text}))"


def is_nan(value: Value) -> str:
    """Return the test whether a float is NaN."""
    # TVM would fold the comparison of a value with itself, so the bits are tested.
    bits, infinity = _BITS[value.dtype]
    return f"{_magnitude(value)} > T.{bits}({infinity})"


# Integer type of a float's bits, and the bits of infinity.
_BITS = {"float32": ("int32", 0x7F800000), "float64": ("int64", 0x7FF0000000000000)}


def _magnitude(value: Value) -> str:
    """Return the bits of a float without its sign."""
    bits, _ = _BITS[value.dtype]
    pattern = f'T.reinterpret({value.text}, dtype="{bits}")'
    return f"T.bitwise_and({pattern}, T.{bits}({np.iinfo(bits).max}))"


def product_rounded(value: Value) -> Value:
    """Return a value for a sum: a product is rounded first."""
    if not value.is_product:
        return value
    return Value(rounded_product(value.text, value.dtype), value.dtype)


def condition(value: Value) -> str:
    """Return the test whether a value is not 0."""
    if value.dtype == "bool":
        return value.text
    if value.dtype in _BITS:
        # A NaN is not 0, but TVM knows no NaN: the bits are tested.
        return f"({_magnitude(value)} != T.{_BITS[value.dtype][0]}(0))"
    return f"({value.text} != {literal(0, value.dtype)})"


def literal(value: float | int, dtype: str) -> str:
    """Return a constant that is exactly this number.

    >>> literal(3, "int32"), literal(0.1, "float32"), literal(-np.inf, "float32")
    ('T.int32(3)', 'T.float32(0.10000000149011612)', 'T.float32("-inf")')
    """
    if dtype == "bool":
        return f"T.bool({bool(value)})"
    if not dtype.startswith("float"):
        if value > np.iinfo(np.int64).max:
            # TVMScript has no literals beyond int64.
            return f"T.bitwise_not(T.uint64({2**64 - 1 - int(value)}))"
        return f"T.{dtype}({int(value)})"
    with np.errstate(over="ignore"):
        exact = float(np.dtype(dtype).type(value))
    return f"T.{dtype}({exact!r})" if math.isfinite(exact) else f'T.{dtype}("{exact}")'
