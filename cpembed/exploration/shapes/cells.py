"""What one shape costs in one layer, by a search of its embeddings: where packing counts, and under
sets whose executions are not known from tables."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from cpembed.embedding.checks import check_embedding
from cpembed.embedding.constraint_set import ConstraintSet
from cpembed.embedding.cpsat import SearchLimits, Status
from cpembed.embedding.result import SearchResult
from cpembed.embedding.search import find_embeddings
from cpembed.errors import TransformError
from cpembed.exploration.shapes.embedded import EXECUTIONS_ONLY, Embedded, embedded_of
from cpembed.exploration.shapes.shape import Shape, instruction_of
from cpembed.hw.instruction import Instruction
from cpembed.ir.computation import Computation
from cpembed.selection.best_first import best_first
from cpembed.selection.candidate import Candidate, derive_candidate
from cpembed.selection.overheads import Overheads, overheads
from cpembed.time_limit import Clock, OutOfTime, check_time, within
from cpembed.transform.derive import LayoutCache
from cpembed.transform.proof import require

LEAST_SECONDS = 0.1
"""For a search whose time is over when it is begun."""

_LATE = 0.5
"""Seconds after its limit at which a search that does not end by itself is left."""


@dataclass(frozen=True)
class Cost:
    """What a shape is judged by: executions, and where ``bytes_per_execution`` is given, the bytes
    that packing and unpacking move, so many of which are worth an execution.

    :meth:`of` is an integer: executions, or executions times ``bytes_per_execution`` plus bytes.
    """

    bytes_per_execution: int | None = None

    @property
    def unit(self) -> int:
        """What an execution counts."""
        return self.bytes_per_execution or 1

    def of(self, executions: int, packing_bytes: int) -> int:
        moved = 0 if self.bytes_per_execution is None else packing_bytes
        return executions * self.unit + moved


@dataclass(frozen=True)
class Cell:
    """What was found of a shape in a layer: no embedding costs less than ``bound``, infinite where
    there is none; ``embedded`` is the best that was found."""

    bound: float
    embedded: Embedded | None = None

    def cost(self, cost: Cost) -> float:
        """Of the best that was found."""
        if self.embedded is None:
            return math.inf
        return cost.of(self.embedded.executions, self.embedded.packing_bytes)


def evaluate(
    workload: Computation,
    constraints: ConstraintSet,
    shape: Shape,
    cost: Cost,
    seconds: float | None,
) -> Cell:
    """The embedding of least cost, its program proven."""
    instruction, clock = instruction_of(shape), Clock(seconds)
    searching = searched(workload, constraints, shape, seconds)
    found = searching.result
    if found.status is Status.INFEASIBLE:
        return Cell(math.inf)
    least = math.ceil(workload.macs / shape.macs) * cost.unit
    ordered = _Ordered(workload, instruction, found, cost)
    in_time(clock, ordered.run)
    bound = max(float(least), ordered.bound) if found.complete else float(least)
    if ordered.best is None:
        return Cell(bound)
    candidate, paid = ordered.best
    if found.problem is not None:
        check_embedding(found.problem, searching.constraints, candidate.embedding)
    require(candidate.program)
    first = bound >= cost.of(paid.calls, paid.packing_bytes)
    embedded = embedded_of(candidate, paid, exchanged=searching.exchanged, first=first)
    return Cell(bound, embedded)


@dataclass(frozen=True)
class Searched:
    """What a search came to, under which constraints; ``exchanged``: those in which the factors
    have each other's roles."""

    result: SearchResult
    constraints: ConstraintSet
    exchanged: bool = False


def searched(
    workload: Computation, constraints: ConstraintSet, shape: Shape, seconds: float | None
) -> Searched:
    """The embeddings of a shape; as :func:`~cpembed.driver.solve.solve` does, the factors exchange
    their roles where nothing fits in their own."""
    instruction = instruction_of(shape)
    chosen = replace(constraints, weights=EXECUTIONS_ONLY)
    limits, clock = SearchLimits(seconds=seconds), Clock(seconds)
    found = find_embeddings(workload, instruction, chosen, limits)
    nothing = found.status is Status.INFEASIBLE and found.mismatch is None
    if not (nothing and chosen.get("dataflow") and not chosen.exchanges_factors):
        return Searched(found, chosen)
    chosen = chosen.with_exchanged_factors()
    found = find_embeddings(workload, instruction, chosen, limits.after(clock.passed))
    return Searched(found, chosen, exchanged=True)


def in_time(clock: Clock, work: Callable[[], None]) -> None:
    """Do what keeps what it has found so far, until the time is over."""
    left = clock.left()
    try:
        within(None if left is None else left + _LATE, work)
    except OutOfTime:
        if left is None:
            raise


class _Ordered:
    """Derives programs in ascending order of their executions until none can cost less."""

    def __init__(
        self, workload: Computation, instruction: Instruction, found: SearchResult, cost: Cost
    ) -> None:
        self.best: tuple[Candidate, Overheads] | None = None
        self.bound = 0.0
        self._cost, self._least = cost, math.inf
        self._workload, self._instruction = workload, instruction
        self._embeddings = found.embeddings

    def run(self) -> None:
        """Until the best is known; the bound rises with what was looked at."""
        layouts: LayoutCache = {}
        for item in best_first(
            self._workload, self._instruction, self._embeddings, EXECUTIONS_ONLY
        ):
            check_time()
            floor = self._cost.of(item.lower.calls, 0)
            if floor >= self._least:
                break
            self.bound = float(floor)
            if self._cost.of(item.lower.calls, item.lower.packing_bytes) >= self._least:
                continue
            try:
                candidate = derive_candidate(
                    self._workload, self._instruction, item.embedding, layouts
                )
            except TransformError:
                continue
            paid = overheads(candidate.program)
            value = self._cost.of(paid.calls, paid.packing_bytes)
            if value < self._least:
                self._least, self.best = value, (candidate, paid)
        self.bound = self._least
