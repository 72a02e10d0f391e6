"""Functions of a float32 as polynomials, which the compiler vectorizes, unlike library calls.

Errors are at most 4 units in the last place (sine and cosine: or 1e-6, for magnitudes up to 1e6).
The coefficients are Chebyshev fits, computed with 40 digits, of the functions in the comments above
them. Arguments are reduced as in Muller, Elementary Functions, 3rd edition, chapter 11. Infinities
and NaNs yield the function's limits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from cpembed.codegen.values import Bind, round_to_even

# (exp(r) - 1 - r) / r² up to ln(2) / 2.
_EXP = (0.5, 0.166665733819, 0.0416665501103, 0.00836377387441, 0.0013926926614)
# (2^r - 1) / r up to 1/2.
_EXP2 = (
    0.693147188029, 0.240226509223, 0.0555035710425, 0.00961805666988, 0.00133908673514,
    0.000154614474634,
)  # fmt: skip
# (log(1 + f) - f + f² / 2) / f³ from sqrt(1/2) to sqrt(2).
_LOG = (
    0.3333333118, -0.24999996958, 0.200007157489, -0.166678023195, 0.142490576457,
    -0.124256873315, 0.116854199235, -0.114797338466, 0.0697161147145,
)  # fmt: skip
# erf(x) / x - 1 in x² up to 0.9.
_ERF = (
    0.12837916708, -0.376126386869, 0.112837866054, -0.0268657171519, 0.00522197428573,
    -0.000849989107265, 0.000113967386391, -1.00900269944e-05,
)  # fmt: skip
# -log(erfc(x)) / x - 1 from sqrt(0.88) to 4.
_ERFC = (
    0.128915355957, 0.634106870264, 0.107911516876, -0.0251799156572, 0.00432067624798,
    -0.000502928595982, 3.4926476327e-05, -1.07549963702e-06,
)  # fmt: skip
# (tanh(x) / x - 1) / x² in x² up to 0.4.
_TANH = (
    -0.333333331494, 0.133333001462, -0.0539584616275, 0.0217625029074, -0.00832318705828,
    0.00226950168416,
)  # fmt: skip
# (sin(x) / x - 1) / x² in x² up to 0.65.
_SIN = (-0.166666666632, 0.0083333316274, -0.000198399566597, 2.72335008676e-06)
# (cos(x) - 1 + x² / 2) / x⁴ in x² up to 0.65.
_COS = (0.0416666666638, -0.00138888874656, 2.48004918106e-05, -2.72872498845e-07)

# ln(2) as a sum whose first part has few bits, so that its product with a whole number is exact.
_LN2_HIGH, _LN2_LOW = 0.693359375, -0.00021219444005469057
# A number above 2^23, in whose neighbourhood float32 has whole numbers only: added to n, its last
# bits are n + 127, the exponent of 2^n.
_EXPONENTS = 1.5 * 2.0**23 + 127.0
# The bits of sqrt(1/2).
_ROOT_HALF = 0x3F3504F3


def _f32(value: float) -> str:
    return f"T.float32({value!r})"


def _polynomial(bind: Bind, x: str, coefficients: Sequence[float]) -> str:
    """Evaluate a polynomial by Horner's rule; the constant coefficient comes first."""
    *lower, last = coefficients
    value = _f32(last)
    for coefficient in reversed(lower):
        value = bind(f"T.fma({value}, {x}, {_f32(coefficient)})")
    return value


def _power_of_two(bind: Bind, exponent: str) -> str:
    # The exponent of a float32 has a bias of 127 and begins at bit 23.
    return bind(f'T.reinterpret(T.shift_left({exponent} + 127, 23), dtype="float32")')


