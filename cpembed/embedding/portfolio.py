"""Portfolio search: the scalar model in several decision orders at a time, the first one to prove
the answer ends the others (Rieber et al. 2021, section 7, equation 12)."""

from __future__ import annotations

import itertools
import math
import os
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from cpembed.embedding.checks import check, check_round_trip
from cpembed.embedding.constraint_set import ConstraintSet
from cpembed.embedding.cpsat import (
    SearchControl,
    SearchLimits,
    SearchStatistics,
    Status,
    StopSignal,
    enumerate_solutions,
)
from cpembed.embedding.embedding import Embedding
from cpembed.embedding.model import ScalarModel
from cpembed.embedding.node_map import NodeMap, decode
from cpembed.embedding.problem import EmbeddingProblem
from cpembed.embedding.proto_writer import Ids
from cpembed.embedding.regular import padded_extents
from cpembed.embedding.result import Formulation, SearchResult, Seconds
from cpembed.embedding.search import configurations, post
from cpembed.ir.computation import AxisKind

Key = tuple[tuple[int, ...], bytes]
"""Identity of a node map."""

_FIRST_WORK = 0.25
"""Deterministic time of the first round of a search for a few solutions."""


@dataclass(frozen=True)
class Asset:
    """A decision order: the search assigns coordinates along ``axes`` in this order, so that those
    along the last axis vary first."""

    name: str
    axes: tuple[str, ...]


@dataclass(frozen=True)
class AssetEffort:
    """What an asset did until it, or another one, had the answer. ``status`` is ``unknown`` or
    ``feasible`` where it was ended."""

    asset: Asset
    status: Status
    statistics: SearchStatistics


@dataclass(frozen=True)
class PortfolioResult:
    """``result``: solutions in a canonical order; its statistics are the sum over all assets.

    ``winner`` is the asset with the answer, None where none had it within the limits; where all
    solutions were asked for it may differ from run to run, the answer does not. ``efforts`` lists
    the assets that were started, in order.
    """

    result: SearchResult
    winner: Asset | None
    efforts: tuple[AssetEffort, ...]


def asset_count(spatial: int, reduction: int, chosen_spatial: int, chosen_reduction: int) -> int:
    """Equation 12: ordered choices of the workload's axes for those of the instruction."""
    return math.perm(spatial, chosen_spatial) * math.perm(reduction, chosen_reduction)


def make_assets(problem: EmbeddingProblem, constraints: ConstraintSet) -> list[Asset]:
    """One asset per ordering that can matter, the workload's own order among the first.

    As many spatial and reduction axes as the instruction has are put last, in every order; the
    others keep theirs. Axes of one iteration (of the instruction, or of the workload after
    padding) move nothing and are not counted.
    """
    padded = padded_extents(problem, constraints)
    moving = [axis for axis in problem.instruction.computation.axes if axis.extent > 1]
    choices: list[list[tuple[str, ...]]] = []
    for kind in (AxisKind.SPATIAL, AxisKind.REDUCTION):
        wanted = sum(axis.kind is kind for axis in moving)
        # Innermost axes first: the first asset searches in the order of the workload.
        names = [a.name for a in problem.workload.axes if a.kind is kind and padded[a.name] > 1]
        orders = itertools.permutations(reversed(names), min(wanted, len(names)))
        choices.append([tuple(reversed(order)) for order in orders])
    assets: list[Asset] = []
    for spatial, reduction in itertools.product(*choices):
        last = (*spatial, *reduction)
        rest = tuple(a.name for a in problem.workload.axes if a.name not in last)
        assets.append(Asset(",".join(last) or "workload", (*rest, *last)))
    return assets


