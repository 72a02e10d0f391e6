"""Arithmetic, functions, conversions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from cpembed.frontends import expressions as ex
from cpembed.frontends.emitter import is_float
from cpembed.frontends.expressions import apply, number
from cpembed.frontends.torch.call import Call, Handler
from cpembed.graph.kinds import Elementwise, Input, Number, Scalar


def write(call: Call, result: str, make: Callable[..., Scalar], *values: Any) -> str:
    """``make`` of tensors and numbers, computed as PyTorch promotes them to ``result``: an element
    type. A constant of one element is a number."""
    tensors: list[str] = []
    arguments: list[Scalar] = []
    for value in values:
        if not isinstance(value, str):
            arguments.append(number(value))
            continue
        known = call.value(value) if call.shape(value) == () else None
        if known is not None:
            scalar = known.item()
            is_number = isinstance(scalar, bool) and result != "bool"
            arguments.append(Number(int(scalar) if is_number else scalar))
            continue
        tensors.append(call.computing(value, result))
        arguments.append(Input(len(tensors) - 1))
    expression = make(*arguments)
    if not tensors:
        tensors = [call.tensor(np.zeros((), result if result != "bfloat16" else "float32"))]
    return call.emit(Elementwise(expression, call.result.dtype), *tensors)


def activated(call: Call, make: Callable[[Scalar], Scalar], computing: str | None = None) -> str:
    """A function of one tensor, computed in the result's type or another."""
    return write(call, computing or call.result.dtype, make, call["self"])


def _unary(make: Callable[[Scalar], Scalar]) -> Handler:
    return lambda call: activated(call, make)


def _binary(make: Callable[[Scalar, Scalar], Scalar]) -> Handler:
    return lambda call: write(call, call.result.dtype, make, call["self"], call["other"])


def _scaled(make: Callable[[Scalar, Scalar], Scalar]) -> Handler:
    """``self`` and ``alpha`` times ``other``."""

    def handler(call: Call) -> str:
        alpha = call["alpha"]
        if alpha == 1:
            return write(call, call.result.dtype, make, call["self"], call["other"])

        def scaled(a: Scalar, b: Scalar) -> Scalar:
            return make(a, ex.mul(b, alpha))

        return write(call, call.result.dtype, scaled, call["self"], call["other"])

    return handler


def _reversed_sub(call: Call) -> str:
    alpha = call["alpha"]

    def expression(a: Scalar, b: Scalar) -> Scalar:
        return ex.sub(b, a if alpha == 1 else ex.mul(a, alpha))

    return write(call, call.result.dtype, expression, call["self"], call["other"])


def _identity(x: Scalar) -> Scalar:
    return x


def _floor(x: Scalar) -> Scalar:
    return apply("floor", x)


_ROUNDINGS: Mapping[str | None, Callable[[Scalar], Scalar]] = {
    None: _identity,
    "floor": _floor,
    "trunc": ex.truncated,
}
"""Of quotients, by PyTorch's names."""


def _quotient(call: Call, make: Callable[[Scalar, Scalar], Scalar]) -> str:
    """What a quotient is part of; that of integers is computed in float64."""
    computing = call.result.dtype if is_float(call.result.dtype) else "float64"
    return write(call, computing, make, call["self"], call["other"])


def _divide(call: Call) -> str:
    rounding = _ROUNDINGS[call.get("rounding_mode")]
    return _quotient(call, lambda a, b: rounding(ex.div(a, b)))


def _floor_divide(call: Call) -> str:
    return _quotient(call, lambda a, b: _floor(ex.div(a, b)))


def _remainder(rounding: Callable[[Scalar], Scalar]) -> Handler:
    return lambda call: _quotient(call, lambda a, b: ex.sub(a, ex.mul(rounding(ex.div(a, b)), b)))


def _power(call: Call) -> str:
    exponent = call["exponent"]
    special: dict[float, Callable[[Scalar], Scalar]] = {
        0.5: lambda x: apply("sqrt", x),
        1: lambda x: x,
        2: lambda x: ex.mul(x, x),
        3: lambda x: ex.mul(ex.mul(x, x), x),
        -1: lambda x: ex.div(1, x),
        -0.5: lambda x: ex.div(1, apply("sqrt", x)),
    }
    result = call.result.dtype
    if isinstance(exponent, int | float) and exponent in special and is_float(result):
        return activated(call, special[exponent])

    def power(x: Scalar, y: Scalar) -> Scalar:
        return apply("pow", x, y)

    return write(call, result, power, call["self"], exponent)


def _clamp(call: Call) -> str:
    low, high = call["min"], call["max"]
    names = [call["self"], *(v for v in (low, high) if v is not None)]

    def expression(x: Scalar, *limits: Scalar) -> Scalar:
        rest = [*limits]
        value = x if low is None else apply("max", x, rest.pop(0))
        return value if high is None else apply("min", value, rest.pop(0))

    return write(call, call.result.dtype, expression, *names)


