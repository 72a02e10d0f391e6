"""Random machines: what is planned is proven, right, and counted as the executor counts it."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from benchmarks.act import emulate, largest_error, random_arrays
from cpembed.accelerator.operator_search import OperatorSearch
from cpembed.accelerator.proof import prove
from cpembed.accelerator.specification import Specification, Statement
from cpembed.accelerator.workload import workload_specification
from cpembed.hw.isa import InstructionSet, Synchronization
from cpembed.ir.dtypes import bits
from cpembed.workloads.naming import parse_workload
from tests.compilers import needs_executor
from tests.unit.accelerator.counted import assert_counts_agree
from tests.unit.accelerator.random_machines import random_machine
from tests.unit.accelerator.toys import statement

pytestmark = needs_executor

DTYPES = {"A": "int8", "B": "int8", "E": "int8", "Y": "int8", "S": "int32", "b": "int32"}
SEEDS = range(80)
IN_ORDER = 0.05
"""Largest part by which estimates differ from emulated cycles on machines that work in order."""
TURNS = (3, 41, 49)
"""Machines with channels, of which one unit begins sums and stores them."""


def convolution(draw: random.Random) -> list[str]:
    window = draw.choice([1, 1, 3])
    return [
        "conv2d", "n=1", f"c={draw.choice([1, 3, 4, 8, 16])}", f"h={draw.randint(window, 9)}",
        f"w={draw.randint(window, 9)}", f"k={draw.choice([1, 4, 8, 16])}", f"r={window}",
        f"s={window}", f"pad={draw.choice([0, window // 2])}", f"stride={draw.choice([1, 1, 2])}",
        "layout=NHWC",
    ]  # fmt: skip


def specifications(seed: int, machine: InstructionSet) -> Iterator[Specification]:
    """Yield random layers: products, convolutions, and what else the machine has stores for."""
    draw = random.Random(seed * 7919)
    sizes = {axis: draw.choice([1, 3, 8, 16, 17, 24, draw.randint(1, 40)]) for axis in "ijk"}
    yield workload_specification(
        parse_workload(["gemm", *(f"{a}={sizes[b]}" for a, b in zip("mnk", "ijk", strict=True))])
    )
    yield workload_specification(parse_workload(convolution(draw)))
    instructions = machine.instructions
    if "store_bytes" in instructions:
        rectifies = "max" in str(instructions["store_bytes"].computation)
        value = "S[i,j] * 0.0078125"
        stored = f"Y[i,j] = int8({f'max({value}, 0)' if rectifies else value})"
        yield product(sizes, (stored,), seed)
        yield product(sizes, (stored,), seed, bias=True)
    if "relu" in instructions:
        yield elementwise("relu", sizes, ("Y[i,j] = max(A[i,j], 0)",))
        yield elementwise(
            "add", sizes, ("E[i,j] = int8(A[i,j] + B[i,j])", "Y[i,j] = max(E[i,j], 0)")
        )


def product(
    sizes: Mapping[str, int], after: tuple[str, ...], seed: int, *, bias: bool = False
) -> Specification:
    """Return a product of matrices with constants, and statements after it."""
    generator = np.random.default_rng(seed)
    constants: dict[str, Any] = {
        "B": generator.integers(-128, 128, (sizes["k"], sizes["j"])).astype(np.int8)
    }
    statements = [
        statement("S[i,j] += A[i,k] * B[k,j]", DTYPES, sizes, accumulates=bias),
        *(statements_over(after, sizes)),
    ]
    if bias:
        constants["b"] = generator.integers(-500, 500, sizes["j"]).astype(np.int32)
        statements = [*statements_over(("S[i,j] = b[j]",), sizes), *statements]
    return Specification("product", tuple(statements), ("A",), ("Y",), constants)


def elementwise(name: str, sizes: Mapping[str, int], texts: tuple[str, ...]) -> Specification:
    statements = tuple(statements_over(texts, sizes))
    inputs = ("A", "B") if any("B[" in text for text in texts) else ("A",)
    return Specification(name, statements, inputs, ("Y",), {})


def statements_over(texts: tuple[str, ...], sizes: Mapping[str, int]) -> Iterator[Statement]:
    for text in texts:
        yield statement(text, DTYPES, {axis: sizes[axis] for axis in "ij"})


def elements_bytes(specification: Specification) -> int:
    """Return the bytes of all outputs."""
    outputs = [specification.operands[name] for name in specification.outputs]
    return sum(int(np.prod(o.shape)) * bits(o.dtype) // 8 for o in outputs)


def check(specification: Specification, machine: InstructionSet) -> bool:
    """Check a layer on a machine; return False if it was refused in one line."""
    plans = OperatorSearch(specification, machine).plans()
    if isinstance(plans, str):
        assert plans.startswith("rejected: ")
        assert "\n" not in plans
        return False
    assert [p.refusal for p in (prove(plan.program()) for plan in plans) if not p.holds] == []
    arrays = {**random_arrays(specification, 1), **specification.constants}
    contents, runs = emulate(plans, arrays)
    error, tolerance = largest_error(specification, arrays, contents)
    assert error == tolerance == 0
    written = 0.0
    for plan, run in zip(plans, runs, strict=True):
        assert_counts_agree(plan.cost, run, machine)
        if machine.synchronization is Synchronization.IN_ORDER:
            # Latencies count: they are most of the cycles of small layers.
            assert plan.cycles == pytest.approx(run.cycles, rel=IN_ORDER)
        written += run.moved[machine.main.name, "write"]
        assert plan.cycles_bound <= run.cycles * (1 + 1e-9)
    assert written >= elements_bytes(specification)
    return True


@pytest.mark.quick(8)
@pytest.mark.parametrize("seed", SEEDS)
def test_layers_on_a_random_machine_are_right_proven_and_counted(seed: int) -> None:
    machine = random_machine(seed)
    for specification in specifications(seed, machine):
        check(specification, machine)


@pytest.mark.parametrize("seed", TURNS)
def test_a_unit_may_begin_and_end_what_another_one_works_on(seed: int) -> None:
    machine = random_machine(seed)
    assert machine.synchronization is Synchronization.CHANNELS
    assert sum(check(s, machine) for s in specifications(seed, machine)) > 1


@pytest.mark.slow
def test_most_machines_execute_some_layer() -> None:
    machines = {seed: random_machine(seed) for seed in SEEDS}
    executed = [
        seed
        for seed, machine in machines.items()
        if any(
            not isinstance(OperatorSearch(s, machine).plans(), str)
            for s in specifications(seed, machine)
        )
    ]
    assert len(executed) > len(SEEDS) / 2
