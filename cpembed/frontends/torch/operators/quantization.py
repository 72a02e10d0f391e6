"""Quantization of PT2E: scales and zero points, static or of a tensor's own range."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from cpembed.frontends import expressions as e
from cpembed.frontends.expressions import X, Y, Z
from cpembed.frontends.torch.call import Call, Handler
from cpembed.graph.kinds import Dequantize, DynamicQuantize, Quantize
from cpembed.graph.kinds.base import Array


def _vector(call: Call, value: Any) -> Array:
    """Return a scale or zero point as a vector."""
    if value is None:
        return np.zeros(1)
    elements = call.value(value) if isinstance(value, str) else np.asarray([value])
    if elements is None:
        call.reject("scale and zero point are computed while the model runs: quantize statically")
    return elements.reshape(-1)


def _parameters(call: Call, scale: Any, zero: Any) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Return scales and zero points, a single one where all are equal."""
    scales = tuple(float(np.float32(s)) for s in _vector(call, scale).tolist())
    zeros = tuple(int(z) for z in _vector(call, zero).tolist())
    scales = scales[:1] if len(set(scales)) == len(set(zeros)) == 1 else scales
    return scales, zeros[:1] if len(set(zeros)) == 1 else zeros


def _quantized(call: Call, x: str, scale: Any, zero: Any, dtype: str) -> str:
    """Emit a quantization whose range may be smaller than that of the type.

    A single scale limits the floats, as an activation would.
    """
    scales, zeros = _parameters(call, scale, zero)
    limits = np.iinfo(dtype)
    low = None if call["quant_min"] <= limits.min else call["quant_min"]
    high = None if call["quant_max"] >= limits.max else call["quant_max"]
    kind = Quantize(scales, zeros, dtype, call.axis(x, call.get("axis") or 0))
    x = call.cast(x, "float32")
    if low is None and high is None:
        return call.emit(kind, x)
    if max(len(scales), len(zeros)) > 1:
        return call.elementwise(e.clip(X, low, high), call.emit(kind, x))
    ends = [None if end is None else float((end - zeros[0]) * scales[0]) for end in (low, high)]
    return call.emit(kind, call.elementwise(e.clip(X, *ends), x))


def _check_type(call: Call, dtype: str) -> None:
    if dtype not in ("int8", "uint8", "int32"):
        call.reject(f"values are quantized to {dtype}: only int8, uint8 and int32 are known")


def _quantize(call: Call, scale: str, zero: str) -> str:
    x, dtype = call["input"], call["dtype"]
    _check_type(call, dtype)
    source, integers = call.dynamic.get(call[scale], ("", ""))
    if source != x:
        return _quantized(call, x, call[scale], call[zero], dtype)
    if (call["quant_min"], call["quant_max"], dtype) != (0, 255, "uint8"):
        call.reject("a tensor is quantized by its own range to uint8 only")
    # The zero point belongs to the scale.
    call.without_effect(zero)
    return integers


def _dequantize(call: Call, scale: str, zero: str) -> str:
    q, result = call["input"], call.result.dtype
    # The range to which the integers were limited has no effect any more.
    call.without_effect("quant_min", "quant_max", "out_dtype", zero, "axis")
    if call[scale] in call.dynamic:
        value = e.mul(e.sub(X, Y), Z)
        return call.elementwise(value, q, call[zero], call[scale], dtype=result)
    _check_type(call, call.dtype(q))
    scales, zeros = _parameters(call, call[scale], call[zero])
    axis = call.axis(q, call.get("axis") or 0)
    return call.cast(call.emit(Dequantize(scales, zeros, axis), q), result)


def _choose(call: Call) -> tuple[str, str]:
    """Emit scale and zero point of a tensor's own range, as ONNX's DynamicQuantizeLinear does."""
    x = call["input"]
    if (call["quant_min"], call["quant_max"], call["dtype"]) != (0, 255, "uint8"):
        call.reject(
            f"a tensor is quantized by its own range to {call['quant_min']} … {call['quant_max']} "
            f"of {call['dtype']}: only 0 … 255 of uint8 are known"
        )
    # PyTorch raises a scale below eps, of a tensor that is next to 0, to eps; this is not done.
    call.without_effect("eps")
    q, scale, zero = call.emit_all(DynamicQuantize(), x)
    call.dynamic[scale] = x, q
    return scale, zero


_KINDS: Mapping[str, tuple[str, str, str]] = {
    "tensor": ("scale", "zero_point", "default tensor tensor2"),
    "channel": ("scales", "zero_points", "default"),
}
"""Names of scale and zero point, and overloads, of conversions by one scale or one a channel."""

HANDLERS: Mapping[str, Handler] = {
    **{
        f"quantized_decomposed.{name}_per_{kind}.{overload}": partial(write, scale=scale, zero=zero)
        for name, write in (("quantize", _quantize), ("dequantize", _dequantize))
        for kind, (scale, zero, overloads) in _KINDS.items()
        for overload in overloads.split()
    },
    "quantized_decomposed.choose_qparams.tensor": _choose,
}
