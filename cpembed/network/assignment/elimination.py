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

from cpembed.network.assignment.cost_network import CostNetwork, Costs, Shared, Table


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
