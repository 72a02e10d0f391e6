"""Scalar expressions that front ends share: the functions of neural networks, in the operations of
:mod:`cpembed.graph.kinds.elementwise`.

>>> str(relu(X))
"Apply(operation='max', arguments=(Input(number=0), Number(value=0)))"
"""

from __future__ import annotations

import math
from collections.abc import Callable

from cpembed.graph.kinds import Apply, Input, Number, Scalar

X, Y, Z = Input(0), Input(1), Input(2)
"""The first inputs of an operator."""

SELU_ALPHA, SELU_GAMMA = 1.6732632423543772, 1.0507009873554805
"""Klambauer et al. 2017, "Self-normalizing neural networks"."""


def number(value: Scalar | float | int) -> Scalar:
    return Number(value) if isinstance(value, float | int) else value


def apply(operation: str, *arguments: Scalar | float | int) -> Scalar:
    """An operation of expressions and numbers."""
    return Apply(operation, tuple(number(argument) for argument in arguments))


def partial(operation: str) -> Callable[[Scalar, Scalar], Scalar]:
    """An operation of two arguments as a function of them."""
    return lambda a, b: apply(operation, a, b)


def add(a: Scalar | float, b: Scalar | float) -> Scalar:
    return apply("add", a, b)


def sub(a: Scalar | float, b: Scalar | float) -> Scalar:
    return apply("sub", a, b)


def mul(a: Scalar | float, b: Scalar | float) -> Scalar:
    return apply("mul", a, b)


def div(a: Scalar | float, b: Scalar | float) -> Scalar:
    return apply("div", a, b)


def where(condition: Scalar, a: Scalar | float, b: Scalar | float) -> Scalar:
    return apply("where", condition, a, b)


def less(a: Scalar | float, b: Scalar | float) -> Scalar:
    return apply("less", a, b)


def relu(x: Scalar) -> Scalar:
    return apply("max", x, 0)


def clip(x: Scalar, low: float | int | None, high: float | int | None) -> Scalar:
    """Limited on the sides that are given; where they cross, to ``high``."""
    bounded = x if low is None else apply("max", x, low)
    return bounded if high is None else apply("min", bounded, high)


def leaky_relu(x: Scalar, slope: Scalar | float) -> Scalar:
    return where(less(x, 0), mul(x, slope), x)


def truncated(x: Scalar) -> Scalar:
    """Towards zero."""
    return where(less(x, 0), apply("ceil", x), apply("floor", x))


def sign(x: Scalar) -> Scalar:
    return where(less(0, x), 1, where(less(x, 0), -1, 0))


def exp_minus_one(x: Scalar) -> Scalar:
    """``exp(x) - 1``, near 0 without the difference of two numbers near 1."""
    half = apply("tanh", mul(x, 0.5))
    near = div(mul(half, 2.0), sub(1.0, half))
    return where(less(apply("abs", x), 1.0), near, sub(apply("exp", x), 1.0))


def log_one_plus(x: Scalar) -> Scalar:
    """``log(1 + x)``, near 0 with what the rounding of ``1 + x`` lost (Kahan)."""
    plus = add(x, 1.0)
    near = div(mul(apply("log", plus), x), sub(plus, 1.0))
    near = where(apply("equal", plus, 1.0), x, near)
    return where(less(apply("abs", x), 1.0), near, apply("log", plus))


def elu(x: Scalar, alpha: float = 1.0) -> Scalar:
    return where(less(x, 0), mul(exp_minus_one(x), alpha), x)


def selu(x: Scalar, alpha: float = SELU_ALPHA, gamma: float = SELU_GAMMA) -> Scalar:
    return mul(elu(x, alpha), gamma)


def celu(x: Scalar, alpha: float = 1.0) -> Scalar:
    grown = mul(exp_minus_one(div(x, alpha)), alpha)
    return where(less(x, 0), grown, x)


def hard_sigmoid(x: Scalar, alpha: float = 0.2, beta: float = 0.5) -> Scalar:
    return clip(add(mul(x, alpha), beta), 0.0, 1.0)


def hard_swish(x: Scalar) -> Scalar:
    return mul(x, hard_sigmoid(x, 1 / 6, 0.5))


def silu(x: Scalar, alpha: float = 1.0) -> Scalar:
    """``x * sigmoid(alpha * x)``, also called swish."""
    return mul(x, apply("sigmoid", x if alpha == 1.0 else mul(x, alpha)))


def softplus(x: Scalar) -> Scalar:
    """``log(1 + exp(x))``, of which no step overflows."""
    return add(relu(x), log_one_plus(apply("exp", apply("neg", apply("abs", x)))))


def mish(x: Scalar) -> Scalar:
    return mul(x, apply("tanh", softplus(x)))


def softsign(x: Scalar) -> Scalar:
    return div(x, add(apply("abs", x), 1.0))


def gelu(x: Scalar) -> Scalar:
    half = mul(x, 0.5)
    return mul(half, add(apply("erf", mul(x, math.sqrt(0.5))), 1.0))


def gelu_tanh(x: Scalar) -> Scalar:
    """The approximation of Hendrycks and Gimpel 2016."""
    cube = mul(mul(mul(x, x), x), 0.044715)
    inner = mul(add(x, cube), math.sqrt(2 / math.pi))
    return mul(mul(x, 0.5), add(apply("tanh", inner), 1.0))
