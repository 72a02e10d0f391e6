"""Portfolio search: the scalar model in several decision orders at a time.

The first order to prove the answer ends the others (Rieber et al. 2021, section 7). A constraint
set is posted here to one scalar model for each configuration, order and round.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, field, replace

from cpembed.embedding.constraint_set import ConstraintSet
from cpembed.embedding.constraints.hyper_rectangle import HyperRectangle
from cpembed.embedding.constraints.memory_access import Dense
from cpembed.embedding.cpsat import (
    SearchControl,
    SearchLimits,
    SearchStatistics,
    Status,
    StopSignal,
    enumerate_solutions,
)
from cpembed.embedding.domains import coordinate_bounds, padded_extents
from cpembed.embedding.embedding import Embedding
from cpembed.embedding.model_writer import Ids, TooLargeDomainError
from cpembed.embedding.node_map import NodeMap, decode, expand
from cpembed.embedding.problem import EmbeddingProblem
from cpembed.embedding.result import Formulation, OrderEffort, SearchEffort, SearchResult, Seconds
from cpembed.embedding.scalar_model import ScalarModel
from cpembed.errors import InvariantError
from cpembed.host import core_count
from cpembed.ir.computation import AxisKind
from cpembed.time_limit import OutOfTime, check_time, within

_PATIENCE, _LATE = 0.1, 0.2
"""Seconds until an interrupted search is stopped, and grace for one that is late at its limit."""

_FIRST_WORK = 0.25
"""Deterministic time of the first round that may end without an answer."""
_WORK_GROWTH = 4
"""Deterministic time of a round, as a multiple of that of the round before."""


def post(
    problem: EmbeddingProblem,
    constraints: ConstraintSet,
    configuration: Mapping[str, int] | None = None,
) -> ScalarModel:
    """Return the scalar model with every constraint of the set posted.

    Parameters
    ----------
    problem : EmbeddingProblem
        Problem in one assignment of roles.
    constraints : ConstraintSet
        Constraints to post, in the set's order.
    configuration : Mapping, optional
        Extents of the instruction axes where they are decided beforehand.
    """
    dense = constraints.get("dense")
    model = ScalarModel(
        problem,
        padded_extents(problem, constraints),
        # With "memory", a dimension that several axes index may be read in steps above 1.
        dense_strides=isinstance(dense, Dense) and dense.stencil_stride == "one",
        separable=constraints.get("hyper_rectangle") == HyperRectangle("operands")
        and all(None not in names for names in problem.index_names.values()),
        configuration=configuration,
    )
    for constraint in constraints.constraints:
        constraint.post(model)
    return model


def configurations(
    problem: EmbeddingProblem, constraints: ConstraintSet
) -> list[Mapping[str, int] | None]:
    """Return extents of the instruction to fix before a scalar model is posted, one model each."""
    # Boxes repeat the nodes beyond a smaller extent, which costs nothing. Other images cannot, so
    # that the extents of configurable axes must be known.
    axes = problem.instruction.axes
    boxes = constraints.get("hyper_rectangle") == HyperRectangle("operands")
    if boxes or not problem.instruction.configurable_axes:
        return [None]
    sizes = itertools.product(*(axis.allowed for axis in axes))
    return [dict(zip((axis.name for axis in axes), extents, strict=True)) for extents in sizes]


class Solutions:
    """Solutions by the digest of their node maps; the first order to find one checks it."""

    def __init__(
        self,
        problem: EmbeddingProblem,
        constraints: ConstraintSet,
        report: Callable[[int], None],
    ) -> None:
        self.problem, self.constraints, self._report = problem, constraints, report
        self._lock = threading.Lock()
        self._solutions: dict[bytes, Embedding | NodeMap] = {}

    def add(self, node_map: NodeMap) -> bytes:
        """Check a solution if it is new, and return its digest."""
        shape, images = node_map.key()
        # The images of a large instruction take kilobytes; a digest is enough to recognize them.
        digest = hashlib.blake2b(repr(shape).encode() + images, digest_size=16).digest()
        with self._lock:
            if digest not in self._solutions:
                self._solutions[digest] = self._checked(node_map)
                self._report(len(self._solutions))
        return digest

    def _checked(self, node_map: NodeMap) -> Embedding | NodeMap:
        self.constraints.check(self.problem, node_map)
        embedding = decode(self.problem, node_map)
        if embedding is None:
            return node_map
        expanded = expand(self.problem, embedding)
        if expanded is None or expanded.key() != node_map.key():
            raise InvariantError(f"axis maps {embedding.to_json()} do not expand to their node map")
        return embedding

    def keys(self) -> list[bytes]:
        return list(self._solutions)

    def sorted(
        self, keys: Iterable[bytes], most: int | None
    ) -> tuple[tuple[Embedding, ...], tuple[NodeMap, ...]]:
        """Return at most ``most`` solutions: embeddings, then node maps that are not axis maps."""
        # Orders find the same solutions in different sequence: written forms and images sort them.
        solutions = [self._solutions[key] for key in keys]
        embeddings = sorted(
            (e for e in solutions if isinstance(e, Embedding)),
            key=lambda e: json.dumps(e.to_json(), sort_keys=True),
        )[:most]
        left = None if most is None else most - len(embeddings)
        irregular = sorted((m for m in solutions if isinstance(m, NodeMap)), key=NodeMap.key)[:left]
        return tuple(embeddings), tuple(irregular)


@dataclass(kw_only=True)
class _Run:
    """Search of one decision order in one round.

    It goes to its end, or for ``work`` of deterministic time in each configuration. ``bounds`` are
    largest coordinates along workload axes. ``decided``: the search was exhausted (``complete``),
    or has as many solutions as were requested.
    """

    order: DecisionOrder
    solutions: Solutions
    bounds: Mapping[str, int]
    presolve: bool
    work: float | None
    stop: StopSignal = field(default_factory=StopSignal)
    started: bool = False
    decided: bool = False
    complete: bool = False
    status: Status = Status.UNKNOWN
    statistics: SearchStatistics = field(default_factory=SearchStatistics)
    digests: list[bytes] = field(default_factory=list[bytes])

    def search(self, limits: SearchLimits) -> None:
        """Enumerate all configurations within limits."""
        begun = time.perf_counter()
        exhausted = True
        for configuration in configurations(self.solutions.problem, self.solutions.constraints):
            left = limits.after(time.perf_counter() - begun)
            if self.stop.stopped or left.seconds == 0:
                return
            self.started = True
            exhausted &= self._enumerate(self._post(configuration), left)
            if self.digests:
                self.status = Status.FEASIBLE
            if limits.solutions is not None and len(self.digests) >= limits.solutions:
                self.decided = True
                return
        if exhausted:
            self.decided = self.complete = True
            self.status = Status.OPTIMAL if self.digests else Status.INFEASIBLE

    def _post(self, configuration: Mapping[str, int] | None) -> ScalarModel:
        model = post(self.solutions.problem, self.solutions.constraints, configuration)
        model.axis_order = self.order.axes
        for axis, largest in self.bounds.items():
            model.builder.bound(model.points[axis], 0, largest)
        return model

    def _enumerate(self, model: ScalarModel, limits: SearchLimits) -> bool:
        """Enumerate one configuration's solutions; return True if these are all it has."""

        def receive(values: Ids) -> bool:
            self.digests.append(self.solutions.add(model.node_map(values)))
            return True

        if limits.solutions is not None:
            limits = replace(limits, solutions=limits.solutions - len(self.digests))
        control = SearchControl(self.presolve, self.work, self.stop)
        try:
            compiled = model.build()
        except TooLargeDomainError as error:
            needed = ("hyper_rectangle", "fixed_origin")
            constraints = self.solutions.constraints
            missing = [name for name in needed if constraints.get(name) is None]
            remedy = f"add {missing[0]} to the set" if missing else "leave the search to auto"
            raise TooLargeDomainError(f"{constraints.name}: {error}: {remedy}") from None
        _, exhausted, statistics = enumerate_solutions(compiled, receive, limits, control)
        self.statistics = self.statistics.plus(statistics)
        return exhausted


