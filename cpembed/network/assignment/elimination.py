"""Cost networks, and their exact reduction by eliminating variables.

A cost network is a sum of tables over variables with few values. Eliminating a variable replaces
the tables that mention it by one table over their other variables, which holds the least cost over
the values of the eliminated one. That value is looked up once the others are fixed. For a variable
with one or two neighbours this is the reduction of degree one or two of a partitioned Boolean
quadratic problem. With more neighbours it is exact as well, but the table grows.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Costs = NDArray[np.float64]


@dataclass(frozen=True)
class Table:
    """Costs over the values of variables; infinite for impossible combinations."""

    scope: tuple[int, ...]
    costs: Costs


@dataclass(frozen=True)
class SharedConversions:
    """Conversions of a tensor with several readers, each paid once.

    Attributes
    ----------
    written : int
        Variable of the written layout.
    costs : array of shape (written layouts, needed layouts)
        Cost of each conversion.
    readers : tuple of int
        Variables of the readers.
    needs : tuple of tuple of int
        Column of ``costs`` that each value of a reader needs; -1 for none.
    """

    written: int
    costs: Costs
    readers: tuple[int, ...]
    needs: tuple[tuple[int, ...], ...]

    @property
    def scope(self) -> tuple[int, ...]:
        return (self.written, *self.readers)

    @property
    def entries(self) -> int:
        """Number of entries of one table over all variables."""
        return self.costs.shape[0] * math.prod(len(needs) for needs in self.needs)

    def as_table(self) -> Table:
        """Return one table over the written layout and the readers that have a choice."""
        # Axis 0 is the written layout, axis k the k-th reader with several values.
        choosing = [k for k, needs in enumerate(self.needs) if len(needs) > 1]
        always = {needs[0] for needs in self.needs if len(needs) == 1}
        rank = 1 + len(choosing)
        total = np.zeros((1,) * rank)
        for column, costs in enumerate(self.costs.T):
            # True where some reader needs the column's layout, which is then paid once.
            needed = np.full((1,) * rank, column in always)
            for axis, reader in enumerate(choosing, 1):
                shape_of_reader = [1] * rank
                shape_of_reader[axis] = -1
                needed = needed | (np.array(self.needs[reader]) == column).reshape(shape_of_reader)
            total = total + np.where(needed, costs.reshape(-1, *[1] * len(choosing)), 0)
        shape = (self.costs.shape[0], *(len(self.needs[reader]) for reader in choosing))
        scope = (self.written, *(self.readers[reader] for reader in choosing))
        return Table(scope, np.ascontiguousarray(np.broadcast_to(total, shape)))

    def as_pairs(self, first: int) -> list[Table]:
        """Return tables over pairs of variables, with a new variable per column.

        The new variables are numbered from ``first``; each is 1 if the column's layout exists.
        """
        tables: list[Table] = []
        for column, costs in enumerate(self.costs.T):
            exists = first + column
            tables.append(Table((self.written, exists), np.stack([np.zeros_like(costs), costs], 1)))
            for reader, needs in zip(self.readers, self.needs, strict=True):
                missing = np.where(np.array(needs) == column, np.inf, 0.0)
                if missing.any():
                    free = np.zeros_like(missing)
                    tables.append(Table((reader, exists), np.stack([missing, free], 1)))
        return tables


@dataclass(frozen=True)
class CostNetwork:
    """Sum of tables and shared conversions that is to be minimized.

    ``sizes`` is the number of values of each variable.
    """

    sizes: tuple[int, ...]
    tables: tuple[Table, ...]
    shared: tuple[SharedConversions, ...] = ()

    @property
    def entries(self) -> int:
        """Number of entries of all tables."""
        return sum(table.costs.size for table in self.tables) + sum(
            shared.costs.size + sum(map(len, shared.needs)) for shared in self.shared
        )

    def as_tables(self) -> CostNetwork:
        """Return the network without shared conversions; new variables come last.

        Each becomes one table, or pairs if that table would have more entries than the elimination
        of a new variable per column would need.
        """
        sizes, tables = list(self.sizes), list(self.tables)
        for shared in self.shared:
            rows, columns = shared.costs.shape
            if shared.entries <= rows * 2**columns:
                tables.append(shared.as_table())
            else:
                tables += shared.as_pairs(len(sizes))
                sizes += [2] * columns
        return CostNetwork(tuple(sizes), tuple(tables))


@dataclass(frozen=True)
class Bounds:
    """Limits of an elimination.

    Attributes
    ----------
    joined, result : int
        Maximum number of entries of a table before and after a variable leaves it.
    total : int
        Maximum number of entries of all joined tables.
    """

    joined: int
    result: int
    total: int


@dataclass(frozen=True)
class Order:
    """Variables in the order of their elimination; ``complete`` if these are all variables."""

    variables: tuple[int, ...]
    complete: bool


def plan(network: CostNetwork, bounds: Bounds) -> Order:
    """Order variables within bounds: next is always the one that leaves the smallest table."""
    sizes = network.sizes
    neighbours: list[set[int]] = [set() for _ in sizes]
    for part in (*network.tables, *network.shared):
        choosing = [variable for variable in part.scope if sizes[variable] > 1]
        for variable in choosing:
            neighbours[variable].update(choosing)
    for variable, adjacent in enumerate(neighbours):
        adjacent.discard(variable)

    def size(variable: int) -> int:
        return math.prod(sizes[neighbour] for neighbour in neighbours[variable])

    heap = [(size(variable), variable) for variable in range(len(sizes))]
    heapq.heapify(heap)
    remaining, order, total = set(range(len(sizes))), list[int](), 0
    while heap:
        result, variable = heapq.heappop(heap)
        # Sizes change when neighbours leave, and outdated entries stay in the heap.
        if variable not in remaining or result != size(variable):
            continue
        joined = result * sizes[variable]
        if result > bounds.result or joined > bounds.joined or total + joined > bounds.total:
            continue
        total += joined
        remaining.remove(variable)
        order.append(variable)
        adjacent = neighbours[variable]
        # The new table ties all neighbours of the eliminated variable to each other.
        for neighbour in adjacent:
            neighbours[neighbour] |= adjacent
            neighbours[neighbour] -= {variable, neighbour}
        for neighbour in adjacent:
            heapq.heappush(heap, (size(neighbour), neighbour))
    return Order(tuple(order), not remaining)


@dataclass(frozen=True)
class _Step:
    """Eliminated variable, and its best value for each combination of its neighbours' values."""

    variable: int
    scope: tuple[int, ...]
    best: NDArray[np.intp]


