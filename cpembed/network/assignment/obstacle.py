"""Why no assignment is possible: a tensor that cannot be converted as its readers need it."""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from dataclasses import replace

from cpembed.network.assignment.elimination import Bounds, eliminate, plan
from cpembed.network.assignment.formulation import formulate
from cpembed.network.assignment.problem import ANY, Problem, Tensor
from cpembed.network.assignment.pruning import Kept, kept_options, read_layouts, written_layouts

_BOUNDS = Bounds(joined=1 << 20, result=1 << 20, total=1 << 24)
_SECONDS = 2.0
"""Of a question whether something is possible; what is not decided by then counts as possible."""


def obstacle(problem: Problem) -> str:
    """Of a problem without an assignment: the first tensor whose conversions, with those of the
    tensors before it, leave none."""
    # The more tensors keep their conversions, the less is possible.
    first = bisect_left(
        range(1, len(problem.tensors)), True, key=lambda k: not _possible(problem, k)
    )
    tensor = problem.tensors[first]
    kept = [tuple(range(len(node.options))) for node in problem.nodes]
    written = written_layouts(problem, kept, tensor)
    needed = _needed(problem, kept, tensor)
    return (
        f"tensor {tensor.name}: written as {_names(tensor, written)}, needed as "
        f"{_names(tensor, sorted(needed))}, and no choice of options has all the conversions that "
        "it needs: add a conversion of this tensor, or an option to a node that writes or reads it"
    )


def _possible(problem: Problem, count: int) -> bool:
    """Whether there is an assignment where only the first so many tensors lack conversions."""
    tensors = tuple(
        replace(tensor, conversion=_free(tensor) if index >= count else _present(tensor))
        for index, tensor in enumerate(problem.tensors)
    )
    nodes = tuple(
        replace(node, options=tuple(replace(option, cost=0.0) for option in node.options))
        for node in problem.nodes
    )
    relaxed = Problem(nodes, tensors)
    network = formulate(relaxed, kept_options(relaxed)).network
    tables = network.as_tables()
    order = plan(tables, _BOUNDS)
    if order.complete:
        return eliminate(tables, order).constant < math.inf
    from cpembed.network.assignment.cpsat import Effort, State, minimise

    solution = minimise(
        network, Effort(time.perf_counter() + _SECONDS), None, lambda cost, bound: None
    )
    return solution.state is not State.IMPOSSIBLE


def _free(tensor: Tensor) -> dict[tuple[int, int], float]:
    count = len(tensor.layouts)
    return {(a, b): 0.0 for a in range(count) for b in range(count)}


def _present(tensor: Tensor) -> dict[tuple[int, int], float]:
    return dict.fromkeys(tensor.conversion, 0.0)


def _needed(problem: Problem, kept: Kept, tensor: Tensor) -> set[int]:
    needed = set(tensor.wanted)
    for node, port in problem.readers_of[tensor.name]:
        needed.update(read_layouts(problem, kept, node, port))
    return needed - {ANY}


def _names(tensor: Tensor, layouts: list[int]) -> str:
    return " or ".join(tensor.layouts[layout] for layout in layouts)
