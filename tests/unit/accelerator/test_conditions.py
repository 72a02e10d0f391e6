"""What a match says has to hold besides is decided by the proof of the program."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

from cpembed.accelerator.matching import match_statement
from cpembed.accelerator.operator_search import OperatorSearch
from cpembed.accelerator.proof import prove
from cpembed.accelerator.specification import Specification
from cpembed.hw.isa import InstructionSet
from cpembed.hw.isa_reader import read_instruction_set
from tests.unit.accelerator.random_machines import random_tables
from tests.unit.accelerator.toys import statement

DTYPES = {"A": "int8", "B": "int8", "S": "int16", "b": "int16"}


def rows(memory: str, dtype: str, row: str, lane: str) -> dict[str, Any]:
    return {"memory": memory, "dtype": dtype, "rows": [row] if row else [], "lanes": [lane]}


def saturating(*, saturate: bool = True) -> InstructionSet:
    """Return a machine whose sums have 16 bits."""
    tables = {k: copy.deepcopy(v) for k, v in random_tables(0).items() if k != "channels"}
    main = {"memory": "main", "dtype": "int8"}
    sums = {"memory": "main", "dtype": "int16"}
    inputs, results = rows("buffer", "int8", "r", "e"), rows("sums", "int16", "r", "e")
    tile = {"r": {"max": 8}, "e": {"max": 8}}

    def instruction(name: str, expression: str, axes: Any, **operands: Any) -> dict[str, Any]:
        return {
            "name": name, "unit": "unit", "expression": expression, "axes": axes,
            "operands": operands, "emit": name,
        }  # fmt: skip

    product = instruction(
        "product", "C[x,y] += A[x,z] * B[z,y]", {axis: {"max": 8} for axis in "xyz"},
        A=rows("buffer", "int8", "x", "z"), B=rows("buffer", "int8", "z", "y"),
        C=rows("sums", "int16", "x", "y"),
    )  # fmt: skip
    tables |= {
        "units": ["unit"],
        "synchronization": "in_order",
        "memories": {
            "main": {"kind": "main"},
            "buffer": {"rows": 256, "row_bytes": 8},
            "sums": {"rows": 64, "row_bytes": 16},
        },
        "instructions": [
            instruction("load", "D[r,e] = S[r,e]", tile, D=inputs, S=main),
            instruction("zero", "D[r,e] = 0", tile, D=results),
            instruction("bias", "D[r,e] = S[e]", tile, D=results, S=sums),
            {**product, "saturate": saturate},
            instruction("store", "D[r,e] = S[r,e]", tile, D=sums, S=results),
        ],
    }  # fmt: skip
    return read_instruction_set(tables, "saturating")


def product(depth: int, largest: int, bias: int | None = None) -> Specification:
    """Return a product with weights up to a number, and a bias of this number."""
    sizes = {"i": 4, "j": 4, "k": depth}
    weights = np.full((depth, 4), largest, np.int8)
    statements = [
        statement("S[i,j] += A[i,k] * B[k,j]", DTYPES, sizes, accumulates=bias is not None)
    ]
    constants: dict[str, Any] = {"B": weights}
    if bias is not None:
        statements.insert(0, statement("S[i,j] = b[j]", DTYPES, {"i": 4, "j": 4}))
        constants["b"] = np.full(4, bias, np.int16)
    return Specification("product", tuple(statements), ("A",), ("S",), constants)


# A is at most 128 in magnitude, so that sums reach 128 * depth * weight.
@pytest.mark.parametrize(
    "specification, fits",
    [
        (product(1, 1), True),
        (product(255, 1), True),
        (product(256, 1), True),
        (product(257, 1), False),
        (product(2, -128), False),
        (product(100, 1, bias=19967), True),
        (product(100, 1, bias=20068), False),
    ],
    ids=("one", "most that fit", "to the end", "one too many", "two", "bias", "bias too large"),
)
def test_sums_that_may_saturate_are_conditions_that_the_proof_decides(
    specification: Specification, fits: bool
) -> None:
    machine = saturating()
    plans = OperatorSearch(specification, machine).plans()
    assert not isinstance(plans, str)
    (proof,) = (prove(plan.program()) for plan in plans)
    assert proof.holds == fits
    conditions = [c for plan in plans for m in plan.problem.matches for c in m.conditions]
    if not fits:
        # What is refused was said before.
        assert conditions
        assert "saturates, and sums of S may leave int16" in proof.refusal
    # Where sums wrap around as the statement's do, there is no condition.
    wrapping = saturating(saturate=False)
    for each in specification.statements:
        assert not any(m.conditions for m in match_statement(each, wrapping).matches)
    plans = OperatorSearch(specification, wrapping).plans()
    assert not isinstance(plans, str)
    assert all(prove(plan.program()).holds for plan in plans)