@dataclass(frozen=True)
class Reduced:
    """Result of an elimination.

    Attributes
    ----------
    rest : CostNetwork
        What remains, with the original numbers of variables.
    constant : float
        Least cost of eliminated parts that depend on no other variable; infinite if impossible.
    steps : tuple of _Step
        Eliminations in their order.
    """

    rest: CostNetwork
    constant: float
    steps: tuple[_Step, ...]

    @property
    def variables(self) -> list[int]:
        """Variables that were not eliminated."""
        eliminated = {step.variable for step in self.steps}
        return [k for k in range(len(self.rest.sizes)) if k not in eliminated]

    def complete(self, values: Sequence[int]) -> list[int]:
        """Return values of all variables; of ``values`` only the remaining variables' are read."""
        complete = list(values)
        # A step looks its value up by variables that were eliminated later, or not at all.
        for step in reversed(self.steps):
            complete[step.variable] = int(step.best[tuple(complete[k] for k in step.scope)])
        return complete


def eliminate(network: CostNetwork, order: Order) -> Reduced:
    """Eliminate variables in an order."""
    state = _State(network.sizes)
    for part in (*network.tables, *network.shared):
        state.add(part)
    steps = tuple(state.eliminate(variable) for variable in order.variables)
    remaining = state.parts.values()
    tables = tuple(part for part in remaining if isinstance(part, Table))
    shared = tuple(part for part in remaining if isinstance(part, SharedConversions))
    return Reduced(CostNetwork(network.sizes, tables, shared), state.constant, steps)


@dataclass
class _State:
    """Network during elimination; ``numbers_of`` has the numbers of each variable's parts."""

    sizes: tuple[int, ...]
    parts: dict[int, Table | SharedConversions] = field(
        default_factory=dict[int, Table | SharedConversions]
    )
    numbers_of: dict[int, set[int]] = field(default_factory=dict[int, set[int]])
    constant: float = 0.0
    last_number: int = 0

    def add(self, part: Table | SharedConversions) -> None:
        """Add a part; it is a constant unless a variable has several values."""
        choosing = self.choosing(part.scope)
        if not choosing:
            self.constant += float(self.squeezed(part).costs)
            return
        self.last_number += 1
        self.parts[self.last_number] = self.squeezed(part) if isinstance(part, Table) else part
        for variable in choosing:
            self.numbers_of.setdefault(variable, set()).add(self.last_number)

    def choosing(self, scope: tuple[int, ...]) -> tuple[int, ...]:
        """Return the variables that have several values."""
        return tuple(variable for variable in scope if self.sizes[variable] > 1)

    def squeezed(self, part: Table | SharedConversions) -> Table:
        """Return a part as a table without variables of one value."""
        # A node may have many ports, but an array of numpy has at most 64 axes.
        table = part.as_table() if isinstance(part, SharedConversions) else part
        return Table(self.choosing(table.scope), table.costs.squeeze())

    def take(self, variable: int) -> list[Table]:
        """Remove and return the tables that mention a variable."""
        removed: list[Table] = []
        # In the order in which they were added, so that sums are rounded alike in every run.
        for number in sorted(self.numbers_of.get(variable, ())):
            part = self.parts.pop(number)
            for neighbour in self.choosing(part.scope):
                self.numbers_of[neighbour].discard(number)
            removed.append(self.squeezed(part))
        return removed

    def eliminate(self, variable: int) -> _Step:
        """Replace the tables of a variable by their sum's minimum over its values."""
        removed = self.take(variable)
        scope = tuple(dict.fromkeys([variable, *(k for table in removed for k in table.scope)]))
        joined = np.zeros(tuple(self.sizes[k] for k in scope))
        for table in removed:
            joined += _aligned(table, scope)
        self.add(Table(scope[1:], np.asarray(joined.min(axis=0))))
        return _Step(variable, scope[1:], np.asarray(joined.argmin(axis=0)))


def _aligned(table: Table, scope: tuple[int, ...]) -> Costs:
    """Return a table's costs with the axes of a larger scope, of size 1 where it has none."""
    places = [scope.index(variable) for variable in table.scope]
    order = sorted(range(len(places)), key=places.__getitem__)
    shape = [1] * len(scope)
    for place, size in zip(places, table.costs.shape, strict=True):
        shape[place] = size
    return table.costs.transpose(order).reshape(shape)
