"""Minimal filtering by the Cook-Toom construction: short convolutions with fewer multiplications.

``F(m, r)`` computes m outputs of a filter of r taps, ``y[i] = sum_j g[j] * d[i + j]``, with
``a = m + r - 1`` multiplications instead of ``m * r``:

    y = A^T [(G g) * (B^T d)]        d: a values, g: r taps, y: m outputs, * element by element

The matrices come from ``a - 1`` different points and infinity (Winograd, "Arithmetic complexity of
computations", 1980; Lavin and Gray, "Fast algorithms for convolutional neural networks", CVPR 2016;
the transposed form as in wincnn). Everything here is exact: matrices are rational, and the identity
is proven, not sampled.

A matrix times a vector is generated as straight-line code: short sums, shared where they recur.

>>> f = cook_toom(2, 3)
>>> [[int(x) for x in row] for row in f.input]
[[-1, 0, 1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, -1, 0, 1]]
>>> [str(x) for x in f.filter[1]], f.multiplications, is_identity(f)
(['1/2', '1/2', '1/2'], 4, True)
>>> code = straight_line(f.output)
>>> [str(step) for step in code.steps], code.outputs
(['v4 = v0 + v1', 'v5 = v4 + v2', 'v6 = v1 + v3', 'v7 = v6 - v2'], (5, 7))
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from typing import Any

from cpembed.errors import InvariantError, TransformError

Matrix = tuple[tuple[Fraction, ...], ...]
"""Rows of rational numbers."""

POINTS = (*map(Fraction, ("0", "1", "-1", "1/2", "-2", "-1/2", "2", "4", "-4")),)
"""Points at which polynomials are evaluated, in the order of their use.

The points determine the size of rounding errors (Barabasz, Anderson, Soodhalter and Gregg, "Error
analysis and improving the accuracy of Winograd convolution for deep neural networks", 2018, study
it by experiment). Of five sets compared for F(4, 3) in two dimensions, on 256 channels of random
data in float32, this one has, with 2 and -1/2 in the places of 1/2 and -2, the least errors: the
largest is about 0.4 times that with 2 and -2."""
INTEGER_POINTS = tuple(Fraction(number) for number in (0, 1, -1, 2, -2, 3, -3, 4, -4))
"""Points for integers, those of Lavin and Gray up to F(4, 3): with the smallest ones, ranges grow
least."""


@dataclass(frozen=True)
class CookToom:
    """``F(outputs, taps)`` with its matrices.

    ``output`` is ``A^T`` (m x a), ``filter`` is ``G`` (a x r) and ``input`` is ``B^T`` (a x a).
    """

    outputs: int
    taps: int
    output: Matrix
    filter: Matrix
    input: Matrix

    @property
    def multiplications(self) -> int:
        """Number of multiplications of one application, and of inputs that it reads."""
        return self.outputs + self.taps - 1

    def scaled(self) -> tuple[CookToom, int]:
        """Return the form in integers, and the factor by which its outputs are larger.

        The factor is the least common multiple of all denominators, after rows of ``B^T`` have been
        made integers by their rows of ``G``, which costs nothing.
        """
        inputs, filters = list(self.input), list(self.filter)
        for n, row in enumerate(inputs):
            scale = _common_denominator([row])
            inputs[n] = tuple(x * scale for x in row)
            filters[n] = tuple(x / scale for x in filters[n])
        factor = _common_denominator(filters)
        filters = [tuple(x * factor for x in row) for row in filters]
        lower = _common_denominator(self.output)
        output = [tuple(x * lower for x in row) for row in self.output]
        matrices = {"output": tuple(output), "filter": tuple(filters), "input": tuple(inputs)}
        return replace(self, **matrices), factor * lower

    def __str__(self) -> str:
        return f"F({self.outputs}, {self.taps})"


def _common_denominator(rows: Sequence[Sequence[Fraction]]) -> int:
    return math.lcm(*(x.denominator for row in rows for x in row))


@cache
def cook_toom(outputs: int, taps: int, points: tuple[Fraction, ...] = POINTS) -> CookToom:
    """Return ``F(outputs, taps)`` from the first ``outputs + taps - 2`` points and infinity.

    Parameters
    ----------
    outputs, taps : int
        Sizes of the output and the filter, at least 1.
    points : tuple of Fraction
        Points, all different.

    Raises
    ------
    TransformError
        There are too few points, two are equal, or a size is below 1.
    """
    count = outputs + taps - 2
    if outputs < 1 or taps < 1:
        raise TransformError(f"F({outputs}, {taps}): outputs and taps are at least 1")
    if count > len(points) or len(set(points[:count])) < count:
        raise TransformError(
            f"F({outputs}, {taps}) needs {count} different points, {len(set(points))} are given: "
            "take a smaller tile, or give more points"
        )
    points = points[:count]
    # Interpolation (the transposed form of Cook and Toom's): row n of B^T has the coefficients of
    # the polynomial with all points but the n-th as roots, row n of G the powers of the n-th point,
    # over the polynomial's value there. Infinity takes the leading coefficients.
    inputs: list[tuple[Fraction, ...]] = []
    filters: list[tuple[Fraction, ...]] = []
    for n, point in enumerate(points):
        roots = (*points[:n], *points[n + 1 :])
        scale = math.prod((point - root for root in roots), start=Fraction(1))
        inputs.append((*_polynomial(roots), Fraction(0)))
        filters.append(tuple(x / scale for x in _powers(point, taps)))
    inputs.append(_polynomial(points))
    filters.append((*[Fraction(0)] * (taps - 1), Fraction(1)))
    rows = [
        (*(_powers(point, outputs)[i] for point in points), Fraction(i == outputs - 1))
        for i in range(outputs)
    ]
    matrices = {"output": tuple(rows), "filter": tuple(filters), "input": tuple(inputs)}
    form = CookToom(outputs, taps, **matrices)
    if not is_identity(form):
        raise InvariantError(f"the matrices of {form} do not filter: please report this")
    return form


def _powers(point: Fraction, count: int) -> tuple[Fraction, ...]:
    return tuple(point**exponent for exponent in range(count))


def _polynomial(roots: Sequence[Fraction]) -> tuple[Fraction, ...]:
    """Return the coefficients of ``prod (x - root)``, the constant first."""
    product = [Fraction(1)]
    for root in roots:
        shifted, scaled = [Fraction(0), *product], [-root * x for x in product] + [Fraction(0)]
        product = [a + b for a, b in zip(shifted, scaled, strict=True)]
    return tuple(product)


def is_identity(form: CookToom, factor: int = 1) -> bool:
    """Return True if the form always computes ``factor`` times the filter's outputs."""
    # Both sides are bilinear in d and g, so that they are equal where they are equal on all pairs
    # of basis vectors: sum_n A^T[i,n] G[n,j] B^T[n,l] == factor * (l == i + j) for every i, j, l,
    # in rationals.
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


