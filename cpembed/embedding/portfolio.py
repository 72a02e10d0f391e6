"""Portfolio search: the scalar model in several decision orders at a time, the first one to prove
the answer ends the others (Rieber et al. 2021, section 7).

A constraint set is posted here to one scalar model for each configuration, order and round.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, field, replace

from cpembed.embedding.checks import check, check_round_trip
from cpembed.embedding.constraint_set import ConstraintSet
from cpembed.embedding.constraints.hyper_rectangle import HyperRectangle
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
from cpembed.embedding.model_builder import Ids, TooLargeDomain
from cpembed.embedding.node_map import NodeMap, decode
from cpembed.embedding.problem import EmbeddingProblem
from cpembed.embedding.result import AssetEffort, Formulation, SearchEffort, SearchResult, Seconds
from cpembed.embedding.scalar_model import ScalarModel
from cpembed.errors import InvariantError
from cpembed.ir.computation import AxisKind
from cpembed.time_limit import OutOfTime, check_time, within


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
    model = ScalarModel(
        problem,
        padded_extents(problem, constraints),
        dense_strides=constraints.get("dense") is not None,
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
    """Extents that are fixed before a scalar model is posted, one model each: without operand boxes
    those of configurable axes.
    """
    axes = problem.instruction.axes
    boxes = constraints.get("hyper_rectangle") == HyperRectangle("operands")
    if boxes or not problem.instruction.configurable_axes:
        return [None]
    sizes = itertools.product(*(axis.allowed for axis in axes))
    return [dict(zip((axis.name for axis in axes), extents, strict=True)) for extents in sizes]


class Solutions:
    """Solutions by the digest of their node maps: each is checked once, by the first to find it."""

    def __init__(
        self,
        problem: EmbeddingProblem,
        constraints: ConstraintSet,
        report: Callable[[int], None],
    ) -> None:
        self._problem, self._constraints, self._report = problem, constraints, report
        self._lock = threading.Lock()
        self._found: dict[bytes, Embedding | NodeMap] = {}

    def add(self, node_map: NodeMap) -> bytes:
        shape, images = node_map.key()
        digest = hashlib.blake2b(repr(shape).encode() + images, digest_size=16).digest()
        with self._lock:
            if digest not in self._found:
                self._found[digest] = self._checked(node_map)
                self._report(len(self._found))
        return digest

    def _checked(self, node_map: NodeMap) -> Embedding | NodeMap:
        check(self._problem, self._constraints, node_map)
        embedding = decode(self._problem, node_map)
        if embedding is None:
            return node_map
        check_round_trip(self._problem, embedding, node_map)
        return embedding

    def keys(self) -> list[bytes]:
        return list(self._found)

    def sorted(
        self, keys: Iterable[bytes], most: int | None
    ) -> tuple[tuple[Embedding, ...], tuple[NodeMap, ...]]:
        """Embeddings by their written form, then irregular ones by their images; ``most`` of
        them in all.
        """
        solutions = [self._found[key] for key in keys]
        embeddings = sorted(
            (e for e in solutions if isinstance(e, Embedding)),
            key=lambda e: json.dumps(e.to_json(), sort_keys=True),
        )[:most]
        left = None if most is None else most - len(embeddings)
        irregular = sorted((m for m in solutions if isinstance(m, NodeMap)), key=NodeMap.key)[:left]
        return tuple(embeddings), tuple(irregular)


@dataclass
class AssetRun:
    """One asset's search in one round: to its end, or for ``work`` of deterministic time in each
    configuration.

    ``bounds`` cuts the domains of workload axes to a largest coordinate. ``decided``: the search
    was exhausted (``complete``), or has as many solutions as were asked for.
    """

    name: str
    problem: EmbeddingProblem
    constraints: ConstraintSet
    axes: tuple[str, ...]
    bounds: Mapping[str, int]
    solutions: Solutions
    presolve: bool
    work: float | None
    stop: StopSignal = field(default_factory=StopSignal)
    started: bool = False
    decided: bool = False
    complete: bool = False
    status: Status = Status.UNKNOWN
    statistics: SearchStatistics = field(default_factory=SearchStatistics)
    found: list[bytes] = field(default_factory=list[bytes])

    def search(self, limits: SearchLimits) -> None:
        begun = time.perf_counter()
        exhausted = True
        for configuration in configurations(self.problem, self.constraints):
            left = limits.after(time.perf_counter() - begun)
            if self.stop.stopped or left.seconds == 0:
                return
            self.started = True
            exhausted &= self._enumerate(self._post(configuration), left)
            if self.found:
                self.status = Status.FEASIBLE
            if limits.solutions is not None and len(self.found) >= limits.solutions:
                self.decided = True
                return
        if exhausted:
            self.decided = self.complete = True
            self.status = Status.OPTIMAL if self.found else Status.INFEASIBLE

    def _post(self, configuration: Mapping[str, int] | None) -> ScalarModel:
        model = post(self.problem, self.constraints, configuration)
        model.axis_order = self.axes
        for axis, largest in self.bounds.items():
            model.builder.bound(model.points[axis], 0, largest)
        return model

    def _enumerate(self, model: ScalarModel, limits: SearchLimits) -> bool:
        """One configuration's solutions; whether these are all it has."""

        def receive(values: Ids) -> bool:
            self.found.append(self.solutions.add(model.node_map(values)))
            return True

        if limits.solutions is not None:
            limits = replace(limits, solutions=limits.solutions - len(self.found))
        control = SearchControl(self.presolve, self.work, self.stop)
        try:
            compiled = model.build()
        except TooLargeDomain as error:
            needed = ("hyper_rectangle", "fixed_origin")
            missing = [name for name in needed if self.constraints.get(name) is None]
            remedy = f"add {missing[0]} to the set" if missing else "leave the search to auto"
            raise TooLargeDomain(f"{self.constraints.name}: {error}: {remedy}") from None
        _, exhausted, statistics = enumerate_solutions(compiled, receive, limits, control)
        self.statistics = self.statistics.plus(statistics)
        return exhausted