def _reduced_exp(bind: Bind, x: str) -> tuple[str, str]:
    """Return a whole number n, as a float, and ``exp(r)`` for ``x = n ln(2) + r``."""
    n = bind(round_to_even(f"{x} * {_f32(1 / math.log(2))}"))
    r = bind(f"T.fma({n}, {_f32(-_LN2_HIGH)}, {x})")
    r = bind(f"T.fma({n}, {_f32(-_LN2_LOW)}, {r})")
    square = bind(f"{r} * {r}")
    return n, bind(f"T.fma({_polynomial(bind, r, _EXP)}, {square}, {r}) + {_f32(1.0)}")


def _exp(bind: Bind, x: str) -> str:
    # Beyond these limits the result is 0 or infinite, and n would leave the range of exponents.
    n, value = _reduced_exp(bind, bind(f"T.max({_f32(-104.0)}, T.min({_f32(89.5)}, {x}))"))
    exponent = bind(f'T.cast({n}, "int32")')
    # Two factors: 2^n alone may overflow, or be subnormal, where the result does not.
    half = bind(f"T.shift_right({exponent}, 1)")
    first, second = _power_of_two(bind, half), _power_of_two(bind, f"({exponent} - {half})")
    return bind(f"{value} * {first} * {second}")


def exp_below(bind: Bind, x: str) -> str:
    """Return ``exp(x)`` for x at most 0; results below the normal numbers become 0."""
    # One factor is enough here, which softmax and the error function profit from.
    n, value = _reduced_exp(bind, bind(f"T.max({_f32(-104.0)}, {x})"))
    # Limited while it is a float, since TVM's analysis of integers rejects vectors.
    exponent = f'T.cast(T.max({_f32(-127.0)}, {n}), "int32")'
    return bind(f"{value} * {_power_of_two(bind, exponent)}")


def exp2_below(bind: Bind, x: str) -> str:
    """Return ``2^x`` for x at most 0; results below the normal numbers become 0."""
    # 2^-127 is a factor of 0 below. NaN, the second operand, is not limited.
    x = bind(f"T.max({_f32(-127.0)}, {x})")
    # TVM would simplify a sum from which a term is subtracted again.
    rounded = bind(f"T.fma({x}, {_f32(1.0)}, {_f32(_EXPONENTS)})")
    r = bind(f"{x} - ({rounded} - {_f32(_EXPONENTS)})")
    value = bind(f"T.fma({_polynomial(bind, r, _EXP2)}, {r}, {_f32(1.0)})")
    # Bits above the exponent are shifted out.
    bits = f'T.shift_left(T.reinterpret({rounded}, dtype="int32"), 23)'
    return bind(f'{value} * T.reinterpret({bits}, dtype="float32")')


def _log(bind: Bind, x: str) -> str:
    # Subnormal numbers have no exponent of their own: they are scaled by 2^23 first.
    small = bind(f"{x} < {_f32(2.0**-126)}")
    scaled = bind(f"T.Select({small}, {x} * {_f32(2.0**23)}, {x})")
    # Relative to the bits of sqrt(1/2), so that the mantissa is between sqrt(1/2) and sqrt(2).
    bits = bind(f'T.reinterpret({scaled}, dtype="int32") - {_ROOT_HALF}')
    moved = f"T.shift_right({bits}, 23) - T.Select({small}, 23, 0)"
    exponent = bind(f'T.cast({moved}, "float32")')
    mantissa = f"T.bitwise_and({bits}, {0x7FFFFF}) + {_ROOT_HALF}"
    f = bind(f'T.reinterpret({mantissa}, dtype="float32") - {_f32(1.0)}')
    square = bind(f"{f} * {f}")
    tail = bind(f"{square} * {f} * {_polynomial(bind, f, _LOG)}")
    tail = bind(f"T.fma({exponent}, {_f32(_LN2_LOW)}, {tail})")
    tail = bind(f"T.fma({_f32(-0.5)}, {square}, {tail})")
    value = bind(f"T.fma({exponent}, {_f32(_LN2_HIGH)}, {f} + {tail})")
    # The sign bit alone says that a number is negative, and 0x7F800000 is infinity; larger patterns
    # are NaNs, which TVM's comparisons of floats would not find.
    pattern = bind(f'T.reinterpret({x}, dtype="int32")')
    value = bind(f'T.Select({pattern} < 0, T.float32("nan"), {value})')
    value = bind(f'T.Select({x} == {_f32(0.0)}, T.float32("-inf"), {value})')
    return bind(f"T.Select({pattern} >= {0x7F800000}, {x}, {value})")


