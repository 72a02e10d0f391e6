"""Cells of the cost table by search: a cell is one shape in one layer.

Where packing counts, and under constraint sets whose executions no table holds, cells are searched.
Every cell begins with a lower bound: its fewest executions where tables hold them. The best set by
the bounds is looked up, and the cells that it rests on are searched, which raises their bounds to
costs. A set whose cells are all searched is the best of all, since no other set is below its
bounds; most cells are never searched. When the time is over, the bounds still say how far the best
set that was found can be from the best of all.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from cpembed.cluster import Task, Workers
from cpembed.embedding.checks import check_embedding
from cpembed.embedding.constraint_set import ConstraintSet, Weights
from cpembed.embedding.cpsat import SearchLimits, Status
from cpembed.embedding.embedding import Embedding
from cpembed.embedding.result import SearchResult, merged, silent
from cpembed.embedding.search import find_embeddings
from cpembed.errors import InvariantError, TransformError
from cpembed.exploration.shapes.choice import Columns, Costs, NearSets, SetChoice
from cpembed.exploration.shapes.shape import Shape, instruction_of
from cpembed.ir.computation import Computation
from cpembed.selection.best_first import best_first
from cpembed.selection.candidate import Candidate, derive_candidate
from cpembed.selection.overheads import Overheads, overheads
from cpembed.selection.search import LimitedSearch, RankedSearch, Ranker
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

_BATCH = 4
"""Number of cells that are searched at a time, for each worker."""


Key = TypeVar("Key")


def keyed_results(workers: Workers, tasks: Mapping[Key, Task]) -> Iterator[tuple[Key, Any]]:
    """Yield the results of tasks in the order in which they end, each with the key of its task."""
    keys = {task.key: key for key, task in tasks.items()}
    for task, result in workers.results(list(tasks.values())):
        yield keys[task.key], result


@dataclass(frozen=True)
class Cost:
    """The measure of a shape: executions, and the bytes that packing and unpacking move where
    ``bytes_per_execution`` says how many of these are worth an execution.

    A cost (:meth:`of`) is an integer: executions, or executions times ``bytes_per_execution`` plus
    bytes.
    """

    bytes_per_execution: int | None = None

    @property
    def unit(self) -> int:
        """The cost of one execution."""
        return self.bytes_per_execution or 1

    def of(self, executions: int, packing_bytes: int) -> int:
        """Return the cost of executions with packing."""
        moved = 0 if self.bytes_per_execution is None else packing_bytes
        return executions * self.unit + moved


# ------------------------------------------------------------------------------ one embedding


class NoProgram(TransformError):
    """No embedding of as few executions as the tables say has a program: the tables count
    embeddings, and those of a user's own set may have none."""


@dataclass(frozen=True)
class ProvenEmbedding:
    """An embedding whose program is proven, with its overheads.

    ``commuted``: the factors have each other's roles, because in their own nothing fits.
    ``first_ranked``: it is proven to be the first of the ranking among those of as few executions.
    """

    embedding: Embedding
    executions: int
    utilisation: float
    packing_bytes: int
    in_place: tuple[str, ...]
    commuted: bool
    first_ranked: bool

    @staticmethod
    def of(
        candidate: Candidate, cost: Overheads, *, commuted: bool, first_ranked: bool
    ) -> ProvenEmbedding:
        """Prove the program of a candidate."""
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


def embed(
    workload: Computation, constraints: ConstraintSet, shape: Shape, fewest: FewestExecutions
) -> ProvenEmbedding:
    """Return the embedding of a shape whose executions are known to be the fewest.

    Parameters
    ----------
    workload
        The layer, on the element types of the instruction.
    constraints
        The set under which the layer is embedded.
    shape
        The shape of the instruction.
    fewest
        The executions that the tables say.

    Raises
    ------
    NoProgram
        If the embeddings of as few executions have no programs.
    InvariantError
        If the search finds no embedding of as few executions.
    """
    executions, commuted = fewest.executions, fewest.commuted
    ranked_set = replace(constraints, weights=EXECUTIONS_ONLY)
    if commuted:
        ranked_set = ranked_set.with_exchanged_factors()
    rejected: tuple[str, ...] = ()
    for search in _searches(workload, ranked_set, shape, executions):
        best = search.ranking.candidates[:1]
        if best and best[0].overheads.calls == executions:
            break
        rejected = rejected or search.ranking.refused
    else:
        cell = f"{shape} in {workload.name}"
        if rejected:
            raise NoProgram(f"{cell}: no program of {executions} executions: {rejected[0]}")
        raise InvariantError(f"{cell}: the search finds no embedding of {executions} executions")
    candidate = best[0].candidate
    if search.found.problem is not None:
        check_embedding(search.found.problem, ranked_set, candidate.embedding)
    return ProvenEmbedding.of(
        candidate, best[0].overheads, commuted=commuted, first_ranked=search.proven
    )


