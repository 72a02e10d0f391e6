"""Minimising a cost network with CP-SAT."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportAttributeAccessIssue=false
from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from ortools.sat.python import cp_model_helper as cmh

from cpembed.embedding.cpsat import solve_in_thread
from cpembed.network.assignment.cost_network import CostNetwork
from cpembed.network.assignment.flow_model import FlowModel


class State(Enum):
    """Of a search: whether it is over, and what it showed."""

    PROVEN = "proven"
    STOPPED = "stopped"
    IMPOSSIBLE = "impossible"


@dataclass(frozen=True)
class Solution:
    """``values`` by variable, None where none were found; no values cost less than ``bound``."""

    state: State
    values: dict[int, int] | None
    bound: float


def minimise(
    network: CostNetwork,
    until: float,
    start: tuple[Sequence[int], float] | None,
) -> Solution:
    """The least cost of a network, searched ``until`` a time (of ``time.perf_counter``). ``start``:
    values of all variables and their cost, where some are known. Costs are rounded down to a
    ten-millionth of that cost: what is proven is proven to within one such step a table."""
    model = FlowModel(network, start[1] if start else math.inf)
    if start:
        model.hint(start[0])
    parameters = cmh.SatParameters()
    parameters.num_workers = 1
    parameters.max_time_in_seconds = max(0.0, until - time.perf_counter())
    # The relaxation of all rows: without it, bounds stay at what the tables cost at least.
    parameters.linearization_level = 2
    # CP-SAT would turn an interrupt into an incomplete answer; here it stays an interrupt.
    parameters.catch_sigint_signal = False
    wrapper = cmh.SolveWrapper()
    wrapper.set_parameters(parameters)
    response = solve_in_thread(wrapper, model.proto)
    name = response.status.name
    if name == "MODEL_INVALID":
        raise ValueError(cmh.CpSatHelper.validate_model(model.proto))
    if name == "INFEASIBLE":
        return Solution(State.IMPOSSIBLE, None, math.inf)
    if name == "UNKNOWN":
        return Solution(State.STOPPED, None, model.offset)
    bound = model.offset + model.unit * max(0, math.ceil(response.best_objective_bound - 1e-6))
    values = model.values(list(response.solution))
    return Solution(State.PROVEN if name == "OPTIMAL" else State.STOPPED, values, bound)
