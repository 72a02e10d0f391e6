"""The executor against a slow machine, and its faults, one by one."""

from __future__ import annotations

import random

import numpy as np
import pytest

from cpembed.accelerator.assembly import parse
from cpembed.accelerator.executor import execute
from cpembed.accelerator.program import Program
from cpembed.errors import ExecutionFault
from cpembed.hw.isa_reader import available_instruction_sets, load_instruction_set
from tests.compilers import needs_executor
from tests.unit.accelerator.machines import instruction, machine, main, place, rows_memory
from tests.unit.accelerator.random_programs import random_case, random_machine
from tests.unit.accelerator.slow_machine import SlowMachine, Undefined

pytestmark = needs_executor

KINDS = {
    "unwritten": "never written",
    "row": "reaches row",
    "lane": "lane",
    "outside": "reaches element",
    "role": "which is a",
    "bank": "same bank",
    "register": "never set",
    "size": "is not allowed",
    "overlap": "lies partly where",
    "twice": "twice",
}


def outcome(slow: SlowMachine) -> Undefined | None:
    """Run a slow machine; return what is undefined in the program, if anything is."""
    try:
        slow.run()
    except Undefined as error:
        return error
    return None


def compare(seed: int) -> str:
    """Run a random program on both machines; return the kind of its fault, or nothing."""
    # Few machines, since each is compiled; many programs on each.
    case = random_case(seed, random_machine(random.Random(seed // 25)))
    slow = SlowMachine(case.program, case.buffers)
    undefined = outcome(slow)
    if undefined is not None:
        with pytest.raises(ExecutionFault) as fault:
            execute(case.program, case.buffers)
        text = str(fault.value)
        assert f"instruction {undefined.number} (" in text, (seed, undefined.kind)
        # One execution may have several faults, of which each machine names the first it sees.
        assert any(kind in text for kind in KINDS.values()), (seed, undefined.kind)
        return undefined.kind
    run = execute(case.program, case.buffers)
    for name, buffer in run.buffers.items():
        mask = slow.written[name]
        assert np.array_equal(
            np.asarray(buffer[mask], np.float64),
            np.asarray(slow.buffers[name][mask], np.float64),
            equal_nan=True,
        ), (seed, name)
    for (memory, direction), count in run.moved.items():
        if memory != "stride":
            assert count == -(-slow.moved[memory, direction] // 8), (seed, memory, direction)
    assert run.executions == {n: slow.executions[n] for n in case.program.machine.instructions}
    assert (run.saturations, run.wraps) == (slow.saturations, slow.wraps)
    return ""


@pytest.mark.parametrize("seed", range(50))
def test_random_programs_on_random_machines(seed: int) -> None:
    compare(seed)


def test_saturating_sums_go_through_their_points_in_the_order_of_the_axes() -> None:
    # The neighbours in a row belong to the outer one of the reduced axes.
    places = {
        "A": place("rows", "int8", "x z y", lanes="x z y"),
        "C": place("dram", "int8", "x", strides={"x": 1}),
    }
    unit = machine(
        "saturating",
        [main(), rows_memory("rows", 1, 8)],
        ("u",),
        [
            instruction(
                "load", "u", "D[e] = S[e]", {"e": 8},
                {"D": place("rows", "int8", "e", lanes="e"),
                 "S": place("dram", "int8", "e", strides={"e": 1})},
            ),
            instruction(
                "sum", "u", "C[x] += A[x,z,y]", {"x": 2, "y": 2, "z": 2}, places,
                accumulates=False, saturates=True,
            ),
        ],
    )  # fmt: skip
    source = (
        ".tensor S int8 [8] input\n.tensor C int8 [2] output\n"
        "load D=rows[0] S=S[0]\nsum A=rows[0] C=C[0]\n"
    )
    values = np.array([[[100, -100], [100, -100]], [[-100, 90], [-90, 80]]], np.int8)
    run = execute(parse(source, unit), {"S": values.reshape(-1)})
    # By y, then z: 100 + 100 = 127, - 100, - 100; and -100 - 90 = -128, + 90, + 80.
    assert run.buffers["C"].tolist() == [-73, 42]
    assert run.saturations == 2


@pytest.mark.slow
def test_many_random_programs_on_random_machines() -> None:
    kinds = [compare(seed) for seed in range(100, 1000)]
    assert kinds.count("") > 250
    assert len(set(kinds)) > 6


@pytest.mark.slow
@pytest.mark.parametrize("name", available_instruction_sets())
def test_executors_of_the_accelerators_that_ship_compile(name: str) -> None:
    isa = load_instruction_set(name)
    run = execute(Program("nothing", isa, {}, ()))
    assert (run.cycles, sum(run.executions.values())) == (0, 0)
