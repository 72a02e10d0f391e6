"""Arithmetic, functions, comparisons, conversions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from cpembed.frontends import expressions as ex
from cpembed.frontends.expressions import X, apply, number
from cpembed.frontends.torch.call import Call, Handler, is_float
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
        tensors = [call.constant(np.zeros((), result if result != "bfloat16" else "float32"))]
    return call.add(Elementwise(expression, call.result.dtype), *tensors)


def _promoted(call: Call, *values: Any) -> str:
    """The element type in which a comparison compares: tensors before scalars, floats before
    integers, then the wider one."""
    tensors = [value for value in values if isinstance(value, str)]
    ranked = [t for t in tensors if call.shape(t) != ()] or tensors
    dtypes = [call.dtype(t) for t in ranked]
    floats = [d for d in dtypes if is_float(d)]
    if not floats and any(isinstance(v, float) for v in values):
        return "float32"
    if not floats:
        others = [d for d in (call.dtype(t) for t in tensors) if is_float(d)]
        if others:
            return others[0]
    return max(floats or dtypes, key=lambda d: 2 if d == "bfloat16" else np.dtype(d).itemsize)


def activated(call: Call, make: Callable[[Scalar], Scalar], computing: str | None = None) -> str:
    """A function of one tensor, computed in the result's type or another."""
    return write(call, computing or call.result.dtype, make, call["self"])


def _unary(make: Callable[[Scalar], Scalar]) -> Handler:
    return lambda call: activated(call, make)


def _binary(make: Callable[[Scalar, Scalar], Scalar]) -> Handler:
    return lambda call: write(call, call.result.dtype, make, call["self"], call["other"])


def _comparison(make: Callable[[Scalar, Scalar], Scalar]) -> Handler:
    def handler(call: Call) -> str:
        return write(
            call, _promoted(call, call["self"], call["other"]), make, call["self"], call["other"]
        )

    return handler


def _logical(make: Callable[..., Scalar]) -> Handler:
    def handler(call: Call) -> str:
        values = [call[name] for name in ("self", "other") if call.get(name) is not None]
        taken = [call.cast(v, "bool") if isinstance(v, str) else bool(v) for v in values]
        return write(call, "bool", make, *taken)

    return handler


def _bitwise(make: Callable[..., Scalar]) -> Handler:
    logical = _logical(make)

    def handler(call: Call) -> Any:
        if call.result.dtype != "bool":
            raise call.error("operations on the bits of integers are not known: only on Booleans")
        return logical(call)

    return handler


def _xor(a: Scalar, b: Scalar) -> Scalar:
    return apply("not", apply("equal", a, b))


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


def _where(call: Call) -> str:
    result = call.result.dtype
    condition = call.cast(call["condition"], "bool")
    values = [call["self"], call["other"]]
    taken = [call.computing(v, result) if isinstance(v, str) else v for v in values]
    names = [condition, *(v for v in taken if isinstance(v, str))]
    places = iter(range(1, len(names)))
    arguments = [Input(next(places)) if isinstance(v, str) else Number(v) for v in taken]
    return call.add(Elementwise(ex.where(X, *arguments), result), *names)


def _masked_fill(call: Call) -> str:
    result = call.result.dtype
    mask, value = call.cast(call["mask"], "bool"), call["value"]
    if isinstance(value, str):
        known = call.value(value)
        value = call.computing(value, result) if known is None else known.item()
    names = [mask, call.computing(call["self"], result)]
    if isinstance(value, str):
        return call.add(Elementwise(ex.where(X, Input(2), Input(1)), result), *names, value)
    return call.add(Elementwise(ex.where(X, Number(value), Input(1)), result), *names)


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


def _is_nan(call: Call) -> str:
    return activated(call, lambda x: _xor(x, x), call.dtype(call["self"]))


def _is_infinite(call: Call) -> str:
    size = call.dtype(call["self"])
    return activated(call, lambda x: apply("equal", apply("abs", x), math.inf), size)


def _filled(value: float | None) -> Handler:
    """A constant of the shape of a tensor, or of one that is given."""

    def handler(call: Call) -> str:
        number = call["fill_value"] if value is None else value
        known = call.value(number) if isinstance(number, str) else number
        if known is None:
            raise call.error("the number that fills a tensor is computed while the model runs")
        dtype = call.result.dtype
        filled = np.full(call.result.shape, known, "float32" if dtype == "bfloat16" else dtype)
        return call.cast(call.constant(filled), dtype)

    return handler


