"""Elementwise operators: arithmetic, activations, comparisons, conversions."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial, reduce
from typing import Any

import numpy as np

from cpembed.frontends import expressions as e
from cpembed.frontends.expressions import X, Y, Z, function
from cpembed.frontends.narrow import IN_BYTES, narrowed, widened
from cpembed.frontends.onnx.call import Call, Translation
from cpembed.graph.kinds import Bitcast, Input, Reshape, Scalar
from cpembed.ir.scalars import apply


def _unary(expression: Scalar, dtype: str | None = None) -> Translation:
    """Return the translation of an expression of one input."""
    return lambda call: call.elementwise(expression, call.input(), dtype=dtype)


def _binary(expression: Scalar, dtype: str | None = None) -> Translation:
    """Return the translation of an expression of two inputs that broadcast."""
    return lambda call: call.elementwise(expression, *_broadcast(call), dtype=dtype)


def _compared(expression: Scalar) -> Translation:
    return _binary(expression, "bool")


def _broadcast(call: Call) -> tuple[str, str]:
    """Return both inputs; before version 7 an ``axis`` of the first aligns the second."""
    a, b = call.input(0), call.input(1)
    if call.version < 7 and call.flag("broadcast") and call.attribute("axis") is not None:
        shape = call.shape(b)
        after = call.rank(0) - call.axis() - len(shape)
        if after > 0:
            b = call.emit(Reshape((*shape, *(1,) * after)), b)
    return a, b


def _of_all_inputs(call: Call, operation: str, is_mean: bool = False) -> str:
    """Emit an operation on any number of inputs."""
    tensors = call.all_inputs()
    total: Scalar = reduce(function(operation), map(Input, range(len(tensors))))
    if is_mean and len(tensors) > 1:
        total = e.div(total, float(len(tensors)))
    return tensors[0] if len(tensors) == 1 else call.elementwise(total, *tensors)


def _parametric(expression: Callable[..., Scalar], **defaults: float) -> Translation:
    """Return the translation of a function whose parameters are attributes with defaults."""
    return lambda call: call.elementwise(
        expression(X, *(call.number(name, value) for name, value in defaults.items())),
        call.input(),
    )


def _celu(call: Call) -> str:
    alpha = call.number("alpha", 1.0)
    if not alpha:
        call.reject("alpha = 0, by which it divides: give another")
    return call.elementwise(e.celu(X, alpha), call.input())


def _clip(call: Call) -> str:
    x, dtype = call.input(), call.type().dtype
    if call.version < 11:
        # Until version 11 the ends were attributes.
        return call.elementwise(e.clip(X, call.attribute("min"), call.attribute("max")), x)
    ends = [call.optional(1), call.optional(2)]
    values = [call.builder.value(tensor) if tensor else None for tensor in ends]
    if all((end is None) == (value is None) for end, value in zip(ends, values, strict=True)):
        low, high = (None if v is None else v.reshape(-1)[0].item() for v in values)
        # An infinite end limits nothing.
        low = None if low is not None and np.isneginf(low) else low
        high = None if high is not None and np.isposinf(high) else high
        return x if low is None and high is None else call.elementwise(e.clip(X, low, high), x)
    for operation, end in zip(("max", "min"), ends, strict=True):
        if end is not None:
            x = call.elementwise(apply(operation, X, Y), x, call.reshaped(end, ()), dtype=dtype)
    return x


def _prelu(call: Call) -> str:
    x, slope = call.input(0), call.input(1)
    rank, slopes = call.rank(0), call.shape(slope)
    # Until version 9 a vector of slopes was one of channels; since then it broadcasts.
    if call.version < 9 and len(slopes) == 1 and slopes[0] > 1 and rank > 2:
        slope = call.channels(slope, rank)
    return call.elementwise(e.leaky_relu(X, Y), x, slope)


def _gelu(call: Call) -> str:
    tanh = call.text("approximate", "none", ("none", "tanh")) == "tanh"
    return call.elementwise(e.gelu_tanh(X) if tanh else e.gelu(X), call.input())


def _biased_gelu(call: Call, expression: Callable[[Scalar], Scalar]) -> str:
    """Emit a GELU of a sum, whose second term may be left out."""
    if call.optional(1) is None:
        return call.elementwise(expression(X), call.input(0))
    return call.elementwise(expression(e.add(X, Y)), call.input(0), call.input(1))


def _shrink(call: Call) -> str:
    limit, bias = call.number("lambd", 0.5), call.number("bias", 0.0)
    above = e.where(e.less(limit, X), e.sub(X, bias), 0)
    return call.elementwise(e.where(e.less(X, -limit), e.add(X, bias), above), call.input())


def _mod(call: Call) -> str:
    rest = apply("rem", X, Y) if call.flag("fmod") else e.remainder(X, Y)
    return call.elementwise(rest, call.input(0), call.input(1))


def _power(call: Call) -> str:
    x, exponent = call.input(0), call.input(1)
    value = call.builder.value(exponent)
    if value is not None and value.size == 1:
        products = e.SMALL_POWERS.get(float(value.reshape(-1)[0]))
        shape = call.shape(x)
        # An exponent of more dimensions would enlarge the result.
        if products and np.broadcast_shapes(shape, value.shape) == shape:
            return call.elementwise(products(X), x)
    return call.elementwise(apply("pow", X, Y), *_broadcast(call))


def _cast(call: Call) -> str:
    to = call.attribute("to")
    return _converted(call, to if isinstance(to, str) else _dtype(call, to))


def _cast_like(call: Call) -> str:
    call.input(1)
    return _converted(call, call.narrow_input(1) or call.type(1).dtype)


def _converted(call: Call, dtype: str) -> str:
    """Emit a conversion of the first input, from or to narrow types too."""
    x, narrow = call.input(0), call.narrow_input(0)
    x = widened(call, x, narrow) if narrow else x
    if dtype not in IN_BYTES:
        return call.cast(x, dtype)
    call.makes.add(dtype)
    saturates = call.flag("saturate", True)
    rounding = call.text("round_mode", "up", ("up", "down", "nearest"))
    return narrowed(call, x, dtype, saturates=saturates, rounding=rounding)


def _bit_cast(call: Call) -> str:
    """Emit the bits of elements as those of another type of the same size."""
    x, dtype = call.input(), _dtype(call, call.attribute("to"))
    return x if call.type().dtype == dtype else call.emit(Bitcast(dtype), x)


_NUMBERED = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64",
    9: "bool", 10: "float16", 11: "float64", 12: "uint32", 13: "uint64", 16: "bfloat16",
    17: "float8_e4m3fn", 18: "float8_e4m3fnuz", 19: "float8_e5m2", 20: "float8_e5m2fnuz",
    21: "uint4", 22: "int4", 23: "float4_e2m1fn", 24: "float8_e8m0fnu", 25: "uint2", 26: "int2",
}  # fmt: skip
"""Element types by the format's numbers."""


