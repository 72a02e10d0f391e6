"""A first assignment: from each node's cheapest option downhill, one node at a time."""

from __future__ import annotations

from cpembed.network.assignment.evaluation import tensor_cost
from cpembed.network.assignment.problem import Problem
from cpembed.network.assignment.pruning import Kept

_SWEEPS = 20

Price = tuple[int, float]
"""Conversions that are impossible, and the cost of the rest."""


def descend(problem: Problem, kept: Kept) -> list[int]:
    """Options of which no single one can be exchanged for a better one, as a rule; conversions
    that are impossible may be among those that they need."""
    chosen = [
        min(numbers, key=[option.cost for option in node.options].__getitem__)
        for node, numbers in zip(problem.nodes, kept, strict=True)
    ]
    for sweep in range(_SWEEPS):
        changed = False
        # Forward and backward in turn: a change of layouts spreads in both directions.
        for node in range(len(chosen)) if sweep % 2 == 0 else reversed(range(len(chosen))):
            changed |= _improve(problem, kept, chosen, node)
        if not changed:
            break
    return chosen


def _improve(problem: Problem, kept: Kept, chosen: list[int], node: int) -> bool:
    """Give a node the option that is best beside those of the others."""
    before = chosen[node]
    best, least = before, _price(problem, chosen, node)
    for option in kept[node]:
        chosen[node] = option
        price = _price(problem, chosen, node)
        if price < least:
            best, least = option, price
    chosen[node] = best
    return best != before


def _price(problem: Problem, chosen: list[int], node: int) -> Price:
    """What depends on a node's option."""
    impossible, total = 0, problem.nodes[node].options[chosen[node]].cost
    for name in set(problem.nodes[node].ports):
        _, count, cost = tensor_cost(problem, problem.tensor_of[name], chosen)
        impossible += count
        total += cost
    return impossible, total
