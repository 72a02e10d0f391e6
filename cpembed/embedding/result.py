"""What a search returns, and the accounting of the solver's work."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import reduce
from typing import Any

from cpembed.embedding.cpsat import (
    SearchControl,
    SearchLimits,
    SearchStatistics,
    Status,
    enumerate_solutions,
)
from cpembed.embedding.embedding import Embedding
from cpembed.embedding.node_map import NodeMap
from cpembed.embedding.problem import EmbeddingProblem, LabelMismatch
from cpembed.embedding.proto_writer import CompiledModel, Ids
from cpembed.embedding.space import Spaces, count_families

Progress = Callable[[str, int], None]
"""Called with the phase ("model", "search") and the number of solutions so far."""


def silent(phase: str, count: int) -> None:
    """The progress report of a caller that wants none."""


class Formulation(StrEnum):
    """The model to post, and its assets.

    ``auto`` is the digit model wherever it applies, otherwise the scalar model with as many assets
    as are worth it. ``scalar`` is the scalar model in the order of the workload's axes alone,
    ``portfolio`` the scalar model with every asset. A result's formulation is the model:
    ``digits`` or ``scalar``.
    """

    AUTO = "auto"
    DIGITS = "digits"
    SCALAR = "scalar"
    PORTFOLIO = "portfolio"


@dataclass(frozen=True)
class AssetEffort:
    """The cost of one decision order. ``status`` is what it established by itself: ``unknown`` or
    ``feasible`` where another asset, or a limit, ended it."""

    name: str
    status: Status
    statistics: SearchStatistics


OUTPUTS_FIRST = "outputs_first"
"""Name of the digit model's only asset."""


@dataclass(frozen=True)
class SearchEffort:
    """The search behind an answer: the model (None where nothing had to be posted), the asset that
    had the answer (None where a limit came first), and what every asset that was started cost."""

    formulation: Formulation | None
    winner: str | None
    assets: tuple[AssetEffort, ...]

    @property
    def total(self) -> SearchStatistics:
        """The sum over all assets."""
        return sum_of(self.assets)

    def to_json(self) -> dict[str, Any]:
        """The ``search`` of the ``solve`` document."""
        return {
            "formulation": self.formulation and self.formulation.value,
            "branches": self.total.branches,
            "conflicts": self.total.conflicts,
            "asset": self.winner,
            "assets": [
                {
                    "name": effort.name,
                    "status": effort.status.value,
                    "branches": effort.statistics.branches,
                    "conflicts": effort.statistics.conflicts,
                }
                for effort in self.assets
            ],
        }


def sum_of(assets: Iterable[AssetEffort]) -> SearchStatistics:
    return reduce(SearchStatistics.plus, (a.statistics for a in assets), SearchStatistics())


@dataclass(frozen=True)
class Seconds:
    """Wall time spent building the model and searching it."""

    model: float
    solve: float


@dataclass(frozen=True)
class SearchResult:
    """All embeddings found. ``complete``: there are no others under the constraint set.
    ``unsearched`` names parts of the set's space that no model was posted for; where there are any,
    a result is neither complete nor a proof that nothing fits.

    ``irregular`` holds node maps that are not axis maps (only without ``hyper_rectangle``);
    ``mismatch`` says why the graphs differ in labels, in which case nothing was posted.
    """

    status: Status
    complete: bool
    embeddings: Sequence[Embedding]
    irregular: tuple[NodeMap, ...]
    seconds: Seconds
    effort: SearchEffort
    problem: EmbeddingProblem | None = None
    mismatch: LabelMismatch | None = None
    unsearched: tuple[str, ...] = ()

    def without(self, unsearched: tuple[str, ...]) -> SearchResult:
        """The result where those parts of the space were not searched."""
        if not unsearched:
            return self
        status = {Status.OPTIMAL: Status.FEASIBLE, Status.INFEASIBLE: Status.UNKNOWN}
        return replace(
            self,
            status=status.get(self.status, self.status),
            complete=False,
            unsearched=unsearched,
        )

    @property
    def families(self) -> int:
        """Number of families of the embeddings (docs/embedding.md, "Axis maps")."""
        return count_families(self.embeddings)

    def cut(self, usable: int) -> SearchResult:
        """The result where time was over before its embeddings had their programs, but for
        ``usable`` of them; of none, what was found is of no use."""
        if not usable:
            return replace(self, status=Status.UNKNOWN, complete=False, embeddings=(), irregular=())
        return replace(self, status=Status.FEASIBLE, complete=False)


