"""CP-SAT: enumeration of a model's solutions, bounds of an objective, limits and interrupts."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportAttributeAccessIssue=false
from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from typing import Any

import numpy as np

from cpembed.embedding.model_writer import CompiledModel, Ids, cp_sat
from cpembed.time_limit import check_time, seconds_left

_PATIENCE = 0.1
"""Seconds between looks for an interrupt or the end of the time limit."""

_MEMORY_MIB = 1024
"""Maximum memory of the solver in MiB; a search that needs more ends like one out of time."""


class Status(StrEnum):
    """Outcome of a search; the values are those of the JSON documents."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class SearchStatistics:
    """The solver's effort.

    ``seconds`` is wall time; ``work`` is the solver's deterministic time, in its own unit (about a
    second), the same in every run.
    """

    branches: int = 0
    conflicts: int = 0
    seconds: float = 0.0
    work: float = 0.0

    def plus(self, more: SearchStatistics) -> SearchStatistics:
        return SearchStatistics(
            self.branches + more.branches,
            self.conflicts + more.conflicts,
            self.seconds + more.seconds,
            self.work + more.work,
        )


@cache
def _collector() -> type[Any]:
    """Return the class of callbacks, whose base is imported with OR-Tools on first use."""

    class _Collector(cp_sat().SolutionCallback):
        """Callback that passes each solution on as a vector.

        It stops the search when the receiver returns False.
        """

        def __init__(self, receive: Callable[[Ids], bool]) -> None:
            super().__init__()
            self.receive = receive
            self.error: BaseException | None = None
            self.stopped = False

        def _on_solution(self) -> None:
            try:
                solution = np.array(list(self.Response().solution), np.int64)
                if not self.receive(solution):
                    self.stopped = True
                    self.StopSearch()
            except BaseException as error:  # an exception must not unwind through C++
                self.error = error
                self.StopSearch()

        # The name by which OR-Tools looks the method up.
        OnSolutionCallback = _on_solution

    return _Collector


def solve_in_thread(wrapper: Any, proto: Any) -> Any:
    """Solve in a thread, so that this one can be interrupted or reach a time limit."""
    responses: list[Any] = []
    thread = threading.Thread(target=lambda: responses.append(wrapper.solve(proto)))
    thread.start()
    try:
        while thread.is_alive():
            check_time()
            thread.join(_PATIENCE)
    except BaseException:
        wrapper.stop_search()
        thread.join()
        raise
    return responses[0]


@dataclass(frozen=True)
class SearchLimits:
    """Limits of wall time in seconds and of the number of solutions, and the solver's seed."""

    seconds: float | None = None
    solutions: int | None = None
    seed: int = 0

    def after(self, seconds: float) -> SearchLimits:
        """Return the limits with less time left."""
        if self.seconds is None:
            return self
        return replace(self, seconds=max(0.0, self.seconds - seconds))

    def share(self, parts: float) -> SearchLimits:
        """Return the limits with one of so many parts of the time."""
        return self if self.seconds is None else replace(self, seconds=self.seconds / parts)


class StopSignal:
    """Signal that stops the searches that listen to it, and those that would start later."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wrappers: list[Any] = []
        self._stopped = False

    @property
    def stopped(self) -> bool:
        return self._stopped

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            for wrapper in self._wrappers:
                wrapper.stop_search()

    def listen(self, wrapper: Any) -> None:
        with self._lock:
            # A search that starts after the signal must end at once.
            self._wrappers.append(wrapper)
            if self._stopped:
                wrapper.stop_search()

    def leave(self, wrapper: Any) -> None:
        with self._lock:
            self._wrappers.remove(wrapper)


@dataclass(frozen=True)
class SearchControl:
    """Settings of a search that do not change the answer.

    Attributes
    ----------
    presolve : bool
        True to simplify the model first.
    work : float, optional
        Maximum deterministic time, in the solver's unit, the same in every run.
    stop : StopSignal, optional
        Signal that ends the search from outside.
    relaxation : bool
        True to solve the linear relaxation at each node, which only slows models of Booleans that
        are enumerated.
    """

    presolve: bool = True
    work: float | None = None
    stop: StopSignal | None = None
    relaxation: bool = True


def _parameters(limits: SearchLimits) -> Any:
    """Return the solver's parameters that every search has."""
    parameters = cp_sat().SatParameters()
    # CP-SAT enumerates with one worker only, and one is the same search in every run.
    parameters.num_workers = 1
    parameters.max_memory_in_mb = _MEMORY_MIB
    parameters.random_seed = limits.seed
    seconds = min(seconds_left(), math.inf if limits.seconds is None else limits.seconds)
    if seconds < math.inf:
        parameters.max_time_in_seconds = seconds
    # CP-SAT would turn an interrupt into an incomplete answer; here it stays an interrupt.
    parameters.catch_sigint_signal = False
    return parameters


