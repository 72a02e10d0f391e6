"""One cell of the cost table by search: a shape in a layer.

Where packing or time counts, and under constraint sets whose executions no table holds, cells are
searched; which of them, :mod:`cpembed.exploration.shapes.cell_table` decides.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from cpembed.cost.bounds import Lower, best_first
from cpembed.cost.machine.estimate import Estimate
from cpembed.cost.ranking import Candidate, Overheads, derive_candidate, overheads
from cpembed.cost.search import LimitedSearch, RankedSearch, Ranker
from cpembed.embedding.commute import Pairing
from cpembed.embedding.constraint_set import ConstraintSet, Weights
from cpembed.embedding.cpsat import SearchLimits, Status
from cpembed.embedding.digit_search import check_embedding
from cpembed.embedding.embedding import Embedding
from cpembed.embedding.result import SearchResult, merged
from cpembed.embedding.search import find_embeddings
from cpembed.errors import InvariantError, TransformError
from cpembed.exploration.shapes.shape import PICOSECONDS, Cost, Shape, instruction_of, template
from cpembed.hw.instruction import HardwareSpec, Instruction
from cpembed.ir.computation import Computation
from cpembed.runtime.cluster import Task, Workers
from cpembed.steps import silent
from cpembed.time_limit import Clock, OutOfTime, check_time, within
from cpembed.transform.derive import LayoutCache
from cpembed.transform.proof import require

EXECUTIONS_ONLY = Weights(1.0, 0.0)
"""Weights that order candidates by their executions alone, as ``--weights 1,0``."""

MIN_SECONDS = 0.1
"""Minimum time limit of a search that begins when the time is over."""

_GRACE = 0.5
"""Seconds after its limit at which a search that does not end by itself is abandoned."""

_ALL_SECONDS = 1.0
"""Time limit in seconds for finding all embeddings of a shape in a layer."""

_TIES_SECONDS = 4.0
"""Time limit in seconds for finding the embeddings of the fewest executions, of which the one that
moves the fewest bytes is the result."""

_FEW_MAPS = 64
"""Maximum number of axis maps of each component, where the time limits leave no embedding."""

Key = TypeVar("Key")


Call = tuple[tuple[Any, ...], str]
"""The arguments of a task, and its description for messages."""


def keyed_results(
    workers: Workers, function: Callable[..., Any], calls: Mapping[Key, Call]
) -> Iterator[tuple[Key, Any]]:
    """Yield the results of calls of a function in the order in which they end, each with its key.

    Parameters
    ----------
    workers
        The workers that execute the calls.
    function
        A module's function.
    calls
        The calls by key.
    """
    keys = list(calls)
    tasks = [
        Task(str(number), function, arguments, doing)
        for number, (arguments, doing) in enumerate(calls.values())
    ]
    for task, result in workers.results(tasks):
        yield keys[int(task.key)], result


@dataclass(frozen=True)
class Cell:
    """A shape in a layer (on the element types of the instruction), under a constraint set.

    ``spec`` has the element types and memories of the shapes.
    """

    workload: Computation
    constraints: ConstraintSet
    shape: Shape
    spec: HardwareSpec = field(default_factory=template)

    @property
    def instruction(self) -> Instruction:
        """The instruction of the shape."""
        return instruction_of(self.shape, self.spec)

    @property
    def ideal(self) -> int:
        """Executions of an instruction that is useful throughout."""
        return math.ceil(self.workload.macs / self.shape.macs)

    def __str__(self) -> str:
        return f"{self.shape} in {self.workload.name}"


# ------------------------------------------------------------------------------ one embedding


class NoProgramError(TransformError):
    """No embedding of as few executions as the tables say has a program.

    The tables count embeddings, and those of a user's own set may have none.
    """


@dataclass(frozen=True)
class ProvenEmbedding:
    """An embedding whose program is proven, with its overheads.

    ``commuted``: the factors have each other's roles, because in their own nothing fits.
    ``first_ranked``: it is proven to be the first of the ranking among those of as few executions.
    ``estimate`` is that of a described machine, where shapes are compared by time.
    """

    embedding: Embedding
    executions: int
    utilisation: float
    packing_bytes: int
    in_place: tuple[str, ...]
    commuted: bool
    first_ranked: bool
    estimate: Estimate | None = None

    @staticmethod
    def prove(
        candidate: Candidate, cost: Overheads, *, commuted: bool, first_ranked: bool
    ) -> ProvenEmbedding:
        """Prove the program of a candidate and return its embedding.

        Parameters
        ----------
        candidate
            The embedding with its program.
        cost
            Overheads of the program.
        commuted, first_ranked
            As the attributes.
        """
        require(candidate.program)
        return ProvenEmbedding(
            embedding=candidate.embedding,
            executions=cost.calls,
            utilisation=cost.utilisation,
            packing_bytes=cost.packing_bytes,
            in_place=tuple(cost.in_place),
            commuted=commuted,
            first_ranked=first_ranked,
        )


@dataclass(frozen=True)
class FewestExecutions:
    """The fewest executions of a shape in a layer; ``commuted`` as in :class:`ProvenEmbedding`."""

    executions: int
    commuted: bool


def embed(cell: Cell, fewest: FewestExecutions) -> ProvenEmbedding:
    """Return the embedding of a cell whose executions are known to be the fewest.

    Raises :class:`NoProgramError` if the embeddings of as few executions have no programs, and
    :class:`InvariantError` if the search finds none.
    """
    executions = fewest.executions
    constraints = replace(cell.constraints, weights=EXECUTIONS_ONLY)
    if fewest.commuted:
        constraints = constraints.with_commuted_operands()
    cell = replace(cell, constraints=constraints)
    rejected: tuple[str, ...] = ()
    for ranked in _searches(cell, executions):
        best = ranked.ranking.candidates[:1]
        if best and best[0].overheads.calls == executions:
            break
        rejected = rejected or ranked.ranking.refused
    else:
        if rejected:
            raise NoProgramError(f"{cell}: no program of {executions} executions: {rejected[0]}")
        raise InvariantError(f"{cell}: the search finds no embedding of {executions} executions")
    candidate, cost = best[0].candidate, best[0].overheads
    if ranked.search.problem is not None:
        check_embedding(ranked.search.problem, constraints, candidate.embedding)
    commuted, first = fewest.commuted, ranked.proven
    return ProvenEmbedding.prove(candidate, cost, commuted=commuted, first_ranked=first)


def _searches(cell: Cell, executions: int) -> Iterator[RankedSearch]:
    """Yield ranked searches for embeddings of so few executions, until one has a result."""
    instruction = cell.instruction
    ranker = Ranker(Pairing(cell.workload, instruction), cell.constraints, 1, silent)
    limits = SearchLimits(seconds=_ALL_SECONDS)
    # First all embeddings: small problems have few, and only then is the ranking that of `solve`.
    result = find_embeddings(cell.workload, instruction, cell.constraints, limits)
    if result.complete:
        yield ranker.rank(result)
        return
    # With these weights the objective is the overhead in MACs: what is executed beyond the useful.
    ceiling = float(executions * cell.shape.macs - cell.workload.macs)
    # Then those of as few executions that a few seconds find, of which the ranking takes the one
    # that moves the fewest bytes; at last a few of them, whatever time that takes.
    for limits in (SearchLimits(seconds=_TIES_SECONDS), SearchLimits(solutions=_FEW_MAPS)):
        searches = LimitedSearch(ranker, limits).bounded(limits)
        runs = [bounded.below(ceiling, silent) for bounded in searches]
        if not runs:
            continue
        below = merged([run(limits.share(len(runs))) for run in runs])
        ranked = ranker.rank(below, seconds=limits.seconds)
        yield replace(ranked, proven=ranked.proven and below.complete)


# ------------------------------------------------------------------------------ one cell


@dataclass(frozen=True)
class ShapeSearch:
    """The embeddings of a shape in a layer, and the constraint set of the search.

    ``commuted``: with commuted factors.
    """

    result: SearchResult
    constraints: ConstraintSet
    commuted: bool = False


def search_shape(cell: Cell, seconds: float | None) -> ShapeSearch:
    """Return the embeddings of a cell.

    As :func:`~cpembed.driver.solve.solve` does, it commutes the factors where nothing fits in the
    roles that their order gives them.
    """
    instruction = cell.instruction
    constraints = replace(cell.constraints, weights=EXECUTIONS_ONLY)
    limits, clock = SearchLimits(seconds=seconds), Clock(seconds)
    result = find_embeddings(cell.workload, instruction, constraints, limits)
    infeasible = result.status is Status.INFEASIBLE and result.mismatch is None
    may_commute = constraints.get("dataflow") and not constraints.commutes
    if not (infeasible and may_commute):
        return ShapeSearch(result, constraints)
    constraints, limits = constraints.with_commuted_operands(), limits.after(clock.passed)
    result = find_embeddings(cell.workload, instruction, constraints, limits)
    return ShapeSearch(result, constraints, commuted=True)


class ProgramWalk(ABC):
    """Walk that derives the programs of a search in ascending order of their executions.

    ``executions`` is a lower bound of what was not derived yet; ``complete``: nothing is left that
    the walk is for.
    """

    def __init__(self, cell: Cell, search: ShapeSearch) -> None:
        self.executions, self.complete = 0, False
        self._cell, self._search = cell, search

    def run(self, clock: Clock) -> None:
        """Derive programs until the walk is complete or the time is over."""
        left = clock.left()
        try:
            within(None if left is None else left + _GRACE, self._derive_all)
        except OutOfTime:
            if left is None:
                # The time of a caller's limit is over, which is not for this walk to handle.
                raise

    def _derive_all(self) -> None:
        layouts: LayoutCache = {}
        workload, instruction = self._cell.workload, self._cell.instruction
        embeddings = self._search.result.embeddings
        for item in best_first(workload, instruction, embeddings, EXECUTIONS_ONLY):
            check_time()
            if self.ends_at(item.lower.calls):
                break
            self.executions = item.lower.calls
            if self.skips(item.lower):
                continue
            try:
                candidate = derive_candidate(workload, instruction, item.embedding, layouts)
            except TransformError:
                continue
            self.add(candidate)
        self.complete = True

    @abstractmethod
    def ends_at(self, executions: int) -> bool:
        """True if no program of as many executions or more is needed."""

    def skips(self, lower: Lower) -> bool:
        """True if a program of at least these overheads is not needed."""
        return False

    @abstractmethod
    def add(self, candidate: Candidate) -> None:
        """Take in a program."""


class _CheapestProgram(ProgramWalk):
    """The program of the least cost."""

    def __init__(self, cell: Cell, search: ShapeSearch, cost: Cost) -> None:
        super().__init__(cell, search)
        self.best: tuple[Candidate, Overheads] | None = None
        self._cost, self._least = cost, math.inf

    @property
    def bound(self) -> float:
        """A lower bound of the cost of any program."""
        return self._least if self.complete else float(self._cost.combined(self.executions, 0))

    def ends_at(self, executions: int) -> bool:
        return self._cost.combined(executions, 0) >= self._least

    def skips(self, lower: Lower) -> bool:
        return self._cost.combined(lower.calls, lower.packing_bytes) >= self._least

    def add(self, candidate: Candidate) -> None:
        paid = overheads(candidate.program)
        value = self._cost.combined(paid.calls, paid.packing_bytes)
        if value < self._least:
            self._least, self.best = value, (candidate, paid)


@dataclass(frozen=True)
class CellResult:
    """The best embedding of a cell so far, and a lower bound of the cost of any.

    The bound is infinite where the cell has no embedding.
    """

    bound: float
    embedded: ProvenEmbedding | None = None

    def cost(self, cost: Cost) -> float:
        """Return the cost of the best embedding that was found."""
        if self.embedded is None:
            return math.inf
        if self.embedded.estimate is not None:
            return picoseconds(self.embedded.estimate.total_us)
        return cost.combined(self.embedded.executions, self.embedded.packing_bytes)


def picoseconds(us: float) -> float:
    """Return a time as a cost: whole picoseconds."""
    return float(round(us * PICOSECONDS))


def search_cell(cell: Cell, cost: Cost, seconds: float | None) -> CellResult:
    """Return the embedding of the least cost, its program proven.

    Parameters
    ----------
    cell
        The shape and the layer.
    cost
        The measure of embeddings.
    seconds
        Time limit; None for no limit.
    """
    if cost.machine is not None:
        return cost.machine.search(cell, seconds)
    clock = Clock(seconds)
    search = search_shape(cell, seconds)
    result = search.result
    if result.status is Status.INFEASIBLE:
        return CellResult(math.inf)
    walk = _CheapestProgram(cell, search, cost)
    walk.run(clock)
    bound = float(cost.combined(cell.ideal, 0))
    # An interrupted search may lack the embedding of the least cost, so the walk bounds nothing.
    if result.complete:
        bound = max(bound, walk.bound)
    if walk.best is None:
        return CellResult(bound)
    candidate, paid = walk.best
    if result.problem is not None:
        check_embedding(result.problem, search.constraints, candidate.embedding)
    first = bound >= cost.combined(paid.calls, paid.packing_bytes)
    proven = ProvenEmbedding.prove(candidate, paid, commuted=search.commuted, first_ranked=first)
    return CellResult(bound, proven)