def _erf(bind: Bind, x: str) -> str:
    # Near 0 the difference from 1 would cancel, far from it the polynomial would diverge. From 4 on
    # the result is 1 in float32.
    square = bind(f"{x} * {x}")
    near = bind(f"T.fma({_polynomial(bind, square, _ERF)}, {x}, {x})")
    size = bind(f"T.min({_f32(4.0)}, T.abs({x}))")
    far = bind(f"T.fma({_polynomial(bind, size, _ERFC)}, {size}, {size})")
    far = bind(f"{_f32(1.0)} - {exp_below(bind, bind(f'{_f32(0.0)} - {far}'))}")
    far = _signed(bind, far, x)
    return bind(f"T.Select(T.abs({x}) < {_f32(0.94)}, {near}, {far})")


def _tanh(bind: Bind, x: str) -> str:
    # Near 0 the formula by the exponential would cancel.
    square = bind(f"{x} * {x}")
    near = bind(f"T.fma({_polynomial(bind, square, _TANH)}, {square} * {x}, {x})")
    power = _exp(bind, bind(f"T.abs({x}) * {_f32(2.0)}"))
    far = bind(f"{_f32(1.0)} - {_f32(2.0)} / ({power} + {_f32(1.0)})")
    far = _signed(bind, far, x)
    return bind(f"T.Select(T.abs({x}) < {_f32(0.6)}, {near}, {far})")


def _sigmoid(bind: Bind, x: str) -> str:
    # The exponential of the negative magnitude cannot overflow.
    power = _exp(bind, bind(f"T.min({x}, {_f32(0.0)} - {x})"))
    above = f"T.Select({x} < {_f32(0.0)}, {power}, {_f32(1.0)})"
    return bind(f"{above} / ({power} + {_f32(1.0)})")


def _signed(bind: Bind, value: str, like: str) -> str:
    return bind(f"T.Select({like} < {_f32(0.0)}, {_f32(0.0)} - {value}, {value})")


def _sine(bind: Bind, x: str, shift: int) -> str:
    """Return ``sin(x + shift * pi / 2)``."""
    # Quarter turns are separated in float64, whose rounding of pi is small enough up to 1e6.
    wide = bind(f'T.cast({x}, "float64")')
    n = bind(round_to_even(f"{wide} * T.float64({2 / math.pi!r})", "float64"))
    rest = f"T.fma({n}, T.float64({-math.pi / 2!r}), {wide})"
    r = bind(f'T.cast({rest}, "float32")')
    quarter = bind(f'T.cast({n}, "int32") + {shift}')
    square = bind(f"{r} * {r}")
    sine = bind(f"T.fma({_polynomial(bind, square, _SIN)}, {square} * {r}, {r})")
    fourth = f"T.fma({_polynomial(bind, square, _COS)}, {square}, {_f32(-0.5)})"
    cosine = bind(f"T.fma({fourth}, {square}, {_f32(1.0)})")
    value = bind(f"T.Select(T.bitwise_and({quarter}, 1) == 1, {cosine}, {sine})")
    negative = f"T.bitwise_and({quarter}, 2) == 2"
    return bind(f"T.Select({negative}, {_f32(0.0)} - {value}, {value})")


APPROXIMATIONS: Mapping[str, Callable[[Bind, str], str]] = {
    "exp": _exp,
    "log": _log,
    "erf": _erf,
    "tanh": _tanh,
    "sigmoid": _sigmoid,
    "sin": partial(_sine, shift=0),
    "cos": partial(_sine, shift=1),
}
"""Function that writes the approximation of each operation and returns its name."""
