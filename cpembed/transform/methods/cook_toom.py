"""Minimal filtering by the Cook-Toom construction: short convolutions with fewer multiplications.

``F(m, r)`` computes m outputs of a filter of r taps, ``y[i] = sum_j g[j] * d[i + j]``, with
``a = m + r - 1`` multiplications instead of ``m * r``:

    y = A^T [(G g) * (B^T d)]        d: a values, g: r taps, y: m outputs, * element by element

The matrices come from ``a - 1`` different points and infinity (Winograd, "Arithmetic complexity of
computations", 1980; Lavin and Gray, "Fast algorithms for convolutional neural networks", CVPR 2016;
the transposed form as in wincnn). Everything here is exact: matrices are rational, and the identity
is proven, not sampled.

>>> f = cook_toom(2, 3)
>>> [[int(x) for x in row] for row in f.input]
[[-1, 0, 1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, -1, 0, 1]]
>>> [str(x) for x in f.filter[1]], f.multiplications, is_identity(f)
(['1/2', '1/2', '1/2'], 4, True)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

from cpembed.errors import InvariantError, TransformError

Matrix = tuple[tuple[Fraction, ...], ...]

POINTS = (*map(Fraction, ("0", "1", "-1", "1/2", "-2", "-1/2", "2", "4", "-4")),)
"""Where polynomials are evaluated, the first ones first. Which points are taken decides how large
rounding errors are (Barabasz, Anderson, Soodhalter and Gregg, "Error analysis and improving the
accuracy of Winograd convolution for deep neural networks", 2018, study it by experiment). Of five
sets that were tried for F(4, 3) in two dimensions, on 256 channels of random data in float32, this
one has, with 2 and -1/2 in the places of 1/2 and -2, the least errors: the largest about 0.4 times
that with 2 and -2."""
INTEGER_POINTS = tuple(Fraction(number) for number in (0, 1, -1, 2, -2, 3, -3, 4, -4))
"""Those of Lavin and Gray up to F(4, 3): the least integers, with which the ranges of integers grow
least."""


@dataclass(frozen=True)
class CookToom:
    """``F(outputs, taps)``: the matrices ``A^T`` (m x a), ``G`` (a x r) and ``B^T`` (a x a)."""

    outputs: int
    taps: int
    output: Matrix
    filter: Matrix
    input: Matrix

    @property
    def multiplications(self) -> int:
        """Of one application, which is also the inputs that it reads."""
        return self.outputs + self.taps - 1

    def scaled(self) -> tuple[CookToom, int]:
        """The same form with integers only, whose outputs are multiplied by the factor that is
        returned: the least common multiple of all denominators.

        Rows of ``B^T`` are made integers by their rows of ``G`` first, which costs nothing.
        """
        inputs, filters = list(self.input), list(self.filter)
        for n, row in enumerate(inputs):
            whole = _common_denominator([row])
            inputs[n] = tuple(x * whole for x in row)
            filters[n] = tuple(x / whole for x in filters[n])
        factor = _common_denominator(filters)
        filters = [tuple(x * factor for x in row) for row in filters]
        lower = _common_denominator(self.output)
        output = [tuple(x * lower for x in row) for row in self.output]
        form = CookToom(self.outputs, self.taps, tuple(output), tuple(filters), tuple(inputs))
        return form, factor * lower

    def __str__(self) -> str:
        return f"F({self.outputs}, {self.taps})"


def _common_denominator(rows: Sequence[Sequence[Fraction]]) -> int:
    return math.lcm(*(x.denominator for row in rows for x in row))


@cache
def cook_toom(outputs: int, taps: int, points: tuple[Fraction, ...] = POINTS) -> CookToom:
    """``F(outputs, taps)`` from the first ``outputs + taps - 2`` points and infinity.

    Raises :class:`TransformError` where there are too few points, two are equal, or a size is
    below 1.
    """
    wanted = outputs + taps - 2
    if outputs < 1 or taps < 1:
        raise TransformError(f"F({outputs}, {taps}): outputs and taps are at least 1")
    if wanted > len(points) or len(set(points[:wanted])) < wanted:
        raise TransformError(
            f"F({outputs}, {taps}) needs {wanted} different points, {len(set(points))} are given: "
            "take a smaller tile, or give more points"
        )
    taken = points[:wanted]
    inputs: list[tuple[Fraction, ...]] = []
    filters: list[tuple[Fraction, ...]] = []
    for n, point in enumerate(taken):
        others = (*taken[:n], *taken[n + 1 :])
        scale = math.prod((point - other for other in others), start=Fraction(1))
        inputs.append((*_polynomial(others), Fraction(0)))
        filters.append(tuple(x / scale for x in _powers(point, taps)))
    inputs.append(_polynomial(taken))
    filters.append((*[Fraction(0)] * (taps - 1), Fraction(1)))
    rows = [
        (*(_powers(point, outputs)[i] for point in taken), Fraction(i == outputs - 1))
        for i in range(outputs)
    ]
    form = CookToom(outputs, taps, tuple(rows), tuple(filters), tuple(inputs))
    if not is_identity(form):
        raise InvariantError(f"the matrices of {form} do not filter: please report this")
    return form


def _powers(point: Fraction, count: int) -> tuple[Fraction, ...]:
    return tuple(point**exponent for exponent in range(count))


def _polynomial(roots: Sequence[Fraction]) -> tuple[Fraction, ...]:
    """Coefficients of ``prod (x - root)``, the constant first."""
    found = [Fraction(1)]
    for root in roots:
        shifted, scaled = [Fraction(0), *found], [-root * x for x in found] + [Fraction(0)]
        found = [a + b for a, b in zip(shifted, scaled, strict=True)]
    return tuple(found)


def is_identity(form: CookToom, factor: int = 1) -> bool:
    """Whether the form computes ``factor`` times the filter's outputs for all inputs and taps.

    Both sides are bilinear in d and g, so that they are equal where they are equal on all pairs of
    basis vectors: ``sum_n A^T[i,n] G[n,j] B^T[n,l] == factor * (l == i + j)`` for every i, j, l,
    in rationals.
    """
    a = form.multiplications
    shapes = [(form.output, form.outputs, a), (form.filter, a, form.taps), (form.input, a, a)]
    if any(
        len(matrix) != rows or any(len(row) != columns for row in matrix)
        for matrix, rows, columns in shapes
    ):
        return False
    for i in range(form.outputs):
        for j in range(form.taps):
            weights = [form.output[i][n] * form.filter[n][j] for n in range(a)]
            for place in range(a):
                total = sum((w * form.input[n][place] for n, w in enumerate(weights)), Fraction(0))
                if total != (factor if place == i + j else 0):
                    return False
    return True
