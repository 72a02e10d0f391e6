"""Selection of one execution per operator, of homes of tensors, and of their rows, by CP-SAT.

An operator has executions that find their tensors in certain homes: main memory, or the rows of a
memory on chip. A tensor is written to one home and may be copied to others. What is on chip
occupies rows from its first to its last use, and an execution needs rows to work in; rectangles of
time and rows in one memory must not overlap. All of it is one model, so that the result has a
bound: the least cost, under the costs that are given, over all combinations that fit.

Where units run ahead, loads of an operator begin as soon as nothing uses their rows any more: a
second model moves the rows of a selection so that operators begin while those before them end.
"""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from ortools.sat.python import cp_model

from cpembed.errors import InvariantError

_RESOLUTION = 1_000_000
"""Number of units of the largest total cost: costs are integers to the solver."""


@dataclass(frozen=True)
class Home:
    """Place where a tensor may lie: ``rows`` of a memory on chip, or main memory without rows."""

    name: str
    memory: str = ""
    rows: int = 0


@dataclass(frozen=True)
class Execution:
    """Way to execute an operator.

    Attributes
    ----------
    cost : float
        Cycles.
    reads : mapping of str to str
        Name of the home in which it needs each tensor.
    writes : mapping of str to str
        Name of the home to which it writes each tensor.
    working_rows : mapping of str to int
        Rows of each memory that it occupies while it is executed.
    """

    name: str
    cost: float
    reads: Mapping[str, str]
    writes: Mapping[str, str]
    working_rows: Mapping[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True)
class SelectableTensor:
    """Tensor with its possible homes.

    Attributes
    ----------
    homes : mapping of str to Home
        Homes by name.
    copies : mapping of (str, str) to float
        Cycles of copying it from one home to another; a copy that is missing is impossible.
    initial : str
        Home where it is before the first operator; empty for a tensor that an operator writes.
    final : str
        Home where it has to be after the last operator; empty if it is not needed then.
    """

    name: str
    homes: Mapping[str, Home]
    copies: Mapping[tuple[str, str], float] = field(default_factory=dict[tuple[str, str], float])
    initial: str = ""
    final: str = ""


@dataclass(frozen=True)
class SelectionProblem:
    """Operators in their order, each with its executions, and their tensors.

    ``capacities`` are the rows of each memory on chip.
    """

    operators: Sequence[Sequence[Execution]]
    tensors: Mapping[str, SelectableTensor]
    capacities: Mapping[str, int]


@dataclass(frozen=True)
class Copy:
    """Copy of a tensor from one home to another, before the operator ``before`` is executed."""

    tensor: str
    source: str
    target: str
    before: int


@dataclass(frozen=True)
class Selection:
    """Result of a selection.

    Attributes
    ----------
    executions : tuple of Execution
        Execution of each operator.
    copies : tuple of Copy
        Copies between homes.
    rows : mapping of (str, str) to int
        First row of each tensor in each of its homes on chip.
    working : tuple of mapping of str to int
        First row, by memory, of the rows in which each operator works.
    cost, bound : float
        Cost, and a lower bound on the cost of every selection that fits.
    is_proven : bool
        True if the solver proved that no selection costs less.
    """

    executions: tuple[Execution, ...]
    copies: tuple[Copy, ...]
    rows: Mapping[tuple[str, str], int]
    working: tuple[Mapping[str, int], ...]
    cost: float
    bound: float
    is_proven: bool


def select(problem: SelectionProblem, work: float = 30.0) -> Selection | None:
    """Return the selection of least cost.

    Equal problems have equal selections, however busy the processor is.

    Parameters
    ----------
    problem : SelectionProblem
        Operators with their executions, tensors with their homes.
    work : float, default 30
        Amount of the solver's work, in its unit of deterministic time, about a second, after which
        the best selection so far is returned, with its bound.

    Returns
    -------
    Selection or None
        None if no selection fits, or if work ran out before one was found.
    """
    model = _Model(problem)
    solved = _solved(model.model, work)
    return None if solved is None else model.selection(*solved)


