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


def _other_sign(a: Scalar, b: Scalar) -> Scalar:
    """Whether exactly one of two numbers is below 0."""
    return apply("not", apply("equal", ex.less(a, 0), ex.less(b, 0)))


def _remainder(a: Scalar, b: Scalar) -> Scalar:
    """What a division rounded down leaves, exactly: it has the sign of the divisor."""
    rest = apply("rem", a, b)
    is_below = apply("and", apply("not", apply("equal", rest, 0)), _other_sign(rest, b))
    return ex.where(is_below, ex.add(rest, b), rest)


def _floor_quotient(a: Scalar, b: Scalar) -> Scalar:
    """A quotient of floats rounded down, as PyTorch computes it: what is left is taken off first,
    so that the quotient is next to an integer."""
    near = ex.div(ex.sub(a, _remainder(a, b)), b)
    low = apply("floor", near)
    rounded = ex.where(ex.less(0.5, ex.sub(near, low)), ex.add(low, 1), low)
    return ex.where(apply("equal", b, 0), ex.div(a, b), rounded)


def _floor_quotient_of_integers(a: Scalar, b: Scalar) -> Scalar:
    quotient = ex.div(a, b)
    is_rounded = apply("not", apply("equal", apply("rem", a, b), 0))
    return ex.where(apply("and", is_rounded, _other_sign(a, b)), ex.sub(quotient, 1), quotient)


def _floor_divide(call: Call) -> str:
    whole = not is_float(call.result.dtype)
    make = _floor_quotient_of_integers if whole else _floor_quotient
    return write(call, call.result.dtype, make, call["self"], call["other"])


def _truncated_quotient(a: Scalar, b: Scalar) -> Scalar:
    return ex.truncated(ex.div(a, b))


def _divide(call: Call) -> str:
    rounding = call.get("rounding_mode")
    if rounding == "floor":
        return _floor_divide(call)
    values = call["self"], call["other"]
    if rounding is None or not is_float(call.result.dtype):
        # Of integers division rounds towards zero.
        return write(call, call.result.dtype, ex.div, *values)
    return write(call, call.result.dtype, _truncated_quotient, *values)


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
    if not is_float(result):
        known = call.value(exponent) if isinstance(exponent, str) else np.asarray(exponent)
        if known is None or (known < 0).any():
            raise call.error("a power of integers whose exponent may be below 0: use floats")
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
        call.in_result("self")
        number = call["fill_value"] if value is None else value
        known = call.value(number) if isinstance(number, str) else number
        if known is None:
            raise call.error("the number that fills a tensor is computed while the model runs")
        shape, dtype = call.result.shape, call.result.dtype
        one = np.full((1,) * len(shape), known, "float32" if dtype == "bfloat16" else dtype)
        return call.expanded(call.cast(call.tensor(one), dtype), shape)

    return handler


def _convert(call: Call) -> str:
    call.in_result("other")
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
    "expm1": ex.exp_minus_one,
    "log1p": ex.log_one_plus,
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
    **overloads("remainder", _binary(_remainder), *EITHER),
    **overloads("fmod", _binary(function("rem")), *EITHER),
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
