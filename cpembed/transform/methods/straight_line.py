"""A constant matrix times a vector as straight-line code: short sums, shared where they recur.

>>> from cpembed.transform.methods.cook_toom import cook_toom
>>> code = straight_line(cook_toom(2, 3).output)
>>> [str(step) for step in code.steps], code.outputs
(['v4 = v0 + v1', 'v5 = v4 + v2', 'v6 = v1 + v3', 'v7 = v6 - v2'], (5, 7))
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from cpembed.transform.methods.cook_toom import Matrix

Term = tuple[Fraction, int]
"""A factor and the number of a value."""


@dataclass(frozen=True)
class Step:
    """Value ``number`` as a sum of one or two terms; the first one's factor is 1 wherever one of
    the two is, so that a sum is one addition, or one fused multiply-add."""

    number: int
    terms: tuple[Term, ...]

    def __str__(self) -> str:
        (factor, first), *others = self.terms
        text = f"v{first}" if factor == 1 else f"{factor}*v{first}"
        for other, value in others:
            sign, size = ("-" if other < 0 else "+"), abs(other)
            text += f" {sign} v{value}" if size == 1 else f" {sign} {size}*v{value}"
        return f"v{self.number} = {text}"


@dataclass(frozen=True)
class StraightLine:
    """Values 0 to ``inputs - 1`` are given, each step makes the next one; ``outputs`` are the
    numbers of the results, None for one that is always 0."""

    inputs: int
    steps: tuple[Step, ...]
    outputs: tuple[int | None, ...]

    @property
    def operations(self) -> int:
        """Additions, multiplications and fused pairs of these."""
        return len(self.steps)

    def computed(
        self, values: Sequence[Any], sum_of: Callable[[Step, list[Any]], Any]
    ) -> list[Any]:
        """The results (None for 0); ``sum_of`` makes a step's value of those made so far."""
        known = list(values)
        for step in self.steps:
            known.append(sum_of(step, known))
        return [None if number is None else known[number] for number in self.outputs]


def straight_line(matrix: Matrix) -> StraightLine:
    """The code of a matrix, rows of results by columns of inputs.

    Greedily (as in multiple constant multiplication), the pair of terms that most rows have in
    common, up to a factor, becomes a value, until no pair recurs; then each row is summed up, terms
    of factor 1 or -1 first.
    """
    rows = [{n: x for n, x in enumerate(row) if x} for row in matrix]
    steps: list[Step] = []
    count = len(matrix[0])

    def value(terms: Sequence[Term]) -> int:
        terms = sorted(terms, key=lambda term: term[0] != 1)
        steps.append(Step(count + len(steps), tuple(terms)))
        return steps[-1].number

    while (pair := _most_frequent(rows)) is not None:
        (a, b), ratio = pair
        first, second = (Fraction(1), a), (ratio, b)
        made = value((first, second))
        for row in rows:
            if a in row and b in row and row[b] / row[a] == ratio:
                row[made] = row.pop(a)
                del row[b]
    return StraightLine(count, (), ()) if not rows else _summed(count, steps, rows, value)


def _summed(
    count: int, steps: list[Step], rows: Sequence[dict[int, Fraction]], value: Callable[..., int]
) -> StraightLine:
    outputs: list[int | None] = []
    for row in rows:
        terms = sorted(((x, n) for n, x in row.items()), key=lambda t: (t[0] != 1, abs(t[0]) != 1))
        if not terms:
            outputs.append(None)
            continue
        (factor, total), *others = terms
        if factor != 1:
            total = (
                value([(factor, total)]) if not others else value([(factor, total), others.pop(0)])
            )
        for term in others:
            total = value([(Fraction(1), total), term])
        outputs.append(total)
    return StraightLine(count, tuple(steps), tuple(outputs))


def _pairs(row: dict[int, Fraction]) -> Iterator[tuple[tuple[int, int], Fraction]]:
    """Pairs of a row's terms with the ratio of their factors, the smaller factor as the unit, of
    equal ones that of the later value."""
    names = sorted(row)
    for place, a in enumerate(names):
        for b in names[place + 1 :]:
            pair = (a, b) if abs(row[a]) < abs(row[b]) else (b, a)
            yield pair, row[pair[1]] / row[pair[0]]


def _most_frequent(rows: Sequence[dict[int, Fraction]]) -> tuple[tuple[int, int], Fraction] | None:
    counts = Counter(pair for row in rows for pair in _pairs(row))
    best = max(counts.items(), key=lambda item: item[1], default=None)
    return best[0] if best is not None and best[1] > 1 else None
