"""Solve an assignment problem: exact reductions first, CP-SAT for what they leave."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from cpembed.errors import InvariantError, LoweringError
from cpembed.network.assignment.elimination import Bounds, Order, Reduced, eliminate, plan
from cpembed.network.assignment.formulation import (
    Formulation,
    RemainingOptions,
    all_options,
    formulate,
    prune_options,
)
from cpembed.network.assignment.problem import Assignment, Problem, evaluate, tensor_cost


@dataclass(frozen=True)
class Reductions:
    """Bounds of the exact reductions.

    Attributes
    ----------
    complete : Bounds
        Tried first, to solve the problem without a solver; takes half a second at most.
    partial : Bounds
        Used before the solver, to which each remaining entry is a Boolean.
    """

    complete: Bounds
    partial: Bounds


REDUCTIONS = Reductions(
    complete=Bounds(joined=1 << 22, result=1 << 22, total=1 << 26),
    partial=Bounds(joined=1 << 16, result=1 << 11, total=1 << 24),
)

# Relative difference of costs that are added in another order.
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
        If no assignment is possible; names a tensor that cannot be converted.
    """
    run = _Run(problem, time.perf_counter(), time_limit)
    if reductions is None:
        form = formulate(problem, all_options(problem))
        return run.finish(form, eliminate(form.network, Order((), False)))
    form = formulate(problem, prune_options(problem))
    tables = form.network.as_tables()
    # Complete elimination is exact and loads no solver.
    order = plan(tables, reductions.complete)
    if order.complete:
        return run.finish(form, eliminate(tables, order))
    return run.finish(form, eliminate(form.network, plan(form.network, reductions.partial)))


@dataclass(frozen=True)
class _Run:
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
        """Return options, a lower bound on the cost, and whether the options are proven to be
        optimal.
        """
        from cpembed.network.assignment.cpsat import State, minimise

        # A known solution limits the range of costs, and with it the rounding of the solver.
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
        """Check that two computations of a cost agree."""
        if not math.isclose(cost, expected, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE):
            raise InvariantError(f"an assignment costs {cost}, and was said to cost {expected}")

    def impossible(self) -> LoweringError:
        """Return the error that names an impossible conversion.

        It is taken from an assignment that changing no single node improves.
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

Price = tuple[int, float]
"""Number of impossible conversions, and cost of the rest."""


def descend(problem: Problem, remaining: RemainingOptions) -> list[int]:
    """Return options from coordinate descent, starting with each node's cheapest one.

    As a rule no change of a single option improves the result, which may need impossible
    conversions.
    """
    options = [
        min(numbers, key=[option.cost for option in node.options].__getitem__)
        for node, numbers in zip(problem.nodes, remaining, strict=True)
    ]
    for sweep in range(_SWEEPS):
        changed = False
        # Forward and backward in turn: a change of layouts spreads in both directions.
        for node in range(len(options)) if sweep % 2 == 0 else reversed(range(len(options))):
            changed |= _improve(problem, remaining, options, node)
        if not changed:
            break
    return options


def _improve(problem: Problem, remaining: RemainingOptions, options: list[int], node: int) -> bool:
    """Give a node its best option while the others stay; return whether it changed."""
    before = options[node]
    best, least = before, _price(problem, options, node)
    for option in remaining[node]:
        options[node] = option
        price = _price(problem, options, node)
        if price < least:
            best, least = option, price
    options[node] = best
    return best != before


def _price(problem: Problem, options: list[int], node: int) -> Price:
    """Return the part of the cost that depends on a node's option."""
    impossible, total = 0, problem.nodes[node].options[options[node]].cost
    for name in set(problem.nodes[node].ports):
        _, count, cost = tensor_cost(problem, problem.tensor_of[name], options)
        impossible += count
        total += cost
    return impossible, total