def _searches(
    workload: Computation, constraints: ConstraintSet, shape: Shape, executions: int
) -> Iterator[RankedSearch]:
    """Yield searches until one has a result: of all embeddings; of those of as few executions, as
    many as a few seconds find; of the first of these, whatever time it takes."""
    instruction = instruction_of(shape)
    ranker = Ranker(workload, instruction, constraints, 1, silent)
    result = find_embeddings(workload, instruction, constraints, SearchLimits(seconds=_ALL_SECONDS))
    if result.complete:
        yield ranker.rank(result)
        return
    ceiling = float(executions * shape.macs - workload.macs)
    for limits in (SearchLimits(seconds=_TIES_SECONDS), SearchLimits(solutions=_FEW_MAPS)):
        runs = [
            bounded.below(ceiling, silent)
            for bounded in LimitedSearch(ranker, limits).bounded(limits)
        ]
        if not runs:
            continue
        below = merged([run(limits.share(len(runs))) for run in runs])
        ranked = ranker.rank(below, seconds=limits.seconds)
        yield replace(ranked, proven=ranked.proven and below.complete)


# ------------------------------------------------------------------------------ one cell


@dataclass(frozen=True)
class ShapeSearch:
    """The embeddings of a shape in a layer, and the constraint set under which they were found;
    ``commuted``: with commuted factors."""

    result: SearchResult
    constraints: ConstraintSet
    commuted: bool = False


def search_shape(
    workload: Computation, constraints: ConstraintSet, shape: Shape, seconds: float | None
) -> ShapeSearch:
    """Return the embeddings of a shape in a layer.

    As :func:`~cpembed.api.solve.solve` does, the factors are commuted where nothing fits in the
    roles that their order gives them.

    Parameters
    ----------
    workload
        The layer, on the element types of the instruction.
    constraints
        The set under which the layer is embedded.
    shape
        The shape of the instruction.
    seconds
        Time limit of all searches; None for no limit.
    """
    instruction = instruction_of(shape)
    ranked_set = replace(constraints, weights=EXECUTIONS_ONLY)
    limits, clock = SearchLimits(seconds=seconds), Clock(seconds)
    result = find_embeddings(workload, instruction, ranked_set, limits)
    infeasible = result.status is Status.INFEASIBLE and result.mismatch is None
    may_commute = ranked_set.get("dataflow") and not ranked_set.exchanges_factors
    if not (infeasible and may_commute):
        return ShapeSearch(result, ranked_set)
    commuted_set = ranked_set.with_exchanged_factors()
    result = find_embeddings(workload, instruction, commuted_set, limits.after(clock.passed))
    return ShapeSearch(result, commuted_set, commuted=True)


class ProgramWalk(ABC):
    """Derives the programs of a search in ascending order of their executions.

    ``executions`` is a lower bound of what was not derived yet; ``complete``: nothing is left that
    the walk is for.
    """

    def __init__(self, workload: Computation, shape: Shape, search: ShapeSearch) -> None:
        self.executions, self.complete = 0, False
        self._workload, self._shape, self._search = workload, shape, search

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
        instruction = instruction_of(self._shape)
        embeddings = self._search.result.embeddings
        for item in best_first(self._workload, instruction, embeddings, EXECUTIONS_ONLY):
            check_time()
            if self.ends_at(item.lower.calls):
                break
            self.executions = item.lower.calls
            if self.skips(item.lower):
                continue
            try:
                candidate = derive_candidate(self._workload, instruction, item.embedding, layouts)
            except TransformError:
                continue
            self.add(candidate)
        self.complete = True

    @abstractmethod
    def ends_at(self, executions: int) -> bool:
        """True if no program of as many executions or more is needed."""

    def skips(self, lower: Overheads) -> bool:
        """True if a program of at least these overheads is not needed."""
        return False

    @abstractmethod
    def add(self, candidate: Candidate) -> None:
        """Take in a program."""