def _dtype(call: Call, number: Any) -> str:
    if not isinstance(number, int) or number not in _NUMBERED:
        call.reject(f"element type {number} is not read: use float32 or integers")
    return _NUMBERED[number]


def element_type(call: Call, attribute: str, default: str) -> str:
    """Read an attribute that names an element type.

    Parameters
    ----------
    call : Call
        The node.
    attribute : str
        Name of the attribute, which holds the format's number of the type.
    default : str
        The type where the attribute is left out or 0.
    """
    number = call.attribute(attribute)
    dtype = default if not number else _dtype(call, number)
    if dtype in IN_BYTES:
        call.reject(f"{attribute} {dtype} is not read here: use float32 or bytes")
    return dtype


def _where(call: Call) -> str:
    tensors = [call.input(k) for k in range(3)]
    return call.elementwise(e.where(X, Y, Z), *tensors, dtype=call.type(1).dtype)


def _is_inf(call: Call) -> str:
    ends = {"positive": math.inf, "negative": -math.inf}
    equal = [e.equal(X, end) for name, end in ends.items() if call.flag(f"detect_{name}", True)]
    if not equal:
        call.reject("neither kind of infinity is detected: detect one")
    return call.elementwise(reduce(function("or"), equal), call.input(), dtype="bool")


