"""Values of generated kernels as TVMScript: constants, conditions, conversions between types.

The compiler takes floats to be numbers: where a NaN matters, its bits tell.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from cpembed.network.operators.intrinsics import nearest, rounded_product
from cpembed.network.operators.placed import stored

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
