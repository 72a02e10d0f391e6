"""Decompositions of functions that PyTorch computes by one operator: gamma, Bessel, errors, sums.

Series, recurrences and asymptotic expansions are evaluated in float64, so that results are those of
float32 to the last bits. Formulas are those of Abramowitz and Stegun, Handbook of Mathematical
Functions, chapters 6, 7, 9 and 26, where no other source is named.
"""
# pyright: basic

# What it imports is an extra, which a type checker need not find, and not this package.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

_SHIFT = 8
"""Argument from which asymptotic expansions of gamma functions are exact to 13 digits."""
_LARGE_BESSEL = 20.0
"""Argument from which asymptotic expansions of Bessel functions are exact to 9 digits."""
_BESSEL_TERMS, _ASYMPTOTIC_TERMS = 48, 9
_LARGE_ERROR, _ERROR_TERMS, _FRACTION_TERMS = 2.5, 48, 48
"""Argument from which a continued fraction is used for erfcx, and terms of both."""


def _polynomial(x: torch.Tensor, coefficients: Sequence[float]) -> torch.Tensor:
    """Return a polynomial by Horner's rule; coefficients begin with that of the highest power."""
    result = torch.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        result = result * x + coefficient
    return result


def _in_float64(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return a function of a tensor that computes in float64; results of integers are floats."""

    def computed(x: torch.Tensor) -> torch.Tensor:
        dtype = x.dtype if x.dtype.is_floating_point else torch.get_default_dtype()
        return function(x.to(torch.float64)).to(dtype)

    return computed


# -- gamma functions ------------------------------------------------------------------------------


def _log_gamma(x: torch.Tensor) -> torch.Tensor:
    # Gamma(x) Gamma(1 - x) = pi / sin(pi x).
    reflects = x < 0.5
    z = torch.where(reflects, 1 - x, x)
    near = z < _SHIFT
    product = torch.ones_like(z)
    for k in range(_SHIFT):
        product = product * torch.where(near, z + k, 1.0)
    shifted = torch.where(near, z + _SHIFT, z)
    inverse = 1 / shifted
    tail = inverse * _polynomial(
        inverse * inverse, (-1 / 1680, 1 / 1260, -1 / 360, 1 / 12)
    ) + 0.5 * math.log(2 * math.pi)
    value = (shifted - 0.5) * torch.log(shifted) - shifted + tail - torch.log(product)
    # Its zeros are exact, so that what is divided by them is infinite, too.
    value = torch.where((z == 1) | (z == 2), 0.0, value)
    value = torch.where(torch.isinf(z), math.inf, value)
    sine = torch.abs(torch.sin(math.pi * (x - torch.floor(x))))
    reflected = torch.log(math.pi / sine) - value
    reflected = torch.where(torch.isinf(x) | (x == torch.floor(x)), math.inf, reflected)
    return torch.where(reflects, reflected, value)


def _raised(
    z: torch.Tensor, term: Callable[[torch.Tensor], torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return arguments large enough for an asymptotic series, and the terms of the steps there."""
    near = z < _SHIFT
    total = torch.zeros_like(z)
    for k in range(_SHIFT):
        total = total + torch.where(near, term(z + k), 0.0)
    return torch.where(near, z + _SHIFT, z), total


def _digamma(x: torch.Tensor) -> torch.Tensor:
    # psi(1 - x) - psi(x) = pi / tan(pi x).
    reflects = x < 0
    z = torch.where(reflects, 1 - x, x)
    shifted, total = _raised(z, lambda each: 1 / each)
    square = 1 / (shifted * shifted)
    tail = square * _polynomial(square, (-1 / 132, 1 / 240, -1 / 252, 1 / 120, -1 / 12))
    value = torch.log(shifted) - 0.5 / shifted + tail - total
    turn = math.pi * (x - torch.floor(x))
    reflected = value - math.pi * torch.cos(turn) / torch.sin(turn)
    # At its poles the function has no value; at a zero PyTorch has that of the side of its sign.
    reflected = torch.where(x == torch.floor(x), math.nan, reflected)
    zero = torch.where(1 / x < 0, math.inf, -math.inf)
    return torch.where(x == 0, zero, torch.where(reflects, reflected, value))


def _trigamma(x: torch.Tensor) -> torch.Tensor:
    # psi'(1 - x) + psi'(x) = (pi / sin(pi x))^2.
    reflects = x < 0.5
    z = torch.where(reflects, 1 - x, x)
    shifted, total = _raised(z, lambda each: 1 / (each * each))
    inverse = 1 / shifted
    square = inverse * inverse
    tail = inverse * square * _polynomial(square, (5 / 66, -1 / 30, 1 / 42, -1 / 30, 1 / 6))
    value = inverse + 0.5 * square + tail + total
    quotient = math.pi / torch.sin(math.pi * (x - torch.floor(x)))
    return torch.where(reflects, quotient * quotient - value, value)


def _polygamma(order: int, x: torch.Tensor) -> torch.Tensor:
    """Decompose ``aten.polygamma`` of the orders 0 and 1."""
    if order > 1:
        return NotImplemented
    return _in_float64(_trigamma if order else _digamma)(x)


# -- Bessel functions -----------------------------------------------------------------------------


def _bessel_i(x: torch.Tensor, order: int, *, is_scaled: bool) -> torch.Tensor:
    """Return the modified Bessel function of order 0 or 1, times exp(-|x|) if it is scaled."""
    size = torch.abs(x)
    near = torch.where(size < _LARGE_BESSEL, size, 0.0)
    # The sum over k of (x / 2)^(2 k) / (k! (k + order)!).
    terms = [1 / (math.factorial(k) * math.factorial(k + order)) for k in range(_BESSEL_TERMS)]
    value = _polynomial(0.25 * near * near, terms[::-1])
    value = 0.5 * near * value if order else value
    far = torch.where(size < _LARGE_BESSEL, _LARGE_BESSEL, size)
    expansion = [1.0]
    for k in range(1, _ASYMPTOTIC_TERMS):
        expansion.append(expansion[-1] * ((2 * k - 1) ** 2 - 4 * order**2) / (8 * k))
    limit = _polynomial(1 / far, expansion[::-1]) / torch.sqrt(2 * math.pi * far)
    if is_scaled:
        value = value * torch.exp(-near)
    else:
        limit = limit * torch.exp(far)
    result = torch.where(size < _LARGE_BESSEL, value, limit)
    result = torch.where(torch.isnan(x), x, result)
    return torch.where(x < 0, -result, result) if order else result


def _spherical_bessel_j0(x: torch.Tensor) -> torch.Tensor:
    value = torch.where(x == 0, 1.0, torch.sin(x) / x)
    return torch.where(torch.isinf(x), 0.0, value)


# -- error functions ------------------------------------------------------------------------------


def _erfcx(x: torch.Tensor) -> torch.Tensor:
    """Return exp(x^2) erfc(x)."""
    size = torch.abs(x)
    near = torch.where(size < _LARGE_ERROR, size, 0.0)
    # exp(x^2) erf(x) is 2 / sqrt(pi) times the sum of 2^k x^(2 k + 1) / (1 * 3 * ... * (2 k + 1)).
    terms = [1.0]
    for k in range(1, _ERROR_TERMS):
        terms.append(terms[-1] * 2 / (2 * k + 1))
    series = near * _polynomial(near * near, terms[::-1])
    value = torch.exp(near * near) - 2 / math.sqrt(math.pi) * series
    far = torch.where(size < _LARGE_ERROR, _LARGE_ERROR, size)
    fraction = far
    for k in range(_FRACTION_TERMS, 0, -1):
        fraction = far + 0.5 * k / fraction
    value = torch.where(size < _LARGE_ERROR, value, 1 / (math.sqrt(math.pi) * fraction))
    value = torch.where(torch.isnan(x), x, value)
    return torch.where(x < 0, 2 * torch.exp(x * x) - value, value)


def _erfinv(x: torch.Tensor) -> torch.Tensor:
    # By the polynomials of M. Giles (GPU Computing Gems, 2011).
    w = -torch.log((1 - x) * (1 + x))
    center = _polynomial(
        w - 2.5,
        (
            *(2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087),
            *(-0.00125372503, -0.00417768164, 0.246640727, 1.50140941),
        ),
    )
    tail = _polynomial(
        torch.sqrt(torch.where(w < 5, 5.0, w)) - 3,
        (
            *(-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773),
            *(-0.0076224613, 0.00943887047, 1.00167406, 2.83297682),
        ),
    )
    value = torch.where(w < 5, center, tail) * x
    return torch.where(torch.abs(x) == 1, x * math.inf, value)


def _ndtri(x: torch.Tensor) -> torch.Tensor:
    """Return the inverse of the normal distribution."""
    return math.sqrt(2) * _erfinv(2 * x - 1)


# -- sums and products ----------------------------------------------------------------------------


def _ldexp(x: torch.Tensor, exponent: torch.Tensor) -> torch.Tensor:
    return x * torch.pow(torch.full((), 2.0), exponent)


def _addbmm(
    self: torch.Tensor,
    batch1: torch.Tensor,
    batch2: torch.Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
) -> torch.Tensor:
    """Decompose ``aten.addbmm``, whose arguments it takes."""
    total = torch.bmm(batch1, batch2).sum(0, dtype=self.dtype)
    total = total if alpha == 1 else alpha * total
    # A factor of 0 removes what is not finite, too.
    return total if beta == 0 else total + (self if beta == 1 else beta * self)


def _dist(x: torch.Tensor, y: torch.Tensor, p: float = 2) -> torch.Tensor:
    return torch.linalg.vector_norm(x - y, p)


def _trilinear(
    i1: torch.Tensor,
    i2: torch.Tensor,
    i3: torch.Tensor,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    unroll_dim: int = 1,
) -> torch.Tensor:
    """Decompose ``aten._trilinear``, whose arguments it takes."""
    factors: list[torch.Tensor] = []
    for tensor, axes in ((i1, expand1), (i2, expand2), (i3, expand3)):
        for axis in sorted(axes):
            tensor = tensor.unsqueeze(axis)  # noqa: PLW2901
        factors.append(tensor)
    product = factors[0] * factors[1] * factors[2]
    return product.sum(list(sumdim)) if sumdim else product


def _logcumsumexp(x: torch.Tensor, dim: int) -> torch.Tensor:
    """Return logarithms of running sums; every sum has a maximum of its own, so none overflows."""
    if not x.dim():
        return x.clone()
    size = x.shape[dim]
    rows = x.movedim(dim, -1).unsqueeze(-2)
    is_later = torch.ones(size, size, dtype=torch.bool).triu(1)
    rows = rows.masked_fill(is_later, -math.inf)
    return torch.logsumexp(rows, -1).movedim(-1, dim)


# -- tensors without contents ---------------------------------------------------------------------


def _empty(size: Sequence[int], _: Sequence[int], **options: Any) -> torch.Tensor:
    # The contents are undefined: zeros are as good as anything.
    return torch.zeros(size, dtype=options.get("dtype"))


def _new_empty(
    x: torch.Tensor, size: Sequence[int], _: Sequence[int], **options: Any
) -> torch.Tensor:
    return torch.zeros(size, dtype=options.get("dtype") or x.dtype)


def _resized(x: torch.Tensor, size: Sequence[int], **_: Any) -> torch.Tensor:
    """Return the first elements of a tensor; what lies beyond them is undefined."""
    count = math.prod(size)
    padding = torch.zeros(max(0, count - x.numel()), dtype=x.dtype)
    return torch.cat([x.reshape(-1)[:count], padding]).reshape(list(size))


def special_functions() -> dict[Any, Callable[..., Any]]:
    """Return the decompositions by operator."""
    aten = torch.ops.aten
    of_one_tensor = {
        aten.lgamma.default: _log_gamma,
        aten.digamma.default: _digamma,
        aten.i0.default: partial(_bessel_i, order=0, is_scaled=False),
        aten.special_modified_bessel_i0.default: partial(_bessel_i, order=0, is_scaled=False),
        aten.special_modified_bessel_i1.default: partial(_bessel_i, order=1, is_scaled=False),
        aten.special_i0e.default: partial(_bessel_i, order=0, is_scaled=True),
        aten.special_i1.default: partial(_bessel_i, order=1, is_scaled=False),
        aten.special_i1e.default: partial(_bessel_i, order=1, is_scaled=True),
        aten.special_spherical_bessel_j0.default: _spherical_bessel_j0,
        aten.special_erfcx.default: _erfcx,
        aten.erfinv.default: _erfinv,
        aten.special_ndtri.default: _ndtri,
    }
    return {
        **{operator: _in_float64(function) for operator, function in of_one_tensor.items()},
        aten.polygamma.default: _polygamma,
        aten.ldexp.Tensor: _ldexp,
        aten.addbmm.default: _addbmm,
        aten.dist.default: _dist,
        aten._trilinear.default: _trilinear,
        aten.logcumsumexp.default: _logcumsumexp,
        aten.empty_permuted.default: _empty,
        aten.empty_strided.default: _empty,
        aten.new_empty_strided.default: _new_empty,
        aten.resize.default: _resized,
    }
