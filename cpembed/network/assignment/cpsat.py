"""Minimize a cost network with CP-SAT, by a model whose linear relaxation is tight.

Each value of a variable is a Boolean, and so is each combination of values that a table allows.
The Booleans of all combinations with one value sum to the Boolean of that value, as a flow does.
Shared conversions have such a flow from the written layout to each reader, and a Boolean per
conversion that each of them implies.

Implications between the Booleans of values would be equivalent for whole numbers. In the linear
relaxation, however, fractional values would satisfy them without any conversion, and its bound
would be weak.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportAttributeAccessIssue=false
from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.embedding.cpsat import solve_in_thread
from cpembed.embedding.model_writer import cp_sat
from cpembed.network.assignment.elimination import CostNetwork, Costs, SharedConversions, Table

# Resolution of costs, which are whole numbers to the solver: number of units in the cost of a known
# solution, or else of the dearest one.
_STEPS = 10_000_000


@dataclass
class FlowModel:
    """CP-SAT model of a cost network.

    The network costs ``offset + unit * objective``, or more by less than a unit per table and
    conversion, since costs are rounded down.

    Attributes
    ----------
    known_cost : float
        Cost of some solution; infinite if none is known.
    booleans : dict from int to list of int
        Boolean of each value of each variable.
    costs : list of (int, float)
        Booleans and what they cost.
    """

    network: CostNetwork
    known_cost: float = math.inf
    proto: Any = field(default_factory=lambda: cp_sat().CpModelProto())
    offset: float = 0.0
    unit: float = 1.0
    booleans: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    costs: list[tuple[int, float]] = field(default_factory=list[tuple[int, float]])

    def __post_init__(self) -> None:
        used = {k for part in (*self.network.tables, *self.network.shared) for k in part.scope}
        for variable in sorted(used):
            values = [self._boolean() for _ in range(self.network.sizes[variable])]
            self.booleans[variable] = values
            self.proto.constraints.add().exactly_one.literals.extend(values)
        for table in self.network.tables:
            self._add_table(table)
        for shared in self.network.shared:
            self._add_shared(shared)
        self._objective()

    def values(self, solution: Sequence[int]) -> dict[int, int]:
        """Return the value of each variable in a solution of the model."""
        return {
            variable: next(k for k, literal in enumerate(literals) if solution[literal])
            for variable, literals in self.booleans.items()
        }

    def hint(self, values: Sequence[int]) -> None:
        """Suggest values of all variables, from which the search starts."""
        for variable, literals in self.booleans.items():
            for value, literal in enumerate(literals):
                self.proto.solution_hint.vars.extend([literal])
                self.proto.solution_hint.values.extend([int(values[variable] == value)])

    def _boolean(self) -> int:
        self.proto.variables.add().domain.extend([0, 1])
        return len(self.proto.variables) - 1

    def _sum(self, parts: list[int], total: int) -> None:
        """Require that Booleans sum to another one."""
        linear = self.proto.constraints.add().linear
        linear.vars.extend([*parts, total])
        linear.coeffs.extend([1] * len(parts) + [-1])
        linear.domain.extend([0, 0])

    def _add_table(self, table: Table) -> None:
        costs = self._shifted(table)
        if len(table.scope) == 1:
            (variable,) = table.scope
            for literal, cost in zip(self.booleans[variable], costs.tolist(), strict=True):
                if cost < math.inf:
                    self.costs.append((literal, cost))
                else:
                    self._sum([], literal)
            return
        flows = self._flows(table.scope, np.isfinite(costs))
        self.costs += [(int(flows[at]), float(costs[at])) for at in _where(flows >= 0)]

    def _shifted(self, table: Table) -> Costs:
        """Return costs reduced by the least one, which goes into the offset.

        The objective then keeps its resolution for differences.
        """
        least = float(table.costs.min())
        if least == math.inf:
            return table.costs
        self.offset += least
        return table.costs - least

    def _flows(self, scope: tuple[int, ...], allowed: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return a Boolean per allowed combination of values; -1 elsewhere."""
        flows = np.full(allowed.shape, -1, np.int64)
        for at in _where(allowed):
            flows[at] = self._boolean()
        for axis, variable in enumerate(scope):
            for value, literal in enumerate(self.booleans[variable]):
                through = np.take(flows, value, axis)
                self._sum(through[through >= 0].tolist(), literal)
        return flows

    def _add_shared(self, shared: SharedConversions) -> None:
        rows, columns = shared.costs.shape
        paid = np.full((rows, columns), -1, np.int64)
        for row, column in _where((shared.costs > 0) & np.isfinite(shared.costs)):
            paid[row, column] = self._boolean()
            self.costs.append((int(paid[row, column]), float(shared.costs[row, column])))
        # The last column, which a need of -1 selects, is that of readers of any layout.
        free = np.concatenate([shared.costs, np.zeros((rows, 1))], axis=1)
        for reader, needs in zip(shared.readers, shared.needs, strict=True):
            flows = self._flows((shared.written, reader), np.isfinite(free[:, list(needs)]))
            for value, column in enumerate(needs):
                for row in range(rows):
                    if column >= 0 and flows[row, value] >= 0 and paid[row, column] >= 0:
                        implied = self.proto.constraints.add()
                        implied.enforcement_literal.extend([int(flows[row, value])])
                        implied.bool_and.literals.extend([int(paid[row, column])])

    def _objective(self) -> None:
        dearest = math.fsum(cost for _, cost in self.costs)
        # No better solution costs more than a known one, which allows smaller units.
        limit = max(min(dearest, self.known_cost - self.offset), dearest / _STEPS)
        self.unit = limit / _STEPS if limit > 0 else 1.0
        terms = [(literal, int(cost / self.unit)) for literal, cost in self.costs]
        terms = [(literal, cost) for literal, cost in terms if cost]
        self.proto.objective.vars.extend([literal for literal, _ in terms])
        self.proto.objective.coeffs.extend([cost for _, cost in terms])