def _solved(model: cp_model.CpModel, work: float) -> tuple[cp_model.CpSolver, bool] | None:
    """Return the solver with the best solution within an amount of work; None without one.

    The second value tells whether the solution is proven to be optimal.
    """
    solver = cp_model.CpSolver()
    # Wall time would make a selection depend on the load of the processor, as several workers do.
    solver.parameters.max_deterministic_time = work
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 0
    status = solver.solve(model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None
    return solver, status == cp_model.OPTIMAL


@dataclass(frozen=True)
class _Stay:
    """Stay of a tensor in a home: whether, from and to which operator, and from which row on."""

    present: cp_model.IntVar
    first: cp_model.IntVar
    final: cp_model.IntVar
    row: cp_model.IntVar | None


class _Model:
    """CP-SAT model of a selection problem.

    Time is the number of an operator. A tensor that an operator writes is there from that operator
    on, a copy from the operator on before which it is made; both stay until their last use.
    """

    def __init__(self, problem: SelectionProblem) -> None:
        self.problem = problem
        self.model = cp_model.CpModel()
        self.last = max(0, len(problem.operators) - 1)
        self.costs: list[tuple[cp_model.IntVar, float]] = []
        self.rectangles: dict[str, list[tuple[cp_model.IntervalVar, cp_model.IntervalVar]]] = {
            memory: [] for memory in problem.capacities
        }
        self.taken = [self._operator(k) for k in range(len(problem.operators))]
        self.working: dict[tuple[int, int, str], cp_model.IntVar] = {}
        self._add_working_rows()
        # All stays before any copy, which ties two of them together.
        self.stays = {
            (tensor.name, home.name): self._stay(tensor.name, home)
            for tensor in problem.tensors.values()
            for home in tensor.homes.values()
        }
        self.copied = {
            (tensor.name, *pair): self._copy(tensor, *pair)
            for tensor in problem.tensors.values()
            for pair in tensor.copies
        }
        for tensor in problem.tensors.values():
            for name in tensor.homes:
                self._add_sources(tensor, name)
            if tensor.final:
                self._use(self.stays[tensor.name, tensor.final], self.last)
        self._add_reads()
        for rectangles in self.rectangles.values():
            times, rows = [t for t, _ in rectangles], [r for _, r in rectangles]
            self.model.add_no_overlap_2d(times, rows)
        self.model.minimize(sum(round(c / self.unit) * literal for literal, c in self.costs))

    @cached_property
    def unit(self) -> float:
        """Cost of one unit of the objective."""
        dearest = math.fsum(cost for _, cost in self.costs)
        return dearest / _RESOLUTION if dearest else 1.0

    def _operator(self, number: int) -> list[cp_model.IntVar]:
        executions = self.problem.operators[number]
        if not executions:
            raise InvariantError(f"operator {number} has no execution")
        literals = [self.model.new_bool_var(f"{number}.{e.name}") for e in executions]
        self.model.add_exactly_one(literals)
        self.costs += [(b, e.cost) for b, e in zip(literals, executions, strict=True)]
        return literals

    def _add_working_rows(self) -> None:
        for number, executions in enumerate(self.problem.operators):
            for k, execution in enumerate(executions):
                for memory, rows in execution.working_rows.items():
                    if rows > self.problem.capacities[memory]:
                        self.model.add(self.taken[number][k] == 0)
                    elif rows:
                        self.working[number, k, memory] = self._rectangle(
                            memory, rows, self.taken[number][k], number, number
                        )

    def _rectangle(
        self,
        memory: str,
        rows: int,
        present: cp_model.IntVar,
        first: cp_model.LinearExprT,
        final: cp_model.LinearExprT,
    ) -> cp_model.IntVar:
        """Add a rectangle from ``first`` to ``final``, both included; return its first row."""
        model, label = self.model, f"{memory}.{len(self.rectangles[memory])}"
        row = model.new_int_var(0, self.problem.capacities[memory] - rows, label)
        length = model.new_int_var(1, self.last + 1, f"{label}.length")
        time = model.new_optional_interval_var(first, length, final + 1, present, f"{label}.time")
        line = model.new_optional_fixed_size_interval_var(row, rows, present, f"{label}.rows")
        self.rectangles[memory].append((time, line))
        return row

    def _stay(self, tensor: str, home: Home) -> _Stay:
        model, label = self.model, f"{tensor}@{home.name}"
        present = model.new_bool_var(label)
        first = model.new_int_var(0, self.last, f"{label}.first")
        final = model.new_int_var(0, self.last, f"{label}.final")
        model.add(first <= final)
        row = None
        if home.memory and home.rows > self.problem.capacities[home.memory]:
            model.add(present == 0)
        elif home.memory and home.rows:
            row = self._rectangle(home.memory, home.rows, present, first, final)
        return _Stay(present, first, final, row)

    def _use(self, stay: _Stay, number: int, condition: cp_model.IntVar | None = None) -> None:
        """Require a stay at an operator, if ``condition`` holds."""
        conditions = [] if condition is None else [condition]
        self.model.add(stay.present == 1).only_enforce_if(*conditions)
        self.model.add(stay.first <= number).only_enforce_if(*conditions)
        self.model.add(stay.final >= number).only_enforce_if(*conditions)

    def _written(self, tensor: str, home: str) -> list[tuple[int, cp_model.IntVar]]:
        """Return the executions that write a tensor to a home, with the operator's number."""
        return [
            (number, self.taken[number][k])
            for number, executions in enumerate(self.problem.operators)
            for k, execution in enumerate(executions)
            if execution.writes.get(tensor) == home
        ]

    def _copy(self, tensor: SelectableTensor, source: str, target: str) -> cp_model.IntVar:
        """Return the Boolean of a copy; copies are not chained."""
        model = self.model
        copied = model.new_bool_var(f"{tensor.name}: {source} to {target}")
        self.costs.append((copied, tensor.copies[source, target]))
        before, after = self.stays[tensor.name, source], self.stays[tensor.name, target]
        # It is made from where the tensor was first, just before the operator that uses it first.
        written = self._written(tensor.name, source)
        if tensor.initial != source:
            model.add_bool_or([*(literal for _, literal in written), copied.negated()])
            for number, literal in written:
                model.add(after.first > number).only_enforce_if(copied, literal)
        model.add(before.first <= after.first).only_enforce_if(copied)
        model.add(before.final >= after.first).only_enforce_if(copied)
        return copied

    def _add_sources(self, tensor: SelectableTensor, home: str) -> None:
        """Require that a tensor in a home was written there, was there, or is copied there."""
        model, stay = self.model, self.stays[tensor.name, home]
        sources: list[cp_model.IntVar] = []
        for number, literal in self._written(tensor.name, home):
            sources.append(literal)
            model.add_implication(literal, stay.present)
            model.add(stay.first == number).only_enforce_if(literal)
        for (source, target), literal in self._copies_of(tensor.name):
            if target == home and source != home:
                sources.append(literal)
        if tensor.initial == home:
            model.add(stay.first == 0)
            model.add(stay.present == 1)
        else:
            # One source, since a second one would write other rows.
            model.add(sum(sources) == stay.present)

    def _copies_of(self, tensor: str) -> list[tuple[tuple[str, str], cp_model.IntVar]]:
        return [((s, t), b) for (name, s, t), b in self.copied.items() if name == tensor]

    def _add_reads(self) -> None:
        for number, executions in enumerate(self.problem.operators):
            for k, execution in enumerate(executions):
                for tensor, home in execution.reads.items():
                    self._use(self.stays[tensor, home], number, self.taken[number][k])

    def selection(self, solver: cp_model.CpSolver, is_proven: bool) -> Selection:
        """Return the selection of a solution."""
        problem = self.problem
        numbers = [
            next(k for k, literal in enumerate(literals) if solver.value(literal))
            for literals in self.taken
        ]
        executions = tuple(problem.operators[n][k] for n, k in enumerate(numbers))
        copies = [
            Copy(tensor, source, target, solver.value(self.stays[tensor, target].first))
            for (tensor, source, target), literal in self.copied.items()
            if solver.value(literal)
        ]
        cost = math.fsum(e.cost for e in executions)
        cost += math.fsum(problem.tensors[c.tensor].copies[c.source, c.target] for c in copies)
        rows = {
            key: solver.value(stay.row)
            for key, stay in self.stays.items()
            if stay.row is not None and solver.value(stay.present)
        }
        working = tuple(
            {
                memory: solver.value(row)
                for (number, k, memory), row in self.working.items()
                if (number, k) == (n, execution_number)
            }
            for n, execution_number in enumerate(numbers)
        )
        # Each cost was rounded to the nearest unit, so the bound may be off by half of one each.
        slack = len(self.costs) / 2 * self.unit
        bound = max(0.0, solver.best_objective_bound * self.unit - slack)
        return Selection(
            executions, tuple(sorted(copies, key=lambda c: c.before)), rows, working, cost,
            min(bound, cost), is_proven,
        )  # fmt: skip


# -- rows ahead ------------------------------------------------------------------------------------

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


_WORK_AHEAD = 2.0
"""Deterministic time of the solver after which the best rows so far are taken."""


def with_rows_ahead(problem: SelectionProblem, selection: Selection) -> Selection:
    """Return a selection with rows of which most are free while the operator before is executed."""
    model = cp_model.CpModel()
    rectangles: dict[str, list[tuple[cp_model.IntervalVar, cp_model.IntervalVar]]] = {
        memory: [] for memory in problem.capacities
    }
    stays: dict[Stay, cp_model.IntVar] = {}
    working: dict[tuple[int, str], cp_model.IntVar] = {}
    ahead: list[cp_model.IntVar] = []

    def placed(
        memory: str, rows: int, start: int, span: Span
    ) -> tuple[cp_model.IntVar, cp_model.IntervalVar]:
        """Add a rectangle of rows during a span; return its first row, and its rows."""
        row = model.new_int_var(0, problem.capacities[memory] - rows, "")
        model.add_hint(row, start)
        time = model.new_fixed_size_interval_var(span.first, span.last - span.first + 1, "")
        line = model.new_fixed_size_interval_var(row, rows, "")
        rectangles[memory].append((time, line))
        return row, line

    for stay, span in spans(problem, selection).items():
        home = problem.tensors[stay[0]].homes[stay[1]]
        stays[stay], _ = placed(home.memory, home.rows, selection.rows[stay], span)
    for number, execution in enumerate(selection.executions):
        for memory, start in selection.working[number].items():
            rows, span = execution.working_rows[memory], Span(number, number)
            working[number, memory], line = placed(memory, rows, start, span)
            if number:
                is_ahead = model.new_bool_var("")
                ahead.append(is_ahead)
                time = model.new_optional_fixed_size_interval_var(number - 1, 1, is_ahead, "")
                rectangles[memory].append((time, line))
    for pairs in rectangles.values():
        model.add_no_overlap_2d([time for time, _ in pairs], [line for _, line in pairs])
    model.maximize(sum(ahead))
    solved = _solved(model, _WORK_AHEAD)
    if solved is None:
        return selection
    solver, _ = solved
    return replace(
        selection,
        rows={stay: solver.value(row) for stay, row in stays.items()},
        working=tuple(
            {memory: solver.value(working[number, memory]) for memory in rows}
            for number, rows in enumerate(selection.working)
        ),
    )
