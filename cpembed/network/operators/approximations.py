"""Functions of a float32 that the compiler vectorises: polynomials instead of calls of a library.

Each has at most 4 units in the last place of error (sine and cosine: or 1e-6, for magnitudes up to
1e6). The coefficients are Chebyshev fits, made with 40 digits, of what the comments name; the
arguments are reduced as usual (Muller, Elementary Functions, 3rd edition, chapter 11). Infinities
and NaNs give what the function's limits are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from cpembed.network.operators.values import nearest

Let = Callable[[str], str]

_EXP = (0.5, 0.166665733819, 0.0416665501103, 0.00836377387441, 0.0013926926614)
"""(exp(r) - 1 - r) / r² up to ln(2) / 2."""
_LOG = (
    0.3333333118, -0.24999996958, 0.200007157489, -0.166678023195, 0.142490576457,
    -0.124256873315, 0.116854199235, -0.114797338466, 0.0697161147145,
)  # fmt: skip
"""(log(1 + f) - f + f² / 2) / f³ from sqrt(1/2) to sqrt(2)."""
_ERF = (
    0.12837916708, -0.376126386869, 0.112837866054, -0.0268657171519, 0.00522197428573,
    -0.000849989107265, 0.000113967386391, -1.00900269944e-05,
)  # fmt: skip
"""erf(x) / x - 1 in x² up to 0.9."""
_ERFC = (
    0.128915355957, 0.634106870264, 0.107911516876, -0.0251799156572, 0.00432067624798,
    -0.000502928595982, 3.4926476327e-05, -1.07549963702e-06,
)  # fmt: skip
"""-log(erfc(x)) / x - 1 from sqrt(0.88) to 4."""
_TANH = (
    -0.333333331494, 0.133333001462, -0.0539584616275, 0.0217625029074, -0.00832318705828,
    0.00226950168416,
)  # fmt: skip
"""(tanh(x) / x - 1) / x² in x² up to 0.4."""
_SIN = (-0.166666666632, 0.0083333316274, -0.000198399566597, 2.72335008676e-06)
"""(sin(x) / x - 1) / x² in x² up to 0.65."""
_COS = (0.0416666666638, -0.00138888874656, 2.48004918106e-05, -2.72872498845e-07)
"""(cos(x) - 1 + x² / 2) / x⁴ in x² up to 0.65."""

_LN2_HIGH, _LN2_LOW = 0.693359375, -0.00021219444005469057
_ROOT_HALF = 0x3F3504F3
"""The bits of sqrt(1/2)."""


def _f32(value: float) -> str:
    return f"T.float32({value!r})"


def _polynomial(let: Let, at: str, coefficients: Sequence[float]) -> str:
    """By Horner's rule, the constant first."""
    *others, last = coefficients
    value = _f32(last)
    for coefficient in reversed(others):
        value = let(f"T.fma({value}, {at}, {_f32(coefficient)})")
    return value


def _power_of_two(let: Let, exponent: str) -> str:
    return let(f'T.reinterpret(T.shift_left({exponent} + 127, 23), dtype="float32")')


def exp(let: Let, x: str) -> str:
    """``2^n exp(r)``; by two factors, since 2^n alone may be no float32 while the result is."""
    x = let(f"T.max({_f32(-104.0)}, T.min({_f32(89.5)}, {x}))")
    n = let(nearest(f"{x} * {_f32(1 / math.log(2))}"))
    r = let(f"T.fma({n}, {_f32(-_LN2_HIGH)}, {x})")
    r = let(f"T.fma({n}, {_f32(-_LN2_LOW)}, {r})")
    square = let(f"{r} * {r}")
    value = let(f"T.fma({_polynomial(let, r, _EXP)}, {square}, {r}) + {_f32(1.0)}")
    exponent = let(f'T.cast({n}, "int32")')
    half = let(f"T.shift_right({exponent}, 1)")
    first, second = _power_of_two(let, half), _power_of_two(let, f"({exponent} - {half})")
    return let(f"{value} * {first} * {second}")


def exp_below(let: Let, x: str) -> str:
    """``exp(x)`` of numbers that are not above 0; what is below the normal numbers is 0."""
    x = let(f"T.max({_f32(-104.0)}, {x})")
    n = let(nearest(f"{x} * {_f32(1 / math.log(2))}"))
    r = let(f"T.fma({n}, {_f32(-_LN2_HIGH)}, {x})")
    r = let(f"T.fma({n}, {_f32(-_LN2_LOW)}, {r})")
    square = let(f"{r} * {r}")
    value = let(f"T.fma({_polynomial(let, r, _EXP)}, {square}, {r}) + {_f32(1.0)}")
    # Limited as a float: TVM's analysis of integers stumbles over vectors.
    exponent = f'T.cast(T.max({_f32(-127.0)}, {n}), "int32")'
    return let(f"{value} * {_power_of_two(let, exponent)}")


