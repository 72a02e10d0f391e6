"""Stores of sizes set at run time: what pads granules does not reach main memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cpembed.accelerator.executor import execute
from cpembed.accelerator.operator_search import OperatorSearch
from cpembed.accelerator.proof import prove
from cpembed.accelerator.specification import Specification, Statement
from cpembed.hw.isa import InstructionSet
from cpembed.hw.isa_reader import read_instruction_set
from cpembed.ir.parser import parse_computation
from tests.compilers import needs_executor

LANES = 8


def fixed_lanes(*, direct: bool, stored: Any, synchronization: str) -> InstructionSet:
    """Return a machine whose product has 8 lanes in every execution.

    Parameters
    ----------
    direct : bool
        True if sums are stored as bytes; False if bytes are made in rows and copied.
    stored : int or dict
        Size of the lanes of a store.
    synchronization : str
    """
    sums = {"memory": "sums", "dtype": "int32", "rows": ["x"], "lanes": ["y"]}
    rows = {"memory": "buffer", "dtype": "int8", "rows": ["r"], "lanes": ["e"]}
    converted = {**rows, "memory": "bytes"}
    outside = {"memory": "main", "dtype": "int8"}
    sums_by_row = {**sums, "rows": ["r"], "lanes": ["e"]}
    instructions: list[dict[str, Any]] = [
        {
            "name": "load", "unit": "load", "expression": "D[r,e] = S[r,e]",
            "axes": {"r": {"max": 16}, "e": {"max": LANES}},
            "operands": {"D": rows, "S": outside},
        },
        {
            "name": "multiply", "unit": "array", "expression": "C[x,y] += A[x,z] * B[z,y]",
            "axes": {"x": {"max": 16}, "y": LANES, "z": LANES}, "accumulate": True,
            "operands": {
                "A": {**rows, "rows": ["x"], "lanes": ["z"]},
                "B": {**rows, "rows": ["z"], "lanes": ["y"]}, "C": sums,
            },
        },
        {
            "name": "clear", "unit": "array", "expression": "C[x,y] = 0",
            "axes": {"x": {"max": 16}, "y": LANES}, "operands": {"C": sums},
        },
    ]  # fmt: skip
    if direct:
        instructions.append({
            "name": "store", "unit": "store", "expression": "D[r,e] = int8(S[r,e])",
            "axes": {"r": {"max": 16}, "e": stored},
            "operands": {"D": outside, "S": sums_by_row},
        })  # fmt: skip
    else:
        instructions += [
            {
                "name": "convert", "unit": "array", "expression": "D[r,e] = int8(S[r,e])",
                "axes": {"r": {"max": 16}, "e": LANES},
                "operands": {"D": converted, "S": sums_by_row},
            },
            {
                "name": "store", "unit": "store", "expression": "D[r,e] = S[r,e]",
                "axes": {"r": {"max": 16}, "e": stored}, "operands": {"D": outside, "S": converted},
            },
        ]  # fmt: skip
    channels = [
        {"name": f"{first}_{second}", "from": first, "to": second}
        for unit in ("load", "store")
        for first, second in ((unit, "array"), ("array", unit))
    ]
    tables = {
        "name": "fixed", "description": "fixed lanes", "source": "tests", "known": "assumed",
        "clock_mhz": 100, "units": ["load", "array", "store"], "synchronization": synchronization,
        "memories": {
            "main": {"kind": "main", "bytes_per_cycle": 8},
            "buffer": {"rows": 96, "row_bytes": LANES},
            **({} if direct else {"bytes": {"rows": 64, "row_bytes": LANES}}),
            "sums": {"rows": 32, "row_bytes": 4 * LANES},
        },
        "instructions": instructions,
        **({"channels": channels} if synchronization == "channels" else {}),
    }  # fmt: skip
    return read_instruction_set(tables, "fixed")


@needs_executor
@pytest.mark.parametrize("synchronization", ["interlocked", "channels"])
@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("stored", [{"max": LANES}, LANES])
@pytest.mark.parametrize("columns", [5, 19])
def test_stores_end_with_the_elements_where_sizes_allow_it(
    columns: int, stored: Any, *, direct: bool, synchronization: str
) -> None:
    rows, depth = 21, 11
    machine = fixed_lanes(direct=direct, stored=stored, synchronization=synchronization)
    draw = np.random.default_rng(columns)
    arrays = {
        "A": draw.integers(-9, 10, (rows, depth)).astype(np.int8),
        "B": draw.integers(-9, 10, (depth, columns)).astype(np.int8),
    }
    product = parse_computation(
        "S[i,j] += A[i,k] * B[k,j]",
        {"i": rows, "j": columns, "k": depth},
        dtypes={"A": "int8", "B": "int8", "S": "int32"},
    )
    rounded = parse_computation(
        "Y[i,j] = int8(S[i,j])", {"i": rows, "j": columns}, dtypes={"S": "int32", "Y": "int8"}
    )
    statements = (Statement(product), Statement(rounded))
    specification = Specification("gemm", statements, ("A",), ("Y",), {"B": arrays["B"]})
    plans = OperatorSearch(specification, machine).plans()
    assert not isinstance(plans, str), plans
    (plan,) = plans
    program = plan.program()
    proof = prove(program)
    assert proof.holds, proof.refusal
    output = program.tensors["Y"]
    run = execute(program, {n: t.buffer(arrays.get(n)) for n, t in program.tensors.items()})
    sums = arrays["A"].astype(np.int32) @ arrays["B"].astype(np.int32)
    np.testing.assert_array_equal(output.array(run.buffers["Y"]), np.clip(sums, -128, 127))
    takes_any = not isinstance(stored, int)
    if takes_any and (synchronization != "channels" or direct or columns < LANES):
        assert run.moved["main", "write"] == rows * columns
        assert not proof.spoiled_margins
        assert not any(output.after)
    else:
        assert run.moved["main", "write"] >= rows * columns
