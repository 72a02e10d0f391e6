"""What a search returns, and the accounting of the solver's work."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from cpembed.embedding.cpsat import SearchLimits, SearchStatistics, Status, enumerate_solutions
from cpembed.embedding.embedding import Embedding
from cpembed.embedding.node_map import NodeMap
from cpembed.embedding.problem import EmbeddingProblem, LabelMismatch
from cpembed.embedding.proto_writer import CompiledModel, Ids

Progress = Callable[[str, int], None]
"""Called with the phase ("model", "search") and the number of solutions so far."""


def silent(phase: str, count: int) -> None:
    """The progress report of a caller that wants none."""


class Formulation(StrEnum):
    """Which model is posted: ``auto`` is the digit model wherever it applies."""

    AUTO = "auto"
    SCALAR = "scalar"
    DIGITS = "digits"


@dataclass(frozen=True)
class Seconds:
    """Wall time spent building the model and searching it."""

    model: float
    solve: float


@dataclass(frozen=True)
class SearchResult:
    """All embeddings found. ``complete``: there are no others in the posted model.

    ``irregular`` holds node maps that are not axis maps (only without ``hyper_rectangle``);
    ``mismatch`` says why the graphs differ in labels, in which case nothing was posted.
    """

    status: Status
    complete: bool
    embeddings: tuple[Embedding, ...]
    irregular: tuple[NodeMap, ...]
    seconds: Seconds
    statistics: SearchStatistics
    problem: EmbeddingProblem | None = None
    mismatch: LabelMismatch | None = None
    formulation: Formulation = Formulation.SCALAR


def merged(results: list[SearchResult]) -> SearchResult:
    """The union of searches over alternative problems."""
    complete = all(result.complete for result in results)
    found = any(result.embeddings or result.irregular for result in results)
    if complete:
        status = Status.OPTIMAL if found else Status.INFEASIBLE
    else:
        status = Status.FEASIBLE if found else Status.UNKNOWN
    statistics = SearchStatistics(0, 0, 0.0)
    for result in results:
        statistics = statistics.plus(result.statistics)
    return SearchResult(
        status,
        complete,
        tuple(e for result in results for e in result.embeddings),
        tuple(m for result in results for m in result.irregular),
        Seconds(
            sum(result.seconds.model for result in results),
            sum(result.seconds.solve for result in results),
        ),
        statistics,
        results[0].problem,
        formulation=results[0].formulation,
    )


class Effort:
    """Accumulates the solver's work over the models of one search."""

    def __init__(self) -> None:
        self.started = time.perf_counter()
        self.solving = 0.0
        self.statuses: list[Status] = []
        self.statistics = SearchStatistics(0, 0, 0.0)

    def enumerate(
        self, model: CompiledModel, receive: Callable[[Ids], None], limits: SearchLimits
    ) -> None:
        started = time.perf_counter()
        left = limits.after(started - self.started)
        status, _, statistics = enumerate_solutions(model, receive, left)
        self.statuses.append(status)
        self.statistics = self.statistics.plus(statistics)
        self.solving += time.perf_counter() - started

    def result(
        self,
        problem: EmbeddingProblem,
        embeddings: list[Embedding],
        irregular: list[NodeMap],
        formulation: Formulation,
    ) -> SearchResult:
        status = self._status(formulation)
        return SearchResult(
            status,
            status in (Status.OPTIMAL, Status.INFEASIBLE),
            tuple(embeddings),
            tuple(irregular),
            Seconds(time.perf_counter() - self.started - self.solving, self.solving),
            self.statistics,
            problem,
            formulation=formulation,
        )

    def _status(self, formulation: Formulation) -> Status:
        """Components must all have solutions; configurations are alternatives."""
        infeasible = [status is Status.INFEASIBLE for status in self.statuses]
        if any(infeasible) if formulation is Formulation.DIGITS else all(infeasible):
            return Status.INFEASIBLE
        if all(status in (Status.INFEASIBLE, Status.OPTIMAL) for status in self.statuses):
            return Status.OPTIMAL
        found = [status in (Status.FEASIBLE, Status.OPTIMAL) for status in self.statuses]
        enough = all(found) if formulation is Formulation.DIGITS else any(found)
        return Status.FEASIBLE if enough else Status.UNKNOWN
