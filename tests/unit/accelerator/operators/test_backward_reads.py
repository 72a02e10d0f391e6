"""Statements that walk a tensor backwards: constants are reversed, other tensors are refused."""

from __future__ import annotations

import numpy as np

from cpembed.accelerator.operator_search import OperatorSearch
from cpembed.accelerator.operators.forms import GraphTensor, OperatorForm
from cpembed.accelerator.operators.views import with_forward_constants
from cpembed.accelerator.specification import Specification, Statement
from cpembed.hw.isa_reader import load_instruction_set
from cpembed.ir.parser import parse_computation

EXTENTS = {"p": 5, "k": 4, "r": 3, "c": 6}


def form(text: str, shapes: dict[str, tuple[int, ...]]) -> OperatorForm:
    dtypes = {"X": "int8", "W": "int8", "O": "int32"}
    computation = parse_computation(text, EXTENTS, dtypes=dtypes, shapes=shapes)
    weights = np.random.default_rng(1).integers(-128, 128, shapes["W"]).astype(np.int8)
    statements = (Statement(computation),)
    specification = Specification("backward", statements, ("X",), ("O",), {"W": weights})
    return OperatorForm(specification, {"X": GraphTensor.unchanged("X", shapes["X"])})


def test_constants_are_read_forwards_with_the_same_results() -> None:
    shapes = {"X": (7, 6), "W": (3, 6, 4), "O": (5, 4)}
    before = form("O[p,k] += X[p+r,c] * W[2-r,c,k]", shapes)
    after = with_forward_constants(before)
    (read,) = (a for a in after.specification.statements[0].computation.reads if a.operand == "W")
    assert all(t.coefficient > 0 for index in read.index for t in index.terms)
    x = np.random.default_rng(2).integers(-128, 128, (7, 6)).astype(np.int8)
    expected = before.specification.evaluate({"X": x})["O"]
    np.testing.assert_array_equal(after.specification.evaluate({"X": x})["O"], expected)
    # What is read forwards stays.
    assert with_forward_constants(after) is after


def test_other_tensors_are_refused_in_one_line() -> None:
    shapes = {"X": (7, 6), "W": (3, 6, 4), "O": (5, 4)}
    backward = form("O[p,k] += X[p+2-r,c] * W[r,c,k]", shapes)
    reason = OperatorSearch(backward.specification, load_instruction_set("gemmini")).alternatives()
    assert isinstance(reason, str)
    assert "backwards" in reason