Term = tuple[Fraction, int]
"""Factor and number of a value."""


@dataclass(frozen=True)
class Step:
    """Value as a sum of one or two terms.

    If one of two factors is 1, it is the first one, so that a sum is one addition or one fused
    multiply-add.
    """

    number: int
    terms: tuple[Term, ...]

    def __str__(self) -> str:
        (factor, first), *addends = self.terms
        text = f"v{first}" if factor == 1 else f"{factor}*v{first}"
        for weight, value in addends:
            sign, size = ("-" if weight < 0 else "+"), abs(weight)
            text += f" {sign} v{value}" if size == 1 else f" {sign} {size}*v{value}"
        return f"v{self.number} = {text}"


@dataclass(frozen=True)
class StraightLine:
    """Code of a matrix: values 0 to ``inputs - 1`` are the vector, each step makes the next one.

    ``outputs`` are the numbers of the results, None for one that is always 0.
    """

    inputs: int
    steps: tuple[Step, ...]
    outputs: tuple[int | None, ...]

    @property
    def operations(self) -> int:
        """Number of additions, multiplications and fused pairs of these."""
        return len(self.steps)

    def computed(
        self, values: Sequence[Any], sum_of: Callable[[Step, list[Any]], Any]
    ) -> list[Any]:
        """Return the results (None for 0); ``sum_of`` returns a step's value from earlier ones."""
        values = list(values)
        for step in self.steps:
            values.append(sum_of(step, values))
        return [None if number is None else values[number] for number in self.outputs]


def straight_line(matrix: Matrix) -> StraightLine:
    """Return the code of a matrix, rows of results by columns of inputs."""
    rows = [{n: x for n, x in enumerate(row) if x} for row in matrix]
    steps: list[Step] = []
    count = len(matrix[0])

    def value(terms: Sequence[Term]) -> int:
        terms = sorted(terms, key=lambda term: term[0] != 1)
        steps.append(Step(count + len(steps), tuple(terms)))
        return steps[-1].number

    # Greedily, as in multiple constant multiplication, the pair of terms that most rows share up to
    # a factor becomes a value, until no pair recurs.
    while (pair := _most_frequent(rows)) is not None:
        (a, b), ratio = pair
        first, second = (Fraction(1), a), (ratio, b)
        shared = value((first, second))
        for row in rows:
            if a in row and b in row and row[b] / row[a] == ratio:
                row[shared] = row.pop(a)
                del row[b]
    # Then each row is summed up, terms of factor 1 or -1 first: they need no multiplication.
    outputs: list[int | None] = []
    for row in rows:
        terms = sorted(((x, n) for n, x in row.items()), key=lambda t: (t[0] != 1, abs(t[0]) != 1))
        if not terms:
            outputs.append(None)
            continue
        (factor, total), *rest = terms
        if factor != 1:
            total = value([(factor, total), *rest[:1]])
            rest = rest[1:]
        for term in rest:
            total = value([(Fraction(1), total), term])
        outputs.append(total)
    return StraightLine(count, tuple(steps), tuple(outputs))


def _pairs(row: dict[int, Fraction]) -> Iterator[tuple[tuple[int, int], Fraction]]:
    """Yield pairs of a row's terms with the ratio of their factors.

    The smaller factor is the unit; of equal ones, that of the later value.
    """
    names = sorted(row)
    for place, a in enumerate(names):
        for b in names[place + 1 :]:
            pair = (a, b) if abs(row[a]) < abs(row[b]) else (b, a)
            yield pair, row[pair[1]] / row[pair[0]]


def _most_frequent(rows: Sequence[dict[int, Fraction]]) -> tuple[tuple[int, int], Fraction] | None:
    counts = Counter(pair for row in rows for pair in _pairs(row))
    best = max(counts.items(), key=lambda item: item[1], default=None)
    return best[0] if best is not None and best[1] > 1 else None
