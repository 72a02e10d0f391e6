"""Judge how well estimates put a layer's schedules in the order of their measured times."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from experiments.amos2022.a100_schedules.schedules import Layer, Schedule

TOP = 0.4
"""Share of the fastest schedules that are looked for among as many by the estimate."""


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
class Judgement:
    """Judgement of the estimates of a layer's rows.

    ``schedules``: pairs of schedules; ``mappings``: pairs of each mapping's fastest; ``recall`` of
    the fastest :data:`TOP`. The losses are ratios to the best time of all: ``mapping_loss`` of the
    best schedule of the mapping that the estimate chooses, ``schedule_loss`` of the very schedule
    that it chooses.
    """

    layer: Layer
    rows: int
    schedules: Order
    mappings: Order
    recall: float
    mapping_loss: float
    schedule_loss: float


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


def by_layer(
    rows: Sequence[Schedule], estimates: Sequence[float]
) -> Mapping[Layer, list[tuple[Schedule, float]]]:
    """Return the rows of each layer with their estimates."""
    rows_by_layer: dict[Layer, list[tuple[Schedule, float]]] = {}
    for row, estimate in zip(rows, estimates, strict=True):
        rows_by_layer.setdefault(row.layer, []).append((row, estimate))
    return rows_by_layer


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
    selection = min(rows, key=lambda item: item[1])[0]
    least = min(measured)
    return Judgement(
        layer,
        len(rows),
        order(measured, estimated),
        order(best_ms, best_estimates),
        len(measured_top & estimated_top) / count,
        fastest[selection.mapping][0] / least,
        selection.ms / least,
    )
