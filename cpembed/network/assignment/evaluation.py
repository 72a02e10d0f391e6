"""What options cost: the reference that every method of choosing them is held to."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cpembed.network.assignment.problem import ANY, Conversion, Problem, Tensor


@dataclass(frozen=True)
class Outcome:
    """Of one option a node: ``cost`` is infinite where a conversion is impossible, and
    ``obstacle`` is then the first tensor that cannot be converted."""

    written: Mapping[str, int]
    conversions: tuple[Conversion, ...]
    cost: float
    obstacle: str | None = None


def evaluate(problem: Problem, options: Sequence[int]) -> Outcome:
    """The conversions that options (by number, one a node) lead to, and the cost of all. A tensor
    whose producer writes any layout has the one that costs least, the lowest number of several."""
    written: dict[str, int] = {}
    conversions: list[Conversion] = []
    costs = [node.options[k].cost for node, k in zip(problem.nodes, options, strict=True)]
    obstacle = None
    for tensor in problem.tensors:
        layout, impossible, cost = tensor_cost(problem, tensor, options)
        written[tensor.name] = layout
        costs.append(math.inf if impossible else cost)
        if impossible and obstacle is None:
            obstacle = tensor.name
        needed = needed_layouts(problem, tensor, options)
        conversions += [Conversion(tensor.name, layout, k) for k in sorted(needed - {layout})]
    return Outcome(written, tuple(conversions), math.fsum(costs), obstacle)


def needed_layouts(problem: Problem, tensor: Tensor, options: Sequence[int]) -> set[int]:
    """The layouts in which a tensor is read or wanted in the end."""
    needed = set(tensor.wanted)
    for node, port in problem.readers_of[tensor.name]:
        needed.add(problem.nodes[node].options[options[node]].layouts[port])
    return needed - {ANY}


def tensor_cost(problem: Problem, tensor: Tensor, options: Sequence[int]) -> tuple[int, int, float]:
    """The layout in which a tensor is written, the number of conversions that are impossible, and
    the cost of the others."""
    layout = tensor.given
    if layout is None:
        node, port = problem.producer_of[tensor.name]
        layout = problem.nodes[node].options[options[node]].layouts[port]
    needed = needed_layouts(problem, tensor, options)
    layouts = range(len(tensor.layouts)) if layout == ANY else (layout,)
    impossible, cost, best = min((*_converting(tensor, k, needed), k) for k in layouts)
    return best, impossible, cost


def _converting(tensor: Tensor, written: int, needed: set[int]) -> tuple[int, float]:
    costs = [tensor.converting(written, layout) for layout in needed]
    possible = [cost for cost in costs if cost < math.inf]
    return len(costs) - len(possible), math.fsum(possible)
