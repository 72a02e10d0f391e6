"""Exact reductions of a cost network: variables are eliminated one after another.

Eliminating a variable replaces the tables that mention it by one over their other variables, which
holds the least cost that its values can have; the value is looked up again once the others are
known. Of a variable with one or two neighbours this is the reduction of degree one or two of a
partitioned Boolean quadratic problem; with more it is exact as well, and only its table grows.
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
    """Costs over the values of different variables; infinite where they exclude each other."""

    scope: tuple[int, ...]
    costs: Costs


@dataclass(frozen=True)
class Shared:
    """The conversions of a tensor with several readers. ``costs``: from each value of variable
    ``written`` (row) to each layout that is needed (column). ``needs``: of each reader's variable
    the columns that its values need, -1 where one needs none. A column that several readers need is
    paid once."""

    written: int
    costs: Costs
    readers: tuple[int, ...]
    needs: tuple[tuple[int, ...], ...]

    @property
    def scope(self) -> tuple[int, ...]:
        return (self.written, *self.readers)

    @property
    def entries(self) -> int:
        """Of the one table over all variables."""
        return self.costs.shape[0] * math.prod(len(needs) for needs in self.needs)

    def whole(self) -> Table:
        """As one table, over the written layout and the readers that have a choice."""
        choosing = [k for k, needs in enumerate(self.needs) if len(needs) > 1]
        always = {needs[0] for needs in self.needs if len(needs) == 1}
        rank = 1 + len(choosing)
        total = np.zeros((1,) * rank)
        for column, costs in enumerate(self.costs.T):
            needed = np.full((1,) * rank, column in always)
            for axis, reader in enumerate(choosing, 1):
                at = [1] * rank
                at[axis] = -1
                needed = needed | (np.array(self.needs[reader]) == column).reshape(at)
            total = total + np.where(needed, costs.reshape(-1, *[1] * len(choosing)), 0)
        shape = (self.costs.shape[0], *(len(self.needs[reader]) for reader in choosing))
        scope = (self.written, *(self.readers[reader] for reader in choosing))
        return Table(scope, np.ascontiguousarray(np.broadcast_to(total, shape)))

    def pairs(self, first: int) -> list[Table]:
        """As tables over two variables each, with a new variable a column, numbered from
        ``first``: 1 where the layout exists."""
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
    """``sizes``: of each variable the number of its values. To be minimised: the sum of all."""

    sizes: tuple[int, ...]
    tables: tuple[Table, ...]
    shared: tuple[Shared, ...] = ()

    @property
    def entries(self) -> int:
        return sum(table.costs.size for table in self.tables) + sum(
            shared.costs.size + sum(map(len, shared.needs)) for shared in self.shared
        )

    def as_tables(self) -> CostNetwork:
        """Without shared conversions: each as one table or, where that has more entries than a
        variable a layout would lead to, as pairs. New variables come after the others."""
        sizes, tables = list(self.sizes), list(self.tables)
        for shared in self.shared:
            rows, columns = shared.costs.shape
            if shared.entries <= rows * 2**columns:
                tables.append(shared.whole())
            else:
                tables += shared.pairs(len(sizes))
                sizes += [2] * columns
        return CostNetwork(tuple(sizes), tuple(tables))


@dataclass(frozen=True)
class Bounds:
    """What elimination may take. ``joined`` and ``result``: entries of the table before and after
    a variable leaves it; ``total``: of all tables before."""

    joined: int
    result: int
    total: int


@dataclass(frozen=True)
class Order:
    """The variables to eliminate, and whether they are all."""

    variables: tuple[int, ...]
    complete: bool


def plan(network: CostNetwork, bounds: Bounds) -> Order:
    """The order in which each variable leaves the smallest table of those that remain, for as
    long as the bounds hold."""
    sizes = network.sizes
    beside: list[set[int]] = [set() for _ in sizes]
    for part in (*network.tables, *network.shared):
        choosing = [variable for variable in part.scope if sizes[variable] > 1]
        for variable in choosing:
            beside[variable].update(choosing)
    for variable, others in enumerate(beside):
        others.discard(variable)

    def size(variable: int) -> int:
        return math.prod(sizes[other] for other in beside[variable])

    heap = [(size(variable), variable) for variable in range(len(sizes))]
    heapq.heapify(heap)
    left, order, total = set(range(len(sizes))), list[int](), 0
    while heap:
        result, variable = heapq.heappop(heap)
        if variable not in left or result != size(variable):
            continue
        joined = result * sizes[variable]
        if result > bounds.result or joined > bounds.joined or total + joined > bounds.total:
            continue
        total += joined
        left.remove(variable)
        order.append(variable)
        others = beside[variable]
        for other in others:
            beside[other] |= others
            beside[other] -= {variable, other}
        for other in others:
            heapq.heappush(heap, (size(other), other))
    return Order(tuple(order), not left)


@dataclass(frozen=True)
class _Step:
    """``best``: the value of the variable for each combination of those of its neighbours."""

    variable: int
    scope: tuple[int, ...]
    best: NDArray[np.intp]


@dataclass(frozen=True)
class Reduced:
    """What remains after elimination, over the same variables. ``constant``: the least cost of
    what has been eliminated apart from the rest, infinite where nothing is possible."""

    rest: CostNetwork
    constant: float
    steps: tuple[_Step, ...]

    @property
    def variables(self) -> list[int]:
        """Those not eliminated."""
        gone = {step.variable for step in self.steps}
        return [k for k in range(len(self.rest.sizes)) if k not in gone]

    def complete(self, values: Sequence[int]) -> list[int]:
        """Values of all variables from those not eliminated (the others' are not read)."""
        found = list(values)
        for step in reversed(self.steps):
            found[step.variable] = int(step.best[tuple(found[k] for k in step.scope)])
        return found


def eliminate(network: CostNetwork, order: Order) -> Reduced:
    """The network without the variables of an order."""
    state = _State(network.sizes)
    for part in (*network.tables, *network.shared):
        state.add(part)
    steps = tuple(state.eliminate(variable) for variable in order.variables)
    left = state.parts.values()
    tables = tuple(part for part in left if isinstance(part, Table))
    shared = tuple(part for part in left if isinstance(part, Shared))
    return Reduced(CostNetwork(network.sizes, tables, shared), state.constant, steps)


@dataclass
class _State:
    """What is left of a network; ``of_variable``: the numbers of the parts that mention each."""

    sizes: tuple[int, ...]
    parts: dict[int, Table | Shared] = field(default_factory=dict[int, Table | Shared])
    of_variable: dict[int, set[int]] = field(default_factory=dict[int, set[int]])
    constant: float = 0.0
    numbered: int = 0

    def add(self, part: Table | Shared) -> None:
        """What no variable of several values is part of is a constant."""
        choosing = self.choosing(part.scope)
        if not choosing:
            self.constant += float(self.squeezed(part).costs)
            return
        self.numbered += 1
        self.parts[self.numbered] = self.squeezed(part) if isinstance(part, Table) else part
        for variable in choosing:
            self.of_variable.setdefault(variable, set()).add(self.numbered)

    def choosing(self, scope: tuple[int, ...]) -> tuple[int, ...]:
        """The variables that have several values."""
        return tuple(variable for variable in scope if self.sizes[variable] > 1)

    def squeezed(self, part: Table | Shared) -> Table:
        """One table; variables of one value are left out, since arrays have at most 64 axes."""
        table = part.whole() if isinstance(part, Shared) else part
        return Table(self.choosing(table.scope), table.costs.squeeze())

    def take(self, variable: int) -> list[Table]:
        """The tables that mention a variable, which are no longer part of the network."""
        taken: list[Table] = []
        for number in sorted(self.of_variable.get(variable, ())):
            part = self.parts.pop(number)
            for other in self.choosing(part.scope):
                self.of_variable[other].discard(number)
            taken.append(self.squeezed(part))
        return taken

    def eliminate(self, variable: int) -> _Step:
        taken = self.take(variable)
        scope = tuple(dict.fromkeys([variable, *(k for table in taken for k in table.scope)]))
        joined = np.zeros(tuple(self.sizes[k] for k in scope))
        for table in taken:
            joined += _aligned(table, scope)
        self.add(Table(scope[1:], np.asarray(joined.min(axis=0))))
        return _Step(variable, scope[1:], np.asarray(joined.argmin(axis=0)))


def _aligned(table: Table, scope: tuple[int, ...]) -> Costs:
    """A table's costs with the axes of a scope that holds its own."""
    places = [scope.index(variable) for variable in table.scope]
    order = sorted(range(len(places)), key=places.__getitem__)
    shape = [1] * len(scope)
    for place, size in zip(places, table.costs.shape, strict=True):
        shape[place] = size
    return table.costs.transpose(order).reshape(shape)
