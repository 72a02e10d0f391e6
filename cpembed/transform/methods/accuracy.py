"""Rounding errors: bounds on the difference between a method's results and exact ones.

Every step of Winograd's method is a sum of products with constants. With unit roundoff u, a sum in
which each term meets at most n roundings is off by at most ``gamma(n) = n u / (1 - n u)`` times the
sum of its terms' magnitudes (Higham, "Accuracy and stability of numerical algorithms", 3.1).
Applied to the three steps in turn this bounds each output by

    gamma(N) * |A^T| ((|G| |g|) * (|B^T| |d|))          summed over channels and pieces

componentwise, where Barabasz, Anderson, Soodhalter and Gregg, "Error analysis and improving the
accuracy of Winograd convolution for deep neural networks" (2018), bound the worst case in norms. N
is :func:`roundings`. The magnitudes exceed those of the convolution itself, sums of ``|g| * |d|``,
by a factor that grows fast with the tile, which is the price of its size.

This bound depends on magnitudes only. :func:`running_bound` is far closer, because it uses the
values that are really rounded instead of the magnitudes of their summands (running error analysis,
the same book, 3.3). Kernels are verified against it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

import numpy as np

from cpembed.transform.methods.convolution import Array
from cpembed.transform.methods.cook_toom import CookToom, Matrix, Step, straight_line
from cpembed.transform.methods.winograd import Winograd

UNIT_ROUNDOFF = {"float32": 2.0**-24, "float64": 2.0**-53}
"""Maximum relative error of one rounding, by element type."""


def roundings(method: Winograd) -> int:
    """Return N, the maximum number of roundings on the way from an input to an output.

    Weights are transformed in more digits and rounded once. Each product of a sum over channels and
    pieces is one fused multiply-add, or two roundings.
    """
    forms = [tiling.form for tiling in method.tilings]
    transforms = sum(_depth(form.input) + _depth(form.output) for form in forms)
    return transforms + 1 + method.product.extents["c"] + 1


def bound(method: Winograd, inputs: Mapping[str, Array]) -> Array:
    """Return a bound on each output's error, in the layout of the output, in float64."""
    return _gamma(roundings(method), method) * magnitudes(method, inputs)


def running_bound(method: Winograd, inputs: Mapping[str, Array]) -> Array:
    """Return a bound on each output's error for these inputs, as :func:`bound` does."""
    conv, forms = method.convolution, [tiling.form for tiling in method.tilings]
    exact, absolute = _wide(method), _magnitudes_of(method)
    image, weights = (inputs[o.name].astype(np.float64) for o in (conv.image, conv.weights))
    v, u = exact.image_part(image), exact.weights_part(weights)
    inexact = _gamma(sum(_depth(form.input) for form in forms), method)
    v_error = inexact * absolute.image_part(np.abs(image))
    products = _gamma(method.product.extents["c"] + 2, method)
    m_error = method.multiplied(v_error, np.abs(u)) * (1 + products)
    m_error += products * method.multiplied(np.abs(v), np.abs(u))
    sums = np.abs(method.multiplied(v, u)) + m_error
    last = _gamma(sum(_depth(form.output) for form in forms), method)
    return absolute.output_part(m_error + last * sums)


def _gamma(count: int, method: Winograd) -> float:
    u = UNIT_ROUNDOFF[method.convolution.output.dtype]
    return count * u / (1 - count * u)


def magnitudes(method: Winograd, inputs: Mapping[str, Array]) -> Array:
    """Return ``|A^T| ((|G| |g|) * (|B^T| |d|))`` of each output, in float64."""
    absolute = _magnitudes_of(method)
    sizes = {name: np.abs(array.astype(np.float64)) for name, array in inputs.items()}
    return absolute.computed(sizes, absolute.multiplied)


def _wide(method: Winograd) -> Winograd:
    """Return the method in float64."""
    conv = method.convolution
    return replace(
        method,
        convolution=replace(conv, output=replace(conv.output, dtype="float64")),
        product=method.product.with_dtypes(dict.fromkeys("VUM", "float64")),
    )


def _magnitudes_of(method: Winograd) -> Winograd:
    """Return the method in float64 with absolute matrices."""
    tilings = tuple(replace(t, form=_absolute(t.form)) for t in method.tilings)
    return replace(_wide(method), tilings=tilings)


def _absolute(form: CookToom) -> CookToom:
    def sizes(matrix: Matrix) -> Matrix:
        return tuple(tuple(map(abs, row)) for row in matrix)

    matrices = {name: sizes(getattr(form, name)) for name in ("output", "filter", "input")}
    return replace(form, **matrices)


def _depth(matrix: Matrix) -> int:
    """Return the maximum number of roundings of an input in the code of a matrix.

    An addition counts one, fused with a multiplication or not, and so does a factor before it that
    is no power of two.
    """
    code = straight_line(matrix)

    def deepest(step: Step, depths: list[int]) -> int:
        (factor, first), *addends = step.terms
        depth = depths[first] + (not _is_exact(factor))
        return max([depth, *(depths[number] for _, number in addends)]) + bool(addends)

    results = code.computed([0] * code.inputs, deepest)
    return max(depth for depth in results if depth is not None)


def _is_exact(factor: Fraction) -> bool:
    """Return True if multiplying by the factor is exact: a power of two."""
    size = abs(factor)
    return bin(size.numerator * size.denominator).count("1") == 1
