"""One option for each node and one layout for each tensor, at the least cost."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from cpembed.errors import InvariantError, LoweringError
from cpembed.network.assignment.elimination import Bounds, Order, Reduced, eliminate, plan
from cpembed.network.assignment.formulation import (
    Formulation,
    Kept,
    all_options,
    formulate,
    kept_options,
)
from cpembed.network.assignment.problem import Assignment, Problem, evaluate, tensor_cost


@dataclass(frozen=True)
class Reductions:
    """How far the exact reductions go. ``whole``: where they leave nothing over, which is tried
    first and takes half a second at most. ``part``: before the solver, to which each entry that is
    left is a Boolean."""

    whole: Bounds
    part: Bounds


REDUCTIONS = Reductions(
    whole=Bounds(joined=1 << 22, result=1 << 22, total=1 << 26),
    part=Bounds(joined=1 << 16, result=1 << 11, total=1 << 24),
)

_TOLERANCE = 1e-9
"""Of costs added in another order, as a part of them."""


def assign(
    problem: Problem,
    *,
    time_limit: float = 10.0,
    reductions: Reductions | None = REDUCTIONS,
) -> Assignment:
    """The assignment that costs least, or the best that was found within ``time_limit`` seconds of
    wall time. Without ``reductions`` the solver gets the problem as it is, to compare. Where no
    assignment is possible, a :class:`LoweringError` names a tensor that cannot be converted."""
    run = _Run(problem, time.perf_counter(), time_limit)
    if reductions is None:
        form = formulate(problem, all_options(problem))
        return run.finish(form, eliminate(form.network, Order((), False)))
    form = formulate(problem, kept_options(problem))
    tables = form.network.as_tables()
    order = plan(tables, reductions.whole)
    if order.complete:
        return run.finish(form, eliminate(tables, order))
    return run.finish(form, eliminate(form.network, plan(form.network, reductions.part)))


@dataclass(frozen=True)
class _Run:
    problem: Problem
    started: float
    time_limit: float

    def finish(self, form: Formulation, reduced: Reduced) -> Assignment:
        """Solve what is left and put the assignment together."""
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
            dict(zip(names, options, strict=True)),
            outcome.written,
            outcome.conversions,
            outcome.cost,
            bound,
            proven,
            time.perf_counter() - self.started,
            reduced.rest.entries,
        )

    def search(self, form: Formulation, reduced: Reduced) -> tuple[tuple[int, ...], float, bool]:
        """Options, a bound of the cost of all, and whether no others cost less."""
        from cpembed.network.assignment.cpsat import State, minimise

        first = tuple(descend(self.problem, form.kept))
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

    def agree(self, cost: float, other: float) -> None:
        """Two ways of adding the same costs up."""
        if not math.isclose(cost, other, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE):
            raise InvariantError(f"an assignment costs {cost}, and was said to cost {other}")

    def impossible(self) -> LoweringError:
        """Where an assignment fails that no other option of one node makes better."""
        outcome = evaluate(self.problem, descend(self.problem, all_options(self.problem)))
        for done in outcome.conversions:
            tensor = self.problem.tensor_of[done.tensor]
            if tensor.converting(done.source, done.target) == math.inf:
                return LoweringError(
                    f"tensor {tensor.name}: written as {tensor.layouts[done.source]} and needed as "
                    f"{tensor.layouts[done.target]}, and no choice of options has all the "
                    "conversions that it needs: add this one, or an option to a node that writes "
                    "or reads the tensor"
                )
        raise InvariantError("no assignment was said to be possible, and there is one")


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