_PATIENCE, _LATE = 0.1, 0.2
"""Seconds until an interrupted search is stopped, and for which one that is not done by its limit
may go on."""

_FIRST_WORK = 0.25
"""Deterministic time of a round that may end without an answer; each such round has four times
that of the one before."""


@dataclass(frozen=True)
class Asset:
    """A decision order: the search assigns coordinates along ``axes`` in this order, so that those
    along the last axis vary first. ``bounded``: the domains are cut to what an embedding can reach
    (equation 11 with the largest stride that the constraints leave, so that none is lost).
    """

    name: str
    axes: tuple[str, ...]
    bounded: bool = False


def own_order(problem: EmbeddingProblem) -> Asset:
    """Plain search: the workload's own order of axes."""
    return Asset("workload", tuple(axis.name for axis in problem.workload.axes))


def make_orders(problem: EmbeddingProblem, constraints: ConstraintSet) -> list[Asset]:
    """One asset per ordering that can matter: those of equation 12.

    As many spatial and reduction axes as the instruction has are put last, in every order; the
    others keep theirs. Axes of one iteration (of the instruction, or of the workload after
    padding) move nothing and are not counted. The first asset has the workload's innermost axes.
    """
    padded = padded_extents(problem, constraints)
    moving = [axis for axis in problem.instruction.computation.axes if axis.extent > 1]
    choices: list[list[tuple[str, ...]]] = []
    for kind in (AxisKind.SPATIAL, AxisKind.REDUCTION):
        moving_count = sum(axis.kind is kind for axis in moving)
        # Innermost axes first: the first asset searches in the order of the workload.
        names = [a.name for a in problem.workload.axes if a.kind is kind and padded[a.name] > 1]
        orders = itertools.permutations(reversed(names), min(moving_count, len(names)))
        choices.append([tuple(reversed(order)) for order in orders])
    assets: list[Asset] = []
    for spatial, reduction in itertools.product(*choices):
        last = (*spatial, *reduction)
        rest = tuple(a.name for a in problem.workload.axes if a.name not in last)
        assets.append(Asset(",".join(last) or "workload", (*rest, *last)))
    return assets


def make_assets(problem: EmbeddingProblem, constraints: ConstraintSet) -> list[Asset]:
    """Every order, with the domain bound where it cuts any domain, then every order without it."""
    orders = make_orders(problem, constraints)
    bounds, padded = coordinate_bounds(problem, constraints), padded_extents(problem, constraints)
    if all(bounds[axis] == extent - 1 for axis, extent in padded.items()):
        return orders
    bounded = [Asset(f"{order.name} bounded", order.axes, bounded=True) for order in orders]
    return [*bounded, *orders]


