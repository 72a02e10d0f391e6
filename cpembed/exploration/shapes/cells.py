"""Cells of the cost table by search: a cell is one shape in one layer.

Where packing counts, and under constraint sets whose executions no table holds, cells are searched.
Every cell begins with a lower bound. The best set by the bounds is looked up, and the cells that it
rests on are searched, which raises their bounds to costs. A set whose cells are all searched is the
best of all, since no other set is below its bounds; most cells are never searched.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

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
from cpembed.exploration.shapes.choice import Columns, Costs, NearSets, SetChoice
from cpembed.exploration.shapes.shape import PICOSECONDS, Cost, Shape, instruction_of
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

_BATCH = 4
"""Number of cells that are searched at a time, for each worker."""


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

    ``spec`` has the element types and memories of the shapes; None for the template.
    """

    workload: Computation
    constraints: ConstraintSet
    shape: Shape
    spec: HardwareSpec | None = None

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


# ------------------------------------------------------------------------------ the best sets


@dataclass(frozen=True, kw_only=True)
class CellSearch:
    """The parameters of searches of cells.

    ``workloads`` holds the computation of each row, ``shape`` returns the shape of a column;
    ``report`` is called with the number of cells searched.
    """

    workloads: Sequence[Computation]
    shape: Callable[[int], Shape]
    constraints: ConstraintSet
    cost: Cost
    workers: Workers
    clock: Clock
    report: Callable[[int], None]
    spec: HardwareSpec | None = None


class CellTable:
    """Lower bounds and costs of cells, a row per computation and a column per shape.

    Searches raise the ``bounds``; those of ``exact`` rows are costs, which need no search.
    ``weights`` say how often the network has each row.
    """

    def __init__(
        self,
        bounds: NDArray[np.float64],
        exact: NDArray[np.bool_],
        weights: NDArray[np.float64],
        search: CellSearch,
    ) -> None:
        self.results: dict[tuple[int, int], CellResult] = {}
        self._bounds, self._exact = bounds, exact
        self._initial = bounds.copy()
        self._weights, self._search = weights, search
        # Costs of the best embeddings that were found; infinite where none was.
        self._costs = np.where(exact[:, None], bounds, np.inf)

    @property
    def weighted_costs(self) -> Costs:
        """Costs of the embeddings that were found, each as often as the network has its row."""
        return self._costs * self._weights[:, None]

    def best(self, choose: Callable[[Costs], SetChoice]) -> SetChoice:
        """Return the best set and the runner-up, or the best ones when the time is over.

        ``choose`` returns those by weighted costs.
        """
        while True:
            choice = choose(self._bounds * self._weights[:, None])
            # The runner-up's cells only where the best set has none left.
            places: list[tuple[int, int]] = []
            for columns in choice.sets:
                places = places or self._open_places(columns)
            if not places and all(map(self._is_settled, choice.sets)):
                return choice
            if not places or self._search.clock.is_over:
                break
            self._run(places)
        # The time is over. Costs are of embeddings that exist; the bounds still say how far the
        # best of them can be from the best of all.
        by_costs = choose(self.weighted_costs)
        least = choice.costs[-1] if len(choice.costs) > 1 else math.inf
        proven = len(by_costs.costs) > 1 and by_costs.costs[1] <= least
        return SetChoice(by_costs.sets, by_costs.costs, choice.bound, proven)

    def near(self, choose: Callable[[Costs], NearSets]) -> NearSets:
        """Return the sets within a limit, or those so far when the time is over.

        ``choose`` returns those by weighted costs.
        """
        while True:
            near = choose(self._bounds * self._weights[:, None])
            sets = [columns for columns, _ in near.sets]
            places = list(dict.fromkeys(place for s in sets for place in self._open_places(s)))
            if not places and all(map(self._is_settled, sets)):
                return near
            if not places or self._search.clock.is_over:
                return replace(choose(self.weighted_costs), complete=False)
            self._run(places)

    def _open_places(self, columns: Columns) -> list[tuple[int, int]]:
        """Return the cells that a set rests on and that are not searched, the most costly first."""
        best: list[int] = self._bounds[:, columns].argmin(axis=1).tolist()
        places = [(row, columns[n]) for row, n in enumerate(best)]
        unsearched = [p for p in places if p not in self.results and not self._exact[p[0]]]
        return sorted(unsearched, key=lambda place: -self._bounds[place] * self._weights[place[0]])

    def _is_settled(self, columns: Columns) -> bool:
        """True if no embeddings of a set can cost less than those that were found."""
        least = self._bounds[:, columns].min(axis=1)
        return bool((self._costs[:, columns].min(axis=1) <= least).all())

    def _run(self, places: Sequence[tuple[int, int]]) -> None:
        """Search a batch of the first cells, which may make the rest unnecessary."""
        search = self._search
        left = search.clock.left()
        seconds = None if left is None else max(left, MIN_SECONDS)
        calls: dict[tuple[int, int], Call] = {}
        for row, column in places[: _BATCH * search.workers.count]:
            shape = search.shape(column)
            cell = Cell(search.workloads[row], search.constraints, shape, search.spec)
            calls[row, column] = (cell, search.cost, seconds), f"embedding {cell}"
        for place, result in keyed_results(search.workers, search_cell, calls):
            self.results[place] = result
            value = result.cost(search.cost)
            # Times do not come from the tables: a bound above one would make a proof worthless.
            if search.cost.is_time and value < self._initial[place]:
                raise InvariantError(f"{search.workloads[place[0]].name}: {value} ps, below the "
                                     f"lower bound {self._initial[place]} ps")  # fmt: skip
            # A search that ran out of time may bound less than the table does.
            self._bounds[place] = max(self._bounds[place], result.bound)
            self._costs[place] = result.cost(search.cost)
            if math.isfinite(self._costs[place]):
                self._bounds[place] = min(self._bounds[place], self._costs[place])
            search.report(len(self.results))