def log(let: Let, x: str) -> str:
    small = let(f"{x} < {_f32(2.0**-126)}")
    scaled = let(f"T.Select({small}, {x} * {_f32(2.0**23)}, {x})")
    bits = let(f'T.reinterpret({scaled}, dtype="int32") - {_ROOT_HALF}')
    moved = f"T.shift_right({bits}, 23) - T.Select({small}, 23, 0)"
    exponent = let(f'T.cast({moved}, "float32")')
    mantissa = f"T.bitwise_and({bits}, {0x7FFFFF}) + {_ROOT_HALF}"
    f = let(f'T.reinterpret({mantissa}, dtype="float32") - {_f32(1.0)}')
    square = let(f"{f} * {f}")
    tail = let(f"{square} * {f} * {_polynomial(let, f, _LOG)}")
    tail = let(f"T.fma({exponent}, {_f32(_LN2_LOW)}, {tail})")
    tail = let(f"T.fma({_f32(-0.5)}, {square}, {tail})")
    value = let(f"T.fma({exponent}, {_f32(_LN2_HIGH)}, {f} + {tail})")
    pattern = let(f'T.reinterpret({x}, dtype="int32")')
    value = let(f'T.Select({pattern} < 0, T.float32("nan"), {value})')
    value = let(f'T.Select({x} == {_f32(0.0)}, T.float32("-inf"), {value})')
    return let(f"T.Select({pattern} >= {0x7F800000}, {x}, {value})")


def erf(let: Let, x: str) -> str:
    square = let(f"{x} * {x}")
    near = let(f"T.fma({_polynomial(let, square, _ERF)}, {x}, {x})")
    size = let(f"T.min({_f32(4.0)}, T.abs({x}))")
    far = let(f"T.fma({_polynomial(let, size, _ERFC)}, {size}, {size})")
    far = let(f"{_f32(1.0)} - {exp_below(let, let(f'{_f32(0.0)} - {far}'))}")
    far = _signed(let, far, x)
    return let(f"T.Select(T.abs({x}) < {_f32(0.94)}, {near}, {far})")


def tanh(let: Let, x: str) -> str:
    square = let(f"{x} * {x}")
    near = let(f"T.fma({_polynomial(let, square, _TANH)}, {square} * {x}, {x})")
    power = exp(let, let(f"T.abs({x}) * {_f32(2.0)}"))
    far = let(f"{_f32(1.0)} - {_f32(2.0)} / ({power} + {_f32(1.0)})")
    far = _signed(let, far, x)
    return let(f"T.Select(T.abs({x}) < {_f32(0.6)}, {near}, {far})")


def sigmoid(let: Let, x: str) -> str:
    """By the exponential of what is below 0, so that nothing overflows."""
    power = exp(let, let(f"T.min({x}, {_f32(0.0)} - {x})"))
    above = f"T.Select({x} < {_f32(0.0)}, {power}, {_f32(1.0)})"
    return let(f"{above} / ({power} + {_f32(1.0)})")


def _signed(let: Let, value: str, like: str) -> str:
    return let(f"T.Select({like} < {_f32(0.0)}, {_f32(0.0)} - {value}, {value})")


def _quarter(let: Let, x: str, more: int) -> str:
    """``sin(x + more * pi / 2)``: which quarter of a turn, and the rest, in float64."""
    wide = let(f'T.cast({x}, "float64")')
    n = let(nearest(f"{wide} * T.float64({2 / math.pi!r})", "float64"))
    rest = f"T.fma({n}, T.float64({-math.pi / 2!r}), {wide})"
    r = let(f'T.cast({rest}, "float32")')
    quarter = let(f'T.cast({n}, "int32") + {more}')
    square = let(f"{r} * {r}")
    sine = let(f"T.fma({_polynomial(let, square, _SIN)}, {square} * {r}, {r})")
    fourth = f"T.fma({_polynomial(let, square, _COS)}, {square}, {_f32(-0.5)})"
    cosine = let(f"T.fma({fourth}, {square}, {_f32(1.0)})")
    value = let(f"T.Select(T.bitwise_and({quarter}, 1) == 1, {cosine}, {sine})")
    negative = f"T.bitwise_and({quarter}, 2) == 2"
    return let(f"T.Select({negative}, {_f32(0.0)} - {value}, {value})")


def sin(let: Let, x: str) -> str:
    return _quarter(let, x, 0)


def cos(let: Let, x: str) -> str:
    return _quarter(let, x, 1)


APPROXIMATIONS: Mapping[str, Callable[[Let, str], str]] = {
    "exp": exp,
    "log": log,
    "erf": erf,
    "tanh": tanh,
    "sigmoid": sigmoid,
    "sin": sin,
    "cos": cos,
}