@dataclass(frozen=True)
class DecisionOrder:
    """Sequence of workload axes in which a search assigns coordinates; the last varies first.

    Rieber et al. 2021 call it an *asset* of the portfolio. ``bounded``: the domains are cut to what
    an embedding can reach (equation 11 with the largest stride that the constraints leave, so that
    none is lost).
    """

    name: str
    axes: tuple[str, ...]
    bounded: bool = False


def workload_order(problem: EmbeddingProblem) -> DecisionOrder:
    """Return the order of the workload's own axes."""
    return DecisionOrder("workload", tuple(axis.name for axis in problem.workload.axes))


def axis_orders(problem: EmbeddingProblem, constraints: ConstraintSet) -> list[DecisionOrder]:
    """Return one decision order per ordering of axes that can matter (equation 12).

    As many spatial and reduction axes as the instruction has are put last, in every order; the
    others keep theirs.
    """
    # Axes of one iteration (of the instruction, or of the workload after padding) move nothing and
    # are not counted.
    padded = padded_extents(problem, constraints)
    moving = [axis for axis in problem.instruction.computation.axes if axis.extent > 1]
    choices: list[list[tuple[str, ...]]] = []
    for kind in (AxisKind.SPATIAL, AxisKind.REDUCTION):
        moving_count = sum(axis.kind is kind for axis in moving)
        # Innermost axes first: the first order is that of the workload.
        names = [a.name for a in problem.workload.axes if a.kind is kind and padded[a.name] > 1]
        last_axes = itertools.permutations(reversed(names), min(moving_count, len(names)))
        choices.append([tuple(reversed(axes)) for axes in last_axes])
    orders: list[DecisionOrder] = []
    for spatial, reduction in itertools.product(*choices):
        last = (*spatial, *reduction)
        rest = tuple(a.name for a in problem.workload.axes if a.name not in last)
        orders.append(DecisionOrder(",".join(last) or "workload", (*rest, *last)))
    return orders


