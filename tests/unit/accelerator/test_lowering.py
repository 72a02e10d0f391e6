"""Programs of plans, executed by an interpreter that refuses reads of what nothing wrote."""

from __future__ import annotations

import numpy as np
import pytest

from cpembed.accelerator.problem import PlanningError
from cpembed.accelerator.specification import Specification
from cpembed.hw.isa import InstructionSet
from tests.unit.accelerator.toys import (
    convolution,
    execute,
    instruction,
    machine,
    main,
    memory,
    place,
    plans,
    product,
    random_arrays,
    statement,
    systolic,
)

MACHINES = {
    "sizes at run time": systolic(128, 48),
    "strides in registers": systolic(128, 48, registers=True),
    "fixed sizes": systolic(192, 64, fixed=True),
    "sums that begin with zeros": systolic(128, 48, variant=False),
}


def check(specification: Specification, target: InstructionSet, seed: int) -> int:
    """Execute every plan of a specification, and return the number of plans."""
    inputs = random_arrays(specification, seed)
    expected = specification.evaluate(inputs)
    found = plans(specification, target)
    for plan in found:
        program = plan.program()
        buffers = execute(program, inputs).buffers
        for name in specification.outputs:
            result = program.tensors[name].array(buffers[name])
            np.testing.assert_array_equal(result, expected[name])
    return len(found)


@pytest.mark.parametrize("name", MACHINES)
def test_random_products(name: str) -> None:
    generator = np.random.default_rng(3)
    for seed in range(4):
        m, n, k = map(int, generator.integers(1, 24, 3))
        assert check(product(m, n, k, bias=bool(seed % 2), seed=seed), MACHINES[name], seed)


@pytest.mark.parametrize("name", MACHINES)
def test_random_convolutions(name: str) -> None:
    generator = np.random.default_rng(5)
    for seed in range(2):
        p, q, c, k = map(int, generator.integers(1, 8, 4))
        r, s = map(int, generator.integers(1, 4, 2))
        stride = int(generator.integers(1, 3))
        pad = int(generator.integers(0, min(r, s)))
        specification = convolution(p, q, c, k, r, s, stride, pad, seed)
        assert check(specification, MACHINES[name], seed)


def vector_machine(rows: int) -> InstructionSet:
    """A machine that computes on rows of a single memory."""
    axes = {"r": (1, 8), "e": (1, 4)}
    row = place("rows", "int32", "r e", "r", "e", r=1)
    column = place("rows", "int32", "r", "r", r=1)
    in_main = place("dram", "int32", "r e", r="any", e=1)
    return machine(
        "vector",
        [main(), memory("rows", rows, 16)],
        [
            instruction("read", "dma", "D[r,e] = S[r,e]", axes, {"D": row, "S": in_main}),
            instruction("write", "dma", "D[r,e] = S[r,e]", axes, {"D": in_main, "S": row}),
            instruction(
                "add", "vector", "D[r,e] = A[r,e] + B[r,e]", axes, {"D": row, "A": row, "B": row}
            ),
            instruction(
                "subtract", "vector", "D[r,e] = A[r,e] - B[r]", axes,
                {"D": row, "A": row, "B": column},
            ),
            instruction(
                "row_maximum", "vector", "D[r] max= S[r,e]", axes, {"D": column, "S": row}
            ),
            instruction(
                "row_maximum_first", "vector", "D[r] max= S[r,e]", axes,
                {"D": column, "S": row}, accumulates=False,
            ),
            instruction("row_sum", "vector", "D[r] += S[r,e]", axes, {"D": column, "S": row}),
            instruction(
                "row_sum_first", "vector", "D[r] += S[r,e]", axes,
                {"D": column, "S": row}, accumulates=False,
            ),
        ],
    )  # fmt: skip


INTEGERS: dict[str, str] = dict.fromkeys("XYmesR", "int32")


def test_a_chain_of_rows_stays_on_chip() -> None:
    # The statements of a softmax, without its exponential.
    statements = (
        statement("m[i] max= X[i,j]", INTEGERS, {"i": 21, "j": 10}),
        statement("e[i,j] = X[i,j] - m[i]", INTEGERS, {"i": 21, "j": 10}),
        statement("s[i] += e[i,j]", INTEGERS, {"i": 21, "j": 10}),
        statement("Y[i,j] = e[i,j] - s[i]", INTEGERS, {"i": 21, "j": 10}),
    )
    specification = Specification("rows", statements, ("X",), ("Y",), {})
    for rows in (64, 200):
        target = vector_machine(rows)
        assert check(specification, target, rows)
        # Only the input and the output cross main memory, each once.
        assert plans(specification, target)[0].cost.main_bytes == 2 * 4 * 21 * 10


def test_elements_with_a_residual() -> None:
    specification = Specification(
        "residual",
        (statement("Y[i,j] = X[i,j] + R[i,j]", INTEGERS, {"i": 19, "j": 9}),),
        ("X", "R"),
        ("Y",),
        {},
    )
    assert check(specification, vector_machine(40), 1)


def test_what_does_not_fit_is_rejected_with_sizes() -> None:
    with pytest.raises(PlanningError, match=r"need \d+ rows of 16 bytes; rows has 4"):
        plans(
            Specification(
                "rows",
                (
                    statement("m[i] max= X[i,j]", INTEGERS, {"i": 8, "j": 40}),
                    statement("Y[i,j] = X[i,j] - m[i]", INTEGERS, {"i": 8, "j": 40}),
                ),
                ("X",),
                ("Y",),
                {},
            ),
            vector_machine(4),
        )


def test_a_missing_copy_is_named() -> None:
    target = systolic()
    without = machine(
        "no loads",
        list(target.memories.values()),
        [i for i in target.instructions.values() if i.name != "mvin"],
    )
    with pytest.raises(PlanningError, match="no copies of int8 from dram to scratchpad"):
        plans(product(8, 8, 8), without)


def test_registers_are_set_where_their_value_changes() -> None:
    program = plans(product(16, 8, 8, seed=1), systolic(128, 48, registers=True))[0].program()
    settings = [issue for _, issue in program.issues() if issue.instruction.startswith("config")]
    # The stride of stores is the same in all of the program: it is set once, outside of all loops.
    stores = [i for i in settings if i.instruction == "config_store_stride"]
    assert len(stores) == 1
    assert any(node in stores for node in program.body)
