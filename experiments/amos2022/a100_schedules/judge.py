"""Judge how well estimates put a layer's schedules in the order of their measured times."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from experiments.amos2022.a100_schedules.schedules import Layer, Schedule

TOP = 0.4
"""Share of the fastest schedules that are looked for among as many by the estimate."""

MEASURED = 3
"""Number of schedules with the smallest estimates that are measured before one is chosen."""

DISTANCES = (1.25, 2.0)
"""Ratios of two measured times by which pairs are told apart: close, farther, far apart."""


@dataclass(frozen=True)
class Order:
    """Number of pairs in the right order, of all pairs; a tie of estimates is half right."""

    right: float
    pairs: int

    @property
    def share(self) -> float:
        return self.right / self.pairs if self.pairs else 1.0

    def __add__(self, addend: Order) -> Order:
        return Order(self.right + addend.right, self.pairs + addend.pairs)


@dataclass(frozen=True)
class Losses:
    """Ratios to the best time of all.

    ``mapping`` is that of the best schedule of the mapping that the estimate chooses, ``schedule``
    of the very schedule that it chooses, ``measured`` of the fastest of the first :data:`MEASURED`.
    """

    mapping: float
    schedule: float
    measured: float


@dataclass(frozen=True)
class Judgement:
    """Judgement of the estimates of a layer's rows.

    ``schedules``: pairs of schedules; ``distances``: the same up to each of :data:`DISTANCES` and
    beyond; ``mappings``: pairs of each mapping's fastest; ``recall`` of the fastest :data:`TOP`.
    """

    layer: Layer
    rows: int
    schedules: Order
    distances: tuple[Order, ...]
    mappings: Order
    recall: float
    losses: Losses


def order(measured: Sequence[float], estimated: Sequence[float]) -> Order:
    """Return the order of estimates; pairs that took equally long are left out.

    >>> order([1, 2, 2, 3], [1, 2, 5, 4])
    Order(right=4.0, pairs=5)
    """
    right, pairs = 0.0, 0
    ranked = sorted(zip(measured, estimated, strict=True))
    for (first, first_estimate), (second, second_estimate) in itertools.combinations(ranked, 2):
        if first != second:
            pairs += 1
            tie = 0.5 if first_estimate == second_estimate else 0.0
            right += 1.0 if first_estimate < second_estimate else tie
    return Order(right, pairs)


def order_by_distance(measured: Sequence[float], estimated: Sequence[float]) -> tuple[Order, ...]:
    """Return the order of pairs whose times differ by a ratio up to each distance, and beyond.

    >>> order_by_distance([10, 11, 30], [1, 3, 2])
    (Order(right=1.0, pairs=1), Order(right=0, pairs=0), Order(right=1.0, pairs=2))
    """
    orders = [Order(0, 0)] * (len(DISTANCES) + 1)
    ranked = sorted(zip(measured, estimated, strict=True))
    for (first, first_estimate), (second, second_estimate) in itertools.combinations(ranked, 2):
        place = bisect.bisect_left(DISTANCES, second / first)
        orders[place] += order([first, second], [first_estimate, second_estimate])
    return tuple(orders)


def by_layer(
    rows: Sequence[Schedule], estimates: Sequence[float]
) -> Mapping[Layer, list[tuple[Schedule, float]]]:
    """Return the rows of each layer with their estimates."""
    rows_by_layer: dict[Layer, list[tuple[Schedule, float]]] = {}
    for row, estimate in zip(rows, estimates, strict=True):
        rows_by_layer.setdefault(row.layer, []).append((row, estimate))
    return rows_by_layer


def losses(rows: Sequence[tuple[Schedule, float]]) -> Losses:
    """Return how much longer what the estimates choose takes than the fastest row."""
    first = [row for row, _ in sorted(rows, key=lambda item: item[1])[:MEASURED]]
    least = min(row.ms for row, _ in rows)
    mapping = min(row.ms for row, _ in rows if row.mapping == first[0].mapping)
    return Losses(mapping / least, first[0].ms / least, min(row.ms for row in first) / least)


def judge(layer: Layer, rows: Sequence[tuple[Schedule, float]]) -> Judgement:
    """Judge the estimates of a layer's rows."""
    measured, estimated = [row.ms for row, _ in rows], [estimate for _, estimate in rows]
    fastest: dict[str, tuple[float, float]] = {}
    for row, estimate in rows:
        best = fastest.get(row.mapping)
        fastest[row.mapping] = min(best or (row.ms, estimate), (row.ms, estimate))
    best_ms, best_estimates = zip(*fastest.values(), strict=True)
    count = max(1, round(TOP * len(rows)))
    numbers = range(len(rows))
    measured_top = set(sorted(numbers, key=lambda n: measured[n])[:count])
    estimated_top = set(sorted(numbers, key=lambda n: estimated[n])[:count])
    distances = order_by_distance(measured, estimated)
    return Judgement(
        layer,
        len(rows),
        sum(distances, Order(0, 0)),
        distances,
        order(best_ms, best_estimates),
        len(measured_top & estimated_top) / count,
        losses(rows),
    )
