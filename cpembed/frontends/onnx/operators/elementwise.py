"""Operators that work at every element: arithmetic, activations, comparisons, conversions."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce

import numpy as np

from cpembed.frontends import expressions as e
from cpembed.frontends.expressions import X, Y, Z, apply
from cpembed.frontends.onnx.site import Site, Translation
from cpembed.graph.kinds import Input, Reshape, Scalar


def unary(expression: Scalar) -> Translation:
    """The same expression whatever the attributes."""
    return lambda site: site.elementwise(expression, site.input())


def _broadcast(site: Site) -> tuple[str, str]:
    """Both inputs of an operator. Before version 7 the second has an ``axis`` of the first at which
    it begins."""
    a, b = site.input(0), site.input(1)
    if site.version < 7 and site.flag("broadcast") and site.attribute("axis") is not None:
        shape = site.shape(b)
        after = site.rank(0) - site.axis() - len(shape)
        if after > 0:
            b = site.emit(Reshape((*shape, *(1,) * after)), b)
    return a, b


def binary(expression: Scalar, dtype: str | None = None) -> Translation:
    def translate(site: Site) -> str:
        a, b = _broadcast(site)
        return site.elementwise(expression, a, b, dtype=dtype)

    return translate


def compared(expression: Scalar) -> Translation:
    return binary(expression, "bool")


def several(operation: str, mean: bool = False) -> Translation:
    """One operation of any number of inputs."""

    def translate(site: Site) -> str:
        tensors = site.all_inputs()
        found: Scalar = reduce(e.partial(operation), map(Input, range(len(tensors))))
        if mean and len(tensors) > 1:
            found = e.div(found, float(len(tensors)))
        return tensors[0] if len(tensors) == 1 else site.elementwise(found, *tensors)

    return translate


def with_alpha(function: Callable[[Scalar, float], Scalar], alpha: float) -> Translation:
    return lambda site: site.elementwise(function(X, site.number("alpha", alpha)), site.input())


def clip(site: Site) -> str:
    x, dtype = site.input(), site.type().dtype
    if site.version < 11:
        low, high = site.attribute("min"), site.attribute("max")
        return site.elementwise(e.clip(X, low, high), x)
    given = [site.optional(1), site.optional(2)]
    values = [site.builder.value(tensor) if tensor else None for tensor in given]
    if all(
        tensor is None or value is not None for tensor, value in zip(given, values, strict=True)
    ):
        low, high = (None if v is None else _plain(v.reshape(-1)[0]) for v in values)
        if low is not None and np.isneginf(low):
            low = None
        if high is not None and np.isposinf(high):
            high = None
        return x if low is None and high is None else site.elementwise(e.clip(X, low, high), x)
    for operation, tensor in zip(("max", "min"), given, strict=True):
        if tensor is not None:
            scalar = site.reshaped(tensor, ())
            x = site.elementwise(apply(operation, X, Y), x, scalar, dtype=dtype)
    return x


def _plain(value: np.generic) -> float | int:
    """A number of numpy as one of Python's."""
    return value.item()


def prelu(site: Site) -> str:
    x, slope = site.input(0), site.input(1)
    shape, own = site.type(0).shape, site.type(1).shape
    if site.version < 9 and len(own) == 1 and own[0] > 1 and len(shape) > 2:
        slope = site.channels(slope, len(shape))
    return site.elementwise(e.leaky_relu(X, Y), x, slope)


def celu(site: Site) -> str:
    alpha = site.number("alpha", 1.0)
    if not alpha:
        site.refuse("alpha = 0, by which it divides: give another")
    return site.elementwise(e.celu(X, alpha), site.input())


def hard_sigmoid(site: Site) -> str:
    alpha, beta = site.number("alpha", 0.2), site.number("beta", 0.5)
    return site.elementwise(e.hard_sigmoid(X, alpha, beta), site.input())


def selu(site: Site) -> str:
    alpha, gamma = site.number("alpha", e.SELU_ALPHA), site.number("gamma", e.SELU_GAMMA)
    return site.elementwise(e.selu(X, alpha, gamma), site.input())


def gelu(site: Site) -> str:
    match site.text("approximate", "none"):
        case "none":
            return site.elementwise(e.gelu(X), site.input())
        case "tanh":
            return site.elementwise(e.gelu_tanh(X), site.input())
        case other:
            site.refuse(f"approximate={other} is not known: use none or tanh")


def shrink(site: Site) -> str:
    limit, bias = site.number("lambd", 0.5), site.number("bias", 0.0)
    above = e.where(e.less(limit, X), e.sub(X, bias), 0)
    return site.elementwise(e.where(e.less(X, -limit), e.add(X, bias), above), site.input())


def mod(site: Site) -> str:
    a, b = site.input(0), site.input(1)
    rest = apply("rem", X, Y)
    if site.flag("fmod"):
        return site.elementwise(rest, a, b)
    # With the sign of the divisor.
    differs = apply("and", apply("not", apply("equal", rest, 0)), apply("less", _product(rest), 0))
    return site.elementwise(e.where(differs, e.add(rest, Y), rest), a, b)


def _product(rest: Scalar) -> Scalar:
    """Below 0 where the signs of a rest and of the divisor differ."""
    return e.mul(e.sign(rest), e.sign(Y))