def _convert(call: Call) -> str:
    return call.cast(call["self"], call.result.dtype)


def _function(operation: str) -> Callable[..., Scalar]:
    return lambda *arguments: apply(operation, *arguments)


_FUNCTIONS: Mapping[str, Callable[[Scalar], Scalar]] = {
    **{
        name: _function(name)
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

_COMPARISONS: Mapping[str, Callable[[Scalar, Scalar], Scalar]] = {
    "eq": _function("equal"),
    "ne": _xor,
    "lt": _function("less"),
    "le": _function("less_equal"),
    "gt": lambda a, b: ex.less(b, a),
    "ge": lambda a, b: apply("less_equal", b, a),
}

_EITHER = ("Tensor", "Scalar")
_CONVERSIONS = ("_to_copy.default", "to.dtype", "to.device", "to.dtype_layout", "type_as.default")


def _overloads(name: str, handler: Handler, *overloads: str) -> dict[str, Handler]:
    return {f"aten.{name}.{overload}": handler for overload in overloads}


OPERATORS: Mapping[str, Handler] = {
    **{f"aten.{name}.default": _unary(make) for name, make in _FUNCTIONS.items()},
    **{
        f"aten.{name}.{kind}": _comparison(make)
        for name, make in _COMPARISONS.items()
        for kind in _EITHER
    },
    **_overloads("add", _scaled(ex.add), *_EITHER),
    **_overloads("sub", _scaled(ex.sub), *_EITHER),
    **_overloads("rsub", _reversed_sub, *_EITHER),
    **_overloads("mul", _binary(ex.mul), *_EITHER),
    **_overloads("div", _divide, *_EITHER, "Tensor_mode", "Scalar_mode"),
    **_overloads("remainder", _remainder(_floor), *_EITHER),
    **_overloads("fmod", _remainder(ex.truncated), *_EITHER),
    **_overloads("floor_divide", _floor_divide, "default", "Scalar"),
    **_overloads("pow", _power, "Tensor_Scalar", "Tensor_Tensor"),
    **_overloads("maximum", _binary(_function("max")), "default"),
    **_overloads("minimum", _binary(_function("min")), "default"),
    **_overloads("max", _binary(_function("max")), "other"),
    **_overloads("min", _binary(_function("min")), "other"),
    **_overloads("clamp", _clamp, "default", "Tensor"),
    **_overloads("where", _where, "self", "ScalarOther", "ScalarSelf", "Scalar"),
    **_overloads("masked_fill", _masked_fill, *_EITHER),
    **_overloads("addcmul", _product_added(ex.mul), "default"),
    **_overloads("addcdiv", _product_added(ex.div), "default"),
    **_overloads("lerp", _lerp, "Scalar", "Tensor"),
    **_overloads("logical_and", _logical(_function("and")), "default"),
    **_overloads("logical_or", _logical(_function("or")), "default"),
    **_overloads("logical_xor", _logical(_xor), "default"),
    **_overloads("logical_not", _logical(_function("not")), "default"),
    **_overloads("bitwise_and", _bitwise(_function("and")), *_EITHER),
    **_overloads("bitwise_or", _bitwise(_function("or")), *_EITHER),
    **_overloads("bitwise_xor", _bitwise(_xor), *_EITHER),
    **_overloads("bitwise_not", _bitwise(_function("not")), "default"),
    **_overloads("isnan", _is_nan, "default"),
    **_overloads("isinf", _is_infinite, "default"),
    **{f"aten.{name}": _convert for name in _CONVERSIONS},
    **_overloads("zeros_like", _filled(0), "default"),
    **_overloads("new_zeros", _filled(0), "default"),
    **_overloads("ones_like", _filled(1), "default"),
    **_overloads("new_ones", _filled(1), "default"),
    **_overloads("empty_like", _filled(0), "default"),
    **_overloads("full_like", _filled(None), "default"),
    **_overloads("new_full", _filled(None), "default"),
    "aten.lift_fresh_copy.default": _convert,
}
