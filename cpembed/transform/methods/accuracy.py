"""How far a method's floating-point results can be from exact ones.

Every step of Winograd's method is a sum of products with constants. With unit roundoff u, a sum in
which each term meets at most n roundings is off by at most ``gamma(n) = n u / (1 - n u)`` times the
sum of its terms' magnitudes (Higham, "Accuracy and stability of numerical algorithms", 3.1).
Applied to the three steps in turn this bounds each output by

    gamma(N) * |A^T| ((|G| |g|) * (|B^T| |d|))          summed over channels and pieces

componentwise, where Barabasz, Anderson, Soodhalter and Gregg, "Error analysis and improving the
accuracy of Winograd convolution for deep neural networks" (2018), bound the worst case in norms.
N is :func:`roundings`. The magnitudes exceed those of the convolution
itself, sums of ``|g| * |d|``, by a factor that grows fast with the tile: what a tile size costs.

The bound holds for all data. :func:`running_bound` is one for given data, far closer, which takes
the values that are really rounded instead of the magnitudes of what they are sums of (running error
analysis, the same book, 3.3). A kernel is verified against that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

import numpy as np

from cpembed.transform.methods.convolution import Array
from cpembed.transform.methods.cook_toom import CookToom, Matrix
from cpembed.transform.methods.straight_line import Step, straight_line
from cpembed.transform.methods.winograd import Winograd

UNIT_ROUNDOFF = {"float32": 2.0**-24, "float64": 2.0**-53}


def roundings(method: Winograd) -> int:
    """N: on the way from an input to an output, through the straight-line code of the transforms.

    Weights are transformed in more digits and rounded once; each product of a sum over channels and
    pieces is one fused multiply-add, or two roundings where it is none.
    """
    forms = [tiling.form for tiling in method.tilings]
    transforms = sum(_depth(form.input) + _depth(form.output) for form in forms)
    return transforms + 1 + method.product.extents["c"] + 1


def bound(method: Winograd, inputs: Mapping[str, Array]) -> Array:
    """What each output may be off by, in the layout of the output, in float64."""
    return _gamma(roundings(method), method) * magnitudes(method, inputs)


def running_bound(method: Winograd, inputs: Mapping[str, Array]) -> Array:
    """What each output may be off by on these inputs, in the layout of the output, in float64."""
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
    """``|A^T| ((|G| |g|) * (|B^T| |d|))`` of each output, in float64."""
    absolute = _magnitudes_of(method)
    sizes = {name: np.abs(array.astype(np.float64)) for name, array in inputs.items()}
    return absolute.computed(sizes, absolute.multiplied)


def _wide(method: Winograd) -> Winograd:
    """The method in float64."""
    conv = method.convolution
    return replace(
        method,
        convolution=replace(conv, output=replace(conv.output, dtype="float64")),
        product=method.product.with_dtypes(dict.fromkeys("VUM", "float64")),
    )


def _magnitudes_of(method: Winograd) -> Winograd:
    """The method in float64 with absolute matrices."""
    tilings = tuple(replace(t, form=_absolute(t.form)) for t in method.tilings)
    return replace(_wide(method), tilings=tilings)


def _absolute(form: CookToom) -> CookToom:
    def of(matrix: Matrix) -> Matrix:
        return tuple(tuple(map(abs, row)) for row in matrix)

    return replace(form, output=of(form.output), filter=of(form.filter), input=of(form.input))


def _depth(matrix: Matrix) -> int:
    """The most roundings of an input in the code of a matrix: one for an addition, fused with a
    multiplication or not, and one for a factor that is no power of two before it."""
    code = straight_line(matrix)

    def deepest(step: Step, known: list[int]) -> int:
        first, *others = step.terms
        own = known[first[1]] + (not _is_exact(first[0]))
        return max([own, *(known[number] for _, number in others)]) + bool(others)

    found = code.computed([0] * code.inputs, deepest)
    return max(depth for depth in found if depth is not None)


def _is_exact(factor: Fraction) -> bool:
    """Whether multiplying by it loses nothing: a power of two."""
    size = abs(factor)
    return bin(size.numerator * size.denominator).count("1") == 1
