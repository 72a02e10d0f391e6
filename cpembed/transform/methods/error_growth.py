"""Growth of the rounding error of floats from a convolution's own sums to those of a method.

Bounds hold for all data, and so are far from what happens: Winograd's would reject every tile of 4
outputs. Here roundings are independent random numbers of one variance (relative to the value that
is rounded), and so are the pixels and the weights, which makes the variance of each result's error
a sum (Higham and Mary, "A new approach to probabilistic rounding error analysis", 2019, on such
models and how well they hold):

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
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.transform.methods.cook_toom import Matrix
from cpembed.transform.methods.winograd import Winograd, rounding_depth

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
