"""Rows of a selection, so that operators begin while those before them end.

Where units run ahead, loads of an operator begin as soon as nothing uses their rows any more. If
its rows are free while the operator before it is executed, its weights are there in time.
"""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ortools.sat.python import cp_model

from cpembed.accelerator.selection import Selection, SelectionProblem

Stay = tuple[str, str]
"""Tensor and its home."""


@dataclass(frozen=True)
class Span:
    """Numbers of the first and of the last operator during which rows are in use."""

    first: int
    last: int


def spans(problem: SelectionProblem, selection: Selection) -> dict[Stay, Span]:
    """Return from when to when tensors of a selection are in each of their homes on chip."""
    times_of: dict[Stay, list[int]] = {stay: [] for stay in selection.rows}
    for stay, number in _events(problem, selection):
        if stay in times_of:
            times_of[stay].append(number)
    return {stay: Span(min(times), max(times)) for stay, times in times_of.items()}


def _events(problem: SelectionProblem, selection: Selection) -> Iterator[tuple[Stay, int]]:
    """Yield each use of a tensor in a home, with the number of the operator at that time."""
    for number, execution in enumerate(selection.executions):
        for places in (execution.writes, execution.reads):
            for tensor, home in places.items():
                yield (tensor, home), number
    for copy in selection.copies:
        yield (copy.tensor, copy.source), copy.before
        yield (copy.tensor, copy.target), copy.before
    for tensor in problem.tensors.values():
        yield (tensor.name, tensor.initial), 0
        yield (tensor.name, tensor.final), len(selection.executions) - 1


def with_rows_ahead(
    problem: SelectionProblem, selection: Selection, work: float = 2.0
) -> Selection:
    """Return a selection with rows of which most are free while the operator before is executed.

    Parameters
    ----------
    problem : SelectionProblem
    selection : Selection
    work : float, default 2
        Deterministic time of the solver, after which the best rows so far are taken.
    """
    model = cp_model.CpModel()
    rectangles: dict[str, list[tuple[cp_model.IntervalVar, cp_model.IntervalVar]]] = {
        memory: [] for memory in problem.capacities
    }
    stays: dict[Stay, cp_model.IntVar] = {}
    working: dict[tuple[int, str], cp_model.IntVar] = {}
    ahead: list[cp_model.IntVar] = []
    for (tensor, name), span in spans(problem, selection).items():
        home = problem.tensors[tensor].homes[name]
        row = stays[tensor, name] = model.new_int_var(
            0, problem.capacities[home.memory] - home.rows, ""
        )
        model.add_hint(row, selection.rows[tensor, name])
        time = model.new_fixed_size_interval_var(span.first, span.last - span.first + 1, "")
        line = model.new_fixed_size_interval_var(row, home.rows, "")
        rectangles[home.memory].append((time, line))
    for number, execution in enumerate(selection.executions):
        for memory, start in selection.working[number].items():
            rows = execution.working_rows[memory]
            row = working[number, memory] = model.new_int_var(
                0, problem.capacities[memory] - rows, ""
            )
            model.add_hint(row, start)
            line = model.new_fixed_size_interval_var(row, rows, "")
            rectangles[memory].append((model.new_fixed_size_interval_var(number, 1, ""), line))
            if number:
                is_ahead = model.new_bool_var("")
                ahead.append(is_ahead)
                time = model.new_optional_fixed_size_interval_var(number - 1, 1, is_ahead, "")
                rectangles[memory].append((time, line))
    for pairs in rectangles.values():
        model.add_no_overlap_2d([time for time, _ in pairs], [line for _, line in pairs])
    model.maximize(sum(ahead))
    solver = cp_model.CpSolver()
    solver.parameters.max_deterministic_time = work
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 0
    if solver.solve(model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return selection
    return replace(
        selection,
        rows={stay: solver.value(row) for stay, row in stays.items()},
        working=tuple(
            {memory: solver.value(working[number, memory]) for memory in rows}
            for number, rows in enumerate(selection.working)
        ),
    )
