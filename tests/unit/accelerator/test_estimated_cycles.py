"""Estimates of random layers on shipped machines against the executor: cycles, bytes and calls."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from benchmarks.act import emulate, random_arrays
from cpembed.accelerator.executor import Run
from cpembed.accelerator.lowering import OperatorPlan
from cpembed.accelerator.operator_search import OperatorSearch
from cpembed.hw.isa import InstructionSet, Synchronization
from cpembed.hw.isa_reader import load_instruction_set
from cpembed.ir.dtypes import bits
from tests.compilers import needs_executor
from tests.unit.accelerator.counted import assert_counts_agree
from tests.unit.accelerator.planned_programs import LAYERS, specification
from tests.unit.accelerator.test_random_operators import MACHINES, extents

pytestmark = needs_executor

NEAR = {Synchronization.IN_ORDER: 0.05, Synchronization.INTERLOCKED: 0.4}
"""Largest part by which estimated cycles of small layers differ from emulated ones.

Units that work side by side take the path to main memory in an order that the estimate does not
follow. With channels they wait for rounds besides, of which the estimate has a bound alone.
"""


def random_runs(machine: InstructionSet, seed: int) -> Iterator[tuple[OperatorPlan, Run]]:
    """Yield the plans and runs of three random layers, as far as the machine has plans for them."""
    draw = random.Random(f"{machine.name}{seed}")
    sizes = extents(draw, machine)
    for name in draw.sample(list(LAYERS), 3):
        for statements in LAYERS[name]:
            layer = specification(name, statements, sizes)
            plans = OperatorSearch(layer, machine).plans()
            if isinstance(plans, str):
                continue
            arrays = {**random_arrays(layer, 1), **layer.constants}
            _, runs = emulate(plans, arrays)
            yield from zip(plans, runs, strict=True)
            outputs = [layer.operands[name] for name in layer.outputs]
            least = sum(int(np.prod(o.shape)) * bits(o.dtype) // 8 for o in outputs)
            assert sum(run.moved[machine.main.name, "write"] for run in runs) >= least
            break


@pytest.mark.quick(6)
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("target", MACHINES, ids=lambda t: Path(t).stem)
def test_counts_and_cycles_are_those_of_an_execution(target: str, seed: int) -> None:
    machine = load_instruction_set(target)
    for plan, run in random_runs(machine, seed):
        assert_counts_agree(plan.cost, run, machine)
        assert plan.cycles_bound <= run.cycles * (1 + 1e-9)
        assert dict(run.unit_cycles) == pytest.approx(plan.cost.unit_cycles)
        near = NEAR.get(machine.synchronization)
        if near is not None:
            assert plan.cycles == pytest.approx(run.cycles, rel=near)
