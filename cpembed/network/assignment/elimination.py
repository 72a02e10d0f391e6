"""Exact reductions of a cost network: variables are eliminated one after another.

Eliminating a variable replaces the tables that mention it by one over their other variables, which
holds the least cost that its values can have; the value is looked up again once the others are
known. Of a variable with one or two neighbours this is the reduction of degree one or two of a
partitioned Boolean quadratic problem; with more it is exact as well, and only its table grows. A
step whose tables equal those of an earlier step (a repeated block of a network) is not computed
again.
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
    repeated: int

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
    state = _State(network)
    steps = [state.eliminate(variable) for variable in order.variables]
    tables = tuple(Table(part.scope, part.costs) for part in state.tables.values())
    rest = CostNetwork(network.sizes, tables, tuple(state.shared.values()))
    return Reduced(rest, state.constant, tuple(steps), state.repeated)


@dataclass(frozen=True)
class _Known:
    """A table with a number that equal tables share."""

    scope: tuple[int, ...]
    costs: Costs
    content: int


Key = tuple[tuple[int, tuple[int, ...]], ...]


@dataclass
class _State:
    network: CostNetwork
    tables: dict[int, _Known] = field(default_factory=dict[int, _Known])
    shared: dict[int, Shared] = field(default_factory=dict[int, Shared])
    of_variable: list[set[int]] = field(default_factory=list[set[int]])
    contents: dict[tuple[tuple[int, ...], bytes], int] = field(
        default_factory=dict[tuple[tuple[int, ...], bytes], int]
    )
    done: dict[Key, tuple[Costs, NDArray[np.intp], int]] = field(
        default_factory=dict[Key, tuple[Costs, NDArray[np.intp], int]]
    )
    constant: float = 0.0
    repeated: int = 0
    numbered: int = 0
    last_content: int = 0

    def __post_init__(self) -> None:
        self.of_variable = [set() for _ in self.network.sizes]
        for table in self.network.tables:
            known = self.known(table)
            if known.scope:
                self.add(known)
            else:
                self.constant += float(known.costs)
        for shared in self.network.shared:
            choosing = self.choosing(shared.scope)
            if choosing:
                self.shared[self.register(choosing)] = shared
            else:
                self.constant += float(shared.whole().costs.squeeze())

    def choosing(self, scope: tuple[int, ...]) -> tuple[int, ...]:
        """The variables that have several values."""
        return tuple(variable for variable in scope if self.network.sizes[variable] > 1)

    def register(self, scope: tuple[int, ...]) -> int:
        self.numbered += 1
        for variable in scope:
            self.of_variable[variable].add(self.numbered)
        return self.numbered

    def add(self, table: _Known) -> None:
        self.tables[self.register(table.scope)] = table

    def known(self, table: Table) -> _Known:
        """Variables of one value are left out: arrays have at most 64 axes."""
        costs = table.costs.squeeze()
        scope = self.choosing(table.scope)
        key = (costs.shape, costs.tobytes())
        if key not in self.contents:
            self.last_content += 1
            self.contents[key] = self.last_content
        return _Known(scope, costs, self.contents[key])

    def take(self, variable: int) -> list[_Known]:
        """The tables that mention a variable, which are no longer part of the network."""
        taken: list[_Known] = []
        for number in sorted(self.of_variable[variable]):
            if number in self.shared:
                table = self.known(self.shared.pop(number).whole())
            else:
                table = self.tables.pop(number)
            for other in table.scope:
                self.of_variable[other].discard(number)
            taken.append(table)
        return sorted(taken, key=lambda table: table.content)

    def eliminate(self, variable: int) -> _Step:
        taken = self.take(variable)
        scope = list(dict.fromkeys([variable, *(k for table in taken for k in table.scope)]))
        key = tuple((table.content, tuple(map(scope.index, table.scope))) for table in taken)
        if key in self.done:
            self.repeated += 1
        else:
            shape = tuple(self.network.sizes[k] for k in scope)
            joined = np.zeros(shape)
            for table in taken:
                joined += _aligned(table, scope)
            self.last_content += 1
            self.done[key] = (joined.min(axis=0), joined.argmin(axis=0), self.last_content)
        costs, best, content = self.done[key]
        if len(scope) == 1:
            self.constant += float(costs)
        else:
            self.add(_Known(tuple(scope[1:]), costs, content))
        return _Step(variable, tuple(scope[1:]), np.asarray(best))


def _aligned(table: _Known, scope: list[int]) -> Costs:
    """A table's costs with the axes of a scope that holds its own."""
    places = [scope.index(variable) for variable in table.scope]
    order = sorted(range(len(places)), key=places.__getitem__)
    shape = [1] * len(scope)
    for place, size in zip(places, table.costs.shape, strict=True):
        shape[place] = size
    return table.costs.transpose(order).reshape(shape)
