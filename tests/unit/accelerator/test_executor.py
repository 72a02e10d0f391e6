"""The executor against a slow machine, and its faults, one by one."""

from __future__ import annotations

import random

import numpy as np
import pytest

from cpembed.accelerator.executor import execute
from cpembed.errors import ExecutionFault
from tests.unit.accelerator.random_programs import random_case, random_machine
from tests.unit.accelerator.slow_machine import SlowMachine, Undefined

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


@pytest.mark.slow
def test_many_random_programs_on_random_machines() -> None:
    kinds = [compare(seed) for seed in range(100, 1000)]
    assert kinds.count("") > 300
    assert len(set(kinds)) > 6
