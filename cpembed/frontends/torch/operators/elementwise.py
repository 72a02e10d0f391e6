"""Elementwise operators: arithmetic, activations, comparisons, conversions, quantization."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from cpembed.frontends import expressions as e
from cpembed.frontends.emitter import is_float
from cpembed.frontends.expressions import X, Y, Z, apply, div, function, mul, number
from cpembed.frontends.torch.call import Call, Handler, Results, table
from cpembed.graph.kinds import (
    Dequantize,
    DynamicQuantize,
    Elementwise,
    Input,
    Number,
    Quantize,
    Scalar,
)
from cpembed.graph.kinds.base import Array
from cpembed.graph.kinds.elementwise import computing_dtype

Unary = Callable[[Scalar], Scalar]
Binary = Callable[[Scalar, Scalar], Scalar]
Function = Callable[..., Scalar]


def _write(call: Call, dtype: str, expression: Function, *values: Any) -> str:
    """Emit an expression of tensors and numbers promoted to an element type.

    The result has the type of the call's. A constant of one element becomes a number.
    """
    tensors: list[str] = []
    arguments: list[Scalar] = []
    for value in values:
        if not isinstance(value, str):
            arguments.append(number(value))
            continue
        constant = call.value(value) if call.shape(value) == () else None
        if constant is None:
            tensors.append(call.computing(value, dtype))
            arguments.append(Input(len(tensors) - 1))
        else:
            scalar = constant.item()
            # In arithmetic a Boolean counts as 0 or 1.
            is_number = isinstance(scalar, bool) and dtype != "bool"
            arguments.append(Number(int(scalar) if is_number else scalar))
    scalar_type = "float32" if dtype == "bfloat16" else dtype
    # An operator has at least one input; this one has no effect.
    tensors = tensors or [call.tensor(np.zeros((), scalar_type))]
    return call.emit(Elementwise(expression(*arguments), call.result.dtype), *tensors)


def _unary(expression: Function, *parameters: str) -> Handler:
    """Return the handler of a function of ``self`` and of the named arguments, numbers."""
    return lambda call: _activated(call, expression, *(call[name] for name in parameters))


def _activated(call: Call, expression: Function, *parameters: Any) -> str:
    """Emit a function of ``self`` and of numbers in the type of the result."""

    def bound(x: Scalar) -> Scalar:
        return expression(x, *parameters)

    return _write(call, call.result.dtype, bound, call["self"])


def _binary(expression: Binary, second: str = "other") -> Handler:
    """Return the handler of a function of ``self`` and a second tensor or number."""
    return lambda call: _write(call, call.result.dtype, expression, call["self"], call[second])


# -- arithmetic -----------------------------------------------------------------------------------


def _times(x: Scalar, factor: float) -> Scalar:
    return x if factor == 1 else mul(x, factor)


def _scaled(call: Call, expression: Binary) -> Results:
    """Emit a function of ``self`` and ``alpha`` times ``other``."""
    alpha = call["alpha"]
    return _binary(lambda a, b: expression(a, _times(b, alpha)))(call)


def _reversed_sub(call: Call) -> Results:
    alpha = call["alpha"]
    return _binary(lambda a, b: e.sub(b, _times(a, alpha)))(call)


def _have_other_signs(a: Scalar, b: Scalar) -> Scalar:
    return e.differ(e.less(a, 0), e.less(b, 0))


def _remainder(a: Scalar, b: Scalar) -> Scalar:
    """Return the exact remainder of a floored division, which has the sign of the divisor."""
    rest = apply("rem", a, b)
    is_moved = apply("and", e.differ(rest, 0), _have_other_signs(rest, b))
    return e.where(is_moved, e.add(rest, b), rest)


def _floor_quotient(a: Scalar, b: Scalar) -> Scalar:
    """Return a floored quotient of floats as PyTorch computes it."""
    # The remainder is subtracted first, so that the quotient is next to an integer.
    near = div(e.sub(a, _remainder(a, b)), b)
    low = apply("floor", near)
    rounded = e.where(e.less(0.5, e.sub(near, low)), e.add(low, 1), low)
    return e.where(e.equal(b, 0), div(a, b), rounded)


def _floor_quotient_of_integers(a: Scalar, b: Scalar) -> Scalar:
    quotient, is_rounded = div(a, b), e.differ(apply("rem", a, b), 0)
    is_moved = apply("and", is_rounded, _have_other_signs(a, b))
    return e.where(is_moved, e.sub(quotient, 1), quotient)


def _floor_divide(call: Call) -> Results:
    floats = is_float(call.result.dtype)
    return _binary(_floor_quotient if floats else _floor_quotient_of_integers)(call)


def _divide(call: Call) -> Results:
    rounding = call.get("rounding_mode")
    if rounding == "floor":
        return _floor_divide(call)
    if rounding is None or not is_float(call.result.dtype):
        # A division of integers rounds towards zero.
        return _binary(div)(call)
    return _binary(lambda a, b: e.truncated(div(a, b)))(call)


_POWERS: Mapping[float, Unary] = {
    **e.SMALL_POWERS,
    0.5: function("sqrt"),
    -1: lambda x: div(1, x),
    -0.5: lambda x: div(1, apply("sqrt", x)),
}


def _power(call: Call) -> Results:
    exponent, result = call["exponent"], call.result.dtype
    if not is_float(result):
        value = call.value(exponent) if isinstance(exponent, str) else np.asarray(exponent)
        if value is None or (value < 0).any():
            call.reject("a power of integers whose exponent may be below 0: use floats")
    elif isinstance(exponent, int | float) and exponent in _POWERS:
        return _activated(call, _POWERS[exponent])
    return _binary(function("pow"), "exponent")(call)


def _clamp(call: Call) -> str:
    pairs = [("max", call["min"]), ("min", call["max"])]
    limits = [(operation, limit) for operation, limit in pairs if limit is not None]

    def expression(x: Scalar, *ends: Scalar) -> Scalar:
        for (operation, _), end in zip(limits, ends, strict=True):
            x = apply(operation, x, end)
        return x

    values = (limit for _, limit in limits)
    return _write(call, call.result.dtype, expression, call["self"], *values)


def _product_added(call: Call, product: Binary) -> Results:
    """Emit ``self`` plus ``value`` times a product or quotient of two tensors."""
    value = call["value"]

    def expression(x: Scalar, a: Scalar, b: Scalar) -> Scalar:
        return e.add(x, _times(product(a, b), value))

    tensors = call["self"], call["tensor1"], call["tensor2"]
    return _write(call, call.result.dtype, expression, *tensors)


def _lerp(call: Call) -> Results:
    def expression(a: Scalar, b: Scalar, weight: Scalar) -> Scalar:
        return e.add(a, mul(weight, e.sub(b, a)))

    return _write(call, call.result.dtype, expression, call["self"], call["end"], call["weight"])


def _filled(call: Call, value: float | None) -> str:
    """Emit a constant tensor, by default of the argument ``fill_value``."""
    call.in_result("self")
    fill = call["fill_value"] if value is None else value
    fill = call.value(fill) if isinstance(fill, str) else fill
    if fill is None:
        call.reject("the number that fills a tensor is computed while the model runs")
    shape, dtype = call.result.shape, call.result.dtype
    element = np.full((1,) * len(shape), fill, "float32" if dtype == "bfloat16" else dtype)
    return call.expanded(call.cast(call.tensor(element), dtype), shape)


def _convert(call: Call) -> str:
    call.in_result("other")
    return call.cast(call["self"], call.result.dtype)


# -- activations ----------------------------------------------------------------------------------


def _elu(x: Scalar, alpha: float, scale: float, input_scale: float) -> Scalar:
    grown = mul(e.exp_minus_one(_times(x, input_scale)), alpha * scale)
    return e.where(e.less(x, 0), grown, _times(x, scale))


def _softplus(x: Scalar, beta: float, threshold: float) -> Scalar:
    scaled = _times(x, beta)
    # Beyond the threshold PyTorch returns the argument itself.
    value = e.softplus(scaled)
    return e.where(e.less(threshold, scaled), x, value if beta == 1 else div(value, beta))


def _threshold(x: Scalar, threshold: float, value: float) -> Scalar:
    return e.where(e.less(threshold, x), x, value)


def _relu6(x: Scalar) -> Scalar:
    return e.clip(e.add(x, 3.0), 0.0, 6.0)


def _hardtanh(call: Call) -> str:
    return _activated(call, e.clip, call.get("min_val"), call.get("max_val"))


def _gelu(call: Call) -> str:
    return _activated(call, e.gelu_tanh if call["approximate"] == "tanh" else e.gelu)


def _prelu(call: Call) -> str:
    x, slope = call["self"], call["weight"]
    if call.rank(slope) == 1:
        # One slope for each channel, which is the second axis.
        slope = call.channels(slope, max(2, call.rank(x)))
    return _write(call, call.result.dtype, e.leaky_relu, x, slope)


# -- comparisons and logic ------------------------------------------------------------------------


def _promoted(call: Call, *values: Any) -> str:
    """Return the element type in which a comparison compares."""
    # PyTorch's promotion: tensors go before scalars, floats before integers, then the larger type.
    tensors = [value for value in values if isinstance(value, str)]
    ranked = [t for t in tensors if call.shape(t) != ()] or tensors
    dtypes = [call.dtype(t) for t in ranked]
    floats = [d for d in dtypes if is_float(d)]
    if not floats and any(isinstance(v, float) for v in values):
        return "float32"
    if not floats:
        scalar_floats = [d for d in map(call.dtype, tensors) if is_float(d)]
        if scalar_floats:
            return scalar_floats[0]
    return max(floats or dtypes, key=lambda d: 2 if d == "bfloat16" else np.dtype(d).itemsize)


def _comparison(call: Call, expression: Binary) -> str:
    values = call["self"], call["other"]
    return _write(call, _promoted(call, *values), expression, *values)


def _logical(call: Call, expression: Function) -> str:
    values = [call[name] for name in ("self", "other") if call.get(name) is not None]
    booleans = [call.cast(v, "bool") if isinstance(v, str) else bool(v) for v in values]
    return _write(call, "bool", expression, *booleans)


def _bitwise(call: Call, expression: Function) -> Results:
    if call.result.dtype != "bool":
        call.reject("operations on the bits of integers are not known: only on Booleans")
    return _logical(call, expression)


def _where(call: Call) -> str:
    result = call.result.dtype
    condition = call.cast(call["condition"], "bool")
    values = [
        call.computing(v, result) if isinstance(v, str) else v
        for v in (call["self"], call["other"])
    ]
    names = [condition, *(v for v in values if isinstance(v, str))]
    places = iter(range(1, len(names)))
    arguments = [Input(next(places)) if isinstance(v, str) else Number(v) for v in values]
    # If the condition is the only tensor, the numbers decide the type of the arithmetic.
    computing = computing_dtype([result]) if len(names) == 1 else None
    return call.emit(Elementwise(e.where(X, *arguments), result, computing), *names)


def _masked_fill(call: Call) -> str:
    result = call.result.dtype
    mask, value = call.cast(call["mask"], "bool"), call["value"]
    if isinstance(value, str):
        constant = call.value(value)
        value = call.computing(value, result) if constant is None else constant.item()
    tensors = [mask, call.computing(call["self"], result)]
    fill: Scalar = Input(2) if isinstance(value, str) else Number(value)
    tensors += [value] if isinstance(value, str) else []
    return call.emit(Elementwise(e.where(X, fill, Input(1)), result), *tensors)


def _float_test(call: Call, expression: Unary) -> str:
    """Emit a test for NaN or infinity, which integers never pass."""
    x, shape = call["self"], call.result.shape
    if is_float(call.dtype(x)):
        return _write(call, call.dtype(x), expression, x)
    return call.expanded(call.tensor(np.zeros((1,) * len(shape), np.bool_)), shape)


# -- quantization of PT2E -------------------------------------------------------------------------


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
    call.in_result(zero)
    return integers


def _dequantize(call: Call, scale: str, zero: str) -> str:
    q, result = call["input"], call.result.dtype
    # The range to which the integers were limited has no effect any more.
    call.in_result("quant_min", "quant_max", "out_dtype", zero, "axis")
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
    call.in_result("eps")
    q, scale, zero = call.emit_all(DynamicQuantize(), x)
    call.dynamic[scale] = x, q
    return scale, zero


_UNARY: Mapping[str, Unary] = {
    **{name: function(name) for name in e.PLAIN},
    "rsqrt": lambda x: div(1.0, apply("sqrt", x)),
    "reciprocal": lambda x: div(1.0, x),
    "square": lambda x: mul(x, x),
    "sign": e.sign,
    "trunc": e.truncated,
    "expm1": e.exp_minus_one,
    "log1p": e.log_one_plus,
    "exp2": lambda x: apply("exp", mul(x, math.log(2))),
    "log2": lambda x: mul(apply("log", x), 1 / math.log(2)),
    "log10": lambda x: mul(apply("log", x), 1 / math.log(10)),
    "tan": lambda x: div(apply("sin", x), apply("cos", x)),
    "relu": e.relu,
    "relu6": lambda x: e.clip(x, 0, 6),
    "silu": e.silu,
    "mish": e.mish,
    "selu": e.selu,
    "log_sigmoid": lambda x: apply("neg", e.softplus(apply("neg", x))),
    "hardswish": lambda x: div(mul(x, _relu6(x)), 6.0),
    "hardsigmoid": lambda x: div(_relu6(x), 6.0),
}
"""Functions of one tensor without parameters."""
_COMPARISONS: Mapping[str, Binary] = {
    "eq": e.equal,
    "ne": e.differ,
    "lt": e.less,
    "le": function("less_equal"),
    "gt": lambda a, b: e.less(b, a),
    "ge": lambda a, b: apply("less_equal", b, a),
}
_KINDS: Mapping[str, tuple[str, str, str]] = {
    "tensor": ("scale", "zero_point", "default tensor tensor2"),
    "channel": ("scales", "zero_points", "default"),
}
"""Names of scale and zero point, and overloads, of conversions by one scale or one a channel."""

_QUANTIZATION: dict[str, Handler] = {
    **{
        f"quantized_decomposed.{name}_per_{kind}.{overload}": partial(write, scale=scale, zero=zero)
        for name, write in (("quantize", _quantize), ("dequantize", _dequantize))
        for kind, (scale, zero, overloads) in _KINDS.items()
        for overload in overloads.split()
    },
    "quantized_decomposed.choose_qparams.tensor": _choose,
}
HANDLERS: Mapping[str, Handler] = _QUANTIZATION | table(
    {
        **{name: _unary(make) for name, make in _UNARY.items()},
        "add.Tensor|Scalar": partial(_scaled, expression=e.add),
        "sub.Tensor|Scalar": partial(_scaled, expression=e.sub),
        "rsub.Tensor|Scalar": _reversed_sub,
        "mul.Tensor|Scalar": _binary(mul),
        "div.Tensor|Scalar|Tensor_mode|Scalar_mode": _divide,
        "remainder.Tensor|Scalar": _binary(_remainder),
        "fmod.Tensor|Scalar": _binary(function("rem")),
        "floor_divide.default|Scalar": _floor_divide,
        "pow.Tensor_Scalar|Tensor_Tensor": _power,
        "maximum max.other": _binary(function("max")),
        "minimum min.other": _binary(function("min")),
        "clamp.default|Tensor": _clamp,
        "addcmul": partial(_product_added, product=mul),
        "addcdiv": partial(_product_added, product=div),
        "lerp.Scalar|Tensor": _lerp,
        "_to_copy to.dtype|device|dtype_layout type_as lift_fresh_copy": _convert,
        # The contents of an empty tensor are undefined: zeros are as good as anything.
        "zeros_like new_zeros empty_like new_empty empty.memory_format": partial(_filled, value=0),
        "ones_like new_ones": partial(_filled, value=1),
        "full_like new_full": partial(_filled, value=None),
        "hardtanh": _hardtanh,
        "elu": _unary(_elu, "alpha", "scale", "input_scale"),
        "gelu": _gelu,
        "softplus": _unary(_softplus, "beta", "threshold"),
        "prelu _prelu_kernel": _prelu,
        "threshold": _unary(_threshold, "threshold", "value"),
        "leaky_relu": _unary(e.leaky_relu, "negative_slope"),
        **{
            f"{name}.Tensor|Scalar": partial(_comparison, expression=make)
            for name, make in _COMPARISONS.items()
        },
        "where.self|ScalarOther|ScalarSelf|Scalar": _where,
        "masked_fill.Tensor|Scalar": _masked_fill,
        "logical_and": partial(_logical, expression=function("and")),
        "logical_or": partial(_logical, expression=function("or")),
        "logical_xor": partial(_logical, expression=e.differ),
        "logical_not": partial(_logical, expression=function("not")),
        "bitwise_and.Tensor|Scalar": partial(_bitwise, expression=function("and")),
        "bitwise_or.Tensor|Scalar": partial(_bitwise, expression=function("or")),
        "bitwise_xor.Tensor|Scalar": partial(_bitwise, expression=e.differ),
        "bitwise_not": partial(_bitwise, expression=function("not")),
        "isnan": partial(_float_test, expression=lambda x: e.differ(x, x)),
        "isinf": partial(_float_test, expression=lambda x: e.equal(apply("abs", x), math.inf)),
    }
)