def _where(mask: NDArray[np.bool_]) -> list[tuple[int, ...]]:
    """Return the indices at which a mask is true."""
    return [tuple(at) for at in np.argwhere(mask).tolist()]


class State(Enum):
    """Outcome of a search."""

    PROVEN = "proven"
    STOPPED = "stopped"
    IMPOSSIBLE = "impossible"


@dataclass(frozen=True)
class Solution:
    """Values by variable, if the search found any, and a lower bound on the cost of all others."""

    state: State
    values: dict[int, int] | None
    bound: float


def minimise(
    network: CostNetwork,
    until: float,
    start: tuple[Sequence[int], float] | None,
) -> Solution:
    """Minimize a network.

    Costs are rounded down to a ten-millionth of the start's cost, so optimality is proven to within
    one such step per table.

    Parameters
    ----------
    network : CostNetwork
    until : float
        Time of ``time.perf_counter`` at which the search stops.
    start : pair of sequence of int and float, or None
        Values of all variables, and their cost.
    """
    model = FlowModel(network, start[1] if start else math.inf)
    if start:
        model.hint(start[0])
    parameters = cp_sat().SatParameters()
    parameters.num_workers = 1
    parameters.max_time_in_seconds = max(0.0, until - time.perf_counter())
    # Relax all constraints: at lower levels the bound stays near the sum of the tables' minima.
    parameters.linearization_level = 2
    # CP-SAT would take an interrupt for the end of the search and hide it from the caller.
    parameters.catch_sigint_signal = False
    wrapper = cp_sat().SolveWrapper()
    wrapper.set_parameters(parameters)
    response = solve_in_thread(wrapper, model.proto)
    name = response.status.name
    if name == "MODEL_INVALID":
        raise ValueError(cp_sat().CpSatHelper.validate_model(model.proto))
    if name == "INFEASIBLE":
        return Solution(State.IMPOSSIBLE, None, math.inf)
    if name == "UNKNOWN":
        return Solution(State.STOPPED, None, model.offset)
    # The objective is whole, so its bound may be rounded up.
    bound = model.offset + model.unit * max(0, math.ceil(response.best_objective_bound - 1e-6))
    values = model.values(list(response.solution))
    return Solution(State.PROVEN if name == "OPTIMAL" else State.STOPPED, values, bound)