class _CheapestProgram(ProgramWalk):
    """The program of the least cost."""

    def __init__(
        self, workload: Computation, shape: Shape, search: ShapeSearch, cost: Cost
    ) -> None:
        super().__init__(workload, shape, search)
        self.best: tuple[Candidate, Overheads] | None = None
        self._cost, self._least = cost, math.inf

    @property
    def bound(self) -> float:
        """A lower bound of the cost of any program."""
        return self._least if self.complete else float(self._cost.of(self.executions, 0))

    def ends_at(self, executions: int) -> bool:
        return self._cost.of(executions, 0) >= self._least

    def skips(self, lower: Overheads) -> bool:
        return self._cost.of(lower.calls, lower.packing_bytes) >= self._least

    def add(self, candidate: Candidate) -> None:
        paid = overheads(candidate.program)
        value = self._cost.of(paid.calls, paid.packing_bytes)
        if value < self._least:
            self._least, self.best = value, (candidate, paid)


@dataclass(frozen=True)
class Cell:
    """The result of a search of a shape in a layer: the best embedding that was found, and a lower
    bound of the cost of any, infinite where there is none."""

    bound: float
    embedded: ProvenEmbedding | None = None

    def cost(self, cost: Cost) -> float:
        """Return the cost of the best embedding that was found."""
        if self.embedded is None:
            return math.inf
        return cost.of(self.embedded.executions, self.embedded.packing_bytes)


def search_cell(
    workload: Computation,
    constraints: ConstraintSet,
    shape: Shape,
    cost: Cost,
    seconds: float | None,
) -> Cell:
    """Return the embedding of the least cost, its program proven.

    Parameters
    ----------
    workload
        The layer, on the element types of the instruction.
    constraints
        The set under which the layer is embedded.
    shape
        The shape of the instruction.
    cost
        The measure of embeddings.
    seconds
        Time limit; None for no limit.
    """
    clock = Clock(seconds)
    search = search_shape(workload, constraints, shape, seconds)
    result = search.result
    if result.status is Status.INFEASIBLE:
        return Cell(math.inf)
    walk = _CheapestProgram(workload, shape, search, cost)
    walk.run(clock)
    bound = float(math.ceil(workload.macs / shape.macs) * cost.unit)
    if result.complete:
        bound = max(bound, walk.bound)
    if walk.best is None:
        return Cell(bound)
    candidate, paid = walk.best
    if result.problem is not None:
        check_embedding(result.problem, search.constraints, candidate.embedding)
    first = bound >= cost.of(paid.calls, paid.packing_bytes)
    proven = ProvenEmbedding.of(candidate, paid, commuted=search.commuted, first_ranked=first)
    return Cell(bound, proven)


# ------------------------------------------------------------------------------ the best sets


@dataclass
class CellTable:
    """Lower ``bounds`` and ``costs`` of a row per computation and a column per shape.

    The costs are of the best embeddings that were found, infinite where none was; ``exact`` rows
    need no search, because their bounds are costs. ``weights`` say how often the network has a row.
    """

    bounds: NDArray[np.float64]
    weights: NDArray[np.float64]
    exact: NDArray[np.bool_]
    costs: NDArray[np.float64] = field(init=False)
    searched: dict[tuple[int, int], Cell] = field(default_factory=dict[tuple[int, int], Cell])

    def __post_init__(self) -> None:
        self.costs = np.where(self.exact[:, None], self.bounds, np.inf)

    def enter(self, place: tuple[int, int], cell: Cell, cost: Cost) -> None:
        """Enter what the search of a cell came to."""
        self.searched[place] = cell
        self.bounds[place] = max(self.bounds[place], cell.bound)
        self.costs[place] = cell.cost(cost)
        if math.isfinite(self.costs[place]):
            self.bounds[place] = min(self.bounds[place], self.costs[place])

    @property
    def weighted_bounds(self) -> Costs:
        """Lower bounds, each as often as the network has its row."""
        return self.bounds * self.weights[:, None]

    @property
    def weighted_costs(self) -> Costs:
        """Costs, each as often as the network has its row."""
        return self.costs * self.weights[:, None]

    def open_cells(self, columns: Columns) -> list[tuple[int, int]]:
        """Return the cells that a set rests on and that are not searched, the most costly first."""
        best: list[int] = self.bounds[:, columns].argmin(axis=1).tolist()
        cells = [(row, columns[place]) for row, place in enumerate(best)]
        unsearched = [c for c in cells if c not in self.searched and not self.exact[c[0]]]
        return sorted(unsearched, key=lambda cell: -self.bounds[cell] * self.weights[cell[0]])

    def is_settled(self, columns: Columns) -> bool:
        """True if no embeddings of a set can cost less than those that were found."""
        least = self.bounds[:, columns].min(axis=1)
        return bool((self.costs[:, columns].min(axis=1) <= least).all())


