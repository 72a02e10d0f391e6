"""Machines with more of one resource, and what bounds say, against all tilings of small layers."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from cpembed.accelerator.bounds import bounds
from cpembed.accelerator.cost import program_cost
from cpembed.accelerator.emission import Lowering
from cpembed.accelerator.matching import match_statement
from cpembed.accelerator.operator_search import OperatorSearch
from cpembed.accelerator.pipeline import pipelined_cycles
from cpembed.accelerator.problem import AddressingError, OperatorProblem, PlanningError
from cpembed.accelerator.proof import prove
from cpembed.accelerator.specification import Specification
from cpembed.accelerator.template import Template, exact_template
from cpembed.accelerator.tiling_search import TilingSearch
from cpembed.accelerator.workload import workload_specification
from cpembed.hw.isa import InstructionSet, Synchronization
from cpembed.hw.isa_reader import load_instruction_set
from cpembed.workloads.naming import parse_workload
from tests.unit.accelerator.toys import convolution, execute, product, random_arrays, systolic

RISE = 1.04
"""Factor by which the estimate of a larger machine may exceed that of a smaller one: the search
ranks tilings by a model, and times the best of them."""


def cycles(specification: Specification, machine: InstructionSet) -> float:
    plans = OperatorSearch(specification, machine).plans()
    assert not isinstance(plans, str), plans
    return sum(plan.cycles for plan in plans)


def with_rows(machine: InstructionSet, name: str, rows: int) -> InstructionSet:
    memories = {**machine.memories, name: replace(machine.memories[name], rows=rows)}
    return replace(machine, memories=memories)


def test_more_rows_keep_tilings_that_instructions_can_address() -> None:
    # The image has its rows in the lanes, so that all but a few tilings begin in another lane.
    machine = load_instruction_set("gemmini")
    workload = parse_workload(
        ["conv2d", "n=1", "c=16", "h=14", "w=14", "k=32", "r=3", "s=3", "pad=1"]
    )
    specification = workload_specification(workload)
    few, many = (
        cycles(specification, with_rows(machine, "scratchpad", rows)) for rows in (96, 2048)
    )
    assert many <= few < 6500


def larger(machine: InstructionSet, generator: random.Random) -> InstructionSet:
    """Return a machine with more of one resource, or one that takes less time."""
    kind = generator.choice(["rows", "sums", "bandwidth", "latency", "cycles", "unit"])
    main = machine.main
    if kind in ("rows", "sums"):
        name = {"rows": "scratchpad", "sums": "accumulator"}[kind]
        rows = machine.memories[name].rows
        return with_rows(machine, name, rows * generator.choice([2, 3, 4]))
    if kind == "bandwidth":
        faster = replace(main, bytes_per_cycle=main.bytes_per_cycle * generator.choice([1.5, 2, 4]))
        return replace(machine, memories={**machine.memories, main.name: faster})
    if kind == "latency":
        faster = replace(main, latency_cycles=0.0)
        return replace(machine, memories={**machine.memories, main.name: faster})
    name = generator.choice(["mvin", "mvin_sums", "matmul", "mvout"])
    instruction = machine.instructions[name]
    if kind == "cycles":
        halved = tuple((axes, cost / 2) for axes, cost in instruction.cycles)
        changed = replace(instruction, cycles=halved)
        return replace(machine, instructions={**machine.instructions, name: changed})
    changed = replace(instruction, unit="further")
    units = (*machine.units, "further")
    return replace(machine, units=units, instructions={**machine.instructions, name: changed})


def random_case(seed: int) -> tuple[Specification, InstructionSet]:
    generator = random.Random(seed)
    machine = systolic(
        generator.choice([16, 24, 64]),
        generator.choice([8, 16, 32]),
        registers=generator.random() < 0.3,
        bytes_per_cycle=generator.choice([1.0, 4.0, 16.0]),
    )
    if seed % 2:
        m, n, k = (generator.randint(1, 24) for _ in range(3))
        return product(m, n, k, bias=generator.random() < 0.5, seed=seed), machine
    p, q, c, k = (generator.randint(1, 7) for _ in range(4))
    window = generator.choice([1, 2, 3])
    stride = generator.choice([1, 2])
    return convolution(p, q, c, k, window, window, stride, window // 2, seed), machine


@pytest.mark.quick(3)
@pytest.mark.parametrize("seed", range(24))
def test_more_of_a_resource_does_not_cost_cycles(seed: int) -> None:
    specification, machine = random_case(seed)
    before = cycles(specification, machine)
    generator = random.Random(seed)
    for _ in range(2):
        assert cycles(specification, larger(machine, generator)) <= before * RISE


def exact(specification: Specification, machine: InstructionSet) -> Template:
    """Return the template of the matches with one digit an axis."""
    matches = tuple(
        next(
            m
            for m in match_statement(s, machine).matches
            if all(len(digits) <= 1 for digits in m.axes.values())
        )
        for s in specification.statements
    )
    return exact_template(OperatorProblem(specification, matches), machine)


@pytest.mark.parametrize("synchronization", ["in_order", "interlocked"])
@pytest.mark.parametrize("seed", range(3))
def test_no_tiling_is_below_its_bounds(seed: int, synchronization: str) -> None:
    generator = random.Random(seed)
    machine = replace(systolic(24, 8), synchronization=Synchronization(synchronization))
    begin = machine.instructions["matmul_begin"]
    # Sums that begin cheaply must not be counted as if they went on.
    cheap = replace(begin, cycles=tuple((axes, cost / 4) for axes, cost in begin.cycles))
    machine = replace(machine, instructions={**machine.instructions, "matmul_begin": cheap})
    specification = product(*(generator.randint(3, 12) for _ in range(3)), bias=bool(seed % 2))
    template = exact(specification, machine)
    least, moved = bounds(template)
    search, timed = TilingSearch(template), 0
    while timed < 60 and (candidate := search.next()) is not None:
        lowering = Lowering(template, candidate.tiling)
        try:
            program = lowering.program()
        except AddressingError as error:
            search.exclude(candidate, error.tensor)
            continue
        except PlanningError:
            continue
        timed += 1
        cost = program_cost(program, pipelined_cycles(program, lowering.buffers.regions()))
        assert cost.cycles >= least * (1 - 1e-9)
        assert cost.cycles >= candidate.busy_cycles * (1 - 1e-9)
        assert cost.main_bytes >= moved
        assert cost.main_bytes == pytest.approx(candidate.bytes_moved)
        if timed % 20 == 1:
            inputs = random_arrays(specification, seed)
            expected = specification.evaluate(inputs)
            buffer = execute(program, inputs).buffers["out"]
            np.testing.assert_array_equal(program.tensors["out"].array(buffer), expected["out"])
            assert prove(program).holds
    assert timed >= 8
