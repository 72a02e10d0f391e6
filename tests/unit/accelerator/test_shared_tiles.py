"""Statements that cover different parts of a tensor in one execution, in one program."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cpembed.accelerator.executor import execute
from cpembed.accelerator.operator_search import OperatorSearch
from cpembed.accelerator.specification import Specification
from cpembed.hw.isa_reader import load_instruction_set
from tests.compilers import needs_executor
from tests.unit.accelerator.toys import random_arrays, statement

pytestmark = needs_executor

SMALL = str(Path(__file__).parents[2] / "targets" / "tiny_accelerator.toml")


def check_single_program(specification: Specification, machine: str) -> None:
    """Check the program of all statements on the executor."""
    found = OperatorSearch(specification, load_instruction_set(machine)).plans()
    assert not isinstance(found, str), found
    (plan,) = found
    program = plan.program()
    inputs = random_arrays(specification, 1)
    arrays = {**specification.constants, **inputs}
    buffers = {n: t.buffer(arrays.get(n)) for n, t in program.tensors.items()}
    run = execute(program, buffers, 0)
    expected = specification.evaluate(inputs)
    for name in specification.outputs:
        actual = program.tensors[name].array(run.buffers[name])
        np.testing.assert_array_equal(actual, expected[name])


@pytest.mark.parametrize("batch, rows", [(4, 128), (3, 96), (6, 64)])
def test_a_tile_holds_the_executions_of_every_statement(batch: int, rows: int) -> None:
    dtypes = {"acc": "int32", "A": "int8", "B": "int8", "out": "int8"}
    extents = {"m": rows, "b": batch, "n": 64}
    statements = (
        statement("acc[m,b,n] += A[b,m,k] * B[k,b,n]", dtypes, extents | {"k": 128}),
        statement("out[m,b,n] = int8(float32(acc[m,b,n]) * 0.0078125)", dtypes, extents),
    )
    check_single_program(Specification("batch", statements, ("A", "B"), ("out",), {}), "tpu_like")


@pytest.mark.parametrize("groups, channels", [(2, 6), (3, 5), (2, 7), (2, 8), (4, 3)])
def test_groups_of_channels_take_a_part_of_a_row(groups: int, channels: int) -> None:
    dtypes = {"acc": "int32", "bias": "int32", "X": "int8", "W": "int8", "out": "int8"}
    extents = {"p": 9, "c": groups * channels}
    split = {"p": 9, "g": groups, "o": channels, "i": channels}
    generator = np.random.default_rng(channels)
    product = f"acc[p,{channels}*g+o] += X[p,{channels}*g+i] * W[g,i,o]"
    statements = (
        statement("acc[p,c] = bias[c]", dtypes, extents),
        statement(product, dtypes, split, accumulates=True),
        statement("out[p,c] = int8(float32(acc[p,c]) * 0.125)", dtypes, extents),
    )
    constants = {
        "W": generator.integers(-100, 100, (groups, channels, channels)).astype(np.int8),
        "bias": generator.integers(-1000, 1000, groups * channels).astype(np.int32),
    }
    check_single_program(Specification("groups", statements, ("X",), ("out",), constants), SMALL)
