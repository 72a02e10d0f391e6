"""A better first assignment: each move lets all nodes change to one layout at once, exactly.

A single node rarely gains by changing alone, since its neighbours then need conversions. In a move,
every node may keep its option or take one of its cheapest that have a certain layout at some port;
so few options a node are solved exactly even where all of them are not.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from cpembed.network.assignment.elimination import Bounds, eliminate, plan
from cpembed.network.assignment.evaluation import evaluate
from cpembed.network.assignment.formulation import formulate
from cpembed.network.assignment.problem import Problem
from cpembed.network.assignment.pruning import Kept

_BOUNDS = Bounds(joined=1 << 20, result=1 << 20, total=1 << 23)
_OPTIONS = (2, 1)
"""With a layout, that a node may change to: fewer where the tables of more would be too large."""

_SWEEPS = 4


def improve(problem: Problem, kept: Kept, options: Sequence[int], until: float) -> tuple[int, ...]:
    """Options that cost no more, found by ``until`` (of ``time.perf_counter``)."""
    best = tuple(options)
    least = evaluate(problem, best).cost
    for _ in range(_SWEEPS):
        before = least
        for layout in range(max((len(tensor.layouts) for tensor in problem.tensors), default=0)):
            if time.perf_counter() > until:
                return best
            found = _moved(problem, kept, best, layout)
            cost = evaluate(problem, found).cost
            if cost < least:
                best, least = found, cost
        if least == before:
            break
    return best


def _moved(problem: Problem, kept: Kept, options: tuple[int, ...], layout: int) -> tuple[int, ...]:
    """The best that comes of letting all nodes change to a layout; no change where it would take
    too long to find."""
    for count in _OPTIONS:
        allowed = [
            _allowed(problem, kept, node, option, layout, count)
            for node, option in enumerate(options)
        ]
        form = formulate(problem, allowed)
        tables = form.network.as_tables()
        order = plan(tables, _BOUNDS)
        if order.complete:
            reduced = eliminate(tables, order)
            return form.options(reduced.complete([0] * len(tables.sizes)))
    return options


def _allowed(
    problem: Problem, kept: Kept, node: int, option: int, layout: int, count: int
) -> tuple[int, ...]:
    """An option and the cheapest of those that have a layout at some port."""
    options = problem.nodes[node].options
    having = [k for k in kept[node] if layout in options[k].layouts]
    having.sort(key=lambda k: options[k].cost)
    return tuple(dict.fromkeys([option, *having[:count]]))
