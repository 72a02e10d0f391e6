"""Simpler ways to choose layouts, which an assignment is compared with."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from cpembed.errors import LoweringError
from cpembed.network.assignment import ANY, Assignment, Node, Option, Problem, evaluate


def policy_cost(problem: Problem, fixed: Mapping[str, int] | None) -> float:
    """What :func:`by_policy` costs, infinite where it is impossible."""
    return evaluate(problem, _chosen(problem, fixed or {})).cost


def by_policy(
    problem: Problem, assignment: Assignment, fixed: Mapping[str, int] | None
) -> Assignment:
    """An assignment's problem solved by a policy in its place: the layouts that ``fixed`` gives
    tensors (others may have any), or, with None, each node's fastest.

    Raises :class:`LoweringError` where that needs a conversion that is impossible.
    """
    numbers = _chosen(problem, fixed or {})
    found = evaluate(problem, numbers)
    if found.obstacle is not None:
        raise LoweringError(f"{found.obstacle} cannot be converted: choose layouts together")
    names = [node.name for node in problem.nodes]
    return replace(
        assignment,
        options=dict(zip(names, numbers, strict=True)),
        written=found.written,
        conversions=found.conversions,
        cost=found.cost,
        bound=min(assignment.bound, found.cost),
        proven=False,
    )


def _chosen(problem: Problem, fixed: Mapping[str, int]) -> list[int]:
    """One option a node, in their order, of those that can read what is written by then, or of all
    where none can: with the fixed layouts at as many ports as can be, and of those the cheapest."""
    written = {tensor.name: tensor.given for tensor in problem.tensors if tensor.given is not None}
    chosen: list[int] = []
    for node in problem.nodes:
        numbers = [
            k for k, option in enumerate(node.options) if _fits(problem, node, option, written)
        ]
        numbers = numbers or list(range(len(node.options)))
        best = min(
            numbers,
            key=lambda k, node=node: (_others(node, node.options[k], fixed), node.options[k].cost),
        )
        chosen.append(best)
        layouts = node.options[best].layouts[len(node.reads) :]
        written.update((name, k) for name, k in zip(node.writes, layouts, strict=True) if k != ANY)
    return chosen


def _others(node: Node, option: Option, fixed: Mapping[str, int]) -> int:
    """Ports with another layout than the fixed one."""
    return sum(
        layout not in (ANY, fixed.get(name, layout))
        for name, layout in zip(node.ports, option.layouts, strict=True)
    )


def _fits(problem: Problem, node: Node, option: Option, written: Mapping[str, int]) -> bool:
    """Whether what an option reads can be had, and what is wanted can be had of what it writes."""
    for port, (name, layout) in enumerate(zip(node.ports, option.layouts, strict=True)):
        tensor = problem.tensor_of[name]
        if layout == ANY:
            continue
        if port >= len(node.reads):
            costs = [tensor.converting(layout, wanted) for wanted in tensor.wanted]
        else:
            costs = [tensor.converting(written.get(name, layout), layout)]
        if math.inf in costs:
            return False
    return True
