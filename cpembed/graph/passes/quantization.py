"""Questions about quantized tensors that several passes ask."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cpembed.codegen.epilogue import BYTES, Epilogue, Residual, saturated_range
from cpembed.graph.graph import Graph, Operator
from cpembed.graph.kinds import Dequantize, Quantize, Scalar
from cpembed.graph.passes.expressions import apply
from cpembed.graph.passes.rewriting import Array, producer_of
from cpembed.ir.dtypes import dtype_info, is_integer

LARGEST_SCALE = 2.0**48
"""With two such, products of bytes and sums of 2^15 of them are finite in float32, as the sums of
integers that take their place are."""


_LARGEST_FACTOR = 2.0**96
"""Times an integer of 32 bits finite in float32."""

_LARGEST_TERM = 2.0**12
"""Times a difference of two bytes some 2^21, of which float32 keeps three bits after the point."""


@dataclass(frozen=True)
class Quantized:
    """A tensor of integers of eight bits that stands for ``(q - zero_point) * scale``."""

    tensor: str
    dtype: str
    scale: float
    zero_point: int


def range_of(dtype: str) -> tuple[int, int]:
    """Least and largest of an integer type."""
    return dtype_info(dtype).integer_range


def dequantized(graph: Graph, tensor: str) -> Quantized | None:
    """The integers of eight bits, of one scale, that a tensor of floats was made of."""
    found = producer_of(graph, tensor, Dequantize)
    if found is None:
        return None
    operator, kind = found
    dtype = graph.types[operator.inputs[0]].dtype
    if dtype not in BYTES or not is_plain(kind):
        return None
    return Quantized(operator.inputs[0], dtype, float32(kind.scale[0]), kind.zero_point[0])


def is_plain(kind: Quantize | Dequantize) -> bool:
    """Whether one scale, above 0 and no larger than :data:`LARGEST_SCALE`, and one zero point are
    those of all elements."""
    scale = float32(kind.scale[0])
    return len(kind.scale) == len(kind.zero_point) == 1 and 0 < scale <= LARGEST_SCALE


def quantizing(operator: Operator | None) -> Quantize | None:
    """The kind of an operator that makes integers of eight bits of one scale."""
    if operator is None or not isinstance(operator.kind, Quantize):
        return None
    kind = operator.kind
    return kind if is_plain(kind) and kind.dtype in BYTES else None


def stored(value: float, kind: Quantize) -> int:
    """The integer that a number becomes; infinity the last one."""
    (array,) = kind.evaluate([np.asarray([value], np.float32)])
    return int(array[0])


def stored_limits(limits: tuple[float, float], kind: Quantize) -> tuple[int, int] | None:
    """The integers that limits become; None where those are the limits of the type."""
    low, high = (stored(limit, kind) for limit in limits)
    return None if (low, high) == range_of(kind.dtype) else (low, high)


def are_factors(*factors: Array | float, sums: bool = False) -> bool:
    """Whether integers times these combined scales are finite in float32, and of bytes, where the
    products are added (``sums``), rounded by less than one. A scale next to 0 makes a quotient of
    scales infinite: times 0, or beside one of the other sign, that would be no number, where each
    quotient by itself is one."""
    largest = _LARGEST_TERM if sums else _LARGEST_FACTOR
    return all(bool(np.all(np.abs(factor) <= largest)) for factor in factors)


def float32(value: float) -> float:
    return float(np.float32(value))


def requantized(
    epilogue: Epilogue, sums: Scalar, scale: Scalar | None, residual: Scalar | None
) -> Scalar:
    """What an epilogue stores of sums with their bias, computed in float32; ``scale`` and
    ``residual`` are the elements of those that it takes. Conversion to its type remains."""
    value = sums
    if scale is not None:
        value = apply("mul", value, scale)
    if epilogue.relu:
        value = apply("max", value, 0.0)
    rounds = epilogue.residual is None or epilogue.residual.rounds
    if is_integer(epilogue.dtype) and rounds:
        limits = saturated_range(epilogue.dtype)
        if epilogue.dtype in BYTES:
            limits = epilogue.stored_range
        value = clipped(apply("round", value), *limits)
    if epilogue.residual is not None and residual is not None:
        return _added(epilogue, epilogue.residual, value, residual)
    return moved(value, epilogue.zero_point)


def _added(epilogue: Epilogue, residual: Residual, value: Scalar, other: Scalar) -> Scalar:
    if epilogue.dtype not in BYTES:
        value = apply("add", value, other)
        return apply("max", value, 0.0) if residual.relu else value
    scaled = apply("mul", moved(other, -residual.zero_point), float32(residual.scale))
    whole = apply("round", apply("fma", value, float32(residual.own_scale), scaled))
    return moved(clipped(whole, *epilogue.residual_range), residual.stored_zero_point)


def clipped(value: Scalar, low: float, high: float) -> Scalar:
    return apply("min", apply("max", value, float(low)), float(high))


def moved(value: Scalar, distance: int) -> Scalar:
    """A whole number moved by another."""
    return apply("add", value, float(distance)) if distance else value