def decision_orders(problem: EmbeddingProblem, constraints: ConstraintSet) -> list[DecisionOrder]:
    """Return every order with the domain bound, where it cuts any domain, then without it."""
    orders = axis_orders(problem, constraints)
    bounds, padded = coordinate_bounds(problem, constraints), padded_extents(problem, constraints)
    if all(bounds[axis] == extent - 1 for axis, extent in padded.items()):
        return orders
    bounded = [replace(order, name=f"{order.name} bounded", bounded=True) for order in orders]
    return [*bounded, *orders]


def solve_portfolio(
    problem: EmbeddingProblem,
    constraints: ConstraintSet,
    limits: SearchLimits,
    orders: Sequence[DecisionOrder],
    *,
    first: DecisionOrder | None = None,
    presolve: bool = True,
    workers: int | None = None,
    report: Callable[[int], None] = lambda count: None,
) -> SearchResult:
    """Search with several decision orders at once; the first proof of the answer ends the others.

    The answer is the same for any number of workers, unless the time limit ends the search; then it
    is what all orders found together.

    Parameters
    ----------
    problem : EmbeddingProblem
        Problem in one assignment of roles.
    constraints : ConstraintSet
        Constraints to post.
    limits : SearchLimits
        Seconds, number of solutions, seed.
    orders : Sequence of DecisionOrder
        Decision orders, at least one.
    first : DecisionOrder, optional
        Order that searches alone for a little work.
    presolve : bool
        True to simplify each model first.
    workers : int, optional
        Number of orders at a time; the number of cores by default.
    report : Callable
        Called with the number of solutions so far.
    """
    if not orders:
        raise ValueError("a portfolio needs at least one decision order")
    search = _Portfolio(problem, constraints, limits, presolve, workers or core_count(), report)
    raced = tuple(orders)
    everything = limits.solutions is None
    if first is not None:
        if len(raced) == 1 or (everything and search.workers == 1):
            # On one core all orders would only repeat the work of this one.
            raced = (first,)
        else:
            # A problem that this order answers soon is not worth a portfolio.
            won = search.round((first,), _FIRST_WORK)
            if won is not None or search.over:
                return search.result(won)
    if everything or len(raced) == 1:
        # Any order's exhausted search proves the set of all solutions: no domain lacks one.
        return search.result(search.round(raced, None))
    # Where some solutions are enough, which order has them first would depend on the machine.
    # Within a round of equal deterministic time, the first in sequence that has an answer gives it.
    work = _FIRST_WORK
    while True:
        won = search.round(raced, work)
        if won is not None or search.over:
            return search.result(won)
        work *= _WORK_GROWTH


