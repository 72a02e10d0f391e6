"""Quantization and what is taken back from it, as nodes of their own."""

from __future__ import annotations

import numpy as np

from cpembed.errors import WorkloadError
from cpembed.frontends.expressions import X, Y, Z, add, apply, div, mul, sub
from cpembed.frontends.onnx.operators.elementwise import element_type
from cpembed.frontends.onnx.site import Site, Translation
from cpembed.graph.kinds import Dequantize, DynamicQuantize, Quantize
from cpembed.graph.kinds.base import Array, axis_of


def scales(scale: Array) -> tuple[float, ...]:
    return tuple(float(value) for value in scale.astype(np.float32).reshape(-1))


def zeros(zero: Array | None) -> tuple[int, ...]:
    """Zero points; one that all channels share once."""
    values = (0,) if zero is None else tuple(int(value) for value in zero.reshape(-1))
    return values[:1] if len({*values}) == 1 else values


def parameter_axis(site: Site, tensor: str, count: int, axis: int) -> int:
    """Which axis has an element of the parameters for each index; 0 for one of all."""
    shape = site.shape(tensor)
    if count == 1:
        return 0
    place = axis_of(axis, len(shape))
    if shape[place] != count:
        raise WorkloadError(
            f"{count} scales or zero points for the {shape[place]} indices of axis {place}"
        )
    return place


def _check_scales(site: Site, scale: Array, divides: bool) -> None:
    """Refuse scales that are no numbers, and where it is divided by them 0."""
    if not np.isfinite(scale).all() or (divides and not scale.all()):
        value = next(s for s in scale.reshape(-1) if not np.isfinite(s) or (divides and s == 0))
        site.refuse(f"a scale of {value}: give finite numbers{' other than 0' if divides else ''}")


def quantized(
    site: Site, x: str, scale: Array, zero: Array | None, dtype: str, axis: int = 1
) -> str:
    """A tensor of floats in integers."""
    _check_scales(site, scale, divides=True)
    s, z = scales(scale), zeros(zero)
    place = parameter_axis(site, x, max(len(s), len(z)), axis)
    return site.emit(Quantize(s, z, dtype, place), x)


def dequantized(site: Site, q: str, scale: Array, zero: Array | None, axis: int = 1) -> str:
    """A tensor of integers in floats."""
    _check_scales(site, scale, divides=False)
    s, z = scales(scale), zeros(zero)
    place = parameter_axis(site, q, max(len(s), len(z)), axis)
    return site.emit(Dequantize(s, z, place), q)


def _check_blocks(site: Site) -> None:
    if site.whole("block_size", 0):
        site.refuse("scales of blocks are not read: quantize by tensors or channels")


def quantize_linear(site: Site) -> str:
    _check_blocks(site)
    x, scale, zero = site.input(0), site.input(1), site.optional(2)
    dtype = element_type(site, "output_dtype", "uint8" if zero is None else site.dtype(zero))
    if zero is not None and dtype != site.dtype(zero):
        site.refuse(f"output_dtype is {dtype}, and the zero point {site.dtype(zero)}: give one")
    if np.dtype(dtype).kind not in "iu":
        site.refuse(f"integers of type {dtype} are not read: use int8 or uint8")
    s = site.builder.value(scale)
    z = None if zero is None else site.builder.value(zero)
    if s is not None and (zero is None or z is not None):
        return quantized(site, x, s, z, dtype, site.whole("axis", 1))
    if site.type_of(scale).elements != 1:
        site.refuse("scales of channels are computed while the network runs")
    one, zero = site.reshaped(scale, ()), site.reshaped(zero or site.tensor(0, dtype), ())
    return site.elementwise(add(apply("round", div(X, Y)), Z), x, one, zero, dtype=dtype)


def dequantize_linear(site: Site) -> str:
    _check_blocks(site)
    q, scale, zero = site.input(0), site.input(1), site.optional(2)
    s = site.builder.value(scale)
    z = None if zero is None else site.builder.value(zero)
    if np.dtype(site.type().dtype).kind not in "iu":
        site.refuse(f"integers of type {site.type().dtype} are not read: use int8 or uint8")
    if s is not None and (zero is None or z is not None):
        result = dequantized(site, q, s, z, site.whole("axis", 1))
        return site.cast(result, element_type(site, "output_dtype", str(s.dtype)))
    if site.type_of(scale).elements != 1:
        site.refuse("scales of channels are computed while the network runs")
    one = site.reshaped(scale, ())
    nought = site.reshaped(zero or site.tensor(0, site.type().dtype), ())
    return site.elementwise(mul(sub(X, Z), Y), q, one, nought, dtype="float32")


def dynamic_quantize(site: Site) -> tuple[str, ...]:
    return site.emit_all(DynamicQuantize(), site.input())


TABLE: dict[str, Translation] = {
    "QuantizeLinear": quantize_linear,
    "com.microsoft.QuantizeLinear": quantize_linear,
    "DequantizeLinear": dequantize_linear,
    "com.microsoft.DequantizeLinear": dequantize_linear,
    "DynamicQuantizeLinear": dynamic_quantize,
}
