"""Rows of buffers: which are needed at once, what is written over what, and chains in few rows."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.act import emulate, largest_error, random_arrays
from cpembed.accelerator.allocation import Lifetime, Need, placed
from cpembed.accelerator.operator_search import OperatorSearch, Plans
from cpembed.accelerator.proof import prove
from cpembed.hw.isa_reader import load_instruction_set
from tests.compilers import needs_executor
from tests.unit.accelerator.random_chains import random_chain


def random_needs(seed: int) -> list[Need]:
    generator = random.Random(seed)
    needs: list[Need] = []
    for _ in range(generator.randint(1, 7)):
        first = generator.randrange(10)
        lifetime = Lifetime(first, generator.randrange(first, 10))
        needs.append(Need(generator.randint(1, 9), lifetime if generator.random() < 0.8 else None))
    return needs


@pytest.mark.parametrize("seed", range(60))
def test_needs_of_one_moment_have_different_rows(seed: int) -> None:
    needs = random_needs(seed)
    offsets = placed(needs)
    for moment in range(10):
        rows = [
            row
            for need, offset in zip(needs, offsets, strict=True)
            if need.lifetime is None or need.lifetime.first <= moment <= need.lifetime.last
            for row in range(offset, offset + need.rows)
        ]
        assert len(rows) == len(set(rows))
    assert min(offsets) == 0


def test_buffers_after_each_other_have_the_same_rows() -> None:
    needs = [Need(4, Lifetime(n, n + 1)) for n in range(0, 8, 2)]
    assert placed(needs) == [0, 0, 0, 0]
    both = [Need(4, Lifetime(0, 3)), Need(4, Lifetime(3, 5)), Need(4, Lifetime(4, 6))]
    assert placed(both) == [0, 4, 0]


def smallest_rows(seed: int, dtype: str, memory: str) -> list[tuple[int, bool]]:
    """Plan a chain on machines with fewer and fewer rows, until none fits.

    Each plan is proven, and the last one executed. The result has the rows that each uses, and
    whether it reuses some.
    """
    machine = load_instruction_set("tpu_like")
    specification = random_chain(seed, dtype, machine)
    outcomes: list[tuple[int, bool]] = []
    limit = machine.memories[memory].rows
    last: Plans = ()
    while limit:
        smaller = replace(machine.memories[memory], rows=limit, banks=1)
        small = replace(machine, memories={**machine.memories, memory: smaller})
        plans = OperatorSearch(specification, small).plans()
        if isinstance(plans, str) or len(plans) != 1:
            break
        last, (plan,) = plans, plans
        assert prove(plan.program()).refusal == ""
        assert plan.rows[memory] <= limit
        outcomes.append((plan.rows[memory], plan.problem.reuses_rows))
        limit = min(limit // 2, plan.rows[memory] - 1)
    arrays = random_arrays(specification, seed)
    contents, _ = emulate(last, {**arrays, **specification.constants})
    error, tolerance = largest_error(specification, arrays, contents)
    assert error <= 10 * tolerance
    return outcomes


@needs_executor
@pytest.mark.parametrize("seed", [0, 3])
def test_chains_of_floats_run_in_few_rows(seed: int) -> None:
    outcomes = smallest_rows(seed, "float32", "sums")
    assert [reuses for _, reuses in outcomes] == sorted(reuses for _, reuses in outcomes)
    assert outcomes[-1][1]


@needs_executor
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("dtype, memory", [("float32", "sums"), ("int8", "unified")])
def test_many_chains_run_in_few_rows(seed: int, dtype: str, memory: str) -> None:
    outcomes = smallest_rows(seed, dtype, memory)
    rows = [count for count, _ in outcomes]
    assert rows == sorted(rows, reverse=True)
    assert all(a > b for a, b in itertools.pairwise(rows))


@needs_executor
@pytest.mark.parametrize(
    "target, dtype, seed",
    [("tpu_like", "float32", 1), ("tpu_like", "int8", 5), ("gemmini", "int8", 12),
     ("nvdla_like", "int8", 17), ("ethos_u_like", "int8", 12), ("vta_isa", "int8", 28)],
)  # fmt: skip
def test_random_chains_are_planned_proven_and_right(target: str, dtype: str, seed: int) -> None:
    machine = load_instruction_set(target)
    specification = random_chain(seed, dtype, machine)
    search = OperatorSearch(specification, machine)
    plans = search.plans()
    assert not isinstance(plans, str), plans
    assert [prove(plan.program()).refusal for plan in plans] == [""] * len(plans)
    arrays = random_arrays(specification, seed)
    contents, _ = emulate(plans, {**arrays, **search.specification.constants})
    error, tolerance = largest_error(specification, arrays, contents)
    assert error <= 10 * tolerance
    assert len(np.unique(contents[specification.outputs[0]])) > 4