def power(site: Site) -> str:
    x, exponent = site.input(0), site.input(1)
    value = site.builder.value(exponent)
    if value is not None and value.size == 1:
        number = float(value.reshape(-1)[0])
        known = {1.0: X, 2.0: e.mul(X, X), 3.0: e.mul(e.mul(X, X), X)}
        if number in known:
            shape = np.broadcast_shapes(site.type(0).shape, value.shape)
            if shape == site.type(0).shape:
                return site.elementwise(known[number], x)
    a, b = _broadcast(site)
    return site.elementwise(apply("pow", X, Y), a, b)


def cast(site: Site) -> str:
    to = site.attribute("to")
    return site.cast(site.input(), to if isinstance(to, str) else _dtype(site, to))


def cast_like(site: Site) -> str:
    return site.cast(site.input(0), site.type(1).dtype)


_NUMBERED = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64",
    9: "bool", 10: "float16", 11: "float64", 12: "uint32", 13: "uint64", 16: "bfloat16",
}  # fmt: skip
"""Element types by the format's numbers."""


def _dtype(site: Site, number: object) -> str:
    if not isinstance(number, int) or number not in _NUMBERED:
        site.refuse(f"element type {number} is not read: use float32 or integers")
    return _NUMBERED[number]


def element_type(site: Site, name: str, default: str) -> str:
    """An attribute that names an element type."""
    number = site.attribute(name)
    return default if not number else _dtype(site, number)


def where(site: Site) -> str:
    tensors = [site.input(k) for k in range(3)]
    return site.elementwise(e.where(X, Y, Z), *tensors, dtype=site.type(1).dtype)


def is_inf(site: Site) -> str:
    signs = [name for name in ("positive", "negative") if site.flag(f"detect_{name}", True)]
    if not signs:
        site.refuse("neither kind of infinity is asked for: ask for one")
    ends = {"positive": math.inf, "negative": -math.inf}
    found = [apply("equal", X, ends[sign]) for sign in signs]
    return site.elementwise(reduce(e.partial("or"), found), site.input(), dtype="bool")


def _hyperbolic(operation: str) -> Scalar:
    return e.div(apply(operation, apply("exp", X), apply("exp", apply("neg", X))), 2.0)


TABLE: dict[str, Translation] = {
    "Add": binary(apply("add", X, Y)),
    "Sub": binary(apply("sub", X, Y)),
    "Mul": binary(apply("mul", X, Y)),
    "Div": binary(apply("div", X, Y)),
    "Pow": power,
    "Mod": mod,
    "Max": several("max"),
    "Min": several("min"),
    "Sum": several("add"),
    "Mean": several("add", mean=True),
    "Neg": unary(apply("neg", X)),
    "Abs": unary(apply("abs", X)),
    "Sign": unary(e.where(apply("equal", X, X), e.sign(X), X)),
    "Reciprocal": unary(e.div(1.0, X)),
    "Exp": unary(apply("exp", X)),
    "Log": unary(apply("log", X)),
    "Sqrt": unary(apply("sqrt", X)),
    "Sin": unary(apply("sin", X)),
    "Cos": unary(apply("cos", X)),
    "Tan": unary(e.div(apply("sin", X), apply("cos", X))),
    "Sinh": unary(_hyperbolic("sub")),
    "Cosh": unary(_hyperbolic("add")),
    "Floor": unary(apply("floor", X)),
    "Ceil": unary(apply("ceil", X)),
    "Round": unary(apply("round", X)),
    "Erf": unary(apply("erf", X)),
    "Relu": unary(e.relu(X)),
    "Sigmoid": unary(apply("sigmoid", X)),
    "Tanh": unary(apply("tanh", X)),
    "HardSwish": unary(e.hard_swish(X)),
    "Softplus": unary(e.softplus(X)),
    "Softsign": unary(e.softsign(X)),
    "Mish": unary(e.mish(X)),
    "LeakyRelu": with_alpha(e.leaky_relu, 0.01),
    "Elu": with_alpha(e.elu, 1.0),
    "Celu": celu,
    "Swish": with_alpha(e.silu, 1.0),
    "ThresholdedRelu": with_alpha(lambda x, a: e.where(e.less(a, x), x, 0), 1.0),
    "Selu": selu,
    "HardSigmoid": hard_sigmoid,
    "Gelu": gelu,
    "com.microsoft.Gelu": unary(e.gelu(X)),
    "com.microsoft.QuickGelu": with_alpha(e.silu, 1.702),
    "Shrink": shrink,
    "PRelu": prelu,
    "Clip": clip,
    "Equal": compared(apply("equal", X, Y)),
    "Less": compared(apply("less", X, Y)),
    "LessOrEqual": compared(apply("less_equal", X, Y)),
    "Greater": compared(apply("less", Y, X)),
    "GreaterOrEqual": compared(apply("less_equal", Y, X)),
    "And": compared(apply("and", X, Y)),
    "Or": compared(apply("or", X, Y)),
    "Xor": compared(apply("not", apply("equal", X, Y))),
    "Not": unary(apply("not", X)),
    "IsNaN": lambda site: site.elementwise(
        apply("not", apply("equal", X, X)), site.input(), dtype="bool"
    ),
    "IsInf": is_inf,
    "Where": where,
    "Cast": cast,
    "CastLike": cast_like,
}
