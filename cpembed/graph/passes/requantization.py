"""Expressions that round and store as epilogues and quantizations do, bit for bit."""

from __future__ import annotations

from cpembed.codegen.epilogue import BYTES, Epilogue, Residual, saturated_range
from cpembed.graph.kinds import Scalar
from cpembed.graph.passes.expressions import apply
from cpembed.graph.passes.quantization import float32
from cpembed.ir.dtypes import is_integer


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
