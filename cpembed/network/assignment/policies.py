"""Simple policies for layouts, with which an assignment is compared."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from cpembed.errors import LoweringError
from cpembed.network.assignment import ANY, Assignment, Node, Option, Problem, evaluate


def policy_cost(problem: Problem, fixed: Mapping[str, int] | None) -> float:
    """Return the cost of :func:`by_policy`, infinite if it is impossible."""
    return evaluate(problem, _policy_options(problem, fixed or {})).cost


def by_policy(
    problem: Problem, assignment: Assignment, fixed: Mapping[str, int] | None
) -> Assignment:
    """Return the result of a policy in place of an assignment's.

    Parameters
    ----------
    problem : Problem
    assignment : Assignment
        Solution of the problem, whose bound is kept.
    fixed : mapping from str to int, or None
        Layouts of tensors; others may have any. None takes each node's fastest option.

    Raises
    ------
    LoweringError
        If the policy needs an impossible conversion.
    """
    numbers = _policy_options(problem, fixed or {})
    outcome = evaluate(problem, numbers)
    if outcome.obstacle is not None:
        raise LoweringError(f"{outcome.obstacle} cannot be converted: choose layouts together")
    names = [node.name for node in problem.nodes]
    return replace(
        assignment,
        options=dict(zip(names, numbers, strict=True)),
        written=outcome.written,
        conversions=outcome.conversions,
        cost=outcome.cost,
        bound=min(assignment.bound, outcome.cost),
        proven=False,
    )


def _policy_options(problem: Problem, fixed: Mapping[str, int]) -> list[int]:
    """Return one option per node, in order.

    Options that can read what is written so far are preferred, then those with most fixed layouts,
    then
    the cheapest.
    """
    written = {
        tensor.name: tensor.input_layout
        for tensor in problem.tensors
        if tensor.input_layout is not None
    }
    options: list[int] = []
    for node in problem.nodes:
        numbers = [
            k for k, option in enumerate(node.options) if _fits(problem, node, option, written)
        ]
        numbers = numbers or list(range(len(node.options)))
        best = min(
            numbers,
            key=lambda k, node=node: (
                _deviations(node, node.options[k], fixed),
                node.options[k].cost,
            ),
        )
        options.append(best)
        layouts = node.options[best].layouts[len(node.reads) :]
        written.update((name, k) for name, k in zip(node.writes, layouts, strict=True) if k != ANY)
    return options


def _deviations(node: Node, option: Option, fixed: Mapping[str, int]) -> int:
    """Return the number of ports with another layout than the fixed one."""
    return sum(
        layout not in (ANY, fixed.get(name, layout))
        for name, layout in zip(node.ports, option.layouts, strict=True)
    )


def _fits(problem: Problem, node: Node, option: Option, written: Mapping[str, int]) -> bool:
    """True if an option's reads, and the layouts of the network's outputs, can be obtained."""
    for port, (name, layout) in enumerate(zip(node.ports, option.layouts, strict=True)):
        tensor = problem.tensor_of[name]
        if layout == ANY:
            continue
        if port >= len(node.reads):
            costs = [tensor.conversion_cost(layout, output) for output in tensor.output_layouts]
        else:
            costs = [tensor.conversion_cost(written.get(name, layout), layout)]
        if math.inf in costs:
            return False
    return True