class _Portfolio:
    """One search under way: its rounds, and the cost of each order in all of them."""

    def __init__(
        self,
        problem: EmbeddingProblem,
        constraints: ConstraintSet,
        limits: SearchLimits,
        presolve: bool,
        workers: int,
        report: Callable[[int], None],
    ) -> None:
        self.problem, self.constraints, self.limits = problem, constraints, limits
        self.presolve, self.workers = presolve, workers
        self.solutions = Solutions(problem, constraints, report)
        self.started = time.perf_counter()
        self.solving = 0.0
        self.efforts: dict[str, OrderEffort] = {}

    @property
    def over(self) -> bool:
        seconds = self.limits.seconds
        return seconds is not None and time.perf_counter() - self.started >= seconds

    def round(self, orders: Sequence[DecisionOrder], work: float | None) -> _Run | None:
        """Search in all orders, each for ``work``; return the run whose answer counts, if any."""
        bounds = coordinate_bounds(self.problem, self.constraints)
        runs = [
            _Run(
                order=order,
                solutions=self.solutions,
                bounds=bounds if order.bounded else {},
                presolve=self.presolve,
                work=work,
            )
            for order in orders
        ]
        self._race(runs, any_winner=work is None)
        for run in (run for run in runs if run.started):
            name = run.order.name
            spent = self.efforts[name].statistics if name in self.efforts else SearchStatistics()
            self.efforts[name] = OrderEffort(name, run.status, spent.plus(run.statistics))
        self.solving += max((run.statistics.seconds for run in runs), default=0.0)
        # Of a race that any order may end, one that came in meanwhile has the same answer.
        return next((run for run in runs if run.decided), None)

    def _race(self, runs: list[_Run], *, any_winner: bool) -> None:
        """Run all; one that decides ends every other, or only those after it in sequence."""

        def go(position: int) -> None:
            # Time is that of the whole search: an order that waited for a core has less left.
            left = self.limits.after(time.perf_counter() - self.started)
            # Building a large model takes longer than the solver is given.
            end = None if left.seconds is None else left.seconds + _LATE
            with suppress(OutOfTime):
                within(end, lambda: runs[position].search(left))
            if runs[position].decided:
                for rival in runs if any_winner else runs[position + 1 :]:
                    if rival is not runs[position]:
                        rival.stop.stop()

        pool = ThreadPoolExecutor(min(len(runs), self.workers))
        futures: list[Future[None]] = [
            # The context carries the surrounding time limit into the thread.
            pool.submit(copy_context().run, go, position)
            for position in range(len(runs))
        ]
        try:
            while wait(futures, _PATIENCE, FIRST_EXCEPTION).not_done:
                check_time()
                if any(future.done() and future.exception() for future in futures):
                    break
            for future in futures:
                if future.done():
                    future.result()
        finally:
            # An error or an interrupt must not wait for the searches to end by themselves.
            for run in runs:
                run.stop.stop()
            pool.shutdown(wait=True, cancel_futures=True)

    def result(self, won: _Run | None) -> SearchResult:
        """Return the sorted answer; of a stopped search, what all orders found together."""
        digests = self.solutions.keys() if won is None else won.digests
        if won is not None and won.complete and len(digests) != len(self.solutions.keys()):
            raise InvariantError(
                f"decision order {won.order.name} missed a solution that another one found: please "
                f"report this with the workload {self.problem.workload} and "
                f"{self.problem.instruction.name}"
            )
        embeddings, irregular = self.solutions.sorted(digests, self.limits.solutions)
        if won is not None:
            status = won.status
        else:
            status = Status.FEASIBLE if digests else Status.UNKNOWN
        seconds = time.perf_counter() - self.started
        # Orders search at the same time: the solver's time can exceed the wall time.
        solving = min(seconds, self.solving)
        return SearchResult(
            status=status,
            complete=won is not None and won.complete,
            embeddings=embeddings,
            irregular=irregular,
            seconds=Seconds(seconds - solving, solving),
            effort=SearchEffort(
                Formulation.SCALAR, won and won.order.name, tuple(self.efforts.values())
            ),
            problem=self.problem,
        )