def _bit_shift(call: Call) -> str:
    direction, dtype = call.text("direction", "", ("LEFT", "RIGHT")), call.type().dtype
    if direction == "LEFT":
        return call.elementwise(apply("shift_left", X, Y), *_broadcast(call))
    shifted = e.shifted_right(X, Y, is_unsigned=dtype == "uint64")
    return call.elementwise(shifted, *_broadcast(call))


ACTIVATIONS: dict[str, tuple[Callable[..., Scalar], tuple[float, ...]]] = {
    "Relu": (e.relu, ()),
    "Tanh": (function("tanh"), ()),
    "Sigmoid": (function("sigmoid"), ()),
    "LeakyRelu": (e.leaky_relu, (0.01,)),
    "Elu": (e.elu, (1.0,)),
    "HardSigmoid": (e.hard_sigmoid, (0.2, 0.5)),
    "Softplus": (e.softplus, ()),
    "Softsign": (e.softsign, ()),
}
"""Activations inside other operators, with the defaults of their parameters alpha and beta."""


def _thresholded_relu(x: Scalar, alpha: float) -> Scalar:
    return e.where(e.less(alpha, x), x, 0)


TABLE: dict[str, Translation] = {
    **{name.capitalize(): _unary(make(X)) for name, make in e.UNARY.items()},
    "Not": _unary(apply("not", X)),
    **{name: _binary(apply(name.lower(), X, Y)) for name in ("Add", "Sub", "Mul", "Div")},
    "Pow": _power,
    "Mod": _mod,
    "Max": partial(_of_all_inputs, operation="max"),
    "Min": partial(_of_all_inputs, operation="min"),
    "Sum": partial(_of_all_inputs, operation="add"),
    "Mean": partial(_of_all_inputs, operation="add", is_mean=True),
    # NaN stays NaN, of which `sign` alone would make 0.
    "Sign": _unary(e.where(e.equal(X, X), e.sign(X), X)),
    **{
        f"Bitwise{name}": _binary(apply(f"bit_{name.lower()}", X, Y))
        for name in ("And", "Or", "Xor")
    },
    "BitwiseNot": _unary(apply("bit_not", X)),
    "BitShift": _bit_shift,
    "HardSwish": _unary(e.hard_swish(X)),
    "Softplus": _unary(e.softplus(X)),
    "Softsign": _unary(e.softsign(X)),
    "LeakyRelu": _parametric(e.leaky_relu, alpha=0.01),
    "Elu": _parametric(e.elu, alpha=1.0),
    "Celu": _celu,
    "Swish": _parametric(e.silu, alpha=1.0),
    "ThresholdedRelu": _parametric(_thresholded_relu, alpha=1.0),
    "Selu": _parametric(e.selu, alpha=e.SELU_ALPHA, gamma=e.SELU_GAMMA),
    "HardSigmoid": _parametric(e.hard_sigmoid, alpha=0.2, beta=0.5),
    "Gelu": _gelu,
    "com.microsoft.Gelu": _unary(e.gelu(X)),
    "com.microsoft.QuickGelu": _parametric(e.silu, alpha=1.702),
    "com.microsoft.BiasGelu": partial(_biased_gelu, expression=e.gelu),
    "com.microsoft.FastGelu": partial(_biased_gelu, expression=e.gelu_tanh),
    "Shrink": _shrink,
    "PRelu": _prelu,
    "Clip": _clip,
    "Equal": _compared(e.equal(X, Y)),
    "Less": _compared(e.less(X, Y)),
    "LessOrEqual": _compared(apply("less_equal", X, Y)),
    "Greater": _compared(e.less(Y, X)),
    "GreaterOrEqual": _compared(apply("less_equal", Y, X)),
    "And": _compared(apply("and", X, Y)),
    "Or": _compared(apply("or", X, Y)),
    "Xor": _compared(e.differ(X, Y)),
    # Only NaN is not equal to itself.
    "IsNaN": _unary(e.differ(X, X), "bool"),
    "IsInf": _is_inf,
    "Where": _where,
    "Cast": _cast,
    "CastLike": _cast_like,
    "BitCast": _bit_cast,
}
