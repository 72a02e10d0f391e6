"""Random chains of operators whose tensors may stay on chip: proven, right, and never slower."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import numpy as np
import pytest

from cpembed.accelerator.chain_runs import Run
from cpembed.accelerator.chains import ChainPlanner, RunPlanner, Variant
from cpembed.accelerator.executor import execute
from cpembed.accelerator.network_bound import network_bound
from cpembed.accelerator.network_steps import ProgramStep
from cpembed.accelerator.operator_search import OperatorSearch
from cpembed.accelerator.operators.forms import GraphTensor, OperatorForm
from cpembed.accelerator.proof import prove
from cpembed.accelerator.selection import SelectionProblem, select
from cpembed.accelerator.specification import Specification, Statement
from cpembed.graph.graph import Graph, Operator
from cpembed.hw.isa import InstructionSet, MemoryKind, Synchronization
from cpembed.hw.isa_reader import load_instruction_set
from tests.compilers import needs_executor
from tests.unit.accelerator.busy import busy_processes
from tests.unit.accelerator.counted import assert_counts_agree
from tests.unit.accelerator.toys import random_arrays, statement

SMALL = str(Path(__file__).parents[2] / "targets" / "tiny_accelerator.toml")
DTYPES = {"acc": "int32", "W": "int8", "A": "int8", "B": "int8", "out": "int8"}
SHAPES = tuple[int, ...]
SEEDS = [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 10))]


def product(name: str, source: str, rows: int, inner: int, outer: int, seed: int) -> OperatorForm:
    """Product of a tensor with weights, in bytes again."""
    statements = (
        statement("acc[p,n] += A[p,k] * W[k,n]", DTYPES, {"p": rows, "n": outer, "k": inner}),
        statement("out[p,n] = int8(max(acc[p,n] * 0.0625, 0))", DTYPES, {"p": rows, "n": outer}),
    )
    weights = np.random.default_rng(seed).integers(-9, 9, (inner, outer)).astype(np.int8)
    tensors = {"A": (source, (rows, inner)), "out": (name, (rows, outer))}
    return form(name, statements, tensors, {"W": weights})


def residual(name: str, first: str, second: str, rows: int, columns: int) -> OperatorForm:
    """Weighted sum of two tensors."""
    text = "out[p,n] = int8(max(A[p,n] * 0.5 + B[p,n] * 0.25, 0))"
    statements = (statement(text, DTYPES, {"p": rows, "n": columns}),)
    shape = rows, columns
    return form(name, statements, {"A": (first, shape), "B": (second, shape), "out": (name, shape)})


def rectified(name: str, source: str, *shape: int) -> OperatorForm:
    """Positive part of a tensor, in any number of dimensions."""
    axes = "xyz"[: len(shape)]
    text = f"out[{','.join(axes)}] = max(A[{','.join(axes)}], 0)"
    statements = (statement(text, DTYPES, dict(zip(axes, shape, strict=True))),)
    return form(name, statements, {"A": (source, shape), "out": (name, shape)})


def form(
    name: str,
    statements: tuple[Statement, ...],
    tensors: dict[str, tuple[str, SHAPES]],
    constants: dict[str, Any] | None = None,
) -> OperatorForm:
    inputs = tuple(n for n in tensors if n != "out")
    specification = Specification(name, statements, inputs, ("out",), constants or {})
    views = {
        # The graph's tensor is a matrix, whatever shape an operator has it in.
        n: GraphTensor(tensor, (0, 1), shape, (math.prod(shape[:-1]), shape[-1]))
        for n, (tensor, shape) in tensors.items()
    }
    return OperatorForm(specification, views)


def random_chain(seed: int) -> list[OperatorForm]:
    """Chain of two to four operators; a residual adds any two tensors of one shape.

    Some operators have their tensors in another shape than others.
    """
    rng = random.Random(seed)
    rows = rng.choice([5, 8, 24, 40])
    shapes: dict[str, SHAPES] = {"t0": (rows, rng.choice([8, 16, 24]))}
    forms: list[OperatorForm] = []
    for number in range(1, rng.randint(2, 4) + 1):
        name, last = f"t{number}", f"t{number - 1}"
        rows, columns = shapes[last]
        alike = [n for n, shape in shapes.items() if shape == (rows, columns) and n != last]
        kind = rng.random()
        if alike and kind < 0.6:
            forms.append(residual(name, last, rng.choice(alike), rows, columns))
        elif kind < 0.15 and rows % 4 == 0:
            forms.append(rectified(name, last, 4, rows // 4, columns))
        elif kind < 0.2:
            forms.append(rectified(name, last, rows, columns))
        else:
            outer = rng.choice([columns, 8, 16])
            forms.append(product(name, last, rows, columns, outer, seed + number))
            columns = outer
        shapes[name] = rows, columns
    return forms


def with_rows(machine: InstructionSet, rows: int, synchronization: str) -> InstructionSet:
    memories = {
        name: replace(memory, rows=rows)
        if memory.kind is MemoryKind.ROWS and name == "scratchpad"
        else memory
        for name, memory in machine.memories.items()
    }
    return replace(machine, memories=memories, synchronization=Synchronization(synchronization))


def planned(forms: Sequence[OperatorForm], machine: InstructionSet) -> list[ProgramStep]:
    """Plan each operator by itself."""
    steps: list[ProgramStep] = []
    for each in forms:
        plans = OperatorSearch(each.specification, machine).plans()
        assert not isinstance(plans, str), plans
        inputs = tuple(each.tensors[n].name for n in each.specification.inputs)
        output = each.tensors["out"].name
        operator = Operator(each.specification.name, cast(Any, None), inputs, (output,))
        programs = tuple(plan.program() for plan in plans)
        costs = tuple(plan.cost for plan in plans)
        steps.append(ProgramStep((operator,), each, plans, programs, costs))
    return steps


def chained(steps: Sequence[ProgramStep], machine: InstructionSet) -> list[ProgramStep]:
    outputs = [steps[-1].operators[0].output]
    result = ChainPlanner(outputs, machine).steps(steps)
    return [step for step in result if isinstance(step, ProgramStep)]


def cycles(steps: Sequence[ProgramStep]) -> float:
    return math.fsum(step.cycles for step in steps)


def run(steps: Sequence[ProgramStep], arrays: dict[str, Any]) -> dict[str, Any]:
    """Execute programs one after the other; return all tensors that are in main memory."""
    arrays = dict(arrays)
    for step in steps:
        specification, tensors = step.form.specification, step.form.tensors
        for program, cost in zip(step.programs, step.costs, strict=True):
            contents = dict(specification.constants)
            contents |= {n: arrays[tensors[n].name] for n in specification.inputs}
            buffers = {n: t.buffer(contents.get(n)) for n, t in program.tensors.items()}
            outcome = execute(program, buffers, 0)
            assert_counts_agree(cost, outcome, program.machine)
            for name in specification.outputs:
                arrays[tensors[name].name] = program.tensors[name].array(outcome.buffers[name])
    return arrays


def expected(forms: Sequence[OperatorForm], arrays: dict[str, Any]) -> dict[str, Any]:
    arrays = dict(arrays)
    for each in forms:
        inputs = {n: arrays[each.tensors[n].name] for n in each.specification.inputs}
        values = each.specification.evaluate(inputs)
        arrays[each.tensors["out"].name] = values["out"]
    return arrays


@pytest.mark.parametrize("synchronization", ["in_order", "interlocked"])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_chain_is_proven_and_never_slower(seed: int, synchronization: str) -> None:
    forms = random_chain(seed)
    rows = random.Random(seed).choice([24, 48, 96, 512])
    machine = with_rows(load_instruction_set(SMALL), rows, synchronization)
    apart = planned(forms, machine)
    steps = chained(apart, machine)
    assert cycles(steps) <= cycles(apart)
    assert sum(s.main_bytes for s in steps) <= sum(s.main_bytes for s in apart)
    assert [o for s in steps for o in s.operators] == [o for s in apart for o in s.operators]
    for step in steps:
        for program in step.programs:
            proof = prove(program)
            assert proof.holds, proof.refusal


@needs_executor
@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_chain_computes_its_operators(seed: int) -> None:
    forms = random_chain(seed)
    machine = with_rows(load_instruction_set(SMALL), 128, "interlocked")
    steps = chained(planned(forms, machine), machine)
    arrays = {"t0": random_arrays(forms[0].specification, seed)["A"]}
    actual, reference = run(steps, arrays), expected(forms, arrays)
    last = forms[-1].tensors["out"].name
    np.testing.assert_array_equal(actual[last].reshape(-1), reference[last].reshape(-1))
    # What is in main memory between programs is right too.
    for name in actual:
        np.testing.assert_array_equal(actual[name].reshape(-1), reference[name].reshape(-1))


class Choices(NamedTuple):
    """What can be chosen for a chain, and what was."""

    planner: RunPlanner
    variants: list[list[Variant]]
    problem: SelectionProblem
    chosen: list[ProgramStep]


def choices(steps: Sequence[ProgramStep], machine: InstructionSet) -> Choices:
    planner = ChainPlanner([steps[-1].operators[0].output], machine)
    run = Run()
    assert all(run.takes(step) for step in steps)
    of_run = RunPlanner(planner, run, steps)
    chosen = of_run.steps()
    variants = [of_run.variants_of(n) for n in range(len(of_run.operators))]
    return Choices(of_run, variants, of_run.problem(variants), chosen)


def cycles_of_all(choices: Choices) -> Iterator[tuple[float, float]]:
    """Yield the cost of every selection, part by part, and the estimate of its programs."""
    planner, problem = choices.planner, choices.problem
    for numbers in itertools.product(*(range(len(v)) for v in choices.variants)):
        operators = [[problem.operators[n][k]] for n, k in enumerate(numbers)]
        selection = select(replace(problem, operators=operators))
        if selection is None:
            continue
        steps = planner.selected_steps(choices.variants, problem, selection)
        yield selection.cost, cycles(steps)


@pytest.mark.parametrize("synchronization", ["in_order", "interlocked"])
@pytest.mark.parametrize("seed", SEEDS)
def test_no_selection_is_better_and_the_bound_is_below_all(seed: int, synchronization: str) -> None:
    """All plans and all subsets of tensors on chip of two or three operators, one by one."""
    forms = random_chain(seed)[:3]
    rows = random.Random(seed).choice([48, 96, 512])
    machine = with_rows(load_instruction_set(SMALL), rows, synchronization)
    steps = planned(forms, machine)
    all_choices = choices(steps, machine)
    costs, estimates = zip(*cycles_of_all(all_choices), strict=True)
    graph = cast(Graph, SimpleNamespace(outputs=[steps[-1].operators[0].output]))
    bound = network_bound(steps, graph, machine)
    assert bound <= min(estimates) <= cycles(all_choices.chosen)
    for step in all_choices.chosen:
        if step.chain is not None:
            assert step.chain.is_optimal
            assert step.chain.selected_cycles == pytest.approx(min(costs))
            assert step.chain.selected_bound <= min(costs)


def test_the_load_of_the_processor_does_not_change_programs() -> None:
    forms = random_chain(7)
    machine = with_rows(load_instruction_set(SMALL), 96, "interlocked")
    first = chained(planned(forms, machine), machine)
    with busy_processes(3):
        second = chained(planned(forms, machine), machine)
    assert [s.programs[0].body for s in first] == [s.programs[0].body for s in second]
    assert any(step.chain is not None and step.chain.is_optimal for step in first)


def test_rows_decide_what_stays_on_chip() -> None:
    forms = [product(f"t{n + 1}", f"t{n}", 40, 16, 16, n) for n in range(3)]
    costs: list[float] = []
    moved: list[int] = []
    for rows in (64, 96, 128, 192, 512):
        machine = with_rows(load_instruction_set(SMALL), rows, "in_order")
        steps = chained(planned(forms, machine), machine)
        costs.append(cycles(steps))
        moved.append(sum(step.main_bytes for step in steps))
    assert costs == sorted(costs, reverse=True)
    assert moved == sorted(moved, reverse=True)
    (step,) = steps
    # Only the first tensor, the last one and the weights move.
    assert moved[-1] == 2 * 40 * 16 + 3 * 16 * 16
    assert step.chain is not None
    assert {resident.tensor for resident in step.chain.residents} == {"t1", "t2"}


def test_a_tensor_stays_on_chip_where_it_is_read_in_another_shape() -> None:
    forms = [
        product("t1", "t0", 12, 16, 16, 0),
        rectified("t2", "t1", 3, 4, 16),
        product("t3", "t2", 12, 16, 8, 1),
    ]
    machine = with_rows(load_instruction_set(SMALL), 512, "interlocked")
    (step,) = chained(planned(forms, machine), machine)
    assert step.chain is not None
    assert {resident.tensor for resident in step.chain.residents} == {"t1", "t2"}
    # Inputs, weights and the result.
    assert step.main_bytes == 12 * 16 + 16 * 16 + 16 * 8 + 12 * 8
    (program,) = step.programs
    proof = prove(program)
    assert proof.holds, proof.refusal


@pytest.mark.parametrize("synchronization", ["in_order", "interlocked"])
@pytest.mark.parametrize("seed", SEEDS)
def test_more_rows_never_cost_more(seed: int, synchronization: str) -> None:
    """Random numbers of rows of a random chain, whose operators are planned anew for each."""
    forms = random_chain(seed)
    ladder = sorted(random.Random(seed).sample(range(40, 520), 3))
    costs: list[float] = []
    moved: list[int] = []
    for rows in ladder:
        machine = with_rows(load_instruction_set(SMALL), rows, synchronization)
        steps = chained(planned(forms, machine), machine)
        costs.append(cycles(steps))
        moved.append(sum(step.main_bytes for step in steps))
    assert costs == sorted(costs, reverse=True), ladder
    assert moved == sorted(moved, reverse=True), ladder
