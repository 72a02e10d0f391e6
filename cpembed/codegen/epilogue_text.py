"""Epilogues as TVMScript: one expression of the sum, the vectors' elements and the residual's."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from cpembed.codegen.epilogue import BYTES, Epilogue
from cpembed.codegen.plan import bfloat16_bits
from cpembed.codegen.values import literal
from cpembed.errors import LoweringError
from cpembed.ir.dtypes import saturated_range

# The last bit of a float32 between 2^23 and 2^24 counts 1, so that adding this number rounds to an
# integer, to nearest even; the lower bits of the sum are the integer in two's complement.
_ROUNDING = 3 << 22
"""Number whose addition rounds a float32 of a magnitude below 2^22 to an integer."""
_ROUNDING_BITS = int(np.float32(_ROUNDING).view(np.int32))
"""Bits of that number, which those of a rounded sum exceed by the integer."""


def relu_text(value: str) -> str:
    """Return the larger of a float32 and 0, where a maximum with a NaN is its second argument."""
    # TVM's maximum of a NaN and a number is the second, so in this order a NaN remains one.
    return f"T.max(T.float32(0), {value})"


def result_text(
    epilogue: Epilogue,
    value: str,
    sums: str,
    channel: str,
    residual: str = "",
    relu: Callable[[str], str] = relu_text,
) -> str:
    """Return the result as one expression of TVMScript; that of a chain is statements.

    Parameters
    ----------
    epilogue : Epilogue
    value : str
        Sum, of type ``sums``.
    sums : str
        Type of the sum.
    channel : str
        Index of the element of the vectors.
    residual : str
        Element of the residual, if there is one.
    relu : callable
        Function that returns the text of a ReLU of a float32, which keeps NaN.

    Raises
    ------
    LoweringError
        The epilogue has a chain, which :mod:`cpembed.codegen.emit` writes.
    """
    if epilogue.chain is not None:
        raise LoweringError("a chain of elementwise operators has no text as one expression")
    if epilogue.in_integers(sums):
        return _integer(epilogue, _with_bias(epilogue, value, channel), sums)
    value = float_text(epilogue, value, sums, channel, relu)
    if epilogue.residual is not None:
        return _added(epilogue, value, residual, relu)
    return _converted(epilogue, value)


def _with_bias(epilogue: Epilogue, value: str, channel: str) -> str:
    return f"({value} + Bias[{channel}])" if epilogue.bias else value


def float_text(
    epilogue: Epilogue,
    value: str,
    sums: str,
    channel: str,
    relu: Callable[[str], str] = relu_text,
) -> str:
    """Return the float32 after bias, scale and ReLU as TVMScript.

    Parameters
    ----------
    epilogue : Epilogue
    value, sums, channel, relu
        Those of :func:`result_text`.
    """
    value = _with_bias(epilogue, value, channel)
    if sums != "float32":
        value = f'T.cast({value}, "float32")'
    if epilogue.scale:
        value = f"{value} * Scale[{channel}]"
    return relu(value) if epilogue.relu else value


def _added(epilogue: Epilogue, value: str, addend: str, relu: Callable[[str], str]) -> str:
    residual = epilogue.residual
    assert residual is not None
    if epilogue.dtype == "float32":
        value = f"({value} + {addend})"
        return relu(value) if residual.relu else value
    if residual.rounds:
        # A network that stores the product before it adds rounds it there.
        low, high = epilogue.stored_range
        # TVM has no vectors of T.nearbyint: its statement would be computed lane by lane, half a
        # millisecond for 56x56x64 results. It folds a number that is added and subtracted, hence
        # the difference of bits.
        bits = _rounded_bits(_clipped(value, low, high))
        value = f'T.cast({bits} - T.int32({_ROUNDING_BITS}), "float32")'
    offset = f'T.cast(T.cast({addend}, "int32") - {residual.zero_point}, "float32")'
    product = f"{offset} * {literal(residual.scale, 'float32')}"
    value = f"T.fma({value}, {literal(residual.own_scale, 'float32')}, {product})"
    low, high = epilogue.residual_range
    return _byte_bits(value, epilogue.dtype, low, high, residual.stored_zero_point)


def _integer(epilogue: Epilogue, value: str, sums: str) -> str:
    if epilogue.shift:
        value = f"T.shift_right({value}, T.{sums}({epilogue.shift}))"
    if epilogue.relu:
        value = f"T.max({value}, T.{sums}(0))"
    if epilogue.wraps:
        return f'T.cast({value}, "{epilogue.dtype}")'
    if epilogue.dtype == sums and epilogue.clip is None:
        return value
    low, high = epilogue.range
    return f'T.cast(T.max(T.min({value}, T.{sums}({high})), T.{sums}({low})), "{epilogue.dtype}")'


def _converted(epilogue: Epilogue, value: str) -> str:
    if epilogue.dtype == "float32":
        return value
    if epilogue.dtype == "float16":
        return f'T.cast({value}, "float16")'
    if epilogue.dtype == "bfloat16":
        return f'T.cast({bfloat16_bits(value)}, "uint16")'
    if epilogue.dtype in BYTES:
        return _byte_bits(value, epilogue.dtype, *epilogue.stored_range, epilogue.zero_point)
    # Clipped before the conversion, which is undefined for values beyond the type's range.
    low, high = saturated_range(epilogue.dtype)
    clipped = f"T.max(T.min({value}, T.float32({high})), T.float32({low}))"
    return f'T.cast(T.nearbyint({clipped}), "{epilogue.dtype}")'


def _clipped(value: str, low: int, high: int) -> str:
    # TVM's minimum of a NaN and a number is the second.
    return f"T.max(T.min({value}, T.float32({high})), T.float32({low}))"


def _rounded_bits(value: str) -> str:
    return f'T.reinterpret({value} + T.float32({_ROUNDING}), dtype="int32")'


def _byte_bits(value: str, dtype: str, low: int, high: int, zero_point: int) -> str:
    """Return the byte of a float32: clipped, rounded, and offset by the zero point."""
    # The low eight bits of an int32 instead of a conversion, which LLVM does lane by lane for some
    # vectors (half the time of a 1x1 layer from 64 to 256 channels).
    rounded = _rounded_bits(_clipped(value, low, high))
    stored = f"{rounded} + T.int32({zero_point})" if zero_point else rounded
    return f'T.cast({stored}, "{dtype}")'
