"""Solve an assignment problem: exact reductions first, CP-SAT for the rest.

Two simple policies, with which an assignment is compared, choose one node after the other.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from cpembed.errors import InvariantError, LoweringError
from cpembed.network.assignment.elimination import Bounds, Order, Reduced, eliminate, plan
from cpembed.network.assignment.formulation import (
    Formulation,
    RemainingOptions,
    all_options,
    formulate,
    prune_options,
)
from cpembed.network.assignment.problem import (
    ANY,
    Assignment,
    Node,
    Option,
    Problem,
    evaluate,
    tensor_cost,
)


@dataclass(frozen=True)
class Reductions:
    """Bounds of the exact reductions.

    Attributes
    ----------
    complete : Bounds
        Bounds of a complete elimination, which is tried first and needs no solver.
    partial : Bounds
        Bounds of the elimination before the solver runs.
    """

    complete: Bounds
    partial: Bounds


# A complete elimination within these bounds takes half a second at most. The partial one leaves
# smaller tables, because each of their entries is a Boolean to the solver.
REDUCTIONS = Reductions(
    complete=Bounds(joined=1 << 22, result=1 << 22, total=1 << 26),
    partial=Bounds(joined=1 << 16, result=1 << 11, total=1 << 24),
)

# Relative difference that sums of costs may have if they are added in another order.
_TOLERANCE = 1e-9


def assign(
    problem: Problem,
    *,
    time_limit: float = 10.0,
    reductions: Reductions | None = REDUCTIONS,
) -> Assignment:
    """Return the assignment of least cost, or the best one within a time limit.

    Parameters
    ----------
    problem : Problem
    time_limit : float, default 10
        Wall time in seconds.
    reductions : Reductions or None
        None passes the problem to the solver as it is, for comparisons.

    Raises
    ------
    LoweringError
        If no assignment is possible; the message names a tensor that cannot be converted.
    """
    run = _Run(problem, time.perf_counter(), time_limit)
    if reductions is None:
        form = formulate(problem, all_options(problem))
        return run.finish(form, eliminate(form.network, Order((), False)))
    form = formulate(problem, prune_options(problem))
    # Chains and residual blocks keep tables small, so most networks are solved exactly right here.
    tables = form.network.as_tables()
    order = plan(tables, reductions.complete)
    if order.complete:
        return run.finish(form, eliminate(tables, order))
    # The solver takes shared conversions as they are, in a tighter form than tables.
    return run.finish(form, eliminate(form.network, plan(form.network, reductions.partial)))


@dataclass(frozen=True)
class _Run:
    """Solution of one problem within a time limit."""

    problem: Problem
    started: float
    time_limit: float

    def finish(self, form: Formulation, reduced: Reduced) -> Assignment:
        """Solve the reduced problem and assemble the assignment."""
        if reduced.constant == math.inf:
            raise self.impossible()
        if reduced.variables:
            options, bound, proven = self.search(form, reduced)
            outcome = evaluate(self.problem, options)
            # A bound above the cost of a solution is an error, unless it is a rounding.
            self.agree(outcome.cost, max(outcome.cost, bound))
            bound = min(outcome.cost, bound)
        else:
            options = form.options(reduced.complete([0] * len(reduced.rest.sizes)))
            outcome = evaluate(self.problem, options)
            self.agree(outcome.cost, reduced.constant)
            bound, proven = outcome.cost, True
        names = [node.name for node in self.problem.nodes]
        return Assignment(
            options=dict(zip(names, options, strict=True)),
            written=outcome.written,
            conversions=outcome.conversions,
            cost=outcome.cost,
            bound=bound,
            proven=proven,
            seconds=time.perf_counter() - self.started,
            solver_entries=reduced.rest.entries,
        )

    def search(self, form: Formulation, reduced: Reduced) -> tuple[tuple[int, ...], float, bool]:
        """Return options, a lower bound on the cost, and whether they are proven optimal."""
        # Imported only now, since most problems do not need OR-tools.
        from cpembed.network.assignment.cpsat import State, minimise

        # The cost of a first solution limits the range of costs, and so the rounding of the solver.
        first = tuple(descend(self.problem, form.remaining))
        outcome = evaluate(self.problem, first)
        start = None
        if outcome.cost < math.inf:
            start = (form.values(first, outcome.written), outcome.cost - reduced.constant)
        solution = minimise(reduced.rest, self.started + self.time_limit, start)
        if solution.state is State.IMPOSSIBLE:
            raise self.impossible()
        best = [(outcome.cost, first)] if start else []
        if solution.values is not None:
            values = [solution.values.get(k, 0) for k in range(len(reduced.rest.sizes))]
            options = form.options(reduced.complete(values))
            best.append((evaluate(self.problem, options).cost, options))
        if not best:
            raise LoweringError(
                f"no layouts of the network's tensors were found within {self.time_limit:g} s: "
                "allow more time"
            )
        return min(best)[1], reduced.constant + solution.bound, solution.state is State.PROVEN

    def agree(self, cost: float, expected: float) -> None:
        """Check a cost by :func:`~cpembed.network.assignment.problem.evaluate`, the definition."""
        if not math.isclose(cost, expected, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE):
            raise InvariantError(f"an assignment costs {cost}, and was said to cost {expected}")

    def impossible(self) -> LoweringError:
        """Return the error that names an impossible conversion.

        The conversion is one of an assignment that no change of a single node improves.
        """
        outcome = evaluate(self.problem, descend(self.problem, all_options(self.problem)))
        for conversion in outcome.conversions:
            tensor = self.problem.tensor_of[conversion.tensor]
            if tensor.conversion_cost(conversion.source, conversion.target) == math.inf:
                return LoweringError(
                    f"tensor {tensor.name}: written as {tensor.layouts[conversion.source]} and "
                    f"needed as {tensor.layouts[conversion.target]}, and no choice of options has "
                    "all the conversions that it needs: add this one, or an option to a node that "
                    "writes or reads the tensor"
                )
        raise InvariantError("no assignment was said to be possible, and there is one")


# Maximum number of sweeps over all nodes.
_SWEEPS = 20


def descend(problem: Problem, remaining: RemainingOptions) -> list[int]:
    """Return options from a coordinate descent that starts with each node's cheapest one.

    Unless the sweeps run out, no change of a single option improves the result. It may need
    impossible conversions.
    """
    options = [
        min(numbers, key=[option.cost for option in node.options].__getitem__)
        for node, numbers in zip(problem.nodes, remaining, strict=True)
    ]
    for sweep in range(_SWEEPS):
        changed = False
        # Forward and backward in turn, since a change of layouts spreads in both directions.
        for node in range(len(options)) if sweep % 2 == 0 else reversed(range(len(options))):
            changed |= _improve(problem, remaining, options, node)
        if not changed:
            break
    return options


def _improve(problem: Problem, remaining: RemainingOptions, options: list[int], node: int) -> bool:
    """Give a node its best option while all others stay; return True if that changes it."""
    before = options[node]
    best, least = before, _price(problem, options, node)
    for option in remaining[node]:
        options[node] = option
        price = _price(problem, options, node)
        if price < least:
            best, least = option, price
    options[node] = best
    return best != before


def _price(problem: Problem, options: list[int], node: int) -> tuple[int, float]:
    """Return the part of the cost that depends on a node's option.

    The number of impossible conversions comes first, so that reducing it counts more than any
    cost.
    """
    impossible, total = 0, problem.nodes[node].options[options[node]].cost
    for name in set(problem.nodes[node].ports):
        _, count, cost = tensor_cost(problem, problem.tensor_of[name], options)
        impossible += count
        total += cost
    return impossible, total


def policy_cost(problem: Problem, fixed: Mapping[str, int] | None) -> float:
    """Return the cost of :func:`by_policy`; infinite if a conversion is impossible."""
    return evaluate(problem, _policy_options(problem, fixed or {})).cost


def by_policy(
    problem: Problem, assignment: Assignment, fixed: Mapping[str, int] | None
) -> Assignment:
    """Replace the options of an assignment by those of a simple policy.

    Parameters
    ----------
    problem : Problem
    assignment : Assignment
        Solution of the problem; its bound holds for the result too.
    fixed : mapping from str to int, or None
        Layouts that tensors should have. None takes each node's fastest option.

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
    """Return one option per node, chosen in order.

    Options that can read the layouts written so far are preferred, then those that deviate least
    from the fixed layouts, then the cheapest.
    """
    written = {
        tensor.name: tensor.input_layout
        for tensor in problem.tensors
        if tensor.input_layout is not None
    }
    options: list[int] = []
    for node in problem.nodes:
        # Earlier choices stay: a policy shows the cost of choosing without the network in view.
        count = range(len(node.options))
        fitting = [k for k in count if _fits(problem, node, node.options[k], written)]
        best = min(
            fitting or count,
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
    """True if every layout that an option needs, or an output needs of it, can be converted to."""
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