def _enumeration_parameters(limits: SearchLimits, control: SearchControl) -> Any:
    parameters = _parameters(limits)
    parameters.enumerate_all_solutions = True
    # Symmetry breaking would leave out solutions that are images of others.
    parameters.symmetry_level = 0
    # The model's own decision order: solutions come in it, and the search is the same in every run.
    parameters.search_branching = cp_sat().SatParameters.SearchBranching.FIXED_SEARCH
    if control.work is not None:
        parameters.max_deterministic_time = control.work
    if not control.presolve:
        parameters.cp_model_presolve = False
        parameters.cp_model_probing_level = 0
    if not control.relaxation:
        parameters.linearization_level = 0
    return parameters


def _solved(wrapper: Any, proto: Any) -> tuple[Any, str]:
    """Return the solver's response and the name of its status."""
    response = solve_in_thread(wrapper, proto)
    name = str(response.status.name)
    if name == "MODEL_INVALID":
        raise ValueError(cp_sat().CpSatHelper.validate_model(proto))
    return response, name


def enumerate_solutions(
    model: CompiledModel,
    receive: Callable[[Ids], bool],
    limits: SearchLimits,
    control: SearchControl | None = None,
) -> tuple[Status, bool, SearchStatistics]:
    """Enumerate the solutions of a model, each once, within limits.

    Parameters
    ----------
    model : CompiledModel
        Model to search; it may be a relaxation.
    receive : Callable
        Called with the values of all recorded variables; returns False for a vector that is no
        solution of the problem, which is not counted.
    limits : SearchLimits
        Seconds, number of solutions, seed.
    control : SearchControl, optional
        Settings that do not change the answer.

    Returns
    -------
    status : Status
        Outcome of the search.
    complete : bool
        True if there are no other solutions.
    statistics : SearchStatistics
        Effort of the solver.
    """
    control = control or SearchControl()
    if model.contradiction:
        return Status.INFEASIBLE, True, SearchStatistics(0, 0, 0.0)
    accepted = 0

    def accept(solution: Ids) -> bool:
        nonlocal accepted
        accepted += receive(model.values(solution))
        return limits.solutions is None or accepted < limits.solutions

    collector = _collector()(accept)
    wrapper = cp_sat().SolveWrapper()
    wrapper.set_parameters(_enumeration_parameters(limits, control))
    wrapper.add_solution_callback(collector)
    if control.stop is not None:
        control.stop.listen(wrapper)
    try:
        response, name = _solved(wrapper, model.proto)
    finally:
        if control.stop is not None:
            control.stop.leave(wrapper)
    wrapper.clear_solution_callback(collector)
    if collector.error is not None:
        raise collector.error
    statistics = SearchStatistics(
        int(response.num_branches),
        int(response.num_conflicts),
        float(response.wall_time),
        float(response.deterministic_time),
    )
    if name == "INFEASIBLE":
        return Status.INFEASIBLE, True, statistics
    if name == "UNKNOWN":
        return Status.UNKNOWN, False, statistics
    complete = name == "OPTIMAL" and not collector.stopped
    # The model may be a relaxation, all of whose solutions were rejected by the receiver.
    if not accepted:
        return (Status.INFEASIBLE if complete else Status.UNKNOWN), complete, statistics
    return (Status.OPTIMAL if complete else Status.FEASIBLE), complete, statistics


def minimise(model: CompiledModel, terms: Mapping[int, int], limits: SearchLimits) -> int | None:
    """Return a proven lower bound of a weighted sum of variables.

    The model keeps the objective: build another one to enumerate.

    Parameters
    ----------
    model : CompiledModel
        Model to search.
    terms : Mapping
        Coefficient of each recorded variable.
    limits : SearchLimits
        Seconds and seed; the bound is the minimum itself unless they end the search.

    Returns
    -------
    int or None
        None where the model has no solution.
    """
    if model.contradiction:
        return None
    constant = sum(int(model.value[v]) * c for v, c in terms.items() if model.fixed[v])
    free = {int(model.proto_index[v]): c for v, c in terms.items() if c and not model.fixed[v]}
    model.proto.objective.vars.extend(list(free))
    model.proto.objective.coeffs.extend(list(free.values()))
    wrapper = cp_sat().SolveWrapper()
    wrapper.set_parameters(_parameters(limits))
    response, name = _solved(wrapper, model.proto)
    if name == "INFEASIBLE":
        return None
    least = sum(min(c, 0) for c in free.values())
    # Stopped before it had a solution, the solver may not have set its bound.
    if name in ("OPTIMAL", "FEASIBLE"):
        # The bound is a float slightly off an integer.
        least = max(least, math.ceil(response.best_objective_bound - 1e-6))
    return constant + least
