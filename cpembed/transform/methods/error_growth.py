"""Rounding errors of methods: their growth on average, and bounds that hold for all data.

Bounds are far from what happens: Winograd's would reject every tile of 4 outputs. For the growth
from a convolution's own sums to those of a method, roundings are independent random numbers of one
variance (relative to the value that is rounded), and so are the pixels and the weights, which makes
the variance of each result's error a sum (Higham and Mary, "A new approach to probabilistic
rounding error analysis", 2019, on such models and how well they hold):

- A sum of N products, added up one by one, rounds partial sums of 1, 2 ... N products: N (N + 1) /
  2 times the variance of a product.
- Of Winograd's method, the product of place e in a tile has factors of the variances ``v_e = sum_j
  B[e,j]^2`` and ``u_e = sum_k G[e,k]^2``, sums K products (channels and pieces), and its error and
  its value are multiplied by ``A[o,e]`` on the way to the output o. Rounding the transforms adds
  the variance of what is rounded, once for each rounding on the longest way through them.

>>> from cpembed.workloads.convolutions import conv2d
>>> from cpembed.transform.methods.winograd import winograd
>>> layer = conv2d(n=1, c=256, h=14, w=14, k=8, r=3, s=3, pad=1, layout="NHWC", dtype="float32")
>>> [round(error_growth(winograd(layer, outputs)), 1) for outputs in (2, 4)]
[0.6, 2.5]
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.transform.methods.convolution import (
    Array,
)
from cpembed.transform.methods.cook_toom import (
    CookToom,
    Matrix,
    Step,
    straight_line,
)
from cpembed.transform.methods.winograd import Winograd

MOST_GROWTH = 4.0
"""Largest growth of the error by which a method may replace a convolution's own sums."""


def error_growth(method: Winograd) -> float:
    """Return the ratio of the root mean squares of a method's error and of that of plain sums."""
    conv, forms = method.convolution, [tiling.form for tiling in method.tilings]
    terms = conv.size(conv.channels) * math.prod(window.taps for window in conv.windows)
    sums = method.product.extents["c"]
    image = _squares([form.input for form in forms]).sum(1)
    weights = _squares([form.filter for form in forms]).sum(1)
    output = _squares([form.output for form in forms])
    inputs_depth = sum(rounding_depth(form.input) for form in forms)
    output_depth = sum(rounding_depth(form.output) for form in forms)
    # Of a product's terms: their sum, the rounded image and the rounded weights; and the result's.
    roundings = sums * (sums + 1) / 2 + sums * (inputs_depth + 1 + output_depth)
    variance = float((output @ (image * weights)).mean()) * roundings
    return math.sqrt(variance / (terms * (terms + 1) / 2))


def _squares(matrices: list[Matrix]) -> NDArray[Any]:
    """Return the squared elements of the matrix of a nested transform."""
    return reduce(
        np.kron, (np.array(matrix, object).astype(np.float64) ** 2 for matrix in matrices)
    )


# ------------------------------------------------------------------------------- bounds of errors
#
# Bounds on the difference between a method's results and exact ones. Every step of the method is a
# sum of products with constants. With unit roundoff u, a sum in which each term meets at most n
# roundings is off by at most gamma(n) = n u / (1 - n u) times the sum of its terms' magnitudes
# (Higham, "Accuracy and stability of numerical algorithms", 3.1). Applied to the three steps in
# turn this bounds each output by
#
#     gamma(N) * |A^T| ((|G| |g|) * (|B^T| |d|))          summed over channels and pieces
#
# componentwise, where Barabasz, Anderson, Soodhalter and Gregg, "Error analysis and improving the
# accuracy of Winograd convolution for deep neural networks" (2018), bound the worst case in norms.
# The magnitudes exceed those of the convolution itself, sums of |g| * |d|, by a factor that grows
# fast with the tile, which is the price of its size.

UNIT_ROUNDOFF = {"float32": 2.0**-24, "float64": 2.0**-53}
"""Maximum relative error of one rounding, by element type."""


def roundings(method: Winograd) -> int:
    """Return N, the maximum number of roundings on the way from an input to an output."""
    forms = [tiling.form for tiling in method.tilings]
    transforms = sum(rounding_depth(form.input) + rounding_depth(form.output) for form in forms)
    # Weights are transformed in float64 and rounded once. A term of the sum over channels and
    # pieces meets one rounding an addition, and that of its product if the two are not fused.
    return transforms + 1 + method.product.extents["c"] + 1


def bound(method: Winograd, inputs: Mapping[str, Array]) -> Array:
    """Return a bound on each output's error, in the layout of the output, in float64."""
    return _gamma(roundings(method), method) * magnitudes(method, inputs)


def running_bound(method: Winograd, inputs: Mapping[str, Array]) -> Array:
    """Return a bound on each output's error for these inputs, far closer than :func:`bound`.

    Kernels are verified against it.
    """
    # Running error analysis (Higham, 3.3): errors are bounded by the values that are really
    # rounded, |V|, |U| and |M| with what they are off already, not by their summands' magnitudes.
    conv, forms = method.convolution, [tiling.form for tiling in method.tilings]
    exact, absolute = _wide(method), _magnitudes_of(method)
    image, weights = (inputs[o.name].astype(np.float64) for o in (conv.image, conv.weights))
    v, u = exact.image_part(image), exact.weights_part(weights)
    inexact = _gamma(sum(rounding_depth(form.input) for form in forms), method)
    v_error = inexact * absolute.image_part(np.abs(image))
    products = _gamma(method.product.extents["c"] + 2, method)
    m_error = method.multiplied(v_error, np.abs(u)) * (1 + products)
    m_error += products * method.multiplied(np.abs(v), np.abs(u))
    sums = np.abs(method.multiplied(v, u)) + m_error
    last = _gamma(sum(rounding_depth(form.output) for form in forms), method)
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

    output, filters, inputs = map(sizes, (form.output, form.filter, form.input))
    return replace(form, output=output, filter=filters, input=inputs)


def rounding_depth(matrix: Matrix) -> int:
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