def solve_portfolio(
    problem: EmbeddingProblem,
    constraints: ConstraintSet,
    limits: SearchLimits,
    assets: Sequence[Asset],
    *,
    first: Asset | None = None,
    presolve: bool = True,
    workers: int | None = None,
    report: Callable[[int], None] = lambda count: None,
) -> SearchResult:
    """Search with several decision orders at once; the first proof of the answer ends the others.

    The answer is the same for any number of workers, unless the time limit ends the search; then it
    is what all orders found together. Where all solutions are requested, it is the sorted set, and
    any order's exhausted search proves it: no order's domain lacks a solution. Where a number of
    them is enough, the orders run in rounds of growing deterministic time, and of those that have
    an answer within a round the first in sequence gives it.

    Parameters
    ----------
    problem : EmbeddingProblem
        Problem in one assignment of roles.
    constraints : ConstraintSet
        Constraints to post.
    limits : SearchLimits
        Seconds, number of solutions, seed.
    assets : Sequence of Asset
        Decision orders, at least one.
    first : Asset, optional
        Order that searches alone for a little work: a problem that it answers is not worth a
        portfolio. It is the only one where there is one order only, and, where all solutions are
        requested, on a single core.
    presolve : bool
        True to simplify each model first.
    workers : int, optional
        Number of orders at a time; the number of cores by default.
    report : Callable
        Called with the number of solutions so far.
    """
    if not assets:
        raise ValueError("a portfolio needs at least one asset")
    search = _Portfolio(problem, constraints, limits, presolve, workers or _cores(), report)
    raced = tuple(assets)
    everything = limits.solutions is None
    if first is not None:
        if len(raced) == 1 or (everything and search.workers == 1):
            raced = (first,)
        else:
            won = search.round((first,), _FIRST_WORK)
            if won is not None or search.over:
                return search.result(won)
    if everything or len(raced) == 1:
        return search.result(search.round(raced, None))
    work = _FIRST_WORK
    while True:
        won = search.round(raced, work)
        if won is not None or search.over:
            return search.result(won)
        work *= 4


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class _Portfolio:
    """One search under way: its rounds, and what each asset cost in all of them."""

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
        self.efforts: dict[str, AssetEffort] = {}

    @property
    def over(self) -> bool:
        seconds = self.limits.seconds
        return seconds is not None and time.perf_counter() - self.started >= seconds

    def round(self, assets: Sequence[Asset], work: float | None) -> AssetRun | None:
        """All assets, each for ``work``; the one whose answer counts, None where none has one."""
        bounds = coordinate_bounds(self.problem, self.constraints)
        runs = [
            AssetRun(
                asset.name,
                self.problem,
                self.constraints,
                asset.axes,
                bounds if asset.bounded else {},
                self.solutions,
                self.presolve,
                work,
            )
            for asset in assets
        ]
        self._race(runs, any_winner=work is None)
        for run in (run for run in runs if run.started):
            before = self.efforts.get(run.name)
            spent = SearchStatistics() if before is None else before.statistics
            self.efforts[run.name] = AssetEffort(run.name, run.status, spent.plus(run.statistics))
        self.solving += max((run.statistics.seconds for run in runs), default=0.0)
        # Of a race that any asset may end, one that came in meanwhile has the same answer.
        return next((run for run in runs if run.decided), None)

    def _race(self, runs: list[AssetRun], *, any_winner: bool) -> None:
        """Run all; one that decides ends every other, or only those after it in order."""

        def go(position: int) -> None:
            # Time is that of the whole search: an asset that waited for a core has less left.
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
            pool.submit(copy_context().run, go, position) for position in range(len(runs))
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

    def result(self, won: AssetRun | None) -> SearchResult:
        """The answer in a canonical order; of a stopped search, what all assets found together."""
        digests = self.solutions.keys() if won is None else won.found
        if won is not None and won.complete and len(digests) != len(self.solutions.keys()):
            raise InvariantError(
                f"asset {won.name} missed a solution that another one found: please report this "
                f"with the workload {self.problem.workload} and {self.problem.instruction.name}"
            )
        embeddings, irregular = self.solutions.sorted(digests, self.limits.solutions)
        if won is not None:
            status = won.status
        else:
            status = Status.FEASIBLE if digests else Status.UNKNOWN
        seconds = time.perf_counter() - self.started
        # Wall time of the solver counts once, whatever ran beside it.
        solving = min(seconds, self.solving)
        return SearchResult(
            status,
            won is not None and won.complete,
            embeddings,
            irregular,
            Seconds(seconds - solving, solving),
            SearchEffort(Formulation.SCALAR, won and won.name, tuple(self.efforts.values())),
            self.problem,
        )