def solve_portfolio(
    problem: EmbeddingProblem,
    constraints: ConstraintSet,
    limits: SearchLimits,
    assets: Sequence[Asset] | None = None,
    *,
    presolve: bool = True,
    workers: int | None = None,
) -> PortfolioResult:
    """Search with all assets at once, ``workers`` at a time (the number of cores by default).

    The answer is the same in every run, unless the limit of seconds ends the search: where all
    solutions are asked for it is the sorted set. Where a number of them is enough, the assets run
    in rounds of growing deterministic time, and of those that have an answer within a round the
    first in order gives it.
    """
    chosen = tuple(make_assets(problem, constraints) if assets is None else assets)
    if not chosen:
        raise ValueError("a portfolio needs at least one asset")
    started = time.perf_counter()
    threads = min(len(chosen), workers or _cores())
    work = None if limits.solutions is None else _FIRST_WORK
    spent: dict[Asset, SearchStatistics] = {}
    while True:
        runs = [_Run(problem, constraints, asset, presolve, work) for asset in chosen]
        left = limits.after(time.perf_counter() - started)
        _race(runs, left, threads, any_winner=work is None)
        for run in runs:
            before = spent.get(run.asset, SearchStatistics(0, 0, 0.0))
            spent[run.asset] = before.plus(run.statistics)
        # Of a race that any asset may end, one that came in meanwhile has the same answer.
        won = next((run for run in runs if run.decided), None)
        over = limits.seconds is not None and time.perf_counter() - started >= limits.seconds
        if won is not None or work is None or over:
            break
        work *= 4
    best = won or max(runs, key=lambda run: len(run.embeddings) + len(run.irregular))
    efforts = tuple(
        AssetEffort(run.asset, run.status, spent[run.asset]) for run in runs if run.started
    )
    return PortfolioResult(
        best.result(efforts, time.perf_counter() - started), won and won.asset, efforts
    )


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _race(runs: list[_Run], limits: SearchLimits, threads: int, *, any_winner: bool) -> None:
    """Run all; one that decides ends every other, or only those after it in order."""

    begun = time.perf_counter()

    def go(position: int) -> None:
        # The time is that of the whole race: an asset that had to wait for a core has less left.
        runs[position].search(limits.after(time.perf_counter() - begun))
        if runs[position].decided:
            for other in runs if any_winner else runs[position + 1 :]:
                if other is not runs[position]:
                    other.stop.stop()

    pool = ThreadPoolExecutor(threads)
    futures: list[Future[None]] = [pool.submit(go, position) for position in range(len(runs))]
    try:
        for future in futures:
            future.result()
    finally:
        # An error or an interrupt must not wait for the searches to end by themselves.
        for run in runs:
            run.stop.stop()
        pool.shutdown(wait=True, cancel_futures=True)


@dataclass
class _Run:
    """One asset's search in one round."""

    problem: EmbeddingProblem
    constraints: ConstraintSet
    asset: Asset
    presolve: bool
    work: float | None
    stop: StopSignal = field(default_factory=StopSignal)
    started: bool = False
    decided: bool = False
    status: Status = Status.UNKNOWN
    complete: bool = False
    statistics: SearchStatistics = field(default_factory=lambda: SearchStatistics(0, 0, 0.0))
    embeddings: list[tuple[Key, Embedding]] = field(default_factory=list["tuple[Key, Embedding]"])
    irregular: list[NodeMap] = field(default_factory=list[NodeMap])

    @property
    def found(self) -> int:
        return len(self.embeddings) + len(self.irregular)

    def search(self, limits: SearchLimits) -> None:
        begun = time.perf_counter()
        complete = True
        for configuration in configurations(self.problem, self.constraints):
            if self.stop.stopped:
                return
            self.started = True
            model = post(self.problem, self.constraints, configuration)
            model.axis_order = self.asset.axes
            left = limits.after(time.perf_counter() - begun)
            if limits.solutions is not None:
                left = replace(left, solutions=limits.solutions - self.found)

            def receive(values: Ids, model: ScalarModel = model) -> None:
                self._receive(model.node_map(values))

            control = SearchControl(self.presolve, self.work, self.stop)
            _, whole, statistics = enumerate_solutions(model.build(), receive, left, control)
            self.statistics = self.statistics.plus(statistics)
            complete &= whole
            if limits.solutions is not None and self.found >= limits.solutions:
                self.decided = True
                complete = False
                break
        self.complete = complete
        self.decided |= complete
        if complete:
            self.status = Status.OPTIMAL if self.found else Status.INFEASIBLE
        elif self.found:
            self.status = Status.FEASIBLE

    def _receive(self, node_map: NodeMap) -> None:
        check(self.problem, self.constraints, node_map)
        embedding = decode(self.problem, node_map)
        if embedding is None:
            self.irregular.append(node_map)
        else:
            check_round_trip(self.problem, embedding, node_map)
            self.embeddings.append((node_map.key(), embedding))

    def result(self, efforts: tuple[AssetEffort, ...], seconds: float) -> SearchResult:
        """The answer in a canonical order: by the images of the operations."""
        total = SearchStatistics(0, 0, 0.0)
        for effort in efforts:
            total = total.plus(effort.statistics)
        # Wall time of the solver counts once, whatever ran beside it.
        solving = min(seconds, max((e.statistics.seconds for e in efforts), default=0.0))
        return SearchResult(
            self.status,
            self.complete,
            tuple(e for _, e in sorted(self.embeddings, key=lambda pair: pair[0])),
            tuple(sorted(self.irregular, key=NodeMap.key)),
            Seconds(seconds - solving, solving),
            total,
            self.problem,
            formulation=Formulation.SCALAR,
        )
