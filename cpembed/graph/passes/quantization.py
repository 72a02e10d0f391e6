"""Quantized tensors: how a graph represents them, limits of their scales, requantization."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cpembed.codegen.epilogue import BYTES, Epilogue, Residual
from cpembed.graph.graph import Array, Graph, Operator
from cpembed.graph.kinds import Dequantize, Quantize, Scalar
from cpembed.graph.passes.rewriting import producer_of
from cpembed.ir.dtypes import dtype_info, is_integer, saturated_range
from cpembed.ir.scalars import apply

LARGEST_SCALE = 2.0**48
"""Maximum scale of a tensor that passes change. With two such scales, sums of 2^15 products of
bytes are finite in float32, as are the sums of integers that replace them."""

# An integer of 32 bits times this is finite in float32.
_LARGEST_FACTOR = 2.0**96

# A difference of two bytes times this is some 2^21, of which float32 keeps three fraction bits.
_LARGEST_TERM = 2.0**12


@dataclass(frozen=True)
class Quantized:
    """Tensor of integers of eight bits that stands for ``(q - zero_point) * scale``."""

    tensor: str
    dtype: str
    scale: float
    zero_point: int


def integer_range(dtype: str) -> tuple[int, int]:
    """Return the least and the largest number of an integer type."""
    return dtype_info(dtype).integer_range


def dequantized(graph: Graph, tensor: str) -> Quantized | None:
    """Return the per-tensor quantized bytes that a tensor of floats is dequantized from."""
    producer = producer_of(graph, tensor, Dequantize)
    if producer is None:
        return None
    operator, kind = producer
    dtype = graph.types[operator.inputs[0]].dtype
    if dtype not in BYTES or not is_per_tensor(kind):
        return None
    return Quantized(operator.inputs[0], dtype, float32(kind.scale[0]), kind.zero_point[0])


def is_per_tensor(kind: Quantize | Dequantize) -> bool:
    """True for one zero point and one scale, positive and at most :data:`LARGEST_SCALE`."""
    scale = float32(kind.scale[0])
    return len(kind.scale) == len(kind.zero_point) == 1 and 0 < scale <= LARGEST_SCALE


def byte_quantization(operator: Operator | None) -> Quantize | None:
    """Return the kind of an operator that quantizes to bytes per tensor, if it does."""
    if operator is None or not isinstance(operator.kind, Quantize):
        return None
    kind = operator.kind
    return kind if is_per_tensor(kind) and kind.dtype in BYTES else None


def quantized_value(value: float, kind: Quantize) -> int:
    """Return the integer that a number is quantized to; infinities saturate."""
    (array,) = kind.evaluate([np.asarray([value], np.float32)])
    return int(array[0])


def quantized_clip(clip: tuple[float, float], kind: Quantize) -> tuple[int, int] | None:
    """Return the integers of clip bounds; None if they are the limits of the type."""
    low, high = (quantized_value(bound, kind) for bound in clip)
    return None if (low, high) == integer_range(kind.dtype) else (low, high)


def are_safe_factors(*factors: Array | float, sums: bool = False) -> bool:
    """True if combined scales can multiply integers in float32 without overflow.

    Parameters
    ----------
    *factors : array or float
        Combined scales.
    sums : bool, default False
        True if the factors multiply bytes and the products are added: sums must be rounded by less
        than 1.
    """
    # A scale near 0 makes a quotient of scales infinite. Times 0, or added to one of the other
    # sign, it would yield NaN, although each quotient by itself is a number.
    largest = _LARGEST_TERM if sums else _LARGEST_FACTOR
    return all(bool(np.all(np.abs(factor) <= largest)) for factor in factors)


def float32(value: float) -> float:
    """Return the nearest float32, in which kernels compute."""
    return float(np.float32(value))


def requantized(
    epilogue: Epilogue, sums: Scalar, scale: Scalar | None, residual: Scalar | None
) -> Scalar:
    """Write an epilogue as an expression in float32, equal bit for bit.

    Parameters
    ----------
    epilogue : Epilogue
    sums : Scalar
        Sums with their bias.
    scale, residual : Scalar or None
        Elements of the epilogue's scale and residual, if it has them.

    Returns
    -------
    Scalar
        Result before its conversion to the epilogue's type.
    """
    value = sums
    if scale is not None:
        value = apply("mul", value, scale)
    if epilogue.relu:
        value = apply("max", value, 0.0)
    # Some epilogues round the sums to integers before they add a residual.
    rounds = epilogue.residual is None or epilogue.residual.rounds
    if is_integer(epilogue.dtype) and rounds:
        bounds = saturated_range(epilogue.dtype)
        if epilogue.dtype in BYTES:
            bounds = epilogue.stored_range
        value = clipped(apply("round", value), bounds)
    if epilogue.residual is not None and residual is not None:
        return _with_residual(epilogue, epilogue.residual, value, residual)
    return offset(value, epilogue.zero_point)


def _with_residual(epilogue: Epilogue, residual: Residual, value: Scalar, addend: Scalar) -> Scalar:
    if epilogue.dtype not in BYTES:
        value = apply("add", value, addend)
        return apply("max", value, 0.0) if residual.relu else value
    scaled = apply("mul", offset(addend, -residual.zero_point), float32(residual.scale))
    rounded = apply("round", apply("fma", value, float32(residual.own_scale), scaled))
    return offset(clipped(rounded, epilogue.residual_range), residual.stored_zero_point)


def clipped(value: Scalar, bounds: tuple[float, float]) -> Scalar:
    """Return a value clipped to two bounds."""
    low, high = bounds
    return apply("min", apply("max", value, float(low)), float(high))


def offset(value: Scalar, distance: int) -> Scalar:
    """Add a whole number to a value."""
    return apply("add", value, float(distance)) if distance else value
