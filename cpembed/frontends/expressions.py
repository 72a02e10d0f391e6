"""Scalar expressions of neural networks in the operations of ``graph.kinds.elementwise``.

>>> str(relu(X))
"Apply(operation='max', arguments=(Input(number=0), Number(value=0)))"
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from cpembed.graph.kinds import Input, Scalar
from cpembed.ir.scalars import apply

X, Y, Z = Input(0), Input(1), Input(2)
"""The first inputs of an operator."""

PLAIN = (
    "neg", "abs", "exp", "log", "sqrt", "sin", "cos", "floor", "ceil", "round", "erf", "sigmoid",
    "tanh",
)  # fmt: skip
"""Operations of one argument that the graph and all frameworks have by the same name."""

SELU_ALPHA, SELU_GAMMA = 1.6732632423543772, 1.0507009873554805
"""Klambauer et al. 2017, "Self-normalizing neural networks"."""


def function(operation: str) -> Callable[..., Scalar]:
    """Return :func:`apply` with the operation bound."""
    return lambda *arguments: apply(operation, *arguments)


add, sub, mul, div = map(function, ("add", "sub", "mul", "div"))
less, equal, where = map(function, ("less", "equal", "where"))


def differ(a: Scalar | float, b: Scalar | float) -> Scalar:
    """Return ``a != b``, which is true of NaN and itself."""
    return apply("not", equal(a, b))


def relu(x: Scalar) -> Scalar:
    """Return the larger of ``x`` and 0."""
    return apply("max", x, 0)


def clip(x: Scalar, low: float | int | None, high: float | int | None) -> Scalar:
    """Limit a value to a range.

    Parameters
    ----------
    x : Scalar
        The value.
    low, high : float, int or None
        The ends of the range, None for an open end. Where they cross, the result is ``high``.
    """
    bounded = x if low is None else apply("max", x, low)
    return bounded if high is None else apply("min", bounded, high)


def leaky_relu(x: Scalar, slope: Scalar | float) -> Scalar:
    """Return ``x``, below 0 times the slope."""
    return where(less(x, 0), mul(x, slope), x)


def truncated(x: Scalar) -> Scalar:
    """Round towards zero."""
    return where(less(x, 0), apply("ceil", x), apply("floor", x))


def sign(x: Scalar) -> Scalar:
    """Return 1, -1 or, of 0 and NaN, 0."""
    return where(less(0, x), 1, where(less(x, 0), -1, 0))


def exp_minus_one(x: Scalar) -> Scalar:
    """Return ``exp(x) - 1``, which near 0 avoids the difference of two numbers near 1."""
    # exp(x) - 1 = 2 t / (1 - t) with t = tanh(x / 2), exact for small x.
    half = apply("tanh", mul(x, 0.5))
    near = div(mul(half, 2.0), sub(1.0, half))
    return where(less(apply("abs", x), 1.0), near, sub(apply("exp", x), 1.0))


def log_one_plus(x: Scalar) -> Scalar:
    """Return ``log(1 + x)``, corrected near 0 for the rounding error of ``1 + x`` (Kahan)."""
    plus = add(x, 1.0)
    # The factor x / ((1 + x) - 1) undoes the rounding of 1 + x; where that is 1, log(1 + x) is x.
    near = div(mul(apply("log", plus), x), sub(plus, 1.0))
    near = where(equal(plus, 1.0), x, near)
    return where(less(apply("abs", x), 1.0), near, apply("log", plus))


def elu(x: Scalar, alpha: float = 1.0) -> Scalar:
    """Return ``x``, below 0 ``alpha * (exp(x) - 1)``."""
    return where(less(x, 0), mul(exp_minus_one(x), alpha), x)


def selu(x: Scalar, alpha: float = SELU_ALPHA, gamma: float = SELU_GAMMA) -> Scalar:
    """Return ELU times a factor.

    Parameters
    ----------
    x : Scalar
        The value.
    alpha, gamma : float
        The slope of the exponential and the factor, by default those of Klambauer et al.
    """
    return mul(elu(x, alpha), gamma)


def celu(x: Scalar, alpha: float = 1.0) -> Scalar:
    """Return ``x``, below 0 ``alpha * (exp(x / alpha) - 1)``."""
    return where(less(x, 0), mul(exp_minus_one(div(x, alpha)), alpha), x)


def hard_sigmoid(x: Scalar, alpha: float = 0.2, beta: float = 0.5) -> Scalar:
    """Return a line limited to the range from 0 to 1.

    Parameters
    ----------
    x : Scalar
        The value.
    alpha, beta : float
        The slope and the height at 0 of the line.
    """
    return clip(add(mul(x, alpha), beta), 0.0, 1.0)


def hard_swish(x: Scalar) -> Scalar:
    """Return ``x`` times a hard sigmoid of slope 1/6."""
    return mul(x, hard_sigmoid(x, 1 / 6, 0.5))


def silu(x: Scalar, alpha: float = 1.0) -> Scalar:
    """Return ``x * sigmoid(alpha * x)``, also called swish."""
    return mul(x, apply("sigmoid", x if alpha == 1.0 else mul(x, alpha)))


def softplus(x: Scalar) -> Scalar:
    """Return ``log(1 + exp(x))`` without overflow in any step."""
    # max(x, 0) + log(1 + exp(-|x|)): the exponent is never above 0.
    return add(relu(x), log_one_plus(apply("exp", apply("neg", apply("abs", x)))))


def mish(x: Scalar) -> Scalar:
    """Return ``x * tanh(softplus(x))``."""
    return mul(x, apply("tanh", softplus(x)))


def softsign(x: Scalar) -> Scalar:
    """Return ``x / (1 + |x|)``."""
    return div(x, add(apply("abs", x), 1.0))


def gelu(x: Scalar) -> Scalar:
    """Return ``x`` times the normal distribution function of ``x``."""
    return mul(mul(x, 0.5), add(apply("erf", mul(x, math.sqrt(0.5))), 1.0))


def gelu_tanh(x: Scalar) -> Scalar:
    """Return the approximation of GELU by Hendrycks and Gimpel 2016."""
    cube = mul(mul(mul(x, x), x), 0.044715)
    inner = mul(add(x, cube), math.sqrt(2 / math.pi))
    return mul(mul(x, 0.5), add(apply("tanh", inner), 1.0))


def sinh(x: Scalar) -> Scalar:
    """Return the hyperbolic sine, by ``exp(x) - 1``, which does not cancel near 0."""
    size = apply("abs", x)
    grown = exp_minus_one(size)
    # (g + g / (g + 1)) / 2 with g = exp(x) - 1; an infinite g is halved alone.
    value = mul(add(grown, div(grown, add(grown, 1.0))), 0.5)
    half = apply("exp", sub(size, math.log(2)))
    value = where(less(size, 80.0), value, half)
    return where(less(x, 0), apply("neg", value), value)


def cosh(x: Scalar) -> Scalar:
    """Return the hyperbolic cosine, whose powers overflow only where it does."""
    size = sub(apply("abs", x), math.log(2))
    near = mul(add(apply("exp", x), apply("exp", apply("neg", x))), 0.5)
    return where(less(size, 80.0), near, apply("exp", size))


def arc_sine(x: Scalar) -> Scalar:
    """Return the arc sine, by the tangent of the same angle."""
    cosine = apply("sqrt", mul(sub(1.0, x), add(x, 1.0)))
    return apply("atan", div(x, cosine))


def arc_cosine(x: Scalar) -> Scalar:
    """Return the arc cosine, by the tangent of half the angle."""
    return mul(apply("atan", apply("sqrt", div(sub(1.0, x), add(x, 1.0)))), 2.0)


def arc_tangent_of(y: Scalar, x: Scalar) -> Scalar:
    """Return the angle of the point (x, y), from -pi to pi."""
    quotient = apply("atan", div(y, x))
    is_negative = less(y, 0.0)
    turned = where(is_negative, sub(quotient, math.pi), add(quotient, math.pi))
    # Of two infinities the quotient is NaN, of two zeros too.
    infinite = where(equal(apply("abs", y), math.inf), equal(apply("abs", x), math.inf), False)
    diagonal = where(less(x, 0.0), 3 * math.pi / 4, math.pi / 4)
    diagonal = where(is_negative, apply("neg", diagonal), diagonal)
    angle = where(less(x, 0.0), turned, quotient)
    angle = where(infinite, diagonal, angle)
    return where(apply("and", equal(x, 0.0), equal(y, 0.0)), mul(y, 1.0), angle)


def inverse_sinh(x: Scalar) -> Scalar:
    """Return the inverse hyperbolic sine, without overflow or cancellation."""
    size = apply("abs", x)
    square = mul(size, size)
    near = log_one_plus(add(size, div(square, add(apply("sqrt", add(square, 1.0)), 1.0))))
    # The square of a larger number may be infinite; 1 is nothing beside it.
    value = where(less(size, 1e9), near, add(apply("log", size), math.log(2)))
    return where(less(x, 0.0), apply("neg", value), value)


def inverse_cosh(x: Scalar) -> Scalar:
    """Return the inverse hyperbolic cosine, without overflow or cancellation."""
    above = sub(x, 1.0)
    near = log_one_plus(add(above, apply("sqrt", add(mul(above, 2.0), mul(above, above)))))
    return where(less(x, 1e9), near, add(apply("log", x), math.log(2)))


def inverse_tanh(x: Scalar) -> Scalar:
    """Return the inverse hyperbolic tangent."""
    return mul(log_one_plus(div(mul(x, 2.0), sub(1.0, x))), 0.5)


def shifted_right(x: Scalar, count: Scalar, *, is_unsigned: bool) -> Scalar:
    """Return bits shifted towards the lowest; without a sign, zeros follow.

    Parameters
    ----------
    x, count : Scalar
        Integer and number of bits.
    is_unsigned : bool
        True for integers whose highest bit is no sign, of as many bits as the arithmetic.
    """
    shifted = apply("shift_right", x, count)
    if not is_unsigned:
        return shifted
    # The arithmetic repeats the highest bit: only as many bits stay as were not shifted out.
    lost = apply("shift_left", -1, sub(64, count))
    return where(less(0, count), apply("bit_and", shifted, apply("bit_not", lost)), x)


def remainder(a: Scalar, b: Scalar) -> Scalar:
    """Return the exact remainder of a floored division, which has the sign of the divisor."""
    rest = apply("rem", a, b)
    is_moved = apply("and", differ(rest, 0), have_other_signs(rest, b))
    return where(is_moved, add(rest, b), rest)


def have_other_signs(a: Scalar, b: Scalar) -> Scalar:
    """Return whether one of two numbers is below 0 and the other is not."""
    return differ(less(a, 0), less(b, 0))


UNARY: Mapping[str, Callable[[Scalar], Scalar]] = {
    **{name: function(name) for name in PLAIN},
    "reciprocal": lambda x: div(1.0, x),
    "tan": lambda x: div(apply("sin", x), apply("cos", x)),
    "sinh": sinh,
    "cosh": cosh,
    "asin": arc_sine,
    "acos": arc_cosine,
    "atan": function("atan"),
    "asinh": inverse_sinh,
    "acosh": inverse_cosh,
    "atanh": inverse_tanh,
    "relu": relu,
    "mish": mish,
}
"""Functions that all frameworks have by the same name."""

SMALL_POWERS: Mapping[float, Callable[[Scalar], Scalar]] = {
    1: lambda x: x,
    2: lambda x: mul(x, x),
    3: lambda x: mul(mul(x, x), x),
}
"""Powers that are written as products, by their exponents."""
