"""Quantized models of PT2E: conversions to integers of eight bits and back, as they are written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from cpembed.frontends import expressions as ex
from cpembed.frontends.expressions import X, Y, Z
from cpembed.frontends.torch.call import Call, Handler
from cpembed.graph.kinds import Dequantize, DynamicQuantize, Elementwise, Quantize
from cpembed.graph.kinds.base import Array


def _numbers(call: Call, value: Any) -> Array | None:
    """A parameter as a vector; None for a tensor that is computed while the model runs."""
    if value is None:
        return np.zeros(1)
    if isinstance(value, str):
        known = call.value(value)
        return None if known is None else known.reshape(-1)
    return np.asarray([value])


def _parameters(call: Call, scale: Any, zero: Any) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Scales and zero points, each one or as many as the other.

    Raises :class:`ModelError` where they are not known.
    """
    scales, zeros = _numbers(call, scale), _numbers(call, zero)
    if scales is None or zeros is None:
        raise call.error(
            "scale and zero point are computed while the model runs: quantize statically"
        )
    pairs = (
        tuple(float(np.float32(s)) for s in scales.tolist()),
        tuple(int(z) for z in zeros.tolist()),
    )
    return _alike(*pairs)


def _alike(
    scales: tuple[float, ...], zeros: tuple[int, ...]
) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """One zero point for all channels is said once, and one scale too."""
    scales = scales[:1] if len(set(scales)) == len(set(zeros)) == 1 else scales
    return scales, zeros[:1] if len(set(zeros)) == 1 else zeros


def _quantized(
    call: Call, x: str, scales: tuple[float, ...], zeros: tuple[int, ...], dtype: str
) -> str:
    """A tensor as integers, limited to a range of them that may be narrower than the type's.

    One scale's limits are those of the floats, as an activation's would be.
    """
    limits = np.iinfo(dtype)
    low = None if call["quant_min"] <= limits.min else call["quant_min"]
    high = None if call["quant_max"] >= limits.max else call["quant_max"]
    kind = Quantize(scales, zeros, dtype, call.axis(x, call.get("axis") or 0))
    x = call.cast(x, "float32")
    if low is None and high is None:
        return call.emit(kind, x)
    if max(len(scales), len(zeros)) > 1:
        return call.elementwise(ex.clip(X, low, high), call.emit(kind, x))
    ends = [None if e is None else float((e - zeros[0]) * scales[0]) for e in (low, high)]
    return call.emit(kind, call.elementwise(ex.clip(X, *ends), x))


def _check_type(call: Call, dtype: str) -> None:
    if dtype not in ("int8", "uint8", "int32"):
        raise call.error(f"values are quantized to {dtype}: only int8, uint8 and int32 are known")


def _quantize(scale: str, zero: str) -> Handler:
    def handler(call: Call) -> str:
        x, dtype = call["input"], call["dtype"]
        _check_type(call, dtype)
        found = call.dynamic.get(call[scale])
        if found is not None and found[0] == x:
            if (call["quant_min"], call["quant_max"], dtype) != (0, 255, "uint8"):
                raise call.error("a tensor is quantized by its own range to uint8 only")
            call.in_result(zero)  # It comes with the scale.
            return found[1]
        scales, zeros = _parameters(call, call[scale], call[zero])
        return _quantized(call, x, scales, zeros, dtype)

    return handler


def _dequantize(scale: str, zero: str) -> Handler:
    def handler(call: Call) -> str:
        q = call["input"]
        result = call.result.dtype
        # The integers are what they are, whatever range they were limited to.
        call.in_result("quant_min", "quant_max", "out_dtype", zero, "axis")
        found = call.dynamic.get(call[scale])
        if found is not None:
            value = ex.mul(ex.sub(X, Y), Z)
            return call.emit(Elementwise(value, result), q, call[zero], call[scale])
        _check_type(call, call.dtype(q))
        scales, zeros = _parameters(call, call[scale], call[zero])
        axis = call.get("axis") or 0
        return call.cast(call.emit(Dequantize(scales, zeros, call.axis(q, axis)), q), result)

    return handler


def _choose(call: Call) -> tuple[str, str]:
    """Scale and zero point of a tensor's own range, as ONNX's DynamicQuantizeLinear has them."""
    x = call["input"]
    if (call["quant_min"], call["quant_max"], call["dtype"]) != (0, 255, "uint8"):
        raise call.error(
            f"a tensor is quantized by its own range to {call['quant_min']} … {call['quant_max']} "
            f"of {call['dtype']}: only 0 … 255 of uint8 are known"
        )
    # A scale below eps, of a tensor that is next to 0, is not widened to it here.
    call.in_result("eps")
    q, scale, zero = call.emit_all(DynamicQuantize(), x)
    call.dynamic[scale] = x, q
    return scale, zero


_PAIR = "scale", "zero_point"
_VECTORS = "scales", "zero_points"

OPERATORS: Mapping[str, Handler] = {
    **{
        f"quantized_decomposed.quantize_per_tensor.{overload}": _quantize(*_PAIR)
        for overload in ("default", "tensor", "tensor2")
    },
    **{
        f"quantized_decomposed.dequantize_per_tensor.{overload}": _dequantize(*_PAIR)
        for overload in ("default", "tensor", "tensor2")
    },
    "quantized_decomposed.quantize_per_channel.default": _quantize(*_VECTORS),
    "quantized_decomposed.dequantize_per_channel.default": _dequantize(*_VECTORS),
    "quantized_decomposed.choose_qparams.tensor": _choose,
}