def _product_added(make: Callable[[Scalar, Scalar], Scalar]) -> Handler:
    def handler(call: Call) -> str:
        value = call["value"]

        def expression(x: Scalar, a: Scalar, b: Scalar) -> Scalar:
            product = make(a, b)
            return ex.add(x, product if value == 1 else ex.mul(product, value))

        names = call["self"], call["tensor1"], call["tensor2"]
        return write(call, call.result.dtype, expression, *names)

    return handler


def _lerp(call: Call) -> str:
    def expression(a: Scalar, b: Scalar, weight: Scalar) -> Scalar:
        return ex.add(a, ex.mul(weight, ex.sub(b, a)))

    return write(call, call.result.dtype, expression, call["self"], call["end"], call["weight"])


def _filled(value: float | None) -> Handler:
    """A constant of the shape of a tensor, or of one that is given."""

    def handler(call: Call) -> str:
        number = call["fill_value"] if value is None else value
        known = call.value(number) if isinstance(number, str) else number
        if known is None:
            raise call.error("the number that fills a tensor is computed while the model runs")
        shape, dtype = call.result.shape, call.result.dtype
        one = np.full((1,) * len(shape), known, "float32" if dtype == "bfloat16" else dtype)
        return call.expanded(call.cast(call.tensor(one), dtype), shape)

    return handler


def _convert(call: Call) -> str:
    return call.cast(call["self"], call.result.dtype)


def function(operation: str) -> Callable[..., Scalar]:
    return lambda *arguments: apply(operation, *arguments)


_FUNCTIONS: Mapping[str, Callable[[Scalar], Scalar]] = {
    **{
        name: function(name)
        for name in (
            *("neg", "abs", "exp", "log", "sqrt", "erf", "tanh", "sigmoid", "sin", "cos"),
            *("floor", "ceil", "round"),
        )
    },
    "rsqrt": lambda x: ex.div(1.0, apply("sqrt", x)),
    "reciprocal": lambda x: ex.div(1.0, x),
    "square": lambda x: ex.mul(x, x),
    "sign": ex.sign,
    "trunc": ex.truncated,
    "expm1": lambda x: ex.sub(apply("exp", x), 1.0),
    "log1p": lambda x: apply("log", ex.add(x, 1.0)),
    "exp2": lambda x: apply("exp", ex.mul(x, math.log(2))),
    "log2": lambda x: ex.mul(apply("log", x), 1 / math.log(2)),
    "log10": lambda x: ex.mul(apply("log", x), 1 / math.log(10)),
    "tan": lambda x: ex.div(apply("sin", x), apply("cos", x)),
}

EITHER = ("Tensor", "Scalar")
"""Overloads of operators whose second argument may be a number."""
_CONVERSIONS = ("_to_copy.default", "to.dtype", "to.device", "to.dtype_layout", "type_as.default")


def overloads(name: str, handler: Handler, *overloads: str) -> dict[str, Handler]:
    return {f"aten.{name}.{overload}": handler for overload in overloads}


OPERATORS: Mapping[str, Handler] = {
    **{f"aten.{name}.default": _unary(make) for name, make in _FUNCTIONS.items()},
    **overloads("add", _scaled(ex.add), *EITHER),
    **overloads("sub", _scaled(ex.sub), *EITHER),
    **overloads("rsub", _reversed_sub, *EITHER),
    **overloads("mul", _binary(ex.mul), *EITHER),
    **overloads("div", _divide, *EITHER, "Tensor_mode", "Scalar_mode"),
    **overloads("remainder", _remainder(_floor), *EITHER),
    **overloads("fmod", _remainder(ex.truncated), *EITHER),
    **overloads("floor_divide", _floor_divide, "default", "Scalar"),
    **overloads("pow", _power, "Tensor_Scalar", "Tensor_Tensor"),
    **overloads("maximum", _binary(function("max")), "default"),
    **overloads("minimum", _binary(function("min")), "default"),
    **overloads("max", _binary(function("max")), "other"),
    **overloads("min", _binary(function("min")), "other"),
    **overloads("clamp", _clamp, "default", "Tensor"),
    **overloads("addcmul", _product_added(ex.mul), "default"),
    **overloads("addcdiv", _product_added(ex.div), "default"),
    **overloads("lerp", _lerp, "Scalar", "Tensor"),
    **{f"aten.{name}": _convert for name in _CONVERSIONS},
    **overloads("zeros_like", _filled(0), "default"),
    **overloads("new_zeros", _filled(0), "default"),
    **overloads("ones_like", _filled(1), "default"),
    **overloads("new_ones", _filled(1), "default"),
    # What an empty tensor holds is undefined: zeros are as good as anything.
    **overloads("empty_like", _filled(0), "default"),
    **overloads("new_empty", _filled(0), "default"),
    **overloads("empty", _filled(0), "memory_format"),
    **overloads("full_like", _filled(None), "default"),
    **overloads("new_full", _filled(None), "default"),
    "aten.lift_fresh_copy.default": _convert,
}
