"""Floats of eight bits and fewer, and integers of four and two, which networks hold in bytes.

A byte holds the value of such an integer, or the bits of such a float. Reading a float is looking
it up; rounding one is arithmetic on the bits of a float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from cpembed.frontends.emitter import Emitter
from cpembed.frontends.expressions import X, Y, add, less, mul, sub, where
from cpembed.graph.kinds import Bitcast, Scalar, Table
from cpembed.graph.kinds.base import Array
from cpembed.ir.scalars import apply

INTEGERS: Mapping[str, tuple[str, int]] = {
    "int4": ("int8", 4),
    "uint4": ("uint8", 4),
    "int2": ("int8", 2),
    "uint2": ("uint8", 2),
}
"""Integers of fewer than eight bits: the type of their bytes, and their number of bits."""


@dataclass(frozen=True)
class Format:
    """Format of narrow floats.

    Attributes
    ----------
    mantissa : int
        Number of bits of the mantissa.
    bias : int
        Bias of the exponent.
    largest : int
        Bits of the largest finite number.
    overflow, nan : int
        Bits of what a number beyond the largest becomes where it does not saturate, and of a NaN.
    infinite : int
        Bits of what an infinity becomes where it saturates.
    is_signed : bool
        False where zero has no sign: the bits of -0 are those of the NaN.
    sign : int
        Bit of the sign.
    """

    mantissa: int
    bias: int
    largest: int
    overflow: int
    nan: int
    infinite: int
    is_signed: bool = True
    sign: int = 0x80


FLOATS: Mapping[str, Format] = {
    "float8_e4m3fn": Format(3, 7, 0x7E, 0x7F, 0x7F, 0x7E),
    "float8_e4m3fnuz": Format(3, 8, 0x7F, 0x80, 0x80, 0x7F, False),
    "float8_e5m2": Format(2, 15, 0x7B, 0x7C, 0x7E, 0x7B),
    "float8_e5m2fnuz": Format(2, 16, 0x7F, 0x80, 0x80, 0x7F, False),
    "float4_e2m1fn": Format(1, 1, 0x7, 0x7, 0x8, 0x7, sign=0x8),
}
"""Formats with a sign, by their names in ml_dtypes."""
EXPONENT = "float8_e8m0fnu"
"""Format of powers of two without a sign."""

IN_BYTES: Mapping[str, str] = {
    **{name: dtype for name, (dtype, _) in INTEGERS.items()},
    **dict.fromkeys((*FLOATS, EXPONENT), "uint8"),
}
"""Types of the bytes that hold narrow types."""


def bytes_of(array: Array) -> Array:
    """Convert an array of a narrow type to its bytes; return any other array unchanged."""
    name = str(array.dtype)
    if name in INTEGERS:
        return array.astype(INTEGERS[name][0])
    return array.view(np.uint8) if name in IN_BYTES else array


def widened(call: Emitter, x: str, narrow: str) -> str:
    """Emit the values of narrow floats in float32; integers are their bytes.

    Parameters
    ----------
    call : Emitter
    x : str
        Tensor of bytes.
    narrow : str
        The type that they hold.
    """
    if narrow in INTEGERS:
        return x
    bits = np.arange(256, dtype=np.uint8)
    mask = 0xF if narrow == "float4_e2m1fn" else 0xFF
    values = (bits & mask).view(np.dtype(getattr(ml_dtypes, narrow))).astype(np.float32)
    return call.emit(Table(tuple(values.tolist()), "float32"), x)


def narrowed(
    call: Emitter, x: str, narrow: str, *, saturates: bool = True, rounding: str = "up"
) -> str:
    """Emit the bytes of values in a narrow type.

    Parameters
    ----------
    call : Emitter
    x : str
        Tensor of numbers.
    narrow : str
        The type.
    saturates : bool
        True if floats beyond the largest become that, instead of infinite or no numbers.
    rounding : str
        Direction in which powers of two are rounded: ``up``, ``down`` or ``nearest``.
    """
    if narrow in INTEGERS:
        dtype, bits = INTEGERS[narrow]
        integers = call.cast(x, "int32")
        mask = (1 << bits) - 1
        low: Scalar = apply("bit_and", X, mask)
        if dtype == "int8":
            low = sub(apply("bit_xor", low, 1 << (bits - 1)), 1 << (bits - 1))
        return call.elementwise(low, integers, dtype=dtype)
    x = call.cast(x, "float32")
    if narrow == EXPONENT:
        return _exponents(call, x, rounding)
    return _rounded(call, x, FLOATS[narrow], saturates)


def _rounded(call: Emitter, x: str, form: Format, saturates: bool) -> str:
    """Round floats to the nearest even number of a format."""
    bits = call.emit(Bitcast("int32"), x)
    # Below the smallest normal number the format's numbers are multiples of one unit, and so their
    # bits are the number of units: a product and a rounding, neither of which is inexact otherwise.
    units = mul(apply("abs", X), 2.0 ** (form.bias - 1 + form.mantissa))
    least = (127 - form.bias + 1) << 23
    small = call.elementwise(apply("round", apply("min", units, 1024.0)), x, dtype="int32")
    size = apply("bit_and", X, 0x7FFFFFFF)
    dropped = 23 - form.mantissa
    odd = apply("bit_and", apply("shift_right", size, dropped), 1)
    moved = sub(size, (127 - form.bias) << 23)
    normal = apply("shift_right", add(add(moved, (1 << (dropped - 1)) - 1), odd), dropped)
    rounded = where(less(size, least), Y, normal)
    beyond = form.largest if saturates else form.overflow
    rounded = where(less(form.largest, rounded), beyond, rounded)
    infinite = form.infinite if saturates else beyond
    rounded = where(apply("equal", size, 0x7F800000), infinite, rounded)
    sign = where(less(X, 0), form.sign, 0)
    if not form.is_signed:
        # A zero has no sign, and a NaN is the sign alone.
        sign = where(apply("equal", rounded, 0), 0, sign)
        sign = where(apply("equal", rounded, form.nan), 0, sign)
    result = apply("bit_or", rounded, sign)
    is_nan = less(0x7F800000, size)
    nan = apply("bit_or", form.nan, where(less(X, 0), form.sign, 0)) if form.is_signed else form.nan
    return call.elementwise(where(is_nan, nan, result), bits, small, dtype="uint8")


def _exponents(call: Emitter, x: str, rounding: str) -> str:
    """Round positive floats to powers of two, of which the exponents are stored."""
    bits = call.emit(Bitcast("int32"), x)
    carry = {"up": 0x7FFFFF, "down": 0, "nearest": 0x400000}[rounding]
    exponent = apply("min", apply("shift_right", add(X, carry), 23), 254)
    # Half of the smallest normal number is the smallest power.
    exponent = where(less(0x400000, X), exponent, 0)
    # A NaN, and a negative number but -0, is none.
    is_power = apply("and", apply("less_equal", X, 0x7F800000), less(-1, X))
    is_power = apply("or", is_power, apply("equal", X, -(2**31)))
    return call.elementwise(where(is_power, exponent, 255), bits, dtype="uint8")