def nothing_found(seconds: float) -> SearchResult:
    """The result of a search whose time, so many seconds, was over before anything was posted."""
    effort = SearchEffort(None, None, ())
    return SearchResult(Status.UNKNOWN, False, (), (), Seconds(seconds, 0.0), effort)


def merged(results: list[SearchResult]) -> SearchResult:
    """The union of searches over alternative problems."""
    complete = all(result.complete for result in results)
    return SearchResult(
        alternatives([result.status for result in results]),
        complete,
        Spaces(tuple(result.embeddings for result in results)),
        tuple(m for result in results for m in result.irregular),
        Seconds(
            sum(result.seconds.model for result in results),
            sum(result.seconds.solve for result in results),
        ),
        _merged_effort([result.effort for result in results], complete=complete),
        results[0].problem,
        unsearched=tuple(dict.fromkeys(part for r in results for part in r.unsearched)),
    )


def _merged_effort(efforts: list[SearchEffort], *, complete: bool) -> SearchEffort:
    """Efforts by asset, over the problems; the winner is that of the hardest problem."""
    by_name: dict[str, list[AssetEffort]] = {}
    for effort in efforts:
        for asset in effort.assets:
            by_name.setdefault(asset.name, []).append(asset)
    hardest = max(efforts, key=lambda effort: effort.total.branches)
    return SearchEffort(
        hardest.formulation,
        hardest.winner if complete else None,
        tuple(
            AssetEffort(name, alternatives([a.status for a in found]), sum_of(found))
            for name, found in by_name.items()
        ),
    )


def alternatives(statuses: Sequence[Status]) -> Status:
    """The status of a search whose solutions are those of several models, all of them posted."""
    if all(status is Status.INFEASIBLE for status in statuses):
        return Status.INFEASIBLE
    if all(status in (Status.INFEASIBLE, Status.OPTIMAL) for status in statuses):
        return Status.OPTIMAL
    found = any(status in (Status.FEASIBLE, Status.OPTIMAL) for status in statuses)
    return Status.FEASIBLE if found else Status.UNKNOWN


class Effort:
    """Accumulates the solver's work over the digit models of one search: one per component."""

    def __init__(self) -> None:
        self.started = time.perf_counter()
        self.solving = 0.0
        self.statuses: list[Status] = []
        self.statistics = SearchStatistics()

    def enumerate(
        self,
        model: CompiledModel,
        receive: Callable[[Ids], bool],
        limits: SearchLimits,
        others: int = 0,
    ) -> Status:
        """Every solution of a component, which leaves ``others`` more an equal share of the time.

        The models are of Booleans: neither presolve nor a linear relaxation earns its cost.
        """
        started = time.perf_counter()
        left = limits.after(started - self.started).share(others + 1)
        control = SearchControl(presolve=False, relaxation=False)
        status, _, statistics = enumerate_solutions(model, receive, left, control)
        self.statuses.append(status)
        self.statistics = self.statistics.plus(statistics)
        self.solving += time.perf_counter() - started
        return status

    def result(self, problem: EmbeddingProblem, embeddings: Sequence[Embedding]) -> SearchResult:
        status = self._status()
        complete = status in (Status.OPTIMAL, Status.INFEASIBLE)
        asset = AssetEffort(OUTPUTS_FIRST, status, self.statistics)
        return SearchResult(
            status,
            complete,
            embeddings,
            (),
            Seconds(time.perf_counter() - self.started - self.solving, self.solving),
            SearchEffort(Formulation.DIGITS, asset.name if complete else None, (asset,)),
            problem,
        )

    def _status(self) -> Status:
        """Components must all have solutions."""
        if Status.INFEASIBLE in self.statuses:
            return Status.INFEASIBLE
        if all(status is Status.OPTIMAL for status in self.statuses):
            return Status.OPTIMAL
        return Status.UNKNOWN if Status.UNKNOWN in self.statuses else Status.FEASIBLE
