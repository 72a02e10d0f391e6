"""The selection against all selections, whose rows are placed by trying every row."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pytest

from cpembed.accelerator.selection import (
    Execution,
    Home,
    SelectableTensor,
    Selection,
    SelectionProblem,
    select,
    spans,
    with_rows_ahead,
)
from tests.unit.accelerator.busy import busy_processes

MAIN = "main"


def random_problem(seed: int) -> SelectionProblem:
    """A chain with one skip; tensors may lie in main memory or in rows of one or two memories."""
    rng = random.Random(seed)
    memories = {"near": rng.randint(2, 6), "far": rng.randint(2, 6)}
    count = rng.randint(1, 4)
    names = [f"t{k}" for k in range(count + 1)]
    tensors: dict[str, SelectableTensor] = {}
    for number, name in enumerate(names):
        homes = {MAIN: Home(MAIN)}
        for memory in memories:
            if rng.random() < 0.8:
                homes[memory] = Home(memory, memory, rng.randint(1, 4))
        copies = {
            (source, target): float(rng.randint(0, 9))
            for source, target in itertools.permutations(homes, 2)
            if rng.random() < 0.8
        }
        tensors[name] = SelectableTensor(
            name,
            homes,
            copies,
            initial=MAIN if number == 0 else "",
            final=MAIN if number == count else "",
        )
    operators: list[list[Execution]] = []
    for number in range(count):
        inputs = [names[number]]
        if number and rng.random() < 0.5:
            inputs.append(names[rng.randrange(number)])
        executions: list[Execution] = []
        for k in range(rng.randint(1, 3)):
            places = {name: rng.choice([*tensors[name].homes]) for name in dict.fromkeys(inputs)}
            output = names[number + 1]
            written = {output: rng.choice([*tensors[output].homes])}
            working = {memory: rng.randint(0, 3) for memory in memories}
            executions.append(
                Execution(f"e{k}", float(rng.randint(1, 20)), places, written, working)
            )
        operators.append(executions)
    return SelectionProblem(operators, tensors, memories)


@dataclass(frozen=True)
class Rectangle:
    memory: str
    rows: int
    first: int
    final: int


def fits(rectangles: Sequence[Rectangle], capacities: dict[str, int]) -> bool:
    placed: list[tuple[Rectangle, int]] = []

    def place(number: int) -> bool:
        if number == len(rectangles):
            return True
        here = rectangles[number]
        for row in range(capacities[here.memory] - here.rows + 1):
            clashes = any(
                there.memory == here.memory
                and there.first <= here.final
                and here.first <= there.final
                and at < row + here.rows
                and row < at + there.rows
                for there, at in placed
            )
            if not clashes:
                placed.append((here, row))
                if place(number + 1):
                    return True
                placed.pop()
        return False

    return place(0)


def least_cost(problem: SelectionProblem) -> float | None:
    costs = (
        cost
        for executions in itertools.product(*problem.operators)
        for cost, rectangles in placements(problem, executions)
        if all(r.rows <= problem.capacities[r.memory] for r in rectangles)
        and fits(rectangles, dict(problem.capacities))
    )
    return min(costs, default=None)


def placements(
    problem: SelectionProblem, executions: Sequence[Execution]
) -> Iterator[tuple[float, list[Rectangle]]]:
    """Yield the cost and the rectangles of every choice of when each copy is made."""
    working = [
        Rectangle(memory, rows, number, number)
        for number, execution in enumerate(executions)
        for memory, rows in execution.working_rows.items()
        if rows
    ]
    choices = [[*stays(tensor, executions)] for tensor in problem.tensors.values()]
    for combination in itertools.product(*choices):
        cost = sum(execution.cost for execution in executions) + sum(c for c, _ in combination)
        yield cost, [*working, *(r for _, rectangles in combination for r in rectangles)]


def stays(
    tensor: SelectableTensor, executions: Sequence[Execution]
) -> Iterator[tuple[float, list[Rectangle]]]:
    """Yield the cost of the copies and the rectangles of a tensor for all times of its copies."""
    direct, since, earliest = tensor.initial, 0, 0
    uses: dict[str, list[int]] = {}
    for number, execution in enumerate(executions):
        if tensor.name in execution.writes:
            direct, since, earliest = execution.writes[tensor.name], number, number + 1
        if tensor.name in execution.reads:
            uses.setdefault(execution.reads[tensor.name], []).append(number)
    if tensor.final:
        uses.setdefault(tensor.final, []).append(len(executions) - 1)
    targets = [home for home in uses if home != direct]
    if any((direct, home) not in tensor.copies for home in targets):
        return
    cost = sum(tensor.copies[direct, home] for home in targets)
    # A copy is made before an operator, after the one that writes the tensor.
    for times in itertools.product(*(range(earliest, min(uses[home]) + 1) for home in targets)):
        spans = {h: (t, max(uses[h])) for h, t in zip(targets, times, strict=True)}
        spans[direct] = (since, max([since, *times, *uses.get(direct, [])]))
        yield (
            cost,
            [
                Rectangle(tensor.homes[home].memory, tensor.homes[home].rows, first, final)
                for home, (first, final) in spans.items()
                if tensor.homes[home].memory
            ],
        )


def check(problem: SelectionProblem, selection: Selection) -> None:
    """No two rectangles of one memory overlap, and every tensor is where it is read."""
    last = len(selection.executions) - 1
    used: list[tuple[Rectangle, int]] = []
    for number, (execution, at) in enumerate(
        zip(selection.executions, selection.working, strict=True)
    ):
        for memory, rows in execution.working_rows.items():
            if rows:
                used.append((Rectangle(memory, rows, number, number), at[memory]))
    for tensor in problem.tensors.values():
        since: dict[str, int] = {tensor.initial: 0} if tensor.initial else {}
        uses: dict[str, list[int]] = {}
        for copy in selection.copies:
            if copy.tensor == tensor.name:
                since[copy.target] = copy.before
                uses.setdefault(copy.source, []).append(copy.before)
        for number, execution in enumerate(selection.executions):
            if tensor.name in execution.writes:
                since[execution.writes[tensor.name]] = number
            if tensor.name in execution.reads:
                uses.setdefault(execution.reads[tensor.name], []).append(number)
        if tensor.final:
            uses.setdefault(tensor.final, []).append(last)
        for home, at in uses.items():
            assert since[home] <= min(at), (tensor.name, home)
        for home, first in since.items():
            place = tensor.homes[home]
            if place.memory:
                final = max([first, *uses.get(home, [])])
                rectangle = Rectangle(place.memory, place.rows, first, final)
                used.append((rectangle, selection.rows[tensor.name, home]))
    for (here, row), (there, at) in itertools.combinations(used, 2):
        apart_in_time = here.final < there.first or there.final < here.first
        apart_in_rows = row + here.rows <= at or at + there.rows <= row
        assert here.memory != there.memory or apart_in_time or apart_in_rows
    for rectangle, row in used:
        assert 0 <= row <= problem.capacities[rectangle.memory] - rectangle.rows


@pytest.mark.quick(60)
@pytest.mark.parametrize("seed", range(600))
def test_the_least_cost_of_all_selections_is_selected(seed: int) -> None:
    problem = random_problem(seed)
    selection, least = select(problem), least_cost(problem)
    if least is None:
        assert selection is None
        return
    assert selection is not None
    assert selection.is_proven
    check(problem, selection)
    assert selection.cost == pytest.approx(least, abs=1e-3)
    assert selection.bound <= selection.cost


def long_problem(operators: int) -> SelectionProblem:
    """A chain with skips in rows that hold only a part of its tensors at a time."""
    rng = random.Random(operators)
    names = [f"t{k}" for k in range(operators + 1)]
    tensors = {
        name: SelectableTensor(
            name,
            {MAIN: Home(MAIN), "near": Home("near", "near", rng.randint(9, 60))},
            {("near", MAIN): float(rng.randint(1, 9))},
            initial=MAIN if name == names[0] else "",
            final=MAIN if name == names[-1] else "",
        )
        for name in names
    }
    executions: list[list[Execution]] = []
    for number in range(operators):
        inputs = {names[number], names[rng.randrange(number + 1)]}
        used = [*sorted(inputs), names[number + 1]]
        places = itertools.product([MAIN, "near"], repeat=len(used))
        options = [
            dict(zip(used, homes, strict=True)) for homes in places if number or homes[0] == MAIN
        ]
        executions.append(
            [
                Execution(
                    str(k),
                    float(sum(rng.randint(20, 60) for home in option.values() if home == MAIN)),
                    {name: option[name] for name in sorted(inputs)},
                    {names[number + 1]: option[names[number + 1]]},
                    {"near": rng.randint(5, 40)},
                )
                for k, option in enumerate(options)
            ]
        )
    return SelectionProblem(executions, tensors, {"near": 128})


def test_a_selection_that_is_stopped_does_not_depend_on_load() -> None:
    problem = long_problem(24)
    first = select(problem, 0.3)
    assert first is not None
    # The search is stopped before it ends, where the load could make a difference.
    assert not first.is_proven
    assert 0 < first.bound < first.cost
    check(problem, first)
    with busy_processes(3):
        assert select(problem, 0.3) == first
    best = select(problem, 3.0)
    assert best is not None
    assert first.bound <= best.cost <= first.cost


@pytest.mark.parametrize("seed", range(40))
def test_rows_ahead_are_those_of_the_same_selection(seed: int) -> None:
    problem = random_problem(seed)
    selection = select(problem)
    if selection is None:
        return
    ahead = with_rows_ahead(problem, selection)
    check(problem, ahead)
    assert ahead.executions == selection.executions
    assert rows_ahead(problem, ahead) >= rows_ahead(problem, selection)


def rows_ahead(problem: SelectionProblem, selection: Selection) -> int:
    """Number of operators' rows that nothing has while the operator before is executed."""
    in_use = [
        (problem.tensors[tensor].homes[home], row, spans(problem, selection)[tensor, home])
        for (tensor, home), row in selection.rows.items()
    ]
    count = 0
    for number, execution in enumerate(selection.executions[1:], 1):
        before = selection.executions[number - 1]
        for memory, row in selection.working[number].items():
            end = row + execution.working_rows[memory]
            others = [
                (start, start + home.rows)
                for home, start, span in in_use
                if home.memory == memory and span.first < number <= span.last + 1
            ]
            if memory in selection.working[number - 1]:
                start = selection.working[number - 1][memory]
                others.append((start, start + before.working_rows[memory]))
            count += all(end <= start or stop <= row for start, stop in others)
    return count
