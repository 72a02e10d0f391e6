"""How well estimates put a layer's schedules in the order of their measured times."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from experiments.a100_schedules.schedules import Layer, Schedule

TOP = 0.4
"""The share of the fastest schedules that are looked for among as many by the estimate."""


@dataclass(frozen=True)
class Order:
    """``right`` of ``pairs`` are in the right order; a tie of estimates is half right."""

    right: float
    pairs: int

    @property
    def share(self) -> float:
        return self.right / self.pairs if self.pairs else 1.0

    def __add__(self, other: Order) -> Order:
        return Order(self.right + other.right, self.pairs + other.pairs)


@dataclass(frozen=True)
class Judgement:
    """Of a layer's rows: ``schedules`` in pairs, each mapping's fastest in pairs (``mappings``),
    the ``recall`` of the fastest :data:`TOP`, and how much longer than the best of all the best
    schedule takes of the mapping that the estimate chooses (``mapping_loss``), and the very
    schedule that it chooses (``schedule_loss``), as ratios.
    """

    layer: Layer
    rows: int
    schedules: Order
    mappings: Order
    recall: float
    mapping_loss: float
    schedule_loss: float


def order(measured: Sequence[float], estimated: Sequence[float]) -> Order:
    """Pairs that took equally long are left out.

    >>> order([1, 2, 2, 3], [1, 2, 5, 4])
    Order(right=4.0, pairs=5)
    """
    right, pairs = 0.0, 0
    ranked = sorted(zip(measured, estimated, strict=True))
    for (first, estimate), (second, other) in itertools.combinations(ranked, 2):
        if first != second:
            pairs += 1
            right += 1.0 if estimate < other else 0.5 if estimate == other else 0.0
    return Order(right, pairs)


def by_layer(
    rows: Sequence[Schedule], estimates: Sequence[float]
) -> Mapping[Layer, list[tuple[Schedule, float]]]:
    found: dict[Layer, list[tuple[Schedule, float]]] = {}
    for row, estimate in zip(rows, estimates, strict=True):
        found.setdefault(row.layer, []).append((row, estimate))
    return found


def judge(layer: Layer, rows: Sequence[tuple[Schedule, float]]) -> Judgement:
    """Of a layer's rows with their estimates."""
    measured, estimated = [row.ms for row, _ in rows], [estimate for _, estimate in rows]
    fastest: dict[str, tuple[float, float]] = {}
    for row, estimate in rows:
        best = fastest.get(row.mapping)
        fastest[row.mapping] = min(best or (row.ms, estimate), (row.ms, estimate))
    best_ms, best_estimates = zip(*fastest.values(), strict=True)
    count = max(1, round(TOP * len(rows)))
    numbers = range(len(rows))
    top = set(sorted(numbers, key=lambda n: measured[n])[:count])
    found = set(sorted(numbers, key=lambda n: estimated[n])[:count])
    chosen = min(rows, key=lambda item: item[1])[0]
    least = min(measured)
    return Judgement(
        layer,
        len(rows),
        order(measured, estimated),
        order(best_ms, best_estimates),
        len(top & found) / count,
        fastest[chosen.mapping][0] / least,
        chosen.ms / least,
    )
