"""One option for each node and one layout for each tensor, at the least cost."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

from cpembed.errors import InvariantError, LoweringError
from cpembed.network.assignment.descent import descend
from cpembed.network.assignment.elimination import Bounds, Order, Reduced, eliminate, plan
from cpembed.network.assignment.evaluation import evaluate
from cpembed.network.assignment.formulation import Formulation, formulate
from cpembed.network.assignment.moves import improve
from cpembed.network.assignment.obstacle import obstacle
from cpembed.network.assignment.problem import Assignment, Problem, Progress, Size
from cpembed.network.assignment.pruning import kept_options


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

_START = 0.2
"""The part of the time that goes into a first assignment, at most."""

_TOLERANCE = 1e-9
"""Of costs added in another order, as a part of them."""


def assign(
    problem: Problem,
    *,
    time_limit: float = 10.0,
    progress: Progress | None = None,
    seed: int = 0,
    workers: int = 1,
    reductions: Reductions | None = REDUCTIONS,
) -> Assignment:
    """The assignment that costs least, or the best that was found within ``time_limit`` seconds of
    wall time. Without ``reductions`` the solver gets the problem as it is, to compare. Where no
    assignment is possible, a :class:`LoweringError` names a tensor that cannot be converted."""
    started = time.perf_counter()
    run = _Run(problem, started, time_limit, progress, seed, workers)
    all_options = formulate(problem, [tuple(range(len(node.options))) for node in problem.nodes])
    if reductions is None:
        reduced = eliminate(all_options.network, Order((), False))
        return run.finish(all_options, all_options, reduced)
    form = formulate(problem, kept_options(problem))
    tables = form.network.as_tables()
    order = plan(tables, reductions.whole)
    if order.complete:
        return run.finish(all_options, form, eliminate(tables, order))
    order = plan(form.network, reductions.part)
    return run.finish(all_options, form, eliminate(form.network, order))


@dataclass(frozen=True)
class _Run:
    problem: Problem
    started: float
    time_limit: float
    progress: Progress | None
    seed: int
    workers: int

    def finish(self, whole: Formulation, form: Formulation, reduced: Reduced) -> Assignment:
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
        if self.progress is not None:
            self.progress(outcome.cost, bound)
        names = [node.name for node in self.problem.nodes]
        return Assignment(
            dict(zip(names, options, strict=True)),
            outcome.written,
            outcome.conversions,
            outcome.cost,
            bound,
            proven,
            time.perf_counter() - self.started,
            _size(whole),
            _left(reduced),
            len(reduced.steps),
            reduced.repeated,
        )

    def search(self, form: Formulation, reduced: Reduced) -> tuple[tuple[int, ...], float, bool]:
        """Options, a bound of the cost of all, and whether no others cost less."""
        from cpembed.network.assignment.cpsat import Effort, State, minimise

        until = self.started + _START * self.time_limit
        first = improve(self.problem, form.kept, descend(self.problem, form.kept), until)
        outcome = evaluate(self.problem, first)
        start = None
        if outcome.cost < math.inf:
            start = (form.values(first, outcome.written), outcome.cost - reduced.constant)
        constant = reduced.constant

        def receive(cost: float, bound: float) -> None:
            if self.progress is not None:
                self.progress(constant + cost, constant + bound)

        effort = Effort(self.started + self.time_limit, self.workers, self.seed)
        solution = minimise(reduced.rest, effort, start, receive)
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
        return min(best)[1], constant + solution.bound, solution.state is State.PROVEN

    def agree(self, cost: float, other: float) -> None:
        """Two ways of adding the same costs up."""
        if not math.isclose(cost, other, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE):
            raise InvariantError(f"an assignment costs {cost}, and was said to cost {other}")

    def impossible(self) -> LoweringError:
        return LoweringError(obstacle(self.problem))


def _size(form: Formulation) -> Size:
    sizes: Sequence[int] = form.network.sizes
    return Size(len(sizes), sum(sizes), form.network.entries)


def _left(reduced: Reduced) -> Size:
    variables = reduced.variables
    values = sum(reduced.rest.sizes[k] for k in variables)
    return Size(len(variables), values, reduced.rest.entries)