@dataclass(frozen=True, kw_only=True)
class CellSearch:
    """Searches cells by workers: the computation of each row and the shape of each column, under a
    constraint set, by a cost; ``report`` is called with the number of cells searched."""

    workloads: Sequence[Computation]
    shape: Callable[[int], Shape]
    constraints: ConstraintSet
    cost: Cost
    workers: Workers
    clock: Clock
    report: Callable[[int], None]

    @property
    def is_late(self) -> bool:
        """True if the time is over."""
        left = self.clock.left()
        return left is not None and left <= 0

    def _task(self, row: int, column: int) -> Task:
        shape, workload = self.shape(column), self.workloads[row]
        left = self.clock.left()
        seconds = None if left is None else max(left, MIN_SECONDS)
        arguments = (workload, self.constraints, shape, self.cost, seconds)
        doing = f"embedding {shape} in {workload.name}"
        return Task(f"cell {row} {column}", search_cell, arguments, doing)

    def run(self, table: CellTable, cells: Sequence[tuple[int, int]]) -> None:
        """Search a batch of the first cells, as their costs may make the rest unnecessary."""
        batch = cells[: _BATCH * self.workers.count]
        tasks = {place: self._task(*place) for place in batch}
        for place, cell in keyed_results(self.workers, tasks):
            table.enter(place, cell, self.cost)
            self.report(len(table.searched))


def best_by_search(
    table: CellTable, search: CellSearch, choose: Callable[[Costs], SetChoice]
) -> SetChoice:
    """Return the best set and the runner-up, or the best of what was found when the time is over.

    Parameters
    ----------
    table
        The table; cells that are searched are entered.
    search
        How cells are searched.
    choose
        The best set and the runner-up by weighted costs.
    """
    while True:
        choice = choose(table.weighted_bounds)
        if not choice.sets:
            return choice
        open_cells: list[tuple[int, int]] = []
        for columns in choice.sets:
            # The runner-up's cells only where the best set has none left.
            open_cells = open_cells or table.open_cells(columns)
        if not open_cells and all(map(table.is_settled, choice.sets)):
            return choice
        if not open_cells or search.is_late:
            break
        search.run(table, open_cells)
    by_costs = choose(table.weighted_costs)
    least = choice.costs[-1] if len(choice.costs) > 1 else math.inf
    proven = len(by_costs.costs) > 1 and by_costs.costs[1] <= least
    return SetChoice(by_costs.sets, by_costs.costs, choice.bound, proven)


def near_by_search(
    table: CellTable, search: CellSearch, near: Callable[[Costs], NearSets]
) -> NearSets:
    """Return the sets within a limit: all of them, or those found when the time is over.

    Parameters
    ----------
    table
        The table; cells that are searched are entered.
    search
        How cells are searched.
    near
        The sets within the limit by weighted costs.
    """
    while True:
        sets = near(table.weighted_bounds)
        open_cells = list(
            dict.fromkeys(cell for columns, _ in sets.sets for cell in table.open_cells(columns))
        )
        if not open_cells and all(table.is_settled(columns) for columns, _ in sets.sets):
            return sets
        if not open_cells or search.is_late:
            return replace(near(table.weighted_costs), complete=False)
        search.run(table, open_cells)
