"""Waits and signals, checked by the executor, which knows every order that they allow."""

from __future__ import annotations

import numpy as np
import pytest

from cpembed.accelerator.channels import with_signals
from cpembed.accelerator.executor import execute
from cpembed.accelerator.problem import PlanningError
from cpembed.hw.isa import InstructionSet, Synchronization
from tests.compilers import needs_executor
from tests.unit.accelerator.toys import machine, plans, product, random_arrays, systolic

BOTH = (("load", "execute"), ("execute", "load"), ("execute", "store"), ("store", "execute"))


def target(*channels: tuple[str, str]) -> InstructionSet:
    base = systolic(64, 24)
    return machine(
        "channels",
        list(base.memories.values()),
        list(base.instructions.values()),
        Synchronization.CHANNELS,
        channels,
    )


@needs_executor
def test_random_products_in_every_order_of_the_units() -> None:
    generator = np.random.default_rng(7)
    accelerator = target(*BOTH)
    for seed in range(6):
        m, n, k = (int(x) for x in generator.integers(1, 24, 3))
        specification = product(m, n, k, bias=False, seed=seed)
        inputs = random_arrays(specification, seed)
        expected = specification.evaluate(inputs)["out"]
        arrays = {**specification.constants, **inputs}
        for plan in plans(specification, accelerator):
            program = plan.program()
            buffers = {name: t.buffer(arrays.get(name)) for name, t in program.tensors.items()}
            run = execute(program, buffers, seed)
            out = program.tensors["out"].array(run.buffers["out"])
            np.testing.assert_array_equal(out, expected)


def test_units_without_channels_are_rejected() -> None:
    # The bias is loaded into the sums, which stores read: no channel leads from stores to loads.
    with pytest.raises(PlanningError, match="load and store share accumulator"):
        plans(product(8, 8, 8), target(*BOTH))
    with pytest.raises(PlanningError, match="execute and store share accumulator"):
        plans(product(8, 8, 8, bias=False), target(*BOTH[:3]))


def test_programs_of_one_unit_need_no_signals() -> None:
    program = plans(product(8, 8, 8, bias=False), systolic(64, 24))[0].program()
    loads = [n for n in program.body if "mvin" in str(n) and "matmul" not in str(n)]
    assert with_signals(loads, target(*BOTH), {}) == tuple(loads)
