"""Elementwise operators: arithmetic, activations, comparisons, conversions, quantization."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from cpembed.frontends import expressions as e
from cpembed.frontends.expressions import X, div, function, mul
from cpembed.frontends.torch.call import Call, Handler, Results, table
from cpembed.graph.kinds import (
    Elementwise,
    Input,
    Number,
    Scalar,
)
from cpembed.graph.kinds.elementwise import computing_dtype
from cpembed.ir.dtypes import is_integer, size_bytes
from cpembed.ir.scalars import apply

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
            arguments.append(Number(value))
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


def _floor_quotient(a: Scalar, b: Scalar) -> Scalar:
    """Return a floored quotient of floats as PyTorch computes it."""
    # The remainder is subtracted first, so that the quotient is next to an integer.
    near = div(e.sub(a, e.remainder(a, b)), b)
    low = apply("floor", near)
    rounded = e.where(e.less(0.5, e.sub(near, low)), e.add(low, 1), low)
    return e.where(e.equal(b, 0), div(a, b), rounded)


def _floor_quotient_of_integers(a: Scalar, b: Scalar) -> Scalar:
    quotient, is_rounded = div(a, b), e.differ(apply("rem", a, b), 0)
    is_moved = apply("and", is_rounded, e.have_other_signs(a, b))
    return e.where(is_moved, e.sub(quotient, 1), quotient)


def _floor_divide(call: Call) -> Results:
    integers = is_integer(call.result.dtype)
    return _binary(_floor_quotient_of_integers if integers else _floor_quotient)(call)


def _divide(call: Call) -> Results:
    rounding = call.get("rounding_mode")
    if rounding == "floor":
        return _floor_divide(call)
    if rounding is None or is_integer(call.result.dtype):
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
    if is_integer(result):
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
    call.without_effect("self")
    fill = call["fill_value"] if value is None else value
    fill = call.value(fill) if isinstance(fill, str) else fill
    if fill is None:
        call.reject("the number that fills a tensor is computed while the model runs")
    shape, dtype = call.result.shape, call.result.dtype
    element = np.full((1,) * len(shape), fill, "float32" if dtype == "bfloat16" else dtype)
    return call.expanded(call.cast(call.tensor(element), dtype), shape)


def _convert(call: Call) -> str:
    call.without_effect("other")
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
    floats = [d for d in dtypes if not is_integer(d)]
    if not floats and any(isinstance(v, float) for v in values):
        return "float32"
    if not floats:
        scalar_floats = [d for d in map(call.dtype, tensors) if not is_integer(d)]
        if scalar_floats:
            return scalar_floats[0]
    return max(floats or dtypes, key=size_bytes)


def _comparison(call: Call, expression: Binary) -> str:
    values = call["self"], call["other"]
    return _write(call, _promoted(call, *values), expression, *values)


def _logical(call: Call, expression: Function) -> str:
    values = [call[name] for name in ("self", "other") if call.get(name) is not None]
    booleans = [call.cast(v, "bool") if isinstance(v, str) else bool(v) for v in values]
    return _write(call, "bool", expression, *booleans)


def _bitwise(call: Call, of_bits: Function, logical: Function) -> Results:
    if call.result.dtype == "bool":
        return _logical(call, logical)
    if call.get("other") is None:
        return _activated(call, of_bits)
    return _binary(of_bits)(call)


def _angle(call: Call) -> str:
    """Emit pi for negative numbers and 0 for others; NaN stays NaN."""
    x = call["self"]
    is_negative = e.where(e.less(X, 0), math.pi, 0.0)
    expression = e.where(e.differ(X, X), X, is_negative)
    return call.elementwise(expression, call.cast(x, call.result.dtype))


def _copied_sign(a: Scalar, b: Scalar) -> Scalar:
    size = apply("abs", a)
    return e.where(_has_sign(b), apply("neg", size), size)


def _has_sign(x: Scalar) -> Scalar:
    # The quotient of 1 tells the zeros of both signs apart.
    is_negative_zero = apply("and", e.equal(x, 0), e.less(div(1.0, x), 0))
    return apply("or", e.less(x, 0), is_negative_zero)


def _sign_bit(call: Call) -> str:
    x = call["self"]
    return _write(call, call.dtype(x), _is_negative if is_integer(call.dtype(x)) else _has_sign, x)


def _is_negative(x: Scalar) -> Scalar:
    return e.less(x, 0)


def _extremum_without_nan(operation: str) -> Binary:
    def expression(a: Scalar, b: Scalar) -> Scalar:
        both = apply(operation, a, b)
        return e.where(e.differ(a, a), b, e.where(e.differ(b, b), a, both))

    return expression


def _hypotenuse(a: Scalar, b: Scalar) -> Scalar:
    """Return the root of the sum of squares, none of which overflows."""
    a, b = apply("abs", a), apply("abs", b)
    large, small = apply("max", a, b), apply("min", a, b)
    ratio = div(small, large)
    value = mul(large, apply("sqrt", e.add(mul(ratio, ratio), 1.0)))
    value = e.where(e.equal(large, 0.0), 0.0, value)
    # An infinite side makes an infinite one, whatever the other is.
    infinite = apply("or", e.equal(a, math.inf), e.equal(b, math.inf))
    return e.where(infinite, math.inf, value)


def _rounded(call: Call) -> Results:
    """Emit a rounding to decimal digits, as PyTorch computes it."""
    decimals = call["decimals"]
    power = float(10 ** abs(decimals))

    def expression(x: Scalar) -> Scalar:
        if decimals >= 0:
            return div(apply("round", mul(x, power)), power)
        return mul(apply("round", div(x, power)), power)

    return _activated(call, expression)


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
    if not is_integer(call.dtype(x)):
        return _write(call, call.dtype(x), expression, x)
    return call.expanded(call.tensor(np.zeros((1,) * len(shape), np.bool_)), shape)


_UNARY: Mapping[str, Unary] = {
    **e.UNARY,
    "rsqrt": lambda x: div(1.0, apply("sqrt", x)),
    "square": lambda x: mul(x, x),
    "sign": e.sign,
    "trunc": e.truncated,
    "expm1": e.exp_minus_one,
    "log1p": e.log_one_plus,
    "exp2": lambda x: apply("exp", mul(x, math.log(2))),
    "log2": lambda x: mul(apply("log", x), 1 / math.log(2)),
    "log10": lambda x: mul(apply("log", x), 1 / math.log(10)),
    "erfc": lambda x: e.sub(1.0, apply("erf", x)),
    "relu6": lambda x: e.clip(x, 0, 6),
    "silu": e.silu,
    "selu": e.selu,
    "log_sigmoid": lambda x: apply("neg", e.softplus(apply("neg", x))),
    "hardswish": lambda x: div(mul(x, _relu6(x)), 6.0),
    "hardsigmoid": lambda x: div(_relu6(x), 6.0),
}
"""Functions of one tensor without parameters."""
_BITWISE: tuple[tuple[str, str, Function], ...] = (
    ("bitwise_and.Tensor|Scalar", "bit_and", function("and")),
    ("bitwise_or.Tensor|Scalar", "bit_or", function("or")),
    ("bitwise_xor.Tensor|Scalar", "bit_xor", e.differ),
    ("bitwise_not", "bit_not", function("not")),
)
"""Operations on bits, with that of the graph and that on Booleans."""
_COMPARISONS: Mapping[str, Binary] = {
    "eq": e.equal,
    "ne": e.differ,
    "lt": e.less,
    "le": function("less_equal"),
    "gt": lambda a, b: e.less(b, a),
    "ge": lambda a, b: apply("less_equal", b, a),
}
HANDLERS: Mapping[str, Handler] = table(
    {
        **{name: _unary(make) for name, make in _UNARY.items()},
        "add.Tensor|Scalar": partial(_scaled, expression=e.add),
        "sub.Tensor|Scalar": partial(_scaled, expression=e.sub),
        "rsub.Tensor|Scalar": _reversed_sub,
        "mul.Tensor|Scalar": _binary(mul),
        "div.Tensor|Scalar|Tensor_mode|Scalar_mode": _divide,
        "remainder.Tensor|Scalar": _binary(e.remainder),
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
        **{
            name: partial(_bitwise, of_bits=function(of_bits), logical=logical)
            for name, of_bits, logical in _BITWISE
        },
        "bitwise_left_shift.Tensor|Tensor_Scalar __lshift__.Tensor|Scalar": _binary(
            function("shift_left")
        ),
        "bitwise_right_shift.Tensor|Tensor_Scalar __rshift__.Tensor|Scalar": _binary(
            function("shift_right")
        ),
        "angle": _angle,
        "signbit": _sign_bit,
        "copysign.Tensor|Scalar": _binary(_copied_sign),
        "atan2": _binary(e.arc_tangent_of),
        "fmax": _binary(_extremum_without_nan("max")),
        "fmin": _binary(_extremum_without_nan("min")),
        "hypot": _binary(_hypotenuse),
        "round.decimals": _rounded,
        "isnan": partial(_float_test, expression=lambda x: e.differ(x, x)),
        "isinf": partial(_float_test, expression=lambda x: e.equal(apply("abs", x), math.inf)),
    }
)
