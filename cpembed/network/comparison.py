"""What an assignment is worth: its cost beside those of simpler ways to choose layouts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from cpembed.errors import LoweringError
from cpembed.network.assignment import ANY, Assignment, Node, Option, Outcome, Problem, evaluate

Preference = Callable[[Node, Option], tuple[float, ...]]
"""A node takes the option of the least of these."""


@dataclass(frozen=True)
class Policy:
    """The cost of one way to choose. ``operators`` and ``converting`` add up to ``cost``; all are
    infinite where the choice needs a conversion of the tensor ``obstacle`` that is impossible."""

    name: str
    operators: float
    converting: float
    conversions: int
    obstacle: str | None = None

    @property
    def cost(self) -> float:
        return self.operators + self.converting


@dataclass(frozen=True)
class Comparison:
    """``fixed``: the layouts that a person would fix for the whole network. ``alone``: each node
    as if there were no others. ``assigned``: all together."""

    fixed: Policy
    alone: Policy
    assigned: Policy

    @property
    def policies(self) -> tuple[Policy, ...]:
        return self.fixed, self.alone, self.assigned

    def relative(self, policy: Policy) -> float:
        """The cost of a policy as a multiple of the assignment's."""
        if policy.cost == self.assigned.cost:
            return 1.0
        return policy.cost / self.assigned.cost if self.assigned.cost else math.inf


def compare(
    problem: Problem, assignment: Assignment, fixed: Mapping[str, int], name: str = "channels last"
) -> Comparison:
    """The assignment beside two policies. ``fixed``: the layout of each tensor under the first,
    whose name is ``name``; tensors that it leaves out may have any."""
    numbers = [assignment.options[node.name] for node in problem.nodes]
    return Comparison(
        _policy(problem, f"all {name}", _chosen(problem, _agreeing(fixed))),
        _policy(problem, "each operator's fastest", _chosen(problem, _cheapest)),
        _policy(problem, "assigned together", numbers),
    )


def by_policy(
    problem: Problem, assignment: Assignment, fixed: Mapping[str, int] | None
) -> Assignment:
    """An assignment's problem solved by a policy in its place: ``fixed`` layouts, or, with None,
    each node's fastest.

    Raises :class:`LoweringError` where that needs a conversion that is impossible.
    """
    numbers = _chosen(problem, _cheapest if fixed is None else _agreeing(fixed))
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


def _cheapest(node: Node, option: Option) -> tuple[float, ...]:
    return (option.cost,)


def _agreeing(fixed: Mapping[str, int]) -> Preference:
    """Options with the fixed layouts at as many ports as can be, and of those the cheapest."""

    def preference(node: Node, option: Option) -> tuple[float, ...]:
        others = sum(
            layout not in (ANY, fixed.get(name, layout))
            for name, layout in zip(node.ports, option.layouts, strict=True)
        )
        return others, option.cost

    return preference


def _chosen(problem: Problem, preference: Preference) -> list[int]:
    """One option a node, in their order: the preferred one of those that can read what is written
    by then, or of all where none can."""
    written = {tensor.name: tensor.given for tensor in problem.tensors if tensor.given is not None}
    chosen: list[int] = []
    for node in problem.nodes:
        numbers = [
            k for k, option in enumerate(node.options) if _fits(problem, node, option, written)
        ]
        numbers = numbers or list(range(len(node.options)))
        best = min(numbers, key=lambda k, node=node: preference(node, node.options[k]))
        chosen.append(best)
        layouts = node.options[best].layouts[len(node.reads) :]
        written.update((name, k) for name, k in zip(node.writes, layouts, strict=True) if k != ANY)
    return chosen


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


def _policy(problem: Problem, name: str, options: list[int]) -> Policy:
    outcome: Outcome = evaluate(problem, options)
    if outcome.obstacle is not None:
        return Policy(name, math.inf, math.inf, len(outcome.conversions), outcome.obstacle)
    chosen = zip(problem.nodes, options, strict=True)
    operators = math.fsum(node.options[k].cost for node, k in chosen)
    converting = math.fsum(
        problem.tensor_of[done.tensor].converting(done.source, done.target)
        for done in outcome.conversions
    )
    return Policy(name, operators, converting, len(outcome.conversions))
